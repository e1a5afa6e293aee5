"""Compares measurements, and says in words what the numbers of a result mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from attacks.core.contract import AttackOutcome
from dpzv_audit.evidence.verdict import NO_NOISE
from dpzv_audit.findings import LEAST_TRAININGS, Interval, down, up
from dpzv_audit.results import Accuracy, CertifiedBound, Privacy
from reports.text import percent as confidence_percent


def attack_sentence(
    attack: str, adversary: str, outcome: AttackOutcome, certified: CertifiedBound | None, privacy: Privacy
) -> str:
    """What the numbers of an attack mean, in words: success against the best that needs no attack, then the claim."""
    success = outcome.success
    if outcome.metric == "labels found":
        text = _labels_found(attack, adversary, outcome)
    else:
        number = f"{success.value:.3f} ({_spoken(success, lambda rate: f'{rate:.3f}')})"
        text = f"{attack} by the {adversary} reaches {number} in {outcome.metric}, {_against(outcome)}"
    over = success.over_trainings
    if over is not None and over.low is None:
        trainings = "one training is" if over.count == 1 else f"{over.count} trainings are"
        text += f"; {trainings} too few to tell of others: give {LEAST_TRAININGS} trials"
    for name, control in outcome.controls.items():
        if not control.holds:
            text += f"; its {control.kind} control ({name.replace('_', ' ')}) FAILED at {control.value:.3f}"
    if certified is not None:
        bound = certified.epsilon_lower
        words = (
            f"epsilon of at least {down(bound)} ({certified.neighbours})" if bound >= 0.005 else "no epsilon above 0"
        )
        text += f". Its own scores certify {words}"
    return f"{text}. {privacy_sentence(privacy)}"


def _labels_found(attack: str, adversary: str, outcome: AttackOutcome) -> str:
    success, control, chance = outcome.success, outcome.controls["shuffled_labels"], outcome.chance
    percent = f"{100 * success.value:.1f}% of labels ({_spoken(success, lambda rate: f'{100 * rate:.1f}%')})"
    below = _compared(success, chance).endswith("below")
    without = "always guessing the commonest label" if below else "guessing without an attack"
    against = [f"{_compared(success, chance)} the {100 * chance:.1f}% of {without}"]
    against += [f"{_compared(success, b)} the {100 * b.value:.1f}% of {name}" for name, b in _measured(outcome)]
    text = f"{attack} by the {adversary} finds {percent}, {', '.join(against)}"
    return f"{text}; with shuffled labels it finds {100 * control.value:.1f}%"


def _against(outcome: AttackOutcome) -> str:
    success, chance = outcome.success, outcome.chance
    against = [f"{_compared(success, chance)} the {chance:.3f} of knowing nothing"]
    against += [f"{_compared(success, b)} the {b.value:.3f} of {name}" for name, b in _measured(outcome)]
    return ", ".join(against)


def _measured(outcome: AttackOutcome) -> list[tuple[str, Interval]]:
    """Baselines that are attacks by themselves, with less to go by: what training adds lies above them."""
    return [(name, value) for name, value in outcome.baselines.items() if isinstance(value, Interval)]


def _spoken(found: Interval, shown: Callable[[float], str]) -> str:
    """The interval of `found` by the records of its trainings, how they differ, and what they tell of others."""
    over = found.over_trainings
    records = f"{shown(found.low)} to {shown(found.high)}"
    if over is None:
        return records
    if over.count == 1:
        return f"{records} by records of this training"
    text = (
        f"{records} by records of these {over.count} trainings, which reach {shown(over.least)} to {shown(over.most)}"
    )
    if over.low is not None and over.high is not None:
        text += f"; the mean of others {shown(over.low)} to {shown(over.high)}"
    return text


def _compared(success: Interval, other: float | Interval) -> str:
    """Where `success` lies: in all of these trainings, else over trainings; overlap shows neither better nor worse."""
    found, over = compared(success, other), success.over_trainings
    if found.side is None:
        few = over is not None and over.low is None
        return "by too few trainings to be told from" if few else "not to be told from"
    if over is None:
        return found.side
    if not found.of_these:
        return f"on average over trainings {found.side}"
    return f"in this training {found.side}" if over.count == 1 else f"in each of these trainings {found.side}"


def train_sentence(
    method: str,
    accuracy: Accuracy,
    tuned: Interval | None,
    privacy: Privacy,
    *,
    diverged: bool,
) -> str:
    """Say whether training beat its tuned frozen clients, in words, and what its privacy claim is worth."""
    reaches = "diverged (its test loss is no finite number) at" if diverged else "reaches"
    text = f"{method} {reaches} {100 * accuracy.value:.1f}% test accuracy"
    if accuracy.trainings == 1:
        text += " in this one training"
    if tuned is not None:
        if compared(accuracy, tuned).side == "above":
            verb, verdict = "beats", ""
        elif accuracy.value > tuned.value:
            verb = "is above"
            what = "these test records" if accuracy.trainings == 1 else "these trainings and test records"
            verdict = f", by less than {what} can tell from chance"
        else:
            verb, verdict = "does not beat", ": the clients have learnt nothing worth their downlink"
        text = f"{text} and {verb} its tuned frozen-clients control ({100 * tuned.value:.1f}%){verdict}"
    return f"{text}. {privacy_sentence(privacy)}"


def privacy_sentence(privacy: Privacy) -> str:
    """What is known about epsilon against the adversary, in one sentence."""
    if privacy.gap == NO_NOISE:
        return "No noise is added to what the server sends, so no upper bound is known."
    claimed, lower, upper = privacy.claimed, privacy.empirical_lower, privacy.upper
    parts = []
    if lower is not None:
        verdict = {"refuted": "refutes", "not refuted": "does not refute"}.get(privacy.verdict or "")
        claim = f" and {verdict} the claimed epsilon of {claimed:g}" if verdict else ""
        level = confidence_percent(privacy.confidence)
        given = f", {privacy.given}" if privacy.given else ""
        given += "," if given and claim else ""
        parts.append(f"the audit certifies epsilon of at least {down(lower)} at {level} confidence{given}{claim}")
    elif claimed is not None:
        parts.append(f"epsilon is claimed to be {claimed:g}")
    if upper is not None:
        parts.append(f"the sound upper bound is {up(upper)}")
    else:
        parts.append(f"no sound upper bound exists (gap: {privacy.gap})")
    return f"Against the {privacy.adversary}, {'; '.join(parts)}."


Side = Literal["above", "below"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Where a measurement lies beside another: on one `side` of it, or on neither (None).

    `of_these` says that this is about the trainings that were made; else it is about further trainings too.
    """

    side: Side | None
    of_these: bool


