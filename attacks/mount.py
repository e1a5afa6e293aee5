"""Mounts an attack: trains with the adversary in place, hands the attack its view, scores it beside controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attacks.curious import QueryingClient
from attacks.gradient_estimates import forward_difference_error
from attacks.label_direct import (
    ESTIMATORS,
    Knowledge,
    LabelGuesses,
    correctness,
    from_gradients,
    from_scalars,
    from_shared_directions,
    from_wire,
)
from attacks.label_rules import RULES
from attacks.metrics import majority_baseline, prior_baseline, rate_interval
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError, check_count, unknown_name
from dpzv_audit.evidence import Interval
from dpzv_audit.seeds import Purpose, stream
from mechanisms import METHODS, MethodSpec, TrainingConfig, train
from mechanisms.config import CZOFOConfig, DPZVConfig, ZerothOrderConfig
from mechanisms.federation import ClientBehaviour, TrainedStack, TrainingData, dtype_of
from mechanisms.plan import Plan, plan
from mechanisms.views import Adversary, BatchLog, View, ViewRecorder

ADVERSARY_CLIENT = 1
"""The client that is curious; which one makes no difference to a server that sums."""


CONTROL_WORDS = {
    "shuffled_labels": "trained on permuted labels, scored against the true ones: must be at chance",
    "positive": "label_direct on split without a top model: must be 1",
}
"""What each control is and what it must give."""


@dataclass(frozen=True, kw_only=True)
class AttackSetting:
    """One attack on one method: everything its result depends on.

    `trials` trainings run as replicas of one stack; `queries` is how often a curious client asks about each batch of
    its first pass; `rule` is a name in `attacks.label_rules.RULES`, `estimator` one in `label_direct.ESTIMATORS`.
    """

    method: MethodSpec
    config: TrainingConfig
    dataset: VerticalDataset
    adversary: str = "client"
    public_ids: bool = False
    queries: int = 1
    rule: str = "argmin"
    estimator: str = "ridge"
    trials: int = 64
    seed: int = 0
    device: str = "cpu"
    confidence: float = 0.95
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True)
class AttackOutcome:
    """Success beside what it must be compared with, and the training that was attacked."""

    success: Interval
    baselines: dict[str, float]
    controls: dict[str, Interval]
    trained: TrainedStack
    plan: Plan | None
    """Schedule and noise of the attacked training; None for methods without a scalar channel."""


def mount_label_direct(setting: AttackSetting) -> AttackOutcome:
    """Train, infer the labels, score against the truth, and do the same with labels permuted before training.

    The positive control is the same attack on split learning without a top model, where it must succeed always.
    """
    _check(setting)
    labels = setting.dataset.train.labels
    correct, trained, the_plan = _run(setting, None)
    permuted = np.stack([stream(setting.seed, Purpose.CONTROL, k).permutation(labels) for k in range(setting.trials)])
    # The control has streams of its own: an attack and its control must not share their luck.
    shuffled, _, _ = _run(setting, permuted, first_replica=setting.trials)
    return AttackOutcome(
        success=rate_interval(correct, setting.confidence),
        baselines={
            "majority": majority_baseline(labels, setting.dataset.classes),
            "prior": prior_baseline(labels, setting.dataset.classes),
        },
        controls={
            "shuffled_labels": rate_interval(shuffled, setting.confidence),
            "positive": rate_interval(_positive_control(setting), setting.confidence),
        },
        trained=trained,
        plan=the_plan,
    )


def _check(setting: AttackSetting) -> None:
    """`InputError` naming what of `setting` the attack cannot work on, before anything is trained."""
    if setting.config.top_model:
        raise InputError("top_model is True, must be False for label_direct: it reads the gradient at summed logits")
    if setting.adversary not in ("client", "eavesdropper"):
        raise InputError(f"--adversary is {setting.adversary!r}, must be client or eavesdropper for label_direct")
    if setting.config.sampler == "poisson":
        raise InputError("sampler is 'poisson', must be shuffled or uniform for label_direct: batches of one size")
    if setting.rule not in RULES:
        raise unknown_name("rule", setting.rule, RULES)
    if setting.estimator not in ESTIMATORS:
        raise unknown_name("estimator", setting.estimator, ESTIMATORS)
    check_count("--trials", setting.trials)
    check_count("--queries", setting.queries)


def _positive_control(setting: AttackSetting) -> np.ndarray:
    split = METHODS["split"]
    config = split.configure(top_model=False, epochs=1, batch_size=setting.config.batch_size)
    control = replace(setting, method=split, config=config, adversary="client", trials=1, rule="argmin", progress=None)
    correct, _, _ = _run(control, None)
    return correct


def _run(
    setting: AttackSetting, labels: np.ndarray | None, first_replica: int = 0
) -> tuple[np.ndarray, TrainedStack, Plan | None]:
    """One stack of trainings under attack: booleans (trials, guesses), the trained stack, and its plan.

    `labels` (trials, N) are trained on in place of the true ones; guesses are scored against the true ones always.
    """
    config, dataset = setting.config, setting.dataset
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device, labels=labels)
    adversary = Adversary(
        setting.adversary, (ADVERSARY_CLIENT,) if setting.adversary == "client" else (), setting.public_ids
    )
    attacked = (ADVERSARY_CLIENT,) if setting.adversary == "client" or setting.method.downlink == "gradient" else None
    recorder, log = ViewRecorder(adversary), BatchLog(setting.method.downlink, attacked)
    batches = len(dataset.train) // config.batch_size
    replicas = range(first_replica, first_replica + setting.trials)
    options: dict[str, Any] = {
        "seed": setting.seed,
        "replicas": replicas,
        "observers": (recorder, log),
        "device": setting.device,
        "progress": setting.progress,
    }
    the_plan, known = None, Knowledge(dataset.classes, config.batch_size, batches, setting.queries, 0.0, 0.0)
    if isinstance(config, DPZVConfig | ZerothOrderConfig):
        options["behaviours"] = behaviours = _curious_client(setting, config, batches, replicas)
        error = forward_difference_error(config.smoothing, dataset.classes, records=config.batch_size)
        known = replace(known, smoothing=config.smoothing, noise_std=error)
    elif isinstance(config, CZOFOConfig):
        records = config.batch_size if config.scalars == "batch" else 1
        error = forward_difference_error(config.smoothing, dataset.classes, records=records)
        known = replace(known, smoothing=config.smoothing, noise_std=error)
    if isinstance(config, DPZVConfig):
        the_plan = plan(
            config, records=len(dataset.train), clients=dataset.clients, seed=setting.seed, behaviours=behaviours
        )
        if behaviours and the_plan.rounds_by_client[ADVERSARY_CLIENT - 1] < setting.queries:
            raise InputError(
                f"--epochs {config.epochs} gives client {ADVERSARY_CLIENT} "
                f"{the_plan.rounds_by_client[ADVERSARY_CLIENT - 1]} rounds, too few for --queries {setting.queries}"
            )
        # A central difference has no error of first order in lambda: noise is all there is.
        known = replace(known, noise_std=the_plan.sigma)
    trained = train(data, config, **options)
    guesses = _infer(setting, recorder.view, known)
    step = setting.queries if options.get("behaviours") else 1
    ids = log.stacked()[::step][: len(guesses.labels)]
    return correctness(guesses, ids, dataset.train.labels), trained, the_plan


def _curious_client(
    setting: AttackSetting, config: DPZVConfig | ZerothOrderConfig, batches: int, replicas: range
) -> dict[int, ClientBehaviour]:
    """The querying client where the adversary is a client; an eavesdropper leaves all clients honest."""
    if setting.adversary != "client":
        return {}
    client = QueryingClient(
        ADVERSARY_CLIENT,
        queries=setting.queries,
        smoothing=config.smoothing,
        steps_per_pass=batches,
        seed=setting.seed,
        replicas=replicas,
        one_sided=isinstance(config, ZerothOrderConfig),
    )
    return {ADVERSARY_CLIENT: client}


def _infer(setting: AttackSetting, view: View, known: Knowledge) -> LabelGuesses:
    if setting.method.downlink == "gradient":
        return from_gradients(view, known, ADVERSARY_CLIENT, rule=setting.rule)
    if setting.adversary == "eavesdropper":
        return from_wire(view, known, seed=setting.seed, rule=setting.rule, estimator=setting.estimator)
    if isinstance(setting.config, CZOFOConfig):
        return from_shared_directions(view, known, ADVERSARY_CLIENT, rule=setting.rule, estimator=setting.estimator)
    return from_scalars(view, known, rule=setting.rule, estimator=setting.estimator)
