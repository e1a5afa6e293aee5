"""Options of a command from a TOML file: they take the place of `--config FILE` on the command line.

What a file gives is written out as the flags that say the same before anything else reads the command line. A run by a
file and a run by its flags are therefore one run, and what a result records as its command line needs no file.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..base.errors import InputError, nearest
from ..base.toml import key_lines, parsed_toml, read_toml
from .flags import CONFIGURED, GIVEN, key_of, option_of

CONFIG = "--config"
PAIR = "KEY=VALUE"
"""What help calls the value of an option to which a table gives keys."""
Groups = Mapping[tuple[str, ...], Collection[str]]
"""The names of commands, which tables of a file may have: of all, and of those that belong to one."""
_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "integer": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
}
"""Types of TOML that options take, by what typer calls the option's, and in words; all others are text."""
_IN_PYTHON = {"a table": "a dictionary", "text in quotes": "text", "true or false": "True or False"}
"""What Python calls things of TOML."""


class Spelled(float):
    """A number that keeps how its file writes it, as a flag does."""

    def __new__(cls, text: str) -> "Spelled":
        """Make the number that `text` says."""
        made = super().__new__(cls, text)
        made.text = text.replace("_", "").lstrip("+")
        return made

    text: str


@dataclass(frozen=True)
class Key:
    """The value of a key, and its place in words: file and line; "" for a keyword of a Python function."""

    name: str
    value: Any
    place: str = ""

    def wrong(self, right: str, name: str = "", value: object = ...) -> InputError:
        """Return an error that shows the value, or another below the key, and says what would be right."""
        shown = self.value if value is ... else value
        text = _shown(shown) if self.place else _cut(repr(shown))
        for toml, python in () if self.place else _IN_PYTHON.items():
            right = right.replace(toml, python)
        return InputError(f"{self.where}{name or self.name} is {text}; use {right}")

    @property
    def where(self) -> str:
        """Return the place as a message begins with it."""
        return f"{self.place}: " if self.place else ""


def _file_named(words: Sequence[str]) -> tuple[slice, str]:
    """Return where a command line names its file, and the file; "" for none. Raises `InputError` for two."""
    flags = takewhile(lambda word: word != "--", words)
    places = [at for at, word in enumerate(flags) if word.partition("=")[0] == CONFIG]
    if len(places) > 1:
        raise InputError(f"{CONFIG} is given {len(places)} times; give it once")
    for at in places:
        _, equals, file = words[at].partition("=")
        if equals:
            return slice(at, at + 1), file
        return slice(at, at + 2), "".join(words[at + 1 : at + 2])
    return slice(0, 0), ""


def expanded(command: Any, ctx: Any, args: list[str], groups: Groups) -> list[str]:
    """Return the words of a command line with what its file gives in the place of `--config FILE`.

    What else the command line gives wins. Raises `InputError` naming file and line where the file cannot be read, or a
    key is none of the command or of another type.
    """
    place, file = _file_named(args)
    if not file:
        return args
    called = ctx.command_path.split()[1:]
    parsed, _, _ = command.make_parser(ctx).parse_args(args=list(args))
    known = {option_of(name): param for param in command.params for name in param.opts if name != CONFIG}
    overruled = _overruled(command.params, parsed)
    arguments = []
    options = []
    places = {}
    for key in keys_in(Path(file), called, groups):
        parameter = known.get(key.name)
        if parameter is None:
            raise _unknown(key, " ".join(called), [*known, *groups[()]])
        own: set[str] = set()
        if parameter.metavar == PAIR and isinstance(key.value, dict):
            own = set(map(key_of, parsed.get(parameter.name) or ()))
            own |= overruled if parameter.name == "settings" else set()
        elif _is_given(parsed.get(parameter.name)) or (parameter.name in overruled):
            continue
        for flag, words in spelled(parameter, key, own):
            if parameter.param_type_name == "argument":
                arguments += words
                continue
            options += words
            places[flag] = key.place
            if not _is_given(parsed.get(parameter.name)):
                places[parameter.opts[0]] = key.place
    ctx.meta[CONFIGURED] = places
    words = list(GIVEN.get())
    words[_file_named(words)[0]] = [*arguments, *options]
    GIVEN.set(tuple(words))
    return [*args[: place.start], *arguments, *options, *args[place.stop :]]


