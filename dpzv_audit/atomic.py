"""Replaces a file as a whole: whatever happens meanwhile, it holds what it held before or all of what is new."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write `content` (text as UTF-8, lines as they are) to `path` in one step and return `path`.

    Nothing else is left in its folder, which must exist, by a failure; `OSError` goes through. Two processes may write
    the same file: one of them is last.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:  # as plain files, with the permissions that the umask gives
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path
