"""Rows that are attacks on labels: success by trial beside baselines and the negative control.

Direct label inference is that of paper 002, section VI-B: gradients and scalars against chance, by adversary. Model
completion is that of Fu et al., USENIX Security 2022, passive: a client puts a head on its frozen bottom model and
trains it from a few labels. The same head on its raw features, and on a bottom model that was never trained, says how
much of that is due to the training that everybody took part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attacks import attack_named
from attacks.core.contract import AttackOutcome, AttackSetting
from attacks.core.metrics import betting_limits, rates_difference
from attacks.core.run import continuous
from attacks.label.completion import RAW, UNTRAINED
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.evaluation.sentences import compared
from dpzv_audit.findings import LEAST_TRAININGS, Interval, to_jsonable
from dpzv_audit.reproduce.table import Row, Setting, Trained, interval_of, listed, say
from dpzv_audit.reproduce.training import controls_part, setting_facts, training_part
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


CLIENT, EAVESDROPPER = "client", "eavesdropper"
CALLED = {CLIENT: "curious client", EAVESDROPPER: "eavesdropper"}
EXACT, NOISED, SCALARS = "gradients", "noised gradients", "scalars"
"""What the server answers with."""


@dataclass(frozen=True, kw_only=True)
class Direct(Trained):
    """`label_direct` on `method`, mounted by `adversary` in its client's first pass, and what the paper says of it."""

    line: str
    """Name of the line of the figure that the row stands on."""
    adversary: str
    answers: str
    """`EXACT`, `NOISED` or `SCALARS`."""
    paper: str = "-"
    rule: str = "argmin"
    estimator: str = "ridge"

    @property
    def embedding_noise(self) -> bool:
        """Whether noise is on the outputs that go up, and none on the gradients."""
        return self.options.get("dp") == "embedding"

    def run(self, setting: Setting) -> Row:
        """Attack `setting.seeds` trainings, and as many whose labels were dealt at random."""
        own = {"rule": self.rule, "estimator": self.estimator}
        found, _, dataset = attacked_part(setting, self, attack="label_direct", adversary=self.adversary, options=own)
        return {
            "label": self.label,
            "line": self.line,
            "method": self.method,
            "adversary": self.adversary,
            "answers": self.answers,
            "embedding_noise": self.embedding_noise,
            "options": dict(self.options),
            "rule": self.rule,
            "estimator": self.estimator,
            "paper": self.paper,
            "notes": list(dataset.notes),
            **found,
        }


def verdicts(rows: Sequence[Row]) -> str:
    """Return what the rows say of gradients, of noise on embeddings and of scalars, as a sentence."""
    said = [*_gradients(rows), *_scalars(rows, EAVESDROPPER), *_scalars(rows, CLIENT)]
    return "; ".join([*said, control_text(rows, "at the same rate")])


def _gradients(rows: Sequence[Row]) -> list[str]:
    """Rows whose gradients carry no noise: those with noise on the embeddings are told apart."""
    said = []
    for noisy, sentence in ((False, "gradients"), (True, "gradients-noised-embeddings")):
        found = [r for r in rows if r["answers"] == EXACT and r["embedding_noise"] is noisy]
        if found:
            least = min(found, key=lambda row: float(row["success"]["value"]))
            share = float(least["success"]["value"])
            most = say("gradients-most", share=share, row=least["label"])
            said.append(say(sentence, lost="every label" if share == 1.0 else most, count=len(found)))
    return said


