"""`dpzv-audit attack`: train a method, attack it, audit it, account for it, and write the report."""

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
    check_choice,
    choose_device,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataFlags, takes_data
from dpzv_audit.cli.options import (
    BatchSizeOption,
    CalibrationOption,
    ChunkOption,
    ConfidenceOption,
    DeltaOption,
    EpochsOption,
    EpsilonOption,
    MethodOption,
    RunsOption,
    SetOption,
    SigmaOption,
    TrialsOption,
    choose,
)
from dpzv_audit.errors import InputError, check_probability

AttackOption = Annotated[
    str, typer.Option("--attack", metavar="NAME", help="Attack to mount; see `dpzv-audit list attacks`.")
]
AdversaryOption = Annotated[str, typer.Option("--adversary", metavar="client|eavesdropper", help="Who attacks.")]
QueriesOption = Annotated[
    int,
    typer.Option(
        "--queries",
        metavar="Q",
        callback=at_least("--queries", 1),
        help="How often the curious client asks about each batch of its first pass.",
    ),
]
RuleOption = Annotated[
    str, typer.Option("--rule", metavar="argmin|first-negative", help="How a label is read off a gradient.")
]
EstimatorOption = Annotated[
    str,
    typer.Option(
        "--estimator",
        metavar="ridge|minimum-norm|correlation",
        help="How gradients are estimated from scalars.",
    ),
]


@takes_data
def attack(
    *,
    method: MethodOption = "dpzv",
    attack: AttackOption = "label_direct",
    data: DataFlags,
    adversary: AdversaryOption = "client",
    queries: QueriesOption = 1,
    rule: RuleOption = "argmin",
    estimator: EstimatorOption = "ridge",
    trials: TrialsOption = 64,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    calibration: CalibrationOption = None,
    sigma: SigmaOption = None,
    settings: SetOption = None,
    runs: RunsOption = 2000,
    chunk: ChunkOption = 256,
    confidence: ConfidenceOption = 0.95,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Attack a method, audit its claim, and write a report.

    Trains the method with the adversary in place. Prints the attack's success beside its baselines and controls, the
    claimed epsilon beside the sound upper bound and the audited lower bound against the same adversary, and what it
    all means.

    Example: dpzv-audit attack --method dpzv --attack label_direct
    """
    from attacks import attack_named
    from attacks.label_direct import ESTIMATORS
    from attacks.label_rules import RULES
    from attacks.mount import AttackSetting

    output = Output(as_json=as_json, quiet=quiet)
    check_probability("--confidence", confidence)
    spec = attack_named(attack)
    check_choice("--rule", rule, RULES)
    check_choice("--estimator", estimator, ESTIMATORS)
    choice = choose(
        method,
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
        require=lambda options: spec.check(adversary, options),
    )
    if queries > 1 and (adversary != "client" or choice.method.downlink != "scalar"):
        raise InputError(
            f"--queries is {queries}, but only a curious client of a method with a scalar downlink asks; must be 1"
        )
    where = choose_device(device)
    with output.progress() as bars:
        from dpzv_audit.evaluation import AuditPlan, attack_result

        result = attack_result(
            spec,
            AttackSetting(
                method=choice.method,
                config=choice.config,
                dataset=choice.dataset,
                adversary=adversary,
                queries=queries,
                rule=rule,
                estimator=estimator,
                trials=trials,
                seed=seed,
                device=where,
                confidence=confidence,
            ),
            AuditPlan(runs=runs, chunk=chunk, confidence=confidence),
            reporter=progress_reporter(bars),
        )
    from dpzv_audit.cli.summary import attack_table, save

    saved = save(result, out, "attack", seed)
    output.result(saved)
    attack_table(output.console, result)
    output.say(result["sentence"])
    output.path(saved["run"])
