import pytest
import torch

from dpzv_audit.base.findings import ADVERSARIES
from mechanisms import METHODS
from mechanisms.core.channel import SERVER, Adversary, BatchLog, Shelf, ViewRecorder
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import ledger_of, train
from ...helpers.refusals import refused
from ..conftest import training_data

CLIENT = Adversary("client", (2,))
COLLUDING = Adversary("colluding-clients", (1, 2, 3))
MALICIOUS = Adversary("malicious-client", (3,))
ALL_BUT_ONE = Adversary("all-but-one")
OUTSIDER = Adversary("eavesdropper")
OUTSIDER_WITH_IDS = Adversary("eavesdropper", public_ids=True)
SERVER_ITSELF = Adversary("server")
MALICIOUS_SERVER = Adversary("malicious-server")
RELEASE = Adversary("release")
EVERYBODY = [
    CLIENT,
    COLLUDING,
    ALL_BUT_ONE,
    MALICIOUS,
    OUTSIDER,
    OUTSIDER_WITH_IDS,
    SERVER_ITSELF,
    MALICIOUS_SERVER,
    RELEASE,
]


@pytest.fixture(scope="module")
def recorded():
    """Views of everybody in one run of two replicas, the full log of messages, and a batch log."""
    recorders = {adversary: ViewRecorder(adversary) for adversary in EVERYBODY}

    class Everything:
        def __init__(self):
            self.messages, self.notes = [], []

        def on_message(self, message):
            self.messages.append(message)

        def on_note(self, party, round_, name, value):
            self.notes.append((party, name, value))

    everything, batches = Everything(), BatchLog("scalar")
    config = DPZVConfig(batch_size=6, epochs=3, embedding=2, hidden=3, sigma=0.1)
    data = training_data(dtype=torch.float32)
    train(data, config, seed=0, replicas=(0, 1), observers=(*recorders.values(), everything, batches))
    return {a: r.view for a, r in recorders.items()}, everything, batches


def content(messages):
    """What messages say, in terms that can be compared."""
    plain = [(m._replace(payload=None, ids=None), m.payload.tolist()) for m in messages]
    return [(*one, None if m.ids is None else m.ids.tolist()) for one, m in zip(plain, messages, strict=True)]


@pytest.mark.parametrize("adversary", [CLIENT, COLLUDING, MALICIOUS])
def test_clients_see_their_own_mail_and_nothing_else(recorded, adversary):
    views, everything, _ = recorded
    view = views[adversary]
    expected = [m for m in everything.messages if {m.sender, m.receiver} & set(adversary.clients)]
    assert content(view.messages) == content(expected)
    assert len(expected) > 0
    if adversary is not COLLUDING:
        assert len(expected) < len(everything.messages)
        others = {1, 2, 3} - set(adversary.clients)
        assert not any({m.sender, m.receiver} & others for m in view.messages)
    assert {party for party, _ in view.notes} == set(adversary.clients)


def test_an_eavesdropper_sees_scalars_without_ids_and_no_notes(recorded):
    views, everything, _ = recorded
    view = views[OUTSIDER]
    assert {m.kind for m in view.messages} == {"scalar"}
    assert all(m.sender == SERVER and m.ids is None for m in view.messages)
    assert view.notes == {}
    scalars = [m.payload for m in everything.messages if m.kind == "scalar"]
    assert torch.equal(view.scalars(), torch.stack(scalars))
    assert view.scalars().shape == (12, 2)
    with refused(r"eavesdropper.*no batch ids"):
        view.batches()
    with refused("no 'direction' of party 1"):
        view.noted(1, "direction")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("czofo", {"backward_bits": 4}),
        ("split", {"sampler": "poisson"}),
        ("vafl", {"sampler": "poisson"}),
    ],
    ids=["compressed answers", "batches of any size", "one client at a time"],
)
def test_what_an_eavesdropper_sees_weighs_what_was_sent(method, options):
    """Ids travel beside messages and cost nothing: without them a message has the same bytes, replica by replica."""
    recorder, everything = ViewRecorder(OUTSIDER), ViewRecorder(SERVER_ITSELF)
    config = METHODS[method].configure(batch_size=6, epochs=2, embedding=2, hidden=3, **options)
    data = training_data(dtype=torch.float32)
    trained = train(data, config, seed=0, replicas=(0, 1), observers=(recorder, everything))
    sent = [m for m in everything.view.messages if m.sender == SERVER]
    assert all(m.ids is None for m in recorder.view.messages)
    assert [m.nbytes for m in recorder.view.messages] == [m.nbytes for m in sent]
    for place in range(2):
        seen = sum(m.nbytes if isinstance(m.nbytes, int) else m.nbytes[place] for m in recorder.view.messages)
        assert seen == ledger_of(trained, place).down


