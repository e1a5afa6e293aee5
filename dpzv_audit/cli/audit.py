"""`dpzv-audit audit`: what scores prove about epsilon from below, and whether they refute a claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpzv_audit.cli.audit_calibration import (
    AuditsOption,
    CalibrateCheckOption,
    CoinFlipsOption,
    FamilyOption,
    calibrate_check_command,
    family_of,
)
from dpzv_audit.cli.audit_scores import ScoreAuditOptions, audit_score_files
from dpzv_audit.cli.common import (
    DEFAULT_OUT,
    DeviceOption,
    JsonOption,
    OutOption,
    Output,
    QuietOption,
    SeedOption,
    choose_device,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataFlags, given_flags, takes_data
from dpzv_audit.cli.options import (
    BatchSizeOption,
    CalibrationOption,
    ChunkOption,
    EpochsOption,
    RunsOption,
    SetOption,
    SigmaOption,
    choose,
)
from dpzv_audit.errors import InputError, check_probability, unknown_name

ScoresOption = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--scores",
        metavar="IN OUT",
        help="Scores with and without the canary: two files, CSV, NPY, NPZ or JSON lines.",
    ),
]
DEFAULT_DELTA = 1e-5
DeltaOption = Annotated[
    float | None,
    typer.Option("--delta", help=f"The delta of (epsilon, delta), between 0 and 1; {DEFAULT_DELTA:g} if not given."),
]
ConfidenceOption = Annotated[
    float, typer.Option("--confidence", help="Chance that a verdict against a true claim is not given.")
]
EpsilonOption = Annotated[
    float | None, typer.Option("--epsilon", help="The claimed epsilon to hold the evidence against.")
]
FailOnOption = Annotated[
    str | None, typer.Option("--fail-on", metavar="refuted", help="Exit with 1 when the claim is refuted.")
]
EstimatorOption = Annotated[
    list[str] | None,
    typer.Option("--estimator", metavar="NAME", help="Estimator to use; give it again for more than one."),
]
MethodOption = Annotated[
    str | None, typer.Option("--method", help="Training method to audit; see `dpzv-audit list methods`.")
]
AdversaryOption = Annotated[
    str, typer.Option("--adversary", metavar="client|colluding-clients", help="Who tells the worlds apart.")
]
OthersOption = Annotated[
    str,
    typer.Option("--others", metavar="zero|saturated", help="What the records beside the canary contribute: 0 or +C."),
]
ExactlyGaussianOption = Annotated[
    bool,
    typer.Option(
        "--exactly-gaussian",
        help="The scores are Gaussian by construction: lets the gaussian estimator refute the claim.",
    ),
]


@takes_data
def audit(
    *,
    scores: ScoresOption = None,
    method: MethodOption = None,
    data: DataFlags,
    adversary: AdversaryOption = "client",
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    calibration: CalibrationOption = None,
    sigma: SigmaOption = None,
    settings: SetOption = None,
    runs: RunsOption = 2000,
    chunk: ChunkOption = 256,
    others: OthersOption = "zero",
    confidence: ConfidenceOption = 0.95,
    estimator: EstimatorOption = None,
    exactly_gaussian: ExactlyGaussianOption = False,
    family: FamilyOption = "gaussian",
    coin_flips: CoinFlipsOption = False,
    calibrate_check: CalibrateCheckOption = False,
    audits: AuditsOption = 200,
    fail_on: FailOnOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bound epsilon from below, by training here or from scores.

    With --method, plays the label game with the worst-case canary, a stack of trainings in each world, and sets the
    lower bound beside every upper bound. With --scores no training is needed: one file holds an attack's scores on
    runs with the canary, the other on runs without it, one number a run.

    Example: dpzv-audit audit --method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Example: dpzv-audit audit --scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted

    Example: dpzv-audit audit --scores ones.csv zeros.csv --coin-flips --estimator one-run

    Example: dpzv-audit audit --calibrate-check --estimator clopper-pearson --audits 100
    """
    output = Output(as_json=as_json, quiet=quiet)
    if calibrate_check:
        if scores is not None or method is not None:
            raise InputError("--calibrate-check audits mechanisms of its own, must stand without --scores and --method")
        calibrate_check_command(
            audits=audits,
            delta=DEFAULT_DELTA if delta is None else delta,
            confidence=confidence,
            estimators=tuple(estimator) if estimator else None,
            output=output,
        )
        return
    if (scores is None) == (method is None):
        given = "both" if scores else "neither"
        raise InputError(f"{given} of --method and --scores given, must be one: --method NAME or --scores IN OUT")
    if scores is not None:
        training = {
            **given_flags(data),
            "--epochs": epochs,
            "--batch-size": batch_size,
            "--calibration": calibration,
            "--sigma": sigma,
            "--set": settings or None,
        }
        for flag, value in training.items():
            if value is not None:
                raise InputError(f"{flag} goes with --method; --scores trains nothing")
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
    if coin_flips or family != "gaussian":
        raise InputError("--family and --coin-flips go with --scores; a trained method's game decides both")
    if estimator or exactly_gaussian:
        raise InputError("--estimator and --exactly-gaussian go with --scores; a trained method's game decides both")
    check_probability("--confidence", confidence)
    if delta is not None:
        check_probability("--delta", delta)
    _check_choice("--fail-on", fail_on, (None, "refuted"))
    _check_choice("--others", others, ("zero", "saturated"))
    _check_choice("--adversary", adversary, ("client", "colluding-clients"))
    choice = choose(
        method or "",
        data,
        settings=settings,
        given={
            "epochs": epochs,
            "batch_size": batch_size,
            "epsilon": epsilon,
            "delta": delta,
            "calibration": calibration,
            "sigma": sigma,
        },
        quiet=quiet,
    )
    where = choose_device(device)
    with output.progress() as bars:
        from dpzv_audit.evaluation import AuditPlan, audit_result

        result = audit_result(
            choice.method,
            choice.config,
            choice.dataset,
            adversary=adversary,
            audit=AuditPlan(runs=runs, chunk=chunk, confidence=confidence, others=others),
            seed=seed,
            device=where,
            reporter=progress_reporter(bars),
        )
    from dpzv_audit.cli.summary import audit_table, save

    saved = save(result, out, "audit", seed)
    output.result(saved)
    audit_table(output.console, result)
    output.say(result["sentence"])
    output.path(saved["run"])
    if fail_on == "refuted" and result["privacy"]["verdict"] == "refuted":
        raise typer.Exit(1)


def _check_choice(flag: str, given: str | None, allowed: tuple[str | None, ...]) -> None:
    if given not in allowed:
        raise unknown_name(flag, str(given), [name for name in allowed if name is not None])
