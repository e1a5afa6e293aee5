import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from mechanisms.core.models import MLP, Network, conv_net
from mechanisms.core.noise import GRADIENT_BITS, Grid
from mechanisms.core.replicas import (
    ParameterStack,
    Server,
    ServerBatch,
    SoftTargets,
    add_clipped_gradient_steps,
    clipped_gradient_sum,
    cross_entropy,
    evaluator_for,
    loss_differences,
    loss_gradient,
    per_record_gradients,
)
from mechanisms.core.streams import Streams

from ...helpers.built_in import evaluator_by, module_of


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(stack, records, classes=2, seed=0):
    return torch.randint(classes, (stack, records), generator=torch.Generator().manual_seed(seed))


def started(server, stack=1, seed=0, dtype=torch.float64):
    """Parameters of a server as it starts."""
    return ParameterStack.initial(server.layout, Streams(seed=seed, replicas=range(stack), dtype=dtype), party=0)


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 5])
def test_sum_server_sums_and_spreads_the_gradient(clients):
    server = Server(None, clients=clients)
    rows = random(2, 5, clients * 4)
    before = rows.clone()
    nothing = ParameterStack(torch.empty(2, 0), ())
    logits, pullback = server.vjp(nothing, rows)
    assert torch.allclose(logits, sum(rows.split(4, 2)))
    assert torch.equal(server.forward(nothing, rows), logits)
    logits.zero_()  # storage of its own
    assert torch.equal(rows, before)
    gradient = random(2, 5, 4, seed=1)
    flat, at_rows = pullback(gradient)
    assert flat.shape == (2, 0)
    assert torch.equal(at_rows, torch.cat((gradient,) * clients, 2))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(2, 5), st.integers(0, 100))
def test_losses_and_their_gradient(stack, records, classes, seed):
    logits = random(stack, records, classes, seed=seed).requires_grad_()
    labels = labels_of(stack, records, classes, seed)
    losses = cross_entropy(logits, labels)
    for k in range(stack):
        for i in range(records):
            log_probability = functional.log_softmax(logits[k, i], 0)[labels[k, i]]
            assert torch.allclose(losses[k, i], -log_probability)
    weights = (random(stack, records, seed=seed + 1) > 0).double()
    (expected,) = torch.autograd.grad((losses * weights).sum() / 7, logits)
    assert torch.allclose(loss_gradient(logits.detach(), labels, weights, 7), expected, atol=1e-12)
    (expected,) = torch.autograd.grad(cross_entropy(logits, labels).sum() / 3, logits)
    assert torch.allclose(loss_gradient(logits.detach(), labels, None, 3), expected, atol=1e-12)


