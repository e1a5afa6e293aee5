"""`dpzv-audit reproduce`: one table of a source paper, ours beside theirs."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.rounding import duration
from ..base.store import hold
from ..data import VerticalDataset, load
from .flags import Count, RunFlags, takes
from .output import Answered, choose_device, save
from .summary import reproduced_table


@takes
def reproduce(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Table; see `dpzv-audit list tables`.")],
    data_dir: Path | None = None,
    epochs: Count | None = None,
    seeds: Annotated[Count | None, "--trials"] = None,
    records: Count | None = None,
    row: list[str] | None = None,
    rows: Path | None = None,
    resume: bool = False,
    run: RunFlags,
    output: Answered,
) -> None:
    """Reproduce a table of a source paper, beside the paper's numbers.

    Example: dpzv-audit reproduce czofo-table4 --data-dir data --epochs 20 --trials 3

    Basics:
        epochs N: Epochs, as the paper counts them. For a search, those of the longest training; by default the table's
            own.
        seeds N: Trainings per row, run as one stack. By default the table's own number.
    Data:
        data_dir DIR: Folder with the original files. By default the one that DPZV_AUDIT_DATA names.
        records N: Train on N records of each data set. The same for every seed; by default on all.
        row TEXT: Only rows with TEXT in their label. May be given several times.
    Execution:
        rows DIR: Keep finished rows in DIR. Those that are there are not computed again, unless their settings
            differ or their training no longer begins with the same numbers.
        resume: Continue an interrupted run of this command. Finished rows are kept, and epochs of the row in progress.
    """
    from mechanisms.core.checkpoints import run_key

    from ..reproduce import KeptRows, Setting, TableParts, described, table_named, with_rows
    from ..reproduce import reproduce as run_table
    from ..reproduce.planning import RowClock, checked, expected, in_words
    from ..reproduce.words import page

    table = with_rows(table_named(name), row or ())
    if seeds is not None:
        table = replace(table, items=tuple(replace(item, seeds=None) for item in table.items))
    on_file = None if rows is None else KeptRows(rows, name)
    device = choose_device(run.device)
    unfinished = run.out / "unfinished"
    kept = TableParts(unfinished, resume=resume)

    @lru_cache(maxsize=4)
    def loaded(keywords: tuple[tuple[str, Any], ...]) -> VerticalDataset:
        return load(**dict(keywords), data_dir=data_dir)

    count = seeds or table.seeds
    facts = {"table": name, "epochs": epochs, "seeds": count, "records": records, "seed": run.seed, "rows": row or []}
    lock = unfinished / f"{run_key(facts)}.lock"
    with hold(lock, f"the unfinished {name} in {unfinished}"):
        setting = Setting(
            load=lambda keywords: loaded(tuple(keywords.items())),
            epochs=epochs or table.length or table.epochs,
            seeds=count,
            records=records,
            seed=run.seed,
            device=device,
            kept=kept,
        )
        plan = checked(table, setting)
        seconds = expected(plan, setting, kept=on_file)
        output.note(f"{name}: {in_words(plan, seconds)}")
        clock = RowClock(seconds)
        with output.progress(unfinished, "*.[js]*") as reporter:

            def stage(title: str, total: int) -> Callable[[int], None]:
                update = reporter(f"row {clock.row + 1} of {len(plan.rows)}: {title}", total)
                update(note=f"{duration(clock.left())} left")
                return lambda done: update(done, note=f"{duration(clock.left())} left")

            result = run_table(table, replace(setting, stage=stage), clock.begin, on_file)
        made = described(table, result, whole=len(table_named(name).items))
        saved = save(made, run, "reproduce", name, files={"table.md": page(made)})
        kept.remove()
    output.finish(saved, reproduced_table(saved), details=[saved.about, *saved.notes])
