"""One training under attack: what its progress says while it lasts."""

import pytest

from attacks import ATTACKS
from attacks.run import continuous

from .conftest import random_dataset, small_setting


@pytest.mark.parametrize(
    ("attack", "method", "options"),
    [
        ("label_direct", "split", {"epochs": 1}),
        ("label_direct", "dpzv", {}),
        ("gradient_estimation", "dpzv", {"sigma": 0.1}),
        ("feature_inversion", "vafl", {}),
        ("membership_loss", "split", {"epochs": 2}),
        ("membership_lira", "vafl", {"epochs": 1}),
    ],
)
def test_progress_rises_to_the_rounds_that_were_announced(attack, method, options):
    spec, seen = ATTACKS[attack], []
    setting = small_setting(
        spec,
        method,
        random_dataset(),
        options=options,
        adversary=spec.adversaries[-1],
        trials=2,
        with_positive=False,
        progress=continuous(seen.append),
    )
    spec.mount(setting)
    assert seen == sorted(seen)
    assert seen[-1] == spec.rounds(spec, setting) > 0
