"""Mechanisms that are wrong on purpose, and right ones, which an audit must tell apart.

Most are of one scalar channel: noise, sensitivity and clip of Delta = (1/B) sum_i clip_C(delta_i) + N(0, s^2). The
design they all claim: B = 32 of D = 256 records, C = 1, one client, four passes (32 rounds), labels replaced, noise for
(1, 1e-5) against known batches. The canary's difference is far above C in "in" and far below -C in "out", and the
others contribute nothing, so a scalar with the canary is +-C/B and noise. A mechanism runs many times in one
`World`.

Of those that answer with views, no linear score tells: the adversary gets the canary's rounds of the same channel, one
per pass, and must fit a score. The means of the rounds, all that a linear score can see, say no more than the claim
allows. What a mechanism is called, who plays and which verdicts are right stands in `tables/planted.toml`.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.core.context import Deployment
from mechanisms.core.scalars import ScalarConfig, scalar_config, scalar_release
from mechanisms.core.schedules import cyclic
from mechanisms.methods.dpzv import DPZV
from mechanisms.methods.fixed_features import SPEC as FIXED

from ..accounting import Release, sigma_from_paper, upper_bounds
from ..base.errors import unknown_name
from ..base.findings import AdversaryName, NeighbourRelation, UpperBound, VerdictWord
from ..base.seeds import Purpose, stream
from ..data import load
from ..data.vertical import Records, VerticalDataset
from . import zeroth_order
from .arrays import Bools, Floats
from .game import CANARY, Canary, Game, GameAdversary
from .real import RealTrials
from .sums import SumTrials
from .transcript import Draw, DrawnTrials, Sampling, SimulatedTrials, World, mixture_score
from .zeroth_order import BATCH, DELTA, EPSILON, PASSES, RECORDS, UNIT, calibrated

CLIP = 1.0
STEPS = RECORDS // BATCH
ROUNDS = PASSES * STEPS
VIEW_ROUNDS = 32
FEW_ROUNDS = 8
"""Rounds of the uniform noise: each end of its range is seen in its largest and least round alone."""
_LARGE = 1000.0
"""A loss difference far beyond the clip, in units of C."""
_SHARE = 0.8
"""Of the noise that is due, what the first label gets."""
_AGREE = 0.75
# Rounds of the other client with the canary, and rounds after each that read its model.
_CANARY_ROUNDS = 5
_READINGS = 200
_STOP = 2.0
"""Model at which training stops, in standard deviations of a round's noise."""


sigma_of = partial(zeroth_order.sigma_of, neighbours="replace-label")
"""Return the noise's standard deviation that (1, 1e-5) takes against so many known rounds with the canary."""
SIGMA = sigma_of(PASSES)
CLAIMED = Release(
    batch_size=BATCH,
    dataset_size=RECORDS,
    rounds=ROUNDS,
    clip=CLIP,
    sigma=SIGMA,
    sampler="shuffled",
    server_update="joint-zo",
    participations=PASSES,
)


def claimed_view(rounds: int) -> Release:
    """Return the claimed release where the canary is in `rounds` rounds, one per pass."""
    return replace(CLAIMED, rounds=rounds * STEPS, participations=rounds, sigma=sigma_of(rounds))


Trials = RealTrials | SimulatedTrials | DrawnTrials | SumTrials


@dataclass(frozen=True)
class PlantedCase:
    """A mechanism that is there: the claim, what its maker accounts for, and the games that are played on it.

    `release` is what the configuration says is released: the upper bounds are of it. Games by name; they share the
    error of the verdict.
    """

    epsilon: float
    delta: float
    release: Release
    games: dict[str, Trials]


