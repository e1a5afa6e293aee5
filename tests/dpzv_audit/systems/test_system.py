"""A system of the user's own is a method: what it records reaches attacks as a built-in method's messages do."""

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attacks import ATTACKS, AttackSetting
from dpzv_audit.accounting import Release
from dpzv_audit.base.errors import InputError
from dpzv_audit.data import load
from dpzv_audit.systems.messages import Sent
from dpzv_audit.systems.rehearsal import apart, rehearse
from dpzv_audit.systems.replay import replay
from dpzv_audit.systems.run import SystemConfig, method_of
from dpzv_audit.systems.stated import data_of, stated_release, system_at
from dpzv_audit.systems.system import System, SystemFailed, seed_of
from dpzv_audit.systems.task import Task
from mechanisms import METHODS, train
from mechanisms.core.capabilities import Capabilities
from mechanisms.core.context import Deployment, RunContext, TrainingData

from ...helpers.refusals import refused
from ...helpers.trainings import RELEASE, send

DATA = load("breast-cancer")
TASK = Task.of(DATA)


def parts(task, clients=3, width=4):
    """Return the features of so many clients and the labels, a bottom model for each client and a top model."""
    x, y = task.torch()
    x = x[:clients]
    return x, y, [nn.Linear(block.shape[1], width) for block in x], nn.Linear(width * clients, task.classes)


def learn(top, h, y):
    nn.functional.cross_entropy(top(torch.cat(h, 1)), y).backward()


def rehearsed(training, name="a system"):
    return rehearse(System(name, training), TASK, 0)


QUICK = {"label_completion": {"steps": 200}}
"""Options under which an attack that fits models of its own takes a second."""


def two_party(task, record, seed, *, batch=60, epochs=3, top=True):
    """A training as a user writes one; each client has a linear model."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y, bottoms, head = parts(task, width=4 if top else task.classes)
    parameters = [p for model in [*bottoms, *([head] if top else [])] for p in model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.05)

    def logits(h):
        return head(torch.cat(h, 1)) if top else sum(h)

    round_ = 0
    for _ in range(epochs):
        for ids in torch.randperm(len(y), generator=generator).split(batch):
            h = [record.cut(m, round_, ids)(bottoms[m - 1](x[m - 1][ids])) for m in (1, 2, 3)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits(h), y[ids]).backward()
            optimizer.step()
            round_ += 1

    def predict(blocks):
        return logits([model(block) for model, block in zip(bottoms, blocks, strict=True)])

    return {"predict": predict, "clients": dict(enumerate(bottoms, start=1))}


def mounted(system, attack, *, adversary=None, trials=3, seed=5, **options):
    spec = ATTACKS[attack]
    config = SystemConfig(top_model=system.top_model)
    method = method_of(system, rehearse(system, TASK, seed), TASK)
    setting = AttackSetting(
        method=method,
        config=config,
        dataset=DATA,
        adversary=adversary or spec.adversaries[0],
        trials=trials,
        seed=seed,
        options=options,
        with_positive=False,  # it is the same whatever is attacked
    )
    return spec.mount(setting)


@pytest.mark.parametrize(
    ("attack", "least"),
    [("label_direction", 0.99), ("label_norm", 0.55), ("label_spectral", 0.9), ("label_completion", 0.8)],
)
def test_attacks_on_a_system_come_with_controls_and_a_game(attack, least):
    outcome = mounted(System("two_party", two_party), attack, **QUICK.get(attack, {}))
    assert outcome.success.value > least
    assert all(control.holds for control in outcome.controls.values())
    assert outcome.game is not None
    assert (outcome.game.on_one.mean() > outcome.game.on_zero.mean()) or attack in (
        "label_spectral",
        "label_completion",
    )
    assert 0.85 < outcome.trained.accuracy.mean() <= 1.0


def test_summed_logits_name_every_label_whatever_the_last_batch_holds():
    """448 records in batches of 60: the last has 28, and each record's label is read once."""
    outcome = mounted(System("sums", lambda *given: two_party(*given, top=False), top_model=False), "label_direct")
    assert outcome.success.value == 1.0
    assert outcome.success.n == 3 * TASK.records


