"""Options that say which data a command trains on and how they are cut, shared by every command that trains."""

from __future__ import annotations

import csv
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv_audit.cli.common import at_least
from dpzv_audit.errors import InputError, unknown_name

if TYPE_CHECKING:
    from dpzv_audit.data import DatasetSpec
    from dpzv_audit.data.vertical import VerticalDataset

DEFAULT_DATASET = "digits"

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder with the data sets' original files; by default what DPZV_AUDIT_DATA names.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """Which data to train on, as the user said it: a data set by its name, or a CSV file; None where not given."""

    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="NAME",
            help=f"Data set, {DEFAULT_DATASET} by default; `dpzv-audit list datasets` says what each needs.",
        ),
    ] = None
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients", metavar="M", callback=at_least("--clients", 1), help="Clients; by default the data set's own."
        ),
    ] = None
    partition: Annotated[
        str | None,
        typer.Option("--partition", metavar="NAME", help="How features are cut over clients, where there are ways."),
    ] = None
    subset: Annotated[
        bool, typer.Option("--subset", help="Accept files that are not the complete original, where they may be so.")
    ] = False
    data_options: Annotated[
        list[str] | None,
        typer.Option(
            "--data-option",
            metavar="KEY=VALUE",
            help="The loader's own option, such as size=32 (eth80) or length=96 (imdb); repeatable.",
        ),
    ] = None
    data_dir: DataDirOption = None
    download: Annotated[
        bool, typer.Option("--download", help="Fetch what is missing into the data folder, where a plain URL has it.")
    ] = False
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Instead of --dataset: a table of yours, its first line names."),
    ] = None
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="With --csv: the column to predict.")
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--columns", metavar="A,B,...", help="With --csv: one client's columns; once a client, not with --clients."
        ),
    ] = None
    categories: Annotated[
        list[str] | None,
        typer.Option("--categories", metavar="A,B,...", help="With --csv: columns of words, hashed; others: numbers."),
    ] = None
    scales: Annotated[
        list[str] | None,
        typer.Option("--scales", metavar="A=X,...", help="With --csv: constants that numbers are divided by."),
    ] = None
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="A,B,...", help="With --csv: columns to leave out.")
    ] = None
    test_csv: Annotated[
        Path | None, typer.Option("--test-csv", metavar="FILE", help="With --csv: test rows, in a file of their own.")
    ] = None
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator", metavar="C", help="With --csv: what is between cells, such as ';' or tab; ',' by default."
        ),
    ] = None

    @property
    def name(self) -> str:
        """The data set's name; `csv` for a file of the user's."""
        return "csv" if self.csv is not None else DEFAULT_DATASET if self.dataset is None else self.dataset


SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""What `--separator` calls a character that a command line can hardly hold."""

CSV_ONLY = ("label", "columns", "categories", "scales", "drop", "test_csv", "separator")
NAMED_ONLY = ("dataset", "partition", "subset", "data_options", "data_dir", "download")
FLAGS = {
    "data_options": "--data-option",
    **{key: f"--data-option {key}" for key in ("colour", "size", "length", "vocabulary")},
}
"""Flags that are not a field's name with dashes, by field or by the loader's keyword."""

CSV_COLUMNS = {
    "label": "--label",
    "group": "--columns",
    "drop": "--drop",
    "categories": "--categories",
    "scales": "--scales",
}
"""Flags by the word before "column" in what the loader says about one."""


def given_flags(flags: DataFlags) -> dict[str, Any]:
    """The flags that the user gave, with their values."""
    values = {_flag(field.name): getattr(flags, field.name) for field in fields(flags)}
    return {flag: value for flag, value in values.items() if value}


def load_data(flags: DataFlags, *, quiet: bool = False, transformer: str | None = None) -> VerticalDataset:
    """Return the data that `flags` name, fetched first with `--download` (a progress bar on stderr unless `quiet`).

    Text is read by the tokenizer of `transformer`, a folder or a name on the Hugging Face hub, where it is given.
    Raises `InputError` in one line that names the flag or the file for a wrong one, for flags that do not go together
    and for training records of one class alone, and what `dpzv_audit.data.download.download` raises.
    """
    data = _load_named(flags, quiet=quiet, transformer=transformer) if flags.csv is None else _load_csv(flags)
    first = int(data.train.labels[0])
    if (data.train.labels == first).all():
        found = f"all {len(data.train)} training records are of class {first}"
        raise InputError(f"{data.name}: {found}, must be of at least two classes: there is nothing to learn")
    return data


def _load_named(flags: DataFlags, *, quiet: bool, transformer: str | None) -> VerticalDataset:
    from dpzv_audit.data import DATASETS, load

    stray = next((name for name in CSV_ONLY if getattr(flags, name) is not None), None)
    if stray is not None:
        raise InputError(f"{_flag(stray)} goes with --csv FILE, not with data set {flags.name}")
    if flags.name not in DATASETS:
        raise unknown_name("--dataset", flags.name, DATASETS)
    spec = DATASETS[flags.name]
    options = _loader_options(spec, flags)
    if transformer is not None and "tokenizer" in spec.options:
        options = _with_tokenizer(spec, options, transformer)
    if spec.source is None and flags.data_dir is not None:
        raise InputError(f"--data-dir does not apply to {flags.name}, which is embedded in scikit-learn")
    if flags.download:
        _download(spec, flags, quiet=quiet)
    with named_by_flag(("clients", "partition", *options)):
        return load(flags.name, clients=flags.clients, partition=flags.partition, data_dir=flags.data_dir, **options)


def _loader_options(spec: DatasetSpec, flags: DataFlags) -> dict[str, Any]:
    words = [key for key in spec.options if key not in ("subset", "tokenizer")]
    options: dict[str, Any] = {}
    for item in flags.data_options or []:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise InputError(f"--data-option is {item!r}, must be KEY=VALUE, such as size=32")
        if not words:
            raise InputError(f"--data-option {item} does not apply: {spec.name} has no options")
        if key not in words:
            raise unknown_name(f"--data-option of {spec.name}", key, words)
        if key in options:
            raise InputError(f"--data-option gives {key} twice, give it once")
        options[key] = _value(text)
    if flags.subset:
        if "subset" not in spec.options:
            raise InputError(f"--subset does not apply to {spec.name}, which is always complete")
        options["subset"] = True
    return options


def _with_tokenizer(spec: DatasetSpec, options: dict[str, Any], transformer: str) -> dict[str, Any]:
    """`options` with the tokenizer of `transformer`, at the length they give or the data set's own."""
    from dpzv_audit.data.pretrained import PretrainedTokenizer

    if "vocabulary" in options:
        given = options["vocabulary"]
        raise InputError(f"--data-option vocabulary={given} does not apply: the tokenizer of {transformer} has its own")
    length = options.get("length", inspect.signature(spec.loader).parameters["length"].default)
    kept = {key: value for key, value in options.items() if key != "length"}
    return {**kept, "tokenizer": PretrainedTokenizer(source=transformer, length=length)}


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | str) and not isinstance(value, bool) else text


