"""The label game: the canary saturates through the real path, and scores are what theory says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpzv_audit.games.engine import Effort, collect
from dpzv_audit.games.game import CANARY, Game
from dpzv_audit.games.real import CanaryClient, RealTrials, logit_directions
from mechanisms.core.context import TrainingData
from mechanisms.core.models import MLP
from mechanisms.core.replicas import ParameterStack, evaluator_for
from mechanisms.core.streams import Streams
from mechanisms.methods.dpzv import DPZV, DPZVConfig
from mechanisms.methods.dpzv_run import DPZVRun

from ...helpers.built_in import module_of
from ...helpers.refusals import refused
from .small import small

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""
VARIANTS = {
    "sgd": {},
    "sgd, long": {"epochs": 60},
    "zo": {"server_update": "zo"},
    "frozen": {"server_update": "frozen"},
    "joint-zo": {"server_update": "joint-zo"},
    "dp-sgd": {"server_update": "dp-sgd", "server_noise_multiplier": 1.0},
    "no top model": {"top_model": False},
    "uniform": {"sampler": "uniform"},
    "poisson": {"sampler": "poisson"},
    "paper's difference": {"difference": "paper"},
    "large clip": {"clip": 50.0},
    "large clip, summed": {"clip": 1000.0, "smoothing": 0.02, "top_model": False},
}


class Slowly(DPZVRun):
    """The same in every round: what is not DPZV's own run is never cut short."""


@pytest.mark.parametrize(
    ("options", "game"),
    [
        ({}, {}),
        ({"noise": "float"}, {"first_pass_repeats": 3}),
        ({"sampler": "uniform"}, {"adversary": "eavesdropper"}),
        ({"difference": "paper", "dtype": "float32"}, {"adversary": "release"}),
        ({}, {"adversary": "colluding-clients", "neighbours": "zero-out"}),
        ({"sigma": 0.0}, {"neighbours": "replace-record"}),
    ],
)
def test_rounds_that_are_alike_give_the_scores_of_rounds_that_are_played(options, game, dataset, monkeypatch):
    """A server that only sums never moves: the canary's loss difference is computed once, to the last bit."""
    settings = Game(config=small(top_model=False, **options), **game)
    slowly = replace(settings, method=replace(DPZV, run=Slowly))
    played = RealTrials(slowly, dataset(), 3)(0, 4)
    monkeypatch.setattr(DPZVRun, "step", None)
    alike = RealTrials(settings, dataset(), 3)(0, 4)
    assert alike.keys() == played.keys()
    for name, rows in played.items():
        np.testing.assert_array_equal(alike[name], rows)


@pytest.fixture
def both_worlds(play):
    """A function that plays one run in each world with one replica's randomness, without noise.

    Returns scalars (rounds, 2) in the worlds "out" and "in", which rounds held the canary, sizes of the batches, and
    all messages.
    """

    def played(game, data, seed=0, replica=0):
        messages = []

        class Log:
            def on_message(self, message):
                messages.append(message)

            def on_note(self, party, round_, name, value):
                raise AssertionError("the canary's clients note nothing")

        def run_of(data, config, context):
            assert tuple(context.replicas) == (0, 1)
            seen = (*context.observers, Log())
            return DPZVRun(data, config, replace(context, replicas=(replica, replica), observers=seen))

        quiet = game.config.model_copy(update={"sigma": 0.0})
        play(replace(game, method=replace(DPZV, run=run_of), config=quiet), data, runs=1, seed=seed)
        answers = [m for m in messages if m.kind == "scalar"]
        scalars = torch.stack([m.payload for m in answers])
        held = torch.stack([(m.ids[0] == CANARY).any() for m in answers])
        return scalars, held, torch.stack([(m.ids[0] >= 0).sum() for m in answers]), messages

    return played


