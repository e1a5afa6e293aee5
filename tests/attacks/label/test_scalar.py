"""Pooling of an honest client's scalars, through the real training paths."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from attacks.core.run import attacked_run
from attacks.label.scalar import SPEC, Design, fourier_features, infer, likeliest_means, measurements_of

from ...helpers.refusals import refused
from ..conftest import mount, small_setting

LONG = {"batch_size": 64, "epochs": 40}


def mounted(method, data, *, options=None, **rest):
    options = {**LONG, **(options or {})}
    return mount(SPEC, method, data, options=options, **rest)


@pytest.mark.parametrize("method", ["dpzv", pytest.param("cascaded", marks=pytest.mark.slow)])
def test_scalars_without_noise_tell_labels_that_features_of_one_client_are_about(method, digits):
    """About 0.33 of labels at 220 rounds a client, three times a guess; without the right scalars a guess remains."""
    outcome = mounted(method, digits, trials=3)
    assert outcome.success.value > 0.25
    assert outcome.baselines["the same scalars in another order"].value < 0.17
    assert outcome.controls["shuffled_labels"].holds


@pytest.mark.slow
def test_more_directions_a_round_tell_more(digits):
    few, many = (mounted("czofo", digits, options={"directions": q, "epochs": 12}, trials=2) for q in (1, 8))
    assert many.success.value > few.success.value + 0.05


@pytest.mark.slow
def test_who_colludes_pools_the_directions_that_each_client_shares(digits):
    """All four find nearly all where client 1, which holds a margin, finds 0.56."""
    outcome = mounted("czofo", digits, adversary="colluding-clients", trials=2)
    assert outcome.success.value > 0.95
    assert outcome.baselines["the same scalars in another order"].value < 0.2


def test_noise_hides_labels(digits):
    """Noise of 100 on scalars of about 0.1: at most a few in a thousand over a guess, over 4 trials of 1,408 records.

    Labels of a class move together, so the bound leaves room: 0.2 is twice a guess.
    """
    assert mounted("dpzv", digits, options={"sigma": 100.0}, trials=4).success.value < 0.2


@pytest.mark.parametrize("adversary", ["client", pytest.param("colluding-clients", marks=pytest.mark.ci)])
def test_the_positive_control_finds_planted_labels(digits, adversary):
    options = {"epochs": 8}
    outcome = mounted("dpzv", digits, options=options, trials=2, adversary=adversary, with_positive=True)
    assert outcome.controls["positive"].value > 0.95
    assert outcome.controls["positive"].holds


def test_moves_are_the_jacobian_times_the_direction():
    """A linear layer's output moves by U x + b for a direction (U, b) of its weights and biases."""
    setting = small_setting(SPEC, options={"dtype": "float64"}, trials=2)
    run = attacked_run(SPEC, setting)
    design = measurements_of(run.view, run.known)
    moves, ids = design.moves, design.ids
    directions = run.view.noted(1, "direction")
    assert design.scalars.shape == moves.shape[:2] == (12, 2)
    features = torch.from_numpy(setting.dataset.train.features[0]).double()
    weights, bias = directions[..., :12].unflatten(2, (4, 3)), directions[..., 12:]
    expected = features[ids] @ weights.mT + bias.unsqueeze(2)
    assert torch.allclose(moves, expected, atol=1e-7)


@pytest.mark.parametrize(("method", "options"), [("dpzv", {"clip": 0.05}), ("zoo-vfl", {})])
def test_all_clients_together_know_what_each_label_would_tell(method, options):
    """Without noise a scalar is the mean of what the true labels would tell, whatever the clip (0.05 bites)."""
    setting = small_setting(
        SPEC, method, options={"dtype": "float64", **options}, trials=2, adversary="colluding-clients"
    )
    run = attacked_run(SPEC, setting)
    design = measurements_of(run.view, run.known)
    assert len(design.scalars) == run.trained.rounds
    labels = torch.from_numpy(setting.labels)[design.ids].unsqueeze(3)
    under = -design.moves
    expected = under.gather(3, labels).mean((2, 3)) - under.mean((2, 3))
    assert torch.allclose(design.scalars, expected, atol=1e-6)
    assert design.noise == 0.0
    if "clip" in options:
        assert (under.abs() == options["clip"]).double().mean() > 0.1


