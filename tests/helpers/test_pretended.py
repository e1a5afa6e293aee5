"""The pretended GPU refuses what a GPU refuses, takes what one takes, and computes what the machine computes."""

import pytest
import torch

from .pretended import OnDevice, pretended_cuda, waits


@pytest.fixture
def away():
    with pretended_cuda():
        yield torch.arange(12.0).view(3, 4).to("cuda")


HERE = torch.arange(12.0).view(3, 4)
IDS = torch.tensor([2, 0])

REFUSED = {
    "sum": lambda away: away + HERE,
    "product": lambda away: HERE @ away.mT,
    "in place": lambda away: away.clone().add_(HERE),
    "out": lambda away: torch.mm(HERE, HERE.mT, out=away.new_empty(3, 3)),
    "together": lambda away: torch.cat((away, HERE)),
    "solving": lambda away: torch.linalg.solve(away[:, :3] + torch.eye(3), away),
    "gathering": lambda away: away.gather(0, IDS[:, None]),
    "rows": lambda away: away.index_select(0, IDS),
    "an index there for a tensor here": lambda away: HERE[IDS.to(away.device)],
    "writing there by an index": lambda away: away.clone().__setitem__(IDS, HERE[:2]),
    "writing here by an index": lambda away: HERE.clone().__setitem__(IDS, away[:2]),
    "scattering": lambda away: torch.zeros(3, 4).scatter_(0, IDS[:, None].to("cuda"), 1.0),
    "a module here": lambda away: torch.nn.Linear(4, 2)(away),
    "under vmap": lambda away: torch.func.vmap(torch.add)(away, HERE),
    "numpy": lambda away: away.numpy(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_two_places_are_not_mixed(name, away):
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[name](away)


TAKEN = {
    "a number": lambda x: x * torch.tensor(2.0),
    "an index": lambda x: x[IDS],
    "writing by an index": lambda x: x.clone().index_put_((IDS,), torch.tensor(5.0)),
    "a copy": lambda x: x.clone().copy_(HERE),
    "like it": lambda x: torch.from_numpy(HERE.double().numpy()).to(x) + x,
    "new ones": lambda x: torch.cat((x.new_zeros(1, 4), torch.ones(1, 4, device=x.device), torch.ones_like(x))),
    "views": lambda x: x.clone().view(-1)[2:6].fill_(7.0),
    "one-hot": lambda x: torch.nn.functional.one_hot(x.long()[0], 4),
    "vmap": lambda x: torch.func.vmap(lambda row: row.softmax(0))(x),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_is_what_the_machine_computes(name, away):
    found = TAKEN[name](away)
    assert isinstance(found, OnDevice)
    assert found.device == torch.device("cuda", 0)
    assert torch.equal(found.cpu(), TAKEN[name](HERE))
    assert found.tolist() == TAKEN[name](HERE).tolist()


WAITED = {
    "a mask": lambda x: x[x > 3],
    "writing by a mask": lambda x: x.clone().__setitem__(x > 3, x[0].repeat(2)),
    "an index here": TAKEN["an index"],
    "a copy of what is here": TAKEN["a copy"],
    "a copy to here": lambda x: torch.zeros(3, 4).copy_(x),
    "a list": lambda x: torch.tensor([1.0], device="cuda"),
    "what differs": torch.unique,
    "counts": lambda x: x.long()[0].bincount(),
    "times that are there": lambda x: torch.repeat_interleave(x[0].long()),
    "a number": lambda x: float(x.sum()),
}
NOT_WAITED = {
    "an index there": lambda x: x[torch.arange(2, device="cuda")],
    "writing by an index there": lambda x: x.clone().__setitem__(torch.arange(2, device="cuda"), 0.0),
    "filling by a mask": lambda x: x.clone().__setitem__(x > 3, 0.0),
    "so many times": lambda x: x.repeat_interleave(2, 0),
    "a copy there": lambda x: torch.zeros(3, 4, device="cuda").copy_(x),
    "pinned": lambda x: HERE.pin_memory().to("cuda", non_blocking=True),
}


@pytest.mark.parametrize("name", [*WAITED, *NOT_WAITED])
def test_what_a_gpu_is_waited_for_is_noted(name, away):
    waits.clear()
    {**WAITED, **NOT_WAITED}[name](away)
    assert bool(waits) == (name in WAITED)


def test_a_view_shares_its_numbers_and_a_copy_does_not(away):
    copied = away.cpu()
    away[1].zero_()
    assert float(away.sum()) == float(HERE.sum()) - float(HERE[1].sum())
    assert torch.equal(copied, HERE)


def test_gradients_are_there_too(away):
    leaf = away.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf.relu() ** 2).sum(), leaf)
    assert isinstance(gradient, OnDevice)
    assert torch.equal(gradient.cpu(), 2 * HERE)