@pytest.mark.parametrize("others", ["zero", "saturated"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_canary_saturates_through_the_real_path(name, others, both_worlds, dataset):
    """In each round with the canary the worlds differ by exactly 2C/B, in others by nothing; other records as said."""
    config = small(**VARIANTS[name])
    game = Game(config=config, others=others)
    for replica in range(3):
        scalars, held, sizes, _ = both_worlds(game, dataset(), replica=replica)
        unit = config.clip / config.batch_size
        assert held.any()
        if name == "joint-zo":
            # The two servers part after the first answer with the canary: only that round can be compared exactly.
            first = int(held.int().argmax()) + 1
            scalars, held, sizes = scalars[:first], held[:first], sizes[:first]
        shift = scalars[:, 1] - scalars[:, 0]
        assert torch.allclose(shift[held], torch.full_like(shift[held], 2 * unit), rtol=1e-9)
        if name != "joint-zo" or others == "saturated":
            assert torch.allclose(shift[~held], torch.zeros_like(shift[~held]), rtol=0, atol=1e-9 * unit)
            background = (sizes - held.int()) * unit if others == "saturated" else torch.zeros(len(held))
            assert torch.allclose(scalars.mean(1), background.double(), rtol=0, atol=1e-9 * unit)


def test_joint_zo_with_zero_others_is_a_mixture_and_says_so(both_worlds, dataset, play, exactly_gaussian):
    """The perturbed server makes records that send zeros contribute: why such scores are not called Gaussian."""
    config = small(server_update="joint-zo")
    scalars, held, _, _ = both_worlds(Game(config=config), dataset())
    assert (scalars.mean(1)[held].abs() > 1e-6).any()
    assert not exactly_gaussian(play(Game(config=config), runs=2))


def test_the_worlds_differ_in_the_canarys_label_alone(both_worlds, dataset):
    """Everything sent up is the same in both worlds, and so is every scalar before the first round with the canary."""
    scalars, held, _, messages = both_worlds(Game(config=small()), dataset())
    for message in messages:
        if message.kind != "scalar":
            assert torch.equal(message.payload[0], message.payload[1])
        assert message.ids is None or torch.equal(message.ids[0], message.ids[1])
    first = int(held.int().argmax())
    assert torch.equal(scalars[:first, 0], scalars[:first, 1])


def test_stored_chunks_are_those_of_the_arrays_that_were_trained_on(dataset):
    """Files and the way features are cut do not tell a table that is read with other scales or classes."""
    game, data = Game(config=small()), dataset()
    scaled = replace(data.train, features=tuple(block * np.float32(2) for block in data.train.features))
    turned = replace(data.train, labels=2 - data.train.labels)
    others = [replace(data, train=part) for part in (scaled, turned)]
    assert RealTrials(game, data).facts() == RealTrials(game, dataset()).facts()
    assert all(RealTrials(game, other).facts() != RealTrials(game, data).facts() for other in others)


def test_play_changes_the_canarys_label_alone(monkeypatch, dataset, play):
    given_labels = []
    original = TrainingData.of.__func__

    def spy(cls, data, **options):
        given_labels.append(options["labels"])
        return original(cls, data, **options)

    monkeypatch.setattr(TrainingData, "of", classmethod(spy))
    data = dataset()
    play(Game(config=small()), data, runs=3, chunk=3)
    labels = np.concatenate(given_labels)
    assert labels.shape == (6, 12)
    assert labels[:, CANARY].tolist() == [0, 1] * 3
    assert (np.delete(labels, CANARY, axis=1) == np.delete(data.train.labels, CANARY)).all()


@settings(derandomize=True, deadline=None, max_examples=5)
@given(chunk=st.integers(1, 9), adversary=st.sampled_from(["client", "colluding-clients"]))
def test_scores_do_not_depend_on_the_chunk(chunk, adversary, play):
    game = Game(config=small(), adversary=adversary)
    whole = play(game, runs=4, seed=3)
    parts = play(game, runs=4, seed=3, chunk=chunk)
    assert np.allclose(whole.in_scores, parts.in_scores, rtol=0, atol=1e-10)
    assert np.allclose(whole.out_scores, parts.out_scores, rtol=0, atol=1e-10)
    assert whole.participations == parts.participations
    assert np.allclose(play(game, runs=6, seed=3).in_scores[:4], whole.in_scores, rtol=0, atol=1e-10)


def test_seeds_decide_and_progress_counts(play):
    game, done = Game(config=small()), []
    first = play(game, runs=5, seed=1, chunk=4, progress=lambda pairs, _: done.append(2 * pairs))
    again, other = (play(game, runs=5, seed=seed) for seed in (1, 2))
    assert done == [4, 8, 10]
    assert np.allclose(first.in_scores, again.in_scores, rtol=0, atol=1e-10)
    assert not np.isclose(first.in_scores, other.in_scores).any()


@pytest.mark.parametrize("others", ["zero", "saturated"])
@pytest.mark.parametrize(
    ("adversary", "participations", "options"),
    [
        ("client", 3, {}),
        ("colluding-clients", 6, {}),
        ("client", 3, {"server_update": "frozen"}),
        ("client", 3, {"top_model": False}),
    ],
)
def test_scores_are_the_gaussians_of_theory(adversary, participations, options, others, play, exactly_gaussian):
    """N(-+n C/B, n sigma^2), so mu = sqrt(n)/z: mean and variance of 250 + 250 scores, level 1e-4 each, and K-S."""
    config = small(**options)
    scores = play(Game(config=config, adversary=adversary, others=others), runs=250, seed=11)
    assert scores.participations == (participations, participations)
    assert exactly_gaussian(scores)
    shift = participations * config.clip / config.batch_size
    std = math.sqrt(participations) * config.sigma
    for sample, centre in ((scores.out_scores, -shift), (scores.in_scores, shift)):
        standard = (sample - centre) / std
        assert abs(standard.mean()) < stats.norm.isf(LEVEL / 2) / math.sqrt(standard.size)
        low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], standard.size)
        assert low < (standard**2).sum() < high
        assert stats.kstest(standard, "norm").pvalue > LEVEL
    z = config.sigma / (2 * config.clip / config.batch_size)
    assert 2 * shift / std == pytest.approx(math.sqrt(participations) / z)


