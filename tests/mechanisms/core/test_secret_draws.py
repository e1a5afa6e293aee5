"""What a bound counts on as secret comes from the key of the operating system, and nothing that leaves tells a seed."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.testing.methods import OneKey
from mechanisms import METHODS, train
from mechanisms.core.channel import SERVER
from mechanisms.core.context import Deployment, RunContext, TrainingData
from mechanisms.core.secret import SAMPLING, SecretBits, generator
from mechanisms.core.streams import BatchStream, Directions, Streams

from ...helpers.seed_search import parties_of, shown_by
from ..conftest import secret_normals, training_data

KEYS = bytes(range(32)), bytes(32)
LEVEL = 1e-4
"""False-alarm rate of every statistical test here; keys are fixed."""
SMALL = {"batch_size": 5, "epochs": 2, "embedding": 2, "hidden": 2}
LARGE = {"batch_size": 12, "embedding": 4, "hidden": 4, "client_rate": 1e-3, "server_rate": 1e-3}
"""6 rounds, a server of 67 parameters and clients of 16; of 40 records 5.6e9 batches of 12 can be drawn."""
GRADIENTS = {"dp": "gradient", "dp_sigma": 0.3}
EMBEDDINGS = {"dp": "embedding", "dp_sigma": 0.3}
LEANING = {
    "dp-zo": ("dp-zo", {"sigma": 0.3}),
    "dp-zo, in place": ("dp-zo", {"sigma": 0.3, "perturbation": "in-place", "sampler": "poisson"}),
    "dpzv": ("dpzv", {"sampler": "uniform", "sigma": 0.3, "activation": "random"}),
    "dpzv, poisson": ("dpzv", {"sampler": "poisson", "sigma": 0.3, "server_update": "frozen"}),
    "dpzv-sound": ("dpzv-sound", {"sampler": "poisson", "sigma": 0.3, "sample_rate": 0.25}),
    "split": ("split", {"sampler": "poisson", **GRADIENTS}),
    "vafl": ("vafl", {"sampler": "uniform", **GRADIENTS}),
    "compressed": ("compressed", {"sampler": "uniform", **EMBEDDINGS}),
    "zoo-vfl": ("zoo-vfl", {"sampler": "uniform", **EMBEDDINGS}),
    "syn-zoo-vfl": ("syn-zoo-vfl", {"sampler": "poisson", **EMBEDDINGS}),
    "cascaded": ("cascaded", {"sampler": "uniform", **EMBEDDINGS}),
    "czofo": ("czofo", {"sampler": "uniform", **EMBEDDINGS}),
}
"""Every method whose bound can count on how batches are drawn, under noise."""


@dataclass
class Trained:
    """A training, the batches that it drew, and its messages."""

    data: TrainingData
    config: object
    models: object
    ids: list
    messages: list


def trained(case, *, records=40, key=None, noise_from="os", seed=3, **more):
    method, options = LEANING[case] if isinstance(case, str) else case
    config = METHODS[method].configure(**{**SMALL, **options, **more})
    data = training_data(records=records, dtype=getattr(torch, config.dtype))
    messages = []

    class Log:
        def on_message(self, message):
            messages.append(message._replace(payload=message.payload.clone()))

    kept = {} if key is None else {"checkpoints": OneKey(key)}
    context = RunContext(seed=seed, observers=(Log(),))
    context = RunContext(seed=seed, observers=(Log(),))
    with torch.no_grad():
        done = train(METHODS[method], data, config, context, noise_from=noise_from, **kept)
    ids = [message.ids for message in messages if message.ids is not None]
    return Trained(data, config, done, ids, messages)


def test_every_method_with_noise_and_random_batches_is_among_the_cases():
    counted = {method for method, _ in LEANING.values()}
    sampling = {name: spec for name, spec in METHODS.items() if spec.used({"sampler": ""})}
    with_noise = {name for name, spec in sampling.items() if {"dp", "sigma"} & spec.config.model_fields.keys()}
    assert with_noise <= counted
    for case, (method, options) in LEANING.items():
        config = METHODS[method].configure(**SMALL, **options)
        secrets = METHODS[method].secrets(config, Deployment(records=40, clients=3))
        assert secrets == {Purpose.BATCHES}, case
        passes = METHODS[method].configure(**{**SMALL, **options, "sampler": "shuffled", "sample_rate": None})
        assert METHODS[method].secrets(passes, Deployment(records=40, clients=3)) == frozenset()


@pytest.mark.parametrize("case", LEANING)
def test_batches_follow_from_the_key_and_not_from_the_seed(case):
    runs = [trained(case, key=key, seed=seed) for key, seed in ((KEYS[0], 3), (KEYS[0], 4), (KEYS[1], 3))]
    same, other, another = (run.ids for run in runs)
    if METHODS[LEANING[case][0]].configure(**SMALL, **LEANING[case][1]).activation == "cyclic":
        assert all(map(torch.equal, same, other))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(same, another, strict=True))
    for run in runs:
        assert run.models.secret_noise
        assert Purpose.BATCHES in run.models.secret_draws


def first_batch(run, seed):
    """The first batch of client 1 that follows from a seed."""
    drawn, records = stream(seed, Purpose.BATCHES, 1, 0, 0), run.data.records
    if run.config.sampler == "uniform":
        return set(drawn.choice(records, run.config.batch_size, replace=False).tolist())
    rate = run.config.sample_rate or run.config.batch_size / records
    return set(np.flatnonzero(drawn.random(records) < rate).tolist())


def found_by(run, seeds, *, most=2):
    """Seeds that the models show which leave, of so many parties, and seeds that give a batch that was drawn."""
    rounds = len({message.round for message in run.messages if message.round >= 0})
    stacks = {"server": run.models.server, "client-1": run.models.clients[0]}
    tensors = {f"{name}/{layer}": view[0] for name, stack in stacks.items() for layer, view in stack.views.items()}
    shown = shown_by(list(parties_of(run.data, run.config, tensors))[:most], seeds, rounds=rounds)
    batches = [set(ids[0][ids[0] >= 0].tolist()) for ids in run.ids]
    return shown, {seed for seed in seeds if first_batch(run, seed) in batches}


@pytest.mark.parametrize("case", LEANING)
def test_what_leaves_shows_no_seed_and_no_seed_gives_a_batch(case):
    """The run's own seed, 3, and 60 others; `test_ten_thousand_seeds_are_not_found` tries the rest."""
    assert found_by(trained(case, key=KEYS[0], **LARGE), range(61)) == (set(), set())


