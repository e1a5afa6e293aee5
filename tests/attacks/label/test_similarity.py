"""`label_similarity`: known answers of comparisons, what one known label of each class finds, and its controls."""

from dataclasses import replace

import pytest
import torch

from attacks import ATTACKS
from attacks.core.knowledge import FewLabels
from attacks.core.spec import DoesNotApply
from attacks.label.completion import RAW
from attacks.label.similarity import SPREAD, UNSEEN, Rows, clustered, nearest
from dpzv_audit.data import load

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset

SPEC = ATTACKS["label_similarity"]
SMALL = {"batch_size": 64, "epochs": 3}
FEW = FewLabels(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))


def test_between_unit_rows_the_nearest_is_the_one_of_the_largest_cosine():
    angles = torch.tensor([[0.0, 1.0, 0.4, 0.6, 2.5, -2.5]], dtype=torch.float64)
    rows = Rows.of(torch.stack((angles.cos(), angles.sin()), 2))
    scores = nearest(rows, FEW, 2)
    assert scores.argmax(2).tolist() == [[0, 1, 0, 1, 1, 0]]
    difference = (scores[..., 1] - scores[..., 0])[0]
    assert torch.allclose(difference, (angles - 1.0).cos()[0] - angles.cos()[0])


def test_clusters_grow_where_a_single_known_record_misleads():
    """The known record of class 0 lies at the edge of its class, whose other end is nearer to that of class 1."""
    rows = Rows.of(torch.tensor([[[0.0], [2.0], [0.4], [0.7], [1.1], [0.6], [2.2], [2.1]]]))
    assert nearest(rows, FEW, 2).argmax(2)[0].tolist() == [0, 1, 0, 0, 1, 0, 1, 1]
    assert clustered(rows, FEW, 2).argmax(2)[0].tolist() == [0, 1, 0, 0, 0, 0, 1, 1]


def test_passes_that_did_not_see_a_record_say_nothing_of_it():
    """In the second pass directions have turned by half a circle, and record 2 was not seen; record 3 in it alone."""
    values = torch.tensor([[[1.0, -1.0], [-1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]).unsqueeze(3).double()
    saw = (values[..., 0] != 0).double()
    assert nearest(Rows(values, saw), FEW, 2).argmax(2)[0].tolist() == [0, 1, 0, 1]


def test_a_class_whose_known_record_no_pass_shows_is_as_near_as_the_origin():
    """The record that points away from the one known record is of the other class."""
    values = torch.tensor([[[1.0], [0.0], [-1.0], [1.0]]]).unsqueeze(3).double()
    rows = Rows(values, values[..., 0].abs())
    assert nearest(rows, FEW, 2)[0, :, 1].tolist() == [UNSEEN] * 4
    assert clustered(rows, FEW, 2).argmax(2)[0].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("method", ["split", "vafl"])
def test_one_known_digit_of_each_class_names_the_others(method, digits):
    options = {**SMALL, "epochs": 3 if method == "split" else 12}
    outcome = mount(SPEC, method, digits, options=options, trials=2, with_positive=True)
    assert outcome.success.value > 0.98
    assert outcome.success.n == 2 * (1408 - 10)
    assert max(outcome.baselines[name].value for name in (RAW, SPREAD)) < 0.4
    assert outcome.controls["positive"].value > 0.99
    assert outcome.controls["shuffled_labels"].holds


def test_where_no_gradient_comes_it_reads_embeddings(digits):
    outcome = mount(SPEC, "dpzv", digits, options=SMALL, trials=2)
    assert 0.1 < outcome.success.value < 0.6
    assert outcome.controls["shuffled_labels"].holds
    options = {"reads": "embeddings"}
    assert mount(SPEC, "split", digits, options=SMALL, trials=2, options_of_attack=options).success.value < 0.6


def test_of_two_classes_the_scores_of_one_are_ranked():
    outcome = mount(SPEC, "split", load("breast-cancer"), options=SMALL, trials=2)
    assert outcome.metric == "area under the ROC curve"
    assert outcome.success.value > 0.99


def test_one_known_label_of_each_class_does_not_see_through_marvell():
    """Three trainings from fixed seeds, with all their passes; `label_denoised` sees through it from three labels."""
    options = {**SMALL, "epochs": 20, "defences": ({"name": "marvell", "power": 4.0},)}
    outcome = mount(SPEC, "split", load("breast-cancer"), options=options, trials=3, options_of_attack={"passes": 20})
    assert outcome.success.value < 0.8


def test_comparing_wrong_records_fails_the_positive_control(digits):
    """A planted bug: the view's ids are off by one batch."""

    def off_by_one(view, known):
        ids = [message.ids for message in view.received("gradient")]
        moved = [m._replace(ids=i) for m, i in zip(view.messages, ids[1:] + ids[:1], strict=True)]
        return SPEC.infer(replace(view, messages=moved), known)

    broken = replace(SPEC, infer=off_by_one)
    assert not mount(broken, "split", digits, options=SMALL, trials=1, with_positive=True).controls["positive"].holds


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("split", {"sampler": "poisson"}, "sampler is 'poisson'"),
        ("one-upload", {}, "its server sends clients nothing about records"),
    ],
)
def test_where_it_does_not_apply_it_says_so(method, options, message):
    with refused(message, DoesNotApply):
        mount(SPEC, method, random_dataset(), options=options)


def test_baselines_with_the_same_known_labels_are_compared_training_by_training():
    """What the control's trainings found has other known labels."""
    outcome = mount(SPEC, "split", load("breast-cancer"), options=SMALL, trials=2)
    counted = {
        name: baseline.over_trainings.behind
        for name, baseline in outcome.baselines.items()
        if name != "a constant score"
    }
    assert counted.pop("features alone, trained on permuted labels") is None
    assert {RAW, SPREAD} <= set(counted)
    assert all(count in (0, 1, 2) for count in counted.values())
