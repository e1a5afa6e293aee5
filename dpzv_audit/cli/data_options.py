"""Options that say which data a command trains on and how they are cut, shared by every command that trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpzv_audit.cli.flags import Count

if TYPE_CHECKING:
    pass

DEFAULT_DATASET = "digits"


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """Which data to train on, as the user said it: a data set by its name, or a CSV file; None where not given.

    Options:
        dataset NAME: Data set, digits by default; `dpzv-audit list datasets` says what each needs.
        clients M: Clients; by default the data set's own.
        partition NAME: How features are cut over clients, where there are ways.
        subset: Accept files that are not the complete original, where the data set allows it.
        data_options KEY=VALUE: An option of the data set, such as size=32 (eth80) or length=96 (imdb); may be given
            several times.
        data_dir DIR: Folder with the data sets' original files; by default what DPZV_AUDIT_DATA names.
        download: Fetch what is missing into the data folder, where a plain URL has it.
        csv FILE: Instead of --dataset: a table of yours; its first line names the columns.
        label COLUMN: With --csv: the column to predict.
        classes A,B,...: With --csv: the labels there can be; without it they are read off the file, which no noise
            covers.
        columns A,B,...: With --csv: the columns of one client; once for each client, instead of --clients.
        categories A,B,...: With --csv: columns of words, which are hashed; all others are numbers.
        scales A=X,...: With --csv: constants that numbers are divided by.
        drop A,B,...: With --csv: columns to leave out.
        test_csv FILE: With --csv: test rows, in a file of their own.
        separator C: With --csv: the character between cells, such as ';' or tab; ',' by default.
    """

    dataset: str | None = None
    clients: Count | None = None
    partition: str | None = None
    subset: bool = False
    data_options: Annotated[list[str] | None, "--data-option"] = None
    data_dir: Path | None = None
    download: bool = False
    csv: Path | None = None
    label: str | None = None
    classes: str | None = None
    columns: list[str] | None = None
    categories: list[str] | None = None
    scales: list[str] | None = None
    drop: list[str] | None = None
    test_csv: Path | None = None
    separator: str | None = None

    @property
    def name(self) -> str:
        """The data set's name; `csv` for a file of the user's."""
        return "csv" if self.csv is not None else DEFAULT_DATASET if self.dataset is None else self.dataset
