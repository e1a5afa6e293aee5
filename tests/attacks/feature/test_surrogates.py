"""Surrogates of a client's model: what they leave of a record, and whom they find."""

import numpy as np
import pytest

from attacks.feature.surrogates import Surrogates, _squares


def layer(seed=0, n=200, d=4, width=6, noise=0.0):
    """Return features and the embeddings that a layer with ReLU makes of them."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((n, d))
    rows = np.maximum(features @ generator.standard_normal((d, width)), 0.0)
    return features, rows + noise * generator.standard_normal(rows.shape)


def test_what_is_left_of_a_record_is_what_a_surrogate_without_it_misses():
    """The closed form against 30 fits by hand, with the mean of all records."""
    features, embeddings = layer(n=30)
    surrogates = Surrogates(features)
    width, penalty = 1.0, 0.1
    fit = surrogates.fit(embeddings, width, penalty)
    rows = surrogates.rows
    kernel = surrogates._kernel(rows, width)
    for i in (0, 7, 29):
        rest = np.delete(np.arange(30), i)
        inverse = np.linalg.inv(kernel[np.ix_(rest, rest)] + penalty * np.eye(29))
        expected = kernel[i, rest] @ inverse @ (embeddings - fit.mean)[rest]
        assert fit.left[i] == pytest.approx(embeddings[i] - fit.mean - expected)


def test_an_embedding_is_nearest_to_its_own_record():
    features, embeddings = layer(n=400, width=12)
    best = Surrogates(features[:200]).best({"sent": embeddings[:200]})
    distances = best.distances(embeddings[200:], features[200:])
    assert (distances.argmin(1) == np.arange(200)).mean() > 0.9


def test_embeddings_that_tell_records_apart_win():
    features, embeddings = layer(n=200)
    noisy = embeddings + np.random.default_rng(1).standard_normal(embeddings.shape)
    assert Surrogates(features).best({"noisy": noisy, "clear": embeddings}).inputs == "clear"


def test_candidates_with_equal_features_are_equally_far():
    features, embeddings = layer(n=150)
    best = Surrogates(features[:100]).best({"sent": embeddings[:100]})
    distances = best.distances(embeddings[100:], np.concatenate((features[100:], features[100:])))
    assert np.array_equal(distances[:, :50], distances[:, 50:])


def test_errors_are_whitened():
    """A coordinate of pure noise, however large, counts for no more than its own deviation."""
    features, embeddings = layer(n=300)
    loud = np.c_[embeddings, 1e3 * np.random.default_rng(2).standard_normal(300)]
    surrogates = Surrogates(features)
    fit = surrogates.fit(loud, 1.0, 1e-2)
    squares = np.diag(_squares(loud, loud - fit.left, fit))
    assert squares.mean() == pytest.approx(7.0, rel=0.2)
