"""The verdict of an audit on a claimed epsilon, and that of a claims file: one rule for what supports a claim."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.evidence.verdict import decide, verdict_on


@pytest.mark.parametrize(
    ("lower", "upper", "theory", "verdict"),
    [
        (1.1, 0.5, True, "refuted"),
        (1.0, 1.0, True, "supported"),
        (None, 1.0 + 1e-15, True, "supported"),
        (None, 1.0 + 1e-8, True, "overclaimed"),
        (0.5, None, True, "overclaimed"),
        (0.5, None, False, "inconclusive"),
        (1.1, None, False, "refuted"),
    ],
)
def test_the_verdicts_on_a_claim_of_one(lower, upper, theory, verdict):
    assert verdict_on(1.0, lower, upper, theory=theory) == verdict


@settings(derandomize=True, deadline=None, max_examples=100)
@given(claimed=st.floats(1e-3, 100.0), digits=st.floats(4.0, 16.0), sign=st.sampled_from([-1, 1]), theory=st.booleans())
def test_an_audit_and_a_claims_file_agree_to_the_last_digit(claimed, digits, sign, theory):
    upper = claimed * (1.0 + sign * 10.0**-digits)
    for bound in (upper, None):
        filed = decide(refuted=False, theory=theory, upper=bound, claimed=claimed)
        assert verdict_on(claimed, None, bound, theory=theory) == filed
