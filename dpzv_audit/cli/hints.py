"""Suggests a command or a flag for a word that stands where none is expected."""

from collections.abc import Collection, Mapping

from ..base.errors import nearest
from ..base.registry import importing_nothing
from .listing import names_of

FLAGS = {
    "--method": "methods",
    "--methods": "methods",
    "--attack": "attacks",
    "--attacks": "attacks",
    "--dataset": "datasets",
    "--defence": "defences",
}
"""Flags that take a name, each with the kind under which `dpzv-audit list` has the names."""
COMMANDS = {
    (): {"methods": "attack --method", "attacks": "attack --attack"},
    ("audit",): {"methods": "audit method", "defences": "audit defence", "attacks": "attack --attack"},
}
"""What to write before a name of each kind, by the group of commands in which the name stands as a command."""


def _meant(word: str, places: Mapping[str, str]) -> str | None:
    """Return `word` as a name of the kinds in `places`, behind what stands before such a name; None for no name."""
    known = {name: before for kind, before in places.items() for name in _names(kind)}
    near = nearest(word, known)
    return None if near is None else f"{known[near]} {near}"


def _names(kind: str) -> list[str]:
    """Return the built-in names of a kind; none where a package that it needs is missing or broken."""
    try:
        with importing_nothing():
            return names_of(kind)
    except (ImportError, OSError):
        return []


def no_such_command(word: str, group: tuple[str, ...], commands: Collection[str]) -> str:
    """Return that `group` has no command `word`, and what may be meant."""
    near = nearest(word, commands)
    if near is None and (meant := _meant(word, COMMANDS.get(group, {}))):
        near = meant
    if near is not None:
        return f"No such command {word!r}. Did you mean {near!r}?"
    return f"No such command {word!r}. Must be one of {', '.join(commands)}."


def unexpected(words: list[str], flags: Collection[str]) -> str:
    """Return that a command takes no arguments `words`, and which of its `flags` may be meant for the first."""
    first = words[0]
    meant = _meant(first, {kind: flag for flag, kind in FLAGS.items() if flag in flags})
    if meant is None and ":" in first and "--system" in flags:
        meant = f"--system {first}"
    message = f"Got unexpected extra argument{'s' if len(words) > 1 else ''} ({' '.join(words)})"
    return message if meant is None else f"{message}, did you mean {meant}?"