Build = Callable[[int], PlantedCase]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A mechanism that is wrong on purpose, or right, and the verdicts that are right for it.

    `build` takes the seed. `runs` in each world suffice for the verdict at 95%; `score` says what the adversary, who
    has read the code, computes from its view.
    """

    name: str
    summary: str
    build: Build
    expected: Sequence[VerdictWord] = ("refuted",)
    adversary: AdversaryName = "client"
    neighbours: NeighbourRelation = "replace-label"
    score: str = "sum of the scalars of batches with the canary"
    runs: int = 10_000

    def upper_bounds(self, case: PlantedCase) -> list[UpperBound]:
        """Return what accountants say of the release as its maker describes it; of the bug they know nothing."""
        return upper_bounds(
            case.release,
            delta=case.delta,
            adversaries=[self.adversary],
            neighbours=[self.neighbours],
            accountants=("gdp-exact", "rdp", "prv"),
            enough=case.epsilon,
        )


_FACTS = tomllib.loads((Path(__file__).parent / "tables" / "planted.toml").read_text("utf-8"))
_BUILDS: dict[str, Build] = {}


def played(build: Build) -> Build:
    """Enter the decorated function, which builds the case of a seed, as a mechanism of its own name."""
    _BUILDS[build.__name__.replace("_", "-")] = build
    return build


def drawn(
    number: int, release: Release | Callable[[], Release] = CLAIMED, *, gaussian: bool = False, name: str = ""
) -> Callable[[Draw], Draw]:
    """Enter the decorated function as a mechanism that claims `release`, with streams of that `number`.

    `gaussian`: a fixed number of rounds of Gaussian noise. Its `name` is the function's where none is given.
    """

    def enter(draw: Draw) -> Draw:
        def build(seed: int) -> PlantedCase:
            claimed = release if isinstance(release, Release) else release()
            return PlantedCase(EPSILON, DELTA, claimed, {"": DrawnTrials(draw, number, seed, gaussian)})

        _BUILDS[name or draw.__name__.replace("_", "-")] = build
        return draw

    return enter


def held(world: World) -> Bools:
    """Return which rounds hold the canary, (T, n): one in each pass, at random."""
    place = world.generator.integers(STEPS, size=(PASSES, world.runs)) + STEPS * np.arange(PASSES)[:, None]
    mask = np.zeros((ROUNDS, world.runs), dtype=bool)
    np.put_along_axis(mask, place, True, axis=0)
    return mask


def _scalars(world: World, sigma: float | Floats = SIGMA, shift: float | None = None) -> tuple[Floats, Bools]:
    """Return scalars (T, n), in the rounds with the canary N(shift, sigma^2) or as designed, and which these are."""
    mask = held(world)
    mean = world.sign * UNIT if shift is None else shift
    return mean * mask + sigma * world.generator.standard_normal(mask.shape), mask


def _sums(world: World, **changed: float) -> Floats:
    """Return the sums of the canary's rounds, (n,)."""
    scalars, mask = _scalars(world, **changed)
    return np.asarray((scalars * mask).sum(0))


def _model(scalars: Floats) -> Floats:
    """Return one parameter moved by the scalars, (T, n)."""
    return np.cumsum(0.1 * scalars, axis=0)


def _views(world: World) -> Floats:
    """Return views (n, rounds) as designed."""
    noise = world.generator.standard_normal((world.runs, VIEW_ROUNDS))
    return world.sign * UNIT + sigma_of(VIEW_ROUNDS) * noise


@drawn(0, gaussian=True)
def noise_over_b(world: World) -> Floats:
    """Divide the noise by B with the sum."""
    return _sums(world, sigma=SIGMA / BATCH)


@drawn(1, gaussian=True)
def sensitivity_halved(world: World) -> Floats:
    """Draw noise for a sensitivity of C/B, where a replaced label moves the scalar by 2C/B."""
    return _sums(world, sigma=SIGMA / 2.0)


@drawn(2)
def noise_reused(world: World) -> Floats:
    """Draw one noise for all rounds: the mean of the canary's rounds less that of the others has none."""
    mask = held(world)
    scalars = world.sign * UNIT * mask + SIGMA * world.generator.standard_normal(world.runs)
    return np.asarray((scalars * mask).sum(0) / mask.sum(0) - (scalars * ~mask).sum(0) / (~mask).sum(0))


@drawn(3)
def noise_shared(world: World) -> Floats:
    """Draw the noise from the seed that gives the client its batches: it draws the same and subtracts."""
    mask = held(world)
    noise = SIGMA * world.generator.standard_normal(mask.shape)
    scalars = world.sign * UNIT * mask + noise
    return np.asarray(((scalars - noise) * mask).sum(0))