@pytest.mark.slow
def test_some_clients_pool_their_features_and_scalars(digits):
    """Clients 2 and 3 see the middle of a digit: more than either finds, and all clients find nearly all labels."""

    def found(by, clients):
        setting = small_setting(SPEC, "dpzv", digits, options=LONG, trials=1, adversary=by, clients=clients)
        run = attacked_run(SPEC, setting)
        return (infer(run.view, run.known).labels[0, 0].numpy() == setting.labels).mean()

    alone, pair, every = found("client", (2,)), found("colluding-clients", (2, 3)), found("colluding-clients", ())
    assert every > 0.95
    assert every > pair > alone + 0.1


@pytest.mark.parametrize(("noise", "near"), [(1e-4, 1e-5), (0.1, 1e-4)])
def test_posterior_mean_is_that_of_the_dense_gaussian(noise, near):
    """Against the textbook formula with every matrix written out; under more noise in single precision."""
    generator = np.random.default_rng(0)
    rounds, batch, classes, records = 5, 3, 4, 6
    moves = generator.standard_normal((rounds, batch, classes))
    ids = np.stack([generator.permutation(records)[:batch] for _ in range(rounds)])
    features = fourier_features(generator.standard_normal((records, 2)), 0, 128)
    scalars = generator.standard_normal(rounds)
    design = np.zeros((rounds, records, classes))
    for t in range(rounds):
        for b in range(batch):
            design[t, ids[t, b]] += (moves[t, b] - moves[t, b].mean()) / batch
    flat = design.reshape(rounds, -1)
    kernel = 0.9 * features @ features.T + 0.1 * np.eye(records)
    covariance = np.kron(kernel, np.eye(classes)) / classes
    gram = flat @ covariance @ flat.T
    gram += (noise**2) * np.eye(rounds)
    expected = (covariance @ flat.T @ np.linalg.solve(gram, scalars)).reshape(records, classes)
    stated = Design.of(moves, ids, records, noise=noise)
    near_features = stated.under(features)
    assert np.allclose(near_features.mean(scalars), expected, rtol=near, atol=near / 1e3)
    density = multivariate_normal(cov=gram).logpdf(scalars) + 0.5 * rounds * np.log(2.0 * np.pi)
    assert np.isclose(near_features.likelihood(scalars), density, rtol=near)
    # Of two kernels that under which scalars are likelier, whichever comes first; half of them are drawn under each.
    alike = stated.under(np.ones((records, 1)))
    roots = [np.tril(weighed.factor[0]) for weighed in (near_features, alike)]
    orders = np.stack([root @ draw for root in roots for draw in generator.standard_normal((5, rounds))])
    better = [max((near_features, alike), key=lambda weighed: weighed.likelihood(order)) for order in orders]
    assert {weighed is alike for weighed in better} == {True, False}
    for kernels in ((features, alike.features), (alike.features, features)):
        chosen = likeliest_means(orders, moves, ids, kernels, noise=noise)
        for mean, weighed, order in zip(chosen, better, orders, strict=True):
            assert np.array_equal(mean, weighed.mean(order))


def test_fourier_features_are_a_gaussian_kernel():
    block = np.random.default_rng(0).standard_normal((40, 3))
    products = fourier_features(block, 0, 128) @ fourier_features(block, 0, 128).T
    distances = ((block[:, None] - block[None]) ** 2).sum(2)
    # The error of 128 random frequencies is about 1/sqrt(128) = 0.09 in each of 1,600 entries.
    assert np.abs(products - np.exp(-distances / (2 * block.var(0).sum()))).mean() < 0.1


@pytest.mark.parametrize("method", ["split", "vafl"])
def test_it_is_for_scalars(method):
    with refused("its server sends gradients, not scalars"):
        mount(SPEC, method)