def _download(spec: DatasetSpec, flags: DataFlags, *, quiet: bool) -> None:
    from dpzv_audit.data.download import REMOTES, download
    from dpzv_audit.data.files import DATA_VARIABLE

    if spec.source is None:
        raise InputError(f"--download does not apply to {spec.name}, which is embedded in scikit-learn")
    if spec.name not in REMOTES:
        raise InputError(f"--download cannot fetch {spec.name}, which no plain URL has: {spec.source.origin}")
    given = flags.data_dir or os.environ.get(DATA_VARIABLE)
    if not given:
        raise InputError(f"--download needs --data-dir DIR, the folder to fetch into, or {DATA_VARIABLE} set")
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:

        def start(name: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(name, total=total)
            return lambda done: bars.update(task, completed=done)

        download(spec.name, Path(given), start)


def _load_csv(flags: DataFlags) -> VerticalDataset:
    from dpzv_audit.data import load_csv

    stray = next((name for name in NAMED_ONLY if getattr(flags, name)), None)
    if stray is not None:
        raise InputError(f"{_flag(stray)} does not go with --csv FILE, give one of them")
    if flags.label is None:
        raise InputError("--label COLUMN is missing: --csv needs the column to predict")
    assert flags.csv is not None
    with named_by_flag(("clients", "separator"), file=flags.csv):
        return load_csv(
            flags.csv,
            label=flags.label,
            clients=flags.clients,
            groups=[_names("--columns", text) for text in flags.columns] if flags.columns else None,
            categories=[name for text in flags.categories or [] for name in _names("--categories", text)],
            scales=_scales(flags.scales or []),
            drop=[name for text in flags.drop or [] for name in _names("--drop", text)],
            test=flags.test_csv,
            separator="," if flags.separator is None else SEPARATORS.get(flags.separator, flags.separator),
        )


def _names(flag: str, text: str) -> list[str]:
    """Column names of a list such as `a,b` or `"with, comma",b`."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise InputError(f"{flag} is {text!r}, must be column names with commas between them, such as age,region")
    return names


def _scales(texts: list[str]) -> Mapping[str, float]:
    scales: dict[str, float] = {}
    for item in (item for text in texts for item in _names("--scales", text)):
        name, separator, constant = item.rpartition("=")
        try:
            value = float(constant)
        except ValueError:
            value = 0.0
        if not separator or not 0.0 < value < float("inf"):
            raise InputError(f"--scales is {item!r}, must be COLUMN=X with X above 0, such as age=100")
        scales[name.strip()] = value
    return scales


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


@contextmanager
def named_by_flag(keys: tuple[str, ...], file: Path | None = None) -> Iterator[None]:
    """Let an `InputError` of the block that opens with one of `keys` open with the flag by which it was given.

    With `file`, a CSV file, one about a column opens with the flag that names columns, and names the file.
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        key, separator, rest = text.partition(" ")
        if key in keys:
            raise InputError(f"{_flag(key)}{separator}{rest}") from None
        if file is not None and key in CSV_COLUMNS and rest.startswith("column "):
            raise InputError(f"{CSV_COLUMNS[key]}{separator}{rest.removeprefix('column ')} of {file}") from None
        if file is not None and key == "column":
            raise InputError(f"{'--columns' if 'group' in rest else '--scales'}: {text} ({file})") from None
        raise
