"""Reconstruction of a client's features by the server."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.core.knowledge import SomeFeatures
from attacks.core.run import attacked_run
from attacks.core.spec import DoesNotApply
from attacks.feature.inversion import SPEC, Reconstruction, from_jacobians, memory_needed, score, sent_embeddings, ssim

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting


def mounted(method, data, **rest):
    options = {"batch_size": 64, "epochs": 2, **rest.pop("options", {})}
    return mount(SPEC, method, data, options=options, **{"trials": 1, **rest})


@pytest.mark.parametrize("method", ["split", "dpzv", "cascaded", "czofo"])
def test_embeddings_in_the_clear_give_features_away(method, digits):
    """16 embeddings of 16 pixels: a correlation of about 0.9, whatever is noised on the way down."""
    outcome = mounted(method, digits, with_positive=method == "split")
    assert outcome.success.value > 0.75
    assert outcome.controls["other_records"].holds
    rows = {row["what"]: row for row in outcome.curves["quality of reconstructed pictures"]}
    assert rows["reconstructed"]["PSNR, dB"] > rows["the mean record"]["PSNR, dB"] + 4
    assert rows["reconstructed"]["SSIM"] > rows["the mean record"]["SSIM"] + 0.2
    if method == "split":
        assert outcome.controls["positive"].value > 0.9


def test_pictures_are_the_first_records_that_the_server_did_not_know(digits):
    outcome = mounted("split", digits)
    shown = outcome.pictures
    assert shown.shape == (8, 2)
    original, reconstructed, mean = shown.rows.values()
    known = (
        attacked_run(SPEC, small_setting(SPEC, "split", digits, options={"batch_size": 64, "epochs": 2}, trials=1))
        .known.granted(SomeFeatures)
        .ids.numpy()
    )
    free = np.setdiff1d(np.arange(len(digits.train)), known)[:8]
    assert np.allclose(original, digits.train.features[0][free])
    assert np.allclose(mean, digits.train.features[0].mean(0))
    assert reconstructed.shape == (8, 16)
    assert 0.0 <= reconstructed.min() <= reconstructed.max() <= 1.0
    assert ((reconstructed - original) ** 2).mean() < ((mean - original) ** 2).mean()
    for name in ("PSNR, dB", "SSIM"):
        measured = outcome.measures[name]
        assert measured.low < measured.value < measured.high


def test_features_that_are_no_picture_have_none():
    outcome = mounted("split", random_dataset(), options={"batch_size": 8})
    assert outcome.pictures is None
    assert not outcome.measures
    assert not outcome.curves


@pytest.mark.parametrize("records", [4, 30])
def test_fewer_unknown_records_than_groups_are_a_group_each(records):
    """Of 30 records 15 are unknown, of 4 two: intervals are over as many groups as there are."""
    outcome = mounted("split", random_dataset(records=records), options={"batch_size": 2})
    assert outcome.success.n == records // 2
    assert -1.0 <= outcome.success.low < outcome.success.high <= 1.0
    assert outcome.controls["other_records"].n == records // 2


@pytest.mark.parametrize(("records", "own"), [(3, {}), (48, {"known_records": 1})])
def test_a_decoder_needs_two_records(records, own):
    data = random_dataset(records=records)
    with refused("the server knows 1; use 2 at least to fit a decoder", DoesNotApply):
        mounted("split", data, options={"batch_size": 2}, options_of_attack=own)


def test_noise_on_embeddings_protects_features(digits):
    noisy = mounted("vafl", digits, options={"dp": "embedding", "dp_sigma": 5.0})
    assert abs(noisy.success.value) < 0.15


def test_jacobian_products_of_a_linear_client_give_its_features(digits):
    """Without ReLU inner products of h+ - h- are <x, x'> + 1 on average: 330 rounds alone reach 0.48."""
    setting = small_setting(
        SPEC, "dpzv", digits, options={"batch_size": 64, "epochs": 30, "top_model": False}, trials=1
    )
    run = attacked_run(SPEC, setting)
    features = from_jacobians(run.view, run.known, 0).numpy()
    real = digits.train.features[0].astype(float)
    seen = np.abs(features).sum(1) > 0
    assert seen.mean() > 0.95
    free = np.setdiff1d(np.flatnonzero(seen), run.known.granted(SomeFeatures).ids.numpy())
    a, b = features[free] - real.mean(0), real[free] - real.mean(0)
    assert (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()) > 0.35


