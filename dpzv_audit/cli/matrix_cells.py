"""One cell of a matrix: an attack on a method as a run folder of its own, kept where a finished one is there."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from attacks import AttackSetting, attack_named
from attacks.core.contract import DoesNotApply
from dpzv_audit.checkpoints import run_key
from dpzv_audit.cli.flags import TrainingFlags, flag
from dpzv_audit.cli.options import DataFlags, choose
from dpzv_audit.errors import AuditError, InputError
from dpzv_audit.evaluation import AuditPlan, attack_result
from dpzv_audit.evaluation.matrix import measured_cell
from dpzv_audit.results import AttackResult, Cell
from dpzv_audit.runs import environment, slug, write_run
from dpzv_audit.signals import leave_to_parent
from dpzv_audit.store import Store, checksummed, private_folder
from mechanisms import method_named
from reports.render import write_report

CELL_FILE = "cell.json"


class ControlCell(Cell):
    """The positive control of an attack as a cell: what it is, what it found and what it must find."""

    what: str = ""
    value: float | None = None
    expected: float | None = None
    holds: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CellTask:
    """Everything that a cell depends on, so that it can be done by any process.

    `noise` is the channel on which a baseline gets the noise of `epsilon`; `positive`: the attack's control.
    """

    method: str
    epsilon: float | None
    attack: str
    adversary: str
    data: DataFlags
    epochs: int | None
    batch_size: int | None
    seeds: int
    seed: int
    confidence: float
    device: str
    folder: str
    noise: str | None = None
    positive: bool = False

    @property
    def name(self) -> str:
        """The cell's folder: readable, and different for different tasks."""
        parts = [self.attack, self.adversary, self.method, *([] if self.noise is None else [self.noise])]
        parts += [] if self.epsilon is None else [f"eps{self.epsilon:g}"]
        facts = {key: str(value) for key, value in asdict(self).items() if key != "folder"}
        return slug("-".join([*parts, "control"] if self.positive else parts), limit=80) + "-" + run_key(facts)[:6]


def check_task(task: CellTask) -> None:
    """`InputError` where the options that all cells share are wrong, before any of them runs."""
    with suppress(DoesNotApply):
        _setting(task)


def run_cell(task: CellTask) -> Cell:
    """The cell of `task`: read back where it is finished, else run; a failure is a cell that says so.

    Every exception of a cell becomes its reason, so that one cell never takes the others with it.
    """
    named = Cell(
        attack=task.attack, adversary=task.adversary, method=task.method, noise=task.noise, epsilon=task.epsilon
    )
    kept = stored_cell(Path(task.folder) / task.name / CELL_FILE, named, positive=task.positive)
    if kept is not None:
        return kept
    clear_cell(task)
    try:
        result = None if task.positive else _result(task)
        cell = _positive(task, named) if result is None else measured_cell(named, result, _report_of(task))
    except DoesNotApply as error:
        result, cell = None, _unmeasured(named, "does not apply", error.said(str, flag))
    except AuditError as error:
        return _unmeasured(named, "failed", error.said(str, flag))
    except Exception as error:
        return _unmeasured(named, "failed", f"{type(error).__name__}: {error}")
    # The folder appears whole or not at all, so a cell that was killed leaves nothing that looks finished.
    with suppress(OSError):  # a disk that refuses is named below
        for folder in (Path(task.folder).parent, Path(task.folder)):
            private_folder(folder)
    with write_run(Path(task.folder), task.name) as run:
        if result is not None:
            run.write_json("result.json", result)
            run.write_json("environment.json", environment([]))
            write_report(run.path)
        run.write_text(CELL_FILE, checksummed({**cell.to_json(), "positive": task.positive}))
    return cell


def run_cell_apart(task: CellTask) -> Cell:
    """`run_cell` in a worker, which leaves signals to its parent."""
    leave_to_parent()
    return run_cell(task)


def stored_cell(path: Path, named: Cell, *, positive: bool) -> Cell | None:
    """Return the finished cell at `path`, the one that is `named`; None where there is none, or a damaged one."""
    kept = Store(path.parent).read(path.name, dict, again="the cell is run again")
    if kept is None or not {**named.to_json(), "positive": positive}.items() <= kept.items():
        return None
    try:
        return (ControlCell if positive else Cell).model_validate({k: v for k, v in kept.items() if k != "positive"})
    except ValidationError:
        return None


def clear_cell(task: CellTask) -> None:
    """Remove what is left of the cell of `task`, finished or not."""
    folder = Path(task.folder)
    for left in (folder / task.name, *folder.glob(f".{task.name}-*.partial")):
        shutil.rmtree(left, ignore_errors=True)


def _report_of(task: CellTask) -> str:
    """The cell's report as seen from the matrix's folder."""
    return f"{Path(task.folder).name}/{task.name}/report.html"


def _setting(task: CellTask) -> AttackSetting:
    import torch

    torch.set_num_threads(1)
    spec = attack_named(task.attack)
    if task.noise is not None:
        _check_channel(task.method, task.noise)
    choice = choose(
        TrainingFlags(
            method=task.method,
            epochs=task.epochs,
            batch_size=task.batch_size,
            epsilon=task.epsilon,
            settings=None if task.noise is None else [f"dp={task.noise}"],
        ),
        task.data,
        quiet=True,
        require=partial(spec.check, task.adversary),
    )
    asks = task.adversary == "client" and choice.method.downlink != "gradient"
    return AttackSetting(
        method=choice.method,
        config=choice.config,
        dataset=choice.dataset,
        adversary=task.adversary,
        queries=spec.queries if asks else 1,
        trials=task.seeds,
        seed=task.seed,
        device=task.device,
        confidence=task.confidence,
        with_positive=False,
    )


def _check_channel(method: str, noise: str) -> None:
    """`DoesNotApply` where the method has no channel of the kind that is to be noised."""
    try:
        method_named(method).configure(dp=noise, epsilon=1.0)
    except InputError as error:
        raise DoesNotApply(f"{noise} noise does not apply to {method}: {error.words}") from error


def _result(task: CellTask) -> AttackResult:
    """The attack's result, without an audit: a matrix shows what each attack finds."""
    plan = AuditPlan(runs=0, confidence=task.confidence)
    return attack_result(attack_named(task.attack), _setting(task), plan)


def _positive(task: CellTask, named: Cell) -> Cell:
    """The attack where it must succeed: the same whatever the method."""
    found = attack_named(task.attack).positive_control(_setting(task))
    facts = {"what": found.what, "value": found.value, "expected": found.expected, "holds": found.holds}
    return ControlCell(**named.to_json(), state="measured").model_copy(update=facts)


def _unmeasured(named: Cell, state: str, reason: str) -> Cell:
    """A cell without a number: the attack does not apply, or something failed, and why."""
    return named.model_copy(update={"state": state, "reason": " ".join(reason.split())})