def test_embeddings_with_more_axes_reach_attacks_flattened():
    """Three tokens of four numbers a record travel, and one cosine compares all twelve."""

    def training(task, record, seed):
        x, y = task.torch()
        tokens = nn.Sequential(nn.Linear(x[0].shape[1], 12), nn.Unflatten(1, (3, 4)))
        head = nn.Sequential(nn.Flatten(), nn.Linear(12, task.classes))
        h = record.cut(1, 0, torch.arange(len(y)))(tokens(x[0]))
        nn.functional.cross_entropy(head(h), y).backward()
        assert h.shape == (len(y), 3, 4)

    system = System("tokens", training)
    assert mounted(system, "label_direction").success.value > 0.99
    played = [system.play(TASK, seed, "a training").trial for seed in (0, 1)]
    sent = []
    replay(played, SimpleNamespace(send=sent.append, note=None), "tokens")
    assert [(one.kind, tuple(one.payload.shape)) for one in sent] == [
        ("embeddings", (2, TASK.records, 12)),
        ("gradient", (2, TASK.records, 12)),
    ]


def test_a_label_party_with_features_of_its_own_is_attacked_by_the_others():
    """Block 2 is the server's: its bottom model is part of its top, and nothing of it passes a cut."""

    def training(task, record, seed):
        (client, own), y, (bottom, own_bottom), top = parts(task, 2)
        optimizer = torch.optim.Adam([p for m in (bottom, own_bottom, top) for p in m.parameters()], lr=0.05)
        for number, ids in enumerate(torch.randperm(len(y)).split(64)):
            h = record.cut(1, number, ids)(bottom(client[ids]))
            optimizer.zero_grad()
            learn(top, [h, own_bottom(own[ids])], y[ids])
            optimizer.step()

        def predict(blocks):
            return top(torch.cat([bottom(blocks[0]), own_bottom(blocks[1])], 1))

        return {"predict": predict, "clients": {1: bottom}}

    system = System("own_block", training)
    record = system.play(TASK, 0, "a training").record
    assert {(one.sender, one.receiver) for one in record.messages} == {(1, 0), (0, 1)}
    outcome = mounted(system, "label_direction")
    assert outcome.success.value > 0.99
    assert outcome.controls["shuffled_labels"].holds
    pooled = mounted(system, "label_completion", adversary="colluding-clients", **QUICK["label_completion"])
    assert pooled.success.value > 0.8, "without the features of the label party, which does not collude"


@pytest.mark.parametrize(("adversary", "parties"), [("client", (2,)), ("colluding-clients", (2, 3))])
def test_the_label_party_is_none_of_the_clients_that_look(adversary, parties):
    method = replace(METHODS["split"], capabilities=Capabilities(simulated=False, apart=frozenset({1})))
    setting = AttackSetting(method=method, config=SystemConfig(), dataset=DATA, adversary=adversary)
    assert setting.dataset.clients == 3
    assert setting.parties == parties


def test_who_exchanges_messages_is_none_of_the_label_party():
    assert apart([Sent(0, 3, 0, "embeddings", "m0", "i0"), Sent(0, 0, 3, "gradient", "m1", "i0")], 3) == {1, 2}
    assert apart([], 3) == frozenset(), "a transcript without messages says nothing of who is there"


def test_an_attack_says_which_line_would_unlock_it():
    def silent(task, record, seed):
        two_party(task, record, seed)

    with refused(r'returns no model of client 1: let it return {"clients": {1: bottom}}'):
        mounted(System("silent", silent), "label_completion")

    def one_way(task, record, seed):
        x, y = task.torch()
        record.sent(0, 1, 0, "embeddings", x[0][:, :3] * y[:, None], range(task.records))

    with refused(r"its server sends no gradient of a record; record\.cut where embeddings leave"):
        mounted(System("one_way", one_way), "label_norm")
    with refused("by the protocol of a built-in method; a system's rounds are its own"):
        mounted(System("sums", lambda *given: two_party(*given, top=False), top_model=False), "label_probe")


