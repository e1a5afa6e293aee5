"""`dpzv-audit matrix`: every attack on every method at every epsilon, as one table and heat map."""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from reports.render import write_report

from ..base.errors import AuditError, InputError, check_names
from ..base.findings import STRONGEST
from ..base.loading import importable
from ..base.store import hold, private_folder, write_atomically
from ..results import Cell, CellKey
from ..runs import json_text
from .flags import CellFlags, Count, takes
from .options import DataFlags, load_data
from .output import Answered, choose_device, environment_of_run, repeatable_command_line, table_of
from .summary import refuse_failed

if TYPE_CHECKING:
    from .matrix_cells import CellTask, Outcome

ALL = "all"
CHANNELS = ("gradient", "embedding", "embedding-batch")
_UNDEFENDED = CellKey(noise=None, epsilon=None)


@takes
def matrix(
    *,
    methods: str = ALL,
    attacks: str = ALL,
    epsilons: str = "1",
    protect: str | None = None,
    defences: str | None = None,
    data: DataFlags,
    flags: CellFlags,
    jobs: Count = 1,
    resume: bool = False,
    no_self_check: bool = False,
    output: Answered,
) -> None:
    """Run every attack on every method, as one table and heat map.

    For each adversary, the most harmful attack runs once more on other trainings: the rows named strongest. A dash is
    an attack that does not apply, with the reason. If a cell fails, the exit code is 3. Several --epsilons draw success
    against epsilon. Methods that add no noise have one column; --protect and --defences add more.

    Example: dpzv-audit matrix --methods split --attacks label_direct,label_norm --defences all --epsilons 0.25,1,4

    Example: dpzv-audit matrix --methods dpzv,vafl --attacks label_direct,label_probe --trials 3

    Basics:
        methods A,B|all: Methods, separated by commas. Your training function is system:module:function, such as
            system:our_vfl:train, on the data given here or on its own.
        attacks A,B|all: Attacks, separated by commas.
        epsilons X,Y: Claimed epsilons, separated by commas. For methods that claim one.
    Data:
        preset learned|paper: Default settings: tuned or as in the paper. `paper`, the default here, gives all methods
            settings of one kind; `learned` is tuned to learn despite the noise.
    Training:
        protect A,B: Channels that get noise for every epsilon. They are gradient, embedding and embedding-batch, of
            methods that add no noise themselves; a run without noise is shown too.
        defences A,B|all: Defences, separated by commas. Each on every method, beside a run without it; with settings as
            NAME:KEY=VALUE, such as sparsify:keep=0.1. A defence that promises an epsilon has one column for each of
            --epsilons.
    Audit:
        no_self_check: Leave out the positive control of each attack.
    Execution:
        jobs N: Worker processes on this machine. Each takes the next cell.
        resume: Keep finished cells, and do the rest.
    """
    from attacks import ATTACKS
    from mechanisms.core.checkpoints import run_key

    from .matrix_cells import CellTask, check_task

    if data.task == "regression":
        raise InputError("a matrix compares methods that learn classes; use attack --system", "task", data.task)
    systems, built_in = _methods(methods, flags.out)
    chosen_attacks = _names("attacks", attacks, ATTACKS, "attacks")
    claimed = _epsilons(epsilons)
    channels = [] if protect is None else _names("protect", protect, CHANNELS)
    defended = [] if defences is None else _defended(_defences(defences), claimed)
    flags = replace(flags, device=choose_device(flags.device))
    facts = {key: str(value) for key, value in flags.facts(data).items()}
    digest = run_key(facts | systems | {"arrays": load_data(data, quiet=output.quiet).fingerprint})
    folder = flags.out / f"matrix-{data.name}-seed{flags.seed}-{digest}"
    variants = {name: _claims(name, claimed, channels) for name in built_in} | {name: [_UNDEFENDED] for name in systems}
    keys = [
        variant.model_copy(update={"attack": attack, "adversary": adversary, "method": method})
        for method, undefended in variants.items()
        for variant in (*undefended, *defended)
        for attack in chosen_attacks
        for adversary in ATTACKS[attack].adversaries
    ]
    task = partial(CellTask, data=data, flags=flags, folder=folder / "cells")
    tasks = [task(key=key) for key in keys]
    for attack in () if no_self_check else chosen_attacks:
        adversary = ATTACKS[attack].adversaries[0]
        control = CellKey(attack=attack, adversary=adversary, method="dpzv", noise=None, epsilon=None)
        tasks.append(task(key=control, positive=True))
    check_task(tasks[0])
    of_systems = " (systems: their own)" if systems and not data.given else ""
    with hold(folder.with_name(f".{folder.name}.lock"), f"the matrix in {folder}", shared=True):
        outcomes = _outcomes(tasks, folder, jobs, output, strongest=len(chosen_attacks) > 1, resume=resume)
        _finish(output, folder, outcomes, f"{data.name}{of_systems}", flags)


