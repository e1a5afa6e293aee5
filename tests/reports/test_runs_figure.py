"""The certified epsilon by number of runs."""

from dpzv_audit.results import BoundByRuns
from reports.curves import runs_figure


def rows(name, values, assumes=""):
    return [
        BoundByRuns(runs=runs, estimator=name, epsilon_lower=value, assumes=assumes)
        for runs, value in zip((50, 200, 800), values, strict=True)
    ]


def test_every_estimator_has_its_line_and_the_claim_its_level():
    both = rows("clopper-pearson", (0.0, 0.4, 0.9)) + rows("gaussian", (0.2, 1.0, 2.0), "a Gaussian view")
    drawn = runs_figure(both, 1.5)
    for words in (
        "clopper-pearson",
        "gaussian (assumes)",
        "claimed 1.5",
        "certified",
        "runs with the canary, and as many without",
    ):
        assert words in drawn
    assert "clopper-pearson 0.9 from 800" in drawn
    assert "mathdefault" not in drawn


def test_less_than_two_numbers_of_runs_draw_nothing():
    assert runs_figure([], None) == ""
    assert runs_figure(rows("clopper-pearson", (0.0, 0.4, 0.9))[:1], 1.5) == ""
    assert runs_figure([BoundByRuns(runs=800, estimator="x", epsilon_lower=1.0)] * 2, 1.5) == ""
