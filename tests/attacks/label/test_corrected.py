"""Labels behind a defence, given what it is known to do: known answers, and never fewer than the plain attack finds."""

import numpy as np
import pytest
import torch

from attacks import AttackSetting, attack_named
from attacks.core.spec import DoesNotApply
from attacks.label.corrected import class_logs, mixture, names, regression
from mechanisms import METHODS
from mechanisms.defences import defence_of
from mechanisms.defences.private_labels import response_matrix

from ...helpers.refusals import refused
from ..conftest import certified, mount, random_dataset

CAE = "confusional-autoencoder"
SPEC = attack_named("label_corrected")


def found(attack, digits, defences, *, epochs=8, trials=2, method="split", **more):
    config = METHODS[method].configure(epochs=epochs, top_model=False, defences=defences)
    options = {"adversary": "client", "trials": trials, "with_positive": False, "pilot": True, **more}
    return attack_named(attack).mount(AttackSetting(method=METHODS[method], config=config, dataset=digits, **options))


@pytest.mark.parametrize("method", ["split", "vafl", "compressed"])
@pytest.mark.parametrize("adversary", ["client", "colluding-clients"])
def test_without_a_defence_it_finds_every_label(method, adversary):
    outcome = mount(SPEC, method, adversary=adversary, with_positive=True)
    assert outcome.success.value == 1.0
    assert outcome.controls["positive"].value == 1.0


@pytest.mark.parametrize(
    ("defences", "more"),
    [
        ({"name": "label-rr", "epsilon": 1.0}, 0.2),
        pytest.param({"name": "label-rr", "epsilon": 3.0}, 0.1, marks=pytest.mark.slow),
        pytest.param({"name": "label-rr", "correction": True}, 0.0, marks=pytest.mark.slow),
        pytest.param({"name": "label-rr-prior"}, 0.0, marks=pytest.mark.slow),
        ({"name": "label-cluster", "grouping": "k-means"}, 0.0),
        pytest.param(
            {"name": "label-cluster", "grouping": "k-means", "release": "shares"}, 0.0, marks=pytest.mark.slow
        ),
        pytest.param({"name": CAE, "entropy": 0.1}, 0.9, marks=pytest.mark.slow),
        pytest.param({"name": CAE}, 0.9, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_finds_at_least_what_the_plain_attack_finds(defences, more, digits):
    plain = found("label_direct", digits, defences).success.value
    assert found("label_corrected", digits, defences).success.value >= plain + more


@pytest.mark.slow
def test_its_scores_certify_no_more_than_a_response_states(digits):
    """The game has coins of two candidate labels; features, and what the whole model says, tell nothing of them."""
    outcome = found("label_corrected", digits, {"name": "label-rr"}, epochs=3, pilot=False, trials=4)
    assert 0.3 < certified(outcome.game, delta=1e-9, confidence=1 - 1e-4) <= 1.0
    assert outcome.controls["shuffled_labels"].value < 0.15


def responses(count=4000, classes=3, epsilon=1.0, seed=0):
    """Rows whose class is told by a known logistic model, and responses to it."""
    generator = np.random.default_rng(seed)
    rows = torch.from_numpy(generator.normal(size=(count, 2)))
    weights = torch.tensor([[2.0, 0.0, -2.0], [0.0, 2.0, -1.0]], dtype=torch.float64)
    chances = torch.softmax(rows @ weights, 1).numpy()
    labels = (generator.random((count, 1)) > chances.cumsum(1)).sum(1)
    response = response_matrix(classes, epsilon)
    private = (generator.random((count, 1)) > response[labels].cumsum(1)).sum(1)
    return rows, chances, torch.from_numpy(private), torch.from_numpy(response)


def test_the_regression_finds_the_chances_of_true_classes_from_responses():
    rows, chances, private, response = responses()
    inputs = torch.cat((rows, torch.ones(len(rows), 1, dtype=torch.float64)), 1)
    prior = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    logs = regression(inputs, private, torch.arange(4000), response, prior, 1e-4)
    # Ignoring the channel, chances would be within 0.21 and 0.58, those of responses.
    assert np.abs(logs.exp().numpy() - chances).mean() < 0.06


def test_a_basis_that_holds_the_response_itself_is_left_out():
    """It would explain responses better than true labels do, and name them instead."""
    rows, chances, private, response = responses()
    shares = torch.full((3,), 1 / 3, dtype=torch.float64)
    held = 4.0 * torch.eye(3, dtype=torch.float64)[private]
    alone, both = (
        class_logs(bases, private, torch.arange(4000), response, shares) for bases in ((rows,), (rows, held))
    )
    assert torch.equal(alone, both)
    assert np.abs(alone.exp().numpy() - chances).mean() < 0.1


def test_groups_are_found_by_means_that_one_covariance_hides():
    generator = np.random.default_rng(0)
    truth = generator.integers(3, size=600)
    means = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    rows = means[truth] + generator.normal(size=(600, 2)) * (5.0, 0.1)
    start = np.where(generator.random(600) < 0.5, truth, generator.integers(3, size=600))
    logs, _ = mixture(rows, start, 3)
    assert (logs.argmax(1) == truth).mean() > 0.99
    assert np.exp(logs).sum(1) == pytest.approx(1.0)


def test_groups_are_named_by_their_highest_gradients_each_class_once():
    means = np.array([[0.1, 0.3, 0.0], [0.2, 0.25, 0.0], [0.0, 0.0, 0.4]])
    assert names(means).tolist() == [1, 0, 2]


def test_chances_of_responses_are_those_of_settings():
    assert defence_of("label-rr", epsilon=2.0).response(4, 100) == pytest.approx(response_matrix(4, 2.0))
    votes = defence_of("label-cluster", groups=50, grouping="k-means").response(4, 100)
    assert votes == pytest.approx(response_matrix(4, 1.0))  # two records a group
    assert defence_of("label-rr-prior").response(4, 100) is None
    assert defence_of("dcor").response(4, 100) is None


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dpzv", {}, "its server sends no gradient of a record"),
        ("split", {"sampler": "poisson"}, "sampler is 'poisson'"),
    ],
)
def test_where_it_does_not_apply_it_says_so(method, options, message):
    with refused(message, DoesNotApply):
        mount(SPEC, method, random_dataset(), options=options)
