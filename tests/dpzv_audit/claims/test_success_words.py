"""The word for a claim about an attack's success, and what it says, from the success of trainings alone."""

from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.claims.file import ClaimsFile, one_claim
from dpzv_audit.claims.gate import ClaimRun
from dpzv_audit.claims.result import decided, verify_result
from dpzv_audit.evidence.gathering import Pool, Stage, Subject, Success
from dpzv_audit.results import GateOptions

from ...helpers.gates import gate_of

ALPHA = 1e-3


def judged(limit, rates, others=None, **options):
    """Return the result of a claim whose attack has success `rates[number]` in each training, and others likewise."""
    claim = one_claim(
        {"name": "c", "kind": "attack", "method": "vafl", "attack": "label_direct", "success_at_most": limit}
    )
    file = ClaimsFile(Path("claims.toml"), ALPHA, (claim,))
    gate = gate_of(file, **options)

    def pool(of, words):
        def draw(number):
            rate = float(of[number % len(of)])
            return Success(rates=(rate,), baselines={"guess": 0.1}, controls={}, mounted=words)

        return Pool(draw=draw, trials=1)

    pools = {"trainings": pool(rates, "label_direct by client 1")}
    pools |= {
        f"label_direct by client {m}": pool(of, f"label_direct by client {m}") for m, of in (others or {}).items()
    }
    subject = Subject(stages=tuple(Stage(name=name, pool=name, blocks=10**6) for name in pools), pools=pools)
    run = ClaimRun(claim, "", seed=0)
    run.gathering = gate.gathering(subject, run)
    gate.gather([run])
    (entry,) = verify_result(file, [run], decided([run], ALPHA), GateOptions(allow=[], strict=False), seed=0).claims
    return entry


def test_056_over_16_trainings_against_09_is_held():
    entry = judged(0.9, 0.56 + 0.01 * np.random.default_rng(0).normal(size=64))
    assert (entry.verdict, entry.judged.reason, entry.fails, entry.trials) == ("held", "limit-below-claim", False, 16)
    assert entry.judged.measured.limit == pytest.approx(0.721, abs=1e-3)
    assert "at most 72.2%" in entry.sentence
    assert "at 99.9% confidence" in entry.sentence


@pytest.mark.parametrize(("limit", "most"), [(0.9, 73), (0.95, 149)])
def test_an_attack_that_always_succeeds_refutes_the_claim(limit, most):
    entry = judged(limit, [1.0])
    assert (entry.verdict, entry.fails) == ("refuted", True)
    assert entry.p_value <= ALPHA
    assert entry.trials <= most


@pytest.mark.parametrize(("limit", "options", "needed"), [(0.99, {}, 757), (0.9, {"max_trials": 64}, 73)])
def test_what_the_budget_cannot_refute_is_not_tested(limit, options, needed):
    """The measured 100% stands beside a limit of 90% that 64 trainings cannot refute: (1 / 0.9)^64 is 847."""
    entry = judged(limit, [1.0], **options)
    assert (entry.verdict, entry.judged.reason, entry.fails) == ("not-tested", "never-refutable", True)
    assert f"Testing this claim takes {needed} trainings" in entry.sentence
    assert (entry.reach.refutable, entry.reach.needed) == (False, needed)


def test_a_claim_that_no_training_could_refute_may_still_be_held():
    assert judged(0.99, [0.2]).verdict == "held"


def test_above_the_limit_but_not_refuted_is_inconclusive():
    """It ends where the trainings that are left could not refute the claim any more."""
    entry = judged(0.9, [0.92], max_trials=100)
    assert (entry.verdict, entry.fails) == ("inconclusive", False)
    assert 16 < entry.trials < 100


def test_a_client_that_the_pilot_did_not_choose_keeps_a_claim_from_being_held():
    entry = judged(0.9, [0.5], {1: [0.5], 2: [0.95]})
    assert entry.verdict == "inconclusive"
    assert "label_direct by client 2 has a mean success of 95.0%" in entry.sentence
    assert judged(0.9, [0.5], {1: [0.5], 2: [0.6]}).verdict == "held"
    cut = judged(0.9, [0.5], {m: [0.5] for m in range(1, 30)}, max_trials=30)
    assert cut.verdict in ("inconclusive", "not-tested")
    assert any("the claim is about each of them" in text for text in cut.judged.not_tested)
