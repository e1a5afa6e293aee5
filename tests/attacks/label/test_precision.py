"""Which of two labels can have led to the released scalars: exact on floats, silent on the grid, never wrong."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from attacks.core import setting as setting_module
from attacks.core.spec import DoesNotApply
from attacks.label import precision
from attacks.label.precision import SPEC, by_floats, by_steps, rounded_after_the_sum
from mechanisms.core.noise import GaussianNoise

from ...helpers.refusals import refused
from ..conftest import mount, small_setting

FLOATS = {torch.float32: 32, torch.float64: 64}


def played(method="dpzv-sound", *, trials=16, seed=0, spec=SPEC, data=None, **options):
    """The attack on a small method, without positive controls."""
    setting = small_setting(
        spec,
        method,
        data,
        options={"clip": 1.0, "sigma": 0.3, "server_rate": 0.05, **options},
        trials=trials,
        seed=seed,
        with_positive=False,
    )
    return spec.mount(setting)


def proven(outcome):
    """Shares of trainings of which a label, and of which a wrong one, is proven."""
    return outcome.measures["proven"].value, outcome.measures["wrongly_proven"].value


def test_floats_that_lead_to_a_release_are_found_where_there_are_any():
    """Against every one of the 65,280 finite bfloat16 numbers as noise, for sums and releases of all sizes."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[torch.isfinite(every)]
    generator = torch.Generator().manual_seed(0)
    sums, near = (torch.randn(600, generator=generator).to(torch.bfloat16) for _ in range(2))
    scales = torch.randint(-9, 3, (600,), generator=generator)
    released = torch.where(torch.arange(600) < 500, torch.ldexp(near.float(), scales).to(torch.bfloat16), sums + near)
    # Powers of two, where floats lie closer on one side than on the other.
    released[:80] = torch.ldexp(torch.ones(80), torch.randint(-9, 3, (80,), generator=generator)).to(torch.bfloat16)
    truth = (every[:, None] + sums == released).any(0)
    assert 50 < int(truth.sum()) < 580
    assert torch.equal(by_floats(sums, released), truth)


def test_a_release_far_below_the_sum_needs_noise_that_is_no_float():
    """2^-26 = 1 + n needs n = -1 + 2^-26, between two floats (2^-24 apart there); from a sum of 0 it is itself."""
    released = torch.full((2,), 2.0**-26)
    assert by_floats(torch.tensor([1.0, 0.0]), released).tolist() == [False, True]
    assert by_floats(torch.tensor([1.0, 0.0]).double(), released.double()).tolist() == [True, True]
    assert by_floats(torch.ones(1).double(), torch.full((1,), 2.0**-60).double()).tolist() == [False]


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(list(FLOATS)),
    data=st.data(),
)
def test_what_happened_is_never_impossible(dtype, data):
    number = st.floats(-1e3, 1e3, width=FLOATS[dtype], allow_subnormal=False)
    sums, noise = (torch.tensor([data.draw(number)], dtype=dtype) for _ in range(2))
    assert by_floats(sums, sums + noise).item()


def test_steps_that_lead_to_a_release_are_whole():
    unit = 2.0**-10
    sums = torch.tensor([0.3] * 3, dtype=torch.float64)
    released = torch.stack([sums[0] + 77 * unit, sums[0] + 77.5 * unit, sums[0] - 5 * unit])
    assert by_steps(sums, released, unit=unit, channel=None).tolist() == [True, False, True]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "float64"},
        {"batch_size": 7},
        {"sampler": "poisson"},
        {"participation_cap": 2, "distinct_ids": True},
        {"perturbation": "in-place"},
        {"directions": 2, "momentum": 0.5, "server_momentum": 0.5},
        {"server_update": "sgd"},
        {"server_update": "zo"},
        {"server_rate": 0.0},
        {"top_model": False},
    ],
)
@pytest.mark.parametrize("noise", ["float", "grid"])
def test_the_true_label_is_never_ruled_out(options, noise):
    """A training that is played again under the label it had gives the very sums that were noised, bit for bit."""
    outcome = played(noise=noise, **options)
    right, wrong = proven(outcome)
    assert wrong == 0.0
    assert noise == "float" or right == 0.0


