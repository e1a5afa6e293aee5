"""Ways to train with Opacus, kinds of canaries, and audits in one run: each score has the law that it must."""

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from ...helpers.refusals import refused
from .opacus_trainings import deep, opacus, records, scores, training

PER_LAYER = {"clipping": "per_layer", "max_grad_norm": [0.5, 0.3]}
GHOST = {"grad_sample_mode": "ghost"}


@pytest.mark.parametrize(
    "given",
    [
        {**GHOST, "neighbours": "zero-out"},
        {**GHOST, "neighbours": "replace-record", "model": deep, "others": "against"},
        {**PER_LAYER, "neighbours": "zero-out", "others": "along"},
        {**PER_LAYER, "neighbours": "replace-record"},
    ],
    ids=["ghost", "ghost-against", "per-layer-along", "per-layer"],
)
def test_other_ways_of_clipping_leave_a_canary_as_much_as_the_noise_hides(given):
    """N(-+mu^2/2, mu^2) in whole batches, mu = 1 or 2 at a noise multiplier of 1, whatever the others are.

    Kolmogorov-Smirnov at 1e-5 for each of 8 samples of 50 scores, which follow from a fixed seed.
    """
    subject = training(**given, poisson_sampling=False)
    mu = 2.0 if given["neighbours"] == "replace-record" else 1.0
    for sign, found in zip((-1.0, 1.0), scores(subject, 50), strict=True):
        assert stats.kstest(found, stats.norm(sign * mu**2 / 2, mu).cdf).pvalue > 1e-5


@pytest.mark.parametrize("canary", ["gradient", "input", "mislabelled"])
@pytest.mark.parametrize("given", [{}, GHOST, PER_LAYER, {"grad_sample_mode": "ew"}], ids=str)
def test_hardly_any_noise_hides_hardly_anything(given, canary):
    """What is seen less the other records is the canary's clipped gradient g, or h: -+ |g - h|^2 / (2 z^2).

    Everything the adversary works out without Opacus is right then to far less than a clip.
    """
    options = {"neighbours": "replace-record", "poisson_sampling": False, "noise_multiplier": 1e-3, "model": deep}
    layers = {"max_grad_norm": [0.5, 0.3, 0.5, 0.3]} if given is PER_LAYER else {}
    out, inside = scores(training(canary=canary, **{**options, **given, **layers}), 2)
    assert inside == pytest.approx(-out, rel=0.02)
    assert inside.min() > 0.02e6
    assert inside.max() <= 2.02e6
    if canary == "gradient":
        assert inside == pytest.approx(2e6, rel=0.02)


def test_ghost_clipping_says_what_gradients_by_sample_say():
    """Of a record of ones own: the same batches and noise follow from one seed."""
    given = {"canary": "mislabelled", "model": deep, "batch_size": 7, "epochs": 2, "max_grad_norm": 0.3}
    one, other = (scores(training(**given, grad_sample_mode=mode), 3) for mode in ("hooks", "ghost"))
    assert np.concatenate(other) == pytest.approx(np.concatenate(one), rel=1e-3)


@pytest.mark.parametrize("given", [GHOST, {}, PER_LAYER])
def test_empty_batches_are_trained_on(given):
    """Two records in batches of one: half of all batches have one of them, a quarter none."""
    assert np.isfinite(scores(training(count=2, batch_size=1, **given), 5)).all()


def test_others_at_the_clip_do_not_change_what_is_told_of_the_canary():
    said = [training(neighbours="zero-out", others=others).run(1, np.random.default_rng(1)) for others in OTHERS]
    assert said == pytest.approx([said[0]] * 3, rel=1e-3)
    sizes = [training(others=others, noise_multiplier=0.1, score="size") for others in OTHERS]
    own, along, against = (one.run(0, np.random.default_rng(1)) for one in sizes)
    assert min(along, against) > own


OTHERS = ("own", "along", "against")


def test_a_target_epsilon_is_what_opacus_makes_of_it(monkeypatch):
    """The search for a noise multiplier is Opacus's, and made once for each number of batches."""
    engine = opacus.PrivacyEngine
    asked = []
    original = engine.make_private_with_epsilon

    def counted(self, **given):
        asked.append(given["target_epsilon"])
        return original(self, **given)

    monkeypatch.setattr(engine, "make_private_with_epsilon", counted)
    monkeypatch.setattr(opacus, "_CALIBRATED", {})
    subject = training(target_epsilon=1.0, target_delta=1e-2, epochs=2)
    assert subject.claimed(1e-2) == pytest.approx(1.0, abs=0.02)
    first = subject.run(1, np.random.default_rng(1))
    assert subject.run(1, np.random.default_rng(1)) == first
    (noise,) = (entry[0] for entry in subject._engines[0].accountant.history)
    assert training(noise_multiplier=noise, epochs=2).run(1, np.random.default_rng(1)) == pytest.approx(first)
    assert asked == [1.0]


