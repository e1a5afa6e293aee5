"""One cell of a matrix: an attack on a method as a run folder of its own, kept where a finished one is there."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from attacks import AttackSetting, attack_named
from attacks.core.setting import ALONE, abilities
from attacks.core.spec import DoesNotApply
from mechanisms import method_named
from mechanisms.core.checkpoints import run_key
from reports.render import write_report

from ..base.errors import AuditError, InputError
from ..base.executor import carry_out, workers_from
from ..base.findings import to_jsonable
from ..base.store import Store, checksummed, private_folder, remove_abandoned
from ..evidence.bounding import AuditPlan
from ..evidence.choosing import fresh_seed
from ..evidence.matrix import measured_cell
from ..evidence.training import attack_result
from ..results import Cell, CellKey, SelfCheck
from ..runs import environment, slug, write_run
from ..systems.run import PREFIX
from ..systems.trials import TrialStore
from .flags import CellFlags, TrainingFlags, flag
from .options import DataFlags, asks, choose, configure, defences_given

CELL_FILE = "cell.json"
TRIALS = "trials"
"""The folder of trainings of systems, which cells share while a matrix is made."""


@dataclass(frozen=True)
class Outcome:
    """The finished cell; of an attack's positive control also its check."""

    cell: Cell
    check: SelfCheck | None = None


@dataclass(frozen=True, kw_only=True)
class CellTask:
    """Everything that a cell depends on, so that it can be done by any process.

    `positive`: the attack's control. `clients` are those that look where they are known already.
    """

    key: CellKey
    data: DataFlags
    flags: CellFlags
    folder: Path
    positive: bool = False
    clients: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the cell's folder: readable, and different for different tasks."""
        key = self.key
        control = "control" if self.positive else None
        epsilon = None if key.epsilon is None else f"eps{key.epsilon:g}"
        words = (key.attack, key.adversary, key.method, key.noise, key.defence, epsilon, control)
        readable = "-".join(word for word in words if word is not None)
        facts = {**self.flags.facts(asdict(self.data)), **dict(key), "positive": self.positive}
        digest = run_key({name: str(value) for name, value in facts.items()})
        return f"{slug(readable, limit=80)}-{digest[:6]}"

    def unmeasured(self, state: str, reason: str) -> Outcome:
        """Return a cell without a number: the attack `does not apply`, or something `failed`, and why."""
        words = " ".join(reason.split())
        holds = False if state == "failed" else None
        check = SelfCheck(attack=self.key.attack, what=words, value=None, expected=None, holds=holds)
        cell = Cell(**self.key.to_json(), state=state, reason=words)
        return Outcome(cell, check if self.positive else None)


class Cells:
    """Cells as tasks of the executor, by their number; `shown` is told how many are done."""

    def __init__(self, tasks: Sequence[CellTask], shown: Callable[[int], None]) -> None:
        self._tasks = tasks
        self._shown = shown
        self._waiting = iter(range(len(tasks)))
        self._found: dict[int, Outcome] = {}

    def take(self) -> int | None:
        """Take the next cell."""
        return next(self._waiting, None)

    def arguments(self, task: int) -> tuple[CellTask]:
        """Return what `run_cell` is called with."""
        return (self._tasks[task],)

    def ends(self, task: int) -> None:
        """Let a cell take as long as it takes."""

    def done(self, task: int, result: Outcome) -> None:
        """Take what became of a cell."""
        self._found[task] = result
        self._shown(len(self._found))

    def give_up(self, task: int) -> None:
        """Never called: no cell ends by the clock."""

    def failed(self, task: int, error: BaseException, *, deaths: int = 0) -> None:
        """Raise what `run_cell` lets through; a cell on which workers die is one that failed."""
        if not deaths:
            raise error
        self.done(task, self._tasks[task].unmeasured("failed", f"its process died {deaths} times"))

    def carried_out(self, jobs: int) -> list[Outcome]:
        """Run all cells in so many processes; return what became of them, in the order of the tasks."""
        try:
            carry_out(self, workers_from(jobs, None, None), run_cell)
        finally:
            remove_abandoned(self._tasks[0].folder)  # workers that were ended in the middle of a cell left it
        return [self._found[task] for task in range(len(self._tasks))]


def strongest_tasks(tasks: Sequence[CellTask], outcomes: Sequence[Outcome]) -> list[tuple[str, CellTask]]:
    """Return what is done once more of a matrix: of each method and adversary the attack in its reach that did most.

    Two adversaries may share a task. The cells chose it, and their pilots the clients, so it is done on trainings of a
    seed that neither had.
    """
    measured = [
        (task, outcome.cell)
        for task, outcome in zip(tasks, outcomes, strict=True)
        if not task.positive
        and outcome.cell.state == "measured"
        and attack_named(outcome.cell.attack).goal.reveals != "gradients"
    ]
    rows = dict.fromkeys((_variant(cell), cell.adversary) for _, cell in measured)
    again = []
    for of, adversary in rows:
        reach = abilities(adversary)
        rivals = [(task, cell) for task, cell in measured if cell.adversary in reach and of == _variant(cell)]
        task, cell = max(rivals, key=lambda pair: pair[1].harm)
        clients = tuple(cell.clients) if cell.adversary in ALONE else ()
        flags = replace(task.flags, seed=fresh_seed(task.flags.seed))
        again.append((adversary, replace(task, flags=flags, clients=clients)))
    return again


