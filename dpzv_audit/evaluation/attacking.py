"""Trains, attacks, audits and accounts one configuration: the `result.json` of `attack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attacks import AttackSpec
from attacks.mount import CONTROL_WORDS, AttackSetting
from dpzv_audit.evaluation.common import AuditPlan, Reporter, Result, silent
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.sections import control_section, costs, provenance, utility_section
from dpzv_audit.evaluation.sentences import attack_sentence
from dpzv_audit.evidence import to_jsonable
from mechanisms.controls import frozen_clients
from mechanisms.federation import TrainingData, dtype_of


def attack_result(
    spec: AttackSpec, setting: AttackSetting, audit: AuditPlan, *, reporter: Reporter | None = None
) -> Result:
    """Train, attack, audit and account; schema `dpzv-audit/attack/1`.

    Raises:
        InputError: The attack does not apply, or the configuration does not fit the data.
    """
    reporter = reporter or silent()
    setting = _with_progress(setting, reporter)
    outcome = spec.mount(setting)
    privacy, tradeoff = privacy_sections(
        setting.config,
        setting.dataset,
        outcome.plan,
        adversary=setting.adversary,
        audit=audit,
        repeats=setting.queries if setting.adversary == "client" else 1,
        seed=setting.seed,
        device=setting.device,
        reporter=reporter,
    )
    return {
        "schema": "dpzv-audit/attack/1",
        "method": setting.method.name,
        "dataset": setting.dataset.name,
        "attack": spec.name,
        "adversary": setting.adversary,
        "success": to_jsonable(outcome.success),
        "baselines": outcome.baselines,
        "controls": {
            name: {**to_jsonable(control), "what": CONTROL_WORDS[name]} for name, control in outcome.controls.items()
        },
        "privacy": privacy,
        "sentence": attack_sentence(spec.name, setting.adversary, outcome, privacy),
        "tradeoff": tradeoff,
        "utility": utility_section(outcome.trained, setting.dataset, _frozen_control(setting), setting.confidence),
        **costs(outcome.trained, setting.method, setting.config),
        "attack_setting": {
            "queries": setting.queries,
            "rule": setting.rule,
            "estimator": setting.estimator,
            "trials": setting.trials,
            "set_up": f"trained with {_listed(spec.requires)}: {spec.requires_because}",
        },
        **provenance(setting.config, setting.dataset, setting.seed, setting.device, audit.chunk),
    }


def _listed(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


def _frozen_control(setting: AttackSetting) -> Result:
    """Accuracy of the same training with frozen clients: what the clients' own learning adds nothing to."""
    data = TrainingData.of(setting.dataset, dtype=dtype_of(setting.config), device=setting.device)
    frozen = frozen_clients(
        data,
        setting.config,
        rate=setting.config.server_rate,
        seed=setting.seed,
        replicas=range(setting.trials),
        device=setting.device,
    )
    return {"frozen-clients": control_section(frozen, setting.confidence)}


def _with_progress(setting: AttackSetting, reporter: Reporter) -> AttackSetting:
    rounds = setting.config.epochs * (len(setting.dataset.train) // setting.config.batch_size)
    done = reporter.stage(f"attack {setting.method.name} and its control", 2 * rounds)
    before = {"rounds": 0, "total": 0}

    def progress(rounds_done: int) -> None:
        # The control starts counting anew where the attacked training ended.
        if rounds_done < before["rounds"]:
            before["total"] += before["rounds"]
        before["rounds"] = rounds_done
        done(before["total"] + rounds_done)

    return replace(setting, progress=progress)
