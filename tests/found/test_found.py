"""The subjects of the gallery: each fault is refuted at a small size, and the form without it is not.

Bounds hold with 1 - 1e-4 each, so that a subject whose claim is true is refuted by chance at most so often; seeds are
fixed. What is not installed is skipped: `examples/found/environments.py` runs it in an environment of its own.
"""

import importlib
import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.statistics.estimators import audit_scores

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries; ours is tested elsewhere
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "found"
FAULTS = {
    "opacus_noise:subject": 40,
    "opacus_adaptive:subject": 60,
    "opacus_order:subject": 500,
    "diffprivlib_regression:subject": 60,
    "diffprivlib_kmeans:subject": 60,
    "diffprivlib_kmeans:empty_cluster": 300,
    "datasynthesizer_domain:subject": 40,
    "datasynthesizer_domain:default_seed": 40,
    "smartnoise_covariance:triangle": 60,
    "flower_weights:subject": 400,
}
HELD = {
    "opacus_noise:sum_of_four": 40,
    "opacus_adaptive:fixed_divisor": 60,
    "opacus_order:not_amplified": 200,
    "diffprivlib_regression:symmetric": 60,
    "diffprivlib_kmeans:full_clusters": 60,
    "datasynthesizer_domain:public_domain": 40,
    "smartnoise_covariance:equal_ranges": 60,
    "flower_weights:equal_weights": 200,
    "held_diffprivlib:mean": 60,
    "held_diffprivlib:median": 60,
    "held_diffprivlib:gaussian": 60,
}


def subject_of(name, monkeypatch):
    """The subject `module:factory` of the folder; skips where its library is not there."""
    monkeypatch.syspath_prepend(FOLDER)
    module, factory = name.split(":")
    try:
        return getattr(importlib.import_module(module), factory)()
    except ImportError as error:
        pytest.skip(f"{module} needs its library: {error}")


def lower(subject, runs):
    """The lower bound of so many runs in each world."""
    every = range(runs)
    out, inside = ([subject.run(w, np.random.default_rng((w, k))) for k in every] for w in (0, 1))
    (bound,) = audit_scores(inside, out, delta=1e-5, confidence=1 - 1e-4, estimators=["joint"])
    return bound.epsilon_lower


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refuted(name, monkeypatch):
    subject = subject_of(name, monkeypatch)
    assert lower(subject, FAULTS[name]) > subject.claimed(1e-5)


@pytest.mark.parametrize("name", HELD)
def test_what_is_right_is_not_refuted(name, monkeypatch):
    subject = subject_of(name, monkeypatch)
    assert lower(subject, HELD[name]) <= subject.claimed(1e-5)


def test_covariances_are_of_clipped_data_since_the_version_that_says_so(monkeypatch):
    subject = subject_of("smartnoise_covariance:subject", monkeypatch)
    faulty = importlib.metadata.version("smartnoise-synth") == "1.0.5"
    assert (lower(subject, 60) > subject.claimed(1e-5)) == faulty
