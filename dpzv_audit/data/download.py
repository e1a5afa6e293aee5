"""Fetches the data sets whose source is a plain URL: https only, published digests, bounded, written atomically.

`pooch` checks digests too, but follows redirects away from https and reads answers of any size.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..base.errors import AuditError, InputError
from . import DATASETS
from .spec import DataSpec, RemoteFile

CHUNK = 1 << 20

Progress = Callable[[str, int], Callable[[int], None]]
"""`progress(name, total bytes)` starts a file and returns what to call with the bytes so far."""


def download(data: str | DataSpec, data_dir: Path, progress: Progress | None = None) -> tuple[Path, ...]:
    """Fetch the files of a data set (or of its name) into its folder in `data_dir`, and return their paths.

    A file that is there with the right digest is not fetched again; one with another digest is replaced once the
    right one is complete. Nothing under a file's own name is ever incomplete. Raises `InputError` for a data set
    without plain URLs and for a `data_dir` that cannot be written to, and `AuditError`, in one line, where the
    network, the server or the file it sends fails.
    """
    spec = DATASETS.named(data, "dataset") if isinstance(data, str) else data
    if spec.source is None or not spec.remote:
        raise InputError(f"{spec.name} cannot be downloaded: no plain URL has it")
    folder = data_dir / spec.source.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); use a folder to write to") from error
    return tuple(_fetch(file, folder, progress) for file in spec.remote)


def check_url(url: str, first: str) -> None:
    """Raise `AuditError` unless `url` is https; http is only for a server on this machine that `first` names."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    local = parts.scheme == "http" and {parts.hostname, urlsplit(first).hostname} == {"127.0.0.1"}
    if parts.scheme != "https" and not local:
        raise AuditError(f"{first} leads to {url}, must stay with https")


def _fetch(file: RemoteFile, folder: Path, progress: Progress | None) -> Path:
    path = folder / file.name
    if file.is_at(path):
        return path
    check_url(file.url, file.url)
    try:
        handle, temporary = tempfile.mkstemp(".part", f".{file.name}.", folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error.strerror}); use a folder to write to") from error
    try:
        with os.fdopen(handle, "wb") as target:
            advance = progress(file.name, file.size) if progress else None
            for chunk in _received(file, folder):
                target.write(chunk)
                if advance:
                    advance(min(target.tell(), file.size))
            target.flush()
            os.fsync(target.fileno())
        os.chmod(temporary, 0o644)  # as other files: the temporary one is made for its owner alone
        os.replace(temporary, path)
    except OSError as error:
        raise AuditError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _received(file: RemoteFile, folder: Path) -> Iterator[bytes]:
    """Yield the bytes of `file` as they come; `AuditError` where they end early, go on or are others."""
    import http.client
    import urllib.error

    def failed(reason: str) -> AuditError:
        return AuditError(f"{file.url} {reason}; put the original {file.name} into {folder} yourself")

    digest = hashlib.new(file.algorithm, usedforsecurity=False)
    done = 0
    try:
        with _opened(file.url) as response:
            # one byte more than the right size tells that there is more
            while chunk := response.read(min(CHUNK, file.size + 1 - done)):
                done += len(chunk)
                digest.update(chunk)
                yield chunk
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the server's answer as well, with the connection behind it
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
        raise failed(
            f"cannot be downloaded ({' '.join(str(reason or error).split()) or type(error).__name__})"
        ) from error
    if done != file.size:
        raise failed(f"sent {'more' if done > file.size else f'only {done} bytes'} instead of {file.size} bytes")
    if digest.hexdigest() != file.digest:
        raise failed(f"sent another file: {file.algorithm} is {digest.hexdigest()}, not {file.digest}")


def _opened(first: str) -> Any:
    from urllib import request

    class SecureRedirects(request.HTTPRedirectHandler):
        def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
            try:
                check_url(newurl, first)
            except AuditError:
                fp.close()
                raise
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return request.build_opener(SecureRedirects()).open(first, timeout=30.0)
