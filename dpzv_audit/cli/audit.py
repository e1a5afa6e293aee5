"""`dpzv-audit audit`: what scores prove about epsilon from below, and whether they refute a claim."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dpzv_audit.cli.audit_coverage import (
    DEFAULT_AUDITS,
    DEFAULT_CHUNK,
    DEFAULT_DELTA,
    DEFAULT_FAMILY,
    DEFAULT_RUNS,
    coverage_check_command,
    family_of,
)
from dpzv_audit.cli.audit_game import show
from dpzv_audit.cli.audit_scores import ScoreAuditOptions, audit_score_files
from dpzv_audit.cli.common import (
    Output,
    check_choice,
    choose_device,
    kept_for_resume,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.flags import Count, RunFlags, TrainingFlags, WorkerFlags, takes
from dpzv_audit.cli.names import flag, flags_set
from dpzv_audit.cli.options import choose, configure
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError, check_count, check_probability

_PLAYED = ("adversary", "neighbours", "canary", "others")
_TRAINED = (
    *("data_option" if field.name == "data_options" else field.name for field in fields(DataFlags)),
    *("epochs", "batch_size", "calibration", "sigma", "set", "canary_norm", "canaries", "simulate", "dataset_size"),
    *("rounds", "device"),
)
_RUN = ("runs", "chunk", "jobs", "executor", "scheduler", "max_minutes", "resume", "out")
_CLAIM = ("epsilon", "fail_on", "exactly_gaussian", "coin_flips", "family", "trial_seconds")
_SIMULATED = ("clients", "batch_size", "calibration", "sigma", "set", "dataset_size", "rounds", "simulate")
"""What a simulation takes of the options that describe a training."""


@takes({"method": None}, data=DataFlags, training=TrainingFlags, run=RunFlags, workers=WorkerFlags, output=Output)
def audit(
    *,
    ctx: typer.Context,
    scores: tuple[Path, Path] | None = None,
    training: TrainingFlags,
    data: DataFlags,
    mechanism: str | None = None,
    adversary: str = "client",
    neighbours: str = "replace-label",
    canary: str = "worst-case",
    canary_norm: float | None = None,
    canaries: Annotated[int | None, partial(check_count, least=2)] = None,
    others: str = "zero",
    simulate: bool = False,
    dataset_size: Count | None = None,
    rounds: Count | None = None,
    runs: Count | None = None,
    chunk: Count = DEFAULT_CHUNK,
    confidence: float = 0.95,
    estimator: list[str] | None = None,
    exactly_gaussian: bool = False,
    family: str = DEFAULT_FAMILY,
    coin_flips: bool = False,
    calibrate_check: bool = False,
    audits: int = DEFAULT_AUDITS,
    fail_on: str | None = None,
    workers: WorkerFlags,
    max_minutes: float | None = None,
    resume: bool = False,
    run: RunFlags,
    output: Output,
) -> None:
    """Bound epsilon from below: a method here, scores, a mechanism.

    With --method, plays a distinguishing game, a stack of trainings in each world (with --simulate, their scalars
    alone), and sets the lower bound beside every upper bound. With --scores nothing is trained: one file holds an
    attack's scores on runs with the canary, the other on runs without it, one number a run. With --mechanism a Python
    object of your own is run in both worlds; planted:all runs the mechanisms that are wrong on purpose.

    Example: dpzv-audit audit --method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Example: dpzv-audit audit --scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted

    Example: dpzv-audit audit --mechanism planted:all

    Example: dpzv-audit audit --scores ones.csv zeros.csv --coin-flips --estimator one-run

    Example: dpzv-audit audit --calibrate-check --estimator joint --audits 100

    Options:
        scores IN OUT: Scores with the canary and without it: two files, each CSV, NPY, NPZ or JSON lines.
        mechanism WHAT: pkg.mod:factory, a mechanism of your own, which is imported; or planted:NAME, planted:all.
        adversary client|colluding-clients|eavesdropper|release: Who tells the worlds apart.
        neighbours replace-label|replace-record|add-remove|zero-out: How the two worlds differ in the canary.
        canary worst-case|state|mislabelled|random: The record that differs; see `dpzv-audit list canaries`.
        canary_norm X: Factor by which the features of a state canary are multiplied.
        canaries M: One training with M canaries of coin-flip labels, whose labels are guessed, instead of many
            trainings.
        others zero|saturated: What the records beside the canary contribute: 0 or +C.
        simulate: Draw the scalars of a training of any size instead of training; worst-case canary.
        dataset_size D: With --simulate: number of records.
        rounds T: With --simulate: rounds, all clients together.
        runs N: Runs in each world; by default 2000, for a planted mechanism its own number.
        chunk N: Audit runs done at once, half of them in each world; fewer need less memory.
        confidence X: Confidence of the bound: a true claim is refuted with probability 1 - X at most.
        estimator NAME: Estimator to use; may be given several times.
        exactly_gaussian: The scores are Gaussian by construction, on your word: the gaussian estimator may then refute
            the claim.
        family FAMILY: Curves that curve and one-run-fdp fit: gaussian, laplace, pure or
            sampled:rate=R,rounds=T[,pair=remove|replace].
        coin_flips: The scores are of canaries of one training; a fair coin a canary decided its file (bit 1: IN).
        calibrate_check: Print coverage and power of the estimators where epsilon is known.
        audits N: Audits of each mechanism for --calibrate-check.
        fail_on refuted|overclaimed: Exit with 1 when the claim is refuted; with overclaimed, also when no sound bound
            supports it.
        max_minutes X: Stop after X minutes and answer with the runs done by then.
        resume: Go on where an interrupted audit with the same options stopped.
    """

    given = flags_set(ctx)
    if calibrate_check:
        if scores is not None or training.method is not None or mechanism is not None:
            raise InputError(
                "--calibrate-check audits mechanisms of its own, must stand without --scores, --method and --mechanism"
            )
        own = "which takes --audits, --estimator, --delta, --confidence and --seed"
        _refuse(given, (*_TRAINED, *_PLAYED, *_RUN, *_CLAIM), f"does not go with --calibrate-check, {own}")
        coverage_check_command(
            audits=audits,
            delta=DEFAULT_DELTA if training.delta is None else training.delta,
            confidence=confidence,
            estimators=tuple(estimator) if estimator else None,
            seed=run.seed,
            output=output,
        )
        return
    if audits != DEFAULT_AUDITS:
        raise InputError("--audits goes with --calibrate-check; any other audit is one")
    what = {"--method": training.method, "--scores": scores, "--mechanism": mechanism}
    chosen = [flag for flag, value in what.items() if value is not None]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none of --method, --scores and --mechanism"
        raise InputError(f"{found} given, must be one: --method NAME, --scores IN OUT or --mechanism pkg.mod:factory")
    if training.method is None:
        _refuse(given, _TRAINED, f"goes with --method; {chosen[0]} trains nothing here")
        _refuse(given, _PLAYED, f"goes with --method; {chosen[0]} says itself what the two worlds are")
    if canary_norm is not None and canary != "state":
        raise InputError(f"--canary-norm goes with --canary state, not {canary}: no other has features to make large")
    if mechanism is None and workers.trial_seconds != TRIAL_SECONDS:
        raise InputError("--trial-seconds goes with --mechanism, whose single runs may take so long")
    if canaries is not None:
        _refuse(given, _RUN[:-1], "goes with runs in both worlds; with --canaries there is one training")
    if scores is not None:
        _refuse(given, _RUN, "goes with --method or --mechanism; --scores runs nothing and writes to stdout alone")
        audit_score_files(
            scores,
            ScoreAuditOptions(
                epsilon=training.epsilon,
                delta=DEFAULT_DELTA if training.delta is None else training.delta,
                confidence=confidence,
                estimators=tuple(estimator) if estimator else None,
                exactly_gaussian=exactly_gaussian,
                family=family_of(family),
                coin_flips=coin_flips,
                fail_on=fail_on,
                seed=run.seed,
            ),
            output,
        )
        return
    if coin_flips or family != DEFAULT_FAMILY:
        raise InputError("--family and --coin-flips go with --scores; a trained method's game decides both")
    if estimator:
        raise InputError("--estimator goes with --scores; a game decides which apply")
    if exactly_gaussian and mechanism is None:
        raise InputError("--exactly-gaussian goes with --scores or --mechanism; a trained method's game decides it")
    check_probability("confidence", confidence)
    if training.delta is not None:
        check_probability("delta", training.delta)
    if fail_on is not None:
        check_choice("fail_on", fail_on, ("refuted", "overclaimed"))
    from dpzv_audit.evaluation import AuditPlan
    from dpzv_audit.evaluation.auditing import audit_outcome, simulated_outcome
    from dpzv_audit.evaluation.one_run import one_run_outcome
    from dpzv_audit.execution.workers import workers_from
    from mechanisms.context import Deployment

    plan = AuditPlan(
        runs=DEFAULT_RUNS if runs is None else runs,
        chunk=chunk,
        confidence=confidence,
        others=others,
        neighbours=neighbours,
        canary=canary,
        workers=workers_from(workers.jobs, workers.executor, workers.scheduler),
        max_minutes=max_minutes,
        folder=run.out / "audits",
        resume=resume,
        **({} if canary_norm is None else {"norm": canary_norm}),
    )
    with kept_for_resume(run.out / "audits", "*.npz"):
        if mechanism is not None:
            from dpzv_audit.cli.audit_mechanism import audit_mechanism

            audit_mechanism(
                mechanism,
                plan,
                epsilon=training.epsilon,
                delta=DEFAULT_DELTA if training.delta is None else training.delta,
                trial_seconds=workers.trial_seconds,
                exactly_gaussian=exactly_gaussian,
                fail_on=fail_on,
                seed=run.seed,
                out=run.out,
                output=output,
                runs=runs,
            )
            return
        if simulate:
            _refuse(given, _TRAINED, "does not go with --simulate, which trains nothing", but=_SIMULATED)
            for name, value in (("dataset_size", dataset_size), ("rounds", rounds)):
                if value is None:
                    raise InputError("is missing: --simulate needs --dataset-size D and --rounds T", name)
            spec, config = configure(training)
            deployment = Deployment(records=dataset_size or 0, clients=data.clients or 1, rounds=rounds or 0)
            with output.progress() as bars:
                outcome = simulated_outcome(
                    spec,
                    config,
                    deployment,
                    adversary=adversary,
                    audit=plan,
                    seed=run.seed,
                    reporter=progress_reporter(bars),
                )
        else:
            of_data = "goes with --simulate; a training has the size of its data set"
            _refuse(given, ("dataset_size", "rounds"), of_data)
            choice = choose(training, data, quiet=output.quiet)
            where = choose_device(run.device)
            with output.progress() as bars:
                options: dict[str, Any] = {
                    "adversary": adversary,
                    "seed": run.seed,
                    "device": where,
                    "reporter": progress_reporter(bars),
                }
                outcome = (
                    audit_outcome(choice.method, choice.config, choice.dataset, audit=plan, **options)
                    if canaries is None
                    else one_run_outcome(
                        choice.method, choice.config, choice.dataset, canaries=canaries, audit=plan, **options
                    )
                )
    show(outcome, run.out, run.seed, output, fail_on)


def _refuse(given: Collection[str], names: Iterable[str], why: str, but: Collection[str] = ()) -> None:
    """Raise `InputError` for the first of the options `names`, except those in `but`, that was given."""
    for name in names:
        if name in given and name not in but:
            raise InputError(f"{flag(name)} {why}")
