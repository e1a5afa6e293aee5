"""Fine-tuning of zeroth order: what a step is, what it claims, and what an audit of it finds; a tiny BERT and OPT."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from dpzv_audit.integrations.zeroth_order import ScalarStep, ZerothOrderTraining, _Training, text_losses
from dpzv_audit.statistics.estimators import audit_scores

from ...helpers.refusals import refused

VOCABULARY, LENGTH, RECORDS = 20, 6, 12


def losses(model, rows, labels):
    return functional.cross_entropy(model(rows), labels, reduction="none")


def linear(**given):
    """A linear model of 12 records, batches of 4 in expectation."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(5, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    options = {
        "model": model,
        "inputs": torch.randn(RECORDS, 5, generator=generator),
        "targets": torch.arange(RECORDS) % 2,
        "batch_size": 4,
        "sample_rate": 0.25,
        "steps": 3,
        "noise_multiplier": 1.0,
        "rate": 0.1,
        "loss": losses,
    }
    return ZerothOrderTraining(**{**options, **given})


def scores(subject, runs):
    return tuple(np.array([subject.run(w, np.random.default_rng((w, k))) for k in range(runs)]) for w in (0, 1))


def joint(inside, out):
    """What the scores certify at 1 - 1e-4 without an assumption."""
    bounds = audit_scores(inside, out, delta=1e-5, confidence=1.0 - 1e-4)
    return next(bound.epsilon_lower for bound in bounds if bound.name == "joint")


TINY = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY["max_position_embeddings"] = LENGTH


def bert(transformers):
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**TINY, intermediate_size=8, hidden_dropout_prob=0.5)
    )


def opt(transformers):
    return transformers.OPTForSequenceClassification(
        transformers.OPTConfig(**TINY, word_embed_proj_dim=8, ffn_dim=8, pad_token_id=1, dropout=0.5)
    )


@pytest.fixture(params=[bert, opt], ids=lambda made: made.__name__)
def text(request):
    """A function: the training of a tiny random language model on random words, some of them padding."""
    transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
    torch.manual_seed(0)
    model = request.param(transformers)

    def make(**given):
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(3, VOCABULARY, (RECORDS, LENGTH), generator=generator)
        ids[::2, -2:] = model.config.pad_token_id
        options = {"model": model, "inputs": ids, "targets": (ids[:, 0] > 11).long(), "noise_multiplier": 2.0}
        return ZerothOrderTraining(**{"batch_size": 4, "sample_rate": 0.25, "steps": 3, **options, **given})

    return make


def test_a_step_is_the_mean_of_clipped_differences_and_a_move_along_the_direction():
    """Everybody in every batch, hardly any noise, in double precision: against both ends on copies."""
    setting = linear(
        model=linear().model.double(),
        inputs=linear().inputs.double(),
        sample_rate=1.0,
        steps=1,
        noise_multiplier=1e-4,
        max_grad_norm=0.5,
    )
    trained, (step,) = setting.train()
    ends = []
    for sign in (1.0, -1.0):
        moved = copy.deepcopy(setting.model)
        generator = torch.Generator().manual_seed(step.seed)
        with torch.no_grad():
            for parameter in moved.parameters():
                direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(sign * setting.smoothing * direction)
            ends.append(losses(moved, setting.inputs, setting.targets))
    clipped = ((ends[0] - ends[1]) / (2 * setting.smoothing)).clamp(-0.5, 0.5)
    assert (clipped.abs() == 0.5).any()
    assert (clipped.abs() < 0.5).any()
    # The noise is 1e-4 C/B = 1.25e-5; eight deviations and a step of the grid, 12 times.
    assert step.scalar == pytest.approx(float(clipped.sum() / 4), abs=1.1e-4)
    generator = torch.Generator().manual_seed(step.seed)
    for start, end in zip(setting.model.parameters(), trained.parameters(), strict=True):
        direction = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(end, start - 0.1 * step.scalar * direction)


def test_a_training_is_its_start_seeds_and_scalars():
    setting = linear(steps=5)
    trained, released = setting.train()
    assert [type(step) for step in released] == [ScalarStep] * 5
    again = setting.replayed(released)
    # A perturbed model comes back to an ulp of where it was.
    torch.testing.assert_close(again.weight, trained.weight, rtol=1e-5, atol=1e-6)
    assert not torch.equal(trained.weight, setting.model.weight)


