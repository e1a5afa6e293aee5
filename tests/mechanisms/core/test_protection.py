"""Noise on a baseline's channel: what is clipped, how much noise, on which channel, from which stream."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms import METHODS
from mechanisms.core.baselines import PROTECTS, ChannelNoise
from mechanisms.core.config import BaselineConfig, ProtectedConfig
from mechanisms.core.context import RunContext
from mechanisms.methods.compressed import SplitConfig
from mechanisms.methods.czofo import CZOFOConfig
from mechanisms.methods.vafl import VAFLConfig
from mechanisms.methods.zoo import ZerothOrderConfig

from ..conftest import start_run, steps

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""
SMALL = {"batch_size": 6, "epochs": 3, "embedding": 2, "hidden": 4, "dtype": "float64"}
EMBEDDING_KINDS = ["embedding", "embedding-batch"]


def channel(dp, *, clip=1.0, sigma=0.0, batch_size=4, seed=0, replicas=(0,), **options):
    own = {"dp": dp, "dp_clip": clip, "dp_sigma": sigma, "batch_size": batch_size, "dtype": "float64"}
    config = BaselineConfig(**own, **options)
    return ChannelNoise(config, RunContext(seed=seed, replicas=replicas))


def rows(*shape, scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64)


def check_variance(z):
    """Chi-square on the squares of what must be standard normal: level 1e-4, two-sided."""
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], z.size)
    assert low < (z**2).sum() < high


def test_embeddings_are_clipped_record_by_record():
    check_clipped(rows(2, 50, 3), channel("embedding", clip=1.3).embeddings)


def test_a_batch_is_clipped_as_one_tensor_replica_by_replica():
    embeddings = rows(2, 50, 3) * torch.tensor([1.0, 1e-3])[:, None, None]
    sent = channel("embedding-batch", clip=1.3).embeddings(embeddings)
    assert sent[0].norm().item() == pytest.approx(1.3, rel=1e-12)
    assert torch.allclose(sent[0], embeddings[0] * (1.3 / embeddings[0].norm()), rtol=1e-12)
    assert torch.equal(sent[1], embeddings[1])


def test_a_gradient_is_clipped_as_its_records_own():
    """dL/dh of the mean over B is 1/B of the record's own gradient, which is what C_g bounds."""
    noise = channel("gradient", clip=1.3, batch_size=8)
    check_clipped(rows(2, 8, 3), lambda own: noise.gradients(own / 8) * 8)


def check_clipped(own, send):
    """Rows shorter than 1.3 are sent as they are, and others are cut to it where they point."""
    sent, norms = send(own), own.norm(dim=2)
    assert (norms < 1.3).any()
    assert (norms > 1.3).any()
    assert (sent.norm(dim=2) <= 1.3 * (1 + 1e-12)).all()
    assert torch.allclose(sent[norms < 1.3], own[norms < 1.3], rtol=1e-12)
    assert torch.allclose(sent[norms > 1.3].norm(dim=1), torch.tensor(1.3, dtype=torch.float64))
    assert torch.allclose(torch.cosine_similarity(sent, own, dim=2), torch.ones(sent.shape[:2], dtype=torch.float64))


@pytest.mark.parametrize("dp", ["none", *EMBEDDING_KINDS, "gradient"])
def test_zeros_stay_zeros(dp):
    noise, zeros = channel(dp), torch.zeros(1, 3, 2, dtype=torch.float64)
    assert torch.equal(noise.embeddings(zeros), zeros)
    assert torch.equal(noise.gradients(zeros), zeros)
    assert torch.equal(noise.through_clip(zeros, zeros + 1), zeros + 1)


def test_the_other_channel_is_left_as_it_is():
    values = rows(1, 4, 3, scale=100.0)
    sigma = {"sigma": 2.0}
    assert channel("none").embeddings(values) is values
    assert channel("none").gradients(values) is values
    assert channel("gradient", **sigma).embeddings(values) is values
    assert channel("gradient", **sigma).through_clip(values, values) is values
    for dp in EMBEDDING_KINDS:
        assert channel(dp, **sigma).gradients(values) is values


@pytest.mark.parametrize("dp", EMBEDDING_KINDS)
@pytest.mark.parametrize("clip", [0.3, 2.0, 1e3])
def test_through_clip_is_autograd_through_the_clip(dp, clip):
    embeddings, gradient = rows(2, 20, 3).requires_grad_(), rows(2, 20, 3)
    norms = embeddings.norm(dim=2, keepdim=True) if dp == "embedding" else embeddings.norm(dim=(1, 2), keepdim=True)
    (embeddings * torch.clamp(clip / norms, max=1.0) * gradient).sum().backward()
    got = channel(dp, clip=clip).through_clip(embeddings.detach(), gradient)
    assert torch.allclose(got, embeddings.grad, rtol=0, atol=1e-12)
    if clip == 0.3:
        assert not torch.isclose(got, gradient).any()


