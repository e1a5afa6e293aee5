"""Memory and numerics at the sizes that real training has: r = 0.001, z from 0.05 to 20, up to 1e7 rounds."""

import json
import math
import subprocess
import sys
import warnings
from functools import partial

import pytest

from dpzv_audit.accounting import gdp_exact, prv, tightest_sound
from dpzv_audit.base.findings import to_jsonable

from ...helpers import releases
from ...helpers.releases import every_row, row

MEASURE = """
import json, pathlib, sys, warnings
warnings.simplefilter("error")
from dpzv_audit.accounting import Release, prv
import prv_accountant.discretisers, scipy.fft
answers = []
for relation, z, rounds, delta in json.loads(sys.argv[1]):
    scale = 2.0 if relation == "replace-label" else 1.0
    release = Release(batch_size=10, sample_rate=0.001, rounds=rounds, clip=10.0, sigma=z * scale,
                      sampler="poisson", server_update="joint-zo")
    bound = prv(release, "release", relation, delta)
    e = bound.epsilon
    answers.append([e.lower, e.estimate, e.upper, bound.note])
# the peak of this program alone: ru_maxrss begins with that of the process which started it
peak = [line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(json.dumps([int(peak[0].split()[1]) / 1e6, answers]))
"""
NOISE = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 20.0)


def measured(cases):
    """Peak memory in GB and, by case, the range, of one fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(cases)],
        capture_output=True,
        text=True,
        check=True,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def check(cases, *, gigabytes):
    memory, answers = measured(cases)
    assert memory < gigabytes, f"{memory:.2f} GB"
    for case, (lower, estimate, upper, note) in zip(cases, answers, strict=True):
        assert 0.0 <= lower <= estimate <= upper < math.inf
        if estimate <= 100.0:
            error = max(upper - estimate, estimate - lower)
            assert error <= max(0.01 * estimate, 0.01), (case, lower, estimate, upper, note)
        else:
            # either it certainly is past 100, or it was composed and its range says so
            assert "vacuous (> 100)" in note or lower > 90.0, (case, note)


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-label", "add-remove"])
def test_a_hundred_thousand_rounds_in_a_gigabyte(relation):
    check([(relation, z, 100_000, 1e-5) for z in (0.05, 0.3, 0.5, 1.0, 20.0)], gigabytes=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-label", "add-remove"])
@pytest.mark.parametrize("delta", [1e-5, 1e-12])
def test_the_whole_grid_up_to_a_hundred_thousand_rounds(relation, delta):
    check([(relation, z, rounds, delta) for rounds in (1, 100, 10_000, 100_000) for z in NOISE], gigabytes=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-label", "add-remove"])
def test_ten_million_rounds_in_two_gigabytes(relation):
    # a process each: what a process keeps of earlier calls for the next ones is not what a call needs
    for rounds in (1_000_000, 10_000_000):
        for z in NOISE:
            check([(relation, z, rounds, 1e-5)], gigabytes=2.0)


release = partial(releases.release, batch_size=10, dataset_size=10_000, rounds=100_000, sigma=1.0)


def test_fast_is_certified_and_not_composed():
    made = release(sigma=2.0)
    full = prv(made, "release", "replace-label", 1e-5)
    (loose,) = row(made, "release", "replace-label", fast=True, accountants=["prv"])
    assert loose.sound
    assert "not composed" in loose.note
    assert full.epsilon.lower <= full.epsilon.upper <= loose.epsilon.upper < 1.5 * full.epsilon.upper
    assert loose.epsilon.lower <= full.epsilon.lower


@pytest.fixture
def no_composition(monkeypatch):
    """Whatever composes fails."""

    def forbidden(*args, **kwargs):
        raise RuntimeError("composed")

    module = sys.modules["dpzv_audit.accounting.prv"]
    monkeypatch.setattr(module, "compose", forbidden)
    module.prv_composition.cache_clear()


@pytest.mark.usefixtures("no_composition")
def test_nothing_is_composed_where_a_certified_bound_decides():
    made = release(sigma=0.4, rounds=12_345)
    # supported: the certified bound is below the claim; overclaimed: a certified lower one is above it
    for claim in (20.0, 5.0):
        best = tightest_sound(row(made, "release", "replace-label", enough=claim)).epsilon
        assert (best.upper <= claim) == (claim == 20.0)
        assert (best.lower > claim) == (claim == 5.0)
    assert "vacuous" in prv(release(sigma=0.2, rounds=12_345), "release", "replace-label", 1e-5).note
    with pytest.raises(RuntimeError, match="composed"):
        row(made, "release", "replace-label")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(  # r = 1e-7
            {"rounds": 10_000_000, "batch_size": 1, "dataset_size": 10_000_000, "sigma": 10.0}, marks=pytest.mark.slow
        ),
        {"rounds": 100_000, "batch_size": 1, "dataset_size": 10_000_000, "sigma": 10.0},
        {"rounds": 10_000_000, "batch_size": 1, "dataset_size": 10_000_000, "sigma": 1e-3},
        {"rounds": 40_000, "sigma": 0.01, "sampler": "shuffled"},  # mu = 40 / 0.005... = 200 and more
        {"rounds": 1, "sigma": 1e6},
        {"batch_size": 9_999, "rounds": 10, "sigma": 1e-3},
    ],
)
@pytest.mark.parametrize("delta", [1e-12, 0.4])
def test_extremes_give_finite_ordered_numbers_and_no_warning(changes, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bounds = every_row(release(**changes), delta=delta, fast=changes.get("sigma") == 1e-3)
    json.dumps(to_jsonable(bounds), allow_nan=False)
    for bound in bounds:
        if bound.epsilon is not None:
            assert 0.0 <= bound.epsilon.lower <= bound.epsilon.estimate <= bound.epsilon.upper < math.inf


@pytest.mark.usefixtures("no_composition")
def test_vacuous_is_said_at_once_in_both_directions():
    # the add direction alone is not certainly past 100: what the remove direction certifies must do
    bound = prv(release(sigma=0.5, rounds=10**7, sample_rate=1e-3), "release", "add-remove", 1e-5)
    assert "vacuous (> 100): certified bounds, not composed" in bound.note
    assert 100.0 < bound.epsilon.lower < bound.epsilon.upper


@pytest.mark.usefixtures("no_composition")
def test_nothing_is_composed_where_it_could_not_be_sound():
    for made, adversary in ((release(), "client"), (release(server_update="sgd"), "release")):
        bounds = row(made, adversary, "replace-label", enough=5.0)
        assert not {b.accountant: b for b in bounds if b.epsilon is not None}["prv"].sound
        with pytest.raises(RuntimeError, match="composed"):
            row(made, adversary, "replace-label")


def test_mu_of_two_hundred():
    made = release(sampler="shuffled", participations=100, sigma=0.1, batch_size=10)
    bound = gdp_exact(made, "client", "replace-label", 1e-12)
    assert bound.mu == pytest.approx(200.0)
    # mu^2/2 + mu Phi^-1(1 - delta), up to what e^eps Phi(-eps/mu - mu/2) takes away
    assert bound.epsilon.upper == pytest.approx(20_000 + 200 * 7.0345, rel=2e-4)
