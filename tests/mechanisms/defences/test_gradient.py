"""Defences of gradients: known answers, what is promised and refused, and a run that goes on after an interruption."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dpzv_audit.data import load
from mechanisms import METHODS, train
from mechanisms.core.channel import Adversary, ViewRecorder
from mechanisms.core.context import RunContext
from mechanisms.core.defence import Draws, defended, label_release
from mechanisms.defences import defence_of
from mechanisms.defences.marvell import Problem, optimal, sum_kl

from ...helpers.refusals import refused
from ..conftest import training_data

SMALL = {"batch_size": 8, "epochs": 2, "embedding": 4, "hidden": 6}
AT_GRADIENTS = ["max-norm", "marvell", "sparsify", "discretise"]


@pytest.fixture
def data():
    """Four clients' data of 64 records of two classes."""
    return training_data(records=64, clients=4, classes=2, dtype=torch.float32)


def draws(number=0, replicas=(0,), seed=3):
    return Draws(seed, seed, replicas, 0, number=number)


def sent(name, values, labels=None, real=None, **settings):
    """Return what a defence sends of gradients (K, B, width)."""
    rows = torch.tensor(values, dtype=torch.float64)
    labels = torch.zeros(rows.shape[:2], dtype=torch.long) if labels is None else torch.tensor(labels)
    real = torch.ones(rows.shape[:2], dtype=torch.bool) if real is None else torch.tensor(real)
    return defence_of(name, **settings).on_gradients(rows, labels, real, draws(replicas=range(len(rows))))


def gradients_seen(method, data, *, replicas=(0,), **options):
    """Messages of gradients that client 1 receives in a training."""
    recorder = ViewRecorder(Adversary("client", (1,)), kinds=("gradient",))
    config = METHODS[method].configure(**SMALL, **options)
    train(METHODS[method], data, config, RunContext(seed=0, replicas=replicas, observers=(recorder,)))
    return recorder.view.received("gradient")


