"""Checkpoints of a training in one file, replaced as a whole after every epoch and removed when the run is done.

Where noise is secret its key is kept while rounds may have to be run again, so that they release the same values again.
Two releases of one round under fresh noise would spend more privacy than is counted, and two of values that differ
under the same noise would show the difference: so the key of the rounds since the last checkpoint lies beside it, for
its owner alone, and is only taken up where arithmetic gives the same numbers. It is destroyed when the next checkpoint
is written.
"""

import errno
import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.base.files import open_plain, read_plain
from dpzv_audit.base.store import Store
from dpzv_audit.runs import cpu_features, json_text, version_of

from .checkpoint import epochs_in, largest_checkpoint, load_checkpoint, save_checkpoint
from .method import Run
from .secret import KEY_BYTES
from .training import History


def run_key(facts: Mapping[str, object]) -> str:
    """Return a name for the run that `facts` (method, configuration, seed, data) describe: equal facts, equal key."""
    return hashlib.sha256(json_text(facts).encode()).hexdigest()[:16]


class FileCheckpoints:
    """Keeps the checkpoint of run `key` as `folder`/`key`.safetensors; takes it up only when `resume` is set.

    `epochs` counts those that are kept so far; of a run in stacks, those of the one stack that was tried first.
    """

    def __init__(self, folder: Path, key: str, *, resume: bool) -> None:
        self.path = folder / f"{key}.safetensors"
        self._key = key
        self._resume = resume
        self._noise_key = NoiseKeyFile(folder / f"{key}.noise-key", resume=resume)
        self._stacks: list[FileCheckpoints] = []
        self.epochs = 0
        self._resumed_at = 0

    def of_stack(self, first: int, last: int, trainings: int) -> "FileCheckpoints":
        """Return where trainings `first` to `last` of the run keep theirs: a file of their own if these are not all.

        What is said of the run counts theirs from now on.
        """
        if last - first == trainings:
            return self
        stack = FileCheckpoints(self.path.parent, f"{self._key}-{first}-{last}", resume=self._resume)
        self._stacks.append(stack)
        return stack

    @property
    def resumed_at(self) -> int:
        """Return epochs that were kept when this process took up the run, or last a stack of it; 0 where it began."""
        return next((stack.resumed_at for stack in reversed(self._stacks) if stack.resumed_at), self._resumed_at)

    def kept(self, epochs: int) -> str | None:
        """Return what lies on the disk of a run of `epochs` epochs, in words; None where nothing does.

        An earlier process may have kept it, of which this one has not read anything yet.
        """
        whole = _epochs_kept(self.path)
        done = [_epochs_kept(path) for path in self.path.parent.glob(f"{self._key}-*{self.path.suffix}")]
        if any(done):
            files = self.path.with_name(f"{self._key}-*{self.path.suffix}")
            return f"memory ran out, but {sum(done)} epochs of {len(done)} smaller stacks are kept in {files}"
        if whole:
            return f"{whole} of {epochs} epochs are kept in {self.path}"
        if self._noise_key.path.exists():
            return f"no epoch was finished, but the key of the noise drawn so far is kept in {self._noise_key.path}"
        return None

    def load(self, run: Run) -> History:
        """See `mechanisms.core.training.Checkpoints.load`; without a checkpoint the run starts from the beginning."""
        if not self.takes_up():
            return []
        try:
            content = read_plain(self.path, largest_checkpoint(run))
        except OSError as error:
            rule = f": cannot be read ({error.strerror}); use a readable file"
            raise InputError(rule, str(self.path)) from error
        try:
            history = load_checkpoint(run, content, self._key)
        except InputError as error:
            raise error.placed(f"{self.path}: ") from error
        self.epochs = self._resumed_at = len(history)
        return history

    def save(self, run: Run, history: History) -> None:
        """See `mechanisms.core.training.Checkpoints.save`; the file holds the old state or the new one, never a part.

        Raises `AuditError` where the disk refuses: the checkpoint before it stays.
        """
        content = save_checkpoint(run, history, self._key)
        # Whose noise is secret destroys a key next: then the state that needs it no more must be there for good.
        durable = self._noise_key.path.exists()
        Store(self.path.parent).write(self.path.name, content, cure=self._cure, durable=durable)
        self.epochs = len(history)

    @property
    def _cure(self) -> str:
        return f"{self.epochs} epochs are kept, make room and go on with ‹resume›"

    def takes_up(self) -> bool:
        """See `mechanisms.core.training.KeepsNoiseKeys`."""
        return self._resume and os.path.lexists(self.path)

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
            rule = f": cannot be written ({error.strerror or error}); {self._cure}"
            raise AuditError(rule, str(self.path)) from error

    def remove(self) -> None:
        """Forget the run: it is done. The keys of its noise are destroyed."""
        for path in self._left(self._noise_key.path.suffix):
            NoiseKeyFile(path, resume=True).destroy()
        for path in self._left(self.path.suffix):
            path.unlink(missing_ok=True)
        if self.path.parent.is_dir() and not any(self.path.parent.iterdir()):
            self.path.parent.rmdir()

    def _left(self, suffix: str) -> list[Path]:
        """Return files of the run and its stacks that end in `suffix`, also those whose writing a kill cut short."""
        names = [f"{self._key}{suffix}", f"{self._key}-*{suffix}"]
        unfinished = [f".{name}.*.partial" for name in names]
        return [path for name in (*names, *unfinished) for path in self.path.parent.glob(name)]


