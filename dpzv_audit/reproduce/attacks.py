"""Rows that are attacks on labels: success by trial beside baselines and the negative control.

Direct label inference is that of paper 002, section VI-B: gradients and scalars against chance, by adversary. Model
completion is that of Fu et al., USENIX Security 2022, passive: a client reads labels off its frozen bottom model, given
a few. The same on its raw features, and on a bottom model that was never trained, says how much of that is due to the
training that everybody took part in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import AliasPath, Field

from attacks import attack_named
from attacks.core.metrics import betting_limits, rates_difference
from attacks.core.run import continuous, few_labels
from attacks.core.setting import AttackSetting, Progress
from attacks.label.completion import RAW, UNTRAINED
from mechanisms.core.config import rounds_of
from mechanisms.core.context import Deployment, TrainingData, dtype_of
from reports.text import capitalized

from ..base.errors import InputError
from ..base.findings import LEAST_TRAININGS, Interval
from ..statistics.comparison import compared
from .table import Row, Setting, TableRow, Values, Work, interval_of
from .training import controls_part, controls_work, rehearsed, training_part
from .words import say

FALSE_ALARM = 1e-3
"""Chance that any of a table's rows is called above or below chance where none is; and that any control is broken."""
CONFIDENCE = 0.95
"""Of all differences of a table together: each has its share of the error."""


class AttackRow(Row):
    """An attack on trainings: its success beside baselines, rates by trial, and the negative control's p-value."""

    adversary: str
    line: str = ""
    """Which line of a figure it stands on."""
    answers: str = ""
    """What the server sends down, such as `EXACT` or `SCALARS`."""
    embedding_noise: bool
    dataset: str
    notes: list[str]
    success: Interval
    baselines: Values
    prior: float = Field(validation_alias=AliasPath("baselines", "prior"))
    p_value: float | None = Field(None, validation_alias=AliasPath("controls", "shuffled_labels", "p_value"))
    by_trial: dict[str, list[float]]

    def gains(self, confidence: float = CONFIDENCE) -> dict[str, Interval]:
        """Return by how much the trained bottom model is ahead of each baseline: by records, and seed by seed."""
        rates = self.by_trial
        leads = {}
        for name in (RAW, UNTRAINED):
            baseline = interval_of(self.baselines[name])
            leads[name] = rates_difference(self.success, baseline, (rates["success"], rates[name]), confidence)
        return leads