def _outcomes(
    tasks: "Sequence[CellTask]", folder: Path, jobs: int, output: Answered, *, strongest: bool, resume: bool
) -> "list[Outcome]":
    """Return what became of all cells; with `strongest` first those that are done once more, as rows of that name."""
    from .matrix_cells import CELL_FILE, TRIALS, Cells, clear_cell, strongest_tasks

    if not resume:
        shutil.rmtree(folder / TRIALS, ignore_errors=True)
        for task in tasks:
            clear_cell(task)
    with output.progress(folder, CELL_FILE) as reporter:
        outcomes = Cells(tasks, reporter("cells", len(tasks))).carried_out(jobs)
        rows = strongest_tasks(tasks, outcomes) if strongest else []
        again = {task.name: task for _, task in rows}
        for task in [] if resume else again.values():
            clear_cell(task)
        done = Cells([*again.values()], reporter("strongest", len(again))).carried_out(jobs) if again else []
        by_name = dict(zip(again, done, strict=True))
        best = [_of_strongest(by_name[task.name], adversary) for adversary, task in rows]
    outcomes = [*best, *outcomes]
    if all(outcome.cell.state != "failed" for outcome in outcomes):
        shutil.rmtree(folder / TRIALS, ignore_errors=True)
    return outcomes


def _of_strongest(outcome: "Outcome", adversary: str) -> "Outcome":
    """Return the cell of the attack that did most harm as the strongest of an adversary, in whose reach it is."""
    row = {"attack": STRONGEST, "adversary": adversary, "chosen": outcome.cell.attack}
    return replace(outcome, cell=outcome.cell.model_copy(update=row))


def _claims(name: str, claimed: list[float], channels: list[str]) -> list[CellKey]:
    """Return the epsilons that a method is run with: of its own claim, or without one and then for each channel."""
    from mechanisms import METHODS

    method = METHODS[name]
    if method.own_noise:
        return [CellKey(noise=None, epsilon=epsilon) for epsilon in claimed]
    if "dp" not in method.config.model_fields:
        channels = []
    return [_UNDEFENDED, *(CellKey(noise=on, epsilon=epsilon) for on, epsilon in product(channels, claimed))]


def _defences(text: str) -> list[str]:
    """Return defences by name, with settings where some are given; `InputError` for an unknown one, or a setting."""
    from mechanisms.defences import DEFENCES

    from .matrix_cells import defence_flags

    if text == ALL:
        return list(DEFENCES)
    defences = _split("defences", text)
    check_names("defences", [defence.partition(":")[0] for defence in defences], DEFENCES, "defences")
    for defence in defences:
        try:
            defence_flags(CellKey(defence=defence))
        except InputError as error:
            where = "its setting" if error.field == "defence_set" else error.field
            raise InputError(f": {InputError(error.rule, where, error.value).words}", "defences", defence) from None
    return defences


def _defended(names: list[str], claimed: list[float]) -> list[CellKey]:
    """Return each defence as it is, or for each epsilon where it promises one that is not given."""
    from mechanisms.defences import DEFENCES

    cells = []
    for name in names:
        settings = DEFENCES[name.partition(":")[0]].settings
        scaled = "epsilon" in settings.model_fields and "epsilon=" not in name
        cells += [CellKey(noise=None, defence=name, epsilon=epsilon) for epsilon in (claimed if scaled else [None])]
    return cells


def _methods(text: str, out: Path) -> tuple[dict[str, str], list[str]]:
    """Return the systems that are named, each with the digest of its code, and the methods."""
    from mechanisms import METHODS

    from ..games.mechanism import code_of
    from ..systems.run import PREFIX

    names = _split("methods", text)
    systems = {}
    for name in names:
        if name.startswith(PREFIX):
            with importable(None):
                systems[name] = code_of(name.removeprefix(PREFIX), [out.absolute()])
    built_in = ",".join(name for name in names if name not in systems)
    return systems, _names("methods", built_in, METHODS, "methods") if built_in else []


