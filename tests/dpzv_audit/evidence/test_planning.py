"""Plans of trainings on a system: how many there is time for, by what they take and by nothing that they show."""

import time
from dataclasses import replace

import numpy as np
import pytest

from attacks import ATTACKS
from attacks.core.setting import AttackSetting
from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.evidence.attacks import game_beside
from dpzv_audit.evidence.choosing import lacking, possible
from dpzv_audit.evidence.planning import (
    Pace,
    TimeLeft,
    plan_attacks,
    plan_game,
    trainings_of,
    trainings_of_strongest,
    weights_of,
)
from dpzv_audit.evidence.sentences import said
from dpzv_audit.games.system import SystemGame
from dpzv_audit.results import CoinGameBeside
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import dataset_of

SECONDS = 20.0


def train(task, record, seed):
    import torch

    x, y = task.torch()
    w = torch.randn(4, 2, requires_grad=True)
    for r, ids in enumerate(torch.randperm(len(y)).split(40)):
        h = [record.cut(m + 1, r, ids)(x[m][ids] @ w[2 * m : 2 * m + 2]) for m in range(2)]
        torch.nn.functional.cross_entropy(sum(h), y[ids]).backward()
    return {"predict": lambda blocks: torch.cat(blocks, 1) @ w.detach()}


@pytest.fixture(scope="module")
def base():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 4)).astype(np.float32)
    data = dataset_of({"features": [x[:, :2], x[:, 2:]], "labels": (x.sum(1) > 0).astype(int)}, "data")
    method, config = prepared(System("mine:train", train), data, 0)
    capabilities = replace(method.capabilities, seconds=SECONDS)
    return AttackSetting(method=replace(method, capabilities=capabilities), config=config, dataset=data, trials=8)


@pytest.fixture
def attacks(base):
    settings = [
        (spec, replace(base, adversary=by, options={"shadows": 16} if "shadows" in spec.setup.options else {}))
        for spec in (ATTACKS[name] for name in ATTACKS)
        for by in spec.adversaries
    ]
    return [(spec, setting) for spec, setting in settings if lacking(spec, possible(spec, setting)[0]) is None]


def test_where_there_is_time_nothing_is_left_out(attacks):
    plan = plan_attacks(attacks, Pace(), confidence=0.95)
    assert list(plan.mounted) == attacks
    assert not plan.left_out
    assert plan.count == trainings_of(attacks).total()
    (line,) = plan.lines
    assert line.startswith(
        f"about {plan.count} trainings, about {plan.count * SECONDS / 60:.0f} min; their scores can certify"
    )


def test_where_time_is_short_there_are_fewer_and_it_is_said(base, attacks):
    game = SystemGame(base)
    short = plan_attacks(attacks, Pace(minutes=12.0), confidence=0.95, game=game)
    assert short.seconds <= 0.75 * 720.0
    assert {spec.name for spec, _ in short.left_out} == {"membership_loss", "membership_lira", "membership_rmia"}
    assert {setting.trials for _, setting in short.mounted} == {2}
    assert short.game is game
    assert short.lines[1] == (
        "the budget of 12 minutes: 2 trainings of each attack, not 8; "
        "left out: membership_loss, membership_lira, membership_rmia"
    )
    whole = plan_attacks(attacks, Pace(), confidence=0.95, game=game)
    assert whole.count > short.count
    assert 0.0 < short.most <= whole.most
    with pytest.raises(
        InputError, match=r"max_minutes is 0.1; use .+ or more: the least is 2 trainings, each of which"
    ):
        plan_attacks(attacks, Pace(minutes=0.1), confidence=0.95)


def test_workers_and_pilots_count(attacks):
    one = plan_attacks(attacks, Pace(), confidence=0.95)
    four = plan_attacks(attacks, Pace(jobs=4), confidence=0.95)
    assert four.count == one.count
    assert one.seconds / 4 <= four.seconds < one.seconds / 3
    assert "by 4 workers" in four.lines[0]
    (norm,) = [attack for attack in attacks if attack[0].name == "label_norm"]
    # Four of the pilot that chooses the client, eight of the attack but for the rehearsal, eight of its control.
    assert trainings_of([norm]).total() == 4 + 7 + 8
    assert trainings_of_strongest([norm]).total() == 4 + 7 + 8
    spec, setting = norm
    assert trainings_of([(spec, replace(setting, clients=(2,)))]).total() == 7 + 8


def test_where_no_game_is_played_the_command_that_plays_it_is_named(base, attacks):
    assert game_beside(base, attacks) == (SystemGame(base), None)
    spec, setting = attacks[0]
    by_server = [(spec, replace(setting, adversary="server"))]
    assert game_beside(base, by_server) == (None, "it is played by clients, not by the server")
    by_other = [(spec, replace(setting, clients=(2,)))]
    assert game_beside(base, by_other) == (None, "it is played by client 1")
    (pooled, _) = game_beside(base, [(spec, replace(setting, adversary="colluding-clients"))])
    assert pooled.adversary == "colluding-clients"
    left_out = CoinGameBeside(
        reason="the budget of 5 minutes holds too few trainings", command="dpzv-audit audit system a:b"
    )
    why = "the budget of 5 minutes holds too few trainings"
    plays = "The command dpzv-audit audit system a:b plays it."
    assert said("coin_game", left_out) == f"No coin game was played: {why}. {plays}"


def test_a_game_has_fewer_trainings_of_the_fit_first(base):
    def planned(minutes):
        return plan_game(SystemGame(base), Pace(minutes=minutes), confidence=0.95, trainings=2, fit_trainings=4)

    assert planned(10.0)[1:] == (2, 4)
    assert planned(2.3)[1:] == (2, 2)
    assert planned(1.9)[1:] == (1, 2)
    assert planned(1.9)[0].lines[1] == "the budget of 1.9 minutes: 1 audited and 2 of the fit, not 2 and 4"
    assert planned(1.4)[1:] == (1, 1)
    with pytest.raises(InputError, match="the least is 3 trainings"):
        planned(0.5)


def test_time_left_follows_what_steps_weigh(base, attacks, monkeypatch):
    weights = weights_of(attacks, Pace())
    assert sum(weights) == pytest.approx(5.0 * len(attacks) + trainings_of(attacks).total() * SECONDS)
    left = TimeLeft([30.0, 10.0, 20.0], began=0.0)
    monkeypatch.setattr("dpzv_audit.evidence.planning.time.monotonic", lambda: 60.0)
    assert [left.after(done) for done in range(3)] == ["", ", about 60 s left", ", about 30 s left"]


def test_the_end_of_the_time_is_one_line():
    words = "max_minutes is 1e-06: over before the attack was done; use more"
    with pytest.raises(AuditError, match=words), Pace(minutes=1e-6).lasting("the attack"):
        time.sleep(10.0)
