"""Trains, attacks, audits and accounts one configuration: the `result.json` of `attack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attacks import AttackSpec
from attacks.core.contract import AttackSetting, CoinGame, Pictures
from attacks.core.run import continuous
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.published import noise_section, published_by_simulation
from dpzv_audit.evaluation.sections import bytes_of, control_section, provenance, utility_section
from dpzv_audit.evaluation.sentences import attack_sentence
from dpzv_audit.evidence.bounding import AuditPlan, Reporter, silent
from dpzv_audit.results import AttackResult, CertifiedBound, ControlAccuracy, PictureRow, Reconstructions
from dpzv_audit.statistics import audit_scores
from mechanisms.controls import frozen_clients
from mechanisms.core.data import TrainingData, dtype_of

NO_GAME = "its scores are about no coin: it does not ask which of two neighbouring inputs was trained on"


def attack_result(
    spec: AttackSpec, setting: AttackSetting, audit: AuditPlan, *, reporter: Reporter | None = None
) -> AttackResult:
    """Train, attack, audit and account; schema `dpzv-audit/attack/1`.

    Raises:
        InputError: The attack does not apply, or the configuration does not fit the data.
    """
    reporter = reporter or silent()
    setting = _with_progress(spec, setting, reporter)
    outcome = spec.mount(setting)
    trained_on = outcome.dataset or setting.dataset
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
    game = outcome.game
    certified = None if game is None else _certified(game, setting)
    result = AttackResult(
        method=setting.method.name,
        dataset=setting.dataset.name,
        attack=spec.name,
        adversary=setting.adversary,
        metric=outcome.metric,
        success=outcome.success,
        baselines=dict(outcome.baselines),
        controls=dict(outcome.controls),
        measures=dict(outcome.measures),
        curves=dict(outcome.curves),
        certified=certified,
        privacy=privacy,
        noise=noise_section(setting.method, setting.config, None, setting.seed),
        sentence=attack_sentence(spec.name, setting.adversary, outcome, certified, privacy),
        tradeoff=tradeoff,
        utility=utility_section(
            outcome.trained,
            setting.dataset,
            _frozen_control(setting, trained_on, outcome.at_once),
            setting.confidence,
        ),
        bytes=bytes_of(outcome.trained),
        rounds=outcome.trained.rounds,
        protects=setting.method.protects(setting.config),
        attack_setting={
            "queries": setting.queries,
            "rule": "argmin",
            "estimator": "ridge",
            "trials": setting.trials,
            **spec.own_options(setting),
            **_set_up(spec),
        },
        **vars(provenance(setting.config, setting.dataset, setting.seed, setting.device, audit.chunk, outcome.at_once)),
    )
    further: dict[str, object] = {} if game is not None else {"not_certified": outcome.no_game or NO_GAME}
    if outcome.pictures is not None:
        further["reconstructions"] = _pictures(outcome.pictures)
    result = result.model_copy(update=further)
    return result.model_copy(update={"published": published_by_simulation(result, setting.config)})


def _pictures(found: Pictures) -> Reconstructions:
    """Return pictures of an attack, greys to three digits."""
    rows = [PictureRow(what=what, records=np.round(greys, 3).tolist()) for what, greys in found.rows.items()]
    return Reconstructions(shape=list(found.shape), rows=rows)


def _certified(game: CoinGame, setting: AttackSetting) -> CertifiedBound:
    """Return the epsilon that the attack's own scores certify, which are about fair coins."""
    (bound,) = audit_scores(
        game.on_one,
        game.on_zero,
        delta=setting.method.protection(setting.config).delta,
        confidence=setting.confidence,
        estimators=("one-run",),
        coin_flips=True,
        seed=setting.seed,
    )
    return CertifiedBound(**vars(bound), neighbours=game.neighbours, game=game.what)


def _set_up(spec: AttackSpec) -> Mapping[str, str]:
    """What training was set up with because the attack needs it, in words."""
    if not spec.requires:
        return {}
    listed = ", ".join(f"{key} {value}" for key, value in spec.requires.items())
    return {"set_up": f"trained with {listed}: {spec.requires_because}"}


def _frozen_control(
    setting: AttackSetting, dataset: VerticalDataset, at_once: int | None
) -> dict[str, ControlAccuracy]:
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
