"""The commands as Python functions: keywords are a command's options, and the answer is its result as a model.

A function runs the code of its command in this process. It prints nothing on stdout, and leaves signal handlers and the
number of threads as they were. One runs at a time, in any thread; outside of the main thread nothing ends a training of
your own that takes longer than `trial_seconds`.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from numbers import Integral, Real
from typing import Any, overload

import typer

from ..accounting.calibration import Calibration
from ..base.errors import AuditError, InputError, Interrupted, nearest, one_line
from ..results import (
    AccountResult,
    AttackResult,
    AttacksResult,
    AuditResult,
    MatrixResult,
    PlantedResult,
    ScoresResult,
    TrainResult,
    VerifyResult,
)
from . import USAGE_ERROR, app, mistake
from .config import Key, spelled
from .flags import GIVEN, option_of, said
from .output import TAKES_RESULT

PathName = str | os.PathLike[str]
_PRINTED = ("self_check", "check", "schema", "table")
"""Options with which a command prints something that is no result."""
_UNKNOWN = ("help", "help_all", "json", "quiet", "verbose", *_PRINTED)
"""Options that no function takes as they are."""
_LIGHT = {("account",), ("calibrate",), ("audit", "scores")}
"""Commands that train nothing."""
_FLAG = re.compile(r"dpzv-audit [^;,:()]*|--([a-z][a-z-]*)")
"""A command in a message, or the name of a flag."""
# Random streams, threads and matplotlib's settings are the process's own.
_one_at_a_time = threading.RLock()


def attack(
    method: str | None = None, *, data: PathName | None = None, quiet: bool = True, **options: Any
) -> AttackResult | AttacksResult:
    """Attack a method, or a training of your own, as `dpzv-audit attack` does.

    Example: `dpzv_audit.attack("dpzv", data="digits", attack="label_scalar", trials=8)`

    Args:
        method: Training method, dpzv by default. Instead, `system="our_vfl:train"` or `transcript=FOLDER` names a
            training of your own.
        data: Data set by its name, or the path of a CSV file; then `label` names the column to predict.
        quiet: False shows progress on stderr.
        options: Options of the command, with underscores for hyphens: `attack`, `adversary`, `trials`, `runs`,
            `epsilon`, `out` and others. `dpzv-audit attack --help` lists them. A list gives an option several times. A
            dictionary gives options of the form KEY=VALUE, as `set={"momentum": 0.9}`.

    Returns:
        The result; `run` is the path of its run folder. With `attack="all"`, the default for a training of your own, it
        is an `AttacksResult`.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
        AuditError: Something failed, such as a negative control; the message is one line.
    """
    result: AttackResult | AttacksResult = _result(("attack",), quiet, options, method=method, data=data)
    return result


def train(
    method: str | None = None, *, data: PathName | None = None, quiet: bool = True, **options: Any
) -> TrainResult:
    """Train a method, or a training of your own, without an attack, as `dpzv-audit train` does.

    Example: `dpzv_audit.train("dpzv", epochs=20)`

    Args:
        method: Training method, dpzv by default. Instead, `system="our_vfl:train"` names a training of your own.
        data: As for `attack`.
        quiet: False shows progress on stderr.
        options: Options of the command, as for `attack`; `dpzv-audit train --help` lists them.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
        AuditError: Something failed; the message is one line.
    """
    result: TrainResult = _result(("train",), quiet, options, method=method, data=data)
    return result


@overload
def audit(*, mechanism: str, quiet: bool = True, **options: Any) -> AuditResult | PlantedResult: ...
@overload
def audit(*, scores: Sequence[PathName], quiet: bool = True, **options: Any) -> ScoresResult: ...
@overload
def audit(
    method: str | None = None,
    *,
    system: str | None = None,
    defence: str | Sequence[str] | None = None,
    data: PathName | None = None,
    quiet: bool = True,
    **options: Any,
) -> AuditResult: ...
def audit(
    method: str | None = None,
    *,
    system: str | None = None,
    mechanism: str | None = None,
    scores: Sequence[PathName] | None = None,
    defence: str | Sequence[str] | None = None,
    data: PathName | None = None,
    quiet: bool = True,
    **options: Any,
) -> AuditResult | PlantedResult | ScoresResult:
    """Bound epsilon from below, as the commands of `dpzv-audit audit` do.

    Example: `dpzv_audit.audit("dpzv", epsilon=1, delta=1e-5, runs=500)`

    Args:
        method: Training method, dpzv by default (`audit method`).
        system: Instead of `method`, a training of your own, such as "our_vfl:train", which is imported (`audit
            system`).
        mechanism: Instead of `method`, a mechanism of your own, such as "package.module:factory", which is imported, or
            "planted:all" (`audit mechanism`).
        scores: Instead of `method`, two files of scores, with the canary and without it (`audit scores`). For scores in
            memory use `dpzv_audit.audit_scores`.
        defence: Without any of these, the defence to audit (`audit defence`); with a `method`, its defences.
        data: As for `attack`.
        quiet: False shows progress on stderr.
        options: Options of the command, as for `attack`; `dpzv-audit audit method --help` lists those for methods.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
        AuditError: Something failed; the message is one line.
    """
    subjects = {"method": method, "system": system, "mechanism": mechanism, "scores": scores}
    named = {kind: subject for kind, subject in subjects.items() if subject is not None}
    if len(named) > 1:
        raise InputError(f"audit() takes one of {', '.join(subjects)}, not {' and '.join(named)}")
    kind = next(iter(named), "method")
    if not named and defence is not None:
        kind = "defence"
        named = {"name": defence}
    elif defence is not None:
        named["defence"] = defence
    result: AuditResult | PlantedResult | ScoresResult = _result(("audit", kind), quiet, options, **named, data=data)
    return result


def hunt(mechanism: str, *, quiet: bool = True, **options: Any) -> AuditResult:
    """Look for the two worlds in which a mechanism gives the most away, and audit it there, as `dpzv-audit hunt` does.

    Args:
        mechanism: A mechanism of your own, such as "package.module:factory", which is imported.
        quiet: False shows progress on stderr.
        options: Options of the command, as for `attack`; `dpzv-audit hunt --help` lists them.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
        AuditError: Something failed; the message is one line.
    """
    result: AuditResult = _result(("hunt",), quiet, options, mechanism=mechanism)
    return result


def account(method: str | None = None, *, quiet: bool = True, **options: Any) -> AccountResult:
    """Bound epsilon from above for a release or a method, as `dpzv-audit account` does.

    Example: `dpzv_audit.account(batch_size=64, dataset_size=1408, rounds=176, clip=10, sigma=0.7)`

    Args:
        method: Training method whose release is meant; leave it out to give the numbers of a release.
        quiet: Nothing is shown of this command either way.
        options: Options of the command, as for `attack`; `dpzv-audit account --help` lists them.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
        AuditError: Accountants disagree.
    """
    result: AccountResult = _result(("account",), quiet, options, method=method)
    return result


def calibrate(method: str | None = None, *, quiet: bool = True, **options: Any) -> Calibration:
    """Find the noise, rounds or batch size that meet a target, as `dpzv-audit calibrate` does.

    Args:
        method: Training method whose release is meant; leave it out to give the numbers of a release.
        quiet: Nothing is shown of this command either way.
        options: Options of the command, as for `attack`; `dpzv-audit calibrate --help` lists them.

    Returns:
        The answer: its `value` is None and its `reason` says why where the target cannot be reached.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
    """
    result: Calibration = _result(("calibrate",), quiet, options, method=method)
    return result


def matrix(
    methods: str | Sequence[str] | None = None, *, data: PathName | None = None, quiet: bool = True, **options: Any
) -> MatrixResult:
    """Mount every attack on every method, as `dpzv-audit matrix` does.

    Args:
        methods: Training methods, all by default.
        data: As for `attack`.
        quiet: False shows progress on stderr.
        options: Options of the command, as for `attack`; `dpzv-audit matrix --help` lists them.

    Raises:
        InputError: A keyword or a value is wrong; the message is one line.
        AuditError: A cell or a negative control failed; the message is one line.
    """
    result: MatrixResult = _result(("matrix",), quiet, options, methods=methods, data=data)
    return result


def verify(claims: PathName, *, quiet: bool = True, **options: Any) -> VerifyResult:
    """Put every claim of a file to the test, as `dpzv-audit verify` does.

    Example: `dpzv_audit.verify("claims.toml", max_minutes=5).failed`

    Args:
        claims: The claims file.
        quiet: False shows progress on stderr.
        options: Options of the command, as for `attack`; `dpzv-audit verify --help` lists them. Code that the file
            names runs with `trust_code=True` alone.

    Returns:
        The result, whether a claim fails or not: `failed` says whether the command would exit with 1.

    Raises:
        InputError: The file, a keyword or a value is wrong; the message is one line.
        AuditError: Something failed; the message is one line.
    """
    result: VerifyResult = _result(("verify",), quiet, options, claims=claims)
    return result


def _result(path: tuple[str, ...], quiet: bool, options: Mapping[str, Any], **keywords: Any) -> Any:
    """Run the command of that path with keywords, and return its result."""
    with _one_at_a_time, _one_thread(light=path in _LIGHT):
        return copy_context().run(_run, path, quiet, {**keywords, **options})


def _run(path: tuple[str, ...], quiet: bool, keywords: Mapping[str, Any]) -> Any:
    """Run a command in a context of its own, whose variables are forgotten with it."""
    top: Any = typer.main.get_command(app)
    command = top
    for name in path:
        command = command.get_command(None, name)
    known = {option_of(flag): parameter for parameter in command.params for flag in parameter.opts}
    names = {option: option for option in known}
    names |= {_option(name, value): name for name, value in keywords.items() if value is not None}
    answers: list[Any] = []
    TAKES_RESULT.set(answers.append)
    try:
        words = [*path, *_words(path, known, keywords)]
        GIVEN.set(tuple(words))
        printing = ["--json", *(["--quiet"] if quiet else [])]
        with top.make_context("dpzv-audit", [*words[: len(path)], *printing, *words[len(path) :]]) as context:
            top.invoke(context)
    except typer.Exit:
        pass  # the exit code of a gate or of planted mechanisms, which the result says too
    except Interrupted as error:
        raise KeyboardInterrupt(_with_keywords(said(error), names)) from None
    except AuditError as error:
        raise type(error)(_with_keywords(said(error), names)) from None
    except USAGE_ERROR as error:
        raise InputError(_with_keywords(one_line(mistake(error)), names)) from None
    except SystemExit as ended:
        raise AuditError(f"code that was imported ended the process with {ended.code!r}") from ended
    if not answers:
        raise AuditError(f"{' '.join(path)} gave no result")
    return answers[-1]


@contextmanager
def _one_thread(*, light: bool) -> Iterator[None]:
    """Compute in one thread while the block runs, as a command does, unless OMP_NUM_THREADS says otherwise.

    Products are small, more threads than idle cores make them slower, and sums in another order change last digits.
    """
    with ExitStack() as limits:
        if not light and "OMP_NUM_THREADS" not in os.environ:
            with suppress(ModuleNotFoundError):  # an installation for scores alone
                import torch
                from threadpoolctl import threadpool_limits

                limits.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
                limits.enter_context(threadpool_limits(1))
        yield


def _words(path: Sequence[str], known: Mapping[str, Any], keywords: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that keywords give: arguments, then options."""
    arguments: list[str] = []
    options: list[str] = []
    for name, value in keywords.items():
        if value is None:
            continue
        option = _option(name, value)
        if option != name and keywords.get(option) is not None:
            raise InputError(f"{name} and {option} are one keyword, give one of them")
        if option not in known or option in _UNKNOWN:
            raise _unknown(path, name, known)
        parameter = known[option]
        words = arguments if parameter.param_type_name == "argument" else options
        for _, spelt in spelled(parameter, Key(name, _in_words(parameter, _plain(value)))):
            # In one word, a value that begins with dashes is no flag.
            words += ["=".join(spelt)] if words is options and len(spelt) == 2 else spelt
    dashes = ["--"] if any(argument.startswith("-") for argument in arguments) else []
    return [*options, *dashes, *arguments]


