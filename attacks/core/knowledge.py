"""What every adversary knows of the training that it attacks; mounts add what their threat models grant beside it."""

from __future__ import annotations

from collections.abc import Sequence

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge
from mechanisms.plan import Plan


def public_knowledge(
    spec: AttackSpec,
    setting: AttackSetting,
    plan: Plan | None,
    *,
    records: int,
    replicas: Sequence[int] = (),
    client: int = 0,
    queries: int = 1,
) -> Knowledge:
    """Return the public parameters of trainings on `records` records each, with `client` the adversary's own (0: none).

    `plan` is that of the scalars, None for methods without; `replicas` are the trainings' numbers.
    """
    return Knowledge(
        method=setting.method,
        config=setting.config,
        classes=setting.dataset.classes,
        records=records,
        batches=setting.config.steps_per_pass(records),
        sigma=plan.sigma if plan else 0.0,
        replicas=tuple(replicas),
        seed=setting.seed,
        queries=queries,
        rule=setting.rule,
        estimator=setting.estimator,
        options=spec.own_options(setting),
        client=client,
    )
