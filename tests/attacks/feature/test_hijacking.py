"""Reconstruction by a server whose answers train the client to give its features away."""

import numpy as np
import pytest
import torch

from attacks.core.setting import abilities
from attacks.core.spec import DoesNotApply
from attacks.feature import inversion
from attacks.feature.hijacking import HONEST, IGNORED, IGNORED_HONEST, SPEC, Hijacker, spread

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset


def mounted(data, *, method="split", spec=SPEC, **rest):
    own = {"permutations": 1, "known_records": 100, **rest.pop("own", {})}
    options = {"batch_size": 64, "epochs": 6, "embedding": 4, "client_rate": 0.02, **rest.pop("options", {})}
    return mount(spec, method, data, options=options, options_of_attack=own, **{"trials": 2, **rest})


def test_spread_is_the_gradient_of_its_objective():
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 3))).requires_grad_()
    about = rows - rows.mean(0)
    covariance = about.T @ about / 20 + 1e-2 * torch.eye(3, dtype=torch.float64)
    objective = 0.5 * rows.square().sum(1).mean() - 0.5 * torch.logdet(covariance)
    (gradient,) = torch.autograd.grad(objective, rows)
    assert torch.allclose(spread(0, rows.detach()), gradient, rtol=0, atol=1e-12)


def test_client_1_alone_gets_other_answers_as_long_as_the_honest_ones():
    rows = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0))
    honest = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(1))
    server = Hijacker(spread)
    assert server.answer(2, None, rows, honest) is honest
    own = server.answer(1, None, rows, honest)
    assert not torch.isclose(own, honest).any(dim=2).all()
    assert torch.allclose(own.norm(dim=(1, 2)), honest.norm(dim=(1, 2)))


def test_hijacking_gets_more_than_an_honest_server_and_can_be_noticed(digits):
    """Four numbers for 16 pixels: 0.83 against 0.73 of four trainings each, with a spread of 0.02 over seeds."""
    outcome = mounted(digits, trials=4, with_positive=False)
    assert outcome.success.value > outcome.measures[HONEST].value + 0.02
    assert outcome.controls["other_records"].holds
    assert outcome.measures[IGNORED].value > 0.9
    assert outcome.measures[IGNORED_HONEST].value < 0.05


def test_a_client_that_checks_answers_is_not_hijacked(digits):
    defended = mounted(digits, trials=4, pilot=True, options={"defences": ({"name": "answer-check"},)})
    plain = mounted(digits, trials=4, pilot=True)
    assert defended.success.value < plain.success.value - 0.02


def test_the_published_objective_trains_networks_of_each_replica(digits):
    first, again = (mounted(digits, pilot=True, own={"objective": "published"}) for _ in range(2))
    assert first.by_trial == again.by_trial
    assert len(set(first.by_trial["success"])) == 2


@pytest.mark.parametrize("method", ["dpzv", "zoo-vfl", "fixed-features"])
def test_clients_that_follow_no_gradient_are_not_hijacked(method):
    with refused("its clients step by no gradient that the server sends; use split, vafl or compressed", DoesNotApply):
        mount(SPEC, method, random_dataset(), trials=1)


def test_a_malicious_server_can_do_what_a_server_can():
    assert abilities("malicious-server") == ("malicious-server", "server")
    assert abilities("server") == ("server",)
    assert inversion.SPEC.setup.options.keys() - {"target"} < SPEC.setup.options.keys()