@pytest.mark.parametrize("attack", ["label_direction", "label_norm"])
def test_a_recording_of_a_built_in_method_gives_the_numbers_of_the_engine(attack):
    """The method trained through the recorder, a replica at a time, and as the stack that it is."""
    seed, trials = 3, 4
    config = METHODS["vafl"].configure(epochs=2, batch_size=35)
    replica_of = {seed_of(seed, k): k for k in range(2 * trials)}

    def vafl(task, record, given):
        labels = torch.from_numpy(task.labels)
        x = tuple(map(torch.from_numpy, task.features))
        test = tuple(map(torch.from_numpy, task.test_features))
        data = TrainingData(x, labels, test, torch.from_numpy(task.test_labels), task.classes)

        def on_message(m):
            if m.round >= 0:
                record.sent(m.round, m.sender, m.receiver, m.kind, m.payload[0], m.ids[0])

        observer = SimpleNamespace(on_message=on_message)
        train(
            METHODS["vafl"], data, config, RunContext(seed=seed, replicas=(replica_of[given],), observers=(observer,))
        )

    setting = AttackSetting(method=METHODS["vafl"], config=config, dataset=DATA, trials=trials, seed=seed)
    engine = ATTACKS[attack].mount(setting)
    system = mounted(System("vafl", vafl), attack, trials=trials, seed=seed)
    # Routines of the processor may multiply one replica otherwise than a stack of several: in the last digits scores
    # differ then, and hardly a rank does.
    np.testing.assert_allclose(system.game.on_one, engine.game.on_one, rtol=1e-6)
    assert system.success.value == pytest.approx(engine.success.value, abs=1e-3)
    control = engine.controls["shuffled_labels"]
    assert system.controls["shuffled_labels"].value == pytest.approx(control.value, abs=1e-3)


def broken(what):
    """A training that goes wrong in one way."""

    def training(task, record, seed):
        x, y = task.torch()
        h = x[0][:8, :3] * y[:8, None]
        ids = range(8)
        if what == "raises":
            raise RuntimeError("no such\nlayer")
        if what == "exits":
            raise SystemExit(0)
        if what == "is cancelled":
            raise asyncio.CancelledError
        if what == "raises in a thread":
            thread = threading.Thread(target=torch.zeros(2).reshape, args=(3,))
            thread.start()
            thread.join()
        if what == "raises what has no words":
            raise type("Wordless", (Exception,), {"__str__": None})
        if what == "predicts words":
            return {"predict": lambda blocks: ["yes"] * len(blocks[0])}
        if what == "predicts nan":
            return {"predict": lambda blocks: blocks[0] * float("nan")}
        if what == "hangs":
            time.sleep(60)
        if what == "hangs while a class is made":
            slow = type("Slow", (), {"__set_name__": lambda self, owner, name: time.sleep(60)})
            type("Made", (), {"slow": slow()})
        if what == "unseeded":
            h = h + torch.from_numpy(np.random.default_rng().standard_normal((8, 3)))
        if what == "ignores labels":
            h = x[0][:8, :3]
        if what == "nan":
            h = h / 0.0
        if what == "gradient first":
            record.sent(0, 0, 1, "gradient", h, ids)
        if what == "forgets ids":
            record.sent(0, 1, 0, "embeddings", h)
        if what == "silent":
            return None
        record.sent(0, 1, 0, "embeddings", h, ids)
        if what == "ignores labels":
            record.sent(0, 0, 1, "gradient", h, ids)
        if what == "returns a word":
            return "done"
        if what == "returns a list of models":
            return {"clients": [nn.Linear(1, 1)]}
        if what == "returns a model by name":
            return {"clients": {"bank": nn.Linear(1, 1)}}
        return None

    return System(what, training, seconds=0.5)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("raises", SystemFailed, "the rehearsal raised RuntimeError: no such layer"),
        ("exits", SystemFailed, "the rehearsal raised SystemExit: 0"),
        ("is cancelled", SystemFailed, "the rehearsal raised CancelledError"),
        ("raises in a thread", SystemFailed, "the rehearsal raised RuntimeError: shape '.3.' is invalid"),
        ("raises what has no words", SystemFailed, "the rehearsal raised Wordless"),
        ("predicts words", InputError, "what predict answers holds values of type <U3 and shape .*; use numbers"),
        ("predicts nan", InputError, "what predict answers holds nan; use finite"),
        ("hangs", SystemFailed, "the rehearsal took longer than trial_seconds 0.5"),
        ("hangs while a class is made", SystemFailed, "the rehearsal took longer than trial_seconds 0.5"),
        ("unseeded", InputError, "sent other messages when it was trained again with the same seed"),
        (
            "ignores labels",
            InputError,
            "sent the same messages when its labels were changed: it ignores task.labels",
        ),
        ("nan", InputError, "holds (nan|inf|-inf); use finite"),
        ("gradient first", InputError, "the gradient of round 0 to party 1 comes before any embeddings"),
        ("forgets ids", InputError, "'embeddings' of round 0 from party 1 to party 0 has no ids"),
        ("silent", InputError, "recorded no message; call record.cut or record.sent"),
        ("returns a word", InputError, "returned str; return nothing, or a dictionary"),
        (
            "returns a list of models",
            InputError,
            "returned clients of type list; use a dictionary of torch modules",
        ),
        ("returns a model by name", InputError, "returned clients {'bank': Linear}; use torch modules by client"),
    ],
)
def test_what_goes_wrong_in_a_training_is_one_line(what, kind, words):
    with refused(words, kind) as caught:
        rehearse(broken(what), TASK, 0)
    assert str(caught.value).startswith(f"system {what}: ")
    assert caught.value.exit_code == (2 if kind is InputError else 3)


