"""Turns values of a result into words: number formats that never overstate, and text made safe to show."""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dpzv_audit.base import rounding
from dpzv_audit.base.rounding import rounded

MISSING = "–"

# Controls, lone surrogates, and the marks that reorder or hide text: shown as escapes, never obeyed.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]"
    "|[\ud800-\udfff]"
)
_MARKDOWN_SPECIAL = re.compile(r"([\\`*\[\]|$~!])|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_MARKDOWN_START = re.compile(r"^([#+=-]|\d+(?=[.)](?: |$)))")


def clean(value: object) -> str:
    """Return `value` as text in which control, surrogate and reordering characters show as `\\uXXXX`."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", str(value))


def number(value: object, as_text: Callable[[float], str] = rounded) -> str:
    """Return `value` at three significant digits, or a float by `as_text`, whole numbers in full; None is a dash."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if abs(value) < 10**15:
            return f"{value:,}"
        return f"{value:.3e}" if abs(value) < 10**300 else "very large"
    if not isinstance(value, float):
        return clean(value)
    if math.isfinite(value):
        return as_text(value)
    if math.isnan(value):
        return "not a number"
    return "∞" if value > 0 else "−∞"


def within(value: object, low: float, high: float) -> float | None:
    """Return `value` as a float if it is a number in [low, high], else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


def lower_bound(value: object, claimed: float | None = None) -> str:
    """Like `number`, but rounded down: what stands there is still a lower bound, or the most that could be one."""
    return number(value, partial(rounding.down, beside=claimed))


def upper_bound(value: object, claimed: float | None = None) -> str:
    """Like `number`, but rounded up: what stands there is still an upper bound."""
    return number(value, partial(rounding.up, beside=claimed))


def as_claimed(value: object) -> str:
    """Return a claimed epsilon, or another number that a user gave, at up to six digits."""
    return number(value, rounding.as_claimed)


def proportion(value: object, digits: int = 3) -> str:
    """Return a proportion with a fixed number of decimals, so that columns line up."""
    as_float = within(value, -1.0, 1.0)
    return number(value) if as_float is None else f"{as_float:.{digits}f}"


def percent(value: object) -> str:
    """Return a confidence level such as 0.95 as "95%" (0.999 as "99.9%"); none below 1 becomes "100%"."""
    as_float = within(value, 0.0, 1.0)
    if as_float is None:
        return number(value)
    # Two digits of what is missing to one: 0.9833333 is 98.33%, and 0.99999 is not 100%.
    missing = 100.0 * (1.0 - as_float)
    places = 2 - math.floor(math.log10(missing)) if missing > 0.0 else 0
    return f"{round(100.0 * as_float, max(1, places))!r}".removesuffix(".0") + "%"


def capitalized(text: str) -> str:
    """Return a text with its first character in upper case."""
    return text[:1].upper() + text[1:]


def the(party: object) -> str:
    """Return a party with its article, as "the client"; "anyone who sees its output" has none."""
    name = clean(party)
    return name if name.startswith(("anyone ", "whoever ")) else f"the {name}"


ATTACKERS: Mapping[str, str] = {
    "client": "one curious client",
    "colluding-clients": "all clients together",
    "all-but-one": "an adversary who knows everything but one label",
    "malicious-client": "one malicious client",
    "eavesdropper": "an eavesdropper",
    "release": "anyone who reads what is released",
    "server": "the server",
    "malicious-server": "a malicious server",
}
"""Adversaries as the object of "against", so that a client who attacks is not read as its victim."""


def attacker(adversary: object) -> str:
    """Return an adversary in words, as "one curious client"; a name that is unknown stays as it is."""
    name = clean(adversary)
    return ATTACKERS.get(name, name)


def exact(value: object) -> str:
    """Return `value` as it must be typed to repeat a run: numbers in full, structures as JSON."""
    return clean(value) if isinstance(value, str) else to_json(value)


def to_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON in which every character outside plain ASCII, and `<`, `>`, `&`, is an escape.

    It reads back to the same value, and it cannot break out of a code block or an element.
    """
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=True)
    except RecursionError:
        text = json.dumps("nested too deeply to show here; result.json holds it")
    for character in "<>&\x7f":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def markdown(text: str) -> str:
    """Return cleaned text as one line of Markdown that shows it literally, markup and all."""
    line = " ".join(clean(text).split())
    line = _MARKDOWN_SPECIAL.sub(lambda match: "\\" + match.group(), line)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = line.replace("://", ":\\//").replace("www.", "www\\.")
    return _MARKDOWN_START.sub(lambda match: f"{match[1]}\\" if match[1].isdigit() else f"\\{match[1]}", line, count=1)


def fenced(text: str, language: str = "json") -> str:
    """Return a block of code in Markdown, by default of JSON, whose fence is longer than any in it."""
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return f"{fence}{language}\n{text}\n{fence}"
