"""`dpzv-audit audit`: what scores prove about epsilon from below, and whether they refute a claim."""

from __future__ import annotations

from typing import Any

from dpzv_audit.cli.audit_coverage import (
    DEFAULT_AUDITS,
    DEFAULT_FAMILY,
    AuditsOption,
    CalibrateCheckOption,
    CoinFlipsOption,
    FamilyOption,
    coverage_check_command,
    family_of,
)
from dpzv_audit.cli.audit_game import show, simulated
from dpzv_audit.cli.audit_options import (
    DEFAULT_CHUNK,
    DEFAULT_DELTA,
    DEFAULT_GAME,
    DEFAULT_RUNS,
    AdversaryOption,
    AuditRunsOption,
    CanariesOption,
    CanaryNormOption,
    CanaryOption,
    ConfidenceOption,
    DatasetSizeOption,
    DeltaOption,
    EpsilonOption,
    EstimatorOption,
    ExactlyGaussianOption,
    ExecutorOption,
    FailOnOption,
    JobsOption,
    MaxMinutesOption,
    MechanismOption,
    MethodOption,
    NeighboursOption,
    OthersOption,
    ResumeOption,
    RoundsOption,
    SchedulerOption,
    ScoresOption,
    SimulateOption,
    TrialSecondsOption,
)
from dpzv_audit.cli.audit_scores import ScoreAuditOptions, audit_score_files
from dpzv_audit.cli.bundles import takes
from dpzv_audit.cli.common import (
    DEFAULT_DEVICE,
    DEFAULT_OUT,
    DeviceOption,
    JsonOption,
    OutOption,
    Output,
    QuietOption,
    SeedOption,
    check_choice,
    choose_device,
    kept_for_resume,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataFlags, given_flags
from dpzv_audit.cli.options import (
    BatchSizeOption,
    CalibrationOption,
    ChunkOption,
    EpochsOption,
    SetOption,
    SigmaOption,
    choose,
)
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError, check_probability


@takes(data=DataFlags)
def audit(
    *,
    scores: ScoresOption = None,
    method: MethodOption = None,
    data: DataFlags,
    mechanism: MechanismOption = None,
    adversary: AdversaryOption = DEFAULT_GAME["adversary"],
    neighbours: NeighboursOption = DEFAULT_GAME["neighbours"],
    canary: CanaryOption = DEFAULT_GAME["canary"],
    canary_norm: CanaryNormOption = None,
    canaries: CanariesOption = None,
    others: OthersOption = DEFAULT_GAME["others"],
    simulate: SimulateOption = False,
    dataset_size: DatasetSizeOption = None,
    rounds: RoundsOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    calibration: CalibrationOption = None,
    sigma: SigmaOption = None,
    settings: SetOption = None,
    runs: AuditRunsOption = None,
    chunk: ChunkOption = DEFAULT_CHUNK,
    confidence: ConfidenceOption = 0.95,
    estimator: EstimatorOption = None,
    exactly_gaussian: ExactlyGaussianOption = False,
    family: FamilyOption = DEFAULT_FAMILY,
    coin_flips: CoinFlipsOption = False,
    calibrate_check: CalibrateCheckOption = False,
    audits: AuditsOption = DEFAULT_AUDITS,
    fail_on: FailOnOption = None,
    jobs: JobsOption = None,
    executor: ExecutorOption = None,
    scheduler: SchedulerOption = None,
    max_minutes: MaxMinutesOption = None,
    trial_seconds: TrialSecondsOption = TRIAL_SECONDS,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = DEFAULT_DEVICE,
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
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
    """
    output = Output(as_json=as_json, quiet=quiet)
    running = {
        "--runs": runs,
        "--chunk": None if chunk == DEFAULT_CHUNK else chunk,
        "--jobs": jobs,
        "--executor": executor,
        "--scheduler": scheduler,
        "--max-minutes": max_minutes,
        "--resume": resume or None,
        "--out": None if out == DEFAULT_OUT else out,
    }
    played = {"adversary": adversary, "neighbours": neighbours, "canary": canary, "others": others}
    game = {f"--{name}": value for name, value in played.items() if value != DEFAULT_GAME[name]}
    training = {
        **given_flags(data),
        "--epochs": epochs,
        "--batch-size": batch_size,
        "--calibration": calibration,
        "--sigma": sigma,
        "--set": settings or None,
        "--canary-norm": canary_norm,
        "--canaries": canaries,
        "--simulate": simulate or None,
        "--dataset-size": dataset_size,
        "--rounds": rounds,
        "--device": None if device == DEFAULT_DEVICE else device,
    }
    if calibrate_check:
        if scores is not None or method is not None or mechanism is not None:
            raise InputError(
                "--calibrate-check audits mechanisms of its own, must stand without --scores, --method and --mechanism"
            )
        claim = {
            "--epsilon": epsilon,
            "--fail-on": fail_on,
            "--exactly-gaussian": exactly_gaussian or None,
            "--coin-flips": coin_flips or None,
            "--family": None if family == DEFAULT_FAMILY else family,
            "--trial-seconds": None if trial_seconds == TRIAL_SECONDS else trial_seconds,
        }
        own = "which takes --audits, --estimator, --delta, --confidence and --seed"
        _refuse({**training, **game, **running, **claim}, f"does not go with --calibrate-check, {own}")
        coverage_check_command(
            audits=audits,
            delta=DEFAULT_DELTA if delta is None else delta,
            confidence=confidence,
            estimators=tuple(estimator) if estimator else None,
            seed=seed,
            output=output,
        )
        return
    if audits != DEFAULT_AUDITS:
        raise InputError("--audits goes with --calibrate-check; any other audit is one")
    given = {"--method": method, "--scores": scores, "--mechanism": mechanism}
    chosen = [flag for flag, value in given.items() if value is not None]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none of --method, --scores and --mechanism"
        raise InputError(f"{found} given, must be one: --method NAME, --scores IN OUT or --mechanism pkg.mod:factory")
    if method is None:
        _refuse(training, f"goes with --method; {chosen[0]} trains nothing here")
        _refuse(game, f"goes with --method; {chosen[0]} says itself what the two worlds are")
    if canary_norm is not None and canary != "state":
        raise InputError(f"--canary-norm goes with --canary state, not {canary}: no other has features to make large")
    if mechanism is None and trial_seconds != TRIAL_SECONDS:
        raise InputError("--trial-seconds goes with --mechanism, whose single runs may take so long")
    if canaries is not None:
        alone = {flag: value for flag, value in running.items() if flag != "--out"}
        _refuse(alone, "goes with runs in both worlds; with --canaries there is one training")
    if scores is not None:
        _refuse(running, "goes with --method or --mechanism; --scores runs nothing and writes to stdout alone")
        audit_score_files(
            scores,
            ScoreAuditOptions(
                epsilon=epsilon,
                delta=DEFAULT_DELTA if delta is None else delta,
                confidence=confidence,
                estimators=tuple(estimator) if estimator else None,
                exactly_gaussian=exactly_gaussian,
                family=family_of(family),
                coin_flips=coin_flips,
                fail_on=fail_on,
                seed=seed,
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
    if delta is not None:
        check_probability("delta", delta)
    if fail_on is not None:
        check_choice("fail_on", fail_on, ("refuted", "overclaimed"))
    from dpzv_audit.auditing.workers import workers_from
    from dpzv_audit.evaluation import AuditPlan

    plan = AuditPlan(
        runs=DEFAULT_RUNS if runs is None else runs,
        chunk=chunk,
        confidence=confidence,
        others=others,
        neighbours=neighbours,
        canary=canary,
        workers=workers_from(jobs, executor, scheduler),
        max_minutes=max_minutes,
        folder=out / "audits",
        resume=resume,
        **({} if canary_norm is None else {"norm": canary_norm}),
    )
    with kept_for_resume(out / "audits", "*.npz"):
        if mechanism is not None:
            from dpzv_audit.cli.audit_mechanism import audit_mechanism

            audit_mechanism(
                mechanism,
                plan,
                epsilon=epsilon,
                delta=DEFAULT_DELTA if delta is None else delta,
                trial_seconds=trial_seconds,
                exactly_gaussian=exactly_gaussian,
                fail_on=fail_on,
                seed=seed,
                out=out,
                output=output,
                runs=runs,
            )
            return
        values = {
            "epochs": epochs,
            "batch_size": batch_size,
            "epsilon": epsilon,
            "delta": delta,
            "calibration": calibration,
            "sigma": sigma,
        }
        if simulate:
            outcome = simulated(
                method or "",
                plan,
                training,
                values,
                settings,
                adversary=adversary,
                seed=seed,
                output=output,
            )
        else:
            for flag, value in (("--dataset-size", dataset_size), ("--rounds", rounds)):
                if value is not None:
                    raise InputError(f"{flag} goes with --simulate; a training has the size of its data set")
            choice = choose(method or "", data, settings=settings, given=values, quiet=quiet)
            where = choose_device(device)
            with output.progress() as bars:
                from dpzv_audit.evaluation.auditing import audit_outcome
                from dpzv_audit.evaluation.one_run import one_run_outcome

                options: dict[str, Any] = {
                    "adversary": adversary,
                    "seed": seed,
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
    show(outcome, out, seed, output, fail_on)


def _refuse(flags: dict[str, Any], why: str) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise InputError(f"{flag} {why}")
