"""Claims on systems whose stated release is false are not supported; the claim of the one that keeps it is."""

import pytest

from dpzv_audit import verify_claim

from ..systems.test_release_tests import BATCH, DATA, EPOCHS, FALSE, RELEASE, parity

CLAIMED = 4.0
TOLD = {**RELEASE, "rounds": 2 * EPOCHS * (len(DATA.train) // BATCH)}


def judged(fault, *, offset=0, **keys):
    """Return the entry of a claim on the parity of digits; `offset` gives the system other seeds."""

    def train(task, record, seed):
        parity(task, record, seed + offset, fault)

    claim = {"epsilon": CLAIMED, "release": TOLD, "max_trials": 2, **keys}
    return verify_claim(system=train, data=DATA, **claim).entry


@pytest.mark.slow
@pytest.mark.parametrize("fault", FALSE[1:])
def test_a_false_release_supports_no_claim(fault):
    check_false(fault)


@pytest.mark.ci
def test_a_third_of_the_noise_supports_no_claim():
    check_false(FALSE[0])


def check_false(fault):
    entry = judged(fault)
    assert entry.upper < CLAIMED, "theory believes what is stated"
    assert entry.judged.word in ("not-tested", "refuted")
    assert entry.judged.reason in ("release-contradicted", "measured-above-claim")


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed else pytest.mark.ci) for seed in range(20)]
)
def test_an_honest_release_supports_its_claim(seed):
    """20 rehearsals raise an alarm with a chance of 0.02 at most, and the seeds are fixed."""
    entry = judged("", offset=1000 * seed)
    assert (entry.judged.word, entry.judged.reason) == ("supported", "proven")
    assert entry.judged.proven.rests_on == "on what the system states"
    assert any("whether noise is secret" in words for words in entry.judged.not_tested)


@pytest.mark.ci
def test_noise_in_floating_point_has_a_gap_unless_a_grid_is_stated():
    entry = judged("", release={key: value for key, value in TOLD.items() if key != "noise"})
    assert entry.judged.word == "overclaimed"
    assert "floating-point" in entry.gap


@pytest.mark.slow
def test_noise_that_cancels_between_two_colluding_clients_is_refuted():
    """The sum of what two clients are sent has no noise, and tells 98.9% of labels."""
    assert judged("opposite", adversary="colluding-clients", max_trials=16).judged.word == "refuted"
