"""Labels dealt by coins: what the game is, that a mechanism which leaks nothing certifies nothing, and what leaks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from attacks import ATTACKS
from attacks.core.metrics import prior_baseline
from attacks.core.run import few_labels
from attacks.core.spec import LabelGuesses
from attacks.label.mount import NO_IDS, LabelCoins, blind_success, guess_coins, label_coins
from dpzv_audit.statistics.families import gaussian_epsilon

from ..conftest import certified, mount, random_dataset, small_setting

DIRECT = ATTACKS["label_direct"]
AUDITS = 200
ALLOWED = int(binom.isf(1e-4, AUDITS, 0.05))
"""Of so many audits at 95% a correct build exceeds the truth in more than this with probability 1e-4."""


def dealt(trials=4, records=200, classes=4, seed=0):
    setting = small_setting(DIRECT, data=random_dataset(records, classes=classes), trials=trials)
    return label_coins(DIRECT, replace(setting, seed=seed))


def guesses_of(scores):
    """Guesses about all records in order, from scores (K, N, classes)."""
    found = torch.from_numpy(scores).unsqueeze(0)
    ids = torch.arange(scores.shape[1]).expand(1, scores.shape[0], -1)
    return LabelGuesses(found.argmax(3), ids, found)


def test_labels_are_one_of_two_permutations_by_fair_coins():
    data = random_dataset(records=300)
    coins = dealt(trials=20, records=300)
    for place in (0, 1):
        counts = [np.bincount(row, minlength=4).tolist() for row in coins.candidates[:, :, place]]
        assert counts == [np.bincount(data.train.labels, minlength=4).tolist()] * 20
    assert abs(coins.coins.mean() - 0.5) < 5 * 0.5 / np.sqrt(coins.coins.size)  # fails with probability 6e-7
    assert np.array_equal(coins.labels, np.where(coins.coins == 1, coins.candidates[..., 1], coins.candidates[..., 0]))
    assert np.array_equal(coins.plays, coins.candidates[..., 0] != coins.candidates[..., 1])
    again = dealt(trials=3, records=300)
    assert np.array_equal(coins.coins[:3], again.coins)  # a trial's coins do not depend on how many there are
    assert not np.array_equal(coins.coins[0], coins.coins[1])


def test_a_granted_label_plays_no_game_and_tells_of_no_coin():
    spec = ATTACKS["label_completion"]
    data = random_dataset(records=80)
    setting = small_setting(spec, "split", data, trials=5, first=5, options_of_attack={"labels_per_class": 3})
    coins = label_coins(spec, setting)
    ids = coins.granted.ids.numpy()
    assert ids.shape == (5, 12)
    assert not np.take_along_axis(coins.plays, ids, 1).any()
    assert np.array_equal(coins.granted.labels.numpy(), np.take_along_axis(coins.labels, ids, 1))
    # They are drawn from the first candidates alone, whatever the coins.
    first = torch.from_numpy(np.ascontiguousarray(coins.candidates[..., 0]))
    assert np.array_equal(few_labels(spec, first, setting).ids.numpy(), ids)
    assert coins.plays.sum() > 5 * 40


def test_scores_are_the_evidence_for_the_second_candidate_summed_over_answers():
    coins = LabelCoins(
        np.array([[[0, 1], [2, 0], [1, 1], [0, 2]]]),
        np.array([[1, 0, 0, 0]]),
        np.array([[True, True, False, True]]),
        None,
    )
    scores = torch.tensor([[[[0.1, 0.5, 0.0], [0.2, 0.0, 0.9]]], [[[0.0, 1.0, 0.0], [9.0, 9.0, 1.0]]]]).double()
    ids = torch.tensor([[[0, 1]], [[0, 2]]])
    game, why = guess_coins(LabelGuesses(scores.argmax(3), ids, scores), coins)
    assert why == ""
    assert game.on_one == pytest.approx([0.4 + 1.0])  # record 0, twice
    assert game.on_zero == pytest.approx([0.2 - 0.9])  # record 1; 2 plays no game, 3 was never guessed
    assert game.neighbours == "replace-label"
    named, _ = guess_coins(LabelGuesses(scores.argmax(3), ids), coins)
    assert named.on_one.tolist() == [2.0]
    assert named.on_zero.tolist() == [-1.0]


def test_guesses_about_places_of_unknown_records_tell_no_coin():
    coins = dealt()
    guesses = guesses_of(np.zeros((4, 200, 4)))
    assert guess_coins(replace(guesses, ids=None), coins) == (None, NO_IDS)
    outcome = mount(DIRECT, "vafl", adversary="eavesdropper")
    assert outcome.game is None
    assert outcome.no_game == NO_IDS


def test_a_model_that_diverged_is_no_evidence_and_no_error():
    coins = dealt()
    scores = np.random.default_rng(0).random((4, 200, 4))
    scores[0], scores[1, :, 1] = np.nan, np.inf
    game, _ = guess_coins(guesses_of(scores), coins)
    assert np.isfinite(np.concatenate((game.on_one, game.on_zero))).all()
    assert (game.on_one == 0.0).sum() > 20
    assert certified(game) >= 0.0


def nothing(coins, rng):
    """Scores that depend on features and on luck that all records of a training share, and on no coin."""
    trials, records = coins.coins.shape
    by_record = 3.0 * rng.standard_normal((1, records, 4))
    shared = 5.0 * rng.standard_normal((trials, 1, 4)) * rng.standard_normal((trials, records, 1))
    return by_record + shared


def randomised_response(coins, rng, *, epsilon=1.0, failing=0.0):
    """Label-private scores at `epsilon`: the trained candidate is named with odds e^epsilon; some trainings fail whole.

    A mixture of a private mechanism and of one that says nothing is as private, however much its records share.
    """
    trials, records = coins.coins.shape
    answers = np.where(rng.random((trials, records)) < 1.0 / (1.0 + np.exp(-epsilon)), coins.coins, 1 - coins.coins)
    lost = rng.random((trials, 1)) < failing
    answers = np.where(lost, rng.integers(2, size=answers.shape), answers)
    named = np.take_along_axis(coins.candidates, answers[:, :, None], 2)
    scores = np.zeros((trials, records, 4))
    np.put_along_axis(scores, named, 1.0, 2)
    return scores + 1e-3 * rng.random(scores.shape)


@pytest.mark.parametrize(
    ("mechanism", "truth"),
    [
        pytest.param(nothing, 0.0, marks=pytest.mark.slow),
        (randomised_response, 1.0),
        (lambda coins, rng: randomised_response(coins, rng, failing=0.5), 1.0),
        pytest.param(lambda coins, rng: randomised_response(coins, rng, epsilon=4.0), 4.0, marks=pytest.mark.slow),
    ],
)
def test_the_bound_exceeds_the_truth_in_at_most_one_audit_of_twenty(mechanism, truth):
    rng = np.random.default_rng(7)
    exceeded = 0
    for seed in range(AUDITS):
        coins = dealt(trials=3, records=120, seed=seed)
        game, _ = guess_coins(guesses_of(mechanism(coins, rng)), coins)
        exceeded += certified(game, seed) > truth
    assert exceeded <= ALLOWED


def test_the_bound_has_power():
    rng = np.random.default_rng(7)
    coins = dealt(trials=20, records=1000)
    game, _ = guess_coins(guesses_of(randomised_response(coins, rng)), coins)
    assert 0.85 < certified(game) < 1.0


def test_an_attacker_that_knows_every_true_label_and_reads_no_message_certifies_nothing():
    """Through the real training: coins do not follow features or true labels, and few of 40 audits exceed 0."""
    data = random_dataset(records=64)

    def knows_the_world(view, known):
        guesses = DIRECT.infer(view, known)
        scores = torch.nn.functional.one_hot(torch.from_numpy(data.train.labels)[guesses.ids], 4).double()
        noise = torch.from_numpy(np.random.default_rng(known.seed).random(tuple(scores.shape)))
        return LabelGuesses(scores.argmax(3), guesses.ids, scores + 0.1 * noise)

    spec = replace(DIRECT, infer=knows_the_world)
    alarms = 0
    for seed in range(40):
        setting = small_setting(spec, "vafl", data, options={"epochs": 1}, trials=2, with_positive=False, seed=seed)
        outcome = spec.mount(setting)
        alarms += certified(outcome.game, seed) > 0.0
    assert alarms <= int(binom.isf(1e-4, 40, 0.05))


@pytest.mark.parametrize("method", ["split", "vafl"])
def test_first_order_methods_lose_their_labels_and_the_bound_says_so(method, digits):
    outcome = mount(DIRECT, method, digits, options={"batch_size": 64, "epochs": 4})
    assert certified(outcome.game) > 6.0
    assert outcome.controls["shuffled_labels"].holds


def test_noise_on_gradients_lowers_the_bound(digits):
    bounds = []
    for sigma in (0.5, 5.0):
        options = {"batch_size": 64, "epochs": 4, "dp": "gradient", "dp_sigma": sigma}
        setting = small_setting(DIRECT, "vafl", digits, options=options, with_positive=False)
        bounds.append(certified(DIRECT.mount(setting).game))
    # A replaced label moves its record's gradient by sqrt(2) at most, which is read once.
    for sigma, bound in zip((0.5, 5.0), bounds, strict=True):
        assert 0.3 < bound < gaussian_epsilon(np.sqrt(2.0) / sigma, 1e-5)
    assert bounds[0] > 3.0 * bounds[1]


def test_chance_for_a_control_follows_what_its_guesses_favour():
    labels = np.array([0] * 6 + [1] * 3 + [2])
    always_zero = LabelGuesses(torch.zeros((1, 2, 10), dtype=torch.int64), None)
    assert blind_success(always_zero, labels, 3) == pytest.approx(0.6)
    like_the_labels = LabelGuesses(torch.from_numpy(labels).expand(1, 4, -1), None)
    assert blind_success(like_the_labels, labels, 3) == pytest.approx(prior_baseline(labels, 3))
