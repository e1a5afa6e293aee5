"""Cosines of gradient estimates by queries, and reconstructed records, as drawn."""

import pytest

from dpzv_audit.results import read
from reports.curves import GRADIENTS, gradient_figure
from reports.figures import records_figure
from reports.svg import ACCENT, label_of

from .conftest import texts_of


def row(estimator, queries, cosine, theory=None):
    return {
        "estimator": estimator,
        "queries": queries,
        "cosine": cosine,
        "low": cosine - 0.02,
        "high": cosine + 0.02,
        "theory": theory,
        "relative error": 0.9,
    }


ROWS = [
    row("ridge", 10, 0.1, 0.11),
    row("ridge", 1, 0.02, 0.03),
    row("correlation", 10, 0.05),
    row("ridge, without the noise", 1, 0.1, 0.1),
    row("ridge, without the noise", 10, 0.35, 0.36),
    row("ridge, directions unknown", 1, 0.0, 0.0),
]


def test_estimates_with_and_without_noise_stand_in_one_figure_by_queries():
    drawing = gradient_figure(ROWS)
    assert label_of(drawing) == (
        "Cosine of estimated with true gradients by number of queries: ridge 0.020 at 1, 0.100 at 10; "
        "ridge, without the noise 0.100 at 1, 0.350 at 10; ridge, directions unknown 0.000 at 1, 0.000 at 1"
    )
    words = texts_of(drawing)
    for name in ("ridge, with the noise", "ridge, without the noise", "expected by theory", "queries about one batch"):
        assert name in words
    assert ACCENT in drawing.split("</style>", 1)[1]
    assert drawing == gradient_figure(ROWS)


def test_without_noise_to_leave_out_there_is_one_line_and_no_theory_where_there_is_none():
    words = texts_of(gradient_figure([row("ridge", 1, 0.1), row("ridge", 3, 0.2)]))
    assert "ridge" in words
    assert "expected by theory" not in words


@pytest.mark.parametrize("rows", [[], [row("correlation", 1, 0.1)], [{"estimator": "ridge", "queries": 1}]])
def test_without_a_curve_of_ridge_there_is_no_figure(rows):
    assert gradient_figure(rows) == ""


def pictures(reconstructed=(0.1, 0.1, 0.9, 0.5), **changes):
    section = {
        "shape": [2, 2],
        "rows": [
            {"what": "original", "records": [[0.0, 0.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]]},
            {"what": "reconstructed", "records": [list(reconstructed), [1.0, 0.9, 1.0, 1.0]]},
        ],
        **changes,
    }
    return read({"schema": "dpzv-audit/attack/1", "reconstructions": section})[0].reconstructions


def test_records_stand_row_by_row_without_a_bitmap():
    drawing = records_figure(pictures())
    assert label_of(drawing) == "2 records, row by row: original; reconstructed"
    assert texts_of(drawing) == ["original", "reconstructed"]
    assert "<image" not in drawing  # a report loads nothing, data addresses included
    assert "data:" not in drawing
    assert "fill: #ffffff" in drawing
    assert "fill: #848484" in drawing  # 0.5 in the nearest of 32 shades
    assert drawing == records_figure(pictures())


def test_a_darker_record_is_another_drawing():
    assert records_figure(pictures((0.1, 0.1, 0.2, 0.5))) != records_figure(pictures())


@pytest.mark.parametrize(
    "changes",
    [{"shape": [2]}, {"shape": [3, 2]}, {"rows": []}, {"rows": [{"what": "x", "records": [[2.0, 0.0, 0.0, 0.0]]}]}],
)
def test_what_is_no_picture_is_not_drawn(changes):
    assert records_figure(pictures(**changes)) == ""


def test_a_result_without_them_has_neither():
    result, _ = read({"schema": "dpzv-audit/attack/1"})
    assert gradient_figure(result.curves.get(GRADIENTS, [])) == ""
    assert records_figure(result.reconstructions) == ""
