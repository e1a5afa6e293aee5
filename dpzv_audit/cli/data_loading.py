"""Loads the data that `DataFlags` name, and names the flag where they are wrong."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.names import flag
from dpzv_audit.errors import InputError, unknown_name

if TYPE_CHECKING:
    from dpzv_audit.data import DataSpec
    from dpzv_audit.data.vertical import VerticalDataset

SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""What `--separator` calls a character that a command line can hardly hold."""
CSV_ONLY = ("label", "classes", "columns", "categories", "scales", "drop", "test_csv", "separator")
NAMED_ONLY = ("dataset", "partition", "subset", "data_options", "data_dir", "download")


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
        raise InputError(f"{flag(stray)} goes with --csv FILE, not with data set {flags.name}")
    spec = DATASETS.named(flags.name, "dataset")
    options = _loader_options(spec, flags)
    if transformer is not None and "tokenizer" in spec.options:
        options = _with_tokenizer(spec, options, transformer)
    if spec.package and flags.data_dir is not None:
        raise InputError(f"--data-dir does not apply to {flags.name}, which is embedded in {spec.package}")
    if flags.download:
        _download(spec, flags, quiet=quiet)
    return load(flags.name, clients=flags.clients, partition=flags.partition, data_dir=flags.data_dir, **options)


def _loader_options(spec: DataSpec, flags: DataFlags) -> dict[str, Any]:
    words = [key for key in spec.options if key not in ("subset", "tokenizer")]
    options: dict[str, Any] = {}
    for item in flags.data_options or []:
        key, separator, text = item.partition("=")
        if not separator or not key:
            raise InputError("must be KEY=VALUE, such as size=32", "data_option", item)
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


def _with_tokenizer(spec: DataSpec, options: dict[str, Any], transformer: str) -> dict[str, Any]:
    """`options` with the tokenizer of `transformer`, at the length they give or the data set's own."""
    from dpzv_audit.data.text import PretrainedTokenizer

    if "vocabulary" in options:
        given = options["vocabulary"]
        raise InputError(f"--data-option vocabulary={given} does not apply: the tokenizer of {transformer} has its own")
    length = options.get("length", spec.options["length"])
    kept = {key: value for key, value in options.items() if key != "length"}
    return {**kept, "tokenizer": PretrainedTokenizer(source=transformer, length=length)}


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | str) and not isinstance(value, bool) else text


def _download(spec: DataSpec, flags: DataFlags, *, quiet: bool) -> None:
    from dpzv_audit.data.download import download
    from dpzv_audit.data.spec import DATA_VARIABLE

    if spec.package:
        raise InputError(f"--download does not apply to {spec.name}, which is embedded in {spec.package}")
    if not spec.remote:
        origin = "" if spec.source is None else f": {spec.source.origin}"
        raise InputError(f"--download cannot fetch {spec.name}, which no plain URL has{origin}")
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
        raise InputError(f"{flag(stray)} does not go with --csv FILE, give one of them")
    if flags.label is None:
        raise InputError("--label COLUMN is missing: --csv needs the column to predict")
    assert flags.csv is not None
    return load_csv(
        flags.csv,
        label=flags.label,
        clients=flags.clients,
        groups=[_names("columns", text) for text in flags.columns] if flags.columns else None,
        categories=[name for text in flags.categories or [] for name in _names("categories", text)],
        scales=_scales(flags.scales or []),
        classes=None if flags.classes is None else _names("classes", flags.classes),
        drop=[name for text in flags.drop or [] for name in _names("drop", text)],
        test=flags.test_csv,
        separator="," if flags.separator is None else SEPARATORS.get(flags.separator, flags.separator),
    )


def _names(flag: str, text: str) -> list[str]:
    """Names of a list such as `a,b` or `"with, comma",b`."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        right = "labels with commas between them, such as no,yes"
        right = right if flag == "classes" else "column names with commas between them, such as age,region"
        raise InputError(f"must be {right}", flag, text)
    return names


def _scales(texts: list[str]) -> Mapping[str, float]:
    scales: dict[str, float] = {}
    for item in (item for text in texts for item in _names("scales", text)):
        name, separator, constant = item.rpartition("=")
        try:
            value = float(constant)
        except ValueError:
            value = 0.0
        if not separator or not 0.0 < value < float("inf"):
            raise InputError("must be COLUMN=X with X above 0, such as age=100", "scales", item)
        scales[name.strip()] = value
    return scales
