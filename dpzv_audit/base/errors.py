"""Errors a user may meet: each is one line, and each knows the exit code of the command line."""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Self

LONGEST_MESSAGE = 2000
_CURES = ("use ", "leave it out", "give ")
"""Beginnings of rules that say what to write instead."""
MOST_LISTED = 8
"""Names that an error lists at most where `dpzv-audit list` has them all."""
NEAR = 0.6
"""Least similarity, as `difflib` measures it, of a name that is suggested."""
CLOSE = 0.75
"""Least similarity of a name that is surely meant, so that an error need not list the others."""
_LONGEST_NAME = 200
"""Characters past which no name is compared with those that are known."""


def one_line(message: object) -> str:
    """Return `message` with all that does not print, or breaks the line, as an escape: names in it may be of a file.

    One longer than `LONGEST_MESSAGE` loses its middle: the place stands first, the cure last. Nothing in it is a
    command to the service that keeps the log (`inert`).
    """
    text = str(message)
    half = LONGEST_MESSAGE // 2
    if len(text) > 2 * LONGEST_MESSAGE:  # no character gets shorter: of all others none would be seen
        text = text[:LONGEST_MESSAGE] + text[-LONGEST_MESSAGE:]
    line = inert("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:half]} ... {line[-half:]}"


_OPTION = re.compile("‹([a-z_]+)›")


def with_options(words: str, named: Callable[[str], str] = str) -> str:
    """Return `words` with each option in them, which stands as `‹name›`, called `named(name)`, by default `name`.

    Messages below the front ends mention options so: the command line calls `‹max_minutes›` by its flag.
    """
    return _OPTION.sub(lambda match: named(match[1]), words)


class AuditError(Exception):
    """Report a failure that the user did not cause (full disk, disagreeing accountants): exit code 3.

    `rule` says in words what would be right; where it is about one field, `field` is its name and `value` the wrong
    value (`...` where there is nothing to show), and the message opens with both. Options that `rule` mentions stand
    as `with_options` says. The message is always one line that prints.
    """

    exit_code = 3

    def __init__(self, rule: object = "", field: str = "", value: object = ...) -> None:
        super().__init__(rule, field, value)
        self.rule = str(rule)
        self.field = field
        self.value = value

    def __str__(self) -> str:
        return self.said()

    def said(self, named: Callable[[str], str] = str, mentioned: Callable[[str], str] | None = None) -> str:
        """Return the message with its field called `named(field)`, and each option in it `mentioned(option)`.

        `mentioned` is `named` where it is not given. Fields are called by their own names by default.
        """
        return one_line(self._lead(named) + with_options(self.rule, mentioned or named))

    def _lead(self, named: Callable[[str], str]) -> str:
        if not self.field:
            return ""
        valued = self.value is not ...
        shown = repr(self.value) if isinstance(self.value, str) else self.value
        lead = f"{named(self.field)} is {shown}" if valued else named(self.field)
        if self.rule.startswith((" ", ":", ";")):
            return lead
        if self.rule.startswith(_CURES):
            return f"{lead}; " if valued else f"{lead}: "
        return f"{lead}, " if valued else f"{lead} "

    @property
    def words(self) -> str:
        """The message by its field's own name, with the options in it as `with_options` takes them."""
        return self._lead(str) + self.rule

    def placed(self, where: str, after: str = "") -> Self:
        """Return the error as words between `where`, such as a file and a line, and `after`."""
        return type(self)(f"{where}{self.words}{after}")


class InputError(AuditError):
    """Report input that is wrong: exit code 2.

    The message is one line that names the field, file or key, the wrong value, and the rule.
    """

    exit_code = 2


class NotFinite(InputError):
    """Infinity or no number at all where every number must be finite, as after a training that diverged."""


class Interrupted(AuditError):
    """The user interrupted the command; the message says what goes on from where: exit code 130."""

    exit_code = 130


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, of the machine or of a device: torch says so by a class, or in words."""
    if isinstance(error, MemoryError):
        return True
    phrases = ("out of memory", "not enough memory", "can't allocate memory", "cublas_status_alloc_failed")
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or any(phrase in str(error).lower() for phrase in phrases)
    )


LEAST_DELTA = 1e-300
"""Accountants split delta over up to 10^15 rounds, and each share must be a float."""


def _is_finite(value: object) -> bool:
    """Return whether `value` is a number, and no bool, that a float can hold."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:
        return False


def check_positive(name: str, value: float) -> float:
    """Return `value` if it is a finite number above 0; raise `InputError` naming `name` otherwise."""
    if not (_is_finite(value) and value > 0.0):
        raise InputError("use a finite number above 0", name, value)
    return value


def check_not_negative(name: str, value: float) -> float:
    """Return `value` if it is a finite number of at least 0; raise `InputError` naming `name` otherwise."""
    if not 0.0 <= value < math.inf:
        raise InputError("use a finite number of at least 0", name, value)
    return value


def check_probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1; raise `InputError` naming `name` otherwise."""
    if _is_finite(value) and 0.0 < value < 1.0:
        return value
    rule = "use a number strictly between 0 and 1"
    if value == 0 and name == "delta":  # pure DP is an (epsilon, delta) claim at every delta
        rule += "; for pure DP, which holds at every delta, give a tiny one such as 1e-9"
    raise InputError(rule, name, value)


def check_delta(name: str, value: float) -> float:
    """Return `value` if it is a delta from 1e-300 to below 1; raise `InputError` naming `name` otherwise."""
    try:
        return accounted_delta(check_probability(name, value))
    except ValueError as error:
        raise InputError(str(error), name, value) from None


def accounted_delta(value: float) -> float:
    """Return `value` if accountants can split a delta so small; raise `ValueError` with the rule otherwise."""
    if value < LEAST_DELTA:
        raise ValueError(f"use at least {LEAST_DELTA:g}: shares of a smaller one would be no floating-point numbers")
    return value


def check_count(name: str, value: int, *, least: int = 1, most: float = math.inf) -> int:
    """Return `value` if it is a whole number from `least` to `most`; raise `InputError` naming `name` otherwise."""
    if not _is_finite(value) or int(value) != value or not least <= value <= most:
        limit = "" if most == math.inf else f", at most {most:,.0f}"
        raise InputError(f"use a whole number of at least {least}{limit}", name, value)
    return int(value)


# Rules of pydantic, and our words for them; the first that fits goes first.
_PLAIN = {
    "String should have at least 1 character": "use text that is not empty",
    "Value error, ": "",
    "Input should be": "use",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
    "less than": "less than",
    "a valid number, unable to parse string as a number": "a number",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid boolean, unable to interpret input": "true or false",
    "a valid number": "a number",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "a valid string": "a word",
    "a valid tuple": "a list, such as [1, 1, 2]",
}


def plain_rule(message: str) -> str:
    """Return the rule in a message of pydantic's in the words of our own errors."""
    for theirs, ours in _PLAIN.items():
        message = message.replace(theirs, ours)
    return message


def rule_after_value(message: str) -> str:
    """Return the rule in a message of pydantic's as an `InputError` takes it, which shows a value before it."""
    rule = plain_rule(message)
    return rule if rule.startswith(_CURES) else f": {rule}"


def check_names(field: str, names: Iterable[str], known: Iterable[str], kind: str = "") -> tuple[str, ...]:
    """Return `names` if all are among the `known` ones of `field`; raise `unknown_name` otherwise."""
    names = tuple(names)
    known = tuple(known)
    for name in names:
        if name not in known:
            raise unknown_name(field, name, known, kind=kind)
    return names


def unknown_name(field: str, value: str, known: Iterable[str], of: str = "", kind: str = "") -> InputError:
    """Return an `InputError` for `value`, which is not a `known` name of `field`.

    The message suggests the nearest name. Unless that name is `CLOSE`, it also lists the names; if there are more than
    `MOST_LISTED` and `dpzv-audit list` has them under `kind`, it names that command instead. `of` says where the
    names come from.
    """
    names = list(known)
    if not names:
        return InputError("leave it out: there is nothing to choose from", field, value)
    close = nearest(value, names, CLOSE)
    if close is not None:
        return InputError(f": did you mean {close!r}{of}?", field, value)
    choices = f"use one of {', '.join(names)}{of}"
    if kind and len(names) > MOST_LISTED:
        choices = f"see dpzv-audit list {kind}"
    hint = did_you_mean(value, names)
    return InputError(f": {hint} {choices}" if hint else f"; {choices}", field, value)


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Return a question that suggests the nearest `known` name; "" where none is near."""
    near = nearest(value, known)
    return f"did you mean {near!r}?" if near is not None else ""


def nearest(value: str, known: Iterable[str], least: float = NEAR) -> str | None:
    """Return the `known` name that is nearest to `value`, in any case of its letters; None where no name is near.

    Near means a similarity of `least` or more. A `value` too long for a name gets None too: comparing takes 100 bytes
    of memory for each character.
    """
    if len(value) > _LONGEST_NAME:
        return None
    spelled: dict[str, str] = {}
    for name in known:
        spelled.setdefault(name.casefold(), name)
    near = difflib.get_close_matches(value.casefold(), list(spelled), n=1, cutoff=least)
    return spelled[near[0]] if near else None


def some(word: str) -> str:
    """Return a word in quotes after its indefinite article, as "an 'embeddings'"."""
    return f"{'an' if word.startswith(tuple('aeiou')) else 'a'} {word!r}"


# The beginning of a command to the service that keeps the log of a CI run.
#
# GitHub obeys a line that begins with "::NAME ...::", after spaces too, and "##[NAME]" anywhere in a line; Azure obeys
# "##vso[NAME]", TeamCity "##teamcity[NAME]". GitLab's commands need a carriage return and an escape character, which
# the tool never prints as they are.
_COMMAND = re.compile(r"#(?=#[A-Za-z]*\[)|:(?=:)")


def inert(text: str) -> str:
    """Return `text` in which nothing can be such a command: a space parts two colons, and the hashes of `##[`.

    Colons are parted anywhere, since text that is wrapped may begin a line at any character.
    """
    return _COMMAND.sub(r"\g<0> ", text)


def inert_json(text: str) -> str:
    """Return JSON of the same value as `text` in which nothing is such a command.

    Outside its strings JSON has neither two colons nor two hashes side by side; in one, the second becomes an escape.
    """
    return text.replace("##", "#\\u0023").replace("::", ":\\u003a")


def inert_xml(text: str) -> str:
    """Return XML of the same content as `text`, which has no names with two colons, in which nothing is a command."""
    return text.replace("##", "#&#35;").replace("::", ":&#58;")
