"""Reconstruction of a client's features by the server."""

import os
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.core.knowledge import SomeFeatures
from attacks.core.run import attacked_run
from attacks.core.spec import DoesNotApply
from attacks.feature.decoders import Decoder, best_decoder
from attacks.feature.inversion import (
    SPEC,
    Decoded,
    Reconstruction,
    memory_needed,
    score,
)
from attacks.feature.quality import ssim, variables
from attacks.feature.uploads import aligned, sent_embeddings
from dpzv_audit.data import load

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting


def mounted(method, data, **rest):
    options = {"batch_size": 64, "epochs": 2, **rest.pop("options", {})}
    own = {"permutations": 5, **rest.pop("options_of_attack", {})}
    return mount(SPEC, method, data, options=options, options_of_attack=own, **{"trials": 1, **rest})


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


def test_tables_have_whole_records_and_the_error_of_each_variable():
    outcome = mounted("split", random_dataset(), options={"batch_size": 8})
    assert outcome.pictures is None
    assert set(outcome.measures) > {"R^2", "whole record right"}
    assert "PSNR, dB" not in outcome.measures
    by_variable = outcome.curves["share of each variable that is not explained"]
    assert [row["columns"] for row in by_variable] == ["1 to 1", "2 to 2", "3 to 3"]
    assert all(row["the mean record"] == pytest.approx(1.0, abs=0.2) for row in by_variable)


def test_columns_of_one_category_are_one_variable():
    """A number, two of three exclusive columns and one that overlaps; a record with none of them is a category too."""
    block = np.array([[0.5, 1, 0, 0, 1], [0.25, 0, 1, 0, 0], [0.75, 0, 0, 0, 1], [1.0, 0, 1, 0, 0]])
    assert [(v.start, v.stop) for v in variables(block)] == [(0, 1), (1, 4), (4, 5)]


def test_success_is_the_correlation_whatever_the_groups():
    """43 records, one of which has nearly all the variance: groups of two or three share it unequally."""
    data = random_dataset(records=43)
    block = data.train.features[0].astype(float)
    block[7] = 100.0
    data = replace(data, train=replace(data.train, features=(block.astype(np.float32), *data.train.features[1:])))
    guess = block + np.random.default_rng(0).standard_normal(block.shape)
    decoded = Decoded(Decoder("planted", "no", lambda rows: rows), torch.from_numpy(guess), guess)
    found = score(data, Reconstruction.of(np.arange(43), decoded), 0.95).success.value
    about = [rows - block.mean(0) for rows in (guess, block)]
    expected = (about[0] * about[1]).sum() / np.linalg.norm(about[0]) / np.linalg.norm(about[1])
    assert expected > 0.99
    assert found == pytest.approx(expected, abs=1e-6)


def test_others_give_features_that_their_own_repeat(digits):
    """Planted: client 2 holds what client 1 holds, so that the server learns it without client 1."""
    twice = replace(digits.train, features=(digits.train.features[0], *digits.train.features[:-1]))
    test = replace(digits.test, features=(digits.test.features[0], *digits.test.features[:-1]))
    outcome = mounted("split", replace(digits, train=twice, test=test), pilot=True)
    others = outcome.baselines["from the other clients' embeddings and the label"]
    assert others.value > outcome.success.value - 0.05


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


def test_uploads_are_the_first_the_last_or_their_mean():
    setting = small_setting(SPEC, "vafl", random_dataset(), trials=2, options_of_attack={"embeddings": "auto"})
    run = attacked_run(SPEC, setting)
    sent = [m for m in run.view.messages if m.kind == "embeddings" and m.sender == 1]
    for k in range(2):
        assert set(sent_embeddings(run.view, run.known, k)) == {"aligned", "mean"}
        readings = [replace(run.known, options={"embeddings": read}) for read in ("last", "mean")]
        found = {name: rows for known in readings for name, rows in sent_embeddings(run.view, known, k).items()}
        uploads = {i: [] for i in range(48)}
        for message in [m for m in run.view.messages if m.sender == 1]:
            ids = range(48) if message.ids is None else message.ids[k].tolist()
            for i, row in zip(ids, message.payload[k].double().numpy(), strict=True):
                uploads[i].append(row)
        assert np.allclose(found["last"], [rows[-1] for rows in uploads.values()])
        assert np.allclose(found["mean"], [np.mean(rows, 0) for rows in uploads.values()])
        assert np.allclose(found["last"][sent[-1].ids[k]], sent[-1].payload[k])


def drifting(still=False):
    """Return features, the last uploads and the aligned ones of a linear layer that moves for 8 epochs."""
    generator = np.random.default_rng(0)
    features = generator.uniform(-1, 1, (1500, 3))
    weights, moves = generator.standard_normal((2, 3, 6))
    last, sent = torch.zeros(1500, 6, dtype=torch.double), []
    for t, ids in enumerate(np.concatenate([generator.permutation(1500).reshape(-1, 50) for _ in range(8)])):
        moved = weights if still else weights + t / 240 * moves
        ids, rows = torch.from_numpy(ids), torch.from_numpy(features[ids] @ moved + 0.2)
        last[ids] = rows
        sent.append((ids, rows))
    total = sum(torch.zeros_like(last).index_add(0, *upload) for upload in sent)
    return features, last, aligned(lambda: sent, total / 8)


