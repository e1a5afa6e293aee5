"""The label game of an attack: every record's label is one of two, by a fair coin, and the attack guesses the coin.

Two random permutations of the labels give each record two candidates, which are public; a coin a record picks the one
that is trained on (one-run audits with labels for membership: Steinke, Nasr and Jagielski, NeurIPS 2023). So labels are
independent of the true ones, with the same shares of the classes: the training is the negative control as well.
Changing one coin replaces one label, and the trainings of all trials together are one mechanism of all their coins. So
theorem 5.2 of that paper bounds the right guesses of one-run estimators however the scores of a training depend on
each other. A coin is fair whatever features say: what follows from them alone certifies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attacks.core.contract import AttackSetting, CoinGame, FewLabels, LabelGuesses
from attacks.core.run import few_labels
from dpzv_audit.seeds import Purpose, stream

NO_IDS = "its guesses are about places of batches, not about records that it could name: they tell no coin"
NO_COINS = "fewer than one coin on either side"
_LARGEST = 1e100


@dataclass(frozen=True)
class LabelCoins:
    """Candidate labels (K, N, 2), coins (K, N) in {0, 1}, who plays (K, N), and labels granted to the adversary.

    A record whose candidates are one label plays no game, nor does one whose label is granted: that has its first
    candidate, so that which records are granted depends on no coin.
    """

    candidates: np.ndarray
    coins: np.ndarray
    plays: np.ndarray
    granted: FewLabels | None

    @property
    def labels(self) -> np.ndarray:
        """What is trained on, (K, N)."""
        chosen: np.ndarray = np.take_along_axis(self.candidates, self.coins[:, :, None], 2)[:, :, 0]
        return chosen


def label_coins(setting: AttackSetting, *, replicas: Sequence[int], granted_per_class: int | None) -> LabelCoins:
    """Candidates and coins of `setting.trials` trainings, each from a stream of its own.

    Args:
        setting: What is attacked; its training labels are permuted.
        replicas: Numbers of the replicas, by which granted records are drawn.
        granted_per_class: Labels of each class that the adversary is granted; None for none.

    Raises:
        DoesNotApply: A class has fewer records than are granted.
    """
    true = setting.dataset.train.labels
    candidates, coins = [], []
    for trial in range(setting.trials):
        generator = stream(setting.seed, Purpose.CONTROL, trial)
        candidates.append(np.stack((generator.permutation(true), generator.permutation(true)), 1))
        coins.append(generator.integers(2, size=len(true)))
    pairs, flips = np.stack(candidates), np.stack(coins)
    plays = pairs[:, :, 0] != pairs[:, :, 1]
    granted = None
    if granted_per_class is not None:
        first = torch.from_numpy(np.ascontiguousarray(pairs[:, :, 0]))
        granted = few_labels(first, setting, granted_per_class, replicas)
        ids = granted.ids.cpu().numpy()
        np.put_along_axis(plays, ids, False, axis=1)
        np.put_along_axis(flips, ids, 0, axis=1)
    return LabelCoins(pairs, flips, plays, granted)


def guess_coins(guesses: LabelGuesses, coins: LabelCoins) -> tuple[CoinGame | None, str]:
    """The game that the guesses of an attack play, or None and why they play none.

    A record's score is how much likelier its second candidate is than its first, by the attack's own scores (or 1 and
    -1 where it names one of them), summed over all answers about it. Records that the attack never guessed have none.
    """
    if guesses.ids is None:
        return None, NO_IDS
    ids = guesses.ids.transpose(0, 1).flatten(1).cpu().numpy()
    rows = np.arange(len(ids))[:, None]
    pairs = coins.candidates[rows, ids]
    evidence = _evidence(guesses, pairs)
    places = rows * coins.coins.shape[1] + ids
    size = coins.coins.size
    total = np.bincount(places.ravel(), weights=evidence.ravel(), minlength=size)
    guessed = np.bincount(places.ravel(), minlength=size) > 0
    known = guessed & coins.plays.ravel()
    scores, second = total[known], coins.coins.ravel()[known] == 1
    if second.all() or not second.any():
        return None, NO_COINS
    words = (
        f"{len(scores):,} labels of {len(ids):,} trainings, each one of two by a fair coin; a score is how much "
        "likelier the second is. Nothing is assumed of how scores of one training depend on each other"
    )
    return CoinGame(scores[second], scores[~second], "replace-label", words), ""


def _evidence(guesses: LabelGuesses, pairs: np.ndarray) -> np.ndarray:
    """Evidence (K, guesses) for the second of `pairs` (K, guesses, 2) against the first."""
    if guesses.scores is None:
        named = guesses.labels.transpose(0, 1).flatten(1).cpu().numpy()
        votes: np.ndarray = (named == pairs[..., 1]).astype(np.float64) - (named == pairs[..., 0])
        return votes
    of = guesses.scores.transpose(0, 1).flatten(1, 2)
    both = of.gather(2, torch.from_numpy(pairs).to(of.device)).double().cpu().numpy()
    # What a model that diverged says of a record is no evidence.
    with np.errstate(invalid="ignore"):
        difference: np.ndarray = np.nan_to_num(both[..., 1] - both[..., 0], nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    return difference
