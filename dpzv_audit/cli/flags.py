"""Options of the commands, each declared once: as a field or a parameter, with its help in the docstring beside it."""

import inspect
import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from ..base.errors import (
    AuditError,
    InputError,
    check_count,
    check_delta,
    check_names,
    check_positive,
    check_probability,
    one_line,
)
from ..base.signals import TRIAL_SECONDS

if TYPE_CHECKING:
    from ..base.executor import Workers


Command = Callable[..., None]
PANELS = (
    *("Basics", "Data", "Training", "Release", "Batches", "Server and clients", "Conditions", "Attacker", "Audit"),
    *("Execution", "Output"),
)
"""Panels of help in their order: headings in the docstrings below which options stand."""


@dataclass(frozen=True)
class Described:
    """Help of an option: its metavar, its text, whose first sentence `--help` shows, and its panel."""

    metavar: str | None = None
    text: str = ""
    panel: str = "Basics"


Said = Mapping[str, Described]
"""Help of options, by name."""
CONFIG = Described(
    "FILE",
    "Read options from a TOML file. Those on the command line win; see docs/reference/command-line.md.",
    "Output",
)
_ENTRY = re.compile(r"(\w+)(?: (.+?))?: (.+)")
_PANEL = re.compile(rf"\n({'|'.join(PANELS)}):\n")


def takes(command: Command) -> Command:
    """Give a command its options: its own parameters, and the fields of each one that is a dataclass in its place.

    A parameter's or field's name is its flag, but where `Annotated` says the flags. A function in `Annotated` checks
    the value, and a `Literal` allows its words alone. Sections of the docstring, of a dataclass also of those it
    extends, are called as `PANELS` and hold `name METAVAR: help`; the command's own come first. The command gets an
    instance of each dataclass.
    """
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    text, texts = _described(command.__doc__)
    options = {name: _of_fields(hints[name], texts) for name in own.parameters if is_dataclass(hints[name])}
    parameters = []
    for name, parameter in own.parameters.items():
        parameters += options.get(name) or [_option(name, hints[name], parameter.default, texts)]
    # Its file has been read by then: `dpzv_audit.cli.config`.
    parameters.append(_option("config", Path | None, None, {"config": CONFIG}))

    def bundled(**values: Any) -> None:
        values.pop("config", None)
        for parameter in parameters[:-1]:
            _check(parameter, values[parameter.name])
        for name, group in options.items():
            values[name] = hints[name](**{parameter.name: values.pop(parameter.name) for parameter in group})
        command(**values)

    bundled.__doc__ = text
    bundled.__name__ = command.__name__
    bundled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    bundled.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return bundled


def _of_fields(bundle: type, own: Said) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    texts: dict[str, Described] = {}
    for kind in reversed(bundle.__mro__):
        texts |= _described(kind.__doc__)[1]
    texts |= own
    return [_option(field.name, hints[field.name], field.default, texts) for field in fields(bundle)]


def _described(doc: str | None) -> tuple[str, Said]:
    """Return a docstring without its panels, and the help of each option in them."""
    text, *sections = _PANEL.split(inspect.cleandoc(doc or ""))
    options = {}
    for panel, section in zip(sections[::2], sections[1::2], strict=True):
        for entry in re.split(r"\n(?! {5})", section):
            if match := _ENTRY.fullmatch(" ".join(entry.split())):
                options[match[1]] = Described(match[2], match[3], panel)
    return text, options


def _option(name: str, hint: Any, default: object, texts: Said) -> inspect.Parameter:
    """Return the parameter that typer makes an option of; one that typer knows already stays as it is."""
    kind, rules = _unpacked(hint)
    known = any(isinstance(rule, typer.models.ParameterInfo) for rule in rules)
    if kind is not typer.Context and not known:
        spelled = [rule for rule in rules if isinstance(rule, str)] or [flag(name)]
        described = texts.get(name, Described())
        checks = [partial(rule, option_of(spelled[0])) for rule in rules if callable(rule)]
        option = typer.Option(
            *spelled,
            metavar=described.metavar,
            help=described.text,
            rich_help_panel=described.panel,
            autocompletion=completion(spelled[0]),
        )
        hint = Annotated[kind, option, *checks]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


_CODE = {
    "--method": "mechanisms/methods/*.py",
    "--defence": "mechanisms/defences/*.py",
    "--attack": "attacks/*/*.py",
}
"""Files with the built-in names that a flag takes."""


def built_in_names(flag: str) -> list[str]:
    """Return the built-in names that a flag takes; read from the code's text, as its import would load torch."""
    if flag == "--dataset":
        from ..data import DATASETS

        return list(DATASETS)
    files = sorted(Path(__file__).parents[2].glob(_CODE[flag]))
    return [name for file in files for name in re.findall(r'^    name="([\w-]+)",$', file.read_text("utf-8"), re.M)]