def test_named_canaries_are_records_of_another_label_and_of_large_features():
    data = records(4)
    features, target = training(data=data, canary="mislabelled")._records[0]
    assert torch.equal(features, data[0][0])
    assert int(target) == 1 != int(data[0][1])
    large, _ = training(data=data, canary="input")._records[0]
    assert torch.equal(large, torch.full((6,), 1e3))


def test_a_named_canary_that_the_data_do_not_have_is_one_line():
    alike = TensorDataset(torch.zeros(3, 6), torch.zeros(3, dtype=torch.long))
    with refused("canary is 'mislabelled', needs labels of two classes"):
        training(data=alike, canary="mislabelled").run(1, np.random.default_rng(0))
    words = TensorDataset(torch.zeros(3, 6, dtype=torch.long), torch.arange(3))
    with refused("canary is 'input', needs features that are not whole numbers"):
        training(data=words, canary="input").run(1, np.random.default_rng(0))


def test_every_variant_of_a_training_runs():
    """On numbers and on words; sizes are those at which a batch more or less begins, as far as there are records."""
    words = TensorDataset(torch.randint(9, (20, 2)), torch.arange(20) % 2)
    embed = {"data": words, "model": lambda: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(4, 2))}
    found = {}
    for kind, given in (("numbers", {"data": records(20)}), ("words", embed)):
        for name, variant in training(batch_size=10, **given).variants().items():
            view = variant.run(1, np.random.default_rng(0))
            assert view.shape == (2,)
            assert np.isfinite(view).all(), name
            found.setdefault(name, set()).add(kind)
    only = [name for name, kinds in found.items() if "words" not in kinds]
    assert only == ["4 records, batches of 2, huge", "16 records, batches of 8, huge"]
    assert {"3 records, batches of 2", "19 records, batches of 10, blank", "1 record, batches of 1, some empty"} <= set(
        found
    )
    assert "29 records, batches of 10" not in found


def one_training(canaries=300, **given):
    options = {"count": 200, "batch_size": 1000, "model": lambda: nn.Linear(6, 60), "neighbours": "zero-out"}
    return training(**{**options, **given}).one_run(canaries, np.random.default_rng(3))


def test_each_canary_of_one_run_is_told_as_a_single_one_is():
    """N(-+mu^2/2, mu^2), independently: coordinates are each canary's own. KS at 1e-4 for each side, fixed seed."""
    found = one_training(noise_multiplier=0.5)
    assert 100 < len(found.inside) < 200
    assert len(found.inside) + len(found.outside) == 300
    for sign, one in ((-1.0, found.outside), (1.0, found.inside)):
        assert stats.kstest(one, stats.norm(sign * 2.0, 2.0).cdf).pvalue > 1e-4


@pytest.mark.parametrize("neighbours", ["add-remove", "zero-out"])
def test_one_run_refutes_noise_that_is_not_there_and_no_true_claim(monkeypatch, neighbours):
    """A true claim is refuted with probability 1e-4, at this seed it is not; a hundredth of its noise is."""
    given = {"neighbours": neighbours, "noise_multiplier": 2.0, "epochs": 2}
    found = one_training(**given)
    assert found.bound(1e-5, confidence=0.95).epsilon_lower > 0.0
    assert found.bound(1e-5, confidence=0.9999).epsilon_lower <= found.claimed(1e-5)
    monkeypatch.setattr("opacus.optimizers.optimizer._generate_noise", silent)
    quiet = one_training(**{**given, "noise_multiplier": 8.0})
    assert quiet.bound(1e-5, confidence=0.9999).epsilon_lower > quiet.claimed(1e-5)


def silent(std, reference, **_):
    """Noise of Opacus at a hundredth of what is asked for."""
    return 0.01 * std * torch.randn_like(reference)


def test_the_claim_of_one_run_is_that_of_all_its_records():
    found = one_training(canaries=40, count=20, batch_size=10)
    accountant = PRVAccountant()
    accountant.history = [(1.0, 1 / 6, 6)]
    assert found.claimed(1e-5) == pytest.approx(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize(
    ("given", "canaries", "words"),
    [
        ({}, 15, "canaries is 15; use at most 14, the parameters of the model"),
        (GHOST, 5, "one_run needs the gradient canary, flat clipping, and gradients that are kept by sample"),
        (PER_LAYER, 5, "one_run needs the gradient canary, flat clipping"),
        ({"canary": "input"}, 5, "one_run needs the gradient canary"),
    ],
)
def test_what_one_run_cannot_be_is_one_line(given, canaries, words):
    with refused(words):
        training(**given).one_run(canaries, np.random.default_rng(0))
