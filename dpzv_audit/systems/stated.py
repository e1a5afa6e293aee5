"""Reads the statements of a system's module beside its training: its release, its data, whether it draws at random."""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mechanisms.core.capabilities import Capabilities, Traffic

from ..accounting import Release
from ..base.errors import InputError, check_delta, check_names
from ..base.findings import AdversaryName
from ..base.loading import function_at, module_at, printing_aside, short, words_of
from ..data.vertical import VerticalDataset
from .release_tests import CARRIES
from .system import System, SystemFailed
from .task import Task, dataset_of

UNSTATED = "not known: the system states no release"
RELEASE = ("channel", "clip", "clip_scope", "sigma", "batch_size", "rounds", "sampler", "server_update")
"""Keys that a stated release must have; all others default as in `dpzv_audit.accounting.Release`."""
AUDIENCE: Mapping[str, tuple[AdversaryName, ...]] = {
    "gradient": ("client", "colluding-clients", "all-but-one"),
    "scalar": ("client", "colluding-clients", "all-but-one", "eavesdropper"),
    "embedding": ("server",),
}
"""Against whom the noise of a channel stands."""


def release_of(stated: Mapping[str, object], records: int, where: str = "") -> tuple[Release, float]:
    """Return the `stated` release on `records` records, and the delta; errors open with `where`.

    Noise is taken to be drawn and added in floating point, as programs do it, unless `noise` is stated.

    Raises `InputError` for a key that is missing, unknown or wrong.
    """
    missing = [key for key in RELEASE if key not in stated]
    if missing:
        raise InputError(f"{where} does not say {', '.join(missing)}; state {', '.join(RELEASE)}")
    settings: dict[str, Any] = {"dataset_size": records, "noise": "float", "delta": 1e-5, **stated}
    delta = settings.pop("delta")
    try:
        release = Release(**settings)
        # What no message carries, no rehearsal can hold against a training.
        check_names("channel", [release.channel], CARRIES)
        return release, check_delta("delta", delta)
    except TypeError as error:
        raise InputError(f"{where}: {words_of(error)}") from error
    except InputError as error:
        raise error.placed(f"{where}: ") from error


def stated_release(system: System, task: Task, capabilities: Capabilities) -> tuple[Release, float] | None:
    """Return the release that a system states, and the delta; None where it states nothing.

    Settings that it does not state are as its rehearsal showed. Raises `InputError` for a key that is missing, unknown
    or wrong.
    """
    if system.stated is None:
        return None
    stated = system.stated(task)
    release, delta = release_of(stated, task.records, f"system {system.name}: its release")
    return _rehearsed(release, stated, capabilities), delta


def system_at(path: str, seconds: float, folder: Path | None = None) -> System:
    """Return the system at `module:function`, with the statements of its module.

    Raises:
        InputError: There is none, or a statement is of the wrong type.
    """
    right = "module:function, such as our_vfl:train for the file our_vfl.py"
    module, _ = module_at(path, "system", right, folder)
    return system_of(function_at(path, "system", right, folder), path, seconds, home=module.__name__)


def system_of(train: Callable[..., Any], path: str, seconds: float, home: str = "") -> System:
    """Return the function `train`, which is called `path`, as a system; its statements, and errors, as `system_at`.

    The module `home`, by default that which defines the function, states them.
    """
    home = home or str(getattr(train, "__module__", ""))
    with suppress(TypeError, ValueError):  # some callables have no signature to check
        takes = inspect.signature(train)
        try:
            takes.bind(None, None, 0)
        except TypeError as error:
            shown = short(" ".join(str(takes).split()))
            raise InputError(f"system {path} takes {shown}; use (task, record, seed)") from error
    module = sys.modules.get(home)
    flags: dict[str, Any] = {}
    for name in ("top_model", "random"):
        value = getattr(module, name, None)
        if isinstance(value, bool):
            flags[name] = value
        elif value is not None and not isinstance(value, ModuleType):
            raise InputError(f"system {path}: its module states {name} = {value!r}; use True or False")
    release = getattr(module, "releases", getattr(module, "release", None))
    if isinstance(release, Mapping):
        release = partial(_stated, release)
    elif release is not None and not callable(release):
        raise InputError(
            f"system {path}: its module states a release of type {type(release).__name__}; "
            "use a dictionary, or a function of the task"
        )
    return System(path, train, seconds, stated=release, home=home, **flags)


def data_of(system: System) -> VerticalDataset | None:
    """Return the data that the system's module gives by a function `data()`; None where it has none.

    Raises `InputError` where it fails, or gives something else.
    """
    data = getattr(sys.modules.get(system.home), "data", None)
    if not isinstance(data, FunctionType):
        return None
    where = f"{system.name.partition(':')[0]}:data"
    try:
        with printing_aside():
            answer = data()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SystemFailed(f"{where} raised {words_of(error)}") from error
    return dataset_of(answer, where)


def _stated(release: Mapping[str, object], task: Task) -> Mapping[str, object]:
    return release


def _rehearsed(release: Release, stated: Collection[str], capabilities: Capabilities) -> Release:
    """Return a release with what the rehearsal showed, or with a worse value, of each setting that is not `stated`.

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
    return replace(release, **{key: value for key, value in shown.items() if key not in stated})
