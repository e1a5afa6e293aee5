from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpzv_audit.data import DATASETS, load
from dpzv_audit.data.text import HashTokenizer, read_imdb
from dpzv_audit.data.vertical import fixed_order

from ...helpers.refusals import refusal
from .packed import md5, tar_of

TOKENIZER = HashTokenizer(length=8, vocabulary=300)


def reviews(count=6):
    files = {"aclImdb/README": b"read me", "aclImdb/train/labeledBow.feat": b"9 0:9"}
    for part in ("train", "test"):
        for side, rating in (("neg", 2), ("pos", 9)):
            for number in range(count // 2):
                text = f"{part} film {number}<br /><br />was {side}"
                files[f"aclImdb/{part}/{side}/{number}_{rating}.txt"] = text.encode()
    files["aclImdb/train/unsup/0_0.txt"] = b"unlabelled"
    return files


IMDB = DATASETS["imdb"]


def archive_of(digest, complete):
    """IMDb whose original archive has that MD5, and `complete` reviews in each part."""
    source = replace(IMDB.source, remote=(replace(IMDB.remote[0], digest=digest),))
    return replace(IMDB, source=source, reader=partial(read_imdb, complete))


def refused(folder, spec=IMDB, **options):
    return refusal(spec.load, data_dir=folder, **options)


def test_labelled_reviews_are_read_in_place_and_shuffled(tmp_path):
    path = tar_of(tmp_path / "aclImdb_subset.tar.gz", reviews())
    data = load("imdb", data_dir=tmp_path, subset=True, tokenizer=TOKENIZER)
    assert data.shapes == ((8,),)
    assert (len(data.train), len(data.test), data.vocabulary) == (6, 6, 300)
    assert sorted(tmp_path.iterdir()) == [path]
    # by side and number, then in the fixed order
    texts = [f"train film {number} was {side}" for side in ("neg", "pos") for number in range(3)]
    order = fixed_order(6, seed=25_000)
    np.testing.assert_array_equal(data.train.features[0], TOKENIZER.encode([texts[place] for place in order]))
    assert data.train.labels.tolist() == [int(place >= 3) for place in order]
    assert data.notes == ("a subset: 12 of 50,000 reviews",)
    halves = load("imdb", data_dir=tmp_path, subset=True, tokenizer=TOKENIZER, clients=2)
    np.testing.assert_array_equal(np.hstack(halves.test.features), data.test.features[0])


def test_the_complete_archive_needs_its_md5(tmp_path):
    path = tar_of(tmp_path / IMDB.remote[0].name, reviews())
    digest = md5(path.read_bytes())
    assert archive_of(digest, 6).load(data_dir=tmp_path).notes == ()
    assert f"md5 is {digest}, not 7c2ac02c03563afcf9b574c7e56c153a" in refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aclImdb/train/pos/9_3.txt": b"x"}, "'aclImdb/train/pos/9_3.txt' has rating 3, which is not pos"),
        ({"aclImdb/train/neg/9_7.txt": b"x"}, "has rating 7, which is not neg"),
        ({"aclImdb/train/neg/0_1.txt": b"x"}, "is a second review of number 0"),
        ({"aclImdb/train/neg/9_1.txt": b"\xff\xff"}, "is no UTF-8 text"),
        ({"aclImdb/train/neg/9_1.txt": b"x" * ((1 << 18) + 1)}, "has 262145 bytes; use 262144 at most"),
        ({"../aclImdb/train/neg/9_1.txt": b"x"}, "points outside the archive"),
    ],
)
def test_malformed_archives_are_refused(tmp_path, change, message):
    path = tar_of(tmp_path / "aclImdb_x.tar.gz", {**reviews(), **change})
    text = refused(tmp_path, subset=True)
    assert text.startswith(f"{path}: ")
    assert message in text


def test_an_archive_without_a_part_is_refused(tmp_path):
    only = {name: content for name, content in reviews().items() if "/test/" not in name}
    tar_of(tmp_path / "aclImdb_x.tar.gz", only)
    assert "has no aclImdb/test/pos or neg/ID_RATING.txt" in refused(tmp_path, subset=True)


def test_the_smaller_archive_is_offered_where_it_is_there(tmp_path):
    assert "subset" not in refused(tmp_path)
    tar_of(tmp_path / "aclImdb_subset.tar.gz", reviews())
    assert refused(tmp_path).endswith("give subset to use aclImdb_subset.tar.gz")


@pytest.mark.data
@pytest.mark.parametrize("real", ["imdb"], indirect=True)
@pytest.mark.slow
def test_real_reviews(real):
    data = load("imdb", data_dir=real, subset=True)
    assert data.shapes == ((256,),)
    if sum(map(len, (data.train, data.test))) == 15_000:
        assert (len(data.train), len(data.test)) == (10_000, 5_000)
        assert np.bincount(data.train.labels).tolist() == [5000, 5000]
        assert np.bincount(data.test.labels).tolist() == [2500, 2500]
    # shuffled: the first hundred are of both classes
    assert 20 < data.train.labels[:100].sum() < 80
