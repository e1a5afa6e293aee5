"""Systems without leak: what `attack --attack all` and the game of `audit` find there, and what they find of a leak.

An attack's interval, certified epsilons, controls and the game are each wrong with probability at most 0.001, the
interval half as often on the side that matters. So a correct build alarms in a run with probability at most `RATE`.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from attacks import ATTACKS
from attacks.core.setting import AttackSetting
from attacks.label import mount
from dpzv_audit.base.findings import FALSE_ALARM as CONTROLS
from dpzv_audit.statistics.comparison import compared
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System

BENCH = Path(__file__).resolve().parents[2] / "benchmarks"
RATE = 3.5e-3
FALSE_ALARM = 1e-4


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import alarms

    return alarms


def in_the_clear(task, record, seed):
    """Each record's label as the sign of its gradient."""
    everyone = np.arange(task.records)
    record.sent(0, 1, 0, "embeddings", task.features[0], everyone)
    record.sent(0, 0, 1, "gradient", np.stack((1.0 - 2.0 * task.labels, 2.0 * task.labels - 1.0), 1), everyone)


SMALL = ("trees that split at random", "a target that is a number", "masked uploads", "six classes with a long tail")


@pytest.mark.ci
@pytest.mark.parametrize(("names", "seeds"), [(SMALL, 2), pytest.param(None, 30, marks=pytest.mark.slow)])
def test_nothing_is_found_where_nothing_leaks(bench, names, seeds):
    """Binomial: a correct build fails with probability at most 1e-4."""
    rows = [bench.run_of(name, seed) for seed in range(seeds) for name in names or bench.SYSTEMS]
    alarmed = [(row["system"], row["seed"], row["alarms"]) for row in rows if any(row["alarms"].values())]
    assert len(alarmed) <= binom.isf(FALSE_ALARM, len(rows), RATE), alarmed


@pytest.mark.ci
def test_luck_that_all_trainings_share_is_nothing_found(bench, monkeypatch):
    """Answers that follow from features give each of 64 trainings the luck of one set of labels.

    At 0.001 on either side a correct build fails with probability at most 1e-4; limits by the records of each training
    alone raise false alarms (9 of 30).
    """
    quiet = bench.SYSTEMS["answers that follow features"]
    found = naive = 0
    alone = []

    def with_shared(measured, limits):
        alone.append(measured)
        return widened(measured, limits)

    widened = mount.with_shared
    monkeypatch.setattr(mount, "with_shared", with_shared)
    for seed in range(30):
        data = quiet.data(seed)
        method, config = prepared(System("following", quiet.train), data, seed)
        training = {"method": method, "config": config, "dataset": data, "seed": seed}
        setting = AttackSetting(**training, trials=64, confidence=1.0 - CONTROLS, with_positive=False, pilot=True)
        alone.clear()
        success = ATTACKS["label_norm"].mount(setting).success
        found += compared(success, 0.5).side is not None
        naive += compared(alone[0], 0.5).side is not None
        assert alone[0].value == success.value
    assert found <= binom.isf(FALSE_ALARM, 30, CONTROLS)
    assert naive > 5


@pytest.mark.ci
def test_labels_in_the_clear_raise_every_alarm_but_that_of_controls(bench, monkeypatch):
    monkeypatch.setitem(bench.SYSTEMS, "in the clear", bench.Quiet(in_the_clear))
    row = bench.run_of("in the clear", 0)
    assert row["alarms"] == {"success": True, "epsilon": True, "control": False, "game": True}
    assert "an alarm in 1 " in bench.report([row])
    assert "| in the clear |" in bench.report([row])


def test_runs_that_are_kept_are_not_run_again(bench, monkeypatch, tmp_path, capsys):
    cells = [{"attack": "label_norm, client", "success": False, "epsilon": False, "control": 0.03}]
    asked = []

    def run_of(name, seed):
        asked.append((name, seed))
        alarms = dict.fromkeys(bench.KINDS, False)
        return {
            "system": name,
            "seed": seed,
            "alarms": alarms,
            "cells": cells,
            "seconds": {"training": 0.01, "run": 1.0},
        }

    monkeypatch.setattr(bench, "run_of", run_of)
    command = ["alarms.py", "--keep", str(tmp_path / "runs"), "--systems", "missed rounds", "--seeds"]
    for seeds in ("2", "3"):
        monkeypatch.setattr("sys.argv", [*command, seeds])
        bench.main()
    assert asked == [("missed rounds", seed) for seed in range(3)]
    assert "| label_norm, client | 3 | 0 | 0 | 3 | 3 | 0 |" in capsys.readouterr().out
