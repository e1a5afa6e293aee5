"""Prints numbers, in text, tables and reports alike: rounding never makes a statement about them false.

A lower bound is rounded down, and so is the ceiling of evidence: no lower bound is printed above it. An
upper bound and a p-value are rounded up, the ends of an interval outwards. A bound that stands beside a claim keeps
the digits that show on which side of the claim it lies. JSON holds every number in full.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

_WIDE = Context(prec=400)
"""Holds the digits of every double: what a file says is a share may be any number."""
SIGNIFICANT_DIGITS = 3
ACCOUNTANT_DIGITS = 4
"""Those of tables and lines of `account` and `calibrate`."""
_MOST_DIGITS = 17
"""Tell every double from its neighbours."""
_LEAST_P = 1e-4
"""Smaller p-values are printed as below it."""
_ACCURATE_DIGITS = 9
"""Upper bounds and ends of intervals are right to so many digits: what lies beyond them does not round them up."""


def rounded(value: float, rounding: str = ROUND_HALF_EVEN, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Return a finite `value` at significant `digits` under a rounding of `decimal`, no trailing zeros."""
    exact = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    if exact == 0:
        return "0"
    if -4 <= exact.adjusted() < 0 or 0 <= exact.adjusted() < 15:
        text = f"{exact:,f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{exact.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def down(value: float, digits: int = SIGNIFICANT_DIGITS, *, beside: float | None = None) -> str:
    """Return a lower bound, or what evidence could certify at most, rounded down.

    It keeps as many digits as show on which side of `beside` it lies, the claim that is printed with it.
    """
    return _on_its_side(value, beside, digits, lambda kept: rounded(value, ROUND_FLOOR, kept))


def up(value: float, digits: int = SIGNIFICANT_DIGITS, *, beside: float | None = None) -> str:
    """Return an upper bound rounded up, with the digits that show on which side of the claim `beside` it lies."""
    accurate = _accurate(value)
    return _on_its_side(accurate, beside, digits, lambda kept: rounded(accurate, ROUND_CEILING, kept))


def p_value(value: float) -> str:
    """Return a p-value at two significant digits, rounded up; below 1e-4 only that it is."""
    return exact_p_value(value) if value >= _LEAST_P else "< 0.0001"


def p_equals(value: float) -> str:
    """Return a p-value with its name, as "p = 0.03" or "p < 0.0001"."""
    shown = p_value(value)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def exact_p_value(value: float) -> str:
    """Return a p-value, or a level, however small at two significant digits, rounded up: for comparing them."""
    return rounded(_accurate(value), ROUND_CEILING, digits=2)


def as_claimed(value: float) -> str:
    """Return a claimed epsilon, or another number that a user gave, at up to six digits."""
    return f"{value:g}"


def percent_down(share: float, *, beside: float | None = None) -> str:
    """Return a share in percent at one decimal, rounded down; at more where those put it on its side of `beside`."""
    return _percent(share, ROUND_FLOOR, beside)


def percent_up(share: float, *, beside: float | None = None) -> str:
    """Return a share in percent at one decimal, rounded up; at more where those put it on its side of `beside`."""
    return _percent(share, ROUND_CEILING, beside)


def interval(low: float, high: float, digits: int = 3, *, percent: bool = False) -> str:
    """Return the ends of an interval of shares as "0.512 to 0.613", or "51.2% to 61.3%", rounded outwards."""
    scale, digits, unit = (100.0, digits - 2, "%") if percent else (1.0, digits, "")
    ends = ((low, ROUND_FLOOR), (high, ROUND_CEILING))
    return " to ".join(f"{_fixed(scale * end, digits, rounding)}{unit}" for end, rounding in ends)


def _percent(share: float, rounding: str, beside: float | None) -> str:
    value = _accurate(100.0 * share)
    limit = None if beside is None else _accurate(100.0 * beside)
    return _on_its_side(value, limit, 1, lambda decimals: f"{_fixed(value, decimals, rounding):g}") + "%"


def _on_its_side(value: float, claimed: float | None, digits: int, as_text: Callable[[int], str]) -> str:
    """Return `value` at the fewest digits, from `digits` on, at which text and value lie on one side of the claim.

    Where the claim as it is printed lies on the other side of the value, the text is compared with the exact claim.
    """
    if claimed is None or not math.isfinite(value):
        return as_text(digits)
    printed = float(as_claimed(claimed))
    limit = printed if (value > printed) == (value > claimed) else claimed
    texts = map(as_text, range(digits, _MOST_DIGITS + 1))
    sides = ((text, float(text.replace(",", "")) > limit) for text in texts)
    return next((text for text, above in sides if above == (value > limit)), as_text(digits))


def _accurate(value: float) -> float:
    return float(f"{value:.{_ACCURATE_DIGITS}g}")


def _fixed(value: float, digits: int, rounding: str) -> Decimal:
    exact = Decimal(repr(_accurate(value)))
    return exact.quantize(Decimal(1).scaleb(-digits), rounding, _WIDE) if exact.is_finite() else exact


def duration(seconds: float) -> str:
    """Return a time that was estimated in words, as "about 40 s", "about 3 min" or "about 2 h"."""
    if seconds < 100.0:
        return f"about {max(1.0, seconds):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000.0 else f"about {seconds / 3600:.0f} h"
