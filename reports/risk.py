"""The risk for one record that follows from a bound on a trade-off curve: the success of an adversary's best test.

A trade-off curve f gives the least false negative rate at each false positive rate. From it follow
(Kulynych et al., 2025, appendix D): the advantage, max 1 - a - f(a); the true positive rate 1 - f(a) at a small rate a
of false positives; and the Bayes risk, min (1 - p) a + p f(a), the least chance of a wrong guess where the first world
has prior p. An upper bound on privacy loss bounds all three in one direction, an audit in the other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .document import Row
from .text import MISSING, lower_bound, percent, upper_bound

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dpzv_audit.base.findings import EmpiricalBound, UpperBound
    from dpzv_audit.results import Privacy, Tradeoff

RATES = (0.01, 0.001)
"""False positive rates at which true positive rates are told."""
RARE = 0.1
"""The prior of the second Bayes risk; that of the first is one half."""
CASES = {
    "replace-label": "between two labels",
    "replace-record": "between two records",
    "zero-out": "whether a record was blanked out",
    "add-remove": "whether a record is in the data",
}
"""What the test decides, by the relation of neighbours."""


@dataclass(frozen=True, kw_only=True)
class Risk:
    """The advantage, true positive rates at `RATES`, and Bayes risks at even odds and at the prior `RARE`."""

    advantage: float
    true_positives: tuple[float, ...]
    wrong: float
    wrong_if_rare: float
    given: str = ""
    """What it takes as given, in few words."""
    curve: Mapping[str, object] = field(default_factory=dict, compare=False)
    """The trade-off curve that it follows from: `mu`, `epsilon` and `delta`, or points `alpha` and `beta`."""

    @property
    def right(self) -> float:
        """The chance of a right guess at even odds."""
        return 1.0 - self.wrong


def risk_from_mu(mu: float) -> Risk:
    """Return the risk from the Gaussian trade-off curve, mu-GDP; `mu` >= 0."""
    import numpy as np

    from dpzv_audit.accounting import delta_from_mu, gaussian_tradeoff

    # The Bayes risk at prior p is p (1 - delta(epsilon)) with e^epsilon the odds (1 - p) / p.
    even, rare = delta_from_mu([0.0, np.log((1.0 - RARE) / RARE)], mu)
    return Risk(
        advantage=float(even),
        true_positives=tuple(float(1.0 - beta) for beta in gaussian_tradeoff(np.array(RATES), mu)),
        wrong=float(0.5 * (1.0 - even)),
        wrong_if_rare=float(RARE * (1.0 - rare)),
        curve={"mu": mu},
    )


def risk_from_epsilon(epsilon: float, delta: float) -> Risk:
    """Return the risk from the lowest trade-off curve that (`epsilon`, `delta`) allows; both at least 0."""
    import numpy as np

    from dpzv_audit.accounting import epsilon_delta_tradeoff

    # Past it e^-epsilon is 0 and the corner of the curve would be lost; nothing of the risk changes any more.
    epsilon = min(float(epsilon), 700.0)
    # The curve is straight between these rates.
    small = np.exp(-epsilon)
    corners = np.array([0.0, (1.0 - delta) * small / (1.0 + small), 1.0 - delta, 1.0])
    points = risk_from_points(corners, epsilon_delta_tradeoff(corners, epsilon, delta))
    return replace(points, curve={"epsilon": epsilon, "delta": delta})


def risk_from_points(alpha: "ArrayLike", beta: "ArrayLike") -> Risk:
    """Return the risk from tests with these false positive and false negative rates, and from mixtures of two.

    `alpha` rises from 0 to 1.
    """
    import numpy as np

    across, down = np.asarray(alpha, float), np.asarray(beta, float)
    return Risk(
        advantage=max(0.0, float((1.0 - across - down).max())),
        true_positives=tuple(max(rate, float(1.0 - np.interp(rate, across, down))) for rate in RATES),
        wrong=min(0.5, float(0.5 * (across + down).min())),
        wrong_if_rare=min(RARE, float(((1.0 - RARE) * across + RARE * down).min())),
        curve={"alpha": across.tolist(), "beta": down.tolist()},
    )


def at_most(bound: "UpperBound | None") -> Risk | None:
    """Return the most that a sound bound allows; None where there is none."""
    if bound is None or bound.epsilon is None or not bound.sound:
        return None
    if bound.mu is not None and 0.0 <= bound.mu < math.inf:
        return risk_from_mu(bound.mu)
    # A file may hold anything.
    if not (0.0 <= bound.epsilon.upper < math.inf and 0.0 <= bound.delta <= 1.0):
        return None
    return risk_from_epsilon(bound.epsilon.upper, bound.delta)


def at_least(privacy: "Privacy", tradeoff: "Tradeoff | None") -> tuple[Risk | None, str]:
    """Return what the audit shows the best test to do at least, and what that takes as given or rests on.

    That is the curve of the largest bound that may refute the claim, where this is one on a trade-off curve; else the
    upper end of the band about the measured curve, which takes nothing as given.
    """
    best: EmpiricalBound | None = next(
        (bound for bound in privacy.estimators if bound.epsilon_lower == privacy.empirical_lower), None
    )
    if best is not None and best.mu_lower is not None and best.mu_lower < math.inf and not best.assumes:
        basis = privacy.given or "from the Gaussian curve that the audit shows"
        # The largest of several bounds holds at the confidence of all together.
        all_together = min(best.confidence, privacy.confidence or 1.0)
        return risk_from_mu(max(0.0, best.mu_lower)), f"{basis}, at {percent(all_together)} confidence"
    if tradeoff is None or not tradeoff.empirical_high:
        return None, ""
    confidence = "" if tradeoff.confidence is None else f", at {percent(tradeoff.confidence)} confidence"
    return risk_from_points(tradeoff.alpha, tradeoff.empirical_high), f"from the band of the measured curve{confidence}"


def by_claim(privacy: "Privacy") -> Risk | None:
    """Return the most that the claim allows; None without one.

    Where the audit takes Gaussian noise as given, so does this: mu-GDP through the claimed (epsilon, delta).
    """
    epsilon, delta = privacy.claimed, privacy.delta
    # A file may hold anything.
    if epsilon is None or delta is None or not (0.0 <= epsilon < math.inf and 0.0 <= delta <= 1.0):
        return None
    if privacy.given and 0.0 < delta < 1.0:
        from dpzv_audit.accounting import mu_from_epsilon

        return replace(risk_from_mu(mu_from_epsilon(epsilon, delta)), given="if Gaussian")
    return risk_from_epsilon(epsilon, delta)


_BLIND = {
    "true-positive minus false-positive rate": 0.0,
    **{f"true positives at {percent(rate)} false positives": rate for rate in RATES},
    "right guess at even odds": 0.5,
    f"Bayes risk, prior {percent(RARE)}: wrong guess": RARE,
}
"""The risks that are told, and what a blind guess gives of each; the last is a chance to be wrong."""


def rows(low: Risk | None, high: Risk | None) -> "list[Row]":
    """Return the risks as rows: from the audit at least, in theory at most, and of a blind guess.

    A chance to be wrong has the most from the audit and the least in theory, which the sign says. Where the audit shows
    no more than a blind guess does, it shows nothing.
    """
    table: list[Row] = []
    for (name, blind), least, most in zip(_BLIND.items(), _values(low), _values(high), strict=True):
        shown, allowed = (_at_most, _at_least) if name.endswith("wrong guess") else (_at_least, _at_most)
        nothing = least is not None and shown(least).endswith(f" {upper_bound(blind)}")
        table.append(
            {
                "risk": name,
                "shown by the audit": MISSING if least is None else "not shown" if nothing else shown(least),
                "proven limit": "no bound" if most is None else allowed(most),
                "a blind guess": upper_bound(blind),
            }
        )
    return table


def _at_least(value: float) -> str:
    return f"≥ {lower_bound(_digits(value))}"


def _at_most(value: float) -> str:
    return f"≤ {upper_bound(_digits(value))}"


def _values(risk: Risk | None) -> list[float] | list[None]:
    """Return the numbers of the rows."""
    if risk is None:
        return [None] * len(_BLIND)
    return [risk.advantage, *risk.true_positives, risk.right, risk.wrong_if_rare]


def _digits(value: float) -> float:
    """Return a value at the nine digits to which the curves are right: 0.5 is not 0.5001 for a last digit."""
    return float(f"{value:.9g}")


def in_words(neighbours: str | None, low: Risk | None, high: Risk | None, claimed: Risk | None = None) -> str:
    """Return how often the best test is right, as a sentence without capital and full stop; "" where nothing is known.

    What is missing is said: the audit may show nothing, and theory may set no limit. What is `claimed` stands beside it
    where the audit shows more.
    """
    if low is None and high is None:
        return ""
    case = CASES.get(neighbours or "", "between two neighbouring data sets")
    least = None if low is None or _digits(low.right) <= 0.5 else math.floor(_digits(100.0 * low.right))
    most = None if high is None else math.ceil(_digits(100.0 * high.right))
    if least is None and most is None:
        return ""
    if least is None:
        often = f"at most {most} times in 100"
    elif most is None:
        often = f"at least {least} times in 100, and no theory sets a limit"
    elif least > most:
        often = f"at least {least} times in 100 by the audit, at most {most} by proof"
    else:
        often = f"{least} (measured) to {most} (proven) times in 100"
    limit = math.inf if claimed is None else math.ceil(_digits(100.0 * claimed.right))
    broken = least is not None and least > limit
    given = "" if claimed is None or not claimed.given else f", {claimed.given}"
    beside = f"claim{given}: {'' if given else 'at most '}{limit}; coin: 50" if broken else "a coin: 50"
    return f"the best guess {case} is right {often} ({beside})"