def completion(flag: str) -> Callable[[str], list[str]] | None:
    """Return what completes the value of a flag in a shell; None where no names are known."""
    if flag != "--dataset" and flag not in _CODE:
        return None

    def complete(begun: str) -> list[str]:
        return [name for name in built_in_names(flag) if name.startswith(begun)]

    return complete


def _check(parameter: inspect.Parameter, value: Any) -> None:
    """Raise `InputError` naming the option where a function in the parameter's annotation refuses its value."""
    for check in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(check, partial) and value is not None:
            for item in value if isinstance(value, list) else [value]:
                check(item)


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type as typer takes it, and what is said of it: in `Annotated`, and a check for a `Literal`'s words."""
    kind = get_origin(hint)
    parts = get_args(hint)
    if kind is Literal:
        return str, (among(*parts),)
    if kind is Annotated:
        inner, rules = _unpacked(parts[0])
        return inner, (*rules, *parts[1:])
    if kind is not list and types.NoneType not in parts:
        return hint, ()
    inner, rules = _unpacked(parts[0])
    return list[inner] if kind is list else inner | None, rules  # type: ignore[valid-type]


def _writable(name: str, out: Path) -> None:
    """Raise `InputError` where a folder cannot be made or written to: before hours of work, not after them."""
    from ..runs import check_out

    check_out(out)


def among(*allowed: str, kind: str = "") -> Callable[[str, str], object]:
    """Return a check that a word is one of `allowed`, which `dpzv-audit list` may have under `kind`."""
    return lambda name, given: check_names(name, [given], allowed, kind)


_MOST = 10**9
"""The most that any option counts: sizes past it overflow long after the command line was read."""


def _counted(name: str, value: int) -> int:
    return check_count(name, check_count(name, value), most=_MOST)


Count = Annotated[int, _counted]
Whole = Annotated[int, partial(check_count, least=0)]
Positive = Annotated[float, check_positive]
Probability = Annotated[float, check_probability]
Delta = Annotated[float, check_delta]
Device = Literal["cpu", "cuda", "auto"]
DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class OutFlags:
    """Options of every command that runs something.

    Execution:
        seed N: Seed of everything but secret noise.
    Output:
        out DIR: Folder for the run folder.
    """

    seed: Whole = 0
    out: Annotated[Path, _writable] = Path("dpzv-runs")


@dataclass(frozen=True, kw_only=True)
class RunFlags(OutFlags):
    """Options of every command that trains.

    Execution:
        device cpu|cuda|auto: Device to compute on.
    """

    device: Device = "cpu"


@dataclass(frozen=True, kw_only=True)
class CellFlags(RunFlags):
    """Options of every cell of a matrix.

    Basics:
        epochs N: Epochs; each is D/B rounds of all clients. By default the method's own.
        seeds N: Trainings with different seeds per cell.
    Training:
        batch_size B: Records per batch. By default the method's own.
    Audit:
        confidence X: Confidence of each bound. It holds for each interval too.
    Execution:
        trial_seconds X: Longest training, in seconds.
    """

    epochs: Count | None = None
    batch_size: Count | None = None
    seeds: Annotated[Count, "--trials"] = 3
    confidence: Probability = 0.95
    trial_seconds: Positive = TRIAL_SECONDS

    def facts(self, data: object) -> dict[str, object]:
        """Return all that numbers of cells on `data` depend on."""
        names = ("epochs", "batch_size", "seeds", "seed", "confidence", "device")
        return {"data": data, **{name: getattr(self, name) for name in names}}


