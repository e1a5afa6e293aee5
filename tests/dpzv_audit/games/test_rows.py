"""The game of a record on noised rows: its scores are exact given the sums, and it refutes no sound upload."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from dpzv_audit.evidence.auditing import rows_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.games.rows import RowTrials
from mechanisms import METHODS, Training

from ...helpers.refusals import refused
from ...mechanisms.conftest import random_dataset

SPEC = METHODS["feature-private"]
CONFIG = SPEC.configure(embedding=2, dtype="float64")
LEVEL = 1e-4
"""False-alarm rate of every statistical test here; seeds are fixed."""


def trials(config=CONFIG, clients=2):
    return RowTrials(SPEC, config, random_dataset(clients=clients, width=3, classes=2))


def both(arrays, name):
    return np.concatenate([arrays[f"{side}_{name}"] for side in ("out", "in")])


def test_no_run_tells_more_than_the_rows_may():
    arrays = trials()(0, 50)
    most = 2 * (2 * CONFIG.clip / CONFIG.row_sigma(2)) ** 2
    information = both(arrays, "information")
    assert (information <= most * (1 + 1e-9)).all()
    assert information.mean() > most / 8


def test_scores_are_the_log_likelihood_ratio():
    """Given its information d^2 a score is N(+-d^2 / 2, d^2): so is the sum of 150, with the sum of what they hold."""
    arrays = trials()(0, 150)
    for side, sign in (("in", 1.0), ("out", -1.0)):
        information = arrays[f"{side}_information"]
        z = (arrays[f"{side}_scores"] - sign * information / 2).sum() / math.sqrt(information.sum())
        assert abs(z) < norm.isf(LEVEL / 4)


def test_runs_are_the_same_in_any_chunk():
    whole = trials()(0, 6)
    parts = [trials()(0, 2), trials()(2, 6)]
    for name, values in whole.items():
        assert np.allclose(np.concatenate([part[name] for part in parts]), values, rtol=1e-9, atol=1e-12)


def test_the_audit_of_the_method_is_supported_and_less_noise_than_stated_is_refuted():
    """Each bound holds at 95%. With a twentieth of the noise two worlds that claim epsilon 1 are 5 deviations apart."""
    training = Training(method=SPEC, config=CONFIG, dataset=random_dataset(clients=2, width=3, classes=2), seed=0)
    result = rows_outcome(training, "server", AuditPlan(runs=200)).result
    assert result.privacy.neighbours == "replace-record"
    assert result.privacy.verdict == "supported"
    assert "noised row by every client" in result.game["adversary"]
    claimed = CONFIG.model_copy(update={"epsilon": 1.0})
    weak = claimed.model_copy(update={"sigma": claimed.row_sigma(2) / 20})
    fooled = replace(training, config=weak)
    assert rows_outcome(fooled, "server", AuditPlan(runs=200)).result.privacy.verdict == "refuted"


def test_what_is_not_played_is_one_line():
    training = Training(method=SPEC, config=CONFIG, dataset=random_dataset(), seed=0)
    with refused("adversary is 'client'; use one of server"):
        rows_outcome(training, "client", AuditPlan(runs=2))
    with refused("others is 'saturated'; use zero: no other game is played on noised rows"):
        rows_outcome(training, "server", AuditPlan(runs=2, others="saturated"))
    silent = replace(training, config=SPEC.configure(calibration="none"))
    with refused("the noise is 0"):
        rows_outcome(silent, "server", AuditPlan(runs=2))


@pytest.mark.parametrize("clients", [1, 3])
def test_ends_lie_within_the_range_of_records(clients):
    for (out, inside), block in zip(
        trials(clients=clients).ends, trials(clients=clients).dataset.train.features, strict=True
    ):
        assert (np.minimum(out, inside) == np.minimum(block.min(0), 0.0)).all()
        assert (np.maximum(out, inside) == np.maximum(block.max(0), 1.0)).all()
