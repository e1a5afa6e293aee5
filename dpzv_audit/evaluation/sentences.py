"""What the numbers of a result mean, in words."""

from __future__ import annotations

import numpy as np

from attacks.contract import AttackOutcome
from dpzv_audit.evaluation.common import Result
from dpzv_audit.evaluation.privacy import NO_NOISE
from dpzv_audit.evidence import Interval
from reports.text import percent as confidence_percent


def attack_sentence(
    attack: str, adversary: str, outcome: AttackOutcome, certified: Result | None, privacy: Result
) -> str:
    """What the numbers of an attack mean, in words: success against the best that needs no attack, then the claim."""
    success = outcome.success
    if outcome.metric == "labels found":
        text = _labels_found(attack, adversary, outcome)
    else:
        number = f"{success.value:.3f} ({success.low:.3f} to {success.high:.3f})"
        text = f"{attack} by the {adversary} reaches {number} in {outcome.metric}, {_against(outcome)}"
    for name, control in outcome.controls.items():
        if not control.holds:
            text += f"; its {control.kind} control ({name.replace('_', ' ')}) FAILED at {control.value:.3f}"
    if certified is not None:
        bound = certified["epsilon_lower"]
        words = (
            f"epsilon of at least {down(bound)} ({certified['neighbours']})" if bound >= 0.005 else "no epsilon above 0"
        )
        text += f". Its own scores certify {words}"
    return f"{text}. {privacy_sentence(privacy)}"


def _labels_found(attack: str, adversary: str, outcome: AttackOutcome) -> str:
    success, control = outcome.success, outcome.controls["shuffled_labels"]
    percent = f"{100 * success.value:.1f}% of labels ({100 * success.low:.1f} to {100 * success.high:.1f}%)"
    if success.low > outcome.chance:
        against = f"above the {100 * outcome.chance:.1f}% of guessing without an attack"
    elif success.high < outcome.chance:
        against = f"below the {100 * outcome.chance:.1f}% of always guessing the commonest label"
    else:
        against = f"no better than the {100 * outcome.chance:.1f}% of guessing without an attack"
    text = f"{attack} by the {adversary} finds {percent}, {against}"
    for name, value in outcome.baselines.items():
        if isinstance(value, Interval):
            beats = "above" if success.low > value.high else "below" if success.high < value.low else "no better than"
            text += f", {beats} the {100 * value.value:.1f}% of {name}"
    return f"{text}; with shuffled labels it finds {100 * control.value:.1f}%"


def _against(outcome: AttackOutcome) -> str:
    chance = outcome.chance
    if outcome.success.low > chance:
        return f"above the {chance:.3f} of knowing nothing"
    if outcome.success.high < chance:
        return f"below the {chance:.3f} of knowing nothing"
    return f"not to be told from the {chance:.3f} of knowing nothing"


def train_sentence(method: str, utility: Result, privacy: Result) -> str:
    """Whether training beat its controls, in words, and what its privacy claim is worth."""
    accuracy = utility["test_accuracy"]
    reaches = "diverged (its test loss is no finite number) at" if utility["final_loss"] is None else "reaches"
    text = f"{method} {reaches} {100 * accuracy['value']:.1f}% test accuracy"
    tuned = utility["controls"].get("frozen-clients-tuned")
    if tuned:
        if accuracy["low"] > tuned["high"]:
            verb, verdict = "beats", ""
        elif accuracy["value"] > tuned["value"]:
            verb = "is above"
            verdict = ", by less than these test records can tell from chance"
        else:
            verb, verdict = "does not beat", ": the clients have learnt nothing worth their downlink"
        text = f"{text} and {verb} its tuned frozen-clients control ({100 * tuned['value']:.1f}%){verdict}"
    return f"{text}. {privacy_sentence(privacy)}"


def privacy_sentence(privacy: Result) -> str:
    """What is known about epsilon against the adversary, in one sentence."""
    if privacy["gap"] == NO_NOISE:
        return "No noise is added to what the server sends, so no upper bound is known."
    adversary, claimed, lower = privacy["adversary"], privacy["claimed"], privacy["empirical_lower"]
    upper = privacy["upper"]
    parts = []
    if lower is not None:
        verdict = {"refuted": "refutes", "not refuted": "does not refute"}.get(privacy["verdict"] or "")
        claim = f" and {verdict} the claimed epsilon of {claimed:g}" if verdict else ""
        level = confidence_percent(privacy["confidence"])
        given = f", {privacy['given']}" if privacy["given"] else ""
        given += "," if given and claim else ""
        parts.append(f"the audit certifies epsilon of at least {down(lower)} at {level} confidence{given}{claim}")
    elif claimed is not None:
        parts.append(f"epsilon is claimed to be {claimed:g}")
    if upper is not None:
        parts.append(f"the sound upper bound is {_up(upper)}")
    else:
        parts.append(f"no sound upper bound exists (gap: {privacy['gap']})")
    return f"Against the {adversary}, {'; '.join(parts)}."


def down(value: float) -> str:
    """A lower bound is cut, never rounded up."""
    return f"{np.floor(value * 100.0) / 100.0:.2f}"


def _up(value: float) -> str:
    """An upper bound is never rounded down."""
    return f"{np.ceil(value * 100.0) / 100.0:.2f}"