NOT_BOTH = "does not go with --system, whose training is its own: leave one of them out"
"""Why a method that is named beside a system is refused."""
_NO_SETTING = ("method", "settings", "system", "defence", "defence_settings")


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """The method and its settings, as the user said them; None where not given.

    Basics:
        method NAME: Method; see `dpzv-audit list methods`.
        system MODULE:FUNCTION: Your training function, instead of --method. our_vfl:train is `train` in our_vfl.py in
            this folder. Its code is run; docs/guide/own-system.md says which arguments it gets.
        epochs N: Epochs; each is D/B rounds of all clients. D is the number of records, B the batch size. By default
            the method's own.
        epsilon X: Claimed epsilon, which sets the noise. By default the method's own.
    Training:
        batch_size B: Records per batch. By default the method's own.
        delta X: Delta of the claim and of bounds. Strictly between 0 and 1.
        calibration NAME: Rule of the noise: paper, sound or none. How the noise follows from epsilon; by default the
            method's own.
        sigma X: Noise on the scalar, as a standard deviation. Overrides --calibration, and claims nothing without
            --epsilon.
        clip C: Clipping norm of a record's part in a message. By default the method's own.
        sample_rate Q: Rate of Poisson batches, if public. A record is in a batch with this probability, with --set
            sampler=poisson; otherwise it is B/D.
        settings KEY=VALUE: Any other setting of the method. May be given several times.
        defence NAME: Label defence; see `dpzv-audit list defences`. Several are applied in the order given.
        defence_settings KEY=VALUE: Setting of the defence. NAME.KEY=VALUE with several defences; may be given several
            times.
    """

    method: str | None = "dpzv"
    system: str | None = None
    epochs: Count | None = None
    batch_size: Count | None = None
    epsilon: float | None = None
    delta: float | None = None
    calibration: str | None = None
    sigma: float | None = None
    clip: Annotated[float | None, "--clip", "--max-grad-norm"] = None
    sample_rate: float | None = None
    settings: Annotated[list[str] | None, "--set"] = None
    defence: list[str] | None = None
    defence_settings: Annotated[list[str] | None, "--defence-set"] = None

    @property
    def given(self) -> dict[str, object]:
        """Return the options that were given, by the method's setting."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return {name: value for name, value in given.items() if name not in _NO_SETTING}


@dataclass(frozen=True, kw_only=True)
class WorkerFlags:
    """Options on where runs are carried out.

    Execution:
        jobs N: Worker processes on this machine.
        executor loky|dask: Processes here, or a Dask cluster.
        scheduler ADDRESS: Dask scheduler, such as tcp://host:8786.
    """

    jobs: Count | None = None
    executor: str | None = None
    scheduler: str | None = None

    def workers(self) -> "Workers":
        """Return the workers that the flags name; `InputError` where the flags do not go together."""
        from ..base.executor import workers_from

        return workers_from(self.jobs, self.executor, self.scheduler)


OTHERWISE = {"norm": "canary_norm", "groups": "columns", "data_options": "data_option"}
"""Options whose fields are called otherwise where the library reads them."""
ARGUMENTS = {"table": "NAME", "what": "WHAT", "command": "COMMAND"}
"""Fields that an argument gives, not a flag."""
SAID_ALWAYS = ("clients", "partition", "separator")
"""Fields that are called by their flags though a default gave the value."""
PAIRS = {"settings": "--set", "data_options": "--data-option", "defence_settings": "--defence-set"}
"""Parameters that give fields as KEY=VALUE, with their flags."""

GIVEN: ContextVar[tuple[str, ...]] = ContextVar("GIVEN", default=())
"""The command line being run, set by `main`."""
RUNNING: ContextVar[typer.Context | None] = ContextVar("RUNNING", default=None)
"""The command that runs."""
CONFIGURED = "dpzv_audit.configured"
"""Where the context of a command keeps the flags that a file of options gives, each with its file and line."""


def flag(name: str) -> str:
    """Return the flag of an option, or the name of the argument."""
    return ARGUMENTS.get(name) or f"--{OTHERWISE.get(name, name).replace('_', '-')}"


def flags_given(ctx: typer.Context) -> dict[str, str]:
    """Return the flags on the command line by option, each by its long name."""
    flags = {}
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            flags[option_of(parameter.opts[0])] = parameter.opts[0]
    return flags


def flags_set(ctx: typer.Context) -> list[str]:
    """Return the options that were given another value than their default."""
    options = []
    for parameter in ctx.command.params:
        if ctx.params.get(parameter.name or "") not in (parameter.default, None, [], ()):
            options.append(option_of(parameter.opts[0]))
    return options


def refuse(given: Collection[str], options: Iterable[str], why: str) -> None:
    """Raise `InputError` for the first of `options` that is among the `given` ones."""
    for option in options:
        if option in given:
            raise InputError(f"{flag(option)} {why}")


def number_in(text: str) -> float:
    """Return the number that a text is; nan where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def option_of(flag: str) -> str:
    """Return the option of a flag: its name, without dashes before it."""
    return flag.lstrip("-").replace("-", "_")


def key_of(pair: str) -> str:
    """Return the key of KEY=VALUE, as settings spell it."""
    return pair.partition("=")[0].replace("-", "_")


def said(error: AuditError) -> str:
    """Return the error's message with flags for what flags gave; a default keeps its field's name."""
    running = RUNNING.get()
    if running is None:
        return error.said(flag)
    words = _said(error, running)
    places: Mapping[str, str] = running.meta.get(CONFIGURED, {})
    # Longest first: the message may name a key of --set.
    for name in sorted(places, key=len, reverse=True):
        if len(name) <= len(words) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", words):
            return f"{words} ({name} stands in {one_line(places[name])})"
    return words


def _said(error: AuditError, running: typer.Context) -> str:
    flags = flags_given(running)
    for parameter, pair in PAIRS.items():
        items = running.params.get(parameter) or ()
        keys = list(map(key_of, items))
        flags |= {key: f"{pair} {key}" for key in keys}
        if parameter == "settings" and keys:
            flags["configuration"] = f"{pair} {', '.join(keys)}"

    def named(field: str) -> str:
        if field in ARGUMENTS or field in SAID_ALWAYS:
            return flag(field)
        return flags.get(OTHERWISE.get(field, field), field)

    # Data sets suggest these, and not every command has both: a claims file has a key data_dir.
    absent = {"data_dir", "download"} - {parameter.name for parameter in running.command.params}
    words = error.said(named, lambda name: name if name in absent else flag(name))
    return words.replace(" (or give download)", "")
