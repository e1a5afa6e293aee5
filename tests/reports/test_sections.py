"""What the report says of the epsilon that an attack certifies, and of a matrix's negative controls."""

from dpzv_audit.results import read
from reports.content import report_content
from reports.render import to_markdown

CERTIFIED = {
    "name": "one-run",
    "epsilon_lower": 4.56789,
    "delta": 1e-5,
    "confidence": 0.95,
    "claim_kind": "epsilon-delta",
    "assumes": "",
    "mu_lower": None,
    "threshold_rule": "guess 'in' above 1",
    "directions": 1,
    "looks": 1,
    "n_in": 100,
    "n_out": 90,
    "ceiling": 5.0,
    "neighbours": "replace-label",
    "game": "190 labels of 2 trainings, each one of two by a fair coin",
}
ATTACK = {
    "schema": "dpzv-audit/attack/1",
    "attack": "label_direct",
    "method": "vafl",
    "success": {"value": 0.9, "low": 0.8, "high": 1.0, "n": 100, "confidence": 0.95},
}


def text_of(result):
    return to_markdown(report_content(*read(result)))


def test_a_certified_epsilon_stands_with_its_relation_its_game_and_its_rule():
    text = text_of({**ATTACK, "certified": CERTIFIED})
    assert "at least 4.56 (delta 1e-5, 95% confidence, replace-label)" in text  # rounded down
    assert "Their detection limit is 5." in text
    assert "The game that certifies is 190 labels of 2 trainings" in text
    assert "Its rule is guess 'in' above 1." in text
    assert "Everything else" not in text


def test_where_nothing_is_certified_the_reason_stands():
    text = text_of({**ATTACK, "certified": None, "not_certified": "its guesses name no record"})
    assert "The attack's own scores certify no epsilon: its guesses name no record." in text
    assert "Everything else" not in text


def test_negative_controls_of_a_matrix_stand_as_one_test():
    cell = {"attack": "a", "adversary": "client", "method": "m", "state": "measured", "damage": 0.1, "success": 0.1}
    section = {
        "tests": 7,
        "smallest_p": 1e-5,
        "together_p": 7e-5,
        "false_alarm": 1e-3,
        "hold": False,
        "worst": "a on m",
    }
    matrix = {"schema": "dpzv-audit/matrix/1", "cells": [cell], "negative_controls": section}
    text = text_of(matrix)
    assert "7 negative controls were tested together at a false-alarm rate of 0.001" in text
    assert "no number here can be trusted" in text
    assert "All passed. The smallest has p &lt; 0.0001 (a on m)" in text_of(
        {**matrix, "negative_controls": {**section, "hold": True}}
    )


def test_intervals_of_a_curve_are_one_column():
    rows = [{"estimator": "ridge", "queries": 1, "cosine": 0.1, "low": 0.05, "high": 0.15, "theory": None}]
    text = text_of({**ATTACK, "curves": {"some curve": rows}})
    assert "| estimator | queries | cosine | interval | theory |" in text
    assert "| ridge | 1 | 0.1 | 0.05 to 0.15 | – |" in text
