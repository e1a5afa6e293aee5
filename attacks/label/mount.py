"""Mounts attacks on labels: trains, infers, scores against the truth, and does the same with labels dealt at random.

These are dealt as the label game of the attack: every record's label is one of two, by a fair coin, and the attack
guesses the coin. Two random permutations of the labels give each record two candidates, which are public; a coin a
record picks the one that is trained on (one-run audits with labels for membership: Steinke, Nasr and Jagielski, NeurIPS
2023). So labels are independent of the true ones, with the same shares of the classes. Changing one coin replaces one
label, and the trainings of all trials together are one mechanism of all their coins. So theorem 5.2 of that paper
bounds the right guesses of one-run estimators however the scores of a training depend on each other. A coin is fair
whatever features say: what follows from them alone certifies nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from dpzv_audit.base.findings import Control, Interval
from dpzv_audit.base.seeds import Purpose, stream

from ..core.controls import ENOUGH_TO_BET, at_chance, by_bets, by_names, by_order, by_permutation, under_others
from ..core.knowledge import FewLabels, granted
from ..core.metrics import (
    Booleans,
    Floats,
    Ints,
    areas_of_one,
    auc_interval,
    behind,
    class_shares,
    counts_interval,
    low_rates,
    majority_baseline,
    over_trainings,
    prior_baseline,
    rate_interval,
    shared_area_limits,
    shared_rate,
    shared_rate_limits,
    t_interval,
    trial_areas,
    with_shared,
)
from ..core.run import AttackedRun, attacked_run, few_labels, permuted_labels
from ..core.setting import AttackSetting
from ..core.spec import SECOND, AttackOutcome, AttackSpec, CoinGame, LabelGuesses

NO_COINS = "fewer than one coin on either side"
NO_IDS = "its guesses are about places of batches, not about records that it could name: they tell no coin"
SHUFFLED = "trained on labels dealt at random, scored against the true ones: must be at chance"
AGAIN = "trained on labels dealt at random, scored against labels permuted once more: must be at chance"
PERMUTED = "labels in another order, against the same guesses: the mean; p is how often that does as well as the attack"
RECORDED = "a recorded training cannot be repeated on labels dealt by coins, which a certified epsilon needs"
ORACLE = "oracle: labels found under the best names"
TOP = 3
# Groups of records over which intervals of rank correlations are taken.
GROUPS = 20
# No table of recalls by class is longer.
MOST_CLASSES = 20
_LARGEST = 1e100


def _attacked(
    spec: AttackSpec,
    setting: AttackSetting,
    at_chance_of: Callable[[AttackSpec, AttackSetting, LabelGuesses], Control],
    success: Callable[[LabelGuesses, Ints], Floats],
) -> tuple[LabelGuesses, LabelGuesses | None, dict[str, LabelGuesses], dict[str, Any]]:
    """Train and infer, and do the same with labels dealt by coins.

    What was recorded and cannot be trained again has labels permuted after the attack as its control, and a pilot none.

    Args:
        spec: The attack.
        setting: Its setting.
        at_chance_of: Makes the control of guesses after training on labels that were dealt.
        success: Returns the success (n,) of one training's guesses with each of n orders of the labels (n, N).

    Returns:
        Guesses of the attack, of its control, and of those with less to go by; and other fields of the outcome.
    """
    run = attacked_run(spec, setting, models=not setting.pilot)
    facts: dict[str, Any] = {"trained": run.trained, "plan": run.plan, "controls": {}}
    guesses = _placed(spec.infer(run.view, run.known), run)
    less = {**spec.goal.baselines(run.view, run.known), **guesses.less}
    less = {name: _placed(baseline, run) for name, baseline in less.items()}
    if setting.pilot:
        return guesses, None, less, facts
    if not setting.method.capabilities.repeatable:
        controls = {"permuted_labels": _permuted(spec, setting, guesses, success)}
        return guesses, None, less, {**facts, "no_game": RECORDED, "controls": controls}
    other = setting.of_control(run.at_once)
    coins = label_coins(spec, other)
    again = attacked_run(spec, other, labels=coins.labels, granted=coins.granted, models=False)
    inferred = spec.infer(again.view, again.known)
    game, no_game = guess_coins(inferred, coins, again.known.values)
    control = _placed(inferred, again)
    facts["controls"] = {"shuffled_labels": at_chance_of(spec, setting, control)}
    return guesses, control, less, {**facts, "game": game, "no_game": no_game, "at_once": again.at_once}


def _placed(guesses: LabelGuesses, run: AttackedRun) -> LabelGuesses:
    """Return guesses with the ids (answers, K, B) of what was guessed: by default those of the answers of the run.

    Of batches that differ in size all rounds are one answer, without what filled them up: of each training as many
    places, in order, as the one with fewest has.
    """
    ids = guesses.ids
    if ids is None:
        ids = run.log.stacked()[:: run.repeats][: len(guesses.labels)]
        guesses = replace(guesses, ids=ids)
    if bool((ids >= 0).all()):
        return guesses
    real = (ids >= 0).transpose(0, 1).flatten(1)
    places = (~real).long().argsort(dim=1, stable=True)[:, : int(real.sum(1).min())]

    def kept(values: Tensor) -> Tensor:
        rows = values.transpose(0, 1).flatten(1, 2)
        return rows.take_along_dim(places.view(*places.shape, *(1,) * (rows.dim() - 2)), 1)[None]

    scores = None if guesses.scores is None else kept(guesses.scores)
    numbers = None if guesses.numbers is None else kept(guesses.numbers)
    return replace(guesses, labels=kept(guesses.labels), ids=kept(ids), scores=scores, numbers=numbers)


def mount_labels(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, infer the labels, score against the truth, and do the same with labels dealt at random before training.

    Those are dealt by coins, so that the control's guesses are a game that certifies an epsilon.
    """
    labels = setting.labels
    classes = setting.dataset.classes
    confidence = setting.confidence
    guesses, control, less, facts = _attacked(spec, setting, _rates_at_chance, _rates)
    guessed = {"success": guesses, **less}
    if control is not None:
        guessed["shuffled_labels"] = control
    right = {name: correctness(some, labels) for name, some in guessed.items()}
    blind = {"majority": majority_baseline(labels, classes), "prior": prior_baseline(labels, classes)}
    by_trial = {name: outcomes.mean(1) for name, outcomes in right.items()}

    def rate(name: str) -> Interval:
        ids = _by_replica(granted(guessed[name].ids, "ids"))
        return with_shared(
            rate_interval(right[name], confidence), lambda: shared_rate_limits(right[name], ids, confidence)
        )

    rates = {name: behind(rate(name), by_trial[name], by_trial["success"]) for name in less}
    return AttackOutcome(
        success=rate("success"),
        baselines={**blind, **rates},
        chance=max(blind.values()),
        measures={
            **_best_named(guesses, less, setting),
            **label_measures(guesses, setting),
            **_left_out(spec, guesses, setting),
        },
        by_trial={name: tuple(shares.tolist()) for name, shares in by_trial.items()},
        **facts,
    )