def _scalars(rows: Sequence[Row], adversary: str) -> list[str]:
    """Which rows of `adversary` on scalars lie above or below chance."""
    found = [r for r in rows if r["answers"] == SCALARS and r["adversary"] == adversary]
    if not found:
        return []
    limits = [judged(r, 1.0 - FALSE_ALARM / len(rows)) for r in found]
    above = [r for r, (low, _) in zip(found, limits, strict=True) if low > r["baselines"]["prior"]]
    below = [r for r, (_, high) in zip(found, limits, strict=True) if high < r["baselines"]["prior"]]
    rest = [r["label"] for r in found if r not in above and r not in below]
    shares = [r["success"]["value"] for r in above or found]
    numbers = {
        "prior": (above or found)[0]["baselines"]["prior"],
        "least": min(shares),
        "most": max(shares),
        "count": len(above),
        "all": len(found),
    }
    parts = []
    if above:
        parts.append(say("scalars-above", **numbers))
    if below:
        parts.append(say("scalars-below", count=len(below), all=len(found), rows=listed([r["label"] for r in below])))
    if parts and rest:
        parts.append(say("scalars-rest", rows=listed(rest)))
    if not parts:
        more = sum(min(r["by_trial"]["success"]) > r["baselines"]["prior"] for r in found)
        parts.append(say("scalars-unclear", **numbers, seeds=len(found[0]["by_trial"]["success"]), more=more))
    level = say("by-table", rate=FALSE_ALARM)
    return [say("scalars", who=CALLED[adversary], what=" and ".join(parts), level=level)]


CONFIDENCE = 0.95
"""Of all differences of a table together: each has its share of the error."""


@dataclass(frozen=True, kw_only=True)
class Completion(Trained):
    """`label_completion` on `method`, from `labels_per_class` labels, and what was published for it."""

    labels_per_class: int = 10
    steps: int = 2000
    """Steps of a head's training."""
    paper: str = "-"

    def run(self, setting: Setting) -> Row:
        """Attack `setting.seeds` trainings and as many with labels dealt at random; frozen clients beside both."""
        settings = {"labels_per_class": self.labels_per_class, "steps": self.steps}
        found, config, dataset = attacked_part(
            setting, self, attack="label_completion", adversary="client", options=settings
        )
        return {
            "label": self.label,
            "method": self.method,
            "options": dict(self.options),
            **settings,
            "epochs": config.epochs,
            "dataset": dataset.name,
            "notes": list(dataset.notes),
            "paper": self.paper,
            **found,
            **controls_part(setting, config, dataset, self.passes),
        }


def gains(row: Row, confidence: float = CONFIDENCE) -> dict[str, Interval]:
    """Return by how much the trained bottom model is ahead of each baseline: by records, and seed by seed."""
    rates = row["by_trial"]
    return {
        name: rates_difference(
            interval_of(row["success"]),
            interval_of(row["baselines"][name]),
            (rates["success"], rates[name]),
            confidence,
        )
        for name in (RAW, UNTRAINED)
    }


def verdict(rows: Sequence[Row]) -> str:
    """Return where the trained bottom model finds more labels than both baselines in every seed, and where not.

    A row says that training leaks only where both of its differences do, so that they need not share their error.
    """
    leaks: list[str] = []
    others: list[str] = []
    for row in rows:
        differences = gains(row, 1.0 - (1.0 - CONFIDENCE) / len(rows)).values()
        least = min(difference.value for difference in differences)
        ahead = all(compared(difference, 0.0).side == "above" for difference in differences)
        (leaks if ahead else others).append(f"{row['label']} ({least:+.3f})")
    seeds = len(rows[0]["by_trial"]["success"])
    every = "the one seed" if seeds == 1 else f"every one of {seeds} seeds"
    parts = []
    if leaks:
        parts.append(say("completion-leaks", seeds=every, rows=listed(leaks)))
    if others:
        parts.append(say("completion-others", rows=listed(others)))
    if seeds < LEAST_TRAININGS:
        parts.append(say("completion-one-seed" if seeds == 1 else "completion-few-seeds", count=seeds))
    return say("completion", what="; ".join(parts), confidence=100 * CONFIDENCE)


def remarks(rows: Sequence[Row]) -> str:
    """Return the sentence that follows from the rows, controls that fail, and what the data sets say of themselves."""
    notes = dict.fromkeys(f"{row['dataset']}: {note}" for row in rows for note in row["notes"])
    control = control_text(rows, say("by-table", rate=FALSE_ALARM))
    return ". ".join([verdict(rows), control[0].upper() + control[1:], *notes])
