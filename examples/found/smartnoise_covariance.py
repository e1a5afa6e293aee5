"""Covariances of SmartNoise, of data that are not clipped: dpzv-audit audit mechanism smartnoise_covariance:subject"""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd

EPSILON, RECORDS = 1.0, 100


def covariance_class():
    """Return DPcovariance from its own file: its package imports more than this needs."""
    package = importlib.util.find_spec("snsynth")
    if package is None:
        raise ImportError("needs smartnoise-synth")
    file = Path(package.origin).parent / "models" / "dp_covariance.py"
    spec = importlib.util.spec_from_file_location("dp_covariance", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DPcovariance


class Release:
    """Covariances of columns between 0 and `upper`, zero but for the value of one record and column in the first world.

    The score is the released variance of that column, the `place`-th of what is released.
    """

    def __init__(self, upper, column, place, value):
        self.upper, self.column, self.place, self.value = upper, column, place, value
        self.release = covariance_class()

    def run(self, world, rng):
        """Release and return the score."""
        columns = list(range(len(self.upper)))
        data = pd.DataFrame(np.zeros((RECORDS, len(columns))), columns=columns)
        data.loc[0, self.column] = self.value * world
        ranges = pd.DataFrame([[0.0] * len(columns), self.upper])
        np.random.seed(int(rng.integers(2**31)))  # noqa: NPY002  (the generator that the library draws from)
        return float(self.release(RECORDS, columns, ranges, EPSILON).release(data)[self.place])

    def claimed(self, delta):
        """Return the epsilon that was asked for."""
        return EPSILON


def subject():
    """Two columns between 0 and 1, and a value of 1000."""
    return Release([1.0, 1.0], column=0, place=0, value=1000.0)


def triangle():
    """Three columns, of which the second is between 0 and 100, and a value of 100 there."""
    return Release([1.0, 100.0, 1.0], column=1, place=2, value=100.0)


def equal_ranges():
    """The same with three equal ranges, where the order of sensitivities does not matter."""
    return Release([100.0, 100.0, 100.0], column=1, place=2, value=100.0)