@dataclass(frozen=True, kw_only=True)
class Attacked(TableRow[AttackRow]):
    """An `attack` on labels that `adversary` mounts on trainings, and what was published for it.

    `controls` says whether the trainings stand beside both frozen-client controls.
    """

    attack: str
    adversary: str = "client"
    attack_options: Values
    paper: str = "-"
    controls: bool = False
    untimed = "the attacks on what was trained"

    row_type: ClassVar[type[Row]] = AttackRow

    def run(self, setting: Setting) -> AttackRow:
        """Attack `setting.seeds` trainings, and as many whose labels were dealt at random.

        The row has success, baselines, controls and measures with 95% intervals by records, and rates by trial. It has
        the accuracy of the attacked trainings too, and the standard deviation of the noise on the protected channel.

        Raises:
            InputError: The attack does not apply.
        """
        method, config, dataset = self.start(setting)

        def compute(_: object) -> Values:
            rounds = rounds_of(config, len(dataset.train))
            attack = self._mounted(setting, progress=continuous(setting.stage(self.label, 2 * rounds)))
            outcome = attack_named(self.attack).mount(attack)
            deployment = Deployment(records=len(dataset.train), clients=dataset.clients, seed=setting.seed)
            noised = outcome.plan or next(iter(method.releases(config, deployment)), None)
            measured = ("success", "baselines", "controls", "measures", "by_trial")
            return {
                **{name: getattr(outcome, name) for name in measured},
                "training": training_part(outcome.trained, self.passes),
                "noise_std": noised.sigma if noised else 0.0,
                "protects": method.protects(config),
            }

        return AttackRow(
            label=self.label,
            method=self.method,
            adversary=self.adversary,
            options=self.options,
            **self.tags,
            embedding_noise=self.options.get("dp") == "embedding",
            **self.attack_options,
            epochs=config.epochs,
            dataset=dataset.name,
            notes=list(dataset.notes),
            paper=self.paper,
            **setting.part(
                dataset,
                compute,
                attack=self.attack,
                adversary=self.adversary,
                method=method.name,
                config=config.model_dump(mode="json"),
                options=self.attack_options,
            ),
            **(controls_part(setting, config, dataset, self.passes) if self.controls else {}),
        )

    def _mounted(self, setting: Setting, progress: Progress | None = None) -> AttackSetting:
        """Return the setting of the attack on `setting.seeds` trainings."""
        method, config, dataset = self.start(setting)
        return AttackSetting(
            method=method,
            config=config,
            dataset=dataset,
            adversary=self.adversary,
            trials=setting.seeds,
            seed=setting.seed,
            device=setting.device,
            with_positive=False,
            progress=progress,
            options=dict(self.attack_options),
        )

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`; `InputError` as well where the attack does not apply."""
        key = self.checked(setting, attack=self.attack, options=self.attack_options)
        spec, attack = attack_named(self.attack), self._mounted(setting)
        if (lacking := spec.needs.unmet(attack)) is not None:
            raise InputError(f"{self.attack} does not apply to {self.method}: {lacking}")
        spec.own_options(attack)
        if spec.setup.few_labels:
            few_labels(spec, attack.data().labels, attack)
        return key

    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`; the time is that of the trainings and of their negative control."""
        method, config, dataset = self.start(setting)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=setting.device)
        rehearsal = rehearsed(method, config, data, setting)
        shared = controls_work(config, dataset, self.passes, rehearsal) if self.controls else {}
        return Work(2 * rehearsal.training, shared)


def control_text(rows: Sequence[AttackRow], *, by_table: bool) -> str:
    """Return whether the negative control is at chance in all rows; one seed cannot tell.

    The level is said to be that of the whole table, or to be the same as the one before.
    """
    broken = [row for row in rows if row.p_value is not None and row.p_value < FALSE_ALARM / len(rows)]
    return say("control", rows=rows, broken=broken, by_table=by_table, rate=FALSE_ALARM)


EXACT = "gradients"
"""Name of a server that answers with gradients as they are."""
SCALARS = "scalars"
"""Name of a server that answers with scalars."""


def verdicts(rows: Sequence[AttackRow]) -> str:
    """Return what the rows say of gradients, of noise on embeddings and of scalars, as a sentence."""
    sentences = []
    for noised in (False, True):
        if exact := [row for row in rows if row.answers == EXACT and row.embedding_noise is noised]:
            sentences.append(say("gradients", rows=exact, noised=noised))
    for adversary in ("eavesdropper", "client"):
        if scalars := [row for row in rows if row.answers == SCALARS and row.adversary == adversary]:
            sentences.append(_scalars(scalars, adversary))
    return "; ".join([*sentences, control_text(rows, by_table=False)])


def _scalars(rows: Sequence[AttackRow], adversary: str) -> str:
    """Return which rows of `adversary` on scalars lie above or below chance, or on neither side."""
    sides: dict[str, list[AttackRow]] = {"above": [], "below": [], "neither": []}
    for row in rows:
        low, high = betting_limits(row.by_trial["success"], 1.0 - FALSE_ALARM / len(rows))
        sides["above" if low > row.prior else "below" if high < row.prior else "neither"].append(row)
    more = sum(min(row.by_trial["success"]) > row.prior for row in rows)
    return say("scalars", adversary=adversary, rows=rows, more=more, rate=FALSE_ALARM, **sides)


def verdict(rows: Sequence[AttackRow]) -> str:
    """Return where the trained bottom model finds more labels than both baselines in every seed, and where not.

    A row says that training leaks only where both of its differences do, so that they need not share their error.
    """
    leaks: list[str] = []
    others: list[str] = []
    for row in rows:
        differences = row.gains(1.0 - (1.0 - CONFIDENCE) / len(rows)).values()
        least = min(difference.value for difference in differences)
        ahead = all(compared(difference, 0.0).side == "above" for difference in differences)
        (leaks if ahead else others).append(f"{row.label} ({least:+.3f})")
    seeds = len(rows[0].by_trial["success"])
    enough = seeds >= LEAST_TRAININGS
    return say("completion", leaks=leaks, others=others, seeds=seeds, enough=enough, confidence=CONFIDENCE)


def remarks(rows: Sequence[AttackRow]) -> str:
    """Return the sentence that follows from the rows, controls that fail, and what the data sets say of themselves."""
    notes = dict.fromkeys(f"{row.dataset}: {note}" for row in rows for note in row.notes)
    return ". ".join([verdict(rows), capitalized(control_text(rows, by_table=True)), *notes])