def test_ids_in_the_clear_are_all_that_changes_for_an_eavesdropper(recorded):
    views, _, batches = recorded
    view = views[OUTSIDER_WITH_IDS]
    assert torch.equal(view.batches(), batches.stacked())
    assert view.batches().shape == (12, 2, 6)
    assert torch.equal(view.scalars(), views[OUTSIDER].scalars())
    assert view.notes == {}


def test_the_server_sees_everything_but_the_clients_notes(recorded):
    views, everything, _ = recorded
    assert content(views[SERVER_ITSELF].messages) == content(everything.messages)
    assert views[SERVER_ITSELF].notes == {}


def test_who_lacks_one_label_alone_sees_every_message_and_every_clients_notes(recorded):
    views, everything, batches = recorded
    view = views[ALL_BUT_ONE]
    assert content(view.messages) == content(everything.messages)
    assert {party for party, _ in view.notes} == {1, 2, 3}
    assert torch.equal(view.batches(), batches.stacked())


def test_a_release_is_no_message(recorded):
    assert recorded[0][RELEASE].messages == []


def test_accessors_agree_with_the_log(recorded):
    views, everything, _ = recorded
    view = views[CLIENT]
    own = [m for m in everything.messages if m.kind == "scalar" and m.receiver == 2]
    assert torch.equal(view.scalars(), torch.stack([m.payload for m in own]))
    assert torch.equal(view.batches(), torch.stack([m.ids for m in own]))
    assert [m.round for m in view.sent("embeddings")] == [m.round for m in own]
    assert len(view.sent("table")) == 1
    directions = [value for party, name, value in everything.notes if (party, name) == (2, "direction")]
    assert torch.equal(view.noted(2, "direction"), torch.stack(directions))
    with refused("party 1"):
        view.noted(1, "direction")


def test_kinds_keep_only_those():
    recorder = ViewRecorder(COLLUDING, kinds=("scalar",))
    config = DPZVConfig(batch_size=6, epochs=1, embedding=2, hidden=3, sigma=0.1)
    data = training_data(dtype=torch.float32)
    train(data, config, seed=0, observers=(recorder,))
    assert {m.kind for m in recorder.view.messages} == {"scalar"}
    assert recorder.view.notes == {}


def test_poisson_batches_show_who_took_part_and_no_one_else():
    """Batches of different blocks differ in width; places that are padding hold -1 in every view and log."""
    recorder, log = ViewRecorder(Adversary("client", (1,))), BatchLog("scalar", (1,))
    config = DPZVConfig(batch_size=4, epochs=70, embedding=2, hidden=3, sigma=0.1, sampler="poisson", top_model=False)
    data = training_data(clients=1, dtype=torch.float32)
    train(data, config, seed=0, replicas=(0, 1), observers=(recorder, log))
    ids = recorder.view.batches()
    assert torch.equal(ids, log.stacked())
    assert len({m.ids.shape[1] for m in recorder.view.messages if m.kind == "scalar"}) > 1
    sizes = (ids >= 0).sum(2)
    assert sizes.float().std() > 0
    for round_ in ids[:50]:
        for row in round_:
            kept = row[row >= 0].tolist()
            assert len(kept) == len(set(kept))


def test_batch_log_keeps_the_logged_clients_alone(recorded):
    log = BatchLog("scalar", (3,))
    _, everything, _ = recorded
    for message in everything.messages:
        log.on_message(message)
    expected = [m.ids for m in everything.messages if m.kind == "scalar" and m.receiver == 3]
    assert torch.equal(log.stacked(), torch.stack(expected))


def test_an_unknown_adversary_is_one_line():
    with refused(r"adversary is 'spy'; use one of client, "):
        Adversary("spy")
    assert {a.kind for a in EVERYBODY} == set(ADVERSARIES)


def test_small_tensors_stand_side_by_side_and_large_ones_as_they_are():
    shelf = Shelf()
    sent = [torch.full((3,), float(i)) for i in range(Shelf.PLACES + 1)]
    kept = [shelf.keep(tensor) for tensor in sent]
    assert torch.equal(torch.stack(kept), torch.stack(sent))
    blocks = {tensor.untyped_storage().data_ptr() for tensor in kept}
    assert len(blocks) == 2
    assert shelf.keep(sent[-1]) is kept[-1]
    large = torch.zeros(Shelf.LARGEST // 4 + 1)
    assert shelf.keep(large) is large
