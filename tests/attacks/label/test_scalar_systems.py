"""What a client of a system of the user's own learns of labels by the scalars that answer its pairs of embeddings."""

import numpy as np
import pytest
import torch

from attacks import attack_named
from attacks.core.pairs import likeliest_weights, pair_answers
from attacks.core.run import attacked_run
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from attacks.label.scalar import SPEC, infer
from dpzv_audit.data import load
from dpzv_audit.systems.recorded import labelled, method_of_transcript
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from dpzv_audit.systems.transcript import load as transcript_in
from mechanisms.core.channel import Adversary, Message, View

from ...helpers.refusals import refused
from ...helpers.zeroth import STEP, ZerothOrder

REORDERED = "the same scalars in another order"


@pytest.fixture(scope="module")
def halves():
    return load("digits", clients=2)


def setting(train, data, *, top_model=False, **rest):
    method, config = prepared(System("own", train, top_model=top_model), data, 0)
    return AttackSetting(
        method=method, config=config, dataset=data, with_positive=False, **{"clients": (1,), "trials": 2, **rest}
    )


def test_signs_alone_tell_most_labels(halves):
    """About 0.73 of labels; 0.30 is asked for. A control of records in other classes is off at a p-value of 1e-4."""
    outcome = SPEC.mount(setting(ZerothOrder(), halves))
    assert outcome.success.value > 0.5
    assert outcome.baselines[REORDERED].value < 0.3
    assert outcome.controls["shuffled_labels"].p_value > 1e-4
    assert outcome.game is not None


def right(train, data, **rest):
    """The share of labels of two trainings that a client finds."""
    run = attacked_run(SPEC, setting(train, data, pilot=True, **rest))
    return (infer(run.view, run.known).labels.numpy() == data.train.labels).mean()


def noised(first, second):
    return (first - second) / (2.0 * STEP) + 0.3 * torch.randn(())


def test_noised_differences_on_an_unknown_scale_tell_labels(halves):
    """About 0.5; whatever they are multiplied by, the guesses are the same."""
    first, larger = (
        ZerothOrder(lambda a, b, by=by: by * noised(a, b), rate=rate)
        for by, rate in ((1.0, 0.02), (1024.0, 0.02 / 1024))
    )
    found = right(first, halves)
    assert found > 0.35
    assert right(larger, halves) == pytest.approx(found, abs=0.01)


@pytest.mark.parametrize("other", [{"plus_first": False}, {"kind": "losses"}, {"kind": "losses", "plus_first": False}])
def test_which_comes_first_and_which_loss_is_taken_away_does_not_matter(other, halves):
    """A client descends: its own embeddings show the sign of its scalars."""
    assert right(ZerothOrder(epochs=8, **other), halves, trials=1) > 0.3


def test_clients_that_pool_their_scalars_find_more(halves):
    alone, both = (
        right(ZerothOrder(epochs=5), halves, adversary=by, clients=clients)
        for by, clients in (("client", (1,)), ("colluding-clients", (1, 2)))
    )
    assert both > alone + 0.05


def test_batches_that_differ_in_size_are_read(halves):
    """Of 1,408 records batches of 100 leave one of 8."""
    assert right(ZerothOrder(batch=100, epochs=12), halves, trials=1) > 0.3


def test_two_classes_may_have_one_logit():
    """The published breast cancer records: 0.63 are of one class."""

    def one_logit(task, record, seed):
        class Second:
            """Records the logit of class 1 less that of class 0, of which losses alone depend."""

            def sent(self, number, sender, receiver, kind, values, ids=None):
                values = values[:, 1:] - values[:, :1] if kind == "embeddings" else values
                record.sent(number, sender, receiver, kind, values, ids)

        ZerothOrder()(task, Second(), seed)

    assert right(one_logit, load("breast-cancer", clients=2)) > 0.8