@pytest.mark.parametrize("likelihoods", [False, True])
@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(2, 5), st.integers(0, 100))
def test_soft_losses_and_their_gradient(likelihoods, stack, records, classes, seed):
    """Shares: - sum t log p. Likelihoods r: - log sum r p, forward correction. One-hot rows are labels, both ways."""
    logits = random(stack, records, classes, seed=seed).requires_grad_()
    rows = random(stack, records, classes, seed=seed + 1).softmax(2)
    soft = SoftTargets(rows, likelihoods)
    losses = cross_entropy(logits, soft)
    p = logits.softmax(2)
    assert torch.allclose(losses, -(rows * p).sum(2).log() if likelihoods else -(rows * p.log()).sum(2))
    (expected,) = torch.autograd.grad(losses.sum() / 3, logits)
    assert torch.allclose(loss_gradient(logits.detach(), soft, None, 3), expected, atol=1e-12)
    labels = labels_of(stack, records, classes, seed)
    hard = SoftTargets(functional.one_hot(labels, classes).double(), likelihoods)
    assert torch.allclose(cross_entropy(logits, hard), cross_entropy(logits, labels))
    assert torch.allclose(loss_gradient(logits.detach(), hard), loss_gradient(logits.detach(), labels))
    other = random(stack, records, classes, seed=seed + 2)
    difference = loss_differences(torch.cat((logits.detach(), other), 1), soft)
    assert torch.allclose(difference, losses.detach() - cross_entropy(other, soft))


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 5), st.integers(0, 100))
def test_a_softmax_server_gives_probabilities_and_their_gradient(stack, records, classes, seed):
    plain = Server(None, clients=2)
    server, nothing = Server(None, clients=2, softmax=True), ParameterStack(torch.empty(stack, 0), ())
    rows = random(stack, records, 2 * classes, seed=seed).requires_grad_()
    labels = labels_of(stack, records, classes, seed)
    outputs = functional.softmax(rows[..., :classes] + rows[..., classes:], dim=-1)
    (expected,) = torch.autograd.grad(cross_entropy(outputs, labels).sum() / 7, rows)
    got, pullback = server.vjp(nothing, rows.detach())
    assert torch.allclose(got, outputs, atol=1e-12)
    assert torch.equal(got, server.forward(nothing, rows.detach()))
    assert torch.allclose(pullback(loss_gradient(got, labels, None, 7))[1], expected, atol=1e-12)
    uploads = random(stack, 2, records, classes, seed=seed + 1)
    pair = server.pair_logits(nothing, rows.detach(), uploads, slice(0, classes))
    assert torch.allclose(pair, plain.pair_logits(nothing, rows.detach(), uploads, slice(0, classes)).softmax(2))
    moved = server.moved_logits(nothing, rows.detach(), uploads, slice(0, classes), 0.1)
    assert torch.allclose(moved, plain.moved_logits(nothing, rows.detach(), uploads, slice(0, classes), 0.1).softmax(2))


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 100), st.sampled_from(["fused", "loop", "vmap"]))
def test_per_record_gradients_are_each_records_own(stack, records, seed, strategy):
    architecture = MLP((4, 3, 2))
    server = evaluator_by(strategy, architecture)
    parameters = started(server, stack, seed)
    rows = random(stack, records, 4, seed=seed)
    labels = labels_of(stack, records, seed=seed)
    got = per_record_gradients(server, parameters, ServerBatch(rows, labels))
    for k in range(stack):
        module = module_of(architecture, parameters, k)
        for i in range(records):
            module.zero_grad()
            functional.cross_entropy(module(rows[k, i : i + 1]), labels[k, i : i + 1]).backward()
            own = torch.cat([p.grad.flatten() for p in module.parameters()])
            assert torch.allclose(got[k, i], own, rtol=1e-10, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 100),
    st.sampled_from([(4, 2), (4, 3, 2), (4, 3, 5, 2)]),
    st.sampled_from([0.05, 0.7, 100.0]),
    st.sampled_from(["plain", "padded", "overflowing"]),
)
def test_clipped_gradients_are_summed_without_being_formed(stack, records, seed, sizes, clip, kind):
    """The fused server's sum against that of the gradients one by one, by which any other server goes."""
    fused = Server(evaluator_for(MLP(sizes), stack=stack))
    formed = Server(evaluator_by("loop", MLP(sizes)))
    parameters = started(fused, stack, seed)
    rows = random(stack, records, 4, seed=seed)
    labels = labels_of(stack, records, seed=seed)
    weights = (random(stack, records, seed=seed + 1) > 0).double() if kind == "padded" else None
    finite = weights
    if kind == "overflowing":
        finite = torch.ones(stack, records, dtype=torch.float64)
        rows[0, 0], finite[0, 0] = float("inf"), 0.0
        rows[-1, -1, 1], finite[-1, -1] = 1e300, 0.0
    got, formed_with_all, expected = (
        clipped_gradient_sum(server, parameters, ServerBatch(rows, labels, counted), clip)
        for server, counted in ((fused, weights), (formed, weights), (formed, finite))
    )
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12), "what overflows counts as 0"
    for total in (got, formed_with_all):
        assert torch.isfinite(total).all()
        assert (torch.linalg.vector_norm(total, dim=1) <= records * clip * (1 + 1e-9)).all()


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 100),
    st.sampled_from([(4, 2), (4, 3, 2), (4, 3, 5, 2)]),
    st.sampled_from([0.05, 0.7, 100.0]),
    st.sampled_from(["plain", "padded", "overflowing"]),
    st.sampled_from(["fused", "loop"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_clipped_gradients_in_whole_steps(stack, records, seed, sizes, clip, kind, strategy, dtype):
    """Each record adds whole steps of a norm of at most 2^bits, in exact arithmetic, near its clipped gradient."""
    server = Server(evaluator_by(strategy, MLP(sizes)))
    parameters = started(server, stack, seed, dtype)
    rows = random(stack, records, 4, seed=seed).to(dtype)
    labels = labels_of(stack, records, seed=seed)
    weights = (random(stack, records, seed=seed + 1) > 0).to(dtype) if kind == "padded" else None
    if kind == "overflowing":
        rows[0, 0] = float("inf")
        rows[-1, -1, 1] = 3e38
    grid = Grid(clip, GRADIENT_BITS)
    total = torch.zeros(parameters.flat.shape, dtype=torch.float64)
    add_clipped_gradient_steps(server, parameters, ServerBatch(rows, labels, weights), grid, total)
    alone = torch.zeros_like(total)
    for i in range(records):
        weight = None if weights is None else weights[:, i : i + 1]
        batch = ServerBatch(rows[:, i : i + 1], labels[:, i : i + 1], weight)
        steps = torch.zeros_like(total)
        add_clipped_gradient_steps(server, parameters, batch, grid, steps)
        alone += steps
        expected = clipped_gradient_sum(server, parameters, batch, clip)
        for own, exact in zip(steps.tolist(), expected.double(), strict=True):
            assert all(n == int(n) for n in own)
            assert sum(int(n) ** 2 for n in own) <= 4**grid.bits
            # Directions of at most 6 entries in 2^9 steps are off by 2.5 of them; 10 lengths in 2^9 by 3.2.
            off = torch.tensor(own, dtype=torch.float64) * grid.step - exact
            # Norms that overflow float32 are finite here, so a record may be clipped where the other sum leaves it out.
            assert kind == "overflowing" or off.norm() <= 6e-5 * clip + (
                (3.5 * clip + 3 * exact.norm()) / 512 if strategy == "fused" else 0.0
            )
    assert torch.equal(total, total.round())
    # Evaluated together an activation may round otherwise, which moves a length or a direction by a step of its own.
    assert torch.allclose(total, alone, rtol=0, atol=0 if records == 1 else 2**10)


def test_per_record_gradients_of_a_convolution():
    architecture = Network(conv_net, ("strip", 1, (2, 2), (1, 4, 4), 2))
    server = evaluator_for(architecture, stack=2)
    parameters = started(server, 2)
    rows, labels = random(2, 3, 1, 4, 4), torch.tensor([[0, 1, 1], [1, 0, 1]])
    each = per_record_gradients(server, parameters, ServerBatch(rows, labels))
    logits, pullback = server.vjp(parameters, rows)
    together, _ = pullback(loss_gradient(logits, labels, None, 1))
    assert torch.allclose(each.sum(1), together, rtol=1e-10, atol=1e-12)


def test_one_records_numbers_do_not_reach_anothers_loss_or_gradient():
    """A record whose loss is not a number must not tell through its neighbours."""
    architecture = MLP((4, 3, 2))
    server = evaluator_for(architecture, stack=1)
    parameters = started(server)
    rows, labels = random(1, 3, 4), torch.tensor([[0, 1, 1]])
    clean = per_record_gradients(server, parameters, ServerBatch(rows, labels))
    losses = cross_entropy(server.forward(parameters, rows), labels)
    rows[0, 1] = float("inf")
    assert torch.equal(per_record_gradients(server, parameters, ServerBatch(rows, labels))[0, ::2], clean[0, ::2])
    assert torch.equal(cross_entropy(server.forward(parameters, rows), labels)[0, ::2], losses[0, ::2])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 100))