def test_alignment_undoes_how_the_model_moved():
    features, last, rows = drifting()

    def error(inputs):
        decoder = best_decoder({"rows": inputs.numpy()[:200]}, features[:200], seed=0, trained=False)
        return ((decoder.predict(inputs.numpy()[200:]) - features[200:]) ** 2).mean()

    assert error(rows) < 0.25 * error(last)


def test_alignment_leaves_uploads_of_a_model_that_stands_still_as_they_are():
    _, last, rows = drifting(still=True)
    assert torch.allclose(rows, last)


def finite_dataset(records=300, held_out=300):
    """Client 1 holds a number with 20 values and one of three categories: 60 different records."""
    data = random_dataset(records=records, held_out=held_out)

    def finite(part, seed):
        generator = np.random.default_rng(seed)
        count = len(part)
        block = np.c_[generator.integers(20, size=count) / 20, np.eye(3)[generator.integers(3, size=count)]]
        return replace(part, features=(block.astype(np.float32), *part.features[1:]))

    return replace(data, train=finite(data.train, 1), test=finite(data.test, 2))


@pytest.mark.parametrize("method", ["split", "dpzv", "vafl"])
def test_a_server_that_knows_the_model_enumerates_a_finite_block(method):
    outcome = mounted(method, finite_dataset(), options_of_attack={"knows_model": True, "known_records": 40})
    assert outcome.measures["whole record right"].value > 0.95
    assert [row["decoder"] for row in outcome.curves["decoders"]] == ["enumeration, last"]
    assert outcome.controls["other_records"].holds


def test_enumeration_gives_way_to_a_decoder_where_that_errs_less():
    """Four test records hold none of the values of training records, which are numbers."""
    outcome = mounted("split", random_dataset(300), options_of_attack={"knows_model": True}, pilot=True)
    assert "enumeration, last" not in [row["decoder"] for row in outcome.curves["decoders"]]


def test_a_block_with_too_many_combinations_is_not_enumerated():
    data = random_dataset(held_out=60)
    with refused(
        "knows_model compares .* here 2.16e\\+05; use a client with at most 100,000, or leave knows_model out",
        DoesNotApply,
    ):
        mounted("split", data, options_of_attack={"knows_model": True})


def test_averaging_takes_noise_away():
    """Noise as large as the clip on 20 uploads of each record: their mean gives more than the last."""
    success = {}
    for read in ("last", "mean", "auto"):
        options = {"dp": "embedding", "dp_clip": 0.5, "dp_sigma": 0.5, "epochs": 20}
        data = random_dataset(records=300)
        found = mounted("split", data, options=options, options_of_attack={"embeddings": read}, pilot=True)
        success[read] = found.success.value
    assert success["mean"] > success["last"] + 0.1
    assert success["auto"] > success["last"] + 0.1


def test_what_is_held_at_once_is_one_training():
    setting = small_setting(SPEC, "dpzv", random_dataset(), trials=3)
    run = attacked_run(SPEC, setting)
    reconstruction = SPEC.infer(run.view, run.known)
    alive = []

    def decoded(k):
        assert sum(made() is not None for made in alive[1:]) <= 1  # the one that was just compared, beside the first
        found = reconstruction.decoded(k)
        alive.append(weakref.ref(found))
        return found

    score(setting.dataset, replace(reconstruction, decoded=decoded), 0.95)
    assert len(alive) == 3


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
    decoded = Decoded(Decoder("planted", "no", lambda rows: rows), guess, guess.numpy())
    measured = score(digits, Reconstruction.of(ids.numpy(), decoded), 0.95).quality
    assert measured["PSNR, dB"].value == pytest.approx(20.0, abs=1e-4)


def test_only_the_server_mounts_it():
    assert SPEC.adversaries == ("server",)


@pytest.mark.ci
@pytest.mark.data
@pytest.mark.skipif("DPZV_AUDIT_DATA" not in os.environ, reason="needs DPZV_AUDIT_DATA")
def test_no_training_on_adult_leads_the_decoder_astray():
    """A plain ridge fell below 0.7 in one training of five, and the last uploads give 0.6 of whole records."""
    full = load("adult", clients=4)
    pick = np.random.default_rng(0).permutation(len(full.train))[:4000]
    part = replace(full.train, features=tuple(f[pick] for f in full.train.features), labels=full.train.labels[pick])
    options = {"batch_size": 64, "epochs": 8}
    outcome = mounted("split", replace(full, train=part), options=options, trials=8, pilot=True)
    assert outcome.success.value >= 0.9
    assert min(outcome.by_trial["success"]) >= 0.83
    assert outcome.measures["whole record right"].value >= 0.8
    assert outcome.success.value > 0.3 + outcome.baselines["from the other clients' embeddings and the label"].value
