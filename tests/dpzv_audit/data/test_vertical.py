import numpy as np
import pytest

from dpzv_audit.data.vertical import Records, VerticalDataset

from ...helpers.refusals import refused


def block(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def labels(*values):
    return np.array(values, dtype=np.int64)


def records(*shapes, y=(0,)):
    """Records of blocks of some shapes."""
    return Records(features=tuple(block(*shape) for shape in shapes), labels=labels(*y))


def dataset(train, test, classes=3):
    return VerticalDataset(
        name="tiny", train=train, test=test, classes=classes, partition="by hand", digests={"a": "0" * 64}
    )


def test_clients_and_lengths():
    train = records((3, 2), (3, 1, 4, 5), y=(0, 1, 2))
    made = dataset(train, records((1, 2), (1, 1, 4, 5), y=(2,)))
    assert made.clients == 2
    assert made.shapes == ((2,), (1, 4, 5))
    assert (len(made.train), len(made.test)) == (3, 1)


def test_whatever_is_trained_or_tested_on_changes_the_fingerprint():
    def made(first=0.0, second=(3, 2), train=(0, 1, 2), test=(2,), classes=3, digest="0"):
        features = (block(3, 2) + np.float32(first), block(*second))
        parts = (
            Records(features=features, labels=labels(*train)),
            Records(features=tuple(one[:1] for one in features), labels=labels(*test)),
        )
        return VerticalDataset("tiny", *parts, classes, "by hand", {"a": digest * 64}).fingerprint

    others = [
        made(first=1.0),
        made(second=(3, 1, 2)),
        made(train=(0, 2, 1)),
        made(test=(1,)),
        made(classes=4),
    ]
    assert len({made(), *others}) == 6
    assert made() == made(digest="1")


def test_the_fingerprint_of_token_ids_counts_their_vocabulary():
    part = Records(features=(np.arange(6).reshape(2, 3),), labels=labels(0, 1))
    sizes = [VerticalDataset("t", part, part, 2, "by hand", {}, vocabulary=size).fingerprint for size in (6, 7)]
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize(
    ("features", "y", "message"),
    [
        ((), labels(0, 1), "features is empty"),
        ((block(2, 3), block(3, 3)), labels(0, 1), r"features\[1\] has shape \(3, 3\)"),
        ((block(2),), labels(0, 1), r"features\[0\] has shape \(2,\)"),
        ((block(2, 3).astype(np.float64),), labels(0, 1), "float64; use an array of float32"),
        ((block(2, 3).tolist(),), labels(0, 1), "list; use an array of float32"),
        ((block(3, 2).T,), labels(0, 1), "not C-contiguous"),
        ((np.array([[0.0, np.nan]], dtype=np.float32),), labels(0), "nan or inf"),
        ((np.array([[0.0, -np.inf]], dtype=np.float32),), labels(0), "nan or inf"),
        ((block(2, 3),), labels(0, 1).astype(np.int32), "labels is int32; use an array of int64"),
        ((block(2, 3),), labels(0, 1).reshape(2, 1), "labels has shape"),
        ((block(0, 3),), labels(), "labels has shape"),
    ],
)
def test_malformed_records_are_refused(features, y, message):
    with refused(message):
        Records(features=features, labels=y)


@pytest.mark.parametrize("bad", [-1, 3])
def test_labels_out_of_range_are_refused(bad):
    good = records((1, 2))
    wrong = records((2, 2), y=(0, bad))
    with refused(r"test labels run from .* use numbers in 0 \.\. 2"):
        dataset(good, wrong)


def test_parts_that_differ_in_blocks_are_refused():
    one = records((1, 2))
    wider = records((1, 3))
    for other in (wider, records((1, 2), (1, 2))):
        with refused("use the same"):
            dataset(one, other)


def test_one_class_is_no_task():
    one = records((1, 2))
    with refused("classes is 1"):
        dataset(one, one, classes=1)


def tokens(*rows):
    return np.array(rows, dtype=np.int64)


def text(ids, vocabulary, test_ids=None):
    train = Records(features=(ids,), labels=np.zeros(len(ids), dtype=np.int64))
    other = ids if test_ids is None else test_ids
    test = Records(features=(other,), labels=np.zeros(len(other), dtype=np.int64))
    return VerticalDataset(
        name="tiny", train=train, test=test, classes=2, partition="by hand", digests={}, vocabulary=vocabulary
    )


def test_blocks_of_token_ids_need_their_vocabulary():
    made = text(tokens([0, 4], [3, 1]), 5)
    assert made.train.features[0].dtype == np.int64
    assert made.vocabulary == 5
    with refused(r"token id 4 is out of range; use 0 to 3"):
        text(tokens([0, 4]), 4)
    with refused(r"token id 9 is out of range; use 0 to 4"):
        text(tokens([0, 4]), 5, tokens([9, 0]))
    with refused("vocabulary is None; use None where no block is int64"):
        text(tokens([0, 4]), None)
    with refused("vocabulary is 5; use None where no block is int64"):
        text(block(2, 2), 5)
    with refused("use token ids of at least 0"):
        text(tokens([0, -1]), 5)


def test_parts_that_differ_in_type_are_refused():
    with refused("train and test blocks differ in type"):
        text(tokens([0, 1]), 5, block(1, 2))


def test_data_sets_carry_no_notes_unless_given():
    one = records((1, 2))
    assert dataset(one, one).notes == ()
