"""Rows that are attacks on labels: success by trial beside baselines and the negative control.

Direct label inference is that of paper 002, section VI-B: gradients and scalars against chance, by adversary. Model
completion is that of Fu et al., USENIX Security 2022, passive: a client puts a head on its frozen bottom model and
trains it from a few labels. The same head on its raw features, and on a bottom model that was never trained, says how
much of that is due to the training that everybody took part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks import attack_named
from attacks.core.contract import AttackSetting
from attacks.core.metrics import betting_limits, rates_difference
from attacks.core.run import continuous
from attacks.label.completion import RAW, UNTRAINED
from dpzv_audit.evaluation.sentences import compared
from dpzv_audit.findings import LEAST_TRAININGS, Interval, to_jsonable
from dpzv_audit.reproduce.table import Item, Row, Setting, interval_of, labels_of, listed, say
from dpzv_audit.reproduce.training import controls_part, setting_facts, training_part
from mechanisms.core.context import Deployment

FALSE_ALARM = 1e-3
"""Chance that any of a table's rows is called above or below chance where none is; and that any control is broken."""


@dataclass(frozen=True, kw_only=True)
class Attacked(Item):
    """An `attack` on labels that `adversary` mounts on trainings, and what was published for it."""

    attack: str
    adversary: str = "client"
    attack_options: Row
    paper: str = "-"
    controls: bool = False
    """Whether the trainings stand beside both frozen-client controls."""

    def run(self, setting: Setting) -> Row:
        """Attack `setting.seeds` trainings, and as many whose labels were dealt at random.

        The row has success, baselines, controls and measures with 95% intervals by records, rates by trial, accuracy of
        the attacked trainings, and the standard deviation of the noise on the channel that the method protects.

        Raises:
            InputError: The attack does not apply.
        """
        method, config, dataset = self.start(setting)
        facts = {
            **setting_facts(setting, dataset),
            "attack": self.attack,
            "adversary": self.adversary,
            "method": method.name,
            "config": config.model_dump(mode="json"),
            "options": self.attack_options,
        }

        def compute(_: object) -> Row:
            rounds = config.epochs * (len(dataset.train) // config.batch_size)
            outcome = attack_named(self.attack).mount(
                AttackSetting(
                    method=method,
                    config=config,
                    dataset=dataset,
                    adversary=self.adversary,
                    trials=setting.seeds,
                    seed=setting.seed,
                    device=setting.device,
                    with_positive=False,
                    progress=continuous(setting.stage(self.label, 2 * rounds)),
                    options=dict(self.attack_options),
                )
            )
            deployment = Deployment(records=len(dataset.train), clients=dataset.clients, seed=setting.seed)
            noised = outcome.plan or next(iter(method.releases(config, deployment)), None)
            measured = ("success", "baselines", "controls", "measures", "by_trial")
            return {
                **{name: to_jsonable(getattr(outcome, name)) for name in measured},
                "training": training_part(outcome.trained, self.passes),
                "noise_std": noised.sigma if noised else 0.0,
                "protects": method.protects(config),
            }

        return {
            "label": self.label,
            "method": self.method,
            "adversary": self.adversary,
            "options": self.options,
            **self.tags,
            "embedding_noise": self.options.get("dp") == "embedding",
            **self.attack_options,
            "epochs": config.epochs,
            "dataset": dataset.name,
            "notes": list(dataset.notes),
            "paper": self.paper,
            **setting.kept.part(facts, compute),
            **(controls_part(setting, config, dataset, self.passes) if self.controls else {}),
        }


def judged(row: Row, confidence: float) -> tuple[float, float]:
    """Return an interval for the row's success over trainings, however few, at another `confidence`."""
    return betting_limits(row["by_trial"]["success"], confidence)


def control_text(rows: Sequence[Row], level: str) -> str:
    """Return whether the negative control is at chance in all rows, at the `level` in words; one seed cannot tell."""
    tests = [(row["label"], row["controls"]["shuffled_labels"].get("p_value")) for row in rows]
    broken = [label for label, p in tests if p is not None and p < FALSE_ALARM / len(rows)]
    if broken:
        return say("control-broken", rows=listed(broken), level=level)
    if len(rows[0]["by_trial"]["success"]) == 1:
        return say("control-one-seed")
    return say("control-holds", count=len(rows), level=level)


CALLED = {"client": "curious client", "eavesdropper": "eavesdropper"}
EXACT, SCALARS = "gradients", "scalars"
"""What the server answers with, where it is not noised gradients."""


def verdicts(rows: Sequence[Row]) -> str:
    """Return what the rows say of gradients, of noise on embeddings and of scalars, as a sentence."""
    said = [*_gradients(rows), *_scalars(rows, "eavesdropper"), *_scalars(rows, "client")]
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
    sides: dict[str, list[Row]] = {"above": [], "below": [], "neither": []}
    for row in found:
        low, high = judged(row, 1.0 - FALSE_ALARM / len(rows))
        prior = row["baselines"]["prior"]
        sides["above" if low > prior else "below" if high < prior else "neither"].append(row)
    above, below = sides["above"], sides["below"]
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
        parts.append(say("scalars-below", count=len(below), all=len(found), rows=labels_of(below)))
    if parts and sides["neither"]:
        parts.append(say("scalars-rest", rows=labels_of(sides["neither"])))
    if not parts:
        more = sum(min(r["by_trial"]["success"]) > r["baselines"]["prior"] for r in found)
        parts.append(say("scalars-unclear", **numbers, seeds=len(found[0]["by_trial"]["success"]), more=more))
    level = say("by-table", rate=FALSE_ALARM)
    return [say("scalars", who=CALLED[adversary], what=" and ".join(parts), level=level)]


CONFIDENCE = 0.95
"""Of all differences of a table together: each has its share of the error."""


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
