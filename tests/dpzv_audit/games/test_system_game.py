"""The game of labels on a system of the user's own: never above a known epsilon, near its ceiling without noise.

Where a true epsilon is exceeded at most `MOST` times is checked, a correct build fails with probability at most 1e-4:
`MOST` is the quantile of Binomial(games, 5%).
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from scipy.stats import binom

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.auditing import system_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.games.messages import NUMBERS, VOTES, PublicLabels, heard_in, turns
from dpzv_audit.games.system import SystemGame, fitted_score, play, public_labels
from dpzv_audit.systems.rehearsal import SystemCapabilities
from dpzv_audit.systems.run import SystemConfig, method_of
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from mechanisms import Training
from mechanisms.core.channel import Adversary, Message, View

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, system_game
from ...helpers.trainings import RELEASE, send

RECORDS = 160
ALPHA = 0.05
FALSE_ALARM = 1e-4
DELTA = 1e-5


def table(records=RECORDS, classes=2):
    """Features that say nothing, and labels that no game uses."""
    rng = np.random.default_rng(0)
    parts = [
        Records((rng.standard_normal((n, 3)).astype(np.float32),), np.arange(n) % classes) for n in (records, classes)
    ]
    return VerticalDataset("noise", *parts, classes, "one block", {})


def game_of(train, dataset=None, *, stated=None, **options):
    data = dataset or table()
    system = System("mine", train, stated=stated)
    task = Task.of(data)
    told = frozenset({"groups" if getattr(train, "func", train) is leaves else "gradient"})
    method = method_of(system, SystemCapabilities(simulated=False, told={1: told}), task)
    seed = options.pop("seed", 0)
    return SystemGame(Training(method=method, config=SystemConfig(), dataset=data, seed=seed), **options)


def gaussian(task, record, seed, *, sigma=2.0, rounds=1, width=4):
    """Two labels as opposite directions of length 1 under noise; the top is moved by the noised rows alone."""
    rng = np.random.default_rng(seed)
    top = rng.standard_normal(width)
    sign = 2.0 * task.labels[:, None] - 1.0
    for number in range(rounds):
        rows = sign * top / np.linalg.norm(top) + sigma * rng.standard_normal((task.records, width))
        send(task, record, rows, number=number)
        top = top + rows.mean(0)


def randomised_response(task, record, seed, *, epsilon=1.0):
    """Each label as it is with probability e^epsilon / (1 + e^epsilon): for its guesses the bound is tight."""
    lie = np.random.default_rng(seed).random(task.records) < 1.0 / (1.0 + np.exp(epsilon))
    send(task, record, (2.0 * (task.labels ^ lie) - 1.0)[:, None])


def leaves(task, record, seed, *, epsilon=1.0):
    """Four trees of two leaves, to one of which randomised response sends each label: the bound is tight for one."""
    rng = np.random.default_rng(seed)
    lie = rng.random((4, task.records)) < 1.0 / (1.0 + np.exp(epsilon / 4.0))
    for number, wrong in enumerate(lie):
        record.sent(number, 0, 1, "groups", task.labels ^ wrong, np.arange(task.records))


KNOWN = {
    "frozen top": (gaussian, epsilon_from_mu(2.0 / 2.0, DELTA)),
    "top moved by noised rows": (partial(gaussian, rounds=2), epsilon_from_mu(np.sqrt(2.0) * 2.0 / 2.0, DELTA)),
    "much noise": (partial(gaussian, sigma=40.0), epsilon_from_mu(2.0 / 40.0, DELTA)),
    "randomised response": (randomised_response, 1.0),
    "leaves by randomised response": (leaves, 1.0),
}


@cache
def score_for(name):
    return fitted_score(game_of(KNOWN[name][0], seed=1), 2)


def certified(played):
    return bound_of(*played.sides, "one-run", delta=DELTA, coin_flips=True, seed=3)


def times_above(name, games, score):
    """How often the certified epsilon of `games` games exceeds the true one; each has a training of its own."""
    game = game_of(KNOWN[name][0], seed=2)
    return sum(certified(play(game, score, 1, first=n)).epsilon_lower > KNOWN[name][1] for n in range(games))


@pytest.mark.parametrize("games", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KNOWN)
def test_a_true_epsilon_is_rarely_exceeded(name, games):
    """Given a score, games of trainings of their own are independent, so that their count is a binomial one."""
    assert times_above(name, games, score_for(name)) <= binom.isf(FALSE_ALARM, games, ALPHA)


@pytest.mark.parametrize("name", ["frozen top", "much noise"])
def test_a_score_that_peeks_at_the_coins_is_caught(name):
    """The planted bug: a fit that knows the coins of the audited training. It is above the truth every time."""
    games = 20
    game = game_of(KNOWN[name][0], seed=2)
    honest = score_for(name)
    number = iter(range(honest.trainings, honest.trainings + games))

    def peeking(heard):
        return honest(heard) + 100.0 * game.dealt(next(number))[1]

    peeking.trainings, peeking.facts, peeking.warning = honest.trainings, {}, ""
    truth = min(KNOWN[name][1], 2.0)  # so few coins can certify 3.7
    above = sum(certified(play(game, peeking, 1, first=n)).epsilon_lower > truth for n in range(games))
    assert above > binom.isf(FALSE_ALARM, games, ALPHA)


def test_the_fit_asks_for_no_coin_of_an_audited_training():
    asked = []

    class Watched(SystemGame):
        def dealt(self, number):
            public, coins = super().dealt(number)
            asked.append(number)
            return public, coins

    class Flipped(SystemGame):
        def dealt(self, number):
            public, coins = super().dealt(number)
            return public, coins if number < 2 else 1 - coins

    plain = game_of(gaussian)
    watched, flipped = (kind(plain.training) for kind in (Watched, Flipped))
    score = fitted_score(watched, 2)
    assert set(asked) == {0, 1}
    public, coins = plain.dealt(2)
    heard = heard_in(plain.trained(2, public, coins), public, 2)
    assert np.array_equal(score(heard), fitted_score(flipped, 2)(heard))
    # Nor does a coin take part in what an audited training is scored by, but through what it sent.
    assert np.array_equal(np.sort(score(heard)[public.given < 0]), np.sort(np.concatenate(play(plain, score, 1).sides)))


def test_what_is_public_is_drawn_without_coins_and_balanced():
    public = public_labels(1000, table(), stream(0, Purpose.CONTROL, 0))
    assert (public.candidates == [0, 1]).all()
    assert np.bincount(public.given[public.given >= 0]).tolist() == [50, 50]
    many = public_labels(2000, table(classes=10), stream(0, Purpose.CONTROL, 0))
    assert (many.candidates[:, 0] < many.candidates[:, 1]).all()
    assert len(np.unique(many.candidates, axis=0)) == 45
    assert (public_labels(8, table(classes=10), stream(0, Purpose.CONTROL, 0)).given >= 0).sum() == 4

    game = game_of(gaussian)
    public, coins = game.dealt(0)
    again, _ = game.dealt(0)
    assert np.array_equal(public.given, again.given)
    assert abs(coins.mean() - 0.5) < 4.0 * 0.5 / np.sqrt(len(coins))  # 4 standard deviations: 6.4e-5


def test_given_labels_are_no_coins():
    game = game_of(gaussian)
    public, coins = game.dealt(2)
    seen = {}

    def spy(task, record, seed):
        seen["labels"] = task.labels
        gaussian(task, record, seed)

    game_of(spy).trained(2, public, coins)
    plays = public.given < 0
    assert np.array_equal(seen["labels"], np.where(plays, coins, public.given))
    played = system_game(game, trainings=1, fit_trainings=2)
    assert sum(played.runs.values()) == plays.sum()
    assert len(played.in_scores) == coins[plays].sum()


def test_half_of_the_labels_are_given_where_clients_are_told_who_shares_a_node():
    game = game_of(leaves)
    assert game.given == RECORDS // 2
    public, coins = game.dealt(0)
    assert np.bincount(public.given[public.given >= 0]).tolist() == [RECORDS // 4] * 2
    heard = heard_in(game.trained(0, public, coins), public, 2)
    assert list(heard) == ["groups"]
    assert heard["groups"].numbers.shape == (RECORDS, len(VOTES))
    assert turns([heard, heard]) == ""


@pytest.mark.parametrize("classes", [2, 10])
def test_leaves_of_one_class_tell_every_coin(classes):
    def pure(task, record, seed):
        apart = np.random.default_rng(seed).integers(2, size=task.records)
        record.sent(0, 0, 1, "groups", 2 * task.labels + apart, np.arange(task.records))

    bound = certified(system_game(game_of(pure, table(400, classes)), trainings=2, fit_trainings=2))
    assert bound.ceiling > 5.0
    assert 0.8 * bound.ceiling < bound.epsilon_lower <= bound.ceiling


def logits(task, record, seed):
    """A server that sums: a record's gradient is softmax - one-hot, which names its label."""
    send(task, record, 1.0 / task.classes - np.eye(task.classes)[task.labels])