@pytest.mark.parametrize("kind", ["grid", "float"])
@pytest.mark.parametrize(("dp", "share"), [("embedding", 1), ("embedding-batch", 1), ("gradient", 8)])
def test_noise_has_variance_sigma_squared_on_every_coordinate(dp, share, kind):
    """Chi-square on 6,000 numbers, two-sided, and products of neighbours in each axis: level 1e-4 each.

    On a gradient of the batch mean it is 1/B of the noise on a record's own.
    """
    noise = channel(dp, sigma=0.7, batch_size=8, replicas=(0, 1, 2), noise=kind)
    zeros = torch.zeros(3, 8, 5, dtype=torch.float64)
    drawn = noise.gradients if dp == "gradient" else noise.embeddings
    z = torch.stack([drawn(zeros) for _ in range(50)]).numpy() * share / 0.7
    check_variance(z)
    for axis in range(4):
        first, second = z.take(range(z.shape[axis] - 1), axis), z.take(range(1, z.shape[axis]), axis)
        assert abs((first * second).sum()) / math.sqrt(first.size) < stats.norm.isf(LEVEL / 2)
    steps = z * 0.7 * 2**20
    assert (len(np.unique(z)) == z.size) if kind == "float" else np.allclose(steps, np.rint(steps), rtol=0, atol=1e-6)


def test_a_replicas_noise_depends_on_the_replica_and_the_message_alone():
    """Not on the stack, nor on how far earlier messages were padded."""
    stack, alone = channel("embedding", sigma=1.0, replicas=(0, 3, 5)), channel("embedding", sigma=1.0, replicas=(3,))
    for wide, narrow in ((6, 4), (5, 5), (9, 2)):
        padded, own = (
            noise.embeddings(torch.zeros(k, n, 3, dtype=torch.float64))
            for noise, k, n in ((stack, 3, wide), (alone, 1, narrow))
        )
        assert torch.equal(padded[1, :narrow], own[0])
        assert not torch.isclose(padded[0, :narrow], own[0]).any()
    other = channel("embedding", sigma=1.0, seed=1, replicas=(3,)).embeddings(torch.zeros(1, 6, 3, dtype=torch.float64))
    fresh = channel("embedding", sigma=1.0, replicas=(3,)).embeddings(torch.zeros(1, 6, 3, dtype=torch.float64))
    assert not torch.isclose(other, fresh).any()


def differences(kind, dp, sigma, rounds=120, **options):
    """{kind: noisy less noiseless payloads} of runs whose parties are frozen."""
    logs = []
    for std in (sigma, 0.0):
        config = kind(**{**SMALL, "client_rate": 0.0, "server_rate": 0.0, "dp": dp, "dp_sigma": std, **options})
        run, log = start_run(config, replicas=(0, 1))
        steps(run, rounds)
        logs.append(log)
    by_kind = {}
    for noisy, quiet in zip(logs[0].messages, logs[1].messages, strict=True):
        by_kind.setdefault(noisy.kind, []).append((noisy.payload - quiet.payload).flatten())
    return {kind: torch.cat(values).numpy() for kind, values in by_kind.items()}


@pytest.mark.parametrize("kind", [VAFLConfig, CZOFOConfig, SplitConfig, ZerothOrderConfig])
@pytest.mark.parametrize("dp", EMBEDDING_KINDS)
def test_embedding_noise_is_on_every_upload_and_on_the_table(kind, dp):
    """Chi-square on what was added to embeddings, and to the initial table: level 1e-4 each, two-sided."""
    noise = differences(kind, dp, 0.4, dp_clip=0.5)
    assert ("table" in noise) == (kind is not SplitConfig)
    for name in ("table", "embeddings"):
        if name in noise:
            assert noise[name].size >= 2 * 3 * 24 * 2
            check_variance(noise[name] / 0.4)


@pytest.mark.parametrize("kind", [VAFLConfig, SplitConfig])
def test_gradient_noise_is_on_gradients_and_nowhere_else(kind):
    """Chi-square on what was added to B times what comes down: level 1e-4, two-sided."""
    noise = differences(kind, "gradient", 0.4, dp_clip=0.1)
    check_variance(noise.pop("gradient") * SMALL["batch_size"] / 0.4)
    assert set(noise) == ({"table", "embeddings"} if kind is VAFLConfig else {"embeddings"})
    assert all((values == 0).all() for values in noise.values())


def test_the_table_is_clipped_too():
    run, log = start_run(VAFLConfig(**SMALL, dp="embedding", dp_clip=0.1))
    tables = log.payloads("table")
    assert len(tables) == 3
    assert all((t.norm(dim=2) <= 0.1 * (1 + 1e-12)).all() for t in tables)
    assert torch.equal(run.federation.table[:-1].view(24, 3, 2)[:, 1], tables[1][0])


@pytest.mark.parametrize("method", METHODS)
def test_words_say_which_channel_is_protected_and_no_more(method):
    spec = METHODS[method]
    if not issubclass(spec.config, ProtectedConfig):
        assert spec.protects(spec.configure())
        return
    assert spec.protects(spec.configure()) == PROTECTS["none"]
    stay = "labels stay open"
    for dp, words in (("embedding", stay), ("embedding-batch", stay), ("gradient", "labels; features stay open")):
        if dp == "gradient" and spec.config in (CZOFOConfig, ZerothOrderConfig):
            continue
        sentence = spec.protects(spec.configure(dp=dp, dp_sigma=1.0))
        assert words in sentence
        assert dp.removesuffix("-batch") in sentence
        assert sentence == spec.protects(spec.configure(dp=dp, epsilon=1.0))
        # A clip without noise protects nothing.
        assert spec.protects(spec.configure(dp=dp)) == PROTECTS["none"]