@drawn(4)
def clip_after_average(world: World) -> Floats:
    """Clip the mean in place of the differences that it is of: one record moves it by 2C."""
    return _sums(world, shift=world.sign * float(np.clip(_LARGE * CLIP / BATCH, -CLIP, CLIP)))


@drawn(5, replace(CLAIMED, clip_rule="paper-one-sided"))
def one_sided_clip(world: World) -> Floats:
    """Clip as min(delta, C), as eq. 8 is printed: a loss difference far below -C goes through whole."""
    return _sums(world, shift=UNIT if world.sign > 0.0 else -_LARGE * UNIT)


@drawn(6)
def noise_once(world: World) -> Floats:
    """Noise in the first round of each epoch alone: the canary's other rounds have none."""
    noisy = np.arange(ROUNDS)[:, None] % STEPS == 0
    scalars, mask = _scalars(world, SIGMA * noisy)
    bare = mask & ~noisy
    clear = (scalars * bare).sum(0) / np.maximum(bare.sum(0), 1)
    return np.asarray(np.where(bare.any(0), clear, (scalars * mask).sum(0) / PASSES))


def _poisson(epsilon: float, delta: float, neighbours: NeighbourRelation, **sampled: Any) -> Release:
    """Return Poisson sampling with padded messages, calibrated for (epsilon, delta) against an eavesdropper."""
    release = replace(CLAIMED, sigma=1.0, sampler="poisson", padded=True, participations=None, **sampled)
    return calibrated(release, epsilon, delta, "eavesdropper", neighbours)


@cache
def _public_rate() -> Release:
    """Poisson sampling at a public rate of 1/2, for (2, 0.01) and `add-remove`."""
    return _poisson(2.0, 0.01, "add-remove", dataset_size=128, batch_size=64, rounds=16, sample_rate=0.5)


def _actual_divisor(world: World, *, others: float, canary: float, shift: float) -> Floats:
    """Return scores where the sum is divided by the size of the batch as it is; the ids are secret.

    The others contribute `others` C each, the canary, in "in", `canary` C.

    `shift` is what the canary adds to a batch of the expected size, in units of C/B; without it a mean is `others`.
    """
    release = _public_rate()
    sampling = Sampling(sampler="poisson", records=128, batch_size=64, active=(1,) * release.rounds, sample_rate=0.5)
    generator = world.generator
    shape = (release.rounds, world.runs)
    number = generator.binomial(sampling.records - 1, sampling.rate, size=shape)
    joined = (generator.random(shape) < sampling.rate) & (world.sign > 0.0)
    size = np.maximum(number + joined, 1)
    scalars = (others * number + canary * joined) / size + release.sigma * generator.standard_normal(shape)
    mean = shift / sampling.batch_size
    return mixture_score(scalars - others, sampling, sigma=release.sigma, mean_in=mean, mean_out=0.0)


divisor_others_saturated = partial(_actual_divisor, others=1.0, canary=-1.0, shift=-2.0)
"""Others at +C, canary at -C: present, it moves the mean by 2C over the size, nearly twice the claimed C/B."""
divisor_others_zero = partial(_actual_divisor, others=0.0, canary=1.0, shift=1.0)
"""Others at 0, canary at +C: it moves the mean by C over the size, which shows nothing."""


@played
def actual_divisor(seed: int) -> PlantedCase:
    """Divide by the size of the batch instead of its expectation; only the others at +C show it."""
    games: dict[str, Trials] = {
        "others at +C": DrawnTrials(divisor_others_saturated, 20, seed),
        "others at 0": DrawnTrials(divisor_others_zero, 21, seed),
    }
    return PlantedCase(2.0, 0.01, _public_rate(), games)


