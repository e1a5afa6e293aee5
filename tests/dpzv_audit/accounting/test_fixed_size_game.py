"""Bounds on fixed-size batches with secret ids against the game itself, played on drawn batches."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import beta, hypergeom

from dpzv_audit.accounting import Release, tightest_sound, upper_bounds
from dpzv_audit.accounting.prv import prv_epsilon

CERTAIN = 1e-6
TRIALS = 20_000


@dataclass(frozen=True)
class Setting:
    """A release of the sums of batches, and the others' clipped differences: `high` of them at +C, the rest at -C."""

    records: int
    batch: int
    rounds: int
    sigma: float
    delta: float
    high: int

    def release(self):
        return Release(
            batch_size=self.batch,
            dataset_size=self.records,
            rounds=self.rounds,
            clip=1.0,
            sigma=self.sigma / self.batch,
            sampler="uniform",
            server_update="frozen",
        )


def random_setting(generator):
    records = int(generator.integers(4, 41))
    return Setting(
        records=records,
        batch=int(generator.integers(1, max(2, records // 2))),
        rounds=int(generator.integers(1, 41)),
        sigma=math.exp(generator.uniform(math.log(0.7), math.log(12.0))),
        delta=math.exp(generator.uniform(math.log(1e-4), math.log(0.05))),
        high=int(generator.choice([0, records - 1, generator.integers(0, records)])),
    )


def law(setting, label):
    """Means of a round's sum where the record is at `label` C, with their probabilities, from the sampler alone."""
    d, b, k = setting.records - 1, setting.batch, setting.high
    n = np.arange(b + 1)
    absent = (2.0 * n - b, (1.0 - b / (d + 1)) * hypergeom.pmf(n, d, k, b))
    present = (label + 2.0 * n[:-1] - (b - 1), b / (d + 1) * hypergeom.pmf(n[:-1], d, k, b - 1))
    means, weights = (np.concatenate(pair) for pair in zip(absent, present, strict=True))
    return means[weights > 0.0], weights[weights > 0.0]


def drawn(setting, label, generator, trials):
    """Sums (trials, rounds) of batches drawn without replacement, with noise."""
    colours = [1, setting.high, setting.records - 1 - setting.high]
    batch = generator.multivariate_hypergeometric(colours, setting.batch, size=(trials, setting.rounds))
    return batch @ np.array([label, 1.0, -1.0]) + setting.sigma * generator.standard_normal(batch.shape[:2])


def score(setting, sums):
    """Log-likelihood ratio (trials,) of the record at +C against -C: the best score of one who sees sums alone."""
    total = np.zeros(len(sums))
    for label in (1.0, -1.0):
        means, weights = law(setting, label)
        exponent = -0.5 * ((sums[..., None] - means) / setting.sigma) ** 2
        total += label * logsumexp(exponent, b=weights, axis=2).sum(1)
    return total


def certified_below(setting, generator, trials=TRIALS):
    """An epsilon that the release exceeds at confidence 1 - CERTAIN: Clopper-Pearson, on trials apart from the cut's.

    Both directions are played, each at half of that.
    """
    scores = [score(setting, drawn(setting, label, generator, 2 * trials)) for label in (1.0, -1.0)]
    found = []
    for first, second in ((scores[0], scores[1]), (-scores[1], -scores[0])):
        cuts = np.quantile(first[:trials], np.linspace(0.0, 0.999, 400))
        hits, misses = (np.array([(half[:trials] > cut).sum() for cut in cuts]) for half in (first, second))
        cut = cuts[np.argmax(_epsilon(hits, misses, trials, setting.delta, 0.01))]
        seen = [(half[trials:] > cut).sum() for half in (first, second)]
        found.append(float(_epsilon(*seen, trials, setting.delta, CERTAIN / 4.0)))
    return max(found)


def _epsilon(hits, misses, trials, delta, error):
    """ln((p - delta)/q) of a test, p and q each certified at 1 - error."""
    p = np.nan_to_num(beta.ppf(error, hits, trials - hits + 1), nan=0.0)
    q = np.nan_to_num(beta.ppf(1.0 - error, misses + 1, trials - misses), nan=1.0)
    return np.log(np.maximum(p - delta, 1e-300) / q)


def bound_of(setting):
    return tightest_sound(
        upper_bounds(setting.release(), delta=setting.delta, adversaries=["release"], neighbours=["replace-label"])
    )


# False alarm: each of the 60 releases with probability at most 1e-6, so 6e-5 in all.
@pytest.mark.parametrize("number", [n if n < 3 else pytest.param(n, marks=pytest.mark.slow) for n in range(60)])
def test_no_bound_lies_below_what_the_game_shows(number):
    generator = np.random.default_rng([14, number])
    setting = random_setting(generator)
    assert certified_below(setting, generator) <= bound_of(setting).epsilon.upper


def test_the_game_finds_bounds_that_are_too_low():
    # One record in 30 in each of 40 batches: the game shows 1.3, the bound says 2.3. It must see through the bound of
    # Poisson batches (0.6), and through one whose step is what the record itself moves by (0.4). No false alarm here.
    setting = Setting(records=30, batch=1, rounds=40, sigma=1.2, delta=0.01, high=0)
    shown = certified_below(setting, np.random.default_rng(1))
    one = {"rate": setting.batch / setting.records, "noise": setting.sigma, "rounds": 40, "delta": setting.delta}
    for kind in ("replace", "fixed-size"):  # both with the noise against C/B
        assert prv_epsilon(kind=kind, **one).epsilon.upper < shown
    assert shown < bound_of(setting).epsilon.upper