@pytest.mark.parametrize("named", ["right", "by place in the batch", "in another order"])
def test_ids_that_name_other_records_are_refused(named):
    """A loader that shuffles tells no ids: the places in its batch are not those of the records."""

    def training(task, record, seed):
        (x,), y, (bottom,), top = parts(task, 1)
        for number, ids in enumerate(torch.randperm(len(y)).split(64)):
            told = {"right": ids, "by place in the batch": torch.arange(len(ids))}.get(named, ids.flip(0))
            learn(top, [record.cut(1, number, told)(bottom(x[ids]))], y[ids])

    if named == "right":
        assert rehearsed(training).told_to([1]) == {"gradient"}
    else:
        with refused(r"Use ids that are places in task\.labels, those of the batch in its order"):
            rehearsed(training)


@pytest.mark.parametrize("misled", [1, 2])
@pytest.mark.parametrize("told", [torch.flip, lambda ids, dims: ids.sort().values])
def test_ids_of_every_client_must_name_its_own_records(misled, told):
    """Ids of one client alone that are wrong would blind its audit, whichever client's gradient comes first."""

    def training(task, record, seed):
        torch.manual_seed(seed)
        x, y, bottoms, top = parts(task)
        for number, ids in enumerate(torch.randperm(len(y)).split(64)):
            said = [told(ids, (0,)) if m == misled else ids for m in (1, 2, 3)]
            h = [record.cut(m, number, said[m - 1])(bottoms[m - 1](x[m - 1][ids])) for m in (1, 2, 3)]
            learn(top, h, y[ids])

    with refused(f"sent client {misled} a gradient that changed with labels of records which"):
        rehearsed(training)


@pytest.mark.parametrize("learns", ["in between", "by normalised batches"])
def test_gradients_that_other_labels_move_are_no_sign_of_wrong_ids(learns):
    """A server that learns in between may turn all signs of gradients; those of dead units are zero for any label."""

    def training(task, record, seed):
        torch.manual_seed(seed)
        x, y, bottoms, last = parts(task, width=1)
        top = nn.Sequential(nn.ReLU(), last)
        ids = torch.randperm(len(y))[:64]
        for client in (1, 2):
            h = [bottom(block[ids]).detach() for bottom, block in zip(bottoms, x, strict=True)]
            out = bottoms[client - 1](x[client - 1][ids]).abs()
            if learns != "in between":
                out = torch.where((ids % 2 == 0)[:, None], -out, out)  # ReLU passes nothing back
            h[client - 1] = record.cut(client, 0, ids)(out)
            h[client - 1].register_hook((lambda g: g.sign()) if learns == "in between" else lambda g: g / g.norm())
            learn(top, h, y[ids])
            if y[ids[0]] == 1:
                last.weight.data.neg_()

    assert rehearsed(training).told_to([1, 2]) == {"gradient"}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("stale", [False, True])
def test_ids_are_checked_late_in_a_training_too(stale, copied):
    """Ids are those of the first pass's order, while the batches of later passes are drawn anew."""

    def training(task, record, seed):
        torch.manual_seed(seed)
        x, y, bottoms, top = parts(task)
        y = y.clone() if copied else y
        optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.05)
        first = torch.randperm(len(y)).split(64)
        for epoch in range(3):
            batches = torch.randperm(len(y)).split(64) if epoch else first
            for number, ids in enumerate(batches):
                told = first[number] if stale and len(first[number]) == len(ids) else ids
                cuts = [record.cut(m, epoch * len(first) + number, told) for m in (1, 2, 3)]
                h = [cut(bottom(block[ids])) for cut, bottom, block in zip(cuts, bottoms, x, strict=True)]
                optimizer.zero_grad()
                learn(top, h, y[ids])
                optimizer.step()

    early = r"sent client \d a gradient in round 17 that changed with labels of records which its ids do not name"
    if stale:
        with refused(r"\d late gradients that changed with the label of" if copied else early):
            rehearsed(training)
    else:
        assert rehearsed(training).not_made == ()


