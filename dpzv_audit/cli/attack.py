"""`dpzv-audit attack`: train a method, attack it, audit it, account for it, and write the report."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import AuditError, InputError, check_names
from .flags import Count, Probability, RunFlags, TrainingFlags, Whole, flags_given, refuse, takes
from .options import DataFlags, choose, parsed_settings
from .output import Output, choose_device, print_table, save
from .summary import table_from

if TYPE_CHECKING:
    from attacks import AttackSetting, AttackSpec


@takes
def attack(
    *,
    ctx: typer.Context,
    training: TrainingFlags,
    attack: str = "label_direct",
    data: DataFlags,
    adversary: str | None = None,
    attack_settings: Annotated[list[str] | None, "--attack-set"] = None,
    queries: Count | None = None,
    rule: str = "argmin",
    estimator: str = "ridge",
    trials: Count | None = None,
    self_check: bool = False,
    runs: Whole = 2000,
    chunk: Count = 256,
    confidence: Probability = 0.95,
    run: RunFlags,
    output: Output,
) -> None:
    """Attack a method, audit its claim, and write a report.

    Trains the method with the adversary in place. Prints the attack's success beside its baselines and controls, the
    claimed epsilon beside the sound upper bound and the audited lower bound against the same adversary, and what it
    all means.

    Example: dpzv-audit attack --method dpzv --attack label_direct

    Options:
        attack NAME: Attack to mount; see `dpzv-audit list attacks`.
        adversary NAME: Who attacks; by default the first that the attack is for (often client).
        attack_settings KEY=VALUE: An option of the attack; may be given several times.
        queries Q: How often the curious client asks about each batch of its first pass; by default the attack's own.
        rule argmin|first-negative: How a label is read off a gradient.
        estimator ridge|minimum-norm|correlation: How gradients are estimated from scalars.
        trials N: Trainings with different seeds, run together; by default the attack's own (often 64).
        self_check: Only run the attack's controls, at a false-alarm rate of 1e-3; exit code 3 where one fails.
        runs N: Trainings of the audit in each of the two worlds, with the canary and without it; 0 for no audit.
        chunk N: Audit runs done at once, half of them in each world; fewer need less memory.
        confidence X: Confidence of every interval and bound, between 0 and 1.
    """
    from attacks import ATTACKS, AttackSetting, attack_named

    from ..evidence.bounding import AuditPlan
    from ..evidence.training import attack_result

    if self_check:
        why = (
            "does not go with --self-check, which runs the controls alone, at an error of its own, and writes no folder"
        )
        refuse(flags_given(ctx), ("runs", "chunk", "confidence", "out"), why)
    spec = attack_named(attack)
    adversary = spec.adversaries[0] if adversary is None else adversary
    own = parsed_settings("attack_set", attack_settings, spec.options)
    for key, value, usual in (("rule", rule, "argmin"), ("estimator", estimator, "ridge")):
        if key in spec.options:
            check_names(key, [value], spec.choices[key])
            if value not in (usual, own.get(key, value)):
                raise InputError(f"which contradicts the {own[key]} of ‹attack_set›, must be given once", key, value)
            own = {key: value, **own}
        elif value != usual:
            takers = " or ".join(name for name in ATTACKS if key in ATTACKS[name].options)
            raise InputError(f"but goes with --attack {takers} alone, not {spec.name}", key, value)
    require = partial(spec.check, adversary)
    choice = choose(training, data, quiet=output.quiet, require=require, seed=run.seed)
    if own.get("estimator", "ridge") != "ridge" and choice.method.downlink == "gradient":
        why = f"but {training.method} sends gradients: there is nothing to estimate"
        raise InputError(why, "estimator", own["estimator"])
    asks = choice.asks(adversary)
    if queries is not None and queries > 1 and not asks:
        raise InputError("must be 1: only a curious client of a method that sends scalars asks", "queries", queries)
    setting = AttackSetting(
        **vars(choice),
        adversary=adversary,
        queries=queries or (spec.queries if asks else 1),
        trials=trials or spec.trials,
        seed=run.seed,
        device=choose_device(run.device),
        confidence=confidence,
        options=own,
    )
    if self_check:
        _self_check(output, spec, setting)
        return
    with output.progress() as reporter:
        plan = AuditPlan(runs=runs, chunk=chunk, confidence=confidence, reporter=reporter)
        result = attack_result(spec, setting, plan)
    saved = save(result, run, "attack", result.method, result.dataset, spec.name)
    output.finish(saved, table_from("attack", result))


FALSE_ALARM = 1e-3
"""Probability with which a self-check's negative control may fail a correct build, at most; a positive one is judged by
its value, which a correct build puts far above what it must reach (`attacks.core.controls.Control`)."""
FEWEST_TRIALS = 16
"""Trainings of a self-check: over fewer no bet could show, at its error, an attack that is right half too often."""


def _self_check(output: Output, spec: "AttackSpec", setting: "AttackSetting") -> None:
    """Mount the attack for its controls alone, print them, and fail where one misses what it must give."""
    if setting.trials < FEWEST_TRIALS:
        raise InputError(
            f"must be {FEWEST_TRIALS} or more with --self-check: by fewer trainings nothing can be told from chance",
            "trials",
            setting.trials,
        )
    # Half of the error is left over: positive controls take none of it.
    outcome = spec.mount(replace(setting, confidence=1.0 - FALSE_ALARM / 2.0))
    failed = [name.replace("_", " ") for name, control in outcome.controls.items() if not control.holds]
    output.result(
        {
            "schema": "dpzv-audit/self-check/1",
            "attack": spec.name,
            "method": setting.method.name,
            "dataset": setting.dataset.name,
            "controls": outcome.controls,
            "holds": not failed,
        }
    )
    print_table(output.console, table_from("self_check", spec.name, outcome.controls))
    if failed:
        raise AuditError(f"{spec.name} fails its own controls: {', '.join(failed)}; none of its numbers can be trusted")
