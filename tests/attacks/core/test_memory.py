"""Attacks where memory runs out: their trainings are done in halves, and every number stays what it was."""

import pytest
import torch

from attacks import ATTACKS
from dpzv_audit.base.findings import to_jsonable
from mechanisms.core.channel import Adversary, Message, View
from mechanisms.core.joining import joined

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

TRIALS = 5


def numbers(outcome):
    """Every number of an outcome that a report shows."""
    kept = ("success", "baselines", "controls", "measures", "by_trial", "curves", "game")
    values = [to_jsonable({name: getattr(outcome, name) for name in kept})]
    flat = []
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += [value[key] for key in sorted(value)]
        elif isinstance(value, list | tuple):
            values += value
        elif isinstance(value, float | int):
            flat.append(float(value))
    return flat


@pytest.mark.parametrize(
    ("attack", "method", "options"),
    [
        ("label_direct", "dpzv", {"sigma": 0.1}),
        ("label_direct", "split", {"adversary": "eavesdropper"}),
        ("label_probe", "dpzv", {"sigma": 0.1}),
        ("label_scalar", "dpzv", {"sigma": 0.1}),
        ("label_completion", "vafl", {}),
        ("label_completion_active", "split", {}),
        ("gradient_estimation", "dpzv", {"sigma": 0.1}),
        ("gradient_estimation", "czofo", {}),
        ("feature_inversion", "dpzv", {"sigma": 0.1}),
        ("attribute_inference", "dpzv", {"sigma": 0.1}),
        ("record_linkage", "dpzv", {"sigma": 0.1}),
    ],
)
def test_where_memory_runs_out_attacks_train_in_halves_to_the_same_numbers(attack, method, options, largest_stack):
    """Planted: no more than two trainings fit. In double precision even the order of sums tells nothing apart."""
    more = {"labels_per_class": 1, "steps": 20} if attack.startswith("label_completion") else {}
    if attack in ("attribute_inference", "record_linkage"):
        more = {"embeddings": "mean", "permutations": 2}
    data = random_dataset(records=40)
    options = dict(options)
    adversary = options.pop("adversary", ATTACKS[attack].adversaries[0])
    setting = small_setting(
        ATTACKS[attack],
        method,
        data,
        options={"dtype": "float64", **options},
        options_of_attack=more,
        adversary=adversary,
        trials=TRIALS,
        with_positive=False,
    )
    whole = ATTACKS[attack].mount(setting)
    assert whole.at_once is None
    stacks = largest_stack(2)
    halved = ATTACKS[attack].mount(setting)
    assert halved.at_once == 2
    assert stacks[:7] == [TRIALS, 2, 2, 1, 2, 2, 1]  # the control starts with what fits
    assert len(numbers(whole)) > 10
    assert numbers(halved) == pytest.approx(numbers(whole), rel=1e-6, abs=1e-9, nan_ok=True)
    assert halved.trained.ledger == whole.trained.ledger
    assert halved.trained.correct.shape == whole.trained.correct.shape
    assert torch.allclose(halved.trained.server.flat, whole.trained.server.flat, rtol=1e-6)


def test_batches_are_joined_with_their_sizes_and_only_where_they_are_of_one_width():
    """Under Poisson sampling payloads of different stacks have different widths: no number is made of them."""

    def view(width):
        return View(Adversary("client", (1,)), [Message(0, 0, 1, "gradient", torch.ones(1, width, 2), sizes=[width])])

    (message,) = joined([view(3), view(3)]).messages
    assert (tuple(message.payload.shape), message.sizes, message.nbytes) == ((2, 3, 2), [3, 3], [24, 24])
    with refused("memory ran out: trainings were made in several stacks, and they differ"):
        joined([view(3), view(2)])


def test_views_of_different_lengths_are_not_joined_and_ids_stay_shared():
    ids = [torch.tensor([[3, 1]]), torch.tensor([[0, 2]])]

    def view(k, count):
        return View(
            Adversary("client", (1,)), [Message(r, 0, 1, "scalar", torch.ones(1), ids[k]) for r in range(count)]
        )

    whole = joined([view(0, 3), view(1, 3)])
    assert [message.round for message in whole.messages] == [0, 1, 2]
    assert whole.messages[0].ids.tolist() == [[3, 1], [0, 2]]
    assert whole.messages[0].ids is whole.messages[2].ids
    for first, second in ((2, 3), (3, 2)):
        with refused("memory ran out: trainings were made in several stacks, and they differ"):
            joined([view(0, first), view(1, second)])


def test_a_poisson_training_that_does_not_fit_is_not_halved(largest_stack):
    spec, options = ATTACKS["label_completion"], {"sampler": "poisson", "sigma": 0.1}
    tried = largest_stack(0)
    with pytest.raises(torch.OutOfMemoryError):
        mount(spec, "dpzv", random_dataset(records=40), options=options, options_of_attack={"labels_per_class": 1})
    assert tried == [4]


def test_trials_whose_batch_ids_alone_memory_cannot_hold_are_refused_before_training(monkeypatch):
    monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda: 8 * 5 * (6 * 5 // 3) * 8 - 1)
    setting = small_setting(ATTACKS["label_direct"], "split", random_dataset(records=40), trials=5)
    with pytest.raises(MemoryError, match="batch ids of 5 trainings: 3200 bytes, of 3199 that are free"):
        ATTACKS["label_direct"].mount(setting)