def test_messages_without_ids_take_those_of_the_round_s_embeddings():
    """A loss about a batch is one about each of its records; where a round has two batches none is known."""

    def training(task, record, seed, batches=1):
        for number, ids in enumerate(np.arange(task.records).reshape(-1, 56)):
            for part in np.split(ids, batches):
                record.sent(number, 1, 0, "embeddings", task.features[0][part], part)
            record.sent(number, 0, 1, "losses", task.labels[ids].astype(float))
            record.sent(number, 0, 1, "scalar", [task.labels[ids].mean()])
            record.sent(number, 0, 2, "scalar", [task.labels[ids].mean()])

    capabilities = rehearsed(training)
    assert capabilities.nameless == {0: set(), 1: set(), 2: {"scalar"}, 3: set()}
    assert capabilities.unread([1], ("losses", "scalar")) == ()
    assert capabilities.unread([1], ("losses",)) == ("scalar",)
    assert capabilities.unread([1, 2], ("losses", "scalar")) == ("scalar",)
    sent = []
    played = System("losses", training).play(TASK, 0, "a training").trial
    replay([played], SimpleNamespace(send=sent.append, note=None), "losses")
    losses, scalar, other = sent[1:4]
    assert losses.payload.shape == (1, 56, 1)
    assert torch.equal(losses.ids, sent[0].ids)
    assert scalar.payload.shape == (1, 1, 1)
    assert torch.equal(scalar.ids, sent[0].ids)
    assert other.ids is None
    assert rehearsed(partial(training, batches=2)).nameless[1] == {"losses", "scalar"}


@pytest.mark.parametrize(("batches", "epochs"), [(1, 3), (2, 1)])
def test_a_round_that_does_not_count_batches_is_refused(batches, epochs):
    def training(task, record, seed):
        (x,), y, (bottom,), top = parts(task, 1)
        for ids in torch.arange(64).chunk(batches) * epochs:
            learn(top, [record.cut(1, 0, ids)(bottom(x[ids]))], y[ids])

    if batches == 1:
        assert rehearsed(training).told_to([1]) == {"gradient"}
    else:
        with refused(r"gradients of more than one batch to client 1, all in one round; let round count batches"):
            rehearsed(training)


@pytest.mark.parametrize("scope", ["record", "batch"])
def test_ids_of_gradients_that_depend_on_a_whole_batch_are_not_suspected(scope):
    def training(task, record, seed):
        (x,), y, (bottom,), top = parts(task, 1)
        h = record.cut(1, 0, range(64))(bottom(x[:64]))
        dims = None if scope == "batch" else 1
        h.register_hook(lambda g: g / g.norm(dim=dims, keepdim=True) + 0.1 * torch.randn_like(g))
        learn(top, [h], y[:64])

    assert rehearsed(training).told_to([1]) == {"gradient"}


def test_trainings_whose_rows_differ_in_width_are_refused():
    def training(task, record, seed):
        h = task.features[0][:8, : 3 + seed % 2] * task.labels[:8, None]
        record.sent(0, 1, 0, "embeddings", h, range(8))
        record.sent(0, 0, 1, "gradient", h, range(8))

    with refused(r"has shapes \(8, 3\) and \(8, 4\) in different trainings"):
        mounted(System("varied", training), "label_norm", trials=8)


def test_a_random_system_may_say_so():
    system = System("unseeded", broken("unseeded").train, random=True)
    assert rehearse(system, TASK, 0).told_to([1]) == frozenset()


def test_the_users_generators_are_seeded_for_a_training_and_left_as_they_were():
    drawn = []

    def training(task, record, seed):
        drawn.append((torch.rand(1).item(), np.random.random()))  # noqa: NPY002
        broken("fine").train(task, record, seed)

    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.rand(1), np.random.random()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    rehearsed(training)
    assert len(set(drawn)) == 1
    assert (torch.rand(1), np.random.random()) == before  # noqa: NPY002


def stating(release):
    return System("stating", two_party, stated=lambda task: release)


