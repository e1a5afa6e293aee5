"""Label inference by model completion (Fu et al., USENIX Security 2022, passive) as a row, beside both baselines.

A client puts a head on its frozen bottom model and trains it from a few labels. The same head on its raw features, and
on a bottom model that was never trained, says how much of that is due to the training that everybody took part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.core.metrics import rates_difference
from attacks.label.completion import RAW, UNTRAINED
from dpzv_audit.evaluation.sentences import compared
from dpzv_audit.findings import LEAST_TRAININGS, Interval
from dpzv_audit.reproduce.attacked import FALSE_ALARM, attacked_part, control_text
from dpzv_audit.reproduce.table import Setting, Trained
from dpzv_audit.reproduce.text import Row, interval_of, listed, say
from dpzv_audit.reproduce.training import controls_part

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
