"""Decoders of features from embeddings, and the test that a control is at chance."""

import numpy as np
import pytest
from scipy.stats import kstest

from attacks.core.controls import by_pairing
from attacks.feature.decoders import _makers, best_decoder, fitted


def relu_records(seed, n=600, d=4, width=16, noise=0.0):
    """Return embeddings of a layer with ReLU, and the features that they are of."""
    generator = np.random.default_rng(seed)
    features = generator.uniform(0, 1, (n, d))
    weights = generator.standard_normal((d, width))
    rows = np.maximum((features - 0.5) @ weights + 0.1 * generator.standard_normal(width), 0.0)
    return rows + noise * generator.standard_normal(rows.shape), features


def explained(guess, real):
    return 1.0 - ((guess - real) ** 2).sum() / ((real - real.mean(0)) ** 2).sum()


@pytest.mark.parametrize("name", ["ridge", "kernel ridge", "inverse network"])
def test_every_decoder_keeps_the_contract(name):
    """Fitted on 200 records each explains most of the others, and stays within the range of the known ones."""
    rows, features = relu_records(0)
    predict = fitted(_makers(1, 0)[name], rows[:200], features[:200])
    guess = predict(rows[200:])
    assert guess.shape == (400, 4)
    assert explained(guess, features[200:]) > 0.7
    far = predict(1e6 * rows[200:])
    assert (far >= features[:200].min(0)).all()
    assert (far <= features[:200].max(0)).all()


@pytest.mark.parametrize("m", [2, 3, 10, 40])
def test_few_known_records_and_one_column_suffice(m):
    rows, features = relu_records(1)
    decoder = best_decoder({"all": rows[:m]}, features[:m, :1], seed=0)
    assert np.isfinite(decoder.predict(rows)).all()
    assert decoder.predict(rows).shape == (600, 1)
    assert decoder.refit(features[:m, :1])(rows).shape == (600, 1)


def test_a_unit_that_is_active_for_one_known_record_does_not_lead_astray():
    """Planted: a unit moves for one known record a little, and for one in ten of the others a lot."""
    rows, features = relu_records(2)
    rows = np.c_[rows, np.zeros(600)]
    rows[0, -1] = 1e-6
    rows[200::10, -1] = 5.0
    predict = fitted(_makers(1, 0)["ridge"], rows[:200], features[:200])
    assert explained(predict(rows[200:]), features[200:]) > 0.7


def test_the_reading_with_less_noise_wins():
    clear, features = relu_records(3)
    noisy = clear + np.random.default_rng(0).standard_normal(clear.shape)
    decoder = best_decoder({"noisy": noisy[:200], "clear": clear[:200]}, features[:200], seed=0)
    assert decoder.inputs == "clear"


def test_many_small_errors_outweigh_a_few_large_ones():
    """Two readings err alike in squares: one a little for all records, the other a lot for one in a hundred."""
    generator = np.random.default_rng(5)
    features = generator.uniform(0, 1, (400, 1))
    blurred = features + 0.1 * generator.standard_normal(features.shape)
    spiked = features.copy()
    spiked[::100] += 1.0
    decoder = best_decoder({"blurred": blurred, "spiked": spiked}, features, seed=0, trained=False)
    assert decoder.inputs == "spiked"
    assert decoder.error < 0.1**2


@pytest.mark.ci
def test_p_values_of_the_control_are_uniform_without_a_leak():
    """Decoders of 200 systems whose embeddings owe nothing to features: Kolmogorov-Smirnov at an error of 1e-4."""
    p_values = []
    for seed in range(200):
        generator = np.random.default_rng([7, seed])
        rows, features = generator.standard_normal((300, 8)), generator.exponential(size=(300, 5)) ** 2
        predict = fitted(_makers(1, 0)["ridge"], rows[:100], features[:100])
        guess = predict(rows[100:]) - features.mean(0)
        p_values.append(by_pairing(guess, features[100:], generator).p)
    assert kstest(p_values, "uniform").pvalue > 1e-4
    assert min(p_values) > 0.0


@pytest.mark.ci
def test_a_column_copied_into_embeddings_is_found_in_20_of_20():
    """Without the copy p-values are uniform, as above: below 1e-3 in one of a thousand."""
    for seed in range(20):
        generator = np.random.default_rng([8, seed])
        rows, features = generator.standard_normal((200, 8)), generator.standard_normal((200, 5))
        rows[:, 3] = features[:, 2]
        decoder = best_decoder({"last": rows[:100]}, features[:100], seed=seed, trained=False)
        assert by_pairing(decoder.predict(rows[100:]) - features.mean(0), features[100:], generator).p < 1e-4


def test_guesses_that_are_the_same_of_all_records_are_at_chance():
    """Whatever the order they gain the same, up to rounding, which is no finding."""
    features = np.random.default_rng(9).standard_normal((150, 5))
    for guess in (np.zeros(5), np.array([0.1, -0.7, 0.3, 1e-9, 3.0])):
        assert by_pairing(np.tile(guess, (150, 1)), features, np.random.default_rng(0)).p == 1.0


def test_the_control_finds_a_leak_far_below_its_share_of_false_alarms():
    rows, features = relu_records(4, noise=1.0)
    guess = fitted(_makers(1, 0)["ridge"], rows[:200], features[:200])(rows[200:])
    found = by_pairing(guess - features.mean(0), features[200:], np.random.default_rng(0))
    assert found.p == 1 / 200_001
    assert found.by == "200,000 pairings of records"


def test_features_that_are_sent_as_they_are_are_copied_beyond_the_known_range():
    generator = np.random.default_rng(0)
    features = np.concatenate((generator.uniform(size=(40, 3)), np.zeros((40, 1))), 1)
    order = [2, 0, 3, 1, 4]
    sent = np.concatenate((features, generator.uniform(size=(40, 1))), 1)[:, order]
    best = best_decoder({"other": sent[:, :2], "mean": sent}, features, seed=0)
    assert (best.name, best.inputs, best.error) == ("copy", "mean", 0.0)
    beyond = 10.0 * generator.uniform(size=(5, 5))
    assert np.array_equal(best.predict(beyond[:, order])[:, :3], beyond[:, :3])
    assert best_decoder({"mean": sent + 1e-3 * generator.standard_normal(sent.shape)}, features, seed=0).name != "copy"
