import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attacks.gradient.estimates import (
    correlation,
    expected_cosine,
    forward_difference_error,
    label_prior_std,
    minimum_norm,
    ridge,
)
from dpzv_audit.base.errors import NotFinite

from ...helpers.refusals import refused

ESTIMATORS = {
    "correlation": correlation,
    "minimum_norm": minimum_norm,
    "ridge": lambda u, s, **options: ridge(u, s, noise_std=0.1, prior_std=0.3, **options),
}


def _gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _scalars(directions, gradients, *, per_record):
    inner = (directions * gradients[:, None]).sum(-1)
    return inner if per_record else inner.mean(-1)


def _problem(batches, queries, records, classes, *, per_record=False, seed=0):
    directions = _gaussian(batches, queries, records, classes, seed=seed)
    gradients = _gaussian(batches, records, classes, seed=seed + 1)
    return directions, gradients, _scalars(directions, gradients, per_record=per_record)


@settings(max_examples=40, deadline=None)
@given(
    batches=st.integers(1, 3),
    records=st.integers(1, 6),
    classes=st.integers(2, 5),
    extra=st.integers(3, 20),
    per_record=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_exact_from_as_many_queries_as_unknowns(batches, records, classes, extra, per_record, seed):
    dimension = classes if per_record else records * classes
    directions, gradients, scalars = _problem(
        batches, dimension + extra, records, classes, per_record=per_record, seed=seed
    )
    torch.testing.assert_close(minimum_norm(directions, scalars), gradients, rtol=0, atol=1e-8)
    unpenalised = ridge(directions, scalars, noise_std=0.0, prior_std=1.0)
    torch.testing.assert_close(unpenalised, gradients, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("records", "classes"), [(1, 10), (8, 10), (64, 10)])
def test_exact_at_exactly_as_many_queries_as_unknowns(records, classes):
    directions, gradients, scalars = _problem(1, records * classes, records, classes, seed=5)
    torch.testing.assert_close(minimum_norm(directions, scalars), gradients, rtol=0, atol=1e-8)


def test_single_precision_input_is_solved_in_double_precision():
    directions, gradients, _ = _problem(2, 40, 3, 4)
    directions = directions.float()
    scalars = _scalars(directions.double(), gradients, per_record=False)
    estimate = minimum_norm(directions, scalars)
    assert estimate.dtype == torch.float64
    torch.testing.assert_close(estimate, gradients, rtol=0, atol=1e-8)


@pytest.mark.parametrize("queries", [1, 5, 11, 12, 30])
@pytest.mark.parametrize("per_record", [False, True])
def test_minimum_norm_is_the_pseudo_inverse(queries, per_record):
    # Scalars that no gradient explains, so that least squares is tested and not interpolation alone.
    directions = _gaussian(2, queries, 3, 4, seed=queries)
    scalars = _gaussian(2, queries, 3, seed=99) if per_record else _gaussian(2, queries, seed=99)
    estimate = minimum_norm(directions, scalars)
    for batch in range(2):
        if per_record:
            reference = [torch.linalg.pinv(directions[batch, :, i]) @ scalars[batch, :, i] for i in range(3)]
            expected = torch.stack(reference)
        else:
            expected = (torch.linalg.pinv(directions[batch].flatten(1) / 3) @ scalars[batch]).reshape(3, 4)
        torch.testing.assert_close(estimate[batch], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("queries", [4, 12, 30])
def test_rank_deficient_directions_get_the_pseudo_inverse_and_leave_other_batches_alone(queries):
    directions, _, scalars = _problem(3, queries, 3, 4, seed=queries)
    directions[1, 1] = directions[1, 0]
    directions[1, :, 2] = 0.0
    estimate = minimum_norm(directions, scalars)
    for batch in range(3):
        expected = torch.linalg.pinv(directions[batch].flatten(1) / 3) @ scalars[batch]
        torch.testing.assert_close(estimate[batch], expected.reshape(3, 4), rtol=1e-8, atol=1e-9)
    assert torch.equal(
        minimum_norm(torch.zeros(1, queries, 3, 4), torch.ones(1, queries)), torch.zeros(1, 3, 4).double()
    )


@pytest.mark.parametrize("queries", [6, 40])
def test_ridge_minimises_its_own_objective(queries):
    directions = _gaussian(1, queries, 2, 5, seed=3)
    scalars = _gaussian(1, queries, seed=4)
    noise_std, prior_std = 0.2, 0.7
    estimate = ridge(directions, scalars, noise_std=noise_std, prior_std=prior_std)
    estimate.requires_grad_()
    misfit = (_scalars(directions, estimate, per_record=False) - scalars).square().sum() / noise_std**2
    (slope,) = torch.autograd.grad(misfit + estimate.square().sum() / prior_std**2, estimate)
    assert slope.abs().max() < 1e-9


@pytest.mark.parametrize("queries", [4, 11, 30])
@pytest.mark.parametrize("per_record", [False, True])
def test_ridge_tends_to_minimum_norm_as_the_noise_vanishes(queries, per_record):
    directions, _, scalars = _problem(2, queries, 3, 4, per_record=per_record, seed=8)
    limit = minimum_norm(directions, scalars)
    gaps = [
        float((ridge(directions, scalars, noise_std=noise, prior_std=1.0) - limit).abs().max())
        for noise in (0.3, 1e-2, 1e-4, 1e-6)
    ]
    assert gaps[0] > 1e-3
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[3] < 1e-7
    assert torch.equal(ridge(directions, scalars, noise_std=0.0, prior_std=1.0), limit)


def test_ridge_without_signal_is_the_prior_mean():
    directions, _, scalars = _problem(2, 9, 3, 4)
    estimate = ridge(directions, scalars, noise_std=1e9, prior_std=1.0)
    torch.testing.assert_close(estimate, torch.zeros_like(estimate), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_per_record_equals_per_batch_at_batch_size_one(name):
    for queries in (1, 3, 5, 12):
        directions, _, scalars = _problem(4, queries, 1, 5, seed=queries)
        one_a_batch = ESTIMATORS[name](directions, scalars)
        one_a_record = ESTIMATORS[name](directions, scalars.unsqueeze(-1))
        torch.testing.assert_close(one_a_batch, one_a_record, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("per_record", [False, True])
def test_batches_are_independent(name, per_record):
    directions, _, scalars = _problem(3, 7, 3, 4, per_record=per_record)
    together = ESTIMATORS[name](directions, scalars)
    for batch in range(3):
        alone = ESTIMATORS[name](directions[batch : batch + 1], scalars[batch : batch + 1])
        torch.testing.assert_close(together[batch], alone[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sphere", [False, True])
@pytest.mark.parametrize("per_record", [False, True])
def test_correlation_is_unbiased(sphere, per_record):
    """Mean of 200,000 single-query estimates; false-alarm rate 1e-4 in normal approximation.

    For s = <a, u> + e the estimate s u of a has variance |a|^2 + a_k^2 + std(e)^2 (Gaussian u) or
    d/(d+2) (|a|^2 + 2 a_k^2) - a_k^2 + std(e)^2 (sphere of radius sqrt(d)); Bonferroni over coordinates.
    """
    queries, records, classes, noise_std = 200_000, 2, 3, 0.5
    directions = _gaussian(1, queries, records, classes, seed=21)
    axes = (-1,) if per_record else (-2, -1)
    dimension = classes if per_record else records * classes
    if sphere:
        directions *= math.sqrt(dimension) / directions.square().sum(axes, keepdim=True).sqrt()
    gradients = _gaussian(1, records, classes, seed=22)
    scalars = _scalars(directions, gradients, per_record=per_record)
    scalars += noise_std * _gaussian(*scalars.shape, seed=23)
    scale = 1 if per_record else records
    slope = gradients / scale
    squared_norm = slope.square().sum(axes, keepdim=True)
    if sphere:
        variance = dimension / (dimension + 2) * (squared_norm + 2 * slope**2) - slope**2
    else:
        variance = squared_norm + slope**2
    standard_error = scale * ((variance + noise_std**2) / queries).sqrt()
    z = (correlation(directions, scalars) - gradients) / standard_error
    assert z.abs().max() < stats.norm.isf(1e-4 / (2 * z.numel()))
    # The test can see a wrong scale: 2% off is beyond the limit in some coordinate.
    assert ((1.02 * correlation(directions, scalars) - gradients) / standard_error).abs().max() > 6


def test_prior_std_is_the_root_mean_square_of_exact_gradients():
    for classes in (2, 10, 100):
        gradient = torch.full((classes,), 1 / classes, dtype=torch.float64)
        gradient[0] -= 1
        assert label_prior_std(classes) == pytest.approx(float(gradient.square().mean().sqrt()))


@pytest.mark.parametrize("records", [1, 16])
def test_forward_difference_error_is_that_of_cross_entropy(records):
    # 40,000 directions at logits 0, where the formula is exact but for O(mu^2). For one record 10 u^T H u is
    # chi^2 with 9 degrees of freedom, x: E[x^2] = 99, std(x^2) = 97.5, so the relative standard error of the
    # root mean square is 97.5 / 99 / 2 / 200 = 0.0025 at most; beyond 4 of them with probability 7e-5.
    step, classes = 1e-3, 10
    u = _gaussian(40_000, records, classes, seed=31)
    labels = torch.zeros(40_000 * records, dtype=torch.int64)
    loss = torch.nn.functional.cross_entropy((step * u).flatten(0, 1), labels, reduction="none") - math.log(classes)
    exact = u.mean(-1) - u[..., 0]
    error = (loss.reshape(-1, records) / step - exact).mean(-1)
    measured = float(error.square().mean().sqrt())
    assert measured == pytest.approx(forward_difference_error(step, classes, records=records), rel=0.01)


def test_numbers_of_a_training_that_diverged_are_named():
    directions, _, scalars = _problem(2, 5, 3, 4)
    wrong_scalars = torch.full_like(scalars, float("nan"))
    for call, word in (
        (lambda: correlation(directions, wrong_scalars), "scalars"),
        (lambda: minimum_norm(directions / 0, scalars), "directions"),
    ):
        with refused(word, NotFinite):
            call()


@pytest.mark.parametrize(("queries", "noise"), [(60, 0.0), (60, 0.5), (60, 2.0), (200, 0.5), (400, 0.0), (400, 1.0)])
def test_ridge_reaches_the_cosine_that_theory_expects(queries, noise):
    """40 gradients of 200 coordinates: their mean cosine is within 0.03 of the limit in which q and d grow."""
    gradients = _gaussian(40, 20, 10, seed=1)
    norm = gradients.flatten(1).norm(dim=1)
    directions = _gaussian(40, queries, 20, 10, seed=2)
    error = noise * norm / 20  # a scalar is a mean over 20 records
    scalars = _scalars(directions, gradients, per_record=False) + error[:, None] * _gaussian(40, queries, seed=3)
    estimate = ridge(directions, scalars, noise_std=float(error.mean()), prior_std=1.0)
    cosines = torch.nn.functional.cosine_similarity(estimate.flatten(1), gradients.flatten(1))
    expected = expected_cosine(queries, 200, noise_to_signal=noise)
    assert abs(float(cosines.mean()) - expected) < 0.03


def test_theory_at_its_ends():
    assert expected_cosine(25, 100, noise_to_signal=0.0) == pytest.approx(0.5)
    assert expected_cosine(100, 100, noise_to_signal=0.0) == pytest.approx(1.0)
    assert expected_cosine(300, 100, noise_to_signal=0.0) == pytest.approx(1.0)
    assert expected_cosine(10, 100, noise_to_signal=1e6) < 1e-5


def test_a_correlation_grows_with_the_variance_of_its_directions():
    directions, _, scalars = _problem(2, 9, 3, 4)
    shrunk = correlation(directions / 12**0.5, scalars / 12**0.5)
    torch.testing.assert_close(shrunk, correlation(directions, scalars) / 12)