def _option(name: str, value: object) -> str:
    """Return the option that a keyword gives: `data` gives `csv` for the path of a CSV file, else `dataset`."""
    if name != "data":
        return name
    return "csv" if isinstance(value, os.PathLike) or str(value).lower().endswith(".csv") else "dataset"


def _unknown(path: Sequence[str], name: str, known: Mapping[str, Any]) -> InputError:
    """Return the error for a keyword that a function does not take."""
    command = f"dpzv-audit {' '.join(path)}"
    if name in known and name in _PRINTED:
        return InputError(f"{name} asks for something that is no result; run {command} --{name.replace('_', '-')}")
    near = nearest(name, {*known, "quiet"} - {"help", "json", *_PRINTED})
    hint = f"did you mean {near}?" if near else f"{command} --help lists its options"
    return InputError(f"{path[0]}() takes no keyword {name!r}: {hint}")


def _plain(value: Any) -> Any:
    """Return a value of Python, numpy or torch as TOML has it: text, whole numbers, numbers, lists and tables."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    match value:
        case bool() | str():
            return value
        case os.PathLike():
            return os.fspath(value)
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case Sequence():
            return [_plain(item) for item in value]
    return value


def _in_words(parameter: Any, value: Any) -> Any:
    """Return the value of an option such as `A,B` or `A=X,...` as its text; others stay as they are."""
    if "," not in (parameter.metavar or ""):
        return value
    if parameter.multiple and isinstance(value, list):
        return [_joined(item) for item in value]
    return _joined(value)


def _joined(value: Any) -> Any:
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _with_keywords(message: str, names: Mapping[str, str]) -> str:
    """Return a message with the keywords of `names` for the flags of a command; commands in it stay as they are."""
    return _FLAG.sub(lambda match: names.get(option_of(match[1] or ""), match[0]), message)
