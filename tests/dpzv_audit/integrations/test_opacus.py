"""Trainings with Opacus under audit: what a run answers has the law that it must, and a public fault is refuted."""

import ast

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpzv_audit.statistics.estimators import audit_scores

from ...helpers.places import ROOT
from ...helpers.refusals import refused
from .opacus_trainings import records, scores, training

EXAMPLE = ROOT / "examples" / "opacus"


@pytest.mark.parametrize(("neighbours", "epochs"), [("zero-out", 1), ("replace-record", 4)])
def test_scores_of_whole_batches_are_gaussian_with_the_mean_that_is_accounted(neighbours, epochs):
    """mu = sqrt(T) s / z, s = 1 where the gradient is taken away and 2 where it turns: N(-+mu^2/2, mu^2).

    Kolmogorov-Smirnov at 2.5e-5 for each of four samples of 80 scores, which follow from a fixed seed.
    """
    subject = training(neighbours=neighbours, poisson_sampling=False, epochs=epochs, noise_multiplier=2.0)
    mu = epochs**0.5 * (2.0 if neighbours == "replace-record" else 1.0) / 2.0
    out, inside = scores(subject, 80)
    for sign, found in ((-1.0, out), (1.0, inside)):
        assert stats.kstest(found, stats.norm(sign * mu**2 / 2, mu).cdf).pvalue > 2.5e-5


def test_a_record_of_ones_own_adds_what_the_adversary_expects():
    """Hardly any noise: what is seen less the other records is the canary's clipped gradient, or nothing."""
    data = records(20)
    canary = (10.0 * data[0][0], 1 - data[0][1])
    given = {"canary": canary, "opposite": (data[0][0], data[0][1]), "neighbours": "replace-record"}
    out, inside = scores(training(**given, noise_multiplier=1e-3, poisson_sampling=False), 3)
    # -+ |g - h|^2 / (2 z^2) of the two clipped gradients, in clips, which do not depend on noise in the first step.
    assert inside == pytest.approx(-out, rel=0.02)
    assert 0.05e6 < inside.min() <= 2e6
    alone = training(canary=canary, noise_multiplier=1e-3, batch_size=64)
    # One record more is one in the divisor too: what is there without a canary is told from it all the same.
    assert scores(alone, 1)[1] > 0


@pytest.mark.parametrize("mode", ["hooks", "ew", "functorch"])
def test_every_way_to_gradients_by_sample_says_the_same(mode):
    subject = training(neighbours="zero-out", grad_sample_mode=mode)
    assert subject.run(1, np.random.default_rng(3)) == pytest.approx(
        training(neighbours="zero-out").run(1, np.random.default_rng(3)), rel=1e-4
    )


def test_a_run_follows_from_its_generator_and_touches_no_other():
    subject = training()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = subject.run(1, np.random.default_rng(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert subject.run(1, np.random.default_rng(1)) == one
    assert subject.run(1, np.random.default_rng(2)) != one


def test_the_claim_is_that_of_opacus_in_the_world_that_claims_more():
    """Forty records are four batches a pass, and with the canary five; with a canary in both worlds they are five."""
    from opacus.accountants import PRVAccountant

    for neighbours, batches in (("add-remove", 4), ("zero-out", 5)):
        accountant = PRVAccountant()
        accountant.history = [(1.0, 1 / batches, 3 * batches)]
        subject = training(count=40, batch_size=10, epochs=3, neighbours=neighbours)
        assert subject.claimed(1e-5) == pytest.approx(accountant.get_epsilon(1e-5))


def test_a_divisor_that_follows_from_the_number_of_records_is_refuted():
    """Opacus 1.6 divides by int(D q): 1 of three records and 2 of four. Its issues 571 and 819."""
    options = {"batch_size": 2, "noise_multiplier": 10.0, "score": "size"}
    wrong = training(count=3, model=lambda: nn.Linear(6, 20), **options)
    out, inside = scores(wrong, 100)
    (bound,) = audit_scores(inside, out, delta=1e-5, confidence=0.9999, estimators=("joint",))
    assert bound.epsilon_lower > 5 * wrong.claimed(1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"canary": (torch.zeros(6), 0), "neighbours": "zero-out"}, "neighbours is 'zero-out'; use add-remove or"),
        ({"canary": "input", "neighbours": "zero-out"}, "neighbours is 'zero-out'; use add-remove or"),
        (
            {"neighbours": "replace-record", "canary": (torch.zeros(6), 0)},
            "opposite goes with neighbours replace-record",
        ),
        ({"opposite": (torch.zeros(6), 0)}, "opposite goes with neighbours replace-record and a canary"),
        ({"clipping": "per_layer"}, "max_grad_norm is 0.5; use one number for each parameter"),
        ({"max_grad_norm": [0.5, 0.5]}, r"max_grad_norm is \[0.5, 0.5\]; use one number, or clipping per_layer"),
        (
            {"clipping": "per_layer", "max_grad_norm": [0.5, 0.5], "grad_sample_mode": "ghost"},
            "clipping is 'per_layer'; use flat with grad_sample_mode ghost",
        ),
        ({"noise_multiplier": None}, "noise_multiplier is None; use a number, or give target_epsilon and target"),
        ({"noise_multiplier": 1.0, "target_epsilon": 2.0}, "noise_multiplier is 1.0; leave it out with target_eps"),
        ({"known_ids": True}, "neighbours is 'add-remove'; use zero-out or replace-record where ids are known"),
    ],
)
def test_what_cannot_be_is_one_line(given, words):
    with refused(words):
        training(**given)


def test_an_audit_takes_at_most_ten_lines():
    """Of the example, without blank lines and documentation strings; the training itself stays as it is."""
    tree = ast.parse((EXAMPLE / "audited.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body.pop(0)
    assert len(ast.unparse(tree).replace("\n\n", "\n").splitlines()) <= 10


@pytest.mark.ci
def test_the_example_is_audited_by_the_installed_command(tmp_path, monkeypatch, cli):

    monkeypatch.chdir(EXAMPLE)
    found = cli.answer(f"audit mechanism audited:subject --runs 60 --out {tmp_path}")
    assert found["privacy"]["claimed"] == pytest.approx(3.014, abs=1e-3)
    assert found["privacy"]["verdict"] in ("inconclusive", "not refuted")
