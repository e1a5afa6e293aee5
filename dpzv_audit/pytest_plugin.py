"""The pytest plugin: fixtures that put a claim to the test and fail with the reason in words.

`privacy_audit` takes any claim, `privacy_system` one on a training of one's own. All tests of a session that use them
share one alpha (ini option `dpzv_audit_alpha`) evenly. A session whose claims are all true fails with at most that
probability, however many tests and workers of pytest-xdist there are. What it needs is
loaded when a test first asks for a verdict: pytest starts as fast as without it, and a project with a package of its
own called `reports` or `attacks` can still run its other tests.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from . import check_not_shadowed

if TYPE_CHECKING:
    from .claims.api import ClaimVerdict

FIXTURE = "privacy_audit"
_TESTS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option."""
    parser.addini(
        "dpzv_audit_alpha",
        "largest chance that any true claim is refuted in the whole test session (dpzv-audit), by default 1e-3",
        default="1e-3",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Count the tests that share alpha; every worker of pytest-xdist collects, and counts, the same."""
    config.stash[_TESTS] = sum(FIXTURE in getattr(item, "fixturenames", ()) for item in items)


class PrivacyAudit:
    """Puts claims to the test; one for each test, which spends its share of alpha claim by claim."""

    def __init__(self, alpha: float, tests: int, name: str) -> None:
        self._alpha = alpha / max(1, tests)
        self._name = name
        self._calls = 0

    def verdict(self, system: Callable[..., Any] | str | None = None, **claim: Any) -> "ClaimVerdict":
        """Return the verdict on a claim, stated as for `dpzv_audit.verify_claim`, and fail nothing."""
        check_not_shadowed()
        from .claims.api import verify_claim
        from .claims.ledger import level_of

        self._calls += 1
        claim.setdefault("name", self._name)
        # The test's share of alpha is spent claim by claim as a ledger spends its alpha look by look.
        claim.setdefault("alpha", level_of(self._calls, self._alpha))
        return verify_claim(system=system, **claim)

    def __call__(
        self,
        system: Callable[..., Any] | str | None = None,
        *,
        allow: Collection[str] = (),
        strict: bool = False,
        **claim: Any,
    ) -> "ClaimVerdict":
        """Return the verdict on a claim; fail the test where it is refuted, overclaimed or not tested.

        `allow` names those of these verdicts that may pass: "overclaimed", "not-tested". With `strict` it fails too
        where it is inconclusive, was cut off by `max_trials`, or was not audited.
        """
        __tracebackhide__ = True
        verdict = self.verdict(system, **claim)
        if verdict.fails(allow=allow, strict=strict):
            pytest.fail(str(verdict), pytrace=False)
        return verdict


@pytest.fixture
def privacy_audit(request: pytest.FixtureRequest) -> PrivacyAudit:
    """Put a privacy claim to the test: `privacy_audit(mechanism=run, epsilon=1.0)`; see `dpzv_audit.verify_claim`."""
    text = str(request.config.getini("dpzv_audit_alpha"))
    try:
        alpha = float(text)
    except ValueError:
        alpha = 0.0
    if not 0.0 < alpha < 0.5:
        raise pytest.UsageError(f"dpzv_audit_alpha is {text!r}; use a number between 0 and 0.5")
    return PrivacyAudit(alpha, request.config.stash.get(_TESTS, 1), request.node.name)


@pytest.fixture
def privacy_system(privacy_audit: PrivacyAudit) -> PrivacyAudit:
    """Put a claim on a training to the test: `privacy_system(train, attack="label_direction", success_at_most=0.6)`."""
    return privacy_audit
