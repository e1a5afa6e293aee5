"""Audits of Opacus as their users make them, many times: true claims stand, false ones fall, and how near bounds come.

Slow forms are of the size that is promised; the others are the same with fewer audits.
"""

import json
import sys
import time

import numpy as np
import pytest
from scipy import stats
from torch import nn

from dpzv_audit.cli import main
from dpzv_audit.evidence.auditing import hunted_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.statistics.estimators import audit_scores

from ...helpers.places import ROOT
from .opacus_trainings import training

EXAMPLE = ROOT / "examples" / "opacus"
CANARIES = 400
HALVES = {"batch_size": 250, "noise_multiplier": 0.5}
QUARTERS = {"batch_size": 125, "noise_multiplier": 0.7, "epochs": 2}


def many(**given):
    """A training of 420 records, 400 of which are canaries whose gradient is taken away by a coin."""
    return training(model=lambda: nn.Linear(6, 80), neighbours="zero-out", **given)


def lower(inside, out, delta, error, estimator):
    """What scores of canaries certify; coins of their own decided which side they are on."""
    given = {"delta": delta, "confidence": 1 - error, "coin_flips": True}
    return audit_scores(inside, out, estimators=(estimator,), **given)[0].epsilon_lower


def together(found):
    """The scores of several trainings on either side."""
    return tuple(np.concatenate([getattr(one, side) for one in found]) for side in ("inside", "outside"))


@pytest.mark.parametrize(
    ("given", "audits"),
    [
        (QUARTERS, 8),
        pytest.param(QUARTERS, 500, marks=pytest.mark.slow),
        pytest.param(HALVES, 500, marks=pytest.mark.slow),
    ],
)
def test_true_claims_are_refuted_no_more_often_than_computed(given, audits):
    """Poisson batches that nobody knows, each training audited by itself at 0.05, with the claim of its own engine.

    With probability 1e-5 at most there are more refutations than the quantile, for each of two estimators. All scores
    together do not refute the claim at 1e-5; they refute that for twice the noise.
    """
    subject = many(**given)
    found = [subject.one_run(CANARIES, np.random.default_rng((7, audit))) for audit in range(audits)]
    most = stats.binom.ppf(1 - 1e-5, audits, 0.05)
    for estimator, delta in (("joint", 0.1), ("one-run", 1e-5)):
        bounds = [lower(one.inside, one.outside, delta, 0.05, estimator) for one in found]
        refuted = sum(bound > one.claimed(delta) for bound, one in zip(bounds, found, strict=True))
        print(f"{estimator}: {refuted} of {audits} refuted, more than {most:.0f} would be no chance")
        assert refuted <= most
    inside, out = together(found)
    claimed = found[0].claimed(0.1)
    noised = many(**{**given, "noise_multiplier": 2.0 * given["noise_multiplier"]})
    twice = noised.one_run(CANARIES, np.random.default_rng(0))
    bound = lower(inside, out, 0.1, 1e-5, "joint")
    print(f"{len(inside)} + {len(out)} scores: {bound:.3f}, claimed {claimed:.3f}")
    assert twice.claimed(0.1) < bound <= claimed


def test_a_claim_of_secret_batches_falls_where_they_are_known():
    """What holds there is the claim without sampling; the one with it is refuted at 1e-5."""
    given = {"batch_size": 8, "noise_multiplier": 1.5, "epochs": 4}
    known = many(known_ids=True, **given)
    found = [known.one_run(CANARIES, np.random.default_rng((8, run))) for run in range(2)]
    bound = lower(*together(found), 1e-5, 1e-5, "joint")
    assert many(**given).claim_of(found[0].engine, 1e-5) < bound <= found[0].claimed(1e-5)


EQUAL = """
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzv_audit.integrations.opacus import OpacusTraining


class Equal(OpacusTraining):
    def variants(self):
        found = {"38 records or 39": self, "38 or 39, along": replace(self, others="along")}
        for count in (3, 6):
            few = TensorDataset(*self.data[:count])
            found[f"{count} records"] = replace(self, data=few, batch_size=2, neighbours="zero-out")
        return found


def subject():
    data = TensorDataset(torch.zeros(38, 6), torch.zeros(38, dtype=torch.long))
    options = {"batch_size": 20, "noise_multiplier": 10.0, "max_grad_norm": 1.0, "score": "view"}
    return Equal(model=lambda: nn.Linear(6, 20), data=data, **options)
"""


@pytest.mark.parametrize(
    ("hunts", "runs", "alpha", "most"),
    [(1, 20, 1e-4, 0), pytest.param(200, 60, 1e-3, 3, marks=pytest.mark.slow)],
)
def test_equal_divisors_are_not_refuted_by_a_hunt(tmp_path, monkeypatch, hunts, runs, alpha, most):
    """Sizes at which one divisor serves both worlds. More refutations than `most` have probability 1e-4 at most."""
    assert stats.binom.sf(most, hunts, alpha) <= 1e-4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "equal_divisors.py").write_text(EQUAL)
    plan = AuditPlan(runs=runs, confidence=1 - alpha)
    given = {"epsilon": None, "delta": 1e-5, "trial_seconds": 30.0, "pilot": 6}
    try:
        rows = [hunted_outcome("equal_divisors:subject", plan, seed=seed, **given).result for seed in range(hunts)]
    finally:
        sys.modules.pop("equal_divisors", None)
    refuted = sum(row.privacy.verdict == "refuted" for row in rows)
    print(f"{refuted} of {hunts} hunts refuted")
    assert refuted <= most


@pytest.mark.slow
def test_a_hunt_finds_the_divisor_within_a_minute(tmp_path, monkeypatch, capsys):
    """Of the example, whose sizes show nothing; seconds of the processor."""
    monkeypatch.chdir(EXAMPLE)
    start = time.process_time()
    command = ["hunt", "audited:subject", "--runs", "500", "--fail-on", "refuted", "--json", "--out", str(tmp_path)]
    assert main(command) == 1
    assert time.process_time() - start < 60
    assert json.loads(capsys.readouterr().out)["privacy"]["verdict"] == "refuted"


@pytest.mark.parametrize(
    ("steps", "noise", "least"),
    [
        (1, 1.0, 0.8),
        pytest.param(1, 0.5, 0.8, marks=pytest.mark.slow),
        pytest.param(1, 2.0, 0.8, marks=pytest.mark.slow),
        *(pytest.param(100, noise, 0.9, marks=pytest.mark.slow) for noise in (0.5, 1.0, 2.0)),
    ],
)
def test_given_gaussian_noise_most_of_the_truth_is_certified(monkeypatch, steps, noise, least):
    """10,000 scores a side, at 95%, of mus from 1/2 to 20.

    Of drawn Gaussian scores the means certify 0.94 +- 0.03 of the truth at mu = 1/2, which is below 0.8 with
    probability 7e-6, and 0.98 +- 0.01 from mu = 5 on.
    """
    monkeypatch.syspath_prepend(EXAMPLE)
    import power

    truth, found = power.certified(noise, steps)
    assert found["gaussian"] > least * truth
