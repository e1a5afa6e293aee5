"""`dpzv-audit audit`: the group of commands that bound epsilon from below, with those that play a game themselves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..base.errors import InputError, check_count
from ..base.executor import Workers
from ..base.findings import adversary_named
from ..base.signals import TRIAL_SECONDS
from .flags import (
    DEFAULT_DELTA,
    Count,
    Delta,
    Device,
    OutFlags,
    Positive,
    Probability,
    TrainingFlags,
    WorkerFlags,
    completion,
    flags_set,
    refuse,
    takes,
)
from .options import CSV_ONLY, NAMED_ONLY, DataFlags, choose, configure
from .output import Answered, save
from .summary import planted_markdown, planted_table, table_from
from .trials import PlannedFlags, kept_trials

if TYPE_CHECKING:
    from ..evidence.auditing import AuditOutcome
    from ..evidence.bounding import AuditPlan


METHOD = typer.Argument(
    metavar="NAME", help="Method; see `dpzv-audit list methods`.", autocompletion=completion("--method")
)


@dataclass(frozen=True, kw_only=True)
class AuditedFlags(TrainingFlags):
    """The method that is audited, and its settings; None where not given."""

    method: Annotated[str, METHOD] = "dpzv"
    delta: Delta | None = None


@dataclass(frozen=True, kw_only=True)
class BoundFlags(OutFlags):
    """Confidence of an audit, and the verdicts that fail the command.

    Audit:
        confidence X: Confidence of the bound. A true claim is refuted with probability 1 - X at most.
        fail_on VERDICT: Exit with 1 if refuted, or also if overclaimed. Overclaimed means that no sound bound supports
            the claim.
    """

    confidence: Probability = 0.95
    fail_on: Literal["refuted", "overclaimed"] | None = None

    def fail(self, verdict: str | None) -> None:
        """Exit with 1 where `--fail-on` asks for it."""
        if self.fail_on is not None and verdict in ("refuted", self.fail_on):
            raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class GameFlags(BoundFlags, WorkerFlags):
    """Runs of an audit in each world, how long they go on, and where they are carried out.

    Basics:
        runs N: Runs with the canary, and as many without. By default 2000, fewer if trainings are long, and a planted
            mechanism's own number.
    Execution:
        chunk N: Runs done at once. Half of them have the canary; fewer need less memory.
        max_minutes X: Stop after X minutes. The answer rests on the runs done by then.
        resume: Continue an interrupted run of this command.
    """

    runs: Count | None = None
    chunk: Count = 256
    max_minutes: float | None = None
    resume: bool = False

    def plan(self, **game: Any) -> "AuditPlan":
        """Return the plan of an audit whose chunks are kept under `--out`; `game` are further fields of it."""
        from ..evidence.bounding import AuditPlan

        return AuditPlan(
            runs=self.runs or 2000,
            chunk=self.chunk,
            confidence=self.confidence,
            workers=self.workers(),
            max_minutes=self.max_minutes,
            folder=self.out / "audits",
            resume=self.resume,
            **game,
        )


def show(outcome: "AuditOutcome", table: str, game: BoundFlags, output: Answered, source: str = "") -> None:
    """Write the run folder, print the result as the template `table` says, and exit as `--fail-on` asks.

    `source` is as in `Answered.finish`.
    """
    result = outcome.result
    saved = save(result, game, "audit", result.method, result.dataset, files=outcome.bounded.files)
    outcome.bounded.forget()
    output.finish(saved, table_from(table, result), source=source)
    game.fail(result.privacy.verdict)


def carried_out(
    play: "Callable[..., AuditOutcome]", plan: "AuditPlan", table: str, game: BoundFlags, output: Answered
) -> None:
    """Play a game as planned, and show its outcome as `show` does."""
    with output.progress(plan.folder) as reporter:
        outcome = play(audit=replace(plan, reporter=reporter))
    show(outcome, table, game, output)


_UNTRAINED = (*NAMED_ONLY, "data_option", "csv", *CSV_ONLY, "epochs", "canary_norm", "canaries", "device")
"""Options that say nothing to a simulation."""
_BOTH_WORLDS = ("runs", "chunk", "jobs", "executor", "scheduler", "max_minutes", "resume")


@takes
def audit_method(
    *,
    ctx: typer.Context,
    training: AuditedFlags,
    data: DataFlags,
    adversary: str | None = None,
    neighbours: str = "replace-label",
    canary: str = "worst-case",
    canary_norm: float | None = None,
    canaries: Annotated[int | None, partial(check_count, least=2)] = None,
    others: str = "zero",
    simulate: bool = False,
    dataset_size: Count | None = None,
    rounds: Count | None = None,
    device: Device = "cpu",
    game: GameFlags,
    output: Answered,
) -> None:
    """Measure a lower bound on the epsilon of a method.

    Trains many times on each of two neighbouring data sets, which differ in one record, the canary.

    Example: dpzv-audit audit method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Attacker:
        adversary NAME: Who attacks; see `dpzv-audit list adversaries`. client, colluding-clients, eavesdropper or
            release; by default the one that the method's noise is meant to stop.
    Audit:
        neighbours NAME: How neighbouring data sets differ. replace-label, replace-record, add-remove or
            zero-out.
        canary NAME: The canary; see `dpzv-audit list canaries`. The record that differs:
            worst-case, state, mislabelled or random.
        canary_norm X: Factor on the features of a state canary.
        canaries M: One training with M canaries. Their coin-flip labels are guessed; this takes the place of many
            trainings.
        others zero|saturated: What all other records contribute: 0 or +C.
        simulate: Draw the scalars instead of training. This works at any size, with a worst-case canary.
        dataset_size D: With --simulate: number of records.
        rounds T: With --simulate: rounds of all clients together.
    Execution:
        device cpu|cuda|auto: Device to compute on.
    """
    from mechanisms.core.context import Deployment

    from ..evidence.auditing import audit_outcome, one_run_outcome, rows_outcome, simulated_outcome, sums_outcome
    from ..evidence.bounding import affordable_runs

    changed = flags_set(ctx)
    if canary_norm is not None and canary != "state":
        raise InputError(f"--canary-norm goes with --canary state, not {canary}: no other has features to make large")
    if canaries is not None:
        refuse(changed, _BOTH_WORLDS, "goes with many trainings; with --canaries there is only one")
    worlds = {"others": others, "neighbours": neighbours, "canary": canary}
    plan = game.plan(**worlds, **({} if canary_norm is None else {"norm": canary_norm}))
    if simulate:
        refuse(changed, _UNTRAINED, "does not go with --simulate, which trains nothing")
        if dataset_size is None or rounds is None:
            missing = "--dataset-size" if dataset_size is None else "--rounds"
            raise InputError(f"{missing} is missing: --simulate needs --dataset-size D and --rounds T")
        deployment = Deployment(records=dataset_size, clients=data.clients or 1, seed=game.seed, rounds=rounds)
        method, config = configure(training)
        by = adversary or method.protection(config).faced
        play = partial(simulated_outcome, method, config, deployment, adversary=by)
    else:
        refuse(changed, ("dataset_size", "rounds"), "goes with --simulate; a training has the size of its data set")
        audited = choose(training, data, quiet=output.quiet, seed=game.seed, device=device)
        by = adversary or audited.method.protection(audited.config).faced
        against = adversary_named(by)
        of_a_record = {"sums": sums_outcome, "rows": rows_outcome}
        played = next((of_a_record[p] for p in audited.method.games(audited.config).played if p in of_a_record), None)
        if game.runs is None:
            # A step that reads all records takes as long as so many of a batch.
            weight = max(1, audited.records // 512) if played else 1
            plan = replace(plan, runs=affordable_runs(audited.rounds * weight))
        play = partial(played or audit_outcome, audited, against)
        if canaries is not None and played:
            raise InputError(f"leave it out: {audited.method.name} releases no scalars", "canaries", canaries)
        if canaries is not None:
            play = partial(one_run_outcome, audited, against, canaries=canaries)
    carried_out(play, plan, "audit", game, output)


SYSTEM = "Your training function, such as our_vfl:train in our_vfl.py."


@takes
def audit_system(
    *,
    system: Annotated[str, typer.Argument(metavar="WHAT", help=SYSTEM)],
    data: DataFlags,
    adversary: Literal["client", "colluding-clients"] = "client",
    epsilon: Positive | None = None,
    trials: Count = 2,
    fit_trials: Count = 4,
    how: PlannedFlags,
    resume: bool = False,
    bound: BoundFlags,
    output: Answered,
) -> None:
    """Measure a lower bound on the epsilon of your training.

    Trains with coin-flip labels, and guesses the coins from what the adversary sees, by a score fitted on other
    trainings. The adversary knows the labels of one record in ten.

    Example: dpzv-audit audit system our_vfl:train

    Basics:
        epsilon X: Claimed epsilon.
        trials N: Trainings whose coins are guessed. More coins can certify more.
    Attacker:
        adversary NAME: Who attacks: client 1 or colluding-clients. `client` (the default) is client 1; with
            colluding-clients all attack together.
    Audit:
        fit_trials N: Trainings that the score is fitted on.
    Execution:
        jobs N: Worker processes. Each takes the next training.
        executor loky|dask: Processes here, or a cluster.
        trial_seconds X: Longest training, in seconds. 60 by default.
        max_minutes X: Most minutes. Where they are few there are fewer trainings, and a line says beforehand what these
            could show.
        resume: Continue an interrupted or failed run. Finished trainings are kept.
    """
    from ..evidence.auditing import system_outcome
    from ..evidence.bounding import AuditPlan
    from ..evidence.planning import plan_game
    from ..games.system import SystemGame

    training = TrainingFlags(system=system)
    pace = how.pace()
    with kept_trials(how, system, bound.out, resume=resume) as kept:
        with pace.lasting("the rehearsal"):
            audited = choose(training, data, quiet=output.quiet, seed=bound.seed, trials=kept, seconds=how.seconds)
        with output.progress() as reporter, pace.lasting("the audit"):
            planned, trials, fit_trials = plan_game(
                SystemGame(audited, adversary),
                pace,
                confidence=bound.confidence,
                trainings=trials,
                fit_trainings=fit_trials,
            )
            for line in planned.lines:
                output.note(f"plan: {line}")
            plan = AuditPlan(runs=0, confidence=bound.confidence, reporter=reporter)
            outcome = system_outcome(
                audited, adversary, plan, epsilon=epsilon, trainings=trials, fit_trainings=fit_trials
            )
    show(outcome, "audit", bound, output, audited.method.capabilities.draft)


DEFENCE = typer.Argument(
    metavar="NAME", help="Label defence; see `dpzv-audit list defences`.", autocompletion=completion("--defence")
)


@takes
def audit_defence(
    *,
    name: Annotated[str, DEFENCE],
    defence_set: list[str] | None = None,
    data: DataFlags,
    adversary: Literal["client", "colluding-clients", "malicious-client", "eavesdropper", "release"] = "client",
    game: GameFlags,
    output: Answered,
) -> None:
    """Measure a lower bound on the epsilon of a label defence.

    Releases all labels many times for each of two neighbouring data sets, which differ in the label of one record:
    the one whose released label is most in doubt. A training on released labels reveals no more.

    Example: dpzv-audit audit defence label-cluster --defence-set epsilon=1

    Basics:
        defence_set KEY=VALUE: Setting of the defence. May be given several times.
    Attacker:
        adversary NAME: Who attacks; see `dpzv-audit list adversaries`. client, colluding-clients, malicious-client,
            eavesdropper or release. All of them learn only what the released labels say; the server knows the labels.
    """
    from ..evidence.auditing import defence_outcome

    training = TrainingFlags(method="split", defence=[name], defence_settings=defence_set)
    audited = choose(training, data, quiet=output.quiet, seed=game.seed)
    carried_out(partial(defence_outcome, audited, adversary), game.plan(), "audit", game, output)


def apart(plan: "AuditPlan") -> "AuditPlan":
    """Return the plan with a worker process where it has none: a run that takes its process down ends nothing else."""
    if plan.workers.kind != "here":
        return plan
    return replace(plan, workers=Workers(kind="loky", jobs=1))


WHAT = "Your mechanism, pkg.mod:factory; or planted:NAME. It is imported."


@takes
def audit_mechanism(
    *,
    mechanism: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT)],
    epsilon: Positive | None = None,
    delta: Probability = DEFAULT_DELTA,
    exactly_gaussian: bool = False,
    trial_seconds: Positive = TRIAL_SECONDS,
    game: GameFlags,
    output: Answered,
) -> None:
    """Measure a lower bound on the epsilon of your mechanism.

    Runs a Python object many times on two neighbouring inputs. planted:all runs mechanisms that are wrong on purpose,
    and exits with 3 if one gets another verdict than it should.

    Example: dpzv-audit audit mechanism planted:all

    Basics:
        epsilon X: Claimed epsilon. By default what the mechanism's own claimed(delta) says, if it has one.
        delta X: Delta of the claim and of bounds. Strictly between 0 and 1.
    Audit:
        exactly_gaussian: Assume Gaussian scores, on your word. Use it where the construction of the mechanism makes its
            scores Gaussian: the gaussian estimator may then refute the claim.
    Execution:
        trial_seconds X: Longest run, in seconds.
    """
    plan = game.plan()
    kind, colon, planted = mechanism.partition(":")
    if kind == "planted" and colon:
        if exactly_gaussian:
            raise InputError("--exactly-gaussian does not go with planted, which knows what its scores are")
        if epsilon is not None:
            raise InputError("--epsilon does not go with planted: the claim is part of what is planted")
        _planted(planted, plan, game, output)
        return
    from ..evidence.auditing import mechanism_outcome
    from ..games.mechanism import mechanism_from

    mechanism_from(mechanism)  # here, so that one that cannot be imported is one line before anything starts
    play = partial(
        mechanism_outcome,
        mechanism,
        epsilon=epsilon,
        delta=delta,
        trial_seconds=trial_seconds,
        exactly_gaussian=exactly_gaussian,
        seed=game.seed,
    )
    carried_out(play, apart(plan), "mechanism", game, output)


def _planted(name: str, plan: "AuditPlan", game: GameFlags, output: Answered) -> None:
    """Audit one planted mechanism, or all: exits with 3 where a verdict is not the one that it must be."""
    from ..evidence.auditing import planted_result
    from ..games.planted import PLANTED, planted_named

    every = name == "all"
    chosen = list(PLANTED.values())
    if not every:
        chosen = [planted_named(name, field="planted:NAME", also=("all",))]
    with output.progress(plan.folder) as reporter:
        result = planted_result(chosen, replace(plan, reporter=reporter), runs=game.runs, seed=game.seed)
    saved = save(result, game, "audit", result.method, files={"table.md": planted_markdown(result)})
    output.finish(saved, planted_table(result))
    rows = result.rows
    if not all(row.as_expected for row in rows):
        raise typer.Exit(3)
    if not every:
        game.fail(rows[0].verdict)
