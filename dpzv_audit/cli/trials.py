"""Trainings of a system and parts of attacks that are kept for --resume, and messages about them."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import AuditError, InputError, Interrupted
from ..base.files import Undigested
from ..base.loading import importable
from ..base.signals import TRIAL_SECONDS
from ..base.store import Store, hold
from ..runs import versions
from .flags import Positive, WorkerFlags, refuse
from .output import GO_ON

if TYPE_CHECKING:
    from attacks import AttackSetting
    from mechanisms import Training

    from ..evidence.planning import Pace
    from ..systems.trials import TrialStore


@dataclass(frozen=True, kw_only=True)
class TrialFlags(WorkerFlags):
    """Options on how trainings of a system of the user's own are carried out.

    Execution:
        jobs N: With --system: worker processes. Each takes the next training.
        executor loky|dask: With --system: processes here, or a cluster.
        scheduler ADDRESS: Dask scheduler, such as tcp://host:8786.
        trial_seconds X: With --system: longest training, in seconds. 60 by default.
    """

    trial_seconds: Positive | None = None

    @property
    def seconds(self) -> float:
        """Return the seconds that one training may take."""
        return TRIAL_SECONDS if self.trial_seconds is None else self.trial_seconds

    def refuse(self, *others: str) -> None:
        """Raise `InputError` for one that is given without a system; for `others` too."""
        given = [name for name, value in vars(self).items() if value is not None]
        refuse([*given, *others], [*given, *others], "goes with --system, whose trainings are carried out one by one")


@dataclass(frozen=True, kw_only=True)
class PlannedFlags(TrialFlags):
    """The same, with a limit within which trainings are planned.

    Execution:
        max_minutes X: With --system: most minutes. Where they are few there are fewer trainings, and a line says
            beforehand what these could show.
    """

    max_minutes: Positive | None = None

    def pace(self) -> "Pace":
        """Return the time for trainings, from now on. How many slots a cluster has is not known."""
        from ..evidence.planning import Pace

        return Pace(minutes=self.max_minutes, jobs=self.jobs or 1)


@contextmanager
def kept_trials(flags: TrialFlags, system: str | None, out: Path, *, resume: bool) -> Iterator["TrialStore | None"]:
    """Keep the trainings of a system below `out` while the block runs, and forget them when it is done; None for none.

    They are found again by the code that they were trained with, each by what it was trained on and its seed. With
    `resume` those stay that the command before has left. What ends the block says how many are kept. Where the folder
    of the code holds too much to be digested, none is kept past the block.
    """
    if system is None:
        flags.refuse(*(["resume"] if resume else []))
        yield None
        return
    from mechanisms.core.checkpoints import run_key

    from ..systems.trials import TrialStore

    code = _code_of(system, out, resume=resume)
    key = run_key({"system": system, "code": code or secrets.token_hex(8), "versions": versions()})
    folder = out / "trials" / key
    trials = TrialStore(workers=flags.workers(), folder=folder)
    with kept_parts(folder, "training", lambda: 0 if code is None else trials.kept, resume=resume):
        yield trials


@contextmanager
def kept_attacks(
    setting: "AttackSetting", out: Path, facts: Mapping[str, object], kind: str, *, resume: bool
) -> Iterator[Store]:
    """Keep below `out` what is done of attacks on the training of a setting while the block runs; see `kept_parts`.

    It is found again by that training and `facts`.
    """
    from mechanisms.core.checkpoints import run_key

    settings = {name: getattr(setting, name) for name in ("device", "confidence")}
    store = Store(out / "attacks" / run_key({**training_facts(setting), **settings, **facts, "versions": versions()}))
    with kept_parts(store.folder, kind, store.count, resume=resume):
        yield store


def training_facts(training: "Training") -> dict[str, object]:
    """Return what tells a training from others, for a key: its method, configuration, data, model and seed."""
    from ..data.files import model_digest

    return {
        "method": training.method.name,
        "config": training.config.model_dump(mode="json"),
        "data": training.dataset.fingerprint,
        "model": model_digest(training.config.transformer),
        "seed": training.seed,
    }


@contextmanager
def kept_parts(folder: Path, kind: str, count: Callable[[], int], *, resume: bool) -> Iterator[None]:
    """Keep in `folder` what the block does there, and forget it when all is done.

    With `resume` the parts of the command before stay. An interrupt or an error says how many of `kind` the folder
    holds, by `count`; where that is 0, nothing is kept.
    """

    def kept() -> str:
        number = count()
        if number == 0:
            shutil.rmtree(folder, ignore_errors=True)
            return ""
        return f"{number} {kind}{' is' if number == 1 else 's are'} kept in {folder}"

    with hold(folder.with_suffix(".lock"), f"what is kept in {folder}"):
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        with saying_what_is_kept(kept, f"no {kind} is kept"):
            yield
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are there
        folder.parent.rmdir()


@contextmanager
def saying_what_is_kept(kept: Callable[[], str | None], nothing: str, *, failing: bool = True) -> Iterator[None]:
    """Let an interrupt of the block say what is `kept`, else `nothing`; with `failing` an error says it too."""
    try:
        yield
    except KeyboardInterrupt:
        parts = kept()
        raise Interrupted(f"{parts}; {GO_ON}" if parts else nothing) from None
    except AuditError as error:
        parts = kept() if failing else None
        if not parts:
            raise
        raise error.placed("", f"; {parts}: {GO_ON}") from error


def _code_of(system: str, out: Path, *, resume: bool) -> str | None:
    """Return the digest of the code of a system; None where there is none, or too much of it to be digested."""
    from ..games.mechanism import code_of

    try:
        with importable(None):
            return code_of(system, [out.absolute()])
    except InputError:  # no such module: loading it says so
        return None
    except Undigested:
        if resume:
            raise
        return None