def keys_in(path: Path, command: Sequence[str], groups: Groups) -> list[Key]:
    """Return the keys of a file that are for a command: those outside of tables, then those of the command's own.

    A key of the command's table stands in the place of the same one outside; tables of KEY=VALUE options are joined.
    """
    try:
        text = read_toml(path)
    except OSError as error:
        raise InputError(
            f"which cannot be read ({error.strerror or error}); use a readable TOML file", "config", str(path)
        ) from None
    table: Any = parsed_toml(text, str(path), parse_float=Spelled)
    lines = key_lines(text)
    keys: dict[str, Key] = {}
    around: tuple[str, ...] = ()
    while isinstance(table, dict):
        here: dict[str, str] = {}
        for spelled, value in table.items():
            if isinstance(value, dict) and spelled in groups.get(around, ()):
                continue
            name = spelled.replace("-", "_")
            place = f"{path}:{lines.get((*around, spelled), 1)}"
            if name in here:
                raise InputError(f"{place}: {spelled} and {here[name]} are one option; give it once")
            here[name] = spelled
            before = keys[name].value if name in keys else None
            joined = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
            keys[name] = Key(name, joined, place)
        if around == tuple(command):
            break
        word = command[len(around)]
        table, around = table.get(word), (*around, word)
    return list(keys.values())


def _overruled(parameters: Iterable[Any], parsed: Mapping[str, Any]) -> set[str]:
    """Return the settings of a method that the command line gives: by flags of their own, or by --set."""
    flags = {
        option_of(name)
        for param in parameters
        if param.param_type_name == "option" and _is_given(parsed.get(param.name))
        for name in param.opts
    }
    return flags | set(map(key_of, parsed.get("settings") or ()))


def _is_given(value: object) -> bool:
    # What click says of an argument that is missing differs by version: None, nothing, or a mark of its own.
    return value is True or (isinstance(value, str | tuple | list) and len(value) > 0)


def spelled(parameter: Any, key: Key, without: Collection[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield the flag and the words that give an option, or an argument, the value of a key.

    For a table of KEY=VALUE options they are of each entry but of those `without` which it is.
    """
    pairs = parameter.metavar == PAIR and isinstance(key.value, dict)
    for flag, words in _of_pairs(parameter, key, without) if pairs else _of_values(parameter, key):
        if any("\0" in word for word in words):
            raise InputError(f"{key.where}{key.name} holds a NUL character, which no command line can")
        yield flag, words


def _of_values(parameter: Any, key: Key) -> Iterator[tuple[str, list[str]]]:
    """Yield the flag with the words of a value; a list gives several."""
    several = getattr(parameter, "multiple", False) or parameter.nargs != 1
    flag = parameter.opts[0]
    for value in key.value if several and isinstance(key.value, list) else [key.value]:
        kind, words = _KINDS.get(parameter.type.name, (str, "text in quotes"))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            words = f"a table, or text such as '{PAIR}'" if parameter.metavar == PAIR else words
            words += ", or a list of such" if several else ""
            raise key.wrong(words, value=value)
        word = value.text if isinstance(value, Spelled) else str(value)
        if parameter.param_type_name == "argument":
            yield flag, [word]
        elif not isinstance(value, bool):
            yield flag, [flag, word]
        elif value:
            yield flag, [flag]


def _of_pairs(parameter: Any, key: Key, without: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the flag with the key, and the words, of each entry of a table, but of those `without` which it is."""
    flag = parameter.opts[0]
    for name, value in _flat(key.value):
        if name.replace("-", "_") not in without:
            yield f"{flag} {name}", [flag, f"{name}={_json_or_word(key, name, value)}"]


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table and of those in it, whose names have dots."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _json_or_word(key: Key, name: str, value: Any) -> str:
    """Return a value as KEY=VALUE spells it: JSON, or a word that JSON does not read as something else."""
    if isinstance(value, Spelled) and math.isfinite(value):
        return value.text
    if isinstance(value, str) and not _is_json(value):
        return value
    try:
        return json.dumps(value)
    except TypeError:
        raise key.wrong("a number, text, true, false or a list", name, value) from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as TOML has it, cut short."""
    if isinstance(value, Spelled):
        return value.text
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    return _cut(repr(value) if isinstance(value, str | list) else str(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown(key: Key, command: str, known: Collection[str]) -> InputError:
    near = nearest(key.name, known)
    cure = f", did you mean {near}?" if near else f"; use an option of {command}, see dpzv-audit {command} --help"
    return InputError(f"{key.place}: unknown key {key.name}{cure}")
