"""Trains, attacks, audits and accounts one configuration: the `result.json` of `attack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attacks import AttackSpec
from attacks.core.contract import AttackOutcome, AttackSetting
from attacks.core.run import continuous
from dpzv_audit.auditing import audit_scores
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.common import AuditPlan, Reporter, Result, silent
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.published import noise_section, published_by_simulation
from dpzv_audit.evaluation.sections import control_section, costs, provenance, utility_section
from dpzv_audit.evaluation.sentences import attack_sentence
from dpzv_audit.evidence import to_jsonable
from dpzv_audit.halving import shortage
from mechanisms.controls import frozen_clients
from mechanisms.training_data import TrainingData, dtype_of

NO_GAME = "its scores are about no coin: it does not ask which of two neighbouring inputs was trained on"


def attack_result(
    spec: AttackSpec, setting: AttackSetting, audit: AuditPlan, *, reporter: Reporter | None = None
) -> Result:
    """Train, attack, audit and account; schema `dpzv-audit/attack/1`.

    Raises:
        InputError: The attack does not apply, or the configuration does not fit the data.
    """
    reporter = reporter or silent()
    setting = _with_progress(spec, setting, reporter)
    outcome = spec.mount(setting)
    trained_on = outcome.dataset or setting.dataset
    certified = _certified(outcome, setting)
    privacy, tradeoff = privacy_sections(
        setting.method,
        setting.config,
        trained_on,
        outcome.plan,
        adversary=setting.adversary,
        audit=audit,
        repeats=setting.queries if setting.adversary == "client" else 1,
        seed=setting.seed,
        device=setting.device,
        reporter=reporter,
    )
    facts = provenance(setting.config, setting.dataset, setting.seed, setting.device, audit.chunk)
    facts["compute"] |= shortage(outcome.at_once)
    result = {
        "schema": "dpzv-audit/attack/1",
        "method": setting.method.name,
        "dataset": setting.dataset.name,
        "attack": spec.name,
        "adversary": setting.adversary,
        "metric": outcome.metric,
        "success": to_jsonable(outcome.success),
        "baselines": to_jsonable(outcome.baselines),
        "controls": to_jsonable(outcome.controls),
        "measures": to_jsonable(outcome.measures),
        "curves": to_jsonable(outcome.curves),
        **_pictures(outcome),
        **certified,
        "privacy": privacy,
        "noise": noise_section(setting.method, setting.config, None, setting.seed),
        "sentence": attack_sentence(spec.name, setting.adversary, outcome, certified["certified"], privacy),
        "tradeoff": tradeoff,
        "utility": utility_section(
            outcome.trained,
            setting.dataset,
            _frozen_control(setting, trained_on, outcome.at_once),
            setting.confidence,
        ),
        **costs(outcome.trained, setting.method, setting.config),
        "attack_setting": {
            "queries": setting.queries,
            "rule": "argmin",
            "estimator": "ridge",
            "trials": setting.trials,
            **spec.own_options(setting),
            **_set_up(spec),
        },
        **facts,
    }
    return {**result, "published": published_by_simulation(result)}


def _pictures(outcome: AttackOutcome) -> Result:
    """Pictures of an attack as `reconstructions`, greys to three digits; nothing where it makes none."""
    found = outcome.pictures
    if found is None:
        return {}
    rows = [{"what": what, "records": np.round(greys, 3).tolist()} for what, greys in found.rows.items()]
    return {"reconstructions": {"shape": list(found.shape), "rows": rows}}


def _certified(outcome: AttackOutcome, setting: AttackSetting) -> Result:
    """The epsilon that the attack's own scores certify, where they are about fair coins, or why they are not."""
    game = outcome.game
    if game is None:
        return {"certified": None, "not_certified": outcome.no_game or NO_GAME}
    (bound,) = audit_scores(
        game.on_one,
        game.on_zero,
        delta=setting.method.protection(setting.config).delta,
        confidence=setting.confidence,
        estimators=("one-run",),
        coin_flips=True,
        seed=setting.seed,
    )
    return {"certified": {**to_jsonable(bound), "neighbours": game.neighbours, "game": game.what}}


def _set_up(spec: AttackSpec) -> Mapping[str, str]:
    """What training was set up with because the attack needs it, in words."""
    if not spec.requires:
        return {}
    listed = ", ".join(f"{key} {value}" for key, value in spec.requires.items())
    return {"set_up": f"trained with {listed}: {spec.requires_because}"}


def _frozen_control(setting: AttackSetting, dataset: VerticalDataset, at_once: int | None) -> Result:
    """Accuracy of the same training with frozen clients: what the clients' own learning adds nothing to."""
    control = frozen_clients(
        TrainingData.of(dataset, dtype=dtype_of(setting.config), device=setting.device),
        setting.config,
        rate=setting.config.server_rate,
        seed=setting.seed,
        replicas=range(setting.trials),
        device=setting.device,
        at_once=at_once,
    )
    return {"frozen-clients": control_section(control.server_rate, control.correct, setting.confidence)}


def _with_progress(spec: AttackSpec, setting: AttackSetting, reporter: Reporter) -> AttackSetting:
    done = reporter.stage(f"attack {setting.method.name} and its control", spec.rounds(spec, setting))
    return replace(setting, progress=continuous(done))
