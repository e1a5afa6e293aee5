"""`dpzv-audit matrix`: every attack on every method at every epsilon, as one table and heat map."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from dpzv_audit.cli.bundles import takes
from dpzv_audit.cli.common import (
    DEFAULT_OUT,
    DeviceOption,
    JsonOption,
    OutOption,
    Output,
    QuietOption,
    SeedOption,
    at_least,
    check_choice,
    choose_device,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.options import BatchSizeOption, ConfidenceOption, EpochsOption
from dpzv_audit.errors import AuditError, InputError, check_probability

ALL = "all"
MethodsOption = Annotated[str, typer.Option("--methods", metavar="A,B|all", help="Methods, by commas.")]
AttacksOption = Annotated[str, typer.Option("--attacks", metavar="A,B|all", help="Attacks, by commas.")]
EpsilonsOption = Annotated[
    str, typer.Option("--epsilons", metavar="X,Y", help="Claimed epsilons, by commas, for methods that claim one.")
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", metavar="N", callback=at_least("--seeds", 1), help="Trainings a cell, as one stack.")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", metavar="N", callback=at_least("--jobs", 1), help="Processes that work on cells.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Keep the cells that the same command has finished, and do the rest.")
]
NoSelfCheckOption = Annotated[
    bool, typer.Option("--no-self-check", help="Leave out the positive control of each attack.")
]


@takes(data=DataFlags)
def matrix(
    *,
    methods: MethodsOption = ALL,
    attacks: AttacksOption = ALL,
    epsilons: EpsilonsOption = "1",
    data: DataFlags,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    seeds: SeedsOption = 3,
    jobs: JobsOption = 1,
    resume: ResumeOption = False,
    no_self_check: NoSelfCheckOption = False,
    confidence: ConfidenceOption = 0.95,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Mount every attack on every method, as one table and heat map.

    Each cell is a run folder of its own, by which an interrupted matrix goes on with --resume. A dash is an attack
    that does not apply, with the reason; a cell that fails is shown as such, and the exit code is then 3.

    Example: dpzv-audit matrix --methods dpzv,vafl --attacks label_direct,label_probe --seeds 3
    """
    from attacks import ATTACKS
    from dpzv_audit.checkpoints import run_key
    from dpzv_audit.cli.matrix_cells import CellTask, check_task, run_cell
    from dpzv_audit.locks import hold
    from mechanisms import METHODS
    from mechanisms.config import DPZVConfig

    output = Output(as_json=as_json, quiet=quiet)
    check_probability("--confidence", confidence)
    chosen_methods = _names("--methods", methods, METHODS)
    chosen_attacks = _names("--attacks", attacks, ATTACKS)
    claimed = _epsilons(epsilons)
    shared: dict[str, Any] = {
        "data": data,
        "epochs": epochs,
        "batch_size": batch_size,
        "seeds": seeds,
        "seed": seed,
        "confidence": confidence,
        "device": choose_device(device),
    }
    folder = out / f"matrix-{data.name}-seed{seed}-{run_key({k: str(v) for k, v in shared.items()})}"
    tasks = [
        CellTask(method=m, epsilon=e, attack=a, adversary=by, folder=str(folder / "cells"), **shared)
        for m in chosen_methods
        for e in (claimed if METHODS[m].config is DPZVConfig else [None])
        for a in chosen_attacks
        for by in ATTACKS[a].adversaries
    ]
    if not no_self_check:
        tasks += [
            CellTask(method="dpzv", epsilon=None, attack=a, adversary=ATTACKS[a].adversaries[0], positive=True,
                     folder=str(folder / "cells"), **shared)
            for a in chosen_attacks
        ]  # fmt: skip
    check_task(tasks[0])
    with hold(folder.with_name(f".{folder.name}.lock"), f"the matrix in {folder}", cure="or give another --out DIR"):
        for task in () if resume else tasks:
            shutil.rmtree(folder / "cells" / task.name, ignore_errors=True)
        with output.progress() as bars:
            done = progress_reporter(bars).stage("cells", len(tasks))
            found = _run_all(tasks, run_cell, jobs, done)
        _finish(output, folder, found, len(tasks), shared)