@pytest.mark.parametrize(
    ("train", "classes"),
    [(partial(gaussian, sigma=0.01), 2), (partial(gaussian, sigma=0.01, rounds=6), 2), (logits, 10)],
)
def test_without_noise_the_bound_reaches_its_ceiling(train, classes):
    bound = certified(system_game(game_of(train, table(400, classes)), trainings=2, fit_trainings=2))
    assert bound.ceiling > 5.0
    # The cut is a score of a pilot: the few scores between it and the gap count as errors.
    assert 0.98 * bound.ceiling < bound.epsilon_lower <= bound.ceiling


def test_how_often_a_record_is_drawn_may_tell_its_label():
    """A sampler that draws class 1 more often, about whose batches the messages are noise."""

    def oversampled(task, record, seed):
        rng = np.random.default_rng(seed)
        for number in range(40):
            ids = np.flatnonzero(rng.random(task.records) < 0.2 + 0.6 * task.labels)
            send(task, record, rng.standard_normal((len(ids), 2)), ids=ids, number=number)

    bound = certified(system_game(game_of(oversampled, table(400)), trainings=1, fit_trainings=2))
    assert bound.epsilon_lower > 3.0


def test_whom_a_message_is_about_may_tell_labels():
    def presence(task, record, seed):
        who = np.flatnonzero(task.labels)
        send(task, record, np.random.default_rng(seed).standard_normal((len(who), 4)), ids=who)

    bound = certified(system_game(game_of(presence), trainings=1, fit_trainings=2))
    assert bound.ceiling > 3.0
    assert 0.9 * bound.ceiling < bound.epsilon_lower <= bound.ceiling