def mount_binary(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Do the same for two classes, where success is the area under the ROC curve of the raw scores: chance is 0.5."""
    labels = setting.labels
    confidence = setting.confidence
    guesses, control, less, facts = _attacked(spec, setting, _areas_at_chance, _areas)
    if spec.goal.unsupervised and control is not None:
        less = {"features alone, trained on permuted labels": control, **less}
    by_trial = trial_areas(*_binary(guesses, labels))
    areas = {}
    for name, baseline in less.items():
        area = _area(baseline, labels, confidence)
        # What the control's trainings found shares no luck with these.
        paired = baseline is not control
        areas[name] = behind(area, trial_areas(*_binary(baseline, labels)), by_trial) if paired else area
    # A share of the training labels themselves, about which nothing is uncertain.
    share = majority_baseline(labels, 2)
    return AttackOutcome(
        success=_area(guesses, labels, confidence),
        baselines={"a constant score": 0.5, **areas},
        metric="area under the ROC curve",
        chance=0.5,
        measures={
            "labels found": rate_interval(correctness(guesses, labels), confidence),
            "labels found by guessing the majority": Interval(
                value=share, low=share, high=share, n=len(labels), confidence=confidence
            ),
            **low_rates(*_binary(guesses, labels), confidence),
        },
        by_trial={"success": tuple(by_trial.tolist())},
        **facts,
    )


def mount_numbers(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Do the same where the target is a number: success is Spearman's rank correlation of guesses and truth."""
    labels = setting.labels
    confidence = setting.confidence
    guesses, _, less, facts = _attacked(spec, setting, _ranks_at_chance, _correlations)
    values = granted(setting.dataset.values, "the numbers that labels stand for").astype(float)

    def off(some: LabelGuesses) -> Interval:
        numbers = _by_replica(granted(some.numbers, "numbers"))
        error = np.abs(numbers - values[_by_replica(_truth(some, labels))]).mean(0)
        return t_interval(_by_group(error), len(error), confidence)

    middle = np.abs(values[labels] - np.median(values[labels]))
    return AttackOutcome(
        success=_rank_correlation(guesses, labels, confidence),
        baselines={
            "a constant": 0.0,
            **{name: _rank_correlation(baseline, labels, confidence) for name, baseline in less.items()},
        },
        metric="rank correlation with the target",
        chance=0.0,
        measures={
            "mean absolute error": off(guesses),
            **{f"mean absolute error, {name}": off(baseline) for name, baseline in less.items()},
            "mean absolute error of the median": t_interval(_by_group(middle), len(middle), confidence),
        },
        by_trial={"success": tuple(_products(guesses, labels).mean(1).tolist())},
        **facts,
    )


def mounted(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Mount it by what the target is: a number, one of two classes, or one of more."""
    if setting.dataset.values is not None:
        return mount_numbers(spec, setting)
    return (mount_binary if setting.dataset.classes == 2 else mount_labels)(spec, setting)


def _ranks_at_chance(spec: AttackSpec, setting: AttackSetting, control: LabelGuesses) -> Control:
    """Return the control of numbers: by bets over trainings."""
    correlation = _rank_correlation(control, setting.labels, setting.confidence)
    test = by_bets(_products(control, setting.labels).mean(1), 0.0, least=-1.0)
    return at_chance(correlation, what=SHUFFLED, expected=0.0, test=test)


def _correlations(guesses: LabelGuesses, labels: Ints) -> Floats:
    """Return the rank correlation (n,) of the guesses of one training with each of `labels` (n, N)."""
    ids = _by_replica(granted(guesses.ids, "ids"))[0]
    guess = _standard_ranks(_by_replica(granted(guesses.numbers, "numbers")))
    return np.asarray((_standard_ranks(labels[:, ids]) * guess).mean(1))


def _rank_correlation(guesses: LabelGuesses, labels: Ints, confidence: float) -> Interval:
    """Return the rank correlation; by records its interval is Student's over groups of records."""
    products = _products(guesses, labels)
    by_group = t_interval(_by_group(products.mean(0)), products.shape[1], confidence)
    value, low, high = np.clip((by_group.value, by_group.low, by_group.high), -1.0, 1.0).tolist()
    over = over_trainings(products.mean(1), confidence, least=-1.0)
    return replace(by_group, value=value, low=low, high=high, over_trainings=over)


def _products(guesses: LabelGuesses, labels: Ints) -> Floats:
    """Return products (K, guesses) of standardised ranks of guess and truth, whose means are rank correlations.

    Labels stand for increasing numbers, so that their ranks are those of the numbers.
    """
    guess = _standard_ranks(_by_replica(granted(guesses.numbers, "numbers")))
    return guess * _standard_ranks(_by_replica(_truth(guesses, labels)))


def _standard_ranks(rows: ArrayLike) -> Floats:
    """Return ranks (K, n) within each row, of mean 0 and variance 1; 0 where all are the same."""
    from scipy.stats import rankdata

    ranks = rankdata(rows, axis=1)
    ranks = ranks - ranks.mean(1, keepdims=True)
    spread = ranks.std(1, keepdims=True)
    return np.asarray(ranks / np.where(spread > 0.0, spread, 1.0))


def _by_group(values: Floats) -> Floats:
    """Return means (groups,) of values (n,) over groups of records, each as much of the mean of all as another."""
    groups = min(GROUPS, len(values))
    return np.array([part.sum() * groups / len(values) for part in np.array_split(values, groups)])


def _area(guesses: LabelGuesses, labels: Ints, confidence: float) -> Interval:
    scores, positive = _binary(guesses, labels)
    area = auc_interval(scores, positive, confidence)
    if labels.ndim > 1:  # each training has an order of its own
        return area
    ids = _by_replica(granted(guesses.ids, "ids"))
    return with_shared(area, lambda: shared_area_limits(scores, positive, ids, confidence))


def _rates_at_chance(spec: AttackSpec, setting: AttackSetting, control: LabelGuesses) -> Control:
    """Return the control of guesses: by bets over trainings, or of few trainings by the names of the classes."""
    labels = setting.labels
    classes = setting.dataset.classes
    right = correctness(control, labels)
    expected = blind_success(control, labels, classes)
    test = None
    if len(right) < ENOUGH_TO_BET:
        truth = _by_replica(_truth(control, labels))
        test = by_names(_by_replica(control.labels), truth, classes)
    return at_chance(
        rate_interval(right, setting.confidence),
        what=SHUFFLED,
        expected=expected,
        test=test or by_bets(right.mean(1), expected),
    )


def _areas_at_chance(spec: AttackSpec, setting: AttackSetting, control: LabelGuesses) -> Control:
    """Return the control of scores: by bets, or where features alone may tell labels by another order of them."""
    if spec.goal.unsupervised:
        # One permutation per trial: trials that shared one would share its luck.
        labels = permuted_labels(setting.of_control(None))
        area = _area(control, labels, setting.confidence)
        return at_chance(area, what=AGAIN, expected=0.5, test=by_order(*_binary(control, labels)))
    area = _area(control, setting.labels, setting.confidence)
    test = by_bets(trial_areas(*_binary(control, setting.labels)), 0.5)
    return at_chance(area, what=SHUFFLED, expected=0.5, test=test)


def _permuted(
    spec: AttackSpec,
    setting: AttackSetting,
    guesses: LabelGuesses,
    success: Callable[[LabelGuesses, Ints], Floats],
) -> Control:
    """Test that labels tell nothing to one recorded training's guesses: do labels in another order suit them as well?

    Permuted are labels of records that were guessed and not granted: given those, and the counts of the classes, which
    are public, any order is as likely where nothing in the view tells labels.
    """
    labels = setting.labels
    guessed = np.unique(_by_replica(granted(guesses.ids, "ids")))
    if spec.setup.few_labels:
        few = few_labels(spec, torch.from_numpy(labels), setting)
        guessed = np.setdiff1d(guessed, few.ids.cpu().numpy())
    generator = stream(setting.seed, Purpose.CONTROL, 0, 1)
    successes, test = by_permutation(partial(success, guesses), labels, guessed, generator)
    return under_others(successes, test, n=len(guessed), confidence=setting.confidence, what=PERMUTED)


def _rates(guesses: LabelGuesses, labels: Ints) -> Floats:
    """Return the share (n,) of the guesses of one training that are right with each of `labels` (n, N)."""
    ids = _by_replica(granted(guesses.ids, "ids"))[0]
    return np.asarray((labels[:, ids] == _by_replica(guesses.labels)[0]).mean(1))


def _areas(guesses: LabelGuesses, labels: Ints) -> Floats:
    """Return the area under the ROC curve (n,) of the scores of one training with each of `labels` (n, N)."""
    ids = _by_replica(granted(guesses.ids, "ids"))[0]
    scores = _by_replica(granted(guesses.scores, "scores of binary labels")[..., 1])[0]
    return areas_of_one(scores, labels[:, ids] == 1)


def correctness(guesses: LabelGuesses, labels: Ints) -> Booleans:
    """Return whether each of `guesses`, with ids, is right, booleans (K, guesses), of true `labels` (N,)."""
    return _by_replica(guesses.labels == _truth(guesses, labels))


def _binary(guesses: LabelGuesses, labels: Ints) -> tuple[Floats, Booleans]:
    """Return scores (K, guesses) for class 1, and which records are of it."""
    scores = granted(guesses.scores, "scores of binary labels")
    return _by_replica(scores[..., 1]), _by_replica(_truth(guesses, labels)) == 1


def _best_named(guesses: LabelGuesses, less: Mapping[str, LabelGuesses], setting: AttackSetting) -> dict[str, Interval]:
    """Return success under the best names of guesses that are named apart, and of baselines of them."""
    shown = {ORACLE: guesses, **{f"{ORACLE}, {name}": baseline for name, baseline in less.items()}}
    return {
        name: rate_interval(under_best_names(some, setting.labels, setting.dataset.classes), setting.confidence)
        for name, some in shown.items()
        if some.unnamed
    }


def under_best_names(guesses: LabelGuesses, labels: Ints, classes: int) -> Booleans:
    """Return whether each guess is right, booleans (K, guesses), under those names of classes that suit most records.

    These are chosen with the truth, each training's own: an oracle's, not an attacker's.
    """
    from scipy.optimize import linear_sum_assignment

    truth = _by_replica(_truth(guesses, labels))
    right = []
    for guess, true in zip(_by_replica(guesses.labels), truth, strict=True):
        table = np.bincount(guess * classes + true, minlength=classes**2).reshape(classes, classes)
        right.append(linear_sum_assignment(-table)[1][guess] == true)
    return np.stack(right)


def label_measures(guesses: LabelGuesses, setting: AttackSetting) -> dict[str, Interval]:
    """Return recall of each class, and where the attack gives scores top-3 success and success on held-out records."""
    dataset = setting.dataset
    confidence = setting.confidence
    labels = _truth(guesses, setting.labels)
    truth = _by_replica(labels)
    right = correctness(guesses, setting.labels)
    measures: dict[str, Interval] = {}
    if guesses.scores is not None and dataset.classes > TOP:
        # Of equal scores the first class goes first, as it does in the guess: who is right is among the likeliest.
        likeliest = guesses.scores.argsort(dim=3, descending=True, stable=True)[..., :TOP]
        among = (likeliest == labels.unsqueeze(3)).any(3)
        measures[f"label among the {TOP} likeliest"] = rate_interval(_by_replica(among), confidence)
    if guesses.held_out is not None:
        held_out = guesses.held_out.argmax(2).cpu().numpy() == dataset.test.labels
        measures["held-out records"] = shared_rate(held_out, confidence)
    if dataset.classes > MOST_CLASSES:
        return measures
    for c in range(dataset.classes):
        sizes = (truth == c).sum(1)
        some = sizes > 0
        if some.any():
            hits = (right & (truth == c)).sum(1)
            measures[f"recall of class {c}"] = counts_interval(hits[some], sizes[some], confidence)
    return measures


def _left_out(spec: AttackSpec, guesses: LabelGuesses, setting: AttackSetting) -> dict[str, Interval]:
    """Return the share of guessed records of whose class no label is granted, where there are such: all are wrong."""
    if not spec.setup.few_labels:
        return {}
    few = few_labels(spec, torch.from_numpy(setting.labels), setting)
    known = few.labels.new_zeros(setting.trials, setting.dataset.classes).scatter(1, few.labels, 1)
    without = _by_replica(known.to(few.ids).unsqueeze(0).gather(2, _truth(guesses, setting.labels).to(few.ids)) == 0)
    if not without.any():
        return {}
    return {"records of classes without a known label": rate_interval(without, setting.confidence)}


def blind_success(guesses: LabelGuesses, labels: Ints, classes: int) -> float:
    """Return what guesses find that know nothing of the labels: sum_k q_k p_k, of their shares q and the labels' p.

    This is chance for a control, whatever its guesses favour; the prior baseline is the case q = p.
    """
    named = guesses.labels.flatten().cpu().numpy()
    return float((class_shares(named, classes) * np.bincount(labels, minlength=classes) / len(labels)).sum())


def _truth(guesses: LabelGuesses, labels: Ints) -> Tensor:
    """Return labels (answers, K, B) of what was guessed, of `labels` (N,) or one row a replica (K, N)."""
    ids = granted(guesses.ids, "ids")
    rows = torch.from_numpy(labels).to(ids.device)
    return rows.expand(*ids.shape[:2], -1).gather(2, ids)


def _by_replica(values: Tensor) -> np.ndarray:
    """Return values (answers, K, B) as (K, answers * B)."""
    return values.transpose(0, 1).flatten(1).cpu().numpy()


@dataclass(frozen=True)
class LabelCoins:
    """Candidate labels (K, N, 2), coins (K, N) in {0, 1}, who plays (K, N), and labels granted to the adversary.

    A record whose candidates are one label plays no game, nor does one whose label is granted: that has its first
    candidate, so that which records are granted depends on no coin.
    """

    candidates: Ints
    coins: Ints
    plays: Booleans
    granted: FewLabels | None

    @property
    def labels(self) -> Ints:
        """Return the labels that are trained on, (K, N)."""
        return np.take_along_axis(self.candidates, self.coins[:, :, None], 2)[:, :, 0]


def label_coins(spec: AttackSpec, setting: AttackSetting) -> LabelCoins:
    """Return candidates and coins of `setting.trials` trainings, each from a stream of its own.

    Labels are granted where the attack's adversary is granted some; `DoesNotApply` where a class has fewer records.
    """
    true = setting.labels
    drawn = []
    for trial in range(setting.trials):
        generator = stream(setting.seed, Purpose.CONTROL, trial)
        orders = generator.permutation(true), generator.permutation(true)
        drawn.append((*orders, generator.integers(2, size=len(true))))
    first, second, flips = map(np.stack, zip(*drawn, strict=True))
    plays = first != second
    few = None
    if spec.setup.few_labels:
        few = few_labels(spec, torch.from_numpy(first), setting)
        ids = few.ids.cpu().numpy()
        np.put_along_axis(plays, ids, False, axis=1)
        np.put_along_axis(flips, ids, 0, axis=1)
    return LabelCoins(np.stack((first, second), 2), flips, plays, few)


def guess_coins(guesses: LabelGuesses, coins: LabelCoins, values: Tensor | None = None) -> tuple[CoinGame | None, str]:
    """Return the game that the guesses of an attack play, or None and why they play none.

    A record's score is how much likelier its second candidate is than its first, by the attack's own scores (or 1 and
    -1 where it names one of them), summed over all answers about it. Of numbers, which labels stand for by `values`
    (classes,), it is how much nearer the guess is to the second, in squares. Records that the attack never guessed have
    none.
    """
    if guesses.ids is None:
        return None, NO_IDS
    ids = _by_replica(guesses.ids)
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    real = ids >= 0  # others are padding
    total = np.zeros(coins.coins.shape)
    guessed = np.zeros_like(coins.plays)
    np.add.at(total, (rows[real], ids[real]), _evidence(guesses, coins.candidates[rows, ids], values)[real])
    guessed[rows[real], ids[real]] = True
    known = guessed & coins.plays
    scores = total[known]
    words = f"{len(scores):,} labels of {len(ids):,} trainings, each one of two by a fair coin; {SECOND}"
    game = CoinGame.of(scores, coins.coins[known] == 1, "replace-label", words)
    return game, "" if game else NO_COINS


def _evidence(guesses: LabelGuesses, pairs: Ints, values: Tensor | None) -> Floats:
    """Return evidence (K, guesses) for the second of `pairs` (K, guesses, 2) against the first."""
    if guesses.numbers is not None:
        named = granted(values, "the numbers that labels stand for").cpu().numpy()[pairs]
        both = -((_by_replica(guesses.numbers)[..., None] - named) ** 2)
    elif guesses.scores is None:
        both = (_by_replica(guesses.labels)[..., None] == pairs).astype(float)
    else:
        of = guesses.scores.transpose(0, 1).flatten(1, 2)
        both = of.gather(2, torch.from_numpy(pairs).to(of.device)).double().cpu().numpy()
    # What a model that diverged says of a record is no evidence.
    with np.errstate(invalid="ignore"):
        difference = both[..., 1] - both[..., 0]
    return np.asarray(np.nan_to_num(difference, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST))
