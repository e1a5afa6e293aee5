"""Finished rows on file: each says what it follows from, and when and by which code it was made."""

import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..base.errors import InputError
from ..base.files import LARGEST_STATE, json_in, read_plain
from ..base.findings import to_jsonable
from ..base.store import write_atomically
from ..runs import json_text, version_of
from .table import PaperTable, R, Setting, TableResult, TableRow

if TYPE_CHECKING:
    from .table import Values

_PRINTED = {"label", "tags", "paper", "accuracy", "cost"}
"""Fields of a row that say what is shown of it or what the paper prints: no number of ours follows from them."""


class Made(BaseModel):
    """When and how a row was made.

    Attributes:
        date: Day, in UTC.
        version: Version of this tool.
        commit: Commit of its checkout, + where files of it had changes; None outside of one.
        seconds: Processor seconds; None where parts of an earlier run were taken up.
    """

    model_config = ConfigDict(extra="forbid")

    date: str
    version: str | None
    commit: str | None
    seconds: float | None


class KeptRow(BaseModel):
    """The file of a finished row."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["dpzv-audit/row/1"] = Field(alias="schema")
    table: str
    label: str
    made: Made
    follows_from: dict[str, object]
    row: dict[str, object]


@dataclass(frozen=True)
class KeptRows:
    """Finished rows of the table `name` in `folder`/`name`, a file each.

    A row whose file follows from other settings, or whose training no longer begins as it did, is computed again.
    """

    folder: Path
    name: str

    def file(self, item: TableRow[R], setting: Setting) -> Path:
        """Return the file of a row, which is called after its label and how long and how often it is trained."""
        words = re.sub(r"[^a-z0-9.]+", "-", item.label.lower()).strip("-")
        size = f"{setting.epochs}-epochs-{setting.seeds}-seeds"
        other = f"-from-{setting.seed}" if setting.seed else ""
        fewer = "" if setting.records is None else f"-{setting.records}-records"
        return self.folder / self.name / f"{words}-{size}{other}{fewer}.json"

    def row(self, item: TableRow[R], setting: Setting, *, repeat: bool = True) -> R | None:
        """Return the row that is on file for `item` under `setting`; None where there is none, or another.

        With `repeat` the beginning of its training is repeated and compared.

        Raises:
            InputError: The file is damaged.
        """
        kept = self._entry(item, setting)
        if kept is None or kept.follows_from != facts_of(item, setting):
            return None
        try:
            row = item.read(kept.row)
        except (ValidationError, TypeError):
            raise self._damaged(item, setting) from None
        return row if not repeat or item.begins_as(row, setting) else None

    def made(self, items: Iterable[TableRow[R]], setting: Setting) -> list[Made]:
        """Return when and by which code the rows on file were made; `InputError` for a damaged file."""
        entries = [self._entry(item, item.under(setting)) for item in items]
        return [kept.made for kept in entries if kept is not None]

    def _entry(self, item: TableRow[R], setting: Setting) -> KeptRow | None:
        path = self.file(item, setting)
        try:
            return KeptRow.model_validate(json_in(read_plain(path, LARGEST_STATE)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", str(path)) from None
        except ValueError:
            raise self._damaged(item, setting) from None

    def _damaged(self, item: TableRow[R], setting: Setting) -> InputError:
        path = self.file(item, setting)
        return InputError("is no finished row; remove it, and the row is computed again", str(path))

    def compute(self, item: TableRow[R], setting: Setting) -> R:
        """Return the row that is on file, or compute it and keep it there.

        Raises:
            InputError: The file is damaged, or the row cannot be computed.
        """
        kept = self.row(item, setting)
        if kept is not None:
            return kept
        commit = _commit()
        began = time.process_time()
        row = item.run(setting)
        seconds = round(time.process_time() - began, 1)
        made = Made(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            version=version_of("dpzv-audit"),
            commit=commit,
            seconds=None if setting.kept.resumes else seconds,
        )
        path = self.file(item, setting)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = KeptRow(
            schema="dpzv-audit/row/1",
            table=self.name,
            label=item.label,
            made=made,
            follows_from=dict(facts_of(item, setting)),
            row=row.to_json(),
        )
        write_atomically(path, json_text(entry.model_dump(by_alias=True)), shared=True)
        return row


def facts_of(item: TableRow[R], setting: Setting) -> "Values":
    """Return what the numbers of a row follow from, beside data and code."""
    own = {field.name: getattr(item, field.name) for field in fields(item) if field.name not in _PRINTED}
    run = {"epochs": setting.epochs, "seeds": setting.seeds, "seed": setting.seed, "records": setting.records}
    facts: dict[str, object] = to_jsonable({"kind": type(item).__name__, **own, **run})
    return facts


def whole_setting(table: PaperTable[R]) -> Setting:
    """Return the setting of `table` at its own length, which reads no data."""

    def load(keywords: "Values") -> NoReturn:
        raise AssertionError(f"no data are read: {keywords}")

    return Setting(load=load, epochs=table.length or table.epochs, seeds=table.seeds)


def kept_result(table: PaperTable[R], folder: Path) -> TableResult[R]:
    """Return what is on file of `table` at its own length; the other rows are skipped. No data are read.

    Raises:
        InputError: A file is damaged, or no row is there.
    """
    setting = whole_setting(table)
    rows = KeptRows(folder, table.name)
    by_label = {item.label: rows.row(item, item.under(setting), repeat=False) for item in table.items}
    finished = [row for row in by_label.values() if row is not None]
    if not finished:
        raise InputError("holds no finished row at the table's own length", str(folder / table.name))
    return table.result(finished, setting, {label: "not run yet" for label, row in by_label.items() if row is None})


def _commit() -> str | None:
    """Return the commit of the checkout that this code belongs to, with + where any file of it has changes.

    None outside of a checkout, also where the code is installed in a folder of somebody else's.
    """
    code = Path(__file__).resolve()

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=code.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", code.name):
            return None
        changed = git("status", "-s", "-uno")
        return git("rev-parse", "HEAD")[:12] + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
