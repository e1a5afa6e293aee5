"""What rows share that are attacks on labels: success by trial beside baselines and the negative control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attacks import attack_named
from attacks.core.contract import AttackOutcome, AttackSetting
from attacks.core.metrics import betting_limits
from attacks.core.run import continuous
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.findings import to_jsonable
from dpzv_audit.reproduce.table import Setting, Trained
from dpzv_audit.reproduce.text import Row, listed, say
from dpzv_audit.reproduce.training import setting_facts, training_part
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.context import Deployment

FALSE_ALARM = 1e-3
"""Chance that any of a table's rows is called above or below chance where none is; and that any control is broken."""


def attacked_part(
    setting: Setting, item: Trained, *, attack: str, adversary: str, **of_attack: Any
) -> tuple[Row, TrainingConfig, VerticalDataset]:
    """`attack` on `setting.seeds` trainings and on as many with labels dealt at random, kept from one run to the next.

    Args:
        setting: What the whole table runs under.
        item: The row: what is attacked.
        attack: Name in `attacks.ATTACKS`.
        adversary: Who mounts it.
        of_attack: `adversary` and `options` of `attacks.core.contract.AttackSetting`.

    Returns:
        Success, baselines, controls and measures with 95% intervals by records, rates by trial, accuracy of the
        attacked trainings, and the standard deviation of the noise on the channel that the method protects; then the
        configuration and the data.

    Raises:
        InputError: The attack does not apply.
    """
    method, config, dataset = item.start(setting)
    facts = {
        **setting_facts(setting, dataset),
        "attack": attack,
        "adversary": adversary,
        "method": method.name,
        "config": config.model_dump(mode="json"),
        **of_attack,
    }

    def compute(_: Any) -> Row:
        rounds = config.epochs * (len(dataset.train) // config.batch_size)
        outcome = attack_named(attack).mount(
            AttackSetting(
                method=method,
                config=config,
                dataset=dataset,
                adversary=adversary,
                trials=setting.seeds,
                seed=setting.seed,
                device=setting.device,
                with_positive=False,
                progress=continuous(setting.stage(item.label, 2 * rounds)),
                **of_attack,
            )
        )
        return {
            "success": to_jsonable(outcome.success),
            "baselines": to_jsonable(outcome.baselines),
            "controls": to_jsonable(outcome.controls),
            "measures": to_jsonable(outcome.measures),
            "by_trial": to_jsonable(outcome.by_trial),
            "training": training_part(outcome.trained, item.passes),
            "noise_std": _noise(outcome, method, config, dataset, setting.seed),
            "protects": method.protects(config),
        }

    return setting.kept.part(facts, compute), config, dataset


def _noise(
    outcome: AttackOutcome, method: MethodSpec, config: TrainingConfig, dataset: VerticalDataset, seed: int
) -> float:
    if outcome.plan is not None:
        return outcome.plan.sigma
    releases = method.releases(config, Deployment(records=len(dataset.train), clients=dataset.clients, seed=seed))
    return releases[0].sigma if releases else 0.0


def judged(row: Row, confidence: float) -> tuple[float, float]:
    """Return an interval for the row's success over trainings, however few, at another `confidence`."""
    return betting_limits(row["by_trial"]["success"], confidence)


def broken_controls(rows: Sequence[Row]) -> list[str]:
    """Labels of rows whose negative control does not hold chance, with a false-alarm rate over all of them."""
    broken = []
    for row in rows:
        p = row["controls"]["shuffled_labels"].get("p_value")
        if p is not None and p < FALSE_ALARM / len(rows):
            broken.append(str(row["label"]))
    return broken


def control_text(rows: Sequence[Row], level: str) -> str:
    """Return whether the negative control is at chance in all rows, at the `level` in words; one seed cannot tell."""
    broken = broken_controls(rows)
    if broken:
        return say("control-broken", rows=listed(broken), level=level)
    if len(rows[0]["by_trial"]["success"]) == 1:
        return say("control-one-seed")
    return say("control-holds", count=len(rows), level=level)