def test_without_noise_a_scalar_is_the_sum_itself():
    """Every training whose record took part is proven: a sum under the other label is another number."""
    outcome = played(sigma=0.0, epochs=3, batch_size=8)
    assert proven(outcome) == (1.0, 0.0)
    assert outcome.success.value == 1.0


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.ci
def test_float_noise_proves_a_label_and_the_grid_does_not(dtype):
    """A hundred participations. Chance is tested exactly: of a fair coin's guesses the p-value is below 1e-4 as often.

    With float noise and a server trained by sgd every one of 200 rounds may decide; of their trainings on digits none
    of 384 was undecided after as many.
    """
    betrayed = played(noise="float", server_update="sgd", sigma=0.05, batch_size=24, epochs=100, trials=24, dtype=dtype)
    assert betrayed.success.value == 1.0
    assert proven(betrayed) == (1.0, 0.0)
    game = betrayed.game
    assert game.neighbours == "replace-label"
    assert set(game.on_one) == {1.0}
    assert set(game.on_zero) == {-1.0}
    assert len(game.on_one) + len(game.on_zero) == 24
    kept = played(batch_size=24, epochs=100, trials=32, dtype=dtype)
    assert kept.plan.participations >= 100
    assert proven(kept) == (0.0, 0.0)
    right = sum(kept.by_trial["success"])
    assert binomtest(int(right), 32, 0.5).pvalue >= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("epochs", "trials"), [(100, 400), (1000, 40)])
def test_the_grid_proves_nothing_of_digits_at_its_own_calibration(epochs, trials, dtype, digits):
    """As many participations as epochs; of a fair coin's guesses the p-value is below 1e-4 as often."""
    outcome = played(
        data=digits, batch_size=64, epochs=epochs, sigma=None, trials=trials, dtype=dtype, calibration="sound"
    )
    assert outcome.plan.participations == epochs
    assert proven(outcome) == (0.0, 0.0)
    assert binomtest(int(sum(outcome.by_trial["success"])), trials, 0.5).pvalue >= 1e-4


def test_playing_again_draws_no_noise(monkeypatch):
    """The adversary does not know the seed: what it does must not need a private stream."""

    def guarded(view, known):
        with monkeypatch.context() as patched:
            patched.setattr(GaussianNoise, "next", lambda self: pytest.fail("noise was drawn"))
            return SPEC.infer(view, known)

    assert played(spec=replace(SPEC, infer=guarded), noise="float").measures["wrongly_proven"].value == 0.0


def test_noise_from_the_operating_system_is_betrayed_as_that_of_a_seed_is(monkeypatch):
    monkeypatch.setattr(setting_module, "train", partial(setting_module.train, noise_from="os"))
    options = {"server_update": "sgd", "sigma": 0.05, "batch_size": 24, "epochs": 60, "trials": 8}
    betrayed, kept = (played(noise=noise, **options) for noise in ("float", "grid"))
    assert proven(betrayed) == (1.0, 0.0)
    assert proven(kept) == (0.0, 0.0)


def test_an_attack_that_peeks_at_the_coins_fails_its_negative_control():
    """Guesses that follow the coins of the attacked trainings, whichever trainings they are about, are found out."""
    coins = np.random.default_rng(0).integers(2, size=0)

    def peeking(view, known):
        nonlocal coins
        if known.replicas[0] == 0:
            setting = small_setting(SPEC, "dpzv-sound", options={"sigma": 0.3}, trials=64)
            coins = precision._deal(setting)[1]
        return np.eye(2, dtype=bool)[coins]

    outcome = played(spec=replace(SPEC, infer=peeking), trials=64, epochs=1)
    assert outcome.success.value == 1.0
    assert not outcome.controls["other_coins"].holds


def test_an_attack_that_guesses_fails_both_positive_controls():
    guessing = replace(SPEC, infer=lambda view, known: np.ones((len(known.replicas), 2), dtype=bool))
    setting = small_setting(guessing, "dpzv-sound", options={"sigma": 0.3}, trials=4)
    controls = guessing.mount(setting).controls
    assert not controls["positive"].holds
    assert not controls["rounded_after_the_sum"].holds


@pytest.mark.parametrize("seed", range(3))
def test_rounding_after_the_sum_is_caught(seed):
    """A training stays undecided where its record is in no batch: in 24 epochs of all records never."""
    setting = small_setting(SPEC, "dpzv-sound", options={"sigma": 0.3}, seed=seed)
    assert rounded_after_the_sum(SPEC, setting).holds


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("split", {}, "it releases no noised scalar"),
        ("zoo-vfl", {}, "it releases no noised scalar"),
        ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}, "draws secret noise"),
    ],
)
def test_what_cannot_be_played_again_is_refused_in_one_line(method, options, reason):
    with refused(reason, DoesNotApply):
        mount(SPEC, method, options=options)


def test_where_memory_runs_out_stacks_are_played_again_as_they_were_trained(largest_stack):
    stacks = largest_stack(2)
    outcome = played(noise="float", server_update="sgd", sigma=0.05, batch_size=24, epochs=60, trials=5)
    assert stacks == [5, 2, 2, 1, 2, 2, 1]
    assert outcome.at_once == 2
    assert proven(outcome) == (1.0, 0.0)
    assert outcome.trained.correct.shape[0] == 5
