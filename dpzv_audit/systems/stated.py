"""What the module of a system states beside its training: what it releases, its data, whether it draws at random."""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mechanisms.core.capabilities import Capabilities, Traffic

from ..accounting import Release
from ..base.errors import InputError, check_delta
from ..base.findings import AdversaryName
from ..base.loading import function_at, module_at, printing_aside, short, words_of
from ..data.vertical import VerticalDataset
from .release_tests import CARRIES
from .system import System, SystemFailed
from .task import Task, dataset_of

UNSTATED = "not known: the system states no release"
RELEASE = ("channel", "clip", "clip_scope", "sigma", "batch_size", "rounds", "sampler", "server_update")
"""What a release that a system states must say; all else is as `dpzv_audit.accounting.Release` has it by default."""
AUDIENCE: Mapping[str, tuple[AdversaryName, ...]] = {
    "gradient": ("client", "colluding-clients", "all-but-one"),
    "scalar": ("client", "colluding-clients", "all-but-one", "eavesdropper"),
    "embedding": ("server",),
}
"""Against whom the noise of a channel stands."""


def release_of(stated: Mapping[str, object], records: int, where: str = "") -> tuple[Release, float]:
    """Return what is `stated` about a release on `records` records, and the delta; errors open with `where`.

    Noise is taken to be drawn and added in floating point, as programs do it, unless `noise` is stated.

    Raises `InputError` for a key that is missing, unknown or wrong.
    """
    said: dict[str, Any] = dict(stated)
    missing = [key for key in RELEASE if key not in said]
    if missing:
        raise InputError(f"{where} does not say {', '.join(missing)}, must say {', '.join(RELEASE)}")
    delta = said.pop("delta", 1e-5)
    try:
        return Release(**{"dataset_size": records, "noise": "float", **said}), check_delta("delta", delta)
    except TypeError as error:
        raise InputError(f"{where}: {words_of(error)}") from error
    except InputError as error:
        raise error.placed(f"{where}: ") from error


def stated_release(system: System, task: Task, capabilities: Capabilities) -> tuple[Release, float] | None:
    """Return what a system states that it releases, and the delta; None where it states nothing.

    What it does not state of it is as its rehearsal showed. Raises `InputError` for a key that is missing, unknown or
    wrong.
    """
    if system.stated is None:
        return None
    stated = system.stated(task)
    release, delta = release_of(stated, task.records, f"system {system.name}: its release")
    return _rehearsed(release, stated, capabilities), delta


def system_at(path: str, seconds: float, folder: Path | None = None) -> System:
    """Return the system at `module:function`, with what its module states about it.

    Raises:
        InputError: There is none, or what it states is of the wrong type.
    """
    right = "module:function, such as our_vfl:train for the file our_vfl.py"
    home, _ = module_at(path, "system", right, folder)
    return system_of(function_at(path, "system", right, folder), path, seconds, home=home.__name__)


def system_of(train: Callable[..., Any], path: str, seconds: float, home: str | None = None) -> System:
    """Return the function `train`, which is called `path`, as a system; what it states, and errors, as `system_at`.

    The module `home`, by default that which defines the function, states it.
    """
    _check_signature(train, path)
    home = str(getattr(train, "__module__", "")) if home is None else home
    module = sys.modules.get(home)
    stated: dict[str, Any] = {"home": home}
    for name in ("top_model", "random"):
        value = getattr(module, name, None)
        if isinstance(value, bool):
            stated[name] = value
        elif value is not None and not isinstance(value, ModuleType):
            given = f"{name} = {value!r}"
            raise InputError(f"system {path}: its module states {given}, must be True or False")
    release = getattr(module, "releases", getattr(module, "release", None))
    if isinstance(release, Mapping):
        release = partial(_given, release)
    elif release is not None and not callable(release):
        given = f"a release of type {type(release).__name__}"
        raise InputError(f"system {path}: its module states {given}, must be a dictionary, or a function of the task")
    return System(path, train, seconds, stated=release, **stated)


def _check_signature(train: Callable[..., Any], path: str) -> None:
    try:
        takes = inspect.signature(train)
    except (TypeError, ValueError):  # some callables have no signature to check
        return
    words = " ".join(str(takes).split())
    try:
        takes.bind(None, None, 0)
    except TypeError as error:
        raise InputError(f"system {path}: must take (task, record, seed), not {short(words)}") from error


def data_of(system: System) -> VerticalDataset | None:
    """Return the data that the system's module gives by a function `data()`; None where it has none.

    Raises `InputError` where it fails, or gives something else.
    """
    module = sys.modules.get(system.home)
    found = getattr(module, "data", None)
    if found is None or not isinstance(found, FunctionType):
        return None
    where = f"{system.name.partition(':')[0]}:data"
    try:
        with printing_aside():
            answer = found()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SystemFailed(f"{where} raised {words_of(error)}") from error
    return dataset_of(answer, where)


def _given(release: Mapping[str, object], task: Task) -> Mapping[str, object]:
    return release


def _rehearsed(release: Release, said: Collection[str], capabilities: Capabilities) -> Release:
    """Return a release with what the rehearsal showed, or what is worse, where it was not `said`.

    Labels in messages beside those with noise are data that were published. Messages are counted as if each had a clip
    of its own.
    """
    kind = CARRIES[release.channel]
    sent = capabilities.up if release.channel == "embedding" else capabilities.down
    seen = sent.get(kind, Traffic(0, 0))
    more = seen.messages > release.rounds * release.directions + release.whole_data_rounds
    most = release.fixed_participations
    if most is not None:
        more |= seen.of_one > most * release.directions + release.whole_data_rounds
    shown: dict[str, Any] = {
        "client_update": "first-order",
        "data_dependent_side": bool(sent.keys() - {kind}),
        "own_rounds_only": more,
        "batch_coupling": capabilities.coupled and release.clip_scope == "record",
    }
    return replace(release, **{key: value for key, value in shown.items() if key not in said})
