"""Text on a terminal or pipe whose encoding lacks some of our characters: plain spellings of them, never an error."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

PLAIN = {
    "≤": "<=",
    "≥": ">=",
    "–": "-",
    "−": "-",
    "×": "x",
    "…": "...",
    "∞": "infinity",
    "“": '"',
    "”": '"',
    "δ": "delta",
    "ε": "epsilon",
    "μ": "mu",
}
_HANDLER = "dpzv-audit-plain"


def spell_plainly(stream: TextIO | None) -> None:
    """Let `stream` spell out what its encoding lacks, and write what no spelling is known for as an escape.

    A stream that has been told what to do with such characters, as by `PYTHONIOENCODING`, keeps to that. Bytes of file
    names that are no text stay the bytes they are.
    """
    # Python's own choices: "strict", and "surrogateescape" in the C locale.
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode(), error.start + 1


codecs.register_error(_HANDLER, _plain)
