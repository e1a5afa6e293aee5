"""Every planted mechanism gets the verdict that it must get, computed from its bounds."""

import pytest

from dpzv_audit.evidence.auditing import planted_result, planted_row
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.evidence.sentences import said
from dpzv_audit.games.planted import PLANTED, planted_named
from dpzv_audit.results import PlantedRow

from ...helpers.refusals import refused

CONFIDENCE = 1.0 - 1e-5
"""A true claim is refuted with this error at most: 5 rows have one, so a false alarm of the table is below 1e-4."""
SMALLER = {
    "actual-divisor": 10_000,
    "paper-secret-ids": 300,
    "server-state": 150,
    "dpzv-sound": 20,
    "joint-zo-state": 10,
    "theorem-5-1": 1000,
    "shuffled-as-poisson": 1000,
}
"""Runs in each world, where fewer than the mechanism's own suffice for a test."""
_TABLE = {
    "noise scaled for B times the sensitivity too little": "refuted",
    "sensitivity C/B instead of 2C/B for replaced labels": "refuted",
    "noise seed reused every round": "refuted",
    "noise seed shared with the client": "refuted",
    "clipping after averaging": "refuted",
    "one-sided clip with an unbounded loss": "refuted",
    "noise added once an epoch": "refuted",
    "Poisson sampling whose divisor is the actual batch size": "refuted",
    "a bound from one client's own rounds (two clients, canary only in the other's batches)": "refuted",
    "one record repeated in a batch by a malicious client, no cap": "refuted",
    "training losses released beside the scalars, unnoised": "refuted",
    "best-checkpoint choice released beside the scalars, unnoised": "refuted",
    "noise scaled by what it protects: x 0.8 with one label": "refuted",
    "uniform noise of the variance that Gaussian noise should have": "refuted",
    "signs of the noise correlated between rounds, as the label says": "refuted",
    "early stop on the private loss": "refuted",
    "zeroth order: noise drawn after seeding the generator with the direction's seed, which is logged": "refuted",
    "zeroth order: the same with seeds that nobody is told, of a space that can be searched": "refuted",
    "zeroth order: one noise shared by the directions of a step": "refuted",
    "zeroth order: shuffled passes of a published order accounted as Poisson": "refuted",
    "central training of zeroth order as designed": "supported",
    "private gradient descent: noise for a sensitivity of C instead of 2C for a replaced record": "refuted",
    "private gradient descent: in each step the noise that is due for one step, not for all": "refuted",
    "private gradient descent on data-free features as designed": "supported",
    "shuffled batches accounted as Poisson": "overclaimed",
    "paper calibration against client (theorem 5.1), full size": "refuted",
    "server trained on true labels, state canary": "refuted",
    "dpzv-sound with sound calibration": "supported",
    "paper calibration, secret ids, epsilon 1, replace": "overclaimed or supported",
}
"""What the specification asks for."""


def test_the_registry_holds_every_row_with_its_verdict():
    listed = {planted.summary: " or ".join(planted.expected) for planted in PLANTED.values()}
    assert _TABLE.items() <= listed.items()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if place % 2 else name for place, name in enumerate(PLANTED)]
)
def test_a_planted_mechanism_gets_its_verdict(name):
    row = planted_row(PLANTED[name], AuditPlan(confidence=CONFIDENCE, chunk=64), runs=SMALLER.get(name))
    assert row.verdict in PLANTED[name].expected, row
    assert row.as_expected


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mechanism_gets_its_verdict_at_its_own_size(name):
    """At 95%, with the runs that the command takes."""
    assert planted_row(PLANTED[name], AuditPlan()).as_expected


def test_the_wrong_divisor_shows_only_where_the_others_saturate():
    row = planted_row(PLANTED["actual-divisor"], AuditPlan(confidence=CONFIDENCE), runs=10_000)
    assert row.games["others at +C"].empirical_lower > row.claimed
    assert row.games["others at 0"].empirical_lower < row.claimed


def test_verdicts_are_computed():
    """The sound channel under another claim gets another verdict: nothing is written down beforehand."""
    from dataclasses import replace

    sound = PLANTED["sound"]
    plan = AuditPlan(confidence=CONFIDENCE)

    def claiming(epsilon):
        return replace(sound, build=lambda seed: replace(sound.build(seed), epsilon=epsilon))

    assert planted_row(claiming(0.2), plan).verdict == "refuted"
    assert planted_row(claiming(0.95), plan).verdict == "overclaimed"
    assert planted_row(sound, plan).verdict == "supported"


def test_numbers_follow_from_the_seed():
    chosen = [PLANTED["noise-over-b"], PLANTED["sound"]]
    first, again, other = (planted_result(chosen, AuditPlan(), runs=500, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.rows[1].games != other.rows[1].games


def test_the_sentence_names_what_went_wrong():
    rows = [PlantedRow.model_construct(name=name, as_expected=right) for name, right in (("a", True), ("b", False))]
    assert said("planted", rows) == "1 of 2 mechanisms got the expected verdict; these did not: b."


def test_an_unknown_name_is_one_line():
    with refused("did you mean 'noise-reused'"):
        planted_named("noise-resued")


def test_a_plan_tells_its_reporter_how_far_it_is():
    heard = []

    def reporter(name, total):
        return lambda done=None, /, note=None: heard.append((name, total, done))

    planted_row(PLANTED["sound"], AuditPlan(reporter=reporter), runs=100)
    assert heard == [("audit", 200, 200)]