def test_a_transcript_is_read_by_embeddings_in_the_place_of_features(halves, tmp_path):
    played = System("own", ZerothOrder(), top_model=False).play(Task.of(halves), 0, "a training")
    played.record.save(tmp_path / "t", classes=10, top_model=False)
    transcript = transcript_in(tmp_path / "t")
    method = method_of_transcript(transcript)
    data = labelled(transcript, halves.train.labels, tmp_path / "t" / "manifest.json")
    outcome = SPEC.mount(
        AttackSetting(
            method=method, config=method.configure(), dataset=data, trials=1, clients=(1,), with_positive=False
        )
    )
    assert outcome.success.value > 0.2
    assert outcome.controls["permuted_labels"].p_value < 1e-3


@pytest.mark.parametrize(
    ("name", "train", "words"),
    [
        (
            "label_scalar",
            ZerothOrder(pair=False, epochs=1),
            "no scalar answers two embeddings of client 1 in one round",
        ),
        ("label_direct", ZerothOrder(epochs=1), "label_scalar reads scalars"),
        ("gradient_estimation", ZerothOrder(epochs=1), "no party of a system has: label_scalar reads scalars"),
    ],
)
def test_what_to_record_or_mount_instead_is_one_line(name, train, words, halves):
    spec = attack_named(name)
    with refused(words, DoesNotApply):
        spec.mount(setting(train, halves, adversary=spec.adversaries[0]))


def test_embeddings_of_another_width_are_no_logits(halves):
    def wide(task, record, seed):
        for number in range(2):
            for side in (1.0, -1.0):
                record.sent(number, 1, 0, "embeddings", side * task.features[0][:8], np.arange(8))
            record.sent(number, 0, 1, "scalar", task.labels[number])

    with refused("client 1 sends embeddings of 32 numbers; a server that only sums gets logits of 10", DoesNotApply):
        SPEC.mount(setting(wide, halves))


def message(number, kind, rows, ids=None, *, down=False):
    rows = torch.as_tensor(rows, dtype=torch.float64)[None]
    ids = None if ids is None else torch.as_tensor(ids)[None]
    return Message(number, *((0, 1) if down else (1, 0)), kind, rows, ids)


def read(*messages):
    return pair_answers(View(Adversary("client", (1,)), list(messages)), 1)


def test_pairs_and_their_answers():
    """Of several directions in a round, each with its own pair or all from one base; a short batch is padded."""
    rows = [[[float(i), 2.0 * i]] * 2 for i in (1, 3, 7, 4)]
    sent = [message(0, "embeddings", each, [5, 6]) for each in rows]
    two = read(*sent, message(0, "scalar", [0.5, -0.5], down=True))
    assert two.scalars[:, 0].tolist() == [0.5, -0.5]
    assert two.moves[:, 0, 0].tolist() == [[-2.0, -4.0], [3.0, 6.0]]
    assert not two.directions.isnan().any()
    base = read(*sent, message(0, "losses", [4.0, 1.0, 2.0, 3.0], down=True))
    assert base.scalars[:, 0].tolist() == [3.0, 2.0, 1.0]
    assert base.moves[:, 0, 0, 0].tolist() == [-2.0, -6.0, -3.0]
    short = [message(1, "embeddings", each[:1], [2]) for each in rows[:2]]
    padded = read(*sent[:2], *short, *(message(n, "scalar", 1.0 + n, down=True) for n in (0, 1)))
    assert padded.ids[1, 0].tolist() == [2, -1]
    assert padded.directions[:, 0, :, 0].tolist() == [[-2.0, -2.0], [-4.0, 0.0]]
    by_record = read(*sent[:2], message(0, "scalar", [1.0, 2.0], down=True))
    assert by_record.scalars.tolist() == [[1.5]]
    assert read(sent[0], message(0, "scalar", 1.0, down=True)) is None
    assert read(*sent[:2]) is None


def test_scale_and_noise_are_the_likeliest():
    """Of 400 draws the fit is within a factor of 2 of the weights at true scale and noise, in cosine and in length."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((400, 40))
    gram = half @ half.T / 40.0
    scalars = 3.0 * (half @ rng.standard_normal(40) / np.sqrt(40.0) + 0.5 * rng.standard_normal(400))
    _, weights = likeliest_weights(gram, scalars)
    right = np.linalg.solve(gram + 0.25 * np.eye(400), scalars) / 3.0
    assert np.corrcoef(weights, right)[0, 1] > 0.95
    assert 0.5 < np.linalg.norm(weights) / np.linalg.norm(right) < 2.0