def test_pair_logits_are_the_rows_with_one_clients_slot_replaced(stack, records, width, client, seed):
    rows, uploads = random(stack, records, 3 * width, seed=seed), random(stack, 2, records, width, seed=seed + 1)
    slot = slice(client * width, (client + 1) * width)
    top = Server(evaluator_for(MLP((3 * width, 4, 2)), stack=stack))
    parameters = started(top, stack, seed)
    nothing = ParameterStack(torch.empty(stack, 0), ())
    before = rows.clone()
    for server, held in ((top, parameters), (Server(None, clients=3), nothing)):
        got = server.pair_logits(held, rows, uploads, slot)
        for side in range(2):
            replaced = rows.clone()
            replaced[..., slot] = uploads[:, side]
            half = got[:, side * records : (side + 1) * records]
            assert torch.allclose(half, server.forward(held, replaced), rtol=1e-12, atol=1e-12)
    assert torch.equal(rows, before)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 100)
)
def test_moved_logits_are_those_of_rows_with_one_clients_slot_moved(stack, q, records, width, client, seed):
    rows, shifts = random(stack, records, 3 * width, seed=seed), random(stack, q, records, width, seed=seed + 1)
    slot = slice(client * width, (client + 1) * width)
    held_before = rows.clone(), shifts.clone()
    servers = [(Server(None, clients=3), ParameterStack(torch.empty(stack, 0), ()))]
    for sizes in ((3 * width, 4, 2), (3 * width, 2)):
        for strategy in ("fused", "loop", "vmap"):
            top = Server(evaluator_by(strategy, MLP(sizes)))
            servers.append((top, started(top, stack, seed)))
    for server, held in servers:
        got = server.moved_logits(held, rows, shifts, slot, 0.3).unflatten(1, (q + 1, records))
        assert torch.allclose(got[:, 0], server.forward(held, rows), rtol=1e-12, atol=1e-12)
        for j in range(q):
            moved = rows.clone()
            moved[..., slot] += 0.3 * shifts[:, j]
            assert torch.allclose(got[:, j + 1], server.forward(held, moved), rtol=1e-12, atol=1e-12)
    assert torch.equal(rows, held_before[0])
    assert torch.equal(shifts, held_before[1])


def test_loss_difference_is_the_difference_of_losses():
    first, second, labels = random(2, 4, 3), random(2, 4, 3, seed=1), torch.randint(3, (2, 4))
    expected = cross_entropy(first, labels) - cross_entropy(second, labels)
    got = loss_differences(torch.cat((first, second), 1), labels)
    assert torch.allclose(got, expected, rtol=1e-12, atol=1e-13)
