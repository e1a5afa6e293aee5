"""Keeps the key of secret noise while rounds may have to be run again, so that they release the same values again.

Two releases of one round under fresh noise would spend more privacy than is counted, and two of values that differ
under the same noise would show the difference: so the key of the rounds since the last checkpoint lies beside it, for
its owner alone, and is only taken up where arithmetic gives the same numbers. It is destroyed when the next checkpoint
is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpzv_audit.errors import InputError
from dpzv_audit.runs import environment
from dpzv_audit.store import checksummed, private_folder, verified, write_atomically
from mechanisms.core.noise import KEY_BYTES

_ANEW = "start without ‹resume›: that is another training, and where anything of this one left the house both count"


class NoiseKeyFile:
    """The file with the key of the noise that is drawn from one round on, until a checkpoint replaces that round."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Take up the key that an earlier process left in `path` only where `resume` is set."""
        self.path = path
        self._taken_up = resume

    def begin(self, device: str, *, checkpoint: Path) -> bytes:
        """Return the key for what a run draws when it is made, before any checkpoint is read.

        Without `resume` what an earlier run left, its checkpoint too, is destroyed first: the new key must never go on
        from the old rounds. Raises `InputError` where the file is damaged, `OSError` where it cannot be written.
        """
        if not self._taken_up:
            checkpoint.unlink(missing_ok=True)
            self.destroy()
            self._taken_up = True
        kept = self._read()
        if kept is not None:
            return bytes.fromhex(kept["key"])
        if checkpoint.exists():
            return os.urandom(KEY_BYTES)  # never used: `key_from` refuses to go on
        return self._fresh(0, device)

    def key_from(self, round_: int, device: str) -> bytes:
        """Return the key of the rounds from `round_` on, where a checkpoint stands or the run begins.

        A key is on the disk before it is used. Raises `InputError` where rounds would be released a second time with
        other values: the key is gone, or is of later rounds, or this process does not compute as the one before did.
        """
        kept = self._read()
        if kept is None or kept["round"] > round_:
            raise InputError(
                f"{self.path}: the key of the noise since the last checkpoint is gone, so its rounds would be released "
                f"a second time with other noise; {_ANEW}"
            )
        if kept["round"] < round_:
            return self._fresh(round_, device)
        here = arithmetic(device)
        other = [name for name, value in kept["arithmetic"].items() if here.get(name) != value]
        if other:
            then, now = (
                ", ".join(f"{name} {facts.get(name)}" for name in other) for facts in (kept["arithmetic"], here)
            )
            raise InputError(
                f"{self.path}: the training was interrupted with {then}, here it is {now}: under the same noise its "
                f"last rounds would differ by the arithmetic; go on as it was, or {_ANEW}"
            )
        return bytes.fromhex(kept["key"])

    def destroy(self) -> None:
        """Overwrite the key and remove the file; nothing happens where there is none.

        What a file system or a disk keeps of bytes that are overwritten is beyond this.
        """
        with self._overwritten():
            self.path.unlink(missing_ok=True)

    def _fresh(self, round_: int, device: str) -> bytes:
        key = os.urandom(KEY_BYTES)
        private_folder(self.path.parent)
        facts = {"round": round_, "key": key.hex(), "arithmetic": arithmetic(device)}
        with self._overwritten():
            write_atomically(self.path, checksummed(facts), durable=True)
        return key

    @contextmanager
    def _overwritten(self) -> Iterator[None]:
        """Let the block replace or remove the file, then overwrite what it held; nothing where there was none."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            yield
            os.write(handle, bytes(os.fstat(handle).st_size))
            os.fsync(handle)
        finally:
            os.close(handle)

    def _read(self) -> dict[str, Any] | None:
        try:
            return dict(verified(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{self.path}: is damaged, and with it the noise since the last checkpoint; {_ANEW}"
            ) from error


def arithmetic(device: str) -> dict[str, str | int | bool | None]:
    """Return what the last bits of a training depend on: device, threads, processor features, versions.

    On a CUDA device also its libraries and whether products may round to TF32.
    """
    import torch

    facts = environment([])
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "dpzv-audit": facts["dpzv_audit"],
        "threads": torch.get_num_threads(),
        "processor": f"{facts['machine']} {facts['cpu_features']}",
        **{package: facts["packages"][package] for package in ("torch", "numpy", "scipy")},
        **(_cuda() if device.startswith("cuda") else {}),
    }


def _cuda() -> dict[str, str | int | bool | None]:
    import torch

    return {
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
        "TF32 products": torch.backends.cuda.matmul.allow_tf32,
        "TF32 cuDNN": torch.backends.cudnn.allow_tf32,
    }
