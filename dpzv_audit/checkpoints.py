"""Checkpoints of a training in one file, replaced as a whole after every epoch and removed when the run is done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dpzv_audit.errors import AuditError, InputError
from dpzv_audit.noise_keys import NoiseKeyFile
from dpzv_audit.runs import json_text
from dpzv_audit.store import private_folder, write_atomically
from mechanisms.core.checkpoint import load_checkpoint, save_checkpoint
from mechanisms.core.method import Run
from mechanisms.core.training import History


def run_key(facts: Mapping[str, object]) -> str:
    """A name for the run that `facts` (method, configuration, seed, data) describe: equal facts, equal key."""
    return hashlib.sha256(json_text(facts).encode()).hexdigest()[:16]


class FileCheckpoints:
    """Keeps the checkpoint of run `key` as `folder`/`key`.safetensors; takes it up only when `resume` is set."""

    def __init__(self, folder: Path, key: str, *, resume: bool) -> None:
        self.path = folder / f"{key}.safetensors"
        self._key = key
        self._resume = resume
        self._noise_key = NoiseKeyFile(folder / f"{key}.noise-key", resume=resume)
        self._stacks: list[FileCheckpoints] = []
        self.epochs = 0
        """Epochs that are kept so far; of a run in stacks, those of the one stack that was tried first."""
        self._resumed_at = 0

    def of_stack(self, first: int, last: int, trainings: int) -> FileCheckpoints:
        """Where those at places `first` to `last` of the run's `trainings` keep theirs: a file of their own if not all.

        What is said of the run counts theirs from now on.
        """
        if last - first == trainings:
            return self
        stack = FileCheckpoints(self.path.parent, f"{self._key}-{first}-{last}", resume=self._resume)
        self._stacks.append(stack)
        return stack

    @property
    def resumed_at(self) -> int:
        """Epochs that were kept when this process took the run up, or last a stack of it; 0 where it started it."""
        return next((stack.resumed_at for stack in reversed(self._stacks) if stack.resumed_at), self._resumed_at)

    def kept(self, epochs: int) -> str | None:
        """What is kept of a run of `epochs` epochs, in words; None where nothing is."""
        done = [stack.epochs for stack in self._stacks if stack.epochs]
        if done:
            files = self.path.with_name(f"{self._key}-*{self.path.suffix}")
            return f"memory ran out, but {sum(done)} epochs of {len(done)} smaller stacks are kept in {files}"
        return f"{self.epochs} of {epochs} epochs are kept in {self.path}" if self.epochs else None

    def load(self, run: Run) -> History:
        """See `mechanisms.core.training.Checkpoints.load`; without a checkpoint the run starts from the beginning."""
        if not self.takes_up():
            return []
        try:
            history = load_checkpoint(run, self.path.read_bytes(), self._key)
        except InputError as error:
            raise error.placed(f"{self.path}: ") from error
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}), must be a readable file") from error
        self.epochs = self._resumed_at = len(history)
        return history

    def save(self, run: Run, history: History) -> None:
        """See `mechanisms.core.training.Checkpoints.save`; the file holds the old state or the new one, never a part.

        Raises `AuditError` where the disk refuses: the checkpoint before it stays.
        """
        with self._written():
            private_folder(self.path.parent)
            # Whose noise is secret destroys a key next: then the state that needs it no more must be there for good.
            write_atomically(self.path, save_checkpoint(run, history, self._key), durable=self._noise_key.path.exists())
        self.epochs = len(history)

    def takes_up(self) -> bool:
        """See `mechanisms.core.training.KeepsNoiseKeys`."""
        return self._resume and self.path.exists()

    def first_noise_key(self, device: str) -> bytes:
        """See `mechanisms.core.training.KeepsNoiseKeys`; raises what `NoiseKeyFile.begin` raises."""
        with self._written():
            return self._noise_key.begin(device, checkpoint=self.path)

    def noise_key(self, round_: int, device: str) -> bytes:
        """See `mechanisms.core.training.KeepsNoiseKeys`; raises what `NoiseKeyFile.key_from` raises."""
        with self._written():
            return self._noise_key.key_from(round_, device)

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = f"{self.epochs} epochs are kept, make room and go on with ‹resume›"
            raise AuditError(f"{self.path}: cannot be written ({error.strerror or error}); {kept}") from error

    def remove(self) -> None:
        """Forget the run: it is done. The keys of its noise are destroyed."""
        for path in (self._noise_key.path, *self.path.parent.glob(f"{self._key}-*{self._noise_key.path.suffix}")):
            NoiseKeyFile(path, resume=True).destroy()
        for path in (self.path, *self.path.parent.glob(f"{self._key}-*{self.path.suffix}")):
            path.unlink(missing_ok=True)
        if self.path.parent.is_dir() and not any(self.path.parent.iterdir()):
            self.path.parent.rmdir()