@pytest.mark.parametrize("case", ["dp-zo", "dpzv", "vafl", "split"])
def test_the_same_search_finds_a_seed_that_is_there(case):
    """What the test above is for: a simulation, whose batches, directions and starts follow from its seed."""
    run = trained(case, noise_from=0, **LARGE)
    assert found_by(run, range(8)) == ({3}, {3})
    assert (run.models.secret_noise, run.models.secret_draws) == (False, frozenset())


@pytest.mark.ci
@pytest.mark.parametrize("case", LEANING)
def test_ten_thousand_seeds_are_not_found(case):
    assert found_by(trained(case, key=KEYS[0], **LARGE), range(10_001), most=1) == (set(), set())


def test_a_generator_of_secret_bits_is_philox_with_a_key_of_shake_256():
    name = b"".join(n.to_bytes(8, "little") for n in (Purpose.BATCHES, 2, 7, 1))
    key = hashlib.shake_256(KEYS[0] + b"dpzv-audit/sampling/1" + name).digest(16)
    by_hand = np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8")))
    drawn = generator(SecretBits(KEYS[0], SAMPLING), Purpose.BATCHES, 7, 1)
    assert (drawn.integers(0, 2**63, 9) == by_hand.integers(0, 2**63, 9)).all()
    assert (generator(5, Purpose.BATCHES, 7).random(3) == stream(5, Purpose.BATCHES, 7).random(3)).all()


def test_noise_and_draws_of_one_key_share_no_word():
    noise, draws = SecretBits(KEYS[0]), SecretBits(KEYS[0], SAMPLING)
    both = [bits.words(500, Purpose.BATCHES, 1) for bits in (noise, draws)]
    assert len(np.unique(np.concatenate(both))) == 1000
    assert (noise.drawn, draws.drawn) == ({Purpose.BATCHES}, {Purpose.BATCHES})


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("at", [3, 64, 70])
def test_a_renewed_key_is_that_of_every_batch_and_direction_after_it(sampler, at):
    """As if they had been skipped to there under the new key, wherever in a block of draws that is."""
    batches = {"records": 20, "batch_size": 4, "client": 1}
    secret = Streams(SecretBits(KEYS[0], SAMPLING), (0, 2))
    drawn = BatchStream(sampler, secret, **batches)
    along = Directions("sphere", 5, secret, party=1)
    first = [(drawn.next().members, along.at(t)) for t in range(at)]
    secret.seed.renew(KEYS[1])
    second = [(drawn.next().members, along.at(t)) for t in range(at, 150)]
    streams = [Streams(SecretBits(key, SAMPLING), (0, 2)) for key in KEYS]
    by_first, by_second = (BatchStream(sampler, of_key, **batches) for of_key in streams)
    assert all(torch.equal(members, by_first.next().members) for members, _ in first)
    by_second.skip_to(at)
    assert all(torch.equal(members, by_second.next().members) for members, _ in second)
    apart = [Directions("sphere", 5, of_key, party=1) for of_key in streams]
    assert all(torch.equal(u, apart[0].at(t)) for t, (_, u) in enumerate(first))
    assert all(torch.equal(u, apart[1].at(t)) for t, (_, u) in enumerate(second, at))


