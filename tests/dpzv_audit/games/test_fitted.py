"""Scores fitted to views: each bug that a linear score misses is refuted, and the choice costs a true claim nothing."""

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.claims.api import verify_claim
from dpzv_audit.evidence.bounding import lower_bounds
from dpzv_audit.evidence.verdict import largest_gating
from dpzv_audit.games.fitting import WORDS, fit_score, fit_size
from dpzv_audit.games.planted import (
    PLANTED,
    early_stop,
    noise_by_label,
    sign_correlation,
    sound_view,
    uniform_noise,
)
from dpzv_audit.games.scores import scores_of
from dpzv_audit.games.transcript import World

from ...helpers.refusals import refused

BUGS = {
    "noise-by-label": noise_by_label,
    "uniform-noise": uniform_noise,
    "sign-correlation": sign_correlation,
    "early-stop": early_stop,
}
ALPHA = 1e-3


def both(draw, rng, n):
    """Views of "in" and of "out"."""
    return draw(World(rng, n, 1.0)), draw(World(rng, n, -1.0))


def fitted_to(inside, outside, **options):
    """Scores of views, fitted to the first of them."""
    return scores_of({"in_features": inside, "out_features": outside}, **options)


def bound(draw, seed, *, pairs=2000, kinds=tuple(WORDS), confidence=1.0 - ALPHA):
    """The epsilon that `pairs` pairs certify, a fifth of them in the fit, and the kind of score."""
    scores = fitted_to(*both(draw, np.random.default_rng(seed), pairs), kinds=kinds)
    found = lower_bounds(scores, delta=1e-5, confidence=confidence, seed=seed)
    return largest_gating(found), scores.fitted["fitted_score"].partition(":")[0]


def refuted(draw, seeds, **options):
    return sum(bound(draw, seed, **options)[0] > 1.0 for seed in seeds)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if place % 2 else name for place, name in enumerate(BUGS)]
)
def test_a_bug_that_a_linear_score_misses_is_refuted(name):
    """At 2,000 pairs and alpha 1e-3, in both seeds; a linear score refutes it in neither."""
    assert refuted(BUGS[name], range(2)) == 2
    assert refuted(BUGS[name], range(2), kinds=("linear",)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_refuted_in_18_of_20_seeds(name):
    assert refuted(BUGS[name], range(100, 120)) >= 18


@pytest.mark.ci
@pytest.mark.parametrize(
    ("seeds", "pairs"), [(6, 500), pytest.param(200, 2000, marks=pytest.mark.slow, id="200 seeds, 2000 pairs")]
)
def test_the_choice_refutes_no_true_claim(seeds, pairs):
    """The channel as designed at its own epsilon of 1, alpha 1e-3: of 200 more than 3 come with probability 5.5e-5."""
    assert refuted(sound_view, range(seeds), pairs=pairs) <= stats.binom.ppf(1 - 1e-4, seeds, ALPHA)


@pytest.mark.slow
def test_a_linear_leak_gets_a_linear_score_and_the_same_bound():
    """Where the sum is the likelihood ratio, richer scores gain nothing, and the plain one is kept."""

    def leak(world):
        return world.sign * 0.6 + world.generator.standard_normal((world.runs, 4))

    kinds = []
    for seed in range(4):
        chosen, kind = bound(leak, seed, confidence=0.95)
        kinds.append(kind)
        linear, _ = bound(leak, seed, kinds=("linear",), confidence=0.95)
        assert chosen == pytest.approx(linear, abs=0.0 if kind == "linear" else 0.6)
    assert kinds.count("linear") >= 3


@pytest.mark.ci
def test_the_choice_looks_at_the_fitting_part_alone():
    """Other held-out views leave the chosen score as it was, to the last bit; so does a repeat."""
    inside, outside = both(sign_correlation, np.random.default_rng(0), 600)
    cut = fit_size(600)
    first = fitted_to(inside, outside)
    again = fitted_to(
        np.concatenate([inside[:cut], 5.0 + inside[cut:-50], inside[-50:]]),
        np.concatenate([outside[:cut], -outside[cut:]]),
    )
    alone = fit_score(inside[:cut], outside[:cut])
    assert alone.kind != "linear"
    assert first.fitted == again.fitted == alone.facts
    np.testing.assert_array_equal(first.in_scores[-50:], again.in_scores[-50:])
    np.testing.assert_array_equal(first.in_scores, alone.score(inside[cut:]))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 3, 30, 300])
def test_views_of_any_width_and_constant_numbers_are_fitted(width):
    """At the least size of a fit; a number that never changes says nothing and breaks nothing."""
    inside, outside = np.random.default_rng(2).normal(size=(2, 25, width))
    inside[:, 0] = outside[:, 0] = 7.0
    for kind in WORDS:
        scores = fitted_to(inside, outside, kinds=(kind,))
        assert all(side.shape == (5,) and np.isfinite(side).all() for side in (scores.in_scores, scores.out_scores))
    with refused("use more than 20"):
        fitted_to(inside[:20], outside[:20])


class Views:
    """The planted bug `early-stop` as a mechanism of one's own, one run or many at a time."""

    def __init__(self, draw):
        self.draw = draw

    def run_batch(self, world, rng, n):
        return both(self.draw, rng, n)[1 - world]


def test_verify_fits_a_score_to_views_and_names_it():
    found = verify_claim(mechanism=Views(early_stop), epsilon=1.0, delta=1e-5)
    assert found.verdict == "refuted"
    facts = found.entry.facts
    assert facts["fitted_score"].startswith("boosted: ")
    assert facts["fitted_on"] == "400 + 400 further runs"
    assert "linear 0." in facts["chosen_by"]
    true = verify_claim(mechanism=Views(sound_view), epsilon=1.0, delta=1e-5, max_trials=2000)
    assert true.verdict == "inconclusive"


def test_a_view_that_is_vouched_to_be_gaussian_gets_a_linear_score():
    """No other score of a Gaussian view is Gaussian."""
    found = verify_claim(mechanism=Views(sound_view), epsilon=1.0, delta=1e-5, exactly_gaussian=True, max_trials=1000)
    assert found.entry.facts["fitted_score"].startswith("linear: ")
    assert found.verdict == "inconclusive"


def test_planted_views_are_registered_with_what_they_must_get():
    expected = {name: tuple(PLANTED[name].expected) for name in (*BUGS, "sound-view")}
    assert expected == dict.fromkeys(BUGS, ("refuted",)) | {"sound-view": ("supported",)}
