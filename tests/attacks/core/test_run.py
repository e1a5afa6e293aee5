"""One training under attack: what its progress says while it lasts, and what is said of one that diverged."""

import pytest
import torch

from attacks import ATTACKS
from attacks.core.run import continuous, pass_length

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting


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
        adversary="eavesdropper" if "eavesdropper" in spec.adversaries else spec.adversaries[-1],
        trials=2,
        with_positive=False,
        progress=continuous(seen.append),
    )
    spec.mount(setting)
    assert seen == sorted(seen)
    assert seen[-1] == spec.setup.rounds(spec, setting) > 0


@pytest.mark.parametrize(
    ("attack", "method"),
    [("label_direct", "split"), ("label_norm", "vafl"), ("label_spectral", "vafl"), ("feature_inversion", "split")],
)
def test_a_training_that_diverged_is_said_to_have(attack, method):
    spec = ATTACKS[attack]
    data = random_dataset(classes=2) if attack in ("label_norm", "label_spectral") else random_dataset()
    rates = {"client_rate": 1e38, "server_rate": 1e38}
    with refused(f"training of {method} that {attack} attacks diverged.*scales"):
        mount(spec, method, data, options=rates)


def test_a_pass_over_the_data_is_told_by_the_batches_of_all_trainings():
    """Of 40 records in batches of 10: shuffled passes, with a missed batch and an early end; and Poisson batches."""
    generator = torch.Generator().manual_seed(0)

    def passes():
        return torch.cat([torch.randperm(40, generator=generator).view(4, 10) for _ in range(3)])

    shuffled = torch.stack([passes() for _ in range(3)], 1)
    assert pass_length(shuffled) == 4
    shuffled[4, 0] = -1
    shuffled[5:, 2] = -1
    assert pass_length(shuffled) == 4
    drawn = torch.full((12, 3, 20), -1)
    for batch in drawn.flatten(0, 1)[:30]:
        some = (torch.rand(40, generator=generator) < 0.25).nonzero()[:20, 0]
        batch[: len(some)] = some
    assert 3 <= pass_length(drawn) <= 5
    assert pass_length(torch.full((3, 1, 2), -1)) == 3