def view_of(*messages):
    return View(Adversary("client", (1,)), list(messages))


def message(rows, *, kind="gradient", ids=None, round_=0):
    rows = torch.as_tensor(np.asarray(rows))[None]
    ids = torch.arange(rows.shape[1]) if ids is None else torch.as_tensor(ids)
    ends = (0, 1) if kind == "gradient" else (1, 0)
    return Message(round_, *ends, kind, rows, ids[None])


def test_numbers_of_a_record_do_not_turn_with_the_model(rng):
    public = public_labels(60, table(), rng)
    rows = [rng.standard_normal((60, 5)) for _ in range(6)]
    turn, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    plain, turned = (
        heard_in(view_of(*(message(part @ by, round_=r) for r, part in enumerate(rows))), public, 2)
        for by in (np.eye(5), turn)
    )
    (name,) = plain
    assert name == "gradient from 0 to 1"
    assert plain[name].numbers.shape == (60, NUMBERS)
    assert np.allclose(plain[name].numbers, turned[name].numbers)
    assert np.ptp(plain[name].numbers, axis=0).astype(bool).sum() > 20
    assert not np.allclose(plain[name].raw, turned[name].raw)


def test_padding_is_about_no_record_and_one_row_is_about_all_of_its_batch():
    public = PublicLabels(np.tile([0, 1], (4, 1)), np.array([0, 1, -1, -1]))
    padded = message([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], ids=[2, 3, -1])
    whole = message([[1.0, 0.0], [0.0, 2.0]], ids=[2, 3])
    one, other = (heard_in(view_of(m), public, 2)["gradient from 0 to 1"] for m in (padded, whole))
    assert np.array_equal(one.numbers, other.numbers)
    assert not one.raw[:2].any()
    loss = heard_in(view_of(message([[0.5]], kind="losses", ids=[0, 2])), public, 2)["losses from 1 to 0"]
    assert loss.raw[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_a_score_that_is_blind_says_so(rng):
    public = public_labels(20, table(), rng)
    same = rng.standard_normal((20, 3))

    def heard(rows):
        return heard_in(view_of(message(rows, kind="embeddings")), public, 2)

    assert turns([heard(same), heard(same)]) == ""
    assert "the model's start differs" in turns([heard(same), heard(same + 1.0)])
    assert "width of embeddings from 1 to 0 differs between trainings (2, 3)" in turns(
        [heard(same), heard(same[:, :2])]
    )
    assert "the model's start differs" in turns([heard_in(view_of(message(same)), public, 2)] * 2)
    assert fitted_score(game_of(gaussian), 2).warning == ""  # its embeddings are the features: they are the same

    def elsewhere(task, record, seed):
        turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
        gaussian(replace(task, features=(task.features[0] @ turn,)), record, seed)

    score = fitted_score(game_of(elsewhere), 2)
    assert "the model's start differs" in score.warning
    assert not score.widths


@pytest.mark.parametrize("alike", [True, False])
def test_coordinates_are_read_where_trainings_start_alike(alike):
    """A code of which given records show little: each of its 32 words for a label is a coordinate of its own."""

    def coded(task, record, seed):
        ids = np.arange(task.records)
        start = 1.0 if alike else 1.0 + seed % 1000
        record.sent(0, 1, 0, "embeddings", start * task.features[0], ids)
        record.sent(0, 0, 1, "gradient", np.eye(64)[32 * task.labels + ids % 32], ids)

    score = fitted_score(game_of(coded), 4)
    assert bool(score.widths) == alike
    bound = certified(play(game_of(coded), score, 2))
    assert (bound.epsilon_lower > 0.8 * bound.ceiling) == alike


def test_what_cannot_be_scored_is_one_line():
    def silent(task, record, seed):
        record.sent(0, 0, 1, "scalar", [task.labels.sum()])

    with refused("no message that the client sees has ids"):
        fitted_score(game_of(silent), 1)
    with refused(r"coins to fit a score on; use 40 at least"):
        fitted_score(game_of(gaussian, table(30)), 1)
    with refused("adversary is 'server'; use one of client, colluding-clients"):
        game_of(gaussian, adversary="server")


def test_the_stated_release_gets_its_bound_beside_the_game():
    stated = {**RELEASE, "batch_size": RECORDS, "noise": "grid"}
    game = game_of(gaussian, stated=lambda task: stated)
    (release,) = game.training.method.releases(game.training.config, game.training.deployment())
    assert release.sigma == 2.0

    def audited(epsilon):
        outcome = system_outcome(
            game.training, "client", AuditPlan(runs=0), epsilon=epsilon, trainings=2, fit_trainings=2
        )
        return outcome.result.privacy

    privacy = audited(5.0)
    assert privacy.upper == pytest.approx(epsilon_from_mu(1.0, DELTA), rel=1e-6)
    assert 0.0 <= privacy.empirical_lower <= privacy.upper
    assert (privacy.neighbours, privacy.verdict) == ("replace-label", "supported")
    assert audited(1.0).verdict == "overclaimed"


def test_all_clients_together_read_what_each_is_sent():
    def to_the_second(task, record, seed):
        send(task, record, np.array([1.0, -2.0])[task.labels][:, None], client=2)

    data = load("breast-cancer", clients=2)
    with refused("no message that the client sees has ids"):
        fitted_score(game_of(to_the_second, data), 1)
    together = game_of(to_the_second, data, adversary="colluding-clients")
    bound = certified(system_game(together, trainings=1, fit_trainings=2))
    assert bound.epsilon_lower == bound.ceiling > 4.0
