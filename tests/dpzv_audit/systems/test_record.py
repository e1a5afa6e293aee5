"""What is recorded is what travelled: each test compares the record with gradients that autograd gives by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpzv_audit.systems import Recorder
from dpzv_audit.systems.messages import check_order, like_groups
from dpzv_audit.systems.record import Tensors

from ...helpers.refusals import refused

N = 12
IDS = np.array([3, 1, 4, 0])


@pytest.fixture
def record():
    return Recorder(records=N, clients=2)


def of(record, kind):
    """The tensors of a kind, in order."""
    return [record.tensors[one.tensor] for one in record.messages if one.kind == kind]


@pytest.fixture
def bottom():
    torch.manual_seed(0)
    return nn.Linear(5, 3)


@pytest.fixture
def top(bottom):
    return nn.Linear(3, 2)


X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 1, 0])


def loss_of(top, h, y=Y):
    return nn.functional.cross_entropy(top(h), y)


def back(top, h, y=Y):
    loss_of(top, h, y).backward()


def true_gradient(bottom, top, x=X, y=Y, after=lambda h: h):
    """The gradient at the embeddings, by autograd alone."""
    h = bottom(x).detach().requires_grad_()
    back(top, after(h), y)
    return h.grad.numpy()


def test_both_directions_are_recorded_with_ids_and_the_training_is_as_without(record, bottom, top):
    back(top, record.cut(1, 0, IDS)(bottom(X)))
    found = bottom.weight.grad.clone()
    bottom.zero_grad()
    back(top, bottom(X))
    assert torch.equal(found, bottom.weight.grad)
    assert [(m.round, m.sender, m.receiver, m.kind) for m in record.messages] == [
        (0, 1, 0, "embeddings"),
        (0, 0, 1, "gradient"),
    ]
    assert np.array_equal(of(record, "embeddings")[0], bottom(X).detach().numpy())
    assert np.array_equal(of(record, "gradient")[0], true_gradient(bottom, top))
    assert {m.ids for m in record.messages} == {"i0"}
    assert record.tensors["i0"].tolist() == IDS.tolist()


def test_a_detached_leaf_at_the_border(record, bottom, top):
    h = bottom(X)
    up = h.detach().requires_grad_()
    back(top, record.cut(1, 0, IDS)(up))
    h.backward(up.grad)
    assert np.array_equal(of(record, "gradient")[0], up.grad.numpy())


def test_a_cut_whose_input_needs_no_gradient_is_refused(record, bottom):
    with refused("cut of client 1 in round 7 gets values that need no gradient"):
        record.cut(1, 7, IDS)(bottom(X).detach())


def test_sent_twice_is_what_a_cut_records(record, bottom, top):
    h = bottom(X)
    up = h.detach().requires_grad_()
    record.sent(0, 1, 0, "embeddings", h, IDS)
    back(top, up)
    record.sent(0, 0, 1, "gradient", up.grad, IDS)
    by_cut = Recorder(records=N, clients=2)
    back(top, by_cut.cut(1, 0, IDS)(bottom(X)))
    assert record.messages == by_cut.messages
    for one in record.messages:
        assert np.array_equal(record.tensors[one.tensor], by_cut.tensors[one.tensor])


def test_a_hook_of_the_server_acts_before_the_record_and_one_of_the_client_after(record, bottom, top):
    h = bottom(X)
    seen = []
    h.register_hook(lambda g: seen.append(g.clone()) or 10.0 * g)
    out = record.cut(1, 0, IDS)(h)
    out.register_hook(lambda g: 3.0 * g)
    back(top, out)
    expected = 3.0 * true_gradient(bottom, top)
    assert np.array_equal(of(record, "gradient")[0], expected)
    assert np.array_equal(seen[0].numpy(), expected)


def test_what_follows_may_change_its_input_in_place(record, bottom, top):
    back(top, torch.relu_(record.cut(1, 0, IDS)(bottom(X))))
    assert (of(record, "embeddings")[0] < 0).any()
    assert np.array_equal(of(record, "gradient")[0], true_gradient(bottom, top, after=torch.relu))


def test_what_a_client_writes_to_its_embeddings_later_changes_no_record(record):
    h = torch.zeros(4, 3)
    record.sent(0, 1, 0, "embeddings", h, IDS)
    h += 1.0
    assert not of(record, "embeddings")[0].any()


def test_embeddings_that_are_changed_in_place_behind_their_cut_are_refused(record, bottom, top):
    h = bottom(X)
    back(top, record.cut(1, 0, IDS)(h))
    with torch.no_grad():
        h += 1.0
    words = "'embeddings' of round 0 from party 1 to party 0 were changed in place behind the cut"
    with refused(words):
        record.messages  # noqa: B018


@pytest.mark.parametrize("part", [lambda table: table, lambda table: table[:4]])
def test_embeddings_that_are_parameters_are_recorded_as_they_passed(record, part, top):
    table = nn.Parameter(torch.randn(4, 3))
    before = table.detach().numpy().copy()
    back(top, record.cut(1, 0, IDS)(part(table)))
    torch.optim.SGD([table], lr=1.0).step()
    assert np.array_equal(of(record, "embeddings")[0], before)
    assert not np.array_equal(table.detach().numpy(), before)


def test_a_client_may_clip_its_gradient_in_place(record, bottom, top):
    h = bottom(X)
    h.register_hook(lambda gradient: gradient.zero_())
    back(top, record.cut(1, 0, IDS)(h))
    assert not bottom.weight.grad.any()
    assert np.array_equal(of(record, "gradient")[0], true_gradient(bottom, top))


def test_one_tensor_of_ids_may_serve_all_batches(record, bottom, top):
    ids = torch.zeros(4, dtype=torch.int64)
    for number in range(3):
        ids.copy_(torch.arange(4) + number)
        for client in (1, 2):
            back(top, record.cut(client, number, ids)(bottom(X)))
    assert [record.tensors[m.ids].tolist() for m in record.messages[::4]] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert [record.tensors[m.ids][0] for m in record.messages] == [0] * 4 + [1] * 4 + [2] * 4


def test_accumulated_batches_of_one_round_are_messages_of_their_own(record, bottom, top):
    for half in (slice(0, 2), slice(2, 4)):
        back(top, record.cut(1, 0, IDS[half])(bottom(X[half])), Y[half])
    assert [m.kind for m in record.messages] == ["embeddings", "gradient"] * 2
    assert [record.tensors[m.ids].tolist() for m in record.messages] == [[3, 1], [3, 1], [4, 0], [4, 0]]


def test_a_second_backward_pass_is_a_second_message(record, bottom, top):
    loss = loss_of(top, record.cut(1, 0, IDS)(bottom(X)))
    loss.backward(retain_graph=True)
    (2.0 * loss).backward()
    first, second = of(record, "gradient")
    assert np.array_equal(2.0 * first, second)
    assert len(of(record, "embeddings")) == 1


def test_mixed_precision_is_recorded_unscaled(record, bottom, top):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(top, record.cut(1, 0, IDS, scaler=scaler)(bottom(X)))
    scaler.scale(loss).backward()
    (embeddings,), (gradient,) = of(record, "embeddings"), of(record, "gradient")
    assert embeddings.dtype == gradient.dtype == np.float32
    expected = true_gradient(bottom, top)
    assert np.abs(gradient - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_that_computes_again_sends_nothing_twice(record, reentrant, bottom, top):

    def part(rows):
        return record.cut(1, 0, IDS)(torch.tanh(bottom(rows)))

    back(top, checkpoint(part, X.clone().requires_grad_(), use_reentrant=reentrant))
    assert [m.kind for m in record.messages] == ["embeddings", "gradient"]
    expected = true_gradient(lambda rows: torch.tanh(bottom(rows)), top)
    assert np.allclose(of(record, "gradient")[0], expected, rtol=1e-6)


def test_evaluation_is_no_message_of_training_and_a_prediction_where_that_is_said(record, bottom):
    with torch.no_grad():
        record.cut(1, 0, IDS)(bottom(X))
        assert record.messages == []
        with record.evaluation():
            record.cut(1, 1, IDS)(bottom(X))
    record.sent(2, 0, 2, "prediction", np.ones((4, 2)), IDS)
    assert [(m.kind, m.sender, m.receiver) for m in record.messages] == [("prediction", 1, 0), ("prediction", 0, 2)]


def test_what_the_label_party_keeps_for_itself_has_no_cut(record):
    with refused("cut of client 0; use one of 1 to 2: party 0 keeps its own"):
        record.cut(0, 0, IDS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ids": None}, "'embeddings' of round 3 from party 1 to party 0 has no ids"),
        ({"ids": [0, 1]}, r"has 2 ids for a tensor of shape \(4, 3\); give one for each row"),
        ({"ids": [0, 1, 2, 12]}, "has id 12; use 0 to 11: places in task.labels"),
        ({"ids": [0, 1, 2, -1]}, "has id -1; use 0 to 11"),
        ({"ids": [0.0, 1.0, 2.0, 3.0]}, "ids are of type float64"),
        ({"tensor": np.full((4, 3), np.nan)}, "holds nan; use finite numbers: has the training diverged"),
        ({"tensor": torch.full((4, 3), torch.inf)}, "holds inf; use finite"),
        ({"tensor": np.array(["a"] * 4)}, "use numbers"),
        ({"tensor": np.zeros((0, 3))}, "use numbers"),
        ({"sender": 3}, "parties are 0, the server, and clients 1 to 2"),
        ({"receiver": 1}, "send it to another party"),
        ({"round": -2}, "use a round that is a whole number of at least -1"),
        ({"round": 1.5}, "use a round that is a whole number of at least -1, not 1.5"),
        ({"kind": "Soft Labels"}, "use a kind that is a word of small letters"),
    ],
)
def test_what_cannot_have_travelled_is_refused_in_one_line(record, wrong, words):
    given_ = {"round": 3, "sender": 1, "receiver": 0, "kind": "embeddings", "tensor": np.zeros((4, 3)), "ids": IDS}
    with refused(words):
        record.sent(**(given_ | wrong))
    assert record.messages == []


def test_a_gradient_before_the_embeddings_of_its_round_is_refused(record):
    record.sent(0, 1, 0, "embeddings", np.zeros((4, 3)), IDS)
    record.sent(1, 0, 1, "gradient", np.zeros((4, 3)), IDS)
    with refused("the gradient of round 1 to party 1 comes before any embeddings"):
        check_order(record.messages)


def test_messages_without_records_need_no_ids(record):
    record.sent(-1, 0, 1, "scalar", 1.5)
    record.note(1, "direction", torch.ones(3))
    assert record.messages[0].ids == ""
    assert record.tensors[record.messages[0].tensor] == 1.5
    assert record.tensors[record.notes[0].tensor].tolist() == [1.0, 1.0, 1.0]


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=12), st.integers(0, 20_000))
def test_past_the_stated_memory_tensors_lie_on_disk_and_read_the_same(sizes, memory):
    record = Recorder(records=N, clients=1, memory=memory)
    for number, size in enumerate(sizes):
        record.sent(number, 1, 0, "scalar", np.full(size, float(number)))
    assert sum(values.nbytes for values in record.tensors._here.values()) <= memory
    for number, one in enumerate(record.messages):
        assert record.tensors[one.tensor].tolist() == [float(number)] * sizes[number]


def test_gradients_that_add_up_over_backward_passes_are_recorded_each_for_itself(record, bottom, top):
    optimizer = torch.optim.SGD([*bottom.parameters(), *top.parameters()], lr=0.1)
    expected = []
    for half in (slice(0, 2), slice(2, 4)):
        expected.append(true_gradient(bottom, top, X[half], Y[half]))
        top.zero_grad()
    for number, half in enumerate((slice(0, 2), slice(2, 4))):
        back(top, record.cut(1, number, IDS[half])(bottom(X[half])), Y[half])
    optimizer.step()
    assert all(np.array_equal(a, b) for a, b in zip(of(record, "gradient"), expected, strict=True))


def test_one_bottom_serves_two_clients(record, bottom):
    top = nn.Linear(6, 2)
    h = [record.cut(m, 0, IDS)(part) for m, part in ((1, bottom(X)), (2, bottom(-X)))]
    back(top, torch.cat(h, 1))
    both = torch.cat([bottom(X), bottom(-X)], 1).detach().requires_grad_()
    back(top, both)
    found = {m.receiver: record.tensors[m.tensor] for m in record.messages if m.kind == "gradient"}
    assert np.array_equal(np.hstack([found[1], found[2]]), both.grad.numpy())


def test_a_compiled_bottom(record, bottom, top):
    expected = true_gradient(bottom, top)
    compiled = torch.compile(bottom, backend="eager")
    for _ in range(2):
        back(top, record.cut(1, 0, IDS)(compiled(X)))
    assert [m.kind for m in record.messages] == ["embeddings", "gradient"] * 2
    assert all(np.array_equal(found, expected) for found in of(record, "gradient"))
    with refused(r"the cut of client 1 stands in code that torch\.compile compiles"):
        torch.compile(lambda rows: record.cut(1, 0, IDS)(bottom(rows)), backend="eager")(X)


@pytest.mark.parametrize("transform", ["call", "grad", "vjp"])
def test_a_bottom_as_a_function_of_its_parameters(record, transform, bottom, top):
    parameters = {name: value.detach().requires_grad_() for name, value in bottom.named_parameters()}
    expected = true_gradient(bottom, top)

    def loss(values):
        return loss_of(top, record.cut(1, 0, IDS)(torch.func.functional_call(bottom, values, X)))

    if transform == "call":
        loss(parameters).backward()
    elif transform == "grad":
        torch.func.grad(loss)({name: value.detach() for name, value in parameters.items()})
    else:
        value, pullback = torch.func.vjp(loss, {name: value.detach() for name, value in parameters.items()})
        pullback(torch.ones_like(value))
    assert [m.kind for m in record.messages] == ["embeddings", "gradient"]
    assert np.allclose(of(record, "gradient")[0], expected, rtol=1e-6)


def test_a_scaler_that_changes_its_factor(record, bottom, top):
    """In 16 bits: where the scaled gradient overflows its step is skipped, and nothing usable travels."""
    top = top.half()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1, backoff_factor=2.0**-8)
    optimizer = torch.optim.SGD(bottom.parameters(), lr=0.0)
    scales = []
    for number in range(4):
        h = record.cut(1, number, IDS, scaler=scaler)(bottom(X).half())
        scales.append(scaler.get_scale())
        scaler.scale(loss_of(top, h).float()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scales == [2.0**24, 2.0**16, 2.0**8, 2.0**9]
    assert [m.round for m in record.messages if m.kind == "gradient"] == [2, 3]
    expected = true_gradient(bottom, top.float())
    for found in of(record, "gradient"):
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


def test_what_a_scale_saves_from_vanishing_is_kept(record):
    h = torch.ones(4, 3, dtype=torch.float16, requires_grad=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    tiny = 1e-9
    scaler.scale((record.cut(1, 0, IDS, scaler=scaler)(h).float() * tiny).sum()).backward()
    assert np.allclose(of(record, "gradient")[0], tiny, rtol=1e-3)
    assert np.float16(tiny) == 0.0


def test_what_passes_a_cut_and_cannot_have_travelled_is_told_when_the_record_is_read(record):
    h = torch.ones(4, 3, requires_grad=True)
    record.cut(1, 0, IDS)(h)
    record.cut(1, 1, IDS)(h / 0.0)
    with refused("an 'embeddings' of round 1 from party 1 to party 0 holds inf; use"):
        record.messages  # noqa: B018
    assert [m.round for m in record.messages] == [0]


@pytest.mark.parametrize("memory", [1 << 30, 100])
def test_messages_of_cuts_wait_no_longer_than_there_is_memory(memory):
    record = Recorder(records=N, clients=1, memory=memory)
    for number in range(300):
        record.cut(1, number, IDS)(torch.full((4, 3), float(number), requires_grad=True))
        assert len(record._waiting) < 256
        assert record._waiting_bytes <= memory
    assert [values[0, 0] for values in of(record, "embeddings")] == list(range(300))


def test_embeddings_in_the_place_of_ids_are_refused():
    record = Recorder(records=N, clients=1)
    with refused("cut of client 1 in round 2 gets embeddings as its ids; use places in"):
        record.cut(1, 2, torch.ones(3, 2, requires_grad=True) * 2)


@pytest.mark.parametrize(("kind", "meant"), [("gradients", "gradient"), ("embedding", "embeddings")])
def test_a_kind_that_is_nearly_one_that_attacks_read_is_refused(kind, meant):
    record = Recorder(records=N, clients=1)
    with refused(f"no attack reads this kind, did you mean '{meant}'"):
        record.sent(0, 0, 1, kind, [[1.0]], [0])


def test_a_name_that_comes_again_before_a_spill_has_its_last_numbers():
    tensors = Tensors(memory=50)
    for name, number in (("m0", 10), ("m1", 11), ("m1", 21), ("m2", 22)):
        tensors.add(name, np.full(4, number, np.float32))
    assert [float(tensors[name][0]) for name in ("m0", "m1", "m2")] == [10.0, 21.0, 22.0]


def test_groups_are_whole_numbers_about_records(record):
    record.sent(0, 0, 1, "groups", np.array([4, -1, 3, 4]), IDS)
    record.sent(0, 0, 1, "groups", np.array([[4.0, 0.0], [-1.0, 1.0], [3.0, 1.0], [4.0, 2.0]]), IDS)
    assert [numbers.shape for numbers in of(record, "groups")] == [(4,), (4, 2)]
    where = "'groups' of round 1 from party 0 to party 1"
    with refused(f"{where} holds 0.5; use whole numbers: the node of each record, -1 for none"):
        record.sent(1, 0, 1, "groups", np.array([1.0, 0.5, 3.0, 2.0]), IDS)
    with refused(f"{where} has no ids"):
        record.sent(1, 0, 1, "groups", np.array([1, 2]))
    with refused("did you mean 'groups'"):
        record.sent(1, 0, 1, "group", np.array([1, 2]), IDS[:2])


def test_kinds_of_a_systems_own_that_hold_what_groups_hold_are_told_from_others(record):
    nodes = np.array([4.0, 4.0, 3.0, 3.0])
    record.sent(0, 0, 1, "instances", nodes, IDS)
    record.sent(0, 0, 1, "instances", np.stack([nodes, nodes[::-1]], 1), IDS)
    record.sent(0, 0, 1, "weights", nodes / 8, IDS)
    record.sent(0, 0, 1, "ranks", np.arange(4), IDS)
    record.sent(0, 0, 1, "totals", nodes)
    record.sent(0, 0, 1, "losses", nodes, IDS)
    assert like_groups(record.messages, record.tensors) == {"instances"}