def test_two_trainings_share_no_noise():
    first, second = (linear(sample_rate=1e-9).train()[1] for _ in range(2))
    assert {step.scalar for step in first}.isdisjoint(step.scalar for step in second)
    assert {step.seed for step in first}.isdisjoint(step.seed for step in second)


def test_batches_do_not_follow_from_the_public_seeds():
    """Equal seeds, other batches: what draws the seeds draws no coin. Twenty coins agree with chance 1e-6."""
    runs = [_Training(linear(sample_rate=0.5, steps=20), np.random.default_rng(0), origin) for origin in (1, 2)]
    steps = [[training.step() for _ in range(20)] for training in runs]
    assert [step.seed for step in steps[0]] == [step.seed for step in steps[1]]
    assert runs[0].held != runs[1].held


@pytest.mark.parametrize(("neighbours", "away"), [("zero-out", 0.0), ("replace-record", -1.0)])
def test_known_batches_give_scores_of_the_deviation_that_is_accounted(neighbours, away):
    """Sums of three steps of C/B each: N(3, 3 z^2) C/B. Kolmogorov-Smirnov at 2.5e-5 for each of four samples."""
    subject = linear(sample_rate=1.0, neighbours=neighbours, known_ids=True, noise_multiplier=2.0)
    for mean, found in zip((away, 1.0), scores(subject, 200), strict=True):
        assert stats.kstest(found * 4, stats.norm(3 * mean, 2 * 3**0.5).cdf).pvalue > 2.5e-5


def test_the_claim_is_amplified_where_batches_are_secret():
    secret = linear(steps=20, neighbours="zero-out")
    known = linear(steps=20, neighbours="zero-out", known_ids=True)
    assert secret.claimed(1e-5) < 0.7 * known.claimed(1e-5)
    assert linear(steps=20).claimed(1e-5) == secret.claimed(1e-5)


@pytest.mark.ci
def test_a_claim_that_holds_is_not_refuted_and_noise_that_is_lacking_is_seen(monkeypatch):
    """At 1 - 1e-4. Without noise both worlds separate: 200 runs of each certify far more than is claimed."""
    subject = linear(steps=4, noise_multiplier=2.0, sample_rate=0.9)
    out, inside = scores(subject, 200)
    assert joint(inside, out) <= subject.claimed(1e-5)
    monkeypatch.setattr("mechanisms.core.noise.GaussianNoise.next", lambda noise: torch.zeros(1))
    silent = linear(steps=4, noise_multiplier=8.0, sample_rate=0.9)
    out, inside = scores(silent, 200)
    assert joint(inside, out) > silent.claimed(1e-5)


def test_no_record_depends_on_who_else_is_in_the_batch(text):
    """Each record by itself gives bit for bit what it gives among others."""
    training = _Training(text(), np.random.default_rng(0), 0)
    together = training._losses(np.arange(RECORDS))
    assert torch.equal(together, torch.cat([training._losses(np.array([place])) for place in range(RECORDS)]))


def test_a_language_model_is_trained_in_place_and_learns(text):
    """Hardly any noise, all records in each batch: the loss falls, by far more than dropout or noise would move it."""
    options = {"batch_size": RECORDS, "noise_multiplier": 0.01, "max_grad_norm": 20.0, "rate": 0.05}
    setting = text(sample_rate=1.0, steps=60, **options)
    start = copy.deepcopy(setting.model.state_dict())
    trained, released = setting.train()
    assert len(released) == 60
    assert all(torch.equal(start[name], value) for name, value in setting.model.state_dict().items())
    with torch.no_grad():
        before, after = (
            float(text_losses(model.eval(), setting.inputs, setting.targets).mean())
            for model in (setting.model, trained)
        )
    assert after < 0.97 * before


def test_an_audit_of_a_language_model_sees_the_canary(text):
    """With hardly any noise every score of the one world is above every score of the other."""
    subject = text(noise_multiplier=0.01, sample_rate=1.0, steps=2)
    out, inside = scores(subject, 3)
    assert out.max() < inside.min()
    assert subject.claimed(1e-5) > 100


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sample_rate": 1.5}, r"sample_rate is 1.5; use a number in \(0, 1\]"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"neighbours": "replace-label"}, "neighbours is 'replace-label'"),
        ({"known_ids": True}, "neighbours is 'add-remove' with known_ids; use zero-out or replace-record"),
        ({"targets": torch.zeros(3)}, "inputs are 12 records and targets 3; use as many of each"),
    ],
)
def test_a_wrong_setting_is_one_line(given, says):
    with refused(says):
        linear(**given)