@pytest.mark.parametrize("sampler", ["uniform", "poisson"])
def test_secret_batches_have_the_law_of_their_sampler(sampler):
    """How often each record and each pair of neighbours is drawn in 6,000 batches: chi-square, level 1e-4 each."""
    drawn = BatchStream(
        sampler, Streams(seed=SecretBits(KEYS[0], SAMPLING), replicas=(0,)), records=10, batch_size=4, client=1
    )
    count = 6_000
    rows = np.zeros((count, 10))
    for row in rows:
        ids = drawn.next().members[0].numpy()
        ids = ids[ids >= 0]
        assert len(set(ids.tolist())) == len(ids)
        row[ids] = 1.0
    together = (rows * np.roll(rows, 1, axis=1)).sum(0)
    alone, pair = 0.4, 0.16 if sampler == "poisson" else 4 * 3 / 90
    for counts, chance in ((rows.sum(0), alone), (together, pair)):
        z = (counts - count * chance) / math.sqrt(count * chance * (1 - chance))
        assert np.abs(z).max() < stats.norm.isf(LEVEL / 20)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (("dp-zo", {"sigma": 0.3}), "scalar"),
        (("dpzv", {"sigma": 0.3, "server_update": "frozen"}), "scalar"),
        (("vafl", GRADIENTS), "gradient"),
        (("zoo-vfl", EMBEDDINGS), "embeddings"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_noise_in_a_training_has_the_size_that_is_stated(case, kind):
    """Draw by draw, from the key by hand: noise that is 1% too small fails in every message.

    Models stand still, so that under one start the difference of two keys' messages is that of their noise.
    """
    still = {"client_rate": 0.0, "server_rate": 0.0, "dtype": "float64", "sampler": "shuffled", "batch_size": 8}
    runs = [trained(case, key=key, **still) for key in KEYS]
    config = runs[0].config
    clip = getattr(config, "dp_clip", None) or config.clip
    sigma = getattr(config, "dp_sigma", None) or config.sigma
    # A scalar's noise is on the sum over the batch, in steps of C / 2^20; a row's on itself, likewise.
    unit = config.batch_size if kind in ("scalar", "gradient") else 1
    steps = sigma * (config.batch_size if kind == "scalar" else 1) * 2**20 / clip
    sent = [[m.payload[0].numpy() for m in run.messages if m.kind == kind] for run in runs]
    rounds_asked = len({m.round for m in runs[0].messages if m.kind == kind and m.sender == SERVER})
    if kind == "scalar":
        by_hand = [secret_normals(steps, 256, key, 0, 0)[:rounds_asked] for key in KEYS]
        rounds = {m.round: m.payload[0] for m in runs[0].messages if m.kind == kind}
        others = {m.round: m.payload[0] for m in runs[1].messages if m.kind == kind}
        measured = np.array([float(rounds[t] - others[t]) for t in sorted(rounds)])
    else:
        tables = 0 if kind == "gradient" else len(runs[0].data.features)  # filled first
        draws = [(number, values) for number, values in enumerate(sent[0])]
        each = 2 if kind == "embeddings" else 1  # h and h moved are two messages
        measured, by_hand = [], [[], []]
        for number, values in draws:
            parts = values if each == 2 else values[None]
            others = sent[1][number] if each == 2 else sent[1][number][None]
            for place, (mine, its) in enumerate(zip(parts, others, strict=True)):
                measured.append((mine - its).ravel())
                draw = tables + each * number + place
                for side, key in zip(by_hand, KEYS, strict=True):
                    side.append(secret_normals(steps, mine.size, key, 0, draw))
        measured, by_hand = np.concatenate(measured), [np.concatenate(side) for side in by_hand]
    expected = (by_hand[0] - by_hand[1]) * clip / 2**20 / unit
    assert len(measured) >= 8
    assert np.allclose(measured, expected, rtol=1e-6, atol=1e-9)
