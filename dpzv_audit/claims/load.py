"""Reads a claims file and validates it whole, before anything runs; every mistake is one line with its place."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dpzv_audit.claims.model import FORMS, Claim, Defaults, form_of, skeleton
from dpzv_audit.errors import InputError, plain_rule

LARGEST_FILE = 8_000_000
"""Bytes; ten thousand claims take three million."""
MOST_CLAIMS = 20_000
_LONGEST_KEY = 100
_LATER_KEYS = ("depends", "revision")

Model = TypeVar("Model", bound=BaseModel)
Place = tuple[str | int, ...]
"""Where a value is: ("claim", 0, "config", "batch_size"); tables in an array are counted from 0."""

_KEY_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_KEYS = re.compile(rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*")
_PART = re.compile(_KEY_PART)
# What may open or close something, or hide such a character: strings of all four kinds, comments, brackets.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*(?:"""|$)|\'\'\'(?:[^\']|\'(?!\'\'))*(?:\'\'\'|$)'
    r'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]',
    re.DOTALL,
)

_ENDS = re.compile(r"[,=]")


@dataclass(frozen=True)
class PlacedClaim:
    """A valid claim, the line of the file it starts on, and the lines of its keys."""

    claim: Claim
    line: int
    lines: Mapping[str, int]

    @property
    def name(self) -> str:
        """The claim's name."""
        return self.claim.name

    def line_of(self, key: str) -> int:
        """Line of `key`, or of the claim where a default gave the key."""
        return self.lines.get(key, self.line)

    def digest(self) -> str:
        """SHA-256 of everything the claim says but its name and source: what its evidence may depend on."""
        said = self.claim.model_dump(mode="json", by_alias=True, exclude={"name", "source"})
        # A claim without such a key has the digest, and so the seed, that it had before there were these keys.
        said = {key: value for key, value in said.items() if value or key not in _LATER_KEYS}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ClaimsFile:
    """A valid claims file: its path as given, the error rate of the whole file, and its claims in order."""

    path: Path
    alpha: float
    claims: tuple[PlacedClaim, ...]

    @property
    def folder(self) -> Path:
        """Folder that relative paths in the file start from."""
        return self.path.parent

    def only(self, names: Sequence[str]) -> ClaimsFile:
        """The claims called `names`, in the file's order; `InputError` for a name that no claim has."""
        known = [placed.name for placed in self.claims]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                none = f"no claim of the file is called so; the first is {known[0]!r}"
                hint = f"did you mean {near[0]!r}?" if near else none
                raise InputError(f": {hint}", "only", name)
        return ClaimsFile(self.path, self.alpha, tuple(placed for placed in self.claims if placed.name in names))


def load_claims(path: Path) -> ClaimsFile:
    """Return the claims in the TOML file `path`, all of them valid.

    Names of methods, attacks and data sets, and a method's settings, are checked by `dpzv_audit.claims.prepare`,
    which loads those registries. Raises `InputError` naming file, line and key.
    """
    text = _read(path)
    return parse_claims(text, path)


def parse_claims(text: str, path: Path) -> ClaimsFile:
    """Return the claims of the TOML `text`, which stands in the file `path`; errors as `load_claims`."""
    shown = str(path)
    if longest_key(text) > _LONGEST_KEY:
        raise InputError(f"{shown}: is nested too deeply, must be a flat list of [[claim]] tables")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{shown}: is nested too deeply, must be a flat list of [[claim]] tables") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{shown}: is no TOML: {_one_line(str(error))}") from None
    except ValueError as error:  # a number longer than Python converts
        raise InputError(f"{shown}: is no TOML: {_one_line(str(error))}") from None
    lines = key_lines(text)
    for key in data:
        if key not in ("claim", "defaults"):
            raise InputError(f"{shown}:{line_of(lines, (key,))}: {_unknown(key, ['claim', 'defaults'])}")
    claims = data.get("claim")
    if not isinstance(claims, list) or not claims or not all(isinstance(entry, dict) for entry in claims):
        found = "no [[claim]]" if claims is None else "a key claim that is no array of tables"
        raise InputError(f"{shown}: holds {found}, must hold one or more [[claim]] tables")
    if len(claims) > MOST_CLAIMS:
        raise InputError(f"{shown}: holds {len(claims):,} claims, must hold at most {MOST_CLAIMS:,}")
    given = data.get("defaults", {})
    if not isinstance(given, dict):
        raise InputError(f"{shown}:{line_of(lines, ('defaults',))}: defaults must be a table, [defaults]")
    defaults = _validated(Defaults, given, ("defaults",), lines, shown, "[defaults]")
    keys = keys_by_claim(lines)
    placed = tuple(_claim(entry, index, given, lines, keys, shown) for index, entry in enumerate(claims))
    _refuse_duplicates(placed, shown)
    return ClaimsFile(path, defaults.alpha, placed)


