"""The label attack's success on synthetic logits against the reference table, at a reduced size."""

import importlib.util
import sys
from pathlib import Path

import pytest

from attacks.core.metrics import rate_limits
from attacks.label.direct import argmin

CONFIDENCE = 1 - 1e-4


def _load_benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "query_sweep.py"
    spec = importlib.util.spec_from_file_location("query_sweep_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


sweep = _load_benchmark()
BATCHES = {1: 150, 10: 100, 100: 40, 320: 24}
REDUCED = [cell for cell in sweep.CELLS if cell.queries in BATCHES]


def _name(cell):
    return f"{cell.row} q={cell.queries}"


@pytest.mark.parametrize("cell", [c for c in REDUCED if c.knows_directions], ids=_name)
def test_success_agrees_with_the_reference(cell):
    """The interval over batches at confidence 1 - 1e-4 meets reference +- 0.03: false-alarm rate 1e-4.

    It is over batches because guesses of one batch share its scalars, and narrow enough for the test to bite.
    """
    batches = BATCHES[cell.queries] * (8 if cell.records < 64 else 1)
    queries = sweep.simulate(cell, batches=batches, seed=7)
    gradients = sweep.estimates(cell, queries)["ridge"]
    interval = sweep.over_batches(argmin(gradients) == queries.labels, CONFIDENCE)
    assert interval.low <= cell.high + sweep.TOLERANCE
    assert interval.high >= cell.low - sweep.TOLERANCE
    if cell.high < 1.0:
        assert interval.high - interval.low < 0.15


@pytest.mark.parametrize("name", ["correlation", "minimum norm", "ridge"])
@pytest.mark.parametrize("queries", [1, 10, 100])
def test_an_eavesdropper_is_at_chance(queries, name):
    """Its own directions are exchangeable over classes within each record: guesses are independent, uniform.

    The count of hits is then exactly binomial with probability 1/classes, and the exact interval at
    confidence 1 - 1e-4 misses it with probability at most 1e-4.
    """
    (cell,) = (c for c in REDUCED if not c.knows_directions and c.queries == queries)
    got = sweep.simulate(cell, batches=BATCHES[queries], seed=8)
    guesses = argmin(sweep.estimates(cell, got)[name])
    low, high = rate_limits(int((guesses == got.labels).sum()), guesses.numel(), CONFIDENCE)
    assert low <= 1 / sweep.CLASSES <= high


def test_knowing_the_directions_is_what_tells_the_client_from_the_eavesdropper():
    client, eavesdropper = (
        next(c for c in REDUCED if c.queries == 100 and c.knows_directions is knows and not c.per_record)
        for knows in (True, False)
    )
    rates = [sweep.measure(cell, batches=10, seed=9)["ridge"] for cell in (client, eavesdropper)]
    assert rates[0].low > 0.35 > rates[1].high


def test_as_many_queries_as_unknowns_give_every_label():
    (cell,) = (c for c in sweep.CELLS if c.row == "one a batch" and c.queries == 640)
    assert sweep.measure(cell, batches=3, seed=12)["ridge"].value >= cell.low - sweep.TOLERANCE


def test_ridge_with_the_finite_difference_error_beats_minimum_norm_at_the_dimension():
    # At q = dimension the square system magnifies the forward difference's own error; ridge is told its size.
    (cell,) = (c for c in sweep.CELLS if c.row == "noise 0.10" and c.queries == 640)
    rates = sweep.measure(cell, batches=3, seed=10)
    assert rates["minimum norm"].value < 0.5 < 0.8 < rates["ridge"].value