def test_max_norm_gives_all_gradients_the_second_moment_of_the_largest():
    """Mean squares of 20,000 draws lie within 6 standard deviations of theirs: a false alarm in 1e-8."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 1.0]], dtype=torch.float64).repeat_interleave(20_000, 0)[None]
    noised = defence_of("max-norm").on_gradients(rows, torch.zeros(1, 60_000), rows[..., 0] > -1, draws())
    squares = noised.square().sum(2).view(3, 20_000)
    norms = torch.tensor([5.0, 0.5, 1.0], dtype=torch.float64)
    spread = (25 - norms**2).sqrt()
    # (|g| + s n)^2 has the variance 4 |g|^2 s^2 + 2 s^4.
    deviation = (4 * norms**2 * spread**2 + 2 * spread**4).sqrt() / math.sqrt(20_000)
    assert ((squares.mean(1) - 25.0).abs() <= 6 * deviation + 1e-12).all()
    assert torch.equal(noised[0, :20_000], rows[0, :20_000])
    # Noise is along the gradient: what is across stays 0.
    across = noised[0, 20_000:40_000] @ torch.tensor([-4.0, 3.0], dtype=torch.float64)
    assert across.abs().max() < 1e-12


def test_a_gradient_of_zero_stays_zero():
    found = sent("max-norm", [[[1.0, 0.0], [0.0, 0.0]]])
    assert found[0, 1].tolist() == [0.0, 0.0]
    assert found[0, 0].tolist() == [1.0, 0.0]


def test_sparsify_keeps_the_largest_coordinates_of_a_message():
    values = [[[5.0, -1.0], [0.5, -4.0], [3.0, 2.0], [0.0, 0.0]]]
    assert sent("sparsify", values, keep=0.5)[0].tolist() == [[5.0, 0.0], [0.0, -4.0], [3.0, 2.0], [0.0, 0.0]]
    assert sent("sparsify", values, keep=0.01)[0].tolist() == [[5.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert torch.equal(sent("sparsify", values, keep=1.0), torch.tensor(values, dtype=torch.float64))
    # Where padding fills up a batch, the share is of the coordinates of records.
    short = sent("sparsify", values, real=[[True, True, True, False]], keep=0.5)
    assert short[0].tolist() == [[5.0, 0.0], [0.0, -4.0], [3.0, 0.0], [0.0, 0.0]]


def test_discretise_rounds_to_multiples_of_a_bin():
    values = [[[0.9, -0.2], [0.26, -7.0]]]
    assert sent("discretise", values, bins=4, bound=1.0)[0].tolist() == [[1.0, -0.0], [0.5, -1.0]]
    assert sent("discretise", values, bins=2, bound=2.0)[0].tolist() == [[0.0, -0.0], [0.0, -2.0]]


def test_discretise_ends_two_standard_deviations_from_the_mean():
    rows = np.random.default_rng(0).normal(0.3, 1.0, (2, 50, 3))
    rows[1] *= 10.0
    rounded = sent("discretise", rows.tolist(), bins=6)
    for row, original in zip(rounded.numpy(), rows, strict=True):
        end = abs(original.mean()) + 2 * original.std()
        assert row.max() == pytest.approx(end)
        steps = row / (end / 3)
        assert np.abs(steps - steps.round()).max() < 1e-9
        assert np.abs(row - np.clip(original, -end, end)).max() <= end / 6 + 1e-12


def problem(u, v, gap, share, width):
    return Problem(*(torch.tensor([value], dtype=torch.float64) for value in (u, v, gap, share)), width)


@pytest.mark.parametrize("seed", range(6))
def test_marvells_covariance_is_the_best_for_its_power(seed):
    """Another solver of the paper's program finds nothing better, and the power is spent in full."""
    u, v, gap, share, scale = np.random.default_rng(seed).uniform([0.01, 0.01, 0.1, 0.05, 0.05], [1, 1, 1, 0.95, 6])
    width = seed + 1
    power = scale * gap
    program = problem(u, v, gap, share, width)
    covariance = optimal(program, torch.tensor([power], dtype=torch.float64))

    def objective(x):
        of = 0.5 * (width - 1) * ((x[1] + u) / (x[3] + v) + (x[3] + v) / (x[1] + u))
        return of + 0.5 * ((x[0] + u + gap) / (x[2] + v) + (x[2] + v + gap) / (x[0] + u)) - width

    def left(x):
        return power - share * (x[2] + (width - 1) * x[3]) - (1 - share) * (x[0] + (width - 1) * x[1])

    limits = [left, lambda x: x[0] - x[1], lambda x: x[2] - x[3]]
    others = [
        minimize(
            objective,
            start * power / 10,
            bounds=[(0, None)] * 4,
            constraints=[{"type": "ineq", "fun": limit} for limit in limits],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        for start in np.random.default_rng(1).dirichlet(np.ones(4), 5)
    ]
    assert float(covariance.sum_kl) == pytest.approx(min(result.fun for result in others if result.success), abs=1e-9)
    assert float(power_of(program, covariance)) == pytest.approx(power)
    assert float(covariance.sum_kl) == pytest.approx(objective([float(result) for result in covariance[:4]]))


def power_of(given, noise):
    """The mean power p tr S1 + (1 - p) tr S0 of the noise."""
    of0, of1 = (along + (given.width - 1) * across for along, across in (noise[:2], noise[2:4]))
    return given.share * of1 + (1 - given.share) * of0


@pytest.mark.parametrize("u", [0.0, 0.2, 0.7])
def test_marvell_hides_better_than_isotropic_noise_of_the_same_power(u):
    program = problem(u, 0.3, 1.0, 0.3, 5)
    power = torch.tensor([2.0], dtype=torch.float64)
    equal = power / 5
    isotropic = sum_kl(program.u + equal, program.u + equal, program.v + equal, program.v + equal, program.gap, 5)
    covariance = optimal(program, power)
    assert float(covariance.sum_kl) < float(isotropic)
    more = optimal(program, 2 * power)
    assert float(more.sum_kl) < float(covariance.sum_kl)


def test_two_points_have_the_papers_closed_form():
    """Without variance within (u = v = 0) and equal classes both get the power P, and the sum is g / P."""
    found = optimal(problem(0.0, 0.0, 1.0, 0.5, 3), torch.tensor([4.0], dtype=torch.float64))
    assert [float(one) for one in found[:4]] == pytest.approx([4.0, 0.0, 4.0, 0.0], abs=1e-9)
    assert float(found.sum_kl) == pytest.approx(1.0 / 4.0)


def test_marvells_noise_has_the_covariance_of_its_class():
    """Sample variances of 20,000 records lie within 6 standard deviations, sqrt(2 / n): a false alarm in 1e-8."""
    count = 20_000
    labels = torch.arange(2 * count)[None] % 2
    generator = np.random.default_rng(5)
    spread = np.where(labels[0].numpy()[:, None] == 1, 0.3, 0.9)
    base = spread * generator.standard_normal((2 * count, 3)) + labels[0].numpy()[:, None] * np.array([2.0, 0.0, 0.0])
    rows = torch.from_numpy(base)[None]
    noised = defence_of("marvell", power=2.0).on_gradients(rows, labels, labels >= 0, draws())
    added = (noised - rows)[0]
    apart = rows[0, labels[0] == 1].mean(0) - rows[0, labels[0] == 0].mean(0)
    variance = [float((rows[0, labels[0] == c] - rows[0, labels[0] == c].mean(0)).square().mean()) for c in (0, 1)]
    noise = optimal(problem(*variance, float(apart.square().sum()), 0.5, 3), 2.0 * apart.square().sum()[None])
    unit = apart / apart.norm()
    for c, along, across in ((0, noise.along0, noise.across0), (1, noise.along1, noise.across1)):
        own = added[labels[0] == c]
        tolerance = 6 * math.sqrt(2 / count)
        assert float((own @ unit).square().mean()) == pytest.approx(float(along), rel=tolerance)
        others = own - (own @ unit)[:, None] * unit
        assert float(others.square().sum() / count / 2) == pytest.approx(float(across), rel=tolerance, abs=1e-9)


def test_the_largest_divergence_is_met_by_more_power():
    defence = defence_of("marvell", power=1.0, sum_kl=0.05)
    program = problem(0.1, 0.2, 1.0, 0.3, 4)
    covariance = defence._noise(program)
    assert float(optimal(program, torch.tensor([1.0], dtype=torch.float64)).sum_kl) > 0.05
    assert float(covariance.sum_kl) <= 0.05
    assert float(power_of(program, covariance)) < 100


def test_a_batch_of_one_class_has_nowhere_to_hide_and_is_not_sent():
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]]
    found = sent("marvell", rows, labels=[[1, 1], [0, 1]])
    assert found[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert (found[1] != 0).all()


@pytest.mark.parametrize("name", AT_GRADIENTS)
@pytest.mark.parametrize("method", ["split", "vafl", "compressed"])
def test_what_clients_receive_is_what_the_defence_sends(name, method, data):
    """A run without momentum of clients that never step shows the same gradients twice: bare, and defended."""
    seen = [
        gradients_seen(method, data, replicas=(0, 1), client_rate=0.0, server_rate=0.0, defences=defences)
        for defences in ((), {"name": name})
    ]
    assert len(seen[0]) == len(seen[1]) > 2
    bare, changed = (messages[0].payload.double() * SMALL["batch_size"] for messages in seen)
    ids = seen[1][0].ids
    expected = defence_of(name).on_gradients(bare, data.labels[ids], ids >= 0, Draws(0, 0, (0, 1), 0))
    assert not torch.allclose(bare, changed)
    assert torch.allclose(expected, changed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", AT_GRADIENTS)
def test_a_replica_is_what_it_is_alone(name, data):
    config = METHODS["split"].configure(**SMALL, defences={"name": name})
    both = train(METHODS["split"], data, config, RunContext(seed=0, replicas=(0, 1)))
    alone = train(METHODS["split"], data, config, RunContext(seed=0, replicas=(1,)))
    assert torch.allclose(both.server.flat[1], alone.server.flat[0], atol=1e-5)


def test_defences_stand_in_turn(data):
    """What is compressed last is sparse, and what is compressed first is noised all over."""
    payloads = {}
    for order in (("max-norm", "sparsify"), ("sparsify", "max-norm")):
        payloads[order[0]] = gradients_seen("split", data, defences=[{"name": name} for name in order])[0].payload
    assert (payloads["max-norm"] != 0).sum() == 8 * 4 // 4
    assert not torch.equal(payloads["max-norm"], payloads["sparsify"])


def test_noise_of_the_methods_own_comes_before(data):
    """Its bound holds of what a defence makes of it; one that reads labels would break that, and is refused."""
    noised = {"dp": "gradient", "dp_sigma": 1.0, "dp_clip": 0.5}
    values = gradients_seen("split", data, **noised, defences={"name": "discretise", "bins": 2})[0].payload
    assert len(values.abs().unique()) == 2
    with refused("dp gradient has a bound that defence marvell, which reads labels, would"):
        METHODS["split"].configure(**SMALL, **noised, defences={"name": "marvell"})


@pytest.mark.parametrize(
    ("method", "options"),
    [*((name, {}) for name in ("dpzv", "zoo-vfl", "czofo")), ("compressed", {"local_gradient": "recomputed"})],
    ids=str,
)
def test_methods_without_gradients_refuse_in_one_line(method, options):
    with refused("defence sparsify stands at each gradient of a first-order round, which it lacks"):
        METHODS[method].configure(**options, defences={"name": "sparsify"})


@pytest.mark.parametrize("name", ["max-norm", "marvell"])
def test_more_classes_than_two_are_refused(name):
    digits = training_data(load("digits"), dtype=torch.float32)
    with refused(f"defence is '{name}'; leave it out: it is for 2 classes, and there are"):
        defended(digits, [defence_of(name)], RunContext(seed=0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sparsify", "keep": 0.0}, "option keep of defence sparsify is 0.0; use more than 0"),
        ({"name": "discretise", "bins": 1}, "option bins of defence discretise is 1; use at least 2"),
        ({"name": "marvell", "power": -1.0}, "option power of defence marvell is -1.0; use more than 0"),
        ({"name": "max-norm", "epsilon": 1.0}, "option of defence max-norm is 'epsilon'"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with refused(message):
        METHODS["split"].configure(defences=settings)


def test_nothing_is_promised_and_that_is_said():
    spec = METHODS["split"]
    config = spec.configure(defences=[{"name": "label-rr"}, {"name": "max-norm"}])
    assert label_release([defence_of(name) for name in AT_GRADIENTS]) is None
    assert spec.protects(config) == (
        "labels, privatised once before training by label-rr; and gradients sent to clients, changed by max-norm, "
        "which promises nothing"
    )
    assert spec.draws(spec.configure(defences={"name": "max-norm"}))
    assert not spec.draws(spec.configure(defences={"name": "sparsify"}))


def test_labels_that_are_private_are_those_a_defence_reads(data):
    """Marvell hides the labels that are trained on: with others the noise is another."""
    spec = METHODS["split"]
    config = spec.configure(**SMALL, defences={"name": "marvell"})
    flipped = replace(data, labels=1 - data.labels)
    first, second = (train(spec, some, config, RunContext(seed=0)).server.flat for some in (data, flipped))
    assert not torch.equal(first, second)