def _epochs_kept(path: Path) -> int:
    try:
        with open_plain(path) as file:
            return epochs_in(file)
    except (OSError, InputError):
        return 0


_OVERWRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_ANEW = "start without ‹resume›: that is another training, and where anything of this one left the house both count"


@dataclass(frozen=True)
class _NoiseKey:
    """A key of noise, the round from which it is drawn, and what the arithmetic of these rounds depends on."""

    round: int
    key: str
    arithmetic: dict[str, str | int | bool | None]


class NoiseKeyFile:
    """The file with the key of the noise that is drawn from one round on, until a checkpoint replaces that round."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Take up the key that an earlier process left in `path` only where `resume` is set."""
        self.path = path
        self._store = Store(path.parent)
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
            return bytes.fromhex(kept.key)
        if checkpoint.exists():
            return os.urandom(KEY_BYTES)  # never used: `key_from` refuses to go on
        return self._fresh(0, device)

    def key_from(self, round_: int, device: str) -> bytes:
        """Return the key of the rounds from `round_` on, where a checkpoint stands or the run begins.

        A key is on the disk before it is used. Raises `InputError` where rounds would be released a second time with
        other values: the key is gone, or is of later rounds, or this process does not compute as the one before did.
        """
        kept = self._read()
        if kept is None or kept.round > round_:
            raise InputError(
                ": the key of the noise since the last checkpoint is gone, so its rounds would be released a second "
                f"time with other noise; {_ANEW}",
                str(self.path),
            )
        if kept.round < round_:
            return self._fresh(round_, device)
        here = arithmetic(device)
        other = [name for name, value in kept.arithmetic.items() if here.get(name) != value]
        if other:
            then = ", ".join(f"{name} {kept.arithmetic[name]}" for name in other)
            now = ", ".join(f"{name} {here.get(name)}" for name in other)
            raise InputError(
                f": the training was interrupted with {then}, here it is {now}: under the same noise its last rounds "
                f"would differ by the arithmetic; go on as it was, or {_ANEW}",
                str(self.path),
            )
        return bytes.fromhex(kept.key)

    def destroy(self) -> None:
        """Overwrite the key and remove the file; nothing happens where there is none.

        What a file system or a disk keeps of bytes that are overwritten is beyond this.
        """
        with self._overwritten():
            self.path.unlink(missing_ok=True)

    def _fresh(self, round_: int, device: str) -> bytes:
        key = os.urandom(KEY_BYTES)
        kept = _NoiseKey(round=round_, key=key.hex(), arithmetic=arithmetic(device))
        with self._overwritten():
            self._store.write(self.path.name, kept, cure="make room and go on with ‹resume›", durable=True)
        return key

    @contextmanager
    def _overwritten(self) -> Iterator[None]:
        """Let the block replace or remove the file, then overwrite what it held; nothing where there was none.

        A link or a FIFO in its place is no key: what a link leads to is never overwritten.
        """
        try:
            handle = os.open(self.path, _OVERWRITE)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                raise
            yield
            return
        try:
            yield
            os.write(handle, bytes(os.fstat(handle).st_size))
            os.fsync(handle)
        finally:
            os.close(handle)

    def _read(self) -> _NoiseKey | None:
        cure = f"with it the noise since the last checkpoint is lost; {_ANEW}"
        return self._store.read(self.path.name, _NoiseKey, cure=cure)


def arithmetic(device: str) -> dict[str, str | int | bool | None]:
    """Return what the last bits of a training depend on: device, threads, processor features, versions.

    On a CUDA device also its libraries and whether products may round to TF32.
    """
    import torch

    facts = {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "dpzv-audit": version_of("dpzv-audit"),
        "threads": torch.get_num_threads(),
        "processor": f"{platform.machine()} {cpu_features()}",
        **{package: version_of(package) for package in ("torch", "numpy", "scipy")},
    }
    if device.startswith("cuda"):
        facts |= {
            "CUDA": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version(),
            "TF32 products": torch.backends.cuda.matmul.allow_tf32,
            "TF32 cuDNN": torch.backends.cudnn.allow_tf32,
        }
    return facts
