"""The project's own tests audit its mechanism; run with `pytest` in this folder."""

import numpy as np
import pytest
from noisy_vfl import NoisyFederation, forgot_the_noise

from dpzv_audit import audit_scores, verify_claim


def test_the_federation_keeps_its_claim(privacy_audit):
    found = privacy_audit(mechanism=NoisyFederation(), epsilon=1.0, delta=1e-5, max_trials=1000)
    assert found.verdict == "inconclusive"  # an audit alone never proves a claim: it only fails to refute it


def test_a_federation_without_noise_is_caught(privacy_audit):
    found = privacy_audit.verdict(mechanism=forgot_the_noise(), epsilon=1.0, delta=1e-5)
    assert found.verdict == "refuted"


def test_scores_that_we_made_ourselves():
    federation = NoisyFederation(noise_multiplier=1.0)  # far too little noise: mu = 4.5
    seeds = np.random.SeedSequence(0).spawn(2000)
    inside = [federation.run(1, np.random.default_rng(seed)) for seed in seeds[:1000]]
    outside = [federation.run(0, np.random.default_rng(seed)) for seed in seeds[1000:]]
    bound, _ = audit_scores(inside, outside, delta=1e-5)
    assert bound.epsilon_lower > 1.0
    assert verify_claim(scores=(inside, outside), epsilon=1.0).verdict == "refuted"


@pytest.mark.parametrize("noise_multiplier", [20.0, 40.0])
def test_more_noise_is_never_refuted(privacy_audit, noise_multiplier):
    privacy_audit(mechanism=NoisyFederation(noise_multiplier=noise_multiplier), epsilon=1.0, max_trials=500)