def one_claim(keys: Mapping[str, object]) -> PlacedClaim:
    """Return the claim that `keys` of a `[[claim]]` table say; `InputError` naming the key where one is wrong."""
    lines: dict[Place, int] = {(): 1, ("claim",): 1, ("claim", 0): 1}
    return _claim(dict(keys), 0, {}, lines, {}, "")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"claims file {path}: cannot be read ({error.strerror}), must be a readable file") from error
    except ValueError as error:
        raise InputError(f"claims file {str(path)!r}: {error}, must be the path of a file") from error
    if len(data) > LARGEST_FILE:
        raise InputError(f"claims file {path}: is larger than {LARGEST_FILE:,} bytes; split it into several files")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"claims file {path}: byte {error.start + 1} is not UTF-8, must be UTF-8 text") from error


def _claim(
    entry: dict[str, Any],
    index: int,
    defaults: Mapping[str, Any],
    lines: Mapping[Place, int],
    keys: Mapping[int, Mapping[str, int]],
    shown: str,
) -> PlacedClaim:
    place: Place = ("claim", index)
    name = entry.get("name")
    label = f"claim {name!r}" if isinstance(name, str) and len(name) < 100 else f"claim {index + 1}"
    where = f"{_at(shown, line_of(lines, place))}{label}"
    form = form_of({**entry, **({"method": True} if "method" in defaults else {})})
    if form is None:
        # A misspelt key comes first: it also explains the one that is missing.
        known = list(dict.fromkeys(key for model in FORMS.values() for key in _aliases(model)))
        unknown = [(line_of(lines, (*place, key)), key) for key in entry if key not in known]
        if unknown:
            at, key = min(unknown)
            raise InputError(f"{_at(shown, at)}{label}: {_unknown(key, known)}")
        raise InputError(f"{where} has none of the keys method, scores and mechanism, must have one of them")
    if entry.get("kind", "epsilon") not in ("epsilon", "attack"):
        at = line_of(lines, (*place, "kind"))
        raise InputError(
            f"{_at(shown, at)}{label}: kind is {_one_line(repr(entry['kind']))}, must be epsilon or attack"
        )
    others = [key for key in ("method", "scores", "mechanism") if key in entry]
    if len(others) > 1:
        raise InputError(f"{where} has the keys {' and '.join(others)}, must have one of them")
    model = FORMS[form]
    fields = _aliases(model)
    filled = {key: value for key, value in defaults.items() if key in fields and key != "config"}
    merged = {**filled, **entry}
    if "config" in fields and isinstance(defaults.get("config"), dict) and isinstance(entry.get("config", {}), dict):
        merged["config"] = {**defaults["config"], **entry.get("config", {})}
    claim = _validated(model, merged, place, lines, shown, label)
    return PlacedClaim(claim, line_of(lines, place), keys.get(index, {}))


def _at(file: str, line: int) -> str:
    return f"{file}:{line}: " if file else ""


