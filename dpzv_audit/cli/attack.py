"""`dpzv-audit attack`: train a method, attack it, audit it, account for it, and write the report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

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
    refuse_beside,
)
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.names import flags_given
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
    choose,
    parsed_settings,
)
from dpzv_audit.errors import AuditError, InputError, check_probability

if TYPE_CHECKING:
    from attacks import AttackSetting, AttackSpec

AttackOption = Annotated[
    str, typer.Option("--attack", metavar="NAME", help="Attack to mount; see `dpzv-audit list attacks`.")
]
AdversaryOption = Annotated[
    str | None,
    typer.Option(
        "--adversary", metavar="NAME", help="Who attacks; by default the first that the attack is for (often client)."
    ),
]
AttackSetOption = Annotated[
    list[str] | None,
    typer.Option("--attack-set", metavar="KEY=VALUE", help="An option of the attack; may be given several times."),
]
AttackTrialsOption = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        callback=at_least("trials", 1),
        help="Trainings with different seeds, run as one stack; by default the attack's own (often 64).",
    ),
]
QueriesOption = Annotated[
    int | None,
    typer.Option(
        "--queries",
        metavar="Q",
        callback=at_least("queries", 1),
        help="How often the curious client asks about each batch of its first pass; by default the attack's own.",
    ),
]
SelfCheckOption = Annotated[
    bool,
    typer.Option(
        "--self-check",
        help="Only run the attack's controls, at a false-alarm rate of 1e-3; exit code 3 where one fails.",
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


@takes(data=DataFlags)
def attack(
    *,
    ctx: typer.Context,
    method: MethodOption = "dpzv",
    attack: AttackOption = "label_direct",
    data: DataFlags,
    adversary: AdversaryOption = None,
    attack_settings: AttackSetOption = None,
    queries: QueriesOption = None,
    rule: RuleOption = "argmin",
    estimator: EstimatorOption = "ridge",
    trials: AttackTrialsOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    calibration: CalibrationOption = None,
    sigma: SigmaOption = None,
    settings: SetOption = None,
    self_check: SelfCheckOption = False,
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
    from attacks import ATTACKS, AttackSetting, attack_named

    output = Output(as_json=as_json, quiet=quiet)
    if self_check:
        unused = [flag for flag in flags_given(ctx) if flag in ("--runs", "--chunk", "--confidence", "--out")]
        refuse_beside("--self-check", unused, "runs the controls alone, at an error of its own, and writes no folder")
    check_probability("confidence", confidence)
    spec = attack_named(attack)
    adversary = spec.adversaries[0] if adversary is None else adversary
    own = parsed_settings("attack_set", attack_settings or [], spec.options)
    for key, value, usual in (("rule", rule, "argmin"), ("estimator", estimator, "ridge")):
        if key in spec.options:
            check_choice(key, value, spec.choices[key])
            own = {key: value, **own}
        elif value != usual:
            takers = " or ".join(name for name in ATTACKS if key in ATTACKS[name].options)
            raise InputError(f"but goes with --attack {takers} alone, not {spec.name}", key, value)
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
        require=partial(spec.check, adversary),
    )
    if own.get("estimator", "ridge") != "ridge" and choice.method.downlink == "gradient":
        why = f"but {method} sends gradients: there is nothing to estimate"
        raise InputError(why, "estimator", own["estimator"])
    asks = adversary == "client" and choice.method.downlink != "gradient"
    if queries is not None and queries > 1 and not asks:
        raise InputError("must be 1: only a curious client of a method that sends scalars asks", "queries", queries)
    queries = queries or (spec.queries if asks else 1)
    trials = trials or spec.trials
    where = choose_device(device)
    setting = AttackSetting(
        method=choice.method,
        config=choice.config,
        dataset=choice.dataset,
        adversary=adversary,
        queries=queries,
        trials=trials,
        seed=seed,
        device=where,
        confidence=confidence,
        options=own,
    )
    if self_check:
        _self_check(output, spec, setting)
        return
    with output.progress() as bars:
        from dpzv_audit.evaluation import AuditPlan, attack_result

        result = attack_result(
            spec,
            setting,
            AuditPlan(runs=runs, chunk=chunk, confidence=confidence),
            reporter=progress_reporter(bars),
        )
    from dpzv_audit.cli.summary import attack_table, save

    saved = save(result, out, "attack", seed)
    output.result(saved)
    attack_table(output.console, result)
    output.say(result.sentence)
    output.noise(result.noise)
    output.memory(result.compute)
    output.path(saved.run)


FALSE_ALARM = 1e-3
"""Probability with which a self-check's negative control may fail a correct build, at most; a positive one is judged by
its value, which a correct build puts far above what it must reach (`attacks.core.controls.Control`)."""
FEWEST_TRIALS = 16
"""Trainings of a self-check: over fewer no bet could show, at its error, an attack that is right half too often."""


def _self_check(output: Output, spec: AttackSpec, setting: AttackSetting) -> None:
    """Mount the attack for its controls alone, print them, and fail where one misses what it must give."""
    from dataclasses import replace

    from dpzv_audit.cli.summary import self_check_table

    if setting.trials < FEWEST_TRIALS:
        raise InputError(
            f"must be {FEWEST_TRIALS} or more with --self-check: by fewer trainings nothing can be told from chance",
            "trials",
            setting.trials,
        )
    # Half of the error is left over: positive controls take none of it.
    outcome = spec.mount(replace(setting, confidence=1.0 - FALSE_ALARM / 2.0))
    output.result(
        {
            "schema": "dpzv-audit/self-check/1",
            "attack": spec.name,
            "method": setting.method.name,
            "dataset": setting.dataset.name,
            "controls": outcome.controls,
            "holds": all(control.holds for control in outcome.controls.values()),
        }
    )
    self_check_table(output.console, spec.name, outcome.controls)
    failed = [name.replace("_", " ") for name, control in outcome.controls.items() if not control.holds]
    if failed:
        raise AuditError(f"{spec.name} fails its own controls: {', '.join(failed)}; none of its numbers can be trusted")
