"""Trains, attacks, audits and accounts one configuration: the `result.json` of `attack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attacks import AttackSpec
from attacks.contract import AttackOutcome, AttackSetting
from attacks.run import continuous
from dpzv_audit.auditing import audit_scores
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.common import AuditPlan, Reporter, Result, silent
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.sections import control_section, costs, provenance, utility_section
from dpzv_audit.evaluation.sentences import attack_sentence
from dpzv_audit.evidence import to_jsonable
from mechanisms.config import DPZVConfig
from mechanisms.controls import frozen_clients
from mechanisms.federation import TrainingData, dtype_of

DEFAULT_DELTA = 1e-5
"""Delta of a certified epsilon where the method claims none."""


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
    trained_on = outcome.dataset or setting.dataset
    privacy, tradeoff = privacy_sections(
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
    return {
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
        "certified": _certified(outcome, setting),
        "privacy": privacy,
        "sentence": attack_sentence(spec.name, setting.adversary, outcome, privacy),
        "tradeoff": tradeoff,
        "utility": utility_section(
            outcome.trained, setting.dataset, _frozen_control(setting, trained_on), setting.confidence
        ),
        **costs(outcome.trained, setting.method, setting.config),
        "attack_setting": {
            "queries": setting.queries,
            "rule": setting.rule,
            "estimator": setting.estimator,
            "trials": setting.trials,
            **spec.own_options(setting),
            **_set_up(spec),
        },
        **provenance(setting.config, setting.dataset, setting.seed, setting.device, audit.chunk),
    }


def _certified(outcome: AttackOutcome, setting: AttackSetting) -> Result | None:
    """The epsilon that the attack's own scores certify, where it plays a game of one pair of neighbours a run."""
    if outcome.in_out is None:
        return None
    delta = setting.config.delta if isinstance(setting.config, DPZVConfig) else DEFAULT_DELTA
    (bound,) = audit_scores(
        *outcome.in_out, delta=delta, confidence=setting.confidence, estimators=("clopper-pearson",), seed=setting.seed
    )
    certified: Result = to_jsonable(bound)
    return certified


def _set_up(spec: AttackSpec) -> Mapping[str, str]:
    """What training was set up with because the attack needs it, in words."""
    if not spec.requires:
        return {}
    listed = ", ".join(f"{key} {value}" for key, value in spec.requires.items())
    return {"set_up": f"trained with {listed}: {spec.requires_because}"}


def _frozen_control(setting: AttackSetting, dataset: VerticalDataset) -> Result:
    """Accuracy of the same training with frozen clients: what the clients' own learning adds nothing to."""
    data = TrainingData.of(dataset, dtype=dtype_of(setting.config), device=setting.device)
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
    return replace(setting, progress=continuous(done))