def _read_off(world: World) -> Floats:
    """Client 1 reads client 2's released-only model off its own, canary-free, scalars.

    Client 2 has the canary in five rounds, each of which moves its one parameter by -gain * Delta * u with u = +-1 from
    a public seed. After each, client 1 has 200 rounds: the embeddings in the table, and so every record's difference,
    depend on that parameter. What a reading changes gives Delta back, and their sum is the score. z is 1, so all five
    releases have mu = sqrt(5) = 2.236; client 1's own rounds have mu = 0.
    """
    generator = world.generator
    n = world.runs
    unit = UNIT
    sigma = 2.0 * UNIT
    gain = 2.0
    model = np.zeros(n)
    seen = np.zeros(n)
    total = np.zeros(n)
    for _ in range(_CANARY_ROUNDS):
        direction = generator.choice([-1.0, 1.0], size=n)
        model -= gain * (world.sign * unit + sigma * generator.standard_normal(n)) * direction
        # The mean of the readings' scalars clip_C(model) + noise, with C = 1.
        read = np.clip(model, -1.0, 1.0) + sigma / np.sqrt(_READINGS) * generator.standard_normal(n)
        total -= (read - seen) * direction / gain
        seen = read
    return total


@played
def own_rounds(seed: int) -> PlantedCase:
    """Claim a bound from client 1's own rounds, none of which holds the canary: next to nothing is released."""
    release = replace(
        CLAIMED,
        dataset_size=160,
        rounds=_CANARY_ROUNDS * _READINGS,
        sigma=2.0 * UNIT,
        participations=None,
        clients=2,
        own_rounds_only=True,
    )
    return PlantedCase(0.5, 1e-5, release, {"": DrawnTrials(_read_off, 22, seed)})


@drawn(7)
def repeated_record(world: World) -> Floats:
    """Let a malicious client fill every batch of the canary with the canary: B times the sensitivity."""
    return _sums(world, shift=world.sign * BATCH * UNIT)


@drawn(8, replace(CLAIMED, data_dependent_side=True))
def losses_released(world: World) -> Floats:
    """Log the mean training loss of each round beside the scalar.

    The others' loss is a function of the model, which the released scalars move: whoever reads the log subtracts it.
    """
    scalars, mask = _scalars(world)
    others = np.log1p(np.exp(-_model(scalars)))
    logged = others + (5.0 if world.sign > 0.0 else 0.1) * mask / BATCH
    return np.asarray((logged - others).sum(0))


@drawn(9, replace(CLAIMED, data_dependent_side=True))
def best_checkpoint(world: World) -> Floats:
    """Which round's model had the least training loss is published: the canary's loss decides it.

    The model w is moved by the released scalars; the canary's loss falls with w in "in" and rises in "out", the others'
    does not depend on it. The score is how far the chosen model is above the mean of all.
    """
    model = _model(_scalars(world)[0])
    chosen = np.argmin(np.log1p(np.exp(-world.sign * model)), axis=0)
    return np.asarray(model[chosen, np.arange(world.runs)] - model.mean(0))


@drawn(11, claimed_view(VIEW_ROUNDS))
def noise_by_label(world: World) -> Floats:
    """Scale the noise by the batch's own spread: 0.8 of what is due where the canary has its first label."""
    if world.sign > 0.0:
        return UNIT + _SHARE * _views(replace(world, sign=0.0))
    return _views(world)


@drawn(12, claimed_view(FEW_ROUNDS))
def uniform_noise(world: World) -> Floats:
    """Uniform noise of the right variance: a round beyond the range of one label's noise proves the other."""
    half = np.sqrt(3.0) * sigma_of(FEW_ROUNDS)
    return world.sign * UNIT + world.generator.uniform(-half, half, (world.runs, FEW_ROUNDS))