def test_a_stated_release_is_what_accountants_read():
    whole = {**RELEASE, "batch_size": 60, "rounds": 3 * 3 * -(-TASK.records // 60), "clients": TASK.clients}
    method = method_of(stating(whole), rehearse(stating(whole), TASK, 0), TASK)
    read = Release(**whole, dataset_size=TASK.records, client_update="first-order", noise="float")
    assert method.releases(SystemConfig(), Deployment(records=TASK.records, clients=2)) == (read,)
    protection = method.protection(SystemConfig())
    assert (protection.channel, protection.faced, protection.neighbours) == ("gradient", "client", "replace-label")
    (published,) = method.releases(
        SystemConfig(), Deployment(records=TASK.records, clients=2, data_dependent_side=True, seeded_noise=True)
    )
    assert published.data_dependent_side
    assert published.seeded_noise


def noisy_rows(task, record, seed, *, clients=1, weigh=False, rounds=1, beside=()):
    """Send each client a row of noise about each label, and labels in messages of the kinds `beside`."""
    rng = np.random.default_rng(seed)
    ids = np.arange(task.records)
    signs = 2.0 * task.labels[:, None] - 1.0
    if weigh:
        signs = signs * (1.0 + task.labels[: task.records // 2].mean())
    for number in range(rounds):
        for client in range(1, clients + 1):
            send(task, record, signs + rng.normal(size=signs.shape), number=number, client=client)
        record.sent(number, 0, 1, "round", [number])
        for kind in beside:
            record.sent(number, 0, clients, kind, signs, ids)


@pytest.mark.parametrize(
    ("options", "changed", "shown"),
    [
        ({}, {}, set()),
        ({"beside": ["losses"]}, {}, {"data_dependent_side"}),
        ({"beside": ["prediction"], "clients": 2}, {"rounds": 2, "clients": 2}, {"data_dependent_side"}),
        ({"beside": ["prediction"]}, {"data_dependent_side": False}, set()),
        ({}, {"channel": "scalar"}, {"data_dependent_side"}),
        ({"clients": 2}, {}, {"own_rounds_only"}),
        ({"clients": 2}, {"own_rounds_only": False}, set()),
        ({"rounds": 2}, {"rounds": 2, "batch_size": 64}, {"own_rounds_only"}),
        ({"weigh": True}, {}, {"batch_coupling"}),
        ({"weigh": True}, {"clip_scope": "batch"}, set()),
    ],
)
def test_what_a_release_does_not_say_is_as_the_rehearsal_showed(options, changed, shown):
    """A label that leaves beside the noise, or more often than is stated, leaves no sound bound by accident."""
    stated = {**RELEASE, "rounds": 1, "batch_size": TASK.records, **changed}
    system = System("stating", partial(noisy_rows, **options), stated=lambda task: stated)
    release, _ = stated_release(system, TASK, rehearse(system, TASK, 0))
    flags = ("data_dependent_side", "own_rounds_only", "batch_coupling")
    assert {flag for flag in flags if getattr(release, flag)} == shown
    assert release.client_update == "first-order"


def test_a_random_system_tells_by_all_that_it_sends():
    system = System("stating", noisy_rows, random=True, stated=lambda task: {**RELEASE, "rounds": 1})
    release, _ = stated_release(system, TASK, rehearse(system, TASK, 0))
    assert release.data_dependent_side


@pytest.mark.parametrize("key", RELEASE)
def test_a_release_that_leaves_something_open_is_refused(key):
    without = {name: value for name, value in RELEASE.items() if name != key}
    with refused(f"its release does not say {key}; state channel, clip, "):
        stated_release(stating(without), TASK, Capabilities())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sigma": -1.0}, "sigma is -1.0"),
        ({"noize": 1}, "noize"),
        ({"sampler": "round-robin"}, "sampler is 'round-robin'"),
    ],
)
def test_a_wrong_release_is_named(wrong, words):
    with refused(words):
        stated_release(stating({**RELEASE, **wrong}), TASK, Capabilities())


def test_the_module_that_is_named_states_what_holds(tmp_path, monkeypatch):
    """A file for the audit imports the training from elsewhere, and states its release and its data itself."""
    (tmp_path / "their_training.py").write_text("def train(task, record, seed):\n    pass\n")
    facts = "top_model = False\nrelease = {}\n\n\ndef data():\n    return {}\n"
    (tmp_path / "our_audit.py").write_text(f"from their_training import train\n\n{facts}")
    monkeypatch.chdir(tmp_path)
    system = system_at("our_audit:train", 1.0, tmp_path)
    assert not system.top_model
    assert system.stated is not None
    with refused("our_audit:data gives"):
        data_of(system)