def compared(found: Interval, other: Interval | float) -> Comparison:
    """Return on which side of `other` the measurement `found` lies; intervals that overlap show neither.

    Compares first all of these trainings, each of them and by their records; where that shows neither side and both
    have intervals over further trainings, compares those.
    """
    side = _side(of_these_trainings(found), of_these_trainings(other))
    if side is not None or found.over_trainings is None:
        return Comparison(side=side, of_these=found.over_trainings is not None)
    further, others = over_further_trainings(found), over_further_trainings(other)
    return Comparison(side=_side(further, others) if further and others else None, of_these=False)


def of_these_trainings(found: Interval | float) -> tuple[float, float]:
    """Return the limits of a measurement by its trainings' records and by each of these trainings, the wider ones."""
    if not isinstance(found, Interval):
        return found, found
    trainings = found.over_trainings
    if trainings is None:
        return found.low, found.high
    return min(found.low, trainings.least), max(found.high, trainings.most)


def over_further_trainings(found: Interval | float) -> tuple[float, float] | None:
    """Return the limits of a measurement over further trainings; None where its trainings are too few to tell."""
    if not isinstance(found, Interval):
        return found, found
    trainings = found.over_trainings
    if trainings is None:
        return found.low, found.high
    return None if trainings.low is None or trainings.high is None else (trainings.low, trainings.high)


def _side(ours: tuple[float, float], theirs: tuple[float, float]) -> Side | None:
    if ours[0] > theirs[1]:
        return "above"
    return "below" if ours[1] < theirs[0] else None
