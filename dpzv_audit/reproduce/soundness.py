"""What the rows of `cost-of-soundness` say: sound DPZV beside a private control and the noise of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from dpzv_audit.evaluation.sentences import compared
from dpzv_audit.reproduce.text import Row, interval_of, say


def upper(row: Row) -> str:
    """Return the upper bound, or which gaps it has and what it would be without them."""
    guarantee = row["guarantee"]
    if guarantee["sound"]:
        return f"{guarantee['epsilon']:.2f}"
    if guarantee["epsilon"] is None:
        return say("soundness-none", **guarantee)
    return say("soundness-none-but", **guarantee, it="them" if "," in guarantee["gap"] else "it")


def chosen(row: Row) -> str:
    """Return the chosen setting as one line."""
    return ", ".join(f"{name} {value:g}" for name, value in row["chosen"].items())


def of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    """Return the rows that are `sound`, the `control` or `claimed`."""
    return [row for row in rows if row["kind"] == kind]


def best_sound(rows: Sequence[Row]) -> Row | None:
    """Return the sound DPZV that did best on held-out training records; None where no such row was asked for."""
    return max(of_kind(rows, "sound"), key=lambda row: float(row["validation"]), default=None)


def who_wins(rows: Sequence[Row]) -> str:
    """Return the page's first paragraph: sound DPZV against the control, then what the paper's noise is worth."""
    sound, control = best_sound(rows), next(iter(of_kind(rows, "control")), None)
    sentences = []
    if sound is not None and control is not None:
        others = [row for row in of_kind(rows, "sound") if row is not sound]
        sentences += [_verdict(sound, control), *_forms(sound, others)]
    for row in of_kind(rows, "claimed"):
        sentences.append(say("soundness-claimed", accuracy=row["accuracy"], lower=row["guarantee"]["lower"]))
    return " ".join(sentences)


def _verdict(sound: Row, control: Row) -> str:
    a, b = sound["accuracy"], control["accuracy"]
    side = compared(interval_of(a), interval_of(b)).side
    numbers = say("soundness-numbers", control=b, sound=a)
    more = a["value"] - b["value"]
    return say(f"soundness-{side or 'neither'}", at=say("soundness-at"), numbers=numbers, more=more, less=-more)


def _forms(sound: Row, others: Sequence[Row]) -> list[str]:
    """Return which form the best one is, what its clients' learning is worth, and what the other forms reach."""
    words = [say("soundness-form", form=_form(sound))]
    frozen, trained = sound["variants"].get("frozen"), sound["validation"]
    if frozen is not None:
        words.append(say("soundness-frozen", frozen=frozen, trained=trained, gain=trained - frozen))
    if others:
        forms = (say("soundness-form-reaches", form=_form(row), accuracy=row["accuracy"]) for row in others)
        words.append(say("soundness-others", forms=", ".join(forms)))
    return words


def _form(row: Row) -> str:
    return str(row["label"]).removeprefix("sound, ")


def what_costs(rows: Sequence[Row]) -> str:
    """Return what the noise costs each sound form beside what zeroth order and the length of training cost it."""
    parts = []
    for row in of_kind(rows, "sound"):
        noiseless, trained = row["variants"]["noiseless"], row["validation"]
        gain = noiseless - trained
        parts.append(say("soundness-cost", form=_form(row), noiseless=noiseless, trained=trained, gain=gain))
    return say("soundness-costs", forms="; ".join(parts)) if parts else ""
