"""Models of results: what a file holds that has no place in one is left over, and nothing of a file is lost."""

import copy
import json
from typing import Any

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from packaging.version import Version

from dpzv_audit.results import (
    AuditResult,
    BoundByRuns,
    Epoch,
    Privacy,
    TrainResult,
    Wealth,
    read,
    schema_of_results,
)

from ..helpers.places import ROOT
from ..helpers.refusals import refused

SCHEMA = {"schema": "dpzv-audit/attack/1"}
INTERVAL = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 100, "confidence": 0.95, "over_trainings": None}
INTERVAL["unit"] = "records"
BOUND = {
    "accountant": "prv",
    "adversary": "client",
    "neighbours": "replace-label",
    "delta": 1e-5,
    "epsilon": {"lower": 0.9, "estimate": 1.0, "upper": 1.1},
    "sound": True,
    "gap": None,
    "note": "",
    "mu": None,
}
CURVES = {"alpha": [0.0, 0.5, 1.0], "claimed": [1.0, 0.3, 0.0], "empirical": None, "confidence": 0.95}
WHOLE: dict[str, Any] = {
    **SCHEMA,
    "method": "dpzv",
    "success": INTERVAL,
    "baselines": {"majority": 0, "prior": 0.5, "with less": INTERVAL},
    "privacy": {"claimed": 1, "upper": None, "bounds": [BOUND]},
    "noise": {"from": "seed", "seed": 0, "words": "x"},
    "tradeoff": CURVES,
    "seed": 0,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)


def leaves(value):
    """Return every key and leaf of a JSON value in words, sorted."""
    if isinstance(value, dict):
        return sorted(
            [k for k, v in value.items() if not isinstance(v, dict | list)]
            + [x for v in value.values() for x in leaves(v)]
        )
    if isinstance(value, list):
        return sorted(x for v in value for x in leaves(v))
    return [repr(value)]


def test_a_result_reads_back_to_the_same_text():
    model, other = read(WHOLE)
    assert other == {}
    assert json.dumps(model.to_json()) == json.dumps(WHOLE)


@pytest.mark.skipif(
    Version(pydantic.VERSION) < Version("2.13"), reason="published as pydantic 2.13 and later describe the same models"
)
def test_the_published_schema_is_that_of_the_models():
    page = ROOT / "docs" / "reference" / "results.schema.json"
    made = json.dumps(schema_of_results(), indent=1) + "\n"
    command = "python -m dpzv_audit.results > docs/reference/results.schema.json"
    assert page.read_text(encoding="utf-8") == made, f"run: {command}"
    validator = Draft202012Validator(schema_of_results())
    assert validator.is_valid(WHOLE)
    for wrong in ({**WHOLE, "x": 1}, {**WHOLE, "seed": "0"}, {**WHOLE, "schema": "dpzv-audit/attack/2"}, {}):
        assert not validator.is_valid(wrong)


def test_unknown_and_misplaced_values_are_left_over():
    result = {
        **SCHEMA,
        "timings": None,
        "success": {**INTERVAL, "value": "0.5"},
        "baselines": {"majority": True, "prior": 0.1},
        "privacy": {"verdict": "passed", "upper": 1.0, "bounds": [BOUND, {**BOUND, "extra": [1, 2]}]},
        "tradeoff": {**CURVES, "claimed": [0.5], "empirical": [0.0, 1.0, 2.0]},
        "utility": 7,
    }
    before = copy.deepcopy(result)
    model, other = read(result)
    assert result == before
    assert other == {
        "timings": None,
        "success": before["success"],
        "baselines": {"majority": True},
        "privacy": {"verdict": "passed", "bounds": {"1": {"extra": [1, 2]}}},
        "tradeoff": {"claimed": [0.5], "empirical": [0.0, 1.0, 2.0]},
        "utility": 7,
    }
    assert model.success is None
    assert model.baselines == {"prior": 0.1}
    assert len(model.privacy.bounds) == 2
    assert model.tradeoff.alpha == CURVES["alpha"]


@pytest.mark.parametrize("odd", [10**400, -(10**400), 1e308, float("inf"), float("nan")])
def test_a_number_that_no_figure_could_show_is_left_over(odd):
    bound = {"runs": 50, "estimator": "x", "epsilon_lower": 1.0}
    wealth = {"epsilon": 1.0, "goal": 1.3, "pairs": [1, 2], "log10_wealth": [0.0, 0.5]}
    result = {
        "schema": "dpzv-audit/audit/1",
        "privacy": {"claimed": odd, "upper": 1.0},
        "by_runs": [bound | {"epsilon_lower": odd}, bound],
        "wealth": wealth | {"log10_wealth": [0.0, 0.5, odd]},
    }
    model, other = read(result)
    assert isinstance(model, AuditResult)
    assert other["privacy"] == {"claimed": odd}
    assert model.privacy == Privacy(upper=1.0)
    assert model.by_runs == [BoundByRuns(**bound)]
    assert model.wealth == Wealth(**wealth)


@pytest.mark.parametrize("odd", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_left_over(odd):
    result = {"schema": "dpzv-audit/train/1", "utility": {"history": [{"epoch": 1, "test_accuracy": odd}]}}
    model, other = read(result)
    assert isinstance(model, TrainResult)
    assert model.utility.history == [Epoch(epoch=1)]
    assert other == {"utility": {"history": {"0": {"test_accuracy": odd}}}}


# Drawing JSON takes seconds on a machine that is busy: that is no failure.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(["success", "privacy", "tradeoff", "controls", "utility", "config", "curves", "x"]), JSON
    )
)
def test_nothing_is_lost(result):
    before = copy.deepcopy(result)
    model, other = read({**SCHEMA, **result})
    assert result == before
    found = leaves(model.to_json()) + leaves(other)
    assert all(leaf in found for leaf in leaves(result) if leaf != "None")
    assert read(model.to_json()) == (model, {})


@pytest.mark.parametrize("schema", [None, 7, "dpzv-audit/attack/99"])
def test_another_schema_is_refused(schema):
    with refused(r"key 'schema' is .*; use one of dpzv-audit/attack/1, "):
        read({"schema": schema})


def test_half_a_verification_is_refused():
    with refused(r"no result of verify: .*; run verify again"):
        read({"schema": "dpzv-audit/verify/1", "alpha": "x"})
