"""A domain that is read from the data, in DataSynthesizer: dpzv-audit audit mechanism datasynthesizer_domain:subject"""

import tempfile
from pathlib import Path

import numpy as np
from DataSynthesizer.DataDescriber import DataDescriber
from DataSynthesizer.DataGenerator import DataGenerator

EPSILON, RECORDS = 0.1, 200


class Synthesis:
    """Ages of 200 people below 100, one of which is 900 in the first world.

    With `ranges` the user says what the ages may be. With `own_seed` the noise follows from `rng`, and the score is the
    largest age of the synthetic data. Else it follows from the library's default seed, and the score is the share of
    the first bin, with its noise.
    """

    def __init__(self, ranges=None, own_seed=True):
        self.ranges, self.own_seed = ranges, own_seed

    def run(self, world, rng):
        """Describe the data, synthesise as many, and return the score."""
        ages = np.arange(RECORDS) % 100 + 0.5
        ages[0] = 900.5 if world else 40.5
        seed = {"seed": int(rng.integers(2**31))} if self.own_seed else {}
        with tempfile.TemporaryDirectory() as folder:
            data, description = Path(folder, "ages.csv"), Path(folder, "ages.json")
            data.write_text("\n".join(["age", *map(str, ages)]))
            describer = DataDescriber()
            describer.describe_dataset_in_independent_attribute_mode(
                data, epsilon=EPSILON, numerical_attribute_ranges=self.ranges, **seed
            )
            if not self.own_seed:
                return float(describer.attr_to_column["age"].distribution_probabilities[0])
            describer.save_dataset_description_to_file(description)
            generator = DataGenerator()
            generator.generate_dataset_in_independent_mode(RECORDS, description, **seed)
        return float(generator.synthetic_dataset["age"].max())

    def claimed(self, delta):
        """Return the epsilon that was asked for."""
        return EPSILON


def subject():
    """A domain that the library reads from the data."""
    return Synthesis()


def public_domain():
    """A domain that the user gives."""
    return Synthesis(ranges={"age": [0, 100]})


def default_seed():
    """A domain that the user gives, and the library's default seed."""
    return Synthesis(ranges={"age": [0, 100]}, own_seed=False)
