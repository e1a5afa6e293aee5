"""Success against epsilon, as a matrix draws it."""

import pytest

from dpzv_audit.results import Cell, MatrixResult
from reports.content import report_content
from reports.curves import epsilon_figures, method_of
from reports.svg import label_of

from .conftest import texts_of


def cell(method, epsilon, success, **more):
    return Cell(
        **{
            "attack": "label_direct",
            "adversary": "client",
            "method": method,
            "noise": None,
            "epsilon": epsilon,
            "state": "measured",
            "metric": "labels found",
            "success": success,
            "low": max(0.0, success - 0.05),
            "high": min(1.0, success + 0.05),
            "reference": 0.107,
            "damage": success,
            "controls_hold": True,
            "accuracy": 0.5,
            "run": "cells/x/report.html",
            **more,
        }
    )


CELLS = [
    cell("dpzv", 10.0, 0.4),
    cell("dpzv", 1.0, 0.1),
    cell("vafl", None, 1.0),
    cell("split", None, 1.0),
    cell("vafl", 1.0, 0.2, noise="gradient"),
    cell("vafl", 10.0, 0.9, noise="gradient"),
    cell("dpzv", 1.0, 0.1, attack="label_probe", adversary="malicious-client"),
    Cell(attack="label_direct", adversary="client", method="zoo-vfl", state="does not apply", reason="x"),
]


def test_an_attack_measured_at_two_epsilons_has_a_figure_with_a_line_a_method():
    figures = epsilon_figures(CELLS)
    assert list(figures) == ["label_direct-client"]  # one epsilon of label_probe is no curve
    drawing = figures["label_direct-client"]
    assert label_of(drawing) == (
        "labels found against epsilon, label_direct by the client: dpzv 0.100 at 1, 0.400 at 10; "
        "vafl + gradient noise 0.200 at 1, 0.900 at 10; vafl without noise 1.000; split without noise 1.000; "
        "baseline 0.107"
    )
    words = texts_of(drawing)
    for expected in ("dpzv", "vafl + gradient noise", "no noise: vafl, split", "baseline", "labels found"):
        assert expected in words
    assert drawing == epsilon_figures(CELLS)["label_direct-client"]


def test_methods_that_no_eye_tells_apart_are_one_line():
    both = [
        cell(m, e, s + more, noise="gradient")
        for m, more in (("split", 0.0), ("compressed", 0.001))
        for e, s in ((1.0, 0.2), (9.0, 0.8))
    ]
    words = texts_of(epsilon_figures([*CELLS, *both])["label_direct-client"])
    assert "split, compressed + gradient noise" in words
    assert "vafl + gradient noise" in words
    assert not any(word.startswith("compressed") for word in words)


def test_the_report_on_a_matrix_holds_it():
    content = report_content(MatrixResult(dataset="digits", cells=CELLS))
    assert [picture.name for picture in content.pictures] == ["figure-matrix", "figure-label_direct-client"]
    assert content.pictures[1].caption.startswith("label_direct by the client. Success by the epsilon")


@pytest.mark.parametrize("cells", [[], CELLS[:1], [cell("dpzv", e, 0.5, low=None) for e in (1.0, 2.0)]])
def test_without_two_epsilons_there_is_none(cells):
    assert epsilon_figures(cells) == {}


def test_a_method_is_named_with_its_noise():
    assert method_of(CELLS[4]) == "vafl + gradient noise"
    assert method_of(CELLS[0]) == "dpzv"