def test_repeats_of_the_first_pass_count(play, exactly_gaussian):
    config = small()  # nine rounds of client 1: batches of its first pass serve four, the rest one
    scores = play(Game(config=config, first_pass_repeats=4), runs=20)
    low, high = scores.participations
    assert low < high == 4
    assert not exactly_gaussian(scores)


@pytest.mark.parametrize("sampler", ["uniform", "poisson"])
def test_random_counts_are_no_gaussian(sampler, play, exactly_gaussian):
    """Participations of the canary in client 1's nine rounds are Binomial(9, 1/3): level 1e-4 on their sum."""
    config = small(sampler=sampler)
    scores = play(Game(config=config), runs=150)
    assert not exactly_gaussian(scores)
    low, high = scores.participations
    assert 0 <= low < high <= 9
    # Without noise the score is the count times -+C/B, padding of Poisson batches included nowhere.
    exact = play(Game(config=config.model_copy(update={"sigma": 0.0})), runs=150)
    counts = np.abs(np.concatenate([exact.in_scores, exact.out_scores])) / (config.clip / config.batch_size)
    assert np.allclose(counts, counts.round(), atol=1e-9)
    assert (counts.min().round(), counts.max().round()) == exact.participations
    bounds = stats.binom.ppf([LEVEL / 2, 1 - LEVEL / 2], 9 * counts.size, 1 / 3)
    assert bounds[0] <= counts.sum().round() <= bounds[1]


