"""What sentences say of intervals: overlap is no evidence of anything, and one training says nothing of others."""

from types import SimpleNamespace

import numpy as np
import pytest

from attacks.core.spec import AttackOutcome
from dpzv_audit.base.findings import LEAST_TRAININGS, Control, Interval, OverTrainings
from dpzv_audit.evidence.sentences import said
from dpzv_audit.evidence.verdict import NO_NOISE
from dpzv_audit.results import Accuracy, Privacy

PRIVACY = Privacy(gap=NO_NOISE)


def interval(value, low, high):
    return Interval(value=value, low=low, high=high, n=100)


def outcome(success, baselines, *, metric, chance, trainings=3):
    control = Control(
        value=0.1, low=0.0, high=1.0, n=9, confidence=0.95, what="", kind="negative", expected=0.1, p_value=None
    )
    return AttackOutcome(
        success=success,
        baselines=baselines,
        controls={"shuffled_labels": control},
        trained=SimpleNamespace(correct=np.ones((trainings, 9), bool)),
        plan=None,
        metric=metric,
        chance=chance,
    )


def attacked(*args, **rest):
    return said("attack", "it", "client", outcome(*args, **rest), None, LEAST_TRAININGS, PRIVACY)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (
            0.0,
            0.675,
            "This is not clearly above or below the 10.7% of guessing and not clearly above or below the 21.3% of b.",
        ),
        (0.15, 0.3, "above the 10.7% of guessing and not clearly above or below the 21.3% of b."),
        (0.5, 0.6, "above the 10.7% of guessing and above the 21.3% of b."),
        (0.01, 0.015, "below the 10.7% of always guessing the commonest label and below the 21.3% of b."),
    ],
)
def test_labels_found_are_no_better_or_worse_only_where_intervals_are_apart(low, high, words):
    value = (low + high) / 2
    found = attacked(
        interval(value, low, high),
        {"majority": 0.107, "b": interval(0.213, 0.02, 0.407)},
        metric="labels found",
        chance=0.107,
    )
    assert words in found
    assert "no better" not in found
    assert "one training" not in found


def test_an_area_stands_beside_what_the_attack_finds_where_nothing_was_learnt():
    """A bottom model that was never trained, with rates of 0: above knowing nothing is not above the baseline."""
    found = attacked(
        interval(0.967, 0.95, 0.98),
        {"a constant score": 0.5, "the same on an untrained bottom model": interval(0.967, 0.95, 0.98)},
        metric="area under the ROC curve",
        chance=0.5,
    )
    words = (
        "above the 0.500 of knowing nothing and not clearly above or below the 0.967 of the same on an untrained bottom"
    )
    assert words in found
    assert "constant" not in found


def trained(value, low, high, count, least, most, limits=(None, None)):
    over = OverTrainings(count=count, least=least, most=most, low=limits[0], high=limits[1])
    return Interval(value=value, low=low, high=high, n=4224, over_trainings=over)


@pytest.mark.parametrize(
    ("success", "words"),
    [
        (
            trained(1.0, 0.999, 1.0, 3, 1.0, 1.0),
            "finds 100.0% of labels (99.9% to 100.0% across records; 3 single trainings 100.0% to 100.0%). This is "
            "above the 10.7% of guessing in each training and above the 78.0% of b in each training. After training "
            "on shuffled labels it finds 10.0% of the true ones. 3 trainings are too few to generalise; use "
            "--trials 8. ",
        ),
        (
            trained(0.9, 0.88, 0.92, 2, 0.75, 0.99),
            "above the 10.7% of guessing in each training and not clearly above or below the 78.0% of b in 2 "
            "trainings. After training on shuffled labels it finds 10.0% of the true ones. 2 trainings are too few to "
            "generalise; use --trials 8.",
        ),
        (
            trained(0.05, 0.04, 0.06, 1, 0.05, 0.05),
            "(4.0% to 6.0% across the records of one training). This is below the 10.7% of always guessing the "
            "commonest label in this training and below the 78.0% of b in this training. After training on "
            "shuffled labels it finds 10.0% of the true ones. One training is too few to generalise; use --trials 8.",
        ),
        (
            trained(0.9, 0.89, 0.91, 16, 0.3, 1.0, (0.6, 0.97)),
            "finds 90.0% of labels (mean of further trainings 60.0% to 97.0%). This is above the 10.7% of guessing in "
            "each training and not clearly above or below the 78.0% of b. After training on shuffled labels it finds "
            "10.0% of the true ones. ",
        ),
        (
            # One training that found little: of these it is not said, of their average it is.
            trained(0.9, 0.89, 0.91, 16, 0.05, 1.0, (0.6, 0.97)),
            "above the 10.7% of guessing on average over trainings and not clearly above or below the 78.0% of b.",
        ),
        (
            # All eight trainings found every label: so far from every baseline that no further training is asked.
            trained(1.0, 0.999, 1.0, 8, 1.0, 1.0, (0.61, 1.0)),
            "above the 10.7% of guessing in each training and above the 78.0% of b in each training. After training "
            "on shuffled labels it finds 10.0% of the true ones. ",
        ),
    ],
)
def test_what_few_trainings_say_is_kept_apart_from_what_they_say_of_others(success, words):
    limits = (0.5, 0.9) if success.over_trainings.low else (None, None)
    beside = trained(0.78, 0.77, 0.79, success.over_trainings.count, 0.77, 0.8, limits)
    assert words in attacked(success, {"b": beside}, metric="labels found", chance=0.107)


def test_one_training_says_nothing_of_others():
    found = attacked(trained(0.5, 0.4, 0.6, 1, 0.5, 0.5), {}, metric="area under the ROC curve", chance=0.5)
    words = "not clearly above or below the 0.500 of knowing nothing in one training. One training is too few"
    assert words in found
    one, two = (Accuracy(value=0.9, low=0.8, high=0.95, n=50, trainings=count) for count in (1, 2))
    text = said("train", "m", one, None, False, PRIVACY)
    assert text.startswith("m reaches 90.0% test accuracy in this training. ")
    assert "this training" not in said("train", "m", two, None, False, PRIVACY)


def test_a_claim_that_fell_comes_before_an_attack_that_found_nothing():
    fell = PRIVACY.model_copy(update={"gap": "known-ids", "verdict": "refuted", "claimed": 1.0, "empirical_lower": 2.0})
    fell = fell.model_copy(update={"adversary": "client", "confidence": 0.95})
    nothing = outcome(interval(0.1, 0.09, 0.11), {}, metric="labels found", chance=0.1)
    text = said("attack", "it", "client", nothing, None, LEAST_TRAININGS, fell)
    assert text.startswith(
        "The audit shows epsilon of at least 2 against one curious client (95% confidence), which refutes"
    )
    assert text.count("refutes the claimed epsilon of 1") == 1
    assert text.endswith("After training on shuffled labels it finds 10.0% of the true ones.")


def test_a_training_that_learnt_nothing_comes_with_what_usually_causes_it():
    low, tuned = (
        Accuracy(value=value, low=value - 0.02, high=value + 0.02, n=900, trainings=1) for value in (0.3, 0.5)
    )
    text = said("train", "m", low, tuned, False, PRIVACY)
    assert "Training the clients did not help: random client models do as well." in text
    assert "without --scales, or an identifier among the columns. No noise" in text
