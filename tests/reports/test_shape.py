import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports.shape import split_result

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)


def leaves(value: Any) -> list[str]:
    """Return every key and leaf of a JSON value in words, sorted."""
    if isinstance(value, dict):
        return sorted(
            [k for k, v in value.items() if not isinstance(v, dict | list)]
            + [x for v in value.values() for x in leaves(v)]
        )
    if isinstance(value, list):
        return sorted(x for v in value for x in leaves(v))
    return [repr(value)]


def test_a_documented_result_leaves_nothing_over(results: dict[str, dict[str, Any]]) -> None:
    for name in ("attack", "train", "audit"):
        known, other = split_result(results[name])
        assert known == results[name]
        assert other == {}


def test_unknown_and_misplaced_values_are_left_over(results: dict[str, dict[str, Any]]) -> None:
    result = results["attack"]
    result["timings"] = None
    result["success"]["value"] = "high"
    result["privacy"]["verdict"] = "passed"
    result["privacy"]["bounds"][1]["extra"] = [1, 2]
    result["tradeoff"]["claimed"] = [0.5]
    result["utility"] = 7
    known, other = split_result(result)
    assert other == {
        "timings": None,
        "success": {"value": "high"},
        "privacy": {"verdict": "passed", "bounds": {"1": {"extra": [1, 2]}}},
        "tradeoff": {"claimed": [0.5]},
        "utility": 7,
    }
    assert "value" not in known["success"]
    assert "claimed" not in known["tradeoff"]


# Drawing JSON takes seconds on a machine that is busy: that is no failure.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["success", "privacy", "tradeoff", "controls", "config", "x"]), JSON))
def test_nothing_is_lost(result: dict[str, Any]) -> None:
    before = copy.deepcopy(result)
    known, other = split_result(result)
    assert result == before
    found = leaves(known) + leaves(other)
    assert all(leaf in found for leaf in leaves(result) if leaf != "None")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["success", "privacy", "tradeoff", "controls", "utility"]), JSON))
def test_splitting_what_is_known_changes_nothing(result: dict[str, Any]) -> None:
    known, _ = split_result(result)
    assert split_result(known) == (known, {})
