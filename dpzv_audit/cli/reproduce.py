"""`dpzv-audit reproduce`: one table of a source paper, ours beside theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv_audit.cli.common import (
    DEFAULT_OUT,
    DeviceOption,
    JsonOption,
    OutOption,
    Output,
    QuietOption,
    SeedOption,
    at_least,
    choose_device,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataDirOption
from dpzv_audit.errors import InputError

if TYPE_CHECKING:
    from dpzv_audit.data.vertical import VerticalDataset

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Which table; see `dpzv-audit list tables`.")]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="N",
        callback=at_least("epochs", 1),
        help="Epochs as the paper counts them, of a search the longest training; by default the table's own.",
    ),
]
SeedsOption = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        callback=at_least("seeds", 1),
        help="Trainings of a row, run as one stack; by default the table's own number.",
    ),
]
RecordsOption = Annotated[
    int | None,
    typer.Option(
        "--records",
        metavar="N",
        callback=at_least("records", 1),
        help="Train on N records of each data set, the same for every seed; by default on all.",
    ),
]

RowOption = Annotated[
    list[str] | None,
    typer.Option("--row", metavar="TEXT", help="Only rows with TEXT in their label; may be given several times."),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on where the same command was interrupted: finished rows, then epochs, are kept."
    ),
]


def reproduce(
    name: NameArgument,
    data_dir: DataDirOption = None,
    epochs: EpochsOption = None,
    seeds: SeedsOption = None,
    records: RecordsOption = None,
    row: RowOption = None,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a table or figure of a source paper, ours beside theirs.

    Example: dpzv-audit reproduce czofo-table4 --data-dir data --epochs 20 --seeds 3
    """
    from dpzv_audit.checkpoints import run_key
    from dpzv_audit.data import load
    from dpzv_audit.locks import hold
    from dpzv_audit.reproduce import TableParts, table_named, to_markdown, with_rows
    from dpzv_audit.reproduce import reproduce as run_table
    from dpzv_audit.runs import environment, run_name, write_run

    output = Output(as_json=as_json, quiet=quiet)
    table = with_rows(table_named(name), row or ())
    where = choose_device(device)
    kept = TableParts(out / "unfinished", resume=resume)

    @lru_cache(maxsize=4)
    def loaded(keywords: tuple[tuple[str, Any], ...]) -> VerticalDataset:
        return load(**dict(keywords), data_dir=data_dir)

    count = table.seeds if seeds is None else seeds
    facts = {"table": name, "epochs": epochs, "seeds": count, "records": records, "seed": seed, "rows": row or []}
    lock = out / "unfinished" / f"{run_key(facts)}.lock"
    with (
        _named_by_flag(records),
        hold(lock, f"the unfinished {name} in {out / 'unfinished'}", cure="or give another --out DIR"),
    ):
        with output.progress() as bars:
            result = run_table(
                table,
                lambda keywords: loaded(tuple(keywords.items())),
                epochs=table.epochs if epochs is None else epochs,
                seeds=count,
                records=records,
                seed=seed,
                device=where,
                kept=kept,
                stage=progress_reporter(bars).stage,
            )
        text = to_markdown(table, result)
        with write_run(out, run_name("reproduce", name, seed=seed)) as folder:
            folder.write_json("result.json", result)
            folder.write_json("environment.json", environment())
            folder.write_text("table.md", text)
            if table.figure is not None:
                folder.write_text("figure.svg", table.figure(result))
        kept.remove()
    output.result({**result, "run": str(folder.path)})
    output.say(text)
    output.path(str(folder.path))


@contextmanager
def _named_by_flag(records: int | None) -> Iterator[None]:
    """Let an error of the block that says that a batch holds more records than there are name `--records`."""
    try:
        yield
    except InputError as error:
        if records is None or error.field != "batch_size":
            raise
        raise InputError(f"must be at least a batch: {error.words}", "records", records) from None