@drawn(13, claimed_view(VIEW_ROUNDS))
def sign_correlation(world: World) -> Floats:
    """Every second round's noise has the sign of the one before, mostly, or mostly not, as the canary's label says.

    Each round by itself has exactly the noise that is due.
    """
    agree = _AGREE if world.sign > 0.0 else 1.0 - _AGREE
    noise = world.generator.standard_normal((world.runs, VIEW_ROUNDS))
    alike = np.where(world.generator.random((world.runs, VIEW_ROUNDS // 2)) < agree, 1.0, -1.0)
    noise[:, 1::2] = alike * np.sign(noise[:, ::2]) * np.abs(noise[:, 1::2])
    return world.sign * UNIT + sigma_of(VIEW_ROUNDS) * noise


@drawn(14, replace(claimed_view(VIEW_ROUNDS), data_dependent_side=True))
def early_stop(world: World) -> Floats:
    """Training stops when the canary's own loss is low enough, a choice without noise; rounds after it are 0.

    The model is the sum of the released scalars; the canary's loss falls with it in "in" and rises in "out".
    """
    scalars = _views(world)
    low = world.sign * np.cumsum(scalars, axis=1) > _STOP * sigma_of(VIEW_ROUNDS)
    stopped = np.cumsum(low, axis=1) > 0
    after = np.concatenate([np.zeros((world.runs, 1), dtype=bool), stopped[:, :-1]], axis=1)
    return np.where(after, 0.0, scalars)


@played
def shuffled_as_poisson(seed: int) -> PlantedCase:
    """Shuffled batches, noise from the PRV bound of Poisson sampling, padded, at (1, 1e-3) with secret ids."""
    believed = _poisson(1.0, 1e-3, "replace-label", dataset_size=1280, batch_size=128, rounds=100)
    return _simulated(replace(believed, sampler="shuffled", padded=False), seed)


@played
def theorem_5_1(seed: int) -> PlantedCase:
    """Draw from the paper's formula at the size of its figure, for (1, 1e-3), against one client of seven."""
    return _simulated(_by_the_paper(clients=7), seed, "client")


@played
def server_state(seed: int) -> PlantedCase:
    """DPZV with noise that is right for known ids, whose server takes SGD steps on true labels: (0.5, 1e-5).

    The canary has features a thousand times as large, and only rounds that do not hold it are scored.
    """
    return _trained(seed, 0.5, canary="state", server_update="sgd", server_rate=0.05)


@played
def joint_zo_state(seed: int) -> PlantedCase:
    """Play the same canary where the server steps by the released scalar alone: the same rounds say nothing."""
    return _trained(seed, 0.5, canary="state", **_STILL)


@played
def dpzv_sound(seed: int) -> PlantedCase:
    """`dpzv-sound` with its defaults and a worst-case canary against all clients together: (1, 1e-5)."""
    return _trained(seed, 1.0, clip=1.0, client_rate=1e-3, **_STILL)


@drawn(10, gaussian=True)
def sound(world: World) -> Floats:
    """As designed."""
    return _sums(world)


@drawn(15, claimed_view(VIEW_ROUNDS))
def sound_view(world: World) -> Floats:
    """As designed."""
    return _views(world)


drawn(16, zeroth_order.STEPS, name="dp-zo-noise-seed")(zeroth_order.noise_by_seed)
drawn(17, zeroth_order.STEPS, name="dp-zo-seed-search")(zeroth_order.seed_searched)
drawn(18, zeroth_order.SEVERAL, name="dp-zo-noise-shared")(zeroth_order.noise_shared)
drawn(19, zeroth_order.amplified, gaussian=True, name="dp-zo-passes")(zeroth_order.batches_in_order)
drawn(23, zeroth_order.STEPS, gaussian=True, name="dp-zo")(zeroth_order.as_designed)


@played
def private_descent(seed: int) -> PlantedCase:
    """Descend in eight steps on 32 records, with noise for all steps and for a record that is replaced."""
    return _descended(seed)


@played
def private_descent_halved(seed: int) -> PlantedCase:
    """Draw noise for a sensitivity of C, where a replaced record moves a sum by 2C."""
    return _descended(seed, sigma=_DESCENT.sigma / 2.0)


@played
def private_descent_step(seed: int) -> PlantedCase:
    """Draw in each of eight steps the noise that one step takes."""
    return _descended(seed, sigma=_DESCENT.sigma / _STEPS_OF_DESCENT**0.5)


@played
def paper_secret_ids(seed: int) -> PlantedCase:
    """Draw from the paper's formula at that size, against an eavesdropper of padded Poisson batches: nearly right."""
    return _simulated(replace(_by_the_paper(), sampler="poisson", padded=True), seed)


_STEPS_OF_DESCENT = 8
_FEATURES: dict[str, Any] = {
    "epochs": _STEPS_OF_DESCENT,
    "embedding": 4,
    "logit_noise": 0.1,
    "features": "columns",
    "dtype": "float64",
}
"""Steps so short that the canary's gradient is at the clip in all of them."""
_RECORDS_OF_DESCENT = 100
"""Number of the stream of its records, past those of all mechanisms."""
(_DESCENT,) = FIXED.releases(FIXED.configure(**_FEATURES), Deployment(records=BATCH, clients=1))


def _descended(seed: int, sigma: float = _DESCENT.sigma) -> PlantedCase:
    """Return the game of real trainings of `fixed-features` with this noise, for the claim of its defaults."""
    config = FIXED.configure(**_FEATURES, sigma=sigma)
    return PlantedCase(EPSILON, DELTA, _DESCENT, {"": SumTrials(FIXED, config, _few_records(), seed)})


@cache
def _few_records() -> VerticalDataset:
    """Return one client's four numbers of 32 records of two classes; those of the canary are as large as may be."""
    generator = stream(0, Purpose.SIMULATION, _RECORDS_OF_DESCENT)

    def drawn_records(count: int) -> Records:
        features = generator.uniform(size=(count, 4)).astype(np.float32)
        features[CANARY] = 1.0
        return Records(features=(features,), labels=generator.integers(2, size=count))

    return VerticalDataset("simulated", drawn_records(BATCH), drawn_records(8), 2, "one block", {})


def _by_the_paper(clients: int = 1) -> Release:
    """Return the release with the paper's noise for (1, 1e-3) at the size of its figure."""
    records = 60_000
    rounds = 46_900
    size: dict[str, Any] = {"clip": 10.0, "dataset_size": records, "rounds": rounds}
    sigma = sigma_from_paper(1.0, 1e-3, **size)
    return replace(CLAIMED, batch_size=128, sigma=sigma, participations=None, clients=clients, **size)


def _configured(**settings: Any) -> ScalarConfig:
    """Return DPZV with these settings."""
    config = scalar_config(DPZV, DPZV.configure(**settings))
    assert config is not None
    return config


def _simulated(release: Release, seed: int, adversary: GameAdversary = "eavesdropper") -> PlantedCase:
    """Return the game on simulated transcripts of `release`, for a claim of (1, 1e-3)."""
    config = _configured(
        batch_size=release.batch_size,
        clip=release.clip,
        epsilon=1.0,
        delta=1e-3,
        server_update="joint-zo",
        sampler=release.sampler,
    )
    assert release.dataset_size is not None
    active = tuple(islice(cyclic(release.clients), release.rounds))
    sampling = Sampling.of(config, release.dataset_size, active)
    trials = SimulatedTrials(Game(config=config, adversary=adversary), sampling, release.sigma, seed)
    return PlantedCase(1.0, 1e-3, release, {"": trials})


_STILL: dict[str, Any] = {"server_update": "joint-zo", "server_rate": 1e-3, "momentum": 0.0, "server_momentum": 0.0}
"""The server steps by the released scalar alone."""


def _trained(seed: int, epsilon: float, *, canary: Canary = "worst-case", **settings: Any) -> PlantedCase:
    """Return the game of real trainings on digits against all clients together, with noise for (`epsilon`, 1e-5)."""
    config = _configured(epsilon=epsilon, epochs=4, calibration="sound", **settings)
    trials = RealTrials(Game(config=config, canary=canary, adversary="colluding-clients"), load("digits"), seed)
    deployment = Deployment(records=trials.sampling.records, clients=len(trials.plan.rounds_by_client))
    return PlantedCase(epsilon, config.delta, scalar_release(config, trials.plan, deployment), {"": trials})


PLANTED = {name: Planted(name=name, build=_BUILDS[name], **facts) for name, facts in _FACTS.items()}


def planted_named(name: str, *, field: str = "mechanism planted:NAME", also: tuple[str, ...] = ()) -> Planted:
    """Return the planted mechanism called `name`; `InputError` suggesting the nearest known one otherwise.

    `field` is how the user said it, a key or a flag, and `also` what else it may be.
    """
    if name not in PLANTED:
        raise unknown_name(field, name, (*also, *PLANTED), kind="planted")
    return PLANTED[name]
