"""`dpzv-audit reproduce`: one table of a source paper, ours beside theirs."""

from __future__ import annotations

from typing import Annotated

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

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Which table; see `dpzv-audit list tables`.")]
EpochsOption = Annotated[
    int | None,
    typer.Option("--epochs", metavar="N", help="Epochs as the paper counts them; its own number if not given."),
]
SeedsOption = Annotated[
    int,
    typer.Option("--seeds", metavar="N", callback=at_least("--seeds", 1), help="Trainings a row, run as one stack."),
]


def reproduce(
    name: NameArgument,
    data_dir: DataDirOption = None,
    epochs: EpochsOption = None,
    seeds: SeedsOption = 3,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one table of a source paper and print ours beside theirs.

    Example: dpzv-audit reproduce czofo-table4 --data-dir data --epochs 20 --seeds 3
    """
    from dpzv_audit.data import load
    from dpzv_audit.errors import check_count
    from dpzv_audit.reproduce import reproduce as run_table
    from dpzv_audit.reproduce import table_named, to_markdown
    from dpzv_audit.runs import environment, run_name, write_run

    output = Output(as_json=as_json, quiet=quiet)
    table = table_named(name)
    wanted = table.epochs if epochs is None else check_count("--epochs", epochs)
    dataset = load(**{**table.dataset, "data_dir": data_dir})
    where = choose_device(device)
    with output.progress() as bars:
        result = run_table(
            table,
            dataset,
            epochs=wanted,
            seeds=seeds,
            seed=seed,
            device=where,
            stage=progress_reporter(bars).stage,
        )
    text = to_markdown(result)
    with write_run(out, run_name("reproduce", name, seed=seed)) as folder:
        folder.write_json("result.json", result)
        folder.write_json("environment.json", environment())
        folder.write_text("table.md", text)
    output.result({**result, "run": str(folder.path)})
    output.say(text)
    output.path(str(folder.path))