def test_the_last_embedding_is_what_the_server_keeps():
    setting = small_setting(SPEC, "vafl", random_dataset(), trials=2)
    run = attacked_run(SPEC, setting)
    sent = [m for m in run.view.messages if m.kind == "embeddings"]
    assert {m.sender for m in run.view.messages} == {1}
    for k in range(2):
        latest = sent_embeddings(run.view, run.known, k)
        assert torch.allclose(latest[sent[-1].ids[k]], sent[-1].payload[k].double())
        assert latest.shape == (48, 16)


def test_what_is_held_at_once_is_one_training_and_a_block_of_records(monkeypatch):
    """In blocks of 6 records, of which 2 are solved at once: the same numbers, and no larger equations."""
    setting = small_setting(SPEC, "dpzv", random_dataset(), trials=3)
    run = attacked_run(SPEC, setting)
    whole = [*SPEC.infer(run.view, run.known)]
    size = 8 * whole[0].shape[1] ** 2
    monkeypatch.setattr("attacks.feature.inversion.EQUATIONS", 6 * size)
    monkeypatch.setattr("attacks.feature.inversion.SOLVED", 2 * size)
    monkeypatch.setattr("attacks.feature.inversion.ROWS", 5)
    solve, solved = torch.linalg.solve, []
    monkeypatch.setattr(torch.linalg, "solve", lambda a, b: solved.append(len(a) if a.dim() == 3 else 0) or solve(a, b))
    alive = []
    reconstruction = SPEC.infer(run.view, run.known)

    def decoded(k):
        assert len([size for size in alive if size() is not None]) <= 1  # the one that was just compared
        features = reconstruction.decoded(k)
        assert torch.allclose(features, whole[k], rtol=1e-9)
        alive.append(weakref.ref(features))
        return features

    score(setting.dataset, replace(reconstruction, decoded=decoded), 0.95)
    assert len(alive) == 3
    assert max(solved) == 2
    assert solved.count(0) == 3


def test_memory_that_is_not_free_is_told_before_any_training(monkeypatch):
    setting = small_setting(SPEC, "split", random_dataset(), trials=3)
    needed = memory_needed(setting)
    monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda: needed - 1)
    monkeypatch.setattr("attacks.core.setting.train", None)
    with pytest.raises(MemoryError, match=f"feature_inversion over 3 trainings: {needed} bytes, of {needed - 1} that"):
        SPEC.mount(replace(setting, with_positive=False))


@pytest.mark.parametrize("method", ["split", "dpzv", "vafl"])
def test_the_view_takes_no_more_memory_than_was_said(method, digits):
    setting = small_setting(
        SPEC, method, digits, options={"batch_size": 64, "epochs": 2}, trials=2, with_positive=False
    )
    view = attacked_run(SPEC, setting).view
    assert sum(message.payload.nbytes for message in view.messages) <= memory_needed(setting)


def test_structural_similarity_of_constant_pictures_is_that_of_their_means():
    """Nothing varies, so that what is left of the formula is (2ab + C1)/(a^2 + b^2 + C1), C1 = 1e-4."""
    for shape in ((2, 1, 14, 28), (2, 3, 8, 2)):
        a, b = np.full(shape, 0.25), np.full(shape, 0.75)
        assert np.allclose(ssim(a, b), (2 * 0.25 * 0.75 + 1e-4) / (0.25**2 + 0.75**2 + 1e-4))
        assert np.allclose(ssim(a, a), 1.0)


def test_structural_similarity_of_one_window_follows_its_formula():
    """11 x 11 pixels hold one whole window, whose Gaussian weights give means and variances."""
    generator = np.random.default_rng(0)
    a, b = generator.uniform(0, 1, (2, 11, 11))
    line = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights = np.outer(line, line) / line.sum() ** 2
    mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
    var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
    covariance = (weights * (a - mean_a) * (b - mean_b)).sum()
    above = (2 * mean_a * mean_b + 1e-4) * (2 * covariance + 9e-4)
    expected = above / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
    assert np.allclose(ssim(a[None, None], b[None, None]), expected)


def test_peak_signal_to_noise_ratio_has_a_range_of_one(digits):
    """Off by a tenth of the range everywhere is 20 dB, whatever the units of pixels."""
    digits = replace(digits, train=replace(digits.train, features=tuple(16 * f - 3 for f in digits.train.features)))
    ids = torch.arange(40)
    block = digits.train.features[0]
    guess = torch.from_numpy(block[:40].reshape(40, -1) + 0.1 * np.ptp(block)).double()
    measured = score(digits, Reconstruction(ids, 1, lambda k: guess), 0.95).quality["reconstructed"]
    assert measured["PSNR, dB"].value == pytest.approx(20.0, abs=1e-4)


def test_only_the_server_mounts_it():
    assert SPEC.adversaries == ("server",)