def _names(flag: str, text: str, known: Collection[str], kind: str = "") -> list[str]:
    """Return names separated by commas, or all of them; `InputError` suggesting the nearest for an unknown one."""
    return list(known) if text == ALL else list(check_names(flag, _split(flag, text), known, kind))


def _split(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("use names separated by commas, or all", flag, text)
    return list(dict.fromkeys(names))


def _epsilons(text: str) -> list[float]:
    try:
        values = [float(number) for number in text.split(",")]
    except ValueError:
        raise InputError("use numbers separated by commas, such as 1,10", "epsilons", text) from None
    if not all(0.0 < value < float("inf") for value in values):
        raise InputError("use finite numbers above 0", "epsilons", text)
    return list(dict.fromkeys(values))


def _finish(output: Answered, folder: Path, outcomes: "Sequence[Outcome]", dataset: str, flags: CellFlags) -> None:
    from ..evidence.matrix import matrix_result

    cells = [outcome.cell for outcome in outcomes if outcome.check is None]
    facts = {key: getattr(flags, key) for key in ("epochs", "batch_size", "confidence")}
    result = matrix_result(
        cells,
        [outcome.check for outcome in outcomes if outcome.check is not None],
        dataset=dataset,
        seeds=flags.seeds,
        seed=flags.seed,
        facts={key: value for key, value in facts.items() if value is not None},
    )
    stored = result.with_command_line(repeatable_command_line())
    private_folder(folder)  # cells that failed leave no folder, and all may have
    write_atomically(folder / "result.json", json_text(stored))
    write_atomically(folder / "environment.json", json_text(environment_of_run()))
    write_report(folder)
    failed = [outcome.cell for outcome in outcomes if outcome.cell.state == "failed"]
    # The report names all.
    lines = [f"FAILED: {_attacked(cell)} on {_named(cell)}: {cell.reason}" for cell in failed[:5]]
    output.finish(stored.model_copy(update={"run": str(folder)}), _table(output.console, cells), words=lines)
    if failed:
        counted = f"{len(failed)} of {len(outcomes)} cells and self-checks failed"
        raise AuditError(f"{counted}, each with its reason in {folder / 'report.html'}")
    refuse_failed(result.negative_controls)


def _table(console: Console, cells: Sequence[Cell]) -> Table:
    """Return the advantage by attack and method, or the worst cells alone where that is too wide for the terminal."""
    place = {(_attacked(c), _named(c)): _shown(c) for c in cells}
    attacks, methods = (list(dict.fromkeys(names)) for names in zip(*place, strict=True))
    first = "attack, adversary"
    if len(methods) > len(attacks):  # Whichever there are fewer of stands across: a terminal is narrow.
        first, attacks, methods = "method", methods, attacks
        place = {(method, attack): shown for (attack, method), shown in place.items()}
    scale = "advantage: 0 at the baseline, 1 for a perfect attack"
    table = table_of({first: "name", **dict.fromkeys(methods, "number")}, scale)
    for name in attacks:
        table.add_row(name, *(place.get((name, other), "–") for other in methods))
    unbounded = console.options.update(max_width=10_000)
    if console.measure(table, options=unbounded).maximum > console.width:
        measured = [cell for cell in cells if cell.state == "measured"]
        worst = sorted(measured, key=lambda cell: -(cell.damage or 0.0))[:15]
        words = f"the {len(worst)} cells of most advantage: 0 at the baseline, 1 for a perfect attack"
        table = table_of({"attack, adversary": "text", "method": "text", "advantage": "number"}, words)
        for cell in worst:
            table.add_row(_attacked(cell), _named(cell), _shown(cell))
    return table


def _attacked(cell: Cell) -> str:
    return f"{cell.attack}, {cell.adversary}"


def _named(cell: Cell) -> str:
    noise = None if cell.noise is None else f"{cell.noise} noise"
    name = " + ".join(part for part in (cell.method, noise, cell.defence) if part)
    return name if cell.epsilon is None else f"{name} ε={cell.epsilon:g}"


def _shown(cell: Cell) -> str:
    """Return a cell in a few letters; an exclamation mark for a control whose interval misses its value."""
    if cell.state == "measured":
        return f"{cell.damage:.2f}" if cell.controls_hold else f"{cell.damage:.2f}!"
    return "FAILED" if cell.state == "failed" else "–"
