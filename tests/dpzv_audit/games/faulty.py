"""Mechanisms for tests of scores: some whose fault no threshold on the answer sees, and correct ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.games.planted import PLANTED
from dpzv_audit.games.transcript import DrawnTrials, World

Z = 4.0


@dataclass
class Gaussian:
    """A Gaussian mechanism of noise `z` times the distance of its two signals; `drawn` makes the noise of a normal."""

    signals: tuple[float, float] = (0.0, 1.0 / 3.0)
    z: float = Z
    scale: float = 1.0
    dtype: Any = np.float64
    skipped: float = 0.0
    width: int = 1

    def run(self, world, rng):
        noise = self.scale * (self.z * self.distance / self.scale * rng.standard_normal(self.width)).astype(
            self.dtype
        ).astype(float)
        if rng.random() < self.skipped:
            noise[:] = 0.0
        answer = noise + self.signals[0]
        answer[-1] += self.signals[world] - self.signals[0] if self.width > 1 else 0.0
        if self.width == 1:
            return float(self.signals[world] + noise[0])
        return answer

    @property
    def distance(self):
        return abs(self.signals[1] - self.signals[0])

    def claimed(self, delta):
        return epsilon_from_mu(1.0 / self.z, delta)


def half():
    """Noise in float16, added to a float64 signal."""
    return Gaussian(dtype=np.float16)


def half_between():
    """The same, where neither signal lies on the grid."""
    return Gaussian((0.1, 0.7), dtype=np.float16)


def half_scaled():
    """Noise in float16, which a standard deviation in float64 multiplies: its grid is no power of 2."""
    return Gaussian((0.1, 1.1), scale=3.7, dtype=np.float16)


def half_whole():
    """Both signals lie on the grid of float16; those of its bits that answers near 0 should have are missing."""
    return Gaussian((0.0, 1.0), dtype=np.float16)


def half_wide():
    """One of twelve numbers differs."""
    return Gaussian((0.1, 0.7), dtype=np.float16, width=12)


def single():
    """Noise in float32, added to a float64 signal."""
    return Gaussian(dtype=np.float32)


def skipping():
    """No noise in 1% of runs."""
    return Gaussian(skipped=0.01)


def skipping_wide():
    return Gaussian(skipped=0.01, width=12)


class Pool:
    """Noise from one of a thousand seeds: each answer comes again."""

    def run(self, world, rng):
        return world + Z * np.random.default_rng(int(rng.integers(1000))).standard_normal()

    def claimed(self, delta):
        return epsilon_from_mu(1.0 / Z, delta)


def few_seeds():
    return Pool()


def gaussian():
    return Gaussian()


def gaussian_whole():
    return Gaussian((0.0, 1.0))


def gaussian_wide():
    return Gaussian((0.1, 0.7), width=12)


class Pure:
    """A correct mechanism for (epsilon, 0), of a function from (world, rng) to the answer."""

    def __init__(self, run, epsilon=1.0):
        self.run = run
        self.epsilon = epsilon

    def claimed(self, delta):
        return self.epsilon


def laplace():
    return Pure(lambda world, rng: world / 3 + rng.laplace(0.0, 1.0 / 3))


def geometric():
    """Whole numbers: every answer repeats."""
    return Pure(lambda world, rng: float(world + rng.geometric(1 - np.exp(-1.0)) - rng.geometric(1 - np.exp(-1.0))))


def on_a_grid():
    """Signal and noise on the grid of 1/64, which both worlds share."""
    step = 1 / 64
    p = 1 - np.exp(-step)
    return Pure(lambda world, rng: (64 * world + float(rng.geometric(p) - rng.geometric(p))) * step)


def randomised_response():
    """Eight answers, of which one is about the record: right with e / (1 + e)."""

    def run(world, rng):
        answers = rng.integers(2, size=8).astype(float)
        answers[3] = world if rng.random() < np.e / (1 + np.e) else 1 - world
        return answers

    return Pure(run)


def rounded():
    """Noise in float64, and the sum rounded to float16: both worlds answer on the same grid."""
    return Pure(lambda world, rng: float(np.float16(world / 3 + rng.laplace(0.0, 1.0 / 3))))


class Drawn:
    """A planted mechanism of the tool's own as a user's."""

    def __init__(self, name, trials, epsilon):
        self.name = name
        self.trials = trials
        self.epsilon = epsilon

    def run_batch(self, world, rng, n):
        return self.trials.draw(World(rng, n, 1.0 if world else -1.0))

    def claimed(self, delta):
        return self.epsilon


def drawn_planted():
    """Name -> mechanism, epsilon and delta of its claim, and whether it must be refuted."""
    found = {}
    for name, planted in PLANTED.items():
        if planted.build.__name__ != "build":
            continue
        case = planted.build(0)
        (trials,) = case.games.values()
        assert isinstance(trials, DrawnTrials)
        found[name] = Drawn(name, trials, case.epsilon), case.delta, "refuted" in planted.expected
    return found


def __getattr__(name):
    """Planted mechanisms as factories `planted_NAME`."""
    if not name.startswith("planted_"):
        raise AttributeError(name)
    made = drawn_planted()[name.removeprefix("planted_").replace("_", "-")][0]

    def factory():
        return made

    return factory
