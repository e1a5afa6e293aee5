"""Failures of the command line: one line on stderr, tracebacks in a log, in any encoding."""

import codecs
import io
import os
import secrets
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from ..base.errors import one_line
from ..base.store import private_file, private_folder

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


def log_folder() -> Path:
    """Return where logs are kept: dpzv-audit in XDG_STATE_HOME or ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dpzv-audit"


def say_unexpected(error: BaseException) -> None:
    """Write the traceback of `error` to a log file that its owner alone may read, and print one line on stderr."""
    cause = one_line(error)
    if len(cause) > 200:
        cause = f"{cause[:197]}..."
    kind = f"{type(error).__name__}: {cause}" if cause else type(error).__name__
    path = _logged("".join(traceback.format_exception(error)))
    where = "its traceback could not be written anywhere" if path is None else f"its traceback is in {path}"
    print(f"dpzv-audit: error: unexpected {kind}; this is a fault of the tool, {one_line(where)}", file=sys.stderr)


def _logged(text: str) -> Path | None:
    """Write `text` to a new log file, in the current folder where there can be none in its own; None where nowhere."""
    name = f"dpzv-audit-error-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.log"
    for place in (log_folder, Path.cwd):
        try:
            folder = place()
            private_folder(folder)
            with private_file(folder / name, "xb") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        except (OSError, RuntimeError):  # no home folder is a RuntimeError
            continue
        return folder / name
    return None


@contextmanager
def threads_watched() -> Iterator[list[BaseException]]:
    """Let what a thread raises while the block runs be told as an unexpected error; the list holds it."""
    raised = []

    def hook(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value
        if error is not None and not isinstance(error, SystemExit):
            raised.append(error)
            say_unexpected(error)

    before = threading.excepthook
    threading.excepthook = hook
    try:
        yield raised
    finally:
        threading.excepthook = before
