"""Options that say which data a command trains on and how they are cut, shared by every command that trains."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv_audit.cli.common import at_least

if TYPE_CHECKING:
    pass

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
            "--clients", metavar="M", callback=at_least("clients", 1), help="Clients; by default the data set's own."
        ),
    ] = None
    partition: Annotated[
        str | None,
        typer.Option("--partition", metavar="NAME", help="How features are cut over clients, where there are ways."),
    ] = None
    subset: Annotated[
        bool,
        typer.Option("--subset", help="Accept files that are not the complete original, where the data set allows it."),
    ] = False
    data_options: Annotated[
        list[str] | None,
        typer.Option(
            "--data-option",
            metavar="KEY=VALUE",
            help="An option of the data set, such as size=32 (eth80) or length=96 (imdb); may be given several times.",
        ),
    ] = None
    data_dir: DataDirOption = None
    download: Annotated[
        bool, typer.Option("--download", help="Fetch what is missing into the data folder, where a plain URL has it.")
    ] = False
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Instead of --dataset: a table of yours; its first line names the columns."
        ),
    ] = None
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="With --csv: the column to predict.")
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            metavar="A,B,...",
            help="With --csv: the labels there can be; without it they are read off the file, which no noise covers.",
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--columns",
            metavar="A,B,...",
            help="With --csv: the columns of one client; once for each client, instead of --clients.",
        ),
    ] = None
    categories: Annotated[
        list[str] | None,
        typer.Option(
            "--categories",
            metavar="A,B,...",
            help="With --csv: columns of words, which are hashed; all others are numbers.",
        ),
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
            "--separator",
            metavar="C",
            help="With --csv: the character between cells, such as ';' or tab; ',' by default.",
        ),
    ] = None

    @property
    def name(self) -> str:
        """The data set's name; `csv` for a file of the user's."""
        return "csv" if self.csv is not None else DEFAULT_DATASET if self.dataset is None else self.dataset


FLAGS = {
    "data_options": "--data-option",
    **{key: f"--data-option {key}" for key in ("colour", "size", "length", "vocabulary")},
}
"""Flags that are not a field's name with dashes, by field or by the loader's keyword."""


def given_flags(flags: DataFlags) -> dict[str, object]:
    """The flags that the user gave, with their values."""
    values = {flag_of(field.name): getattr(flags, field.name) for field in fields(flags)}
    return {flag: value for flag, value in values.items() if value}


def flag_of(name: str) -> str:
    """The flag of a field of `DataFlags` or of a loader's keyword."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
