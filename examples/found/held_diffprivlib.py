"""Parts of diffprivlib that held up: dpzv-audit audit mechanism held_diffprivlib:mean, :median and :gaussian"""

import numpy as np
from diffprivlib.mechanisms import GaussianAnalytic
from diffprivlib.tools import mean as private_mean
from diffprivlib.tools import median as private_median

RECORDS = 20


class Answer:
    """What a function answers on numbers that are all 0, or of which the first is 1 in the first world."""

    def __init__(self, answer):
        self.answer = answer

    def run(self, world, rng):
        """Return the answer."""
        numbers = np.zeros(RECORDS)
        numbers[0] = float(world)
        return float(self.answer(numbers, int(rng.integers(2**31))))

    def claimed(self, delta):
        """Return the epsilon that was asked for."""
        return 1.0


def mean():
    """A mean with Laplace noise."""
    return Answer(lambda numbers, seed: private_mean(numbers, epsilon=1.0, bounds=(0.0, 1.0), random_state=seed))


def median():
    """A median by the exponential mechanism."""
    return Answer(lambda numbers, seed: private_median(numbers, epsilon=1.0, bounds=(0.0, 1.0), random_state=seed))


def gaussian():
    """A sum with the noise of the analytic Gaussian mechanism, at delta 1e-5."""

    def noised(numbers, seed):
        return GaussianAnalytic(epsilon=1.0, delta=1e-5, sensitivity=1.0, random_state=seed).randomise(numbers.sum())

    return Answer(noised)