def _variant(cell: Cell) -> tuple[object, ...]:
    """Return what is attacked in a cell."""
    return cell.method, cell.noise, cell.defence, cell.epsilon


def defence_flags(key: CellKey) -> tuple[list[str] | None, list[str] | None]:
    """Return --defence and --defence-set of a cell, None without one; `InputError` for an unknown one, or a setting."""
    if key.defence is None:
        return None, None
    name, *settings = key.defence.split(":")
    if key.epsilon is not None:
        settings.append(f"epsilon={key.epsilon!r}")
    defences_given(TrainingFlags(defence=[name], defence_settings=settings))
    return [name], settings


def check_task(task: CellTask) -> None:
    """Raise `InputError` where the options that all cells share are wrong, before any of them runs."""
    with suppress(DoesNotApply):
        _setting(task)


def run_cell(task: CellTask) -> Outcome:
    """Return the cell of `task`: read back where it is finished, else run; a failure is a cell that says so.

    Every exception of a cell becomes its reason, so that one cell never takes the others with it.
    """
    folder = task.folder
    kept = stored_cell(folder / task.name / CELL_FILE, task.key)
    if kept is not None:
        return kept
    clear_cell(task)
    result = None
    try:
        spec = attack_named(task.key.attack)
        setting = _setting(task)
        if task.positive:
            control = spec.positive_control(setting)
            values = {name: getattr(control, name) for name in ("what", "value", "expected", "holds")}
            check = SelfCheck(attack=spec.name, **values)
            outcome = Outcome(Cell(**task.key.to_json(), state="measured"), check)
        else:
            result = attack_result(spec, setting, AuditPlan(runs=0, confidence=setting.confidence))
            report = f"{folder.name}/{task.name}/report.html"
            outcome = Outcome(measured_cell(task.key, result, report))
    except DoesNotApply as error:
        outcome = task.unmeasured("does not apply", error.said(str, flag))
    except AuditError as error:
        misfit = task.key.defence is not None and isinstance(error, InputError) and error.field == "defence"
        if not misfit:
            return task.unmeasured("failed", error.said(str, flag))
        # Whether a defence fits a method and its data shows where a training begins.
        outcome = task.unmeasured("does not apply", error.said(str, flag))
    except Exception as error:
        return task.unmeasured("failed", f"{type(error).__name__}: {error}")
    # The folder appears whole or not at all, so a cell that was killed leaves nothing that looks finished.
    with suppress(OSError):  # a disk that refuses is named below
        for made in (folder.parent, folder):
            private_folder(made)
    with write_run(folder, task.name) as run:
        if result is not None:
            run.write("result.json", result)
            run.write("environment.json", environment([]))
            write_report(run.path)
        run.write(CELL_FILE, checksummed(to_jsonable(outcome)))
    return outcome


def stored_cell(path: Path, named: CellKey) -> Outcome | None:
    """Return the finished cell at `path`, the one that is `named`; None where there is none, or a damaged one."""
    kept = Store(path.parent).read(path.name, Outcome, again="the cell is run again")
    same = kept is not None and named.to_json().items() <= kept.cell.to_json().items()
    return kept if same else None


def clear_cell(task: CellTask) -> None:
    """Remove what is left of the cell of `task`, finished or not."""
    for left in (task.folder / task.name, *task.folder.glob(f".{task.name}-*.partial")):
        shutil.rmtree(left, ignore_errors=True)


def _setting(task: CellTask) -> AttackSetting:
    torch.set_num_threads(1)
    key = task.key
    flags = task.flags
    spec = attack_named(key.attack)
    settings = None
    defence, its_settings = defence_flags(key)
    if key.noise is not None:
        try:
            method_named(key.method).configure(dp=key.noise, epsilon=1.0)
        except InputError as error:
            raise DoesNotApply(f"{key.noise} noise does not apply to {key.method}: {error.words}") from error
        settings = [f"dp={key.noise}"]
    data = task.data
    if key.method.startswith(PREFIX):
        training = TrainingFlags(system=key.method.removeprefix(PREFIX), defence=defence, defence_settings=its_settings)
    else:
        if data.csv is None:
            data = replace(data, preset=data.preset or "paper")
        training = TrainingFlags(
            method=key.method,
            epochs=flags.epochs,
            batch_size=flags.batch_size if method_named(key.method).used({"batch_size": None}) else None,
            epsilon=None if defence else key.epsilon,
            settings=settings,
            defence=defence,
            defence_settings=its_settings,
        )
        if defence:
            try:
                configure(training)
            except InputError as error:
                raise DoesNotApply(f"{key.defence} does not apply to {key.method}: {error.words}") from error
    attacked = choose(
        training,
        data,
        quiet=True,
        require=partial(spec.check, key.adversary),
        seed=flags.seed,
        device=flags.device,
        trials=TrialStore(folder=task.folder.parent / TRIALS / run_key({"system": key.method})),
        seconds=flags.trial_seconds,
    )
    return AttackSetting.of(
        attacked,
        adversary=key.adversary,
        clients=task.clients,
        queries=spec.setup.queries if asks(attacked, key.adversary) else 1,
        trials=flags.seeds,
        confidence=flags.confidence,
        with_positive=False,
    )