@pytest.mark.parametrize("options", [{"sigma": 0.0}, {"clip_rule": "paper-one-sided"}, {"participation_cap": 2}])
def test_what_is_not_exactly_gaussian_says_so(options, play, exactly_gaussian):
    assert not exactly_gaussian(play(Game(config=small(**options)), runs=2))


def test_the_one_sided_clip_separates_the_worlds_without_bound(play):
    config = small(clip_rule="paper-one-sided")
    scores = play(Game(config=config), runs=4)
    shift = scores.participations[1] * config.clip / config.batch_size
    assert scores.out_scores.max() < -10 * shift


@pytest.mark.parametrize("others", ["zero", "saturated"])
def test_padding_counts_neither_as_the_canary_nor_as_others(others, play):
    """Without noise a score is the count of the canary's rounds times +-C/B exactly, whatever the batches' sizes."""
    config = small(sampler="poisson", sigma=0.0)
    scores = play(Game(config=config, others=others, adversary="colluding-clients"), runs=40)
    unit = config.clip / config.batch_size
    counts = scores.in_scores / unit
    assert np.allclose(counts, counts.round(), atol=1e-9)
    assert 0 <= counts.min() < counts.max() <= scores.participations[1]


def test_logit_directions_are_gradients():
    architecture = MLP((4, 5, 3))
    parameters = ParameterStack.initial(
        evaluator_for(architecture, stack=2).layout, Streams(seed=0, replicas=(0, 1), dtype=torch.float32), party=0
    )
    rows = torch.full((2, 1, 4), 0.3)
    with torch.no_grad():
        got = logit_directions(evaluator_for(architecture, stack=2), parameters, rows=rows, classes=3)
    assert got.shape == (2, 3, 4)
    for k in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x, k=k: module_of(architecture, parameters, k)(x)[0], rows[k]
        )
        assert torch.allclose(got[k], jacobian[:, 0], atol=1e-6)


def test_a_canary_that_cannot_saturate_is_an_error_and_not_a_blind_audit(play):
    """One hidden unit is dead at the start in about half of all replicas: no embedding direction to send."""
    config = small(hidden=1)
    with refused(r"worst-case canary makes a loss difference of .* more hidden units"):
        play(Game(config=config), runs=8)


@pytest.mark.parametrize(
    ("game", "runs", "message"),
    [
        ({}, 0, "runs is 0; use a whole number of at least 1"),
        ({"config": DPZVConfig(batch_size=13)}, 3, "batch_size is 13"),
    ],
)
def test_what_cannot_be_played_is_one_line(game, runs, message, play):
    game = Game(**{"config": small(), **game})
    with refused(message):
        play(game, runs=runs)


def test_a_chunk_of_nothing_is_one_line(dataset):
    with refused("chunk is 0; use a whole number of at least 1"):
        collect(RealTrials(Game(config=small()), dataset()), 2, Effort(chunk=0))


def test_a_client_that_is_never_active_cannot_be_scored(play):
    config = small(epochs=1, compute_times=(100.0, 1.0))
    with refused("client 1 is never active"):
        play(Game(config=config), runs=2)


def test_canary_clients_act_through_uploads_alone():
    """A canary holds no reference to the server, the table or the run: what it knows it was told by `aim`."""
    canary = CanaryClient((0,), "zero")
    canary.aim(*(torch.randn(2, 5, 4), torch.randn(2, 5, 3), torch.zeros(2, 12, dtype=torch.int64)))
    assert all(isinstance(value, torch.Tensor | tuple | str | int) for value in vars(canary).values())


def test_a_server_that_undoes_the_canary_is_noticed(play, exactly_gaussian):
    """At a hundred times the default rate the top model turns so far that the embeddings no longer saturate."""
    far = play(Game(config=small(server_rate=0.5, epochs=40)), runs=4)
    assert not far.saturated
    assert not exactly_gaussian(far)
    near = play(Game(config=small()), runs=4)
    assert near.saturated
    assert exactly_gaussian(near)
