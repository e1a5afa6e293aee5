"""Prints numbers, in text, tables and reports alike: rounding never makes a statement about them false.

A lower bound is rounded down, and so is the ceiling of evidence: no lower bound is printed above it. An
upper bound and a p-value are rounded up, the ends of an interval outwards. JSON holds every number in full.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

_WIDE = Context(prec=400)
"""Holds the digits of every double: what a file says is a share may be any number."""
SIGNIFICANT_DIGITS = 4
_ACCURATE_DIGITS = 9
"""Upper bounds and ends of intervals are right to so many digits: what lies beyond them does not round them up."""


def rounded(value: float, rounding: str = ROUND_HALF_EVEN, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Return a finite `value` at significant `digits` under a rounding of `decimal`, no trailing zeros."""
    exact = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    if exact == 0:
        return "0"
    if -4 < exact.adjusted() < 0 or 0 <= exact.adjusted() < 15:
        text = f"{exact:,f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{exact.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def down(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Return a lower bound, or what evidence could certify at most, rounded down."""
    return rounded(value, ROUND_FLOOR, digits)


def up(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Return an upper bound rounded up."""
    return rounded(_accurate(value), ROUND_CEILING, digits)


def p_value(value: float) -> str:
    """Return a p-value at two significant digits, rounded up."""
    return rounded(_accurate(value), ROUND_CEILING, digits=2)


def as_claimed(value: float) -> str:
    """Return a claimed epsilon, or another number that a user gave, at up to six digits."""
    return f"{value:g}"


def percent_down(share: float) -> str:
    """Return a share in percent at one decimal, rounded down."""
    return f"{_fixed(100.0 * _accurate(share), 1, ROUND_FLOOR):g}%"


def percent_up(share: float) -> str:
    """Return a share in percent at one decimal, rounded up."""
    return f"{_fixed(100.0 * _accurate(share), 1, ROUND_CEILING):g}%"


def interval(low: float, high: float, digits: int = 3, *, percent: bool = False) -> str:
    """Return the ends of an interval of shares as "0.512 to 0.613", or "51.2% to 61.3%", rounded outwards."""
    scale, digits, unit = (100.0, digits - 2, "%") if percent else (1.0, digits, "")
    ends = ((low, ROUND_FLOOR), (high, ROUND_CEILING))
    return " to ".join(f"{_fixed(scale * end, digits, rounding)}{unit}" for end, rounding in ends)


def _accurate(value: float) -> float:
    return float(f"{value:.{_ACCURATE_DIGITS}g}")


def _fixed(value: float, digits: int, rounding: str) -> Decimal:
    exact = Decimal(repr(_accurate(value)))
    return exact.quantize(Decimal(1).scaleb(-digits), rounding, _WIDE) if exact.is_finite() else exact
