"""Two mechanisms from outside this project under audit: a mean with Laplace noise, and scikit-learn with noise on it.

Run from this folder:

    dpzv-audit audit mechanism dp_mean:laplace_mean --epsilon 1 --runs 4000
    dpzv-audit audit mechanism dp_mean:mean_of_the_wrong_size --epsilon 1 --runs 4000
    dpzv-audit audit mechanism dp_mean:noisy_regression --epsilon 1 --runs 1000
"""

import numpy as np
from sklearn.linear_model import Ridge

RECORDS, EPSILON = 100, 1.0


class LaplaceMean:
    """The mean of 100 numbers in [0, 1], with Laplace noise for (1, 0)-differential privacy where one is replaced.

    World 0 has a 0 for the record that differs, world 1 a 1: the worst case. The others are 0. A run answers with the
    released number, which is the best score there is.
    """

    def __init__(self, sensitivity: float) -> None:
        self._scale = sensitivity / EPSILON

    def run(self, world: int, rng: np.random.Generator) -> float:
        numbers = np.zeros(RECORDS)
        numbers[0] = world
        return float(numbers.mean() + rng.laplace(0.0, self._scale))


def laplace_mean() -> LaplaceMean:
    """As it should be: one record moves the mean by 1/100."""
    return LaplaceMean(1.0 / RECORDS)


def mean_of_the_wrong_size() -> LaplaceMean:
    """With a bug: the sensitivity of the mean of 400 numbers, on 100."""
    return LaplaceMean(1.0 / (4 * RECORDS))


class NoisyRegression:
    """Coefficients of scikit-learn's ridge regression with a little Gaussian noise: no calibration, and it shows.

    A run answers with the view, all released coefficients, and the audit fits its own score on separate runs.
    """

    def __init__(self) -> None:
        fixed = np.random.default_rng(0)
        self._features = fixed.uniform(-1.0, 1.0, (RECORDS, 4))
        self._targets = np.clip(self._features @ [0.5, -0.2, 0.1, 0.3] + fixed.normal(0.0, 0.1, RECORDS), -1.0, 1.0)

    def run(self, world: int, rng: np.random.Generator) -> np.ndarray:
        features, targets = self._features.copy(), self._targets.copy()
        features[0], targets[0] = 1.0, 1.0 if world else -1.0
        return Ridge(alpha=1.0).fit(features, targets).coef_ + rng.normal(0.0, 0.01, 4)


def noisy_regression() -> NoisyRegression:
    """The regression above."""
    return NoisyRegression()