def _names(flag: str, given: str, known: Any) -> list[str]:
    """Names by commas, or all of them; `InputError` suggesting the nearest for an unknown one."""
    if given == ALL:
        return list(known)
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise InputError(f"{flag} is {given!r}, must be names by commas, or all")
    for name in names:
        check_choice(flag, name, known)
    return list(dict.fromkeys(names))


def _epsilons(given: str) -> list[float]:
    try:
        values = [float(part) for part in given.split(",")]
    except ValueError:
        raise InputError(f"--epsilons is {given!r}, must be numbers by commas, such as 1,10") from None
    if not all(0.0 < value < float("inf") for value in values):
        raise InputError(f"--epsilons is {given!r}, must be finite numbers above 0")
    return list(dict.fromkeys(values))


def _run_all(tasks: list[Any], run_cell: Any, jobs: int, done: Any) -> list[dict[str, Any]]:
    """Cells in the order of `tasks`; each process takes the next cell that is left."""
    from joblib import Parallel, delayed

    found = []
    for cell in Parallel(n_jobs=jobs, return_as="generator")(delayed(run_cell)(task) for task in tasks):
        found.append(cell)
        done(len(found))
    return found


def _finish(output: Output, folder: Path, found: list[dict[str, Any]], wanted: int, shared: dict[str, Any]) -> None:
    from dpzv_audit.atomic import write_atomically
    from dpzv_audit.cli.common import repeatable_command_line
    from dpzv_audit.evaluation.matrix import matrix_result
    from dpzv_audit.runs import environment, json_text
    from reports.render import write_report

    cells = [c for c in found if not c.pop("positive")]
    checks = [c for c in found if c not in cells]
    facts = {key: shared[key] for key in ("epochs", "batch_size", "confidence") if shared[key] is not None}
    result = matrix_result(
        cells,
        [_self_check(c) for c in checks],
        dataset=shared["data"].name,
        seeds=shared["seeds"],
        seed=shared["seed"],
        facts=facts,
    )
    stored = {**result, "command_line": repeatable_command_line()}
    write_atomically(folder / "result.json", json_text(stored))
    write_atomically(folder / "environment.json", json_text(environment()))
    write_report(folder)
    output.result({**stored, "run": str(folder)})
    _table(output, cells)
    output.say(result["sentence"])
    output.path(str(folder))
    failed = sum(c["state"] == "failed" for c in found)
    if failed:
        raise AuditError(f"{failed} of {wanted} cells failed, each with its reason in {folder / 'report.html'}")


def _self_check(cell: dict[str, Any]) -> dict[str, Any]:
    if cell["state"] != "measured":
        return {"attack": cell["attack"], "what": cell["reason"], "value": None, "expected": None, "holds": False}
    return {key: cell[key] for key in ("attack", "what", "value", "expected", "holds")}


def _table(output: Output, cells: list[dict[str, Any]]) -> None:
    """Damage by attack and method, on the terminal."""
    from rich.table import Table

    columns = list(dict.fromkeys((c["method"], c["epsilon"]) for c in cells))
    table = Table(title="damage: 0 what needs no attack, 1 a perfect one", title_justify="left")
    table.add_column("attack, adversary")
    for method, epsilon in columns:
        table.add_column(method if epsilon is None else f"{method} ε={epsilon:g}", justify="right")
    place = {(c["attack"], c["adversary"], c["method"], c["epsilon"]): c for c in cells}
    for attack, by in dict.fromkeys((c["attack"], c["adversary"]) for c in cells):
        row = []
        for method, epsilon in columns:
            cell = place[attack, by, method, epsilon]
            words = {"failed": "FAILED", "does not apply": "–"}.get(cell["state"])
            row.append(words or f"{cell['damage']:.2f}{'' if cell['controls_hold'] else '!'}")
        table.add_row(f"{attack}, {by}", *row)
    output.console.print(table)
