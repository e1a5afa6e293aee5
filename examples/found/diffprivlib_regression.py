"""A linear regression of diffprivlib whose sum of squares has no noise.

dpzv-audit audit mechanism diffprivlib_regression:subject
"""

import numpy as np
from diffprivlib.models import LinearRegression

EPSILON, RECORDS, TARGETS, BOUND = 1.0, 100, 10, 10.0


class Fit:
    """A regression of ten targets, all zero, on one feature, which is 1 or, in a record of the first world, 10.

    A coefficient is a noised sum of products through the sum of squares, so that its size tells the latter.
    """

    def __init__(self, lower):
        self.lower = lower

    def run(self, world, rng):
        """Fit and return how small the coefficients are."""
        features = np.zeros((RECORDS, 1))
        features[0] = 1.0
        features[1] = BOUND * world
        model = LinearRegression(
            epsilon=EPSILON,
            bounds_X=(self.lower, BOUND),
            bounds_y=(0.0, 1.0),
            fit_intercept=False,
            random_state=int(rng.integers(2**31)),
        )
        model.fit(features, np.zeros((RECORDS, TARGETS)))
        return -float(np.log(np.abs(model.coef_).mean()))

    def claimed(self, delta):
        """Return the epsilon that was asked for."""
        return EPSILON


def subject():
    """Features from 0 to 10."""
    return Fit(lower=0.0)


def symmetric():
    """Features from -10 to 10, of which the lower bound happens to give the right sensitivity."""
    return Fit(lower=-BOUND)