def _aliases(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _validated(
    model: type[Model], value: object, place: Place, lines: Mapping[Place, int], shown: str, label: str
) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # A misspelt key comes first: it also explains the one that is missing.
        order = {"extra_forbidden": 0, "missing": 2}
        first = min(
            error.errors(include_url=False),
            key=lambda e: (order.get(e["type"], 1), line_of(lines, (*place, *e["loc"]))),
        )
        at = line_of(lines, (*place, *first["loc"]))
        raise InputError(f"{_at(shown, at)}{label}: {_mistake(model, first)}") from None
    except RecursionError:
        raise InputError(f"{_at(shown, line_of(lines, place))}{label} is nested too deeply") from None


def _mistake(model: type[BaseModel], error: Any) -> str:
    """Return what is wrong in one line: the key, what was given, what would be right."""
    loc = [str(part) for part in error["loc"]]
    key = ".".join(loc)
    if error["type"] == "extra_forbidden":
        return _unknown(loc[-1], _aliases(_model_at(model, loc[:-1])))
    if error["type"] == "missing":
        return f"{key} is missing"
    given = error["input"]
    if error["type"] == "string_pattern_mismatch":
        return _one_line(f"{key} is {given!r}, must be an import path such as package.module:factory, or planted:NAME")
    text = repr(given)
    text = text if len(text) <= 60 else text[:57] + "..."
    right = plain_rule(error["msg"])
    right = right if right.startswith(("must", "holds")) else f"must be {right}"
    return _one_line(f"{key} is {text}, {right}" if not right.startswith("holds") else f"{key} {right}")


def _model_at(model: type[BaseModel], loc: Sequence[str]) -> type[BaseModel]:
    for part in loc:
        field = next(f for name, f in model.model_fields.items() if part in (name, f.alias))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return model


def _unknown(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    short = key if len(key) <= 60 else key[:57] + "..."
    return f"unknown key {short!r}: {hint}must be one of {', '.join(known)}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."


def _refuse_duplicates(claims: Sequence[PlacedClaim], shown: str) -> None:
    first: dict[str, PlacedClaim] = {}
    for placed in claims:
        other = first.setdefault(skeleton(placed.name), placed)
        if other is placed:
            continue
        where = f"{shown}:{placed.line_of('name')}"
        at = f"in line {other.line_of('name')}"
        if other.name == placed.name:
            raise InputError(f"{where}: two claims are called {placed.name!r} (the first {at}), must have other names")
        told_apart = "must have a name that a reader can tell from it"
        raise InputError(f"{where}: the name {placed.name!a} looks like {other.name!a} {at}, {told_apart}")


# A light scan beside the real parser finds the line on which each key stands.


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, first line of it) of every statement: a header or a key with its value, however many lines."""
    depth, start, line, fresh = 0, 0, 1, 1
    for token in _TOKEN.finditer(text):
        found = token.group()
        if found in "[{":
            depth += 1
        elif found in "]}":
            depth = max(0, depth - 1)
        elif found == "\n" and depth == 0:
            yield fresh, text[start : token.start()].strip()
            start, fresh = token.end(), line + 1
        line += found.count("\n")
    yield fresh, text[start:].strip()


def longest_key(text: str) -> int:
    """Return about how many parts the longest dotted key in `text` has, in time linear in the text.

    A parser takes time in proportion to its square, which a file of a few MB turns into hours.
    """
    longest = run = start = 0
    for token in _TOKEN.finditer(text + "\n"):
        *before, last = _ENDS.split(text[start : token.start()])
        if before:
            longest = max(longest, run + before[0].count("."), *(piece.count(".") for piece in before))
            run = 0
        run += last.count(".")
        longest = max(longest, run)
        if token.group()[0] not in "\"'":  # a string may be a part of the key, all else ends it
            run = 0
        start = token.end()
    return longest + 1


def _parts(keys: str) -> Place:
    return tuple(part.group().strip("\"'") for part in _PART.finditer(keys))


def key_lines(text: str) -> dict[Place, int]:
    """Return the line, counted from 1, of every table header and key of valid TOML; inline tables count as one."""
    lines: dict[Place, int] = {(): 1}
    arrays: dict[Place, int] = {}
    table: Place = ()
    for number, statement in _statements(text):
        if statement.startswith("["):
            double = statement.startswith("[[")
            found = _KEYS.search(statement)
            if found is None:
                continue
            table = _within(_parts(found.group()), arrays)
            if double:
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            lines.setdefault(table, number)
        elif found := _KEYS.match(statement):
            keys = _parts(found.group())
            for size in range(1, len(keys) + 1):
                lines.setdefault((*table, *keys[:size]), number)
    return lines


def _within(keys: Place, arrays: Mapping[Place, int]) -> Place:
    """Return `keys` as a place: the last table of every array of tables on the way is meant."""
    place: Place = ()
    for index, key in enumerate(keys):
        place = (*place, key)
        if place in arrays and index < len(keys) - 1:
            place = (*place, arrays[place])
    return place


def keys_by_claim(lines: Mapping[Place, int]) -> dict[int, dict[str, int]]:
    """Return the lines of each claim's own keys, by the claim's number from 0."""
    found: dict[int, dict[str, int]] = {}
    for place, line in lines.items():
        if len(place) == 3 and place[0] == "claim" and isinstance(place[1], int):
            found.setdefault(place[1], {})[str(place[2])] = line
    return found


def line_of(lines: Mapping[Place, int], place: Sequence[str | int]) -> int:
    """Return the line of `place`, or of the nearest table around it that has one."""
    wanted = tuple(place)
    while wanted not in lines:
        wanted = wanted[:-1]
    return lines[wanted]
