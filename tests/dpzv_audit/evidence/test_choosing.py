"""Pilots: which client looks, which attack is the strongest, and that numbers then measured owe them nothing."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from attacks import ATTACKS, AttackOutcome, AttackSetting, attack_named
from attacks.core import setting as setting_module
from attacks.core.setting import COLLUDING, Together
from attacks.core.spec import DoesNotApply, Needs, Setup
from dpzv_audit.base.findings import STRONGEST, Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.base.store import Store
from dpzv_audit.claims import attack
from dpzv_audit.data import load
from dpzv_audit.evidence.bounding import silent
from dpzv_audit.evidence.choosing import PILOT, _piloted, named, pilot_seed, possible, strongest, worst_client
from dpzv_audit.evidence.gathering import Question, gather
from mechanisms import METHODS

from ...helpers.refusals import refused


@pytest.fixture(scope="module")
def setting():
    config = METHODS["dpzv"].configure(top_model=False, calibration="none", epochs=20)
    return AttackSetting(method=METHODS["dpzv"], config=config, dataset=load("digits"), trials=2)


SILENT = SimpleNamespace(correct=np.zeros((1, 0)), loss=np.zeros(1), history=(), traffic=())
"""A training without predictions."""


def pretended(name, success, *, chance=0.1, baselines=None, adversaries=("client",), played=None):
    """Return an attack whose success is a function of its setting, and which notes the settings it is mounted on."""

    def mount(spec, setting):
        if played is not None:
            played.append((name, setting))
        value = success(setting)
        found = Interval(value=value, low=value, high=value, n=1, confidence=0.95)
        return AttackOutcome(
            success=found, baselines=baselines or {}, controls={}, trained=SILENT, plan=None, chance=chance
        )

    base = attack_named("membership_loss")
    setup = Setup(rounds=lambda spec, setting: 2)
    return replace(base, name=name, adversaries=adversaries, needs=Needs(), setup=setup, mounted_by=mount)


def test_the_worst_client_sees_the_middle_of_a_digit(setting):
    """Clients 1 and 4 hold the margins, which are blank; which finds most is told by trainings of another seed."""
    chosen, tried = worst_client(attack_named("label_scalar"), setting)
    assert [one.clients for one in tried] == [[1], [2], [3], [4]]
    assert chosen.clients[0] in (2, 3)
    best = max(tried, key=lambda one: one.success)
    assert best.clients == list(chosen.clients)
    assert best.success > 2 * tried[0].success
    assert chosen.seed == setting.seed
    assert pilot_seed(setting.seed) != setting.seed


@pytest.mark.parametrize(
    ("name", "trainings"), [("label_scalar", 1), ("label_completion", 1), ("label_direct", 4)], ids=str
)
def test_clients_that_follow_the_protocol_look_at_one_training(setting, monkeypatch, name, trainings):
    """A client of `label_direct` asks, so that each has a training of its own; what pilots find is the same."""
    spec = attack_named(name)
    few = replace(setting, config=setting.config.model_copy(update={"epochs": 8}))
    trained = []
    train = setting_module.train
    monkeypatch.setattr(setting_module, "train", lambda *given: trained.append(given) or train(*given))
    _, tried = worst_client(spec, few)
    assert len(trained) == trainings
    alone = [_piloted(spec, one, silent, None, Together(())) for one in possible(spec, few)]
    assert tried == alone
    assert len(trained) == trainings + 4


@pytest.mark.parametrize(
    "changes", [{"clients": (1,)}, {"adversary": COLLUDING}, {"adversary": "eavesdropper"}, {"adversary": "server"}]
)
def test_who_is_named_or_one_of_no_others_is_not_tried(setting, changes):
    one = replace(setting, **changes)
    spec = pretended("guess", lambda setting: 0.5, played=(played := []))
    assert possible(spec, one) == [one]
    assert worst_client(spec, one) == (one, [])
    assert not played


def test_of_several_that_collude_each_may_look_alone(setting):
    several = replace(setting, clients=(2, 4))
    assert [one.clients for one in possible(attack_named("label_scalar"), several)] == [(2,), (4,)]
    assert possible(attack_named("label_scalar"), replace(several, adversary=COLLUDING)) == [
        replace(several, adversary=COLLUDING)
    ]


def test_a_pilot_is_on_a_seed_of_its_own_and_without_controls(setting):
    played = []
    worst_client(pretended("guess", lambda setting: 0.5, played=played), replace(setting, trials=64))
    for _, one in played:
        assert one.seed == pilot_seed(setting.seed)
        assert one.trials == PILOT
        assert one.pilot
        assert not one.with_positive


def test_of_clients_that_find_as_much_the_first_looks(setting):
    chosen, _ = worst_client(pretended("guess", lambda setting: 1.0), setting)
    assert chosen.clients == (1,)


def test_the_strongest_finds_most_of_what_needs_an_attack(setting, tmp_path):
    """One finds more, but no more than its baseline; what a pilot found is kept, and taken up."""
    played = []
    slope, needy = (pretended(name, lambda setting: 1.0, played=played) for name in ("slope", "needy"))
    specs = [
        pretended("features", lambda setting: 0.9, baselines={"raw": 0.9}, played=played),
        pretended("leak", lambda setting: 0.2 + 0.1 * setting.client, baselines={"same": 0.1}, played=played),
        replace(slope, goal=replace(slope.goal, reveals="gradients")),
        replace(needy, needs=Needs(conditions=(lambda setting: "it lacks a key",))),
    ]
    mounted = [(spec, setting) for spec in specs]
    spec, one, tried = strongest(mounted, store=Store(tmp_path))
    assert (spec.name, one.clients) == ("leak", (4,))
    assert len(played) == 8
    reasons = {found.attack: found.reason for found in tried if found.reason}
    assert set(reasons) == {"slope", "needy"}
    assert reasons["needy"] == "it lacks a key"
    again = strongest(mounted, store=Store(tmp_path))
    assert (again[0].name, again[1].clients, again[2]) == (spec.name, one.clients, tried)
    assert len(played) == 8
    with pytest.raises(DoesNotApply, match=r"no attack applies: .*needy: it lacks a key"):
        strongest([(specs[3], setting)])


def test_a_claim_counts_no_attack_that_chance_alone_refutes(setting):
    """Half of all members are guessed by knowing nothing: a claim of 0.2 is about labels."""
    members = pretended("members", lambda setting: 0.95, chance=0.5)
    labels = pretended("labels", lambda setting: 0.15)
    assert strongest([(members, setting), (labels, setting)], claimed=0.2)[0].name == "labels"
    assert strongest([(members, setting), (labels, setting)], claimed=0.6)[0].name == "members"


def test_the_strongest_of_an_adversary_is_of_what_it_can_mount():
    """A client that deviates, or colludes, can do what an honest one does."""
    reach = {one: (one, "client") for one in ("malicious-client", COLLUDING)}
    for adversary in ("client", "malicious-client", COLLUDING, "release", "server"):
        assert {(spec.name, by) for spec, by in named(STRONGEST, adversary)} == {
            (name, by)
            for name in ATTACKS
            for by in reach.get(adversary, (adversary,))
            if by in ATTACKS[name].adversaries and ATTACKS[name].goal.least_success >= 0
        }
    ((spec, by),) = named("label_direct", COLLUDING)
    assert (spec.name, by) == ("label_direct", COLLUDING)
    with refused("mounts no attack"):
        named(STRONGEST, "nobody")
    with refused(r"label_scalar"):
        named("label_scalr", "client")


@pytest.mark.parametrize("files", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_true_claim_about_the_strongest_is_refuted_no_more_often_than_any(setting, files, monkeypatch):
    """Labels of 200 records by coins, of which six attacks by four clients each find 0.55 on average: as is claimed.

    The pilot picks the luckiest of 24. A claim tested at 0.05 is refuted in at most the 1 - 1e-4 quantile of a binomial
    law of so many files. So is a claim held that lies 1e-6 below the mean of all 24.
    """

    def coins(name):
        def success(setting):
            draws = stream(setting.seed, Purpose.SIMULATION, len(name), setting.client)
            return draws.binomial(200 * setting.trials, 0.55) / (200 * setting.trials)

        return pretended(name, success, chance=0.5)

    specs = [coins("a" * n) for n in range(1, 7)]
    monkeypatch.setattr(attack, "named", lambda name, adversary: [(spec, adversary) for spec in specs])
    claim = SimpleNamespace(attack=STRONGEST, adversary="client", success_at_most=0.55)
    refuted = held = 0
    for number in range(files):
        one = replace(setting, trials=4, seed=int(np.uint32(number * 1_000)))
        subject = attack.attacked(claim, one, positives=0)
        found = gather(subject, Question(alpha=0.05, stop=0.05, success_at_most=0.55, max_trials=64))
        refuted += found.p_value <= 0.05
        false = gather(subject, Question(alpha=0.05, stop=0.05, success_at_most=0.55 - 1e-6, max_trials=64))
        upper = false.attack.success_upper(0.05)
        held += upper is not None and upper <= 0.55 - 1e-6
    assert refuted <= binom.ppf(1 - 1e-4, files, 0.05)
    assert held <= binom.ppf(1 - 1e-4, files, 0.05)
