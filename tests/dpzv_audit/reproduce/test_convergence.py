"""Rates of convergence: constants in closed form, gradients by autograd, bounds by mpmath, and planted errors."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch.nn.functional import cross_entropy

from dpzv_audit.base.findings import Interval
from dpzv_audit.reproduce import TABLES, KeptRows, Setting, kept_result, reproduce, with_rows
from dpzv_audit.reproduce.convergence import (
    Problem,
    RatePoint,
    RateRow,
    exponent_of,
    gradient_and_loss,
    largest_delay,
    theorem_52,
    theorem_b1,
)
from dpzv_audit.reproduce.words import filled
from mechanisms import method_named
from mechanisms.core.context import RunContext
from mechanisms.core.method import federation_of

from .conftest import drawn_figure

TABLE = TABLES["convergence"]
SETTING = Setting(load=lambda keywords: pytest.fail("reads data"), epochs=256, seeds=4)
ROUNDS = next(item for item in TABLE.items if item.label == "001 and 004, rounds T")
ROWS = Path(__file__).parents[3] / "docs" / "results" / "data"
SHORT = dataclasses.replace(ROUNDS, values=[64, 128, 256])


def started(item, value, **context):
    """The problem, the configuration and the federation of a row at one value."""
    problem, config = item._at(value, SETTING)
    run = method_named(item.method).start(problem.data(0), config, RunContext(seed=0, **context))
    return problem, config, run


def test_records_have_the_smoothness_and_the_lipschitz_constant_of_the_closed_form():
    problem = Problem(classes=2, clients=3, square_norm=7.0)
    data = problem.data(0)
    parts = [torch.cat((block[0], torch.ones(1, dtype=torch.float64))) for block in data.features]
    record = torch.cat(parts)
    assert float(record.square().sum()) == pytest.approx(7.0)

    def loss(weights):
        return cross_entropy(weights.view(2, -1) @ record, data.labels[0])

    at_zero = torch.autograd.functional.hessian(loss, torch.zeros(2 * len(record), dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(at_zero).max()) == pytest.approx(problem.smoothness)
    wrong = torch.zeros(2, len(record), dtype=torch.float64)
    wrong[int(data.labels[0])] = -10.0 * record
    steepest = torch.autograd.functional.jacobian(loss, wrong.flatten())
    assert float(steepest.norm()) == pytest.approx(problem.lipschitz)


@pytest.mark.parametrize("label", ["001 and 004, rounds T", "(ReLU)", "003, number of clients"])
def test_the_gradient_is_that_of_autograd_over_all_parties(label):
    item = with_rows(TABLE, [label]).items[-1]
    problem, config, run = started(item, item.values[0], replicas=range(2))
    fed = federation_of(run)
    square, loss = gradient_and_loss(fed)
    assert fed.clients[0].parameters.flat.shape[1] == problem.dimension
    assert fed.server_parameters.flat.shape[1] == problem.server
    for k in range(2):
        leaves = [
            stack.flat[k].clone().requires_grad_()
            for stack in (fed.server_parameters, *(c.parameters for c in fed.clients))
        ]
        own = [own_rows(leaf, client.features, fed.width) for leaf, client in zip(leaves[1:], fed.clients, strict=True)]
        logits = sum(own) if not config.top_model else two_layers(leaves[0], torch.cat(own, 1).relu(), config.hidden)
        whole = cross_entropy(logits, fed.data.labels)
        gradients = torch.autograd.grad(whole, [leaf for leaf in leaves if leaf.numel()])
        assert float(loss[k]) == pytest.approx(float(whole.detach()))
        assert float(square[k]) == pytest.approx(sum(float(own.square().sum()) for own in gradients))


def own_rows(flat, features, width):
    """Outputs of a linear layer whose weight, then bias, are `flat`."""
    weight, bias = flat[: width * features.shape[1]].view(width, -1), flat[width * features.shape[1] :]
    return features @ weight.T + bias


def two_layers(flat, rows, hidden):
    """Outputs of a network with one hidden layer."""
    first = hidden * (rows.shape[1] + 1)
    return own_rows(flat[first:], own_rows(flat[:first], rows, hidden).relu(), 2)


def test_theorem_b1_by_mpmath():
    problem = Problem(clients=3, width=4, classes=3, square_norm=5.0, rounds=8192)
    fall, delay, noise = mpf("0.31"), 3, mpf(2)
    mp.dps = 30
    t, b, r, q = mpf(8192), mpf(128), mpf(5), mpf(1) / 3
    d = mpf(15)
    smooth, eta = r / 2, 1 / mp.sqrt(t * d)
    level = 10 * mp.sqrt(2 * r)
    clip = level + mpf(1) / 2 / mp.sqrt(t)
    gamma = delay**2 * 2 * eta * smooth * (mpf(1) / 2 + 2 * eta * smooth**2) / (1 - delay**2 * eta**2 * smooth**2)
    xi = 2 * mp.sqrt(2 * mp.pi) * mp.exp(-(level**2) / (8 * 2 * r))
    # The proof's line before the last, where eta is still a step of any size.
    terms = [
        8 / (q * eta * t) * fall,
        2 * d / (q * t),
        8 / (q * smooth * 3 * d * eta * t),
        16 * eta * (4 * smooth + 2 * gamma) * d * 2 * r / (q * b),
        4 * eta * ((4 - b) * smooth + (b + 2) * gamma) * d / (q * b * t),
        16 * eta * (2 * smooth + gamma) * xi * clip**2 * d / (q * b),
        16 * eta * (2 * smooth + gamma) * noise * d / q,
    ]
    bound = theorem_b1(problem, fall=0.31, delay=delay, rate=float(eta), noise=2.0)
    others = sum(terms) - terms[4]
    assert terms[4] < 0
    assert bound.mended == pytest.approx(float(others / (1 - xi)), rel=1e-12)
    assert bound.printed == pytest.approx(float((others + t * terms[4]) / (1 - xi)), rel=1e-12)
    positive = theorem_b1(problem, fall=0.31, delay=40, rate=float(eta) / 4, noise=2.0)
    assert positive.printed > positive.mended


def test_theorem_b1_says_nothing_of_larger_steps_and_as_printed_bounds_a_square_below_0():
    assert theorem_b1(Problem(), fall=0.3, delay=10, rate=1.0, noise=0.0) is None
    assert theorem_b1(Problem(), fall=0.3, delay=10, rate=0.06, noise=0.0) is None
    alone = Problem(clients=1, records=10_000, batch=10_000)
    rate = 1.0 / math.sqrt(alone.rounds * alone.dimension)
    bound = theorem_b1(alone, fall=math.log(2.0), delay=0, rate=rate, noise=0.0)
    assert bound.printed < 0.0 < bound.mended


def test_theorem_52_by_mpmath_and_that_as_printed_it_does_not_fall():
    problem = Problem(clients=4, classes=3, square_norm=6.0, rounds=100)
    mp.dps = 30
    eta, mu, p, tau, t = mpf("0.01"), mpf("0.02"), mpf(4), mpf(7), mpf(100)
    smooth, square, d, fall = mpf(3), mpf(12), mpf(3), mpf("0.31")
    mended = (
        4 * p * fall / (t * eta)
        + 2 * eta * p * smooth * (4 * d * square**2 + mu**2 * smooth**2 * d**2 * square)
        + 7 * eta**2 * p * tau * square * (4 * d * square + mu**2 * smooth**4 * d**2)
        + mu**2 * p * smooth**2 * d**2 * square
    )
    bound = theorem_52(problem, fall=0.31, delay=7, rate=0.01, smoothing=0.02)
    assert bound.mended == pytest.approx(float(mended), rel=1e-12)
    assert bound.printed == pytest.approx(float(mended + 14 * eta**2 * p * tau * square * smooth**2 * t), rel=1e-12)
    ends = []
    for rounds in (10**8, 10**12):
        own = dataclasses.replace(problem, rounds=rounds)
        step = 1.0 / math.sqrt(rounds)
        ends.append(theorem_52(own, fall=0.31, delay=7, rate=step, smoothing=step))
    assert ends[1].mended == pytest.approx(ends[0].mended / 100.0, rel=0.02)
    assert ends[1].printed == pytest.approx(14 * 4 * 7 * 12 * 9, rel=0.01)


@pytest.mark.parametrize("label", ["001 and 004, number of clients", "003, rounds T"])
def test_no_embedding_is_older_than_the_largest_delay(label):
    item = with_rows(TABLE, [label]).items[0]
    problem, config, run = started(item, item.values[-1])
    fed = federation_of(run)
    bound = largest_delay(config, problem, 0)
    last = np.zeros((problem.clients, problem.records), dtype=int)
    oldest = 0
    for number in range(problem.rounds):
        before = [client.rounds for client in fed.clients]
        run.step()
        (active,) = [place for place, client in enumerate(fed.clients) if client.rounds > before[place]]
        ids = fed.clients[active].batch.ids[0].numpy()
        last[active, ids] = number
        oldest = max(oldest, number - int(last[:, ids].min()))
    assert oldest <= bound
    if problem.batch == problem.records:
        assert oldest == bound
    assert bound < 4 * oldest


def test_an_exponent_is_that_of_a_power_law():
    values = [2.0, 4.0, 8.0]
    powers = np.array([-0.5, -0.4, -0.6])
    ratios = 3.0 * np.array(values)[:, None] ** powers
    exponent = exponent_of(values, ratios)
    assert exponent.value == pytest.approx(-0.5)
    # Student's t of 2 degrees of freedom has its 97.5% point at 4.3027; the deviation is 0.1.
    assert exponent.high == pytest.approx(-0.5 + 4.3027 * 0.1 / math.sqrt(3.0), rel=1e-4)
    assert exponent_of([1.0, 1.0], ratios[:2]) is None
    assert exponent_of(values, ratios[:, :1]) is None
    assert exponent_of(values, ratios - ratios.mean()) is None


def test_a_step_of_the_wrong_power_of_t_is_seen():
    right = SHORT.run(SETTING)
    assert not right.above()
    assert right.exponent.high == pytest.approx(-0.5, abs=0.15)
    wrong = dataclasses.replace(SHORT, steps=[-1.0, -0.5]).run(SETTING)
    assert wrong.above()
    assert abs(wrong.exponent.value) < 0.1


def test_a_step_that_forgets_d_is_seen():
    item = next(item for item in TABLE.items if item.label == "001 and 004, dimension d of a client")
    item = dataclasses.replace(item, values=[3, 7, 15])
    right = item.run(SETTING)
    assert right.exponent.low > 0.3
    wrong = dataclasses.replace(item, steps=[-0.5, 0.0]).run(SETTING)
    assert wrong.exponent.high < 0.3


def test_the_variance_of_a_step_does_not_fall_with_the_batch_as_lemma_a10_says():
    """A mean over 1,000 directions has a deviation of 4.5%: chance gives a false alarm with less than 1e-5."""
    problem, config, run = started(ROUNDS, 256, replicas=range(1_000))
    fed = federation_of(run)
    for client in fed.clients:
        client.parameters.flat.zero_()
    fed.fill_table()
    active = next(iter(run.plan.active)) - 1
    before = fed.clients[active].parameters.flat.clone()
    run.step()
    step = (before - fed.clients[active].parameters.flat) / config.client_rate
    features = torch.cat((fed.clients[active].features, torch.ones(problem.records, 1, dtype=torch.float64)), 1)
    centred = 0.5 - torch.nn.functional.one_hot(fed.data.labels, 2).to(torch.float64)
    gradients = (centred[:, :, None] * features[:, None, :]).flatten(1)
    mean = gradients.mean(0)
    spread = float((gradients - mean).square().sum(1).mean())
    variance = float((step - step.mean(0)).square().sum(1).mean())
    d = problem.dimension
    assert variance == pytest.approx((d - 1) * float(mean.square().sum()), rel=0.2)
    assert variance > 2.0 * 2.0 * d * (float(mean.square().sum()) + spread) / problem.batch


def test_rows_are_kept_and_read_back(tmp_path):
    table = dataclasses.replace(TABLE, items=(SHORT,))
    kept = KeptRows(tmp_path, table.name)
    first = reproduce(table, SETTING, kept=kept)
    assert reproduce(table, SETTING, kept=kept) == first
    assert [made.seconds is None for made in kept.made(table.items, SETTING)] == [False]
    assert kept.row(dataclasses.replace(SHORT, steps=[-1.0, -0.5]), SETTING) is None
    assert "slope -1/2" in drawn_figure(TABLE, first)


def test_a_page_shows_a_dash_for_a_bound_that_is_not_evaluated():
    plain = {"value": 1.0, "gradient": 0.25, "fall": 0.5}
    points = [RatePoint(**plain, printed=2048.0, mended=0.5), RatePoint(**plain, printed=-1.0, mended=2.0)]
    row = RateRow(label="a", points=points, promised=0.5, exponent=Interval(value=0.7, low=0.6, high=0.8, n=2))
    cells = [filled(cell, {**row.to_json(), "row": row}) for _, cell in TABLE.columns]
    assert cells[3:] == ["0.5 to 0.5", "0.700 [0.600, 0.800]", "0.5", "2,048 to -1", "0.5 to 2"]
    shares = "gradients are -25% to 50% of the smaller of the two bounds"
    assert TABLE.remark([row]) == f"of 1 exponents, 1 is shown to be above the theorem's: a; {shares}"
    row = RateRow(label="b", points=[RatePoint(**plain)] * 2, promised=0.5)
    assert [filled(cell, {**row.to_json(), "row": row}) for _, cell in TABLE.columns[-4:]] == ["-", "0.5", "-", "-"]


def test_one_round_and_one_run_fit_nothing():
    table = with_rows(TABLE, ["rounds T"])
    result = reproduce(table, dataclasses.replace(SETTING, epochs=1, seeds=1))
    assert [row.exponent for row in result.rows] == [None] * 4
    assert table.remark(result.rows) == ""


def test_every_row_has_the_steps_of_its_theorem():
    for item in TABLE.items:
        for value in item.values:
            problem, config = item._at(value, dataclasses.replace(SETTING, epochs=8192))
            power = problem.largest if item.label.startswith("001") else 1
            own = (problem.rounds * power) ** -0.5
            assert config.client_rate == config.server_rate
            assert (config.client_rate == pytest.approx(own)) != item.label.startswith("control")


def test_the_page_says_what_its_rows_show():
    """What agrees and what is looser, in the table's notes, is true of the rows on file."""
    result = kept_result(TABLE, ROWS)
    assert len(result.rows) == len(TABLE.items)
    rows = {row.label: row for row in result.rows}
    assert [row.label for row in result.rows if row.above()] == ["control, rounds T with a step of 1 / T"]
    bounded = [point for row in result.rows for point in row.points if point.printed is not None]
    assert len(bounded) > 20
    assert all(point.gradient < min(point.printed, point.mended) for point in bounded)
    for label, row in rows.items():
        if label.endswith("rounds T") or "number of clients" in label:
            assert row.exponent.low <= row.promised <= row.exponent.high, label
        elif label.startswith(("002", "003, emb")) or "noise" in label:
            assert row.exponent.high < row.promised, label
    assert abs(rows["001 and 004, dimension d of a client"].exponent.value - 0.5) < 0.05
    assert abs(rows["003, directions q"].exponent.value) < 0.1
    algorithm, proofs = (row for label, row in rows.items() if "ReLU" in label)
    assert proofs.points[-1].gradient > 3.0 * algorithm.points[-1].gradient
