"""Whole evaluations as data: train, attack, audit and account one configuration, and say what follows.

Each function returns the `result.json` of a command as a plain dictionary: a function of its arguments and the seed,
free of times and paths. Reports are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from attacks import AttackSpec
from attacks.metrics import majority_baseline, rate_interval
from attacks.mount import CONTROL_WORDS, AttackOutcome, AttackSetting
from dpzv_audit.accounting import (
    GAPS,
    Release,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    mu_from_epsilon,
    tightest_sound,
    upper_bounds,
)
from dpzv_audit.auditing import audit_scores, can_refute
from dpzv_audit.auditing.game import GameScores, LabelGame, play
from dpzv_audit.auditing.tradeoff import empirical_tradeoff
from dpzv_audit.checkpoints import FileCheckpoints
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evidence import AdversaryName, EmpiricalBound, NeighbourRelation, UpperBound, to_jsonable
from dpzv_audit.runs import environment
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig, train
from mechanisms.controls import FrozenControl, frozen_clients, tuned_frozen_clients
from mechanisms.federation import TrainedStack, TrainingData, dtype_of
from mechanisms.plan import Plan, plan
from mechanisms.staleness import StalenessObserver

Result = dict[str, Any]
NEIGHBOURS: NeighbourRelation = "replace-label"
NO_NOISE = "no-noise"
_NO_NOISE_WHY = "no noise is added to what the server sends, so no finite epsilon holds"
_UNAUDITED = (
    "the label game is played on the scalar channel with a client's known batches; this adversary is not audited"
)


@dataclass(frozen=True)
class Reporter:
    """Where long work reports: `stage(name, total)` starts a stage and returns what to call with the steps done."""

    stage: Callable[[str, int], Callable[[int], None]]


def silent() -> Reporter:
    """A reporter that says nothing."""
    return Reporter(lambda name, total: lambda done: None)


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """How the lower bound is sought: `runs` trainings in each world, `chunk` at a time; no runs, no audit."""

    runs: int = 2000
    chunk: int = 256
    confidence: float = 0.95
    others: str = "zero"


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
        **_costs(outcome.trained, setting.method, setting.config),
        "attack_setting": {
            "queries": setting.queries,
            "rule": setting.rule,
            "estimator": setting.estimator,
            "trials": setting.trials,
            "set_up": f"trained with {_listed(spec.requires)}: {spec.requires_because}",
        },
        **_provenance(setting.config, setting.dataset, setting.seed, setting.device, audit.chunk),
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
    return {"frozen-clients": _control(frozen, setting.confidence)}


def train_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    seed: int = 0,
    trials: int = 1,
    controls: bool = True,
    device: str = "cpu",
    confidence: float = 0.95,
    checkpoints: FileCheckpoints | None = None,
    reporter: Reporter | None = None,
) -> tuple[Result, TrainedStack]:
    """Train alone, with both frozen-client controls; schema `dpzv-audit/train/1`. Also returns the models.

    With `checkpoints` the run is saved after every epoch and may be taken up again.
    """
    reporter = reporter or silent()
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=device)
    rounds = config.epochs * (len(dataset.train) // config.batch_size)
    staleness = StalenessObserver(len(dataset.train), dataset.clients)
    trained = train(
        data,
        config,
        seed=seed,
        replicas=range(trials),
        device=device,
        observers=(staleness,),
        progress=reporter.stage(f"train {method.name}", rounds),
        evaluate_epochs=True,
        checkpoints=checkpoints,
    )
    compared: dict[str, Any] = {}
    if controls:
        at_rate, tuned = tuned_frozen_clients(
            data,
            config,
            seed=seed,
            replicas=range(trials),
            device=device,
            progress=reporter.stage("controls", 7),
        )
        compared = {
            "frozen-clients": _control(at_rate, confidence),
            "frozen-clients-tuned": _control(tuned, confidence),
        }
    the_plan = None
    if isinstance(config, DPZVConfig):
        the_plan = plan(config, records=len(dataset.train), clients=dataset.clients, seed=seed)
    privacy, tradeoff = privacy_sections(
        config, dataset, the_plan, adversary="client", audit=AuditPlan(runs=0), seed=seed, device=device
    )
    utility = utility_section(trained, dataset, compared, confidence)
    result = {
        "schema": "dpzv-audit/train/1",
        "method": method.name,
        "dataset": dataset.name,
        "utility": utility,
        "privacy": privacy,
        "sentence": train_sentence(method.name, utility, privacy),
        "tradeoff": tradeoff,
        # Observers see nothing of the rounds before a resumption, so there would be no honest figure.
        "staleness": None if checkpoints is not None and checkpoints.resumed else staleness.summary(),
        **_costs(trained, method, config),
        **_provenance(config, dataset, seed, device, None),
    }
    return result, trained


def audit_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    adversary: str,
    audit: AuditPlan,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> Result:
    """Play the label game and set the lower bound beside every upper bound; schema `dpzv-audit/audit/1`."""
    if not isinstance(config, DPZVConfig):
        raise InputError(f"--method is {method.name!r}, which adds no noise: there is no epsilon to audit")
    the_plan = plan(config, records=len(dataset.train), clients=dataset.clients, seed=seed)
    if the_plan.sigma == 0.0:
        raise InputError("the noise is 0 (sigma 0 or calibration none): there is no epsilon to audit")
    privacy, tradeoff = privacy_sections(
        config,
        dataset,
        the_plan,
        adversary=adversary,
        audit=audit,
        seed=seed,
        device=device,
        reporter=reporter or silent(),
    )
    return {
        "schema": "dpzv-audit/audit/1",
        "method": method.name,
        "dataset": dataset.name,
        "adversary": adversary,
        "game": {
            "canary": f"worst-case (record 0, saturating at +C or -C; the others contribute {audit.others})",
            "neighbours": NEIGHBOURS,
            "adversary": adversary,
            "score": "sum of the scalars received for batches with the canary, less what the others add",
            "runs_in": audit.runs,
            "runs_out": audit.runs,
        },
        "privacy": privacy,
        "sentence": privacy_sentence(privacy),
        "tradeoff": tradeoff,
        "protects": method.protects(config),
        **_provenance(config, dataset, seed, device, audit.chunk),
    }


def privacy_sections(
    config: TrainingConfig,
    dataset: VerticalDataset,
    the_plan: Plan | None,
    *,
    adversary: str,
    audit: AuditPlan,
    repeats: int = 1,
    seed: int = 0,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> tuple[Result, Result | None]:
    """The claim, the upper bounds and the lower bound against one adversary, and the trade-off curves of all three."""
    if not isinstance(config, DPZVConfig) or the_plan is None or the_plan.sigma == 0.0:
        return _without_noise(config, adversary), None
    release = the_plan.release(config, len(dataset.train))
    bounds = upper_bounds(
        release, delta=config.delta, adversaries=[cast(AdversaryName, adversary)], neighbours=[NEIGHBOURS]
    )
    tightest = tightest_sound(bounds)
    scores = None
    if audit.runs and adversary in ("client", "colluding-clients"):
        scores = _play(config, dataset, adversary, audit, repeats, seed, device, reporter or silent())
    estimators = _lower_bounds(scores, config, audit, seed) if scores else ()
    gating = [bound for bound in estimators if can_refute(bound)]
    lower = max((bound.epsilon_lower for bound in gating), default=None)
    privacy: Result = {
        "claimed": config.epsilon,
        "upper": tightest.epsilon.upper if tightest and tightest.epsilon else None,
        "gap": None if tightest else _gap_of(bounds),
        "empirical_lower": lower,
        "delta": config.delta,
        "confidence": audit.confidence,
        "adversary": adversary,
        "neighbours": NEIGHBOURS,
        "verdict": _verdict(lower, config.epsilon),
        "given": _given(gating),
        "bounds": to_jsonable(bounds),
        "estimators": to_jsonable(estimators),
        "gap_explanations": _explained(bounds),
        "release": _release_facts(release, the_plan),
    }
    if scores is None:
        privacy["not_audited"] = _UNAUDITED if audit.runs else "no audit was asked for"
    return privacy, _tradeoff(config, tightest, scores, audit.confidence)


def _play(
    config: DPZVConfig,
    dataset: VerticalDataset,
    adversary: str,
    audit: AuditPlan,
    repeats: int,
    seed: int,
    device: str,
    reporter: Reporter,
) -> GameScores:
    game = LabelGame(
        config=config,
        adversary="client" if adversary == "client" else "colluding-clients",
        others="zero" if audit.others == "zero" else "saturated",
        first_pass_repeats=repeats,
    )
    progress = reporter.stage("audit", 2 * audit.runs)
    return play(game, dataset, runs=audit.runs, seed=seed, chunk=audit.chunk, device=device, progress=progress)


def _lower_bounds(scores: GameScores, config: DPZVConfig, audit: AuditPlan, seed: int) -> tuple[EmpiricalBound, ...]:
    """Both estimators; those that may refute the claim share the error of one verdict (Bonferroni)."""
    error = 1.0 - audit.confidence
    gating = 2 if scores.exactly_gaussian else 1
    found: list[EmpiricalBound] = []
    for name in ("clopper-pearson", "gaussian"):
        shares = gating if name == "clopper-pearson" or scores.exactly_gaussian else 1
        found += audit_scores(
            scores.in_scores,
            scores.out_scores,
            delta=config.delta,
            confidence=1.0 - error / shares,
            estimators=(name,),
            exactly_gaussian=scores.exactly_gaussian,
            seed=seed,
        )
    return tuple(found)


def _without_noise(config: TrainingConfig, adversary: str) -> Result:
    return {
        "claimed": config.epsilon if isinstance(config, DPZVConfig) and config.calibration != "none" else None,
        "upper": None,
        "gap": NO_NOISE,
        "empirical_lower": None,
        "delta": config.delta if isinstance(config, DPZVConfig) else None,
        "adversary": adversary,
        "neighbours": NEIGHBOURS,
        "verdict": None,
        "bounds": [],
        "estimators": [],
        "gap_explanations": {NO_NOISE: _NO_NOISE_WHY},
    }


def _release_facts(release: Release, the_plan: Plan) -> Result:
    return {
        "sigma": the_plan.sigma,
        "noise_multiplier": release.noise_multiplier(NEIGHBOURS),
        "rounds": len(the_plan.active),
        "rounds_by_client": list(the_plan.rounds_by_client),
        "participations": the_plan.participations,
    }


def _gap_of(bounds: list[UpperBound]) -> str | None:
    """The gap of the exact bound, the one that would be sound without it."""
    return next((b.gap for b in bounds if b.accountant == "gdp-exact"), None)


def _explained(bounds: list[UpperBound]) -> dict[str, str]:
    names = [name.strip() for bound in bounds if bound.gap for name in bound.gap.split(",")]
    return {name: GAPS[name] for name in dict.fromkeys(names) if name in GAPS}


def _verdict(lower: float | None, claimed: float | None) -> str | None:
    if lower is None or claimed is None:
        return None
    return "refuted" if lower > claimed else "not refuted"


def _given(gating: list[EmpiricalBound]) -> str | None:
    """What the lower bound takes as given by construction: Gaussian noise where `gaussian` decides it."""
    best = max(gating, key=lambda bound: bound.epsilon_lower, default=None)
    return "given Gaussian noise" if best is not None and best.claim_kind == "trade-off" else None


def _tradeoff(
    config: DPZVConfig, tightest: UpperBound | None, scores: GameScores | None, confidence: float
) -> Result | None:
    """Curves on one grid of false positive rates; None without an audit."""
    if scores is None:
        return None
    curve = empirical_tradeoff(scores.in_scores, scores.out_scores, confidence=confidence)
    alpha = np.asarray(curve.alpha)
    claimed = None
    if config.epsilon is not None:
        claimed = gaussian_tradeoff(alpha, mu_from_epsilon(config.epsilon, config.delta)).tolist()
    recomputed = None
    if tightest is not None and tightest.mu is not None:
        recomputed = gaussian_tradeoff(alpha, tightest.mu).tolist()
    elif tightest is not None and tightest.epsilon is not None:
        recomputed = epsilon_delta_tradeoff(alpha, tightest.epsilon.upper, config.delta).tolist()
    low, high = scores.participations
    seen = str(low) if low == high else f"{low} to {high}"
    return {
        "alpha": list(curve.alpha),
        "claimed": claimed,
        "recomputed": recomputed,
        "empirical": list(curve.beta),
        "empirical_low": list(curve.beta_low),
        "empirical_high": list(curve.beta_high),
        "confidence": curve.confidence,
        "note": "the claimed curve is the Gaussian one (mu-GDP) that goes through the claimed (epsilon, delta), "
        f"as theorem 5.1 claims it; the adversary saw the canary in {seen} of its own rounds, "
        "and the recomputed curve counts the rounds of all clients",
    }


def utility_section(
    trained: TrainedStack, dataset: VerticalDataset, controls: Mapping[str, Any], confidence: float = 0.95
) -> Result:
    """Test accuracy with its interval beside the majority class and the given controls, and the history by epoch."""
    section: Result = {
        "test_accuracy": _rate(trained.correct, confidence),
        "controls": {"majority": majority_baseline(dataset.test.labels, dataset.classes), **controls},
        "final_loss": _finite(float(trained.loss.mean())),
    }
    if trained.history:
        section["history"] = [
            {"epoch": epoch, "test_accuracy": accuracy, "loss": _finite(loss)}
            for epoch, accuracy, loss in trained.history
        ]
    return section


def _control(control: FrozenControl, confidence: float) -> Result:
    what = f"server rate {control.server_rate:g}"
    return {**_rate(control.correct, confidence), "server_rate": control.server_rate, "what": what}


def _rate(correct: np.ndarray, confidence: float) -> Result:
    rate: Result = to_jsonable(rate_interval(correct, confidence))
    return rate


def _finite(value: float) -> float | None:
    """`value`, or None where training diverged: JSON has no infinity."""
    return value if np.isfinite(value) else None


def _costs(trained: TrainedStack, method: MethodSpec, config: TrainingConfig) -> Result:
    ledger = trained.ledger
    return {
        "bytes": {"up": ledger.up, "down": ledger.down, "by_kind": {**ledger.bytes_up, **ledger.bytes_down}},
        "rounds": trained.rounds,
        "protects": method.protects(config),
    }


def _provenance(config: TrainingConfig, dataset: VerticalDataset, seed: int, device: str, chunk: int | None) -> Result:
    """What a repeat needs: the same settings, data, versions, and for the same bytes the same threads and chunk."""
    facts = environment([])
    return {
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "compute": {"device": device, "threads": torch.get_num_threads(), "audit_chunk": chunk},
        "data": {"partition": dataset.partition, "digests": dataset.digests},
        "versions": {"dpzv-audit": facts["dpzv_audit"], "python": facts["python"], **facts["packages"]},
    }


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


def attack_sentence(attack: str, adversary: str, outcome: AttackOutcome, privacy: Result) -> str:
    """What the numbers of an attack mean, in words: success against the best that needs no attack, then the claim."""
    success, control = outcome.success, outcome.controls["shuffled_labels"]
    guess = max(outcome.baselines.values())
    percent = f"{100 * success.value:.1f}% of labels ({100 * success.low:.1f} to {100 * success.high:.1f}%)"
    if success.low > guess:
        against = f"above the {100 * guess:.1f}% of guessing without an attack"
    elif success.high < guess:
        against = f"below the {100 * guess:.1f}% of always guessing the commonest label"
    else:
        against = f"no better than the {100 * guess:.1f}% of guessing without an attack"
    shuffled = f"with shuffled labels it finds {100 * control.value:.1f}%"
    return f"{attack} by the {adversary} finds {percent}, {against}; {shuffled}. {privacy_sentence(privacy)}"


def train_sentence(method: str, utility: Result, privacy: Result) -> str:
    """Whether training beat its controls, in words, and what its privacy claim is worth."""
    accuracy = utility["test_accuracy"]
    text = f"{method} reaches {100 * accuracy['value']:.1f}% test accuracy"
    tuned = utility["controls"].get("frozen-clients-tuned")
    if tuned:
        beats = accuracy["low"] > tuned["high"]
        verb = "beats" if beats else "does not beat"
        text = f"{text} and {verb} its tuned frozen-clients control ({100 * tuned['value']:.1f}%)"
        if not beats:
            text += ": the clients have learnt nothing worth their downlink"
    return f"{text}. {privacy_sentence(privacy)}"


def privacy_sentence(privacy: Result) -> str:
    """What is known about epsilon against the adversary, in one sentence."""
    if privacy["gap"] == NO_NOISE:
        return "No noise is added to what the server sends, so no finite epsilon holds."
    adversary, claimed, lower = privacy["adversary"], privacy["claimed"], privacy["empirical_lower"]
    upper = privacy["upper"]
    parts = []
    if lower is not None:
        verdict = {"refuted": "refutes", "not refuted": "does not refute"}.get(privacy["verdict"] or "")
        claim = f" and {verdict} the claimed epsilon of {claimed:g}" if verdict else ""
        percent = f"{100 * privacy['confidence']:g}%"
        given = f", {privacy['given']}" if privacy["given"] else ""
        given += "," if given and claim else ""
        parts.append(f"the audit certifies epsilon of at least {_down(lower)} at {percent} confidence{given}{claim}")
    elif claimed is not None:
        parts.append(f"epsilon is claimed to be {claimed:g}")
    if upper is not None:
        parts.append(f"the sound upper bound is {_up(upper)}")
    else:
        parts.append(f"no sound upper bound exists (gap: {privacy['gap']})")
    return f"Against the {adversary}, {'; '.join(parts)}."


def _down(value: float) -> str:
    """A lower bound is cut, never rounded up."""
    return f"{np.floor(value * 100.0) / 100.0:.2f}"


def _up(value: float) -> str:
    """An upper bound is never rounded down."""
    return f"{np.ceil(value * 100.0) / 100.0:.2f}"


__all__ = [
    "AuditPlan",
    "Reporter",
    "attack_result",
    "audit_result",
    "train_result",
]
