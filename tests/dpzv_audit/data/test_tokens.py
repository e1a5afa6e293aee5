import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.data import load
from dpzv_audit.data.text import HashTokenizer, choose_tokenizer, word_id
from dpzv_audit.data.vertical import equal_runs

from ...helpers.refusals import refused

TEN = HashTokenizer(length=10, vocabulary=1000)


def test_words_are_lower_cased_hashed_and_padded_with_zero():
    ids = TEN.encode(["It's GREAT, isn't it?", "it's great isn't it", "", "... !!!"])
    assert ids.dtype == np.int64
    assert ids.shape == (4, 10)
    np.testing.assert_array_equal(ids[0], ids[1])
    expected = [word_id(word, 1000) for word in (b"it's", b"great", b"isn't", b"it")]
    assert ids[0].tolist() == [*expected, *[0] * 6]
    assert not ids[2:].any()


def test_ids_are_fixed_for_good():
    # BLAKE2b of the word, first 8 bytes, big-endian, modulo 32,767, plus 1
    assert [word_id(word, 1 << 15) for word in (b"good", b"bad")] == [6535, 27022]


def test_a_text_beyond_the_length_is_cut():
    long = TEN.encode(["a b c d e f g h i j k l m"])
    np.testing.assert_array_equal(long, TEN.encode(["a b c d e f g h i j"]))
    assert (long > 0).all()


@given(texts=st.lists(st.text(max_size=60), min_size=1, max_size=5), vocabulary=st.integers(2, 50))
def test_a_row_depends_on_its_own_text_alone(texts, vocabulary):
    tokenizer = HashTokenizer(length=6, vocabulary=vocabulary)
    together = tokenizer.encode(texts)
    assert 0 <= together.min() <= together.max() < vocabulary
    for row, text in enumerate(texts):
        np.testing.assert_array_equal(tokenizer.encode([text])[0], together[row])


def test_ids_spread_over_the_vocabulary():
    ids = HashTokenizer(length=20_000, vocabulary=101).encode([" ".join(f"w{n}" for n in range(20_000))])
    counts = np.bincount(ids[0], minlength=101)[1:]
    # 100 cells of 200 on average; 5.5 standard deviations are 77 (false alarm below 1e-5 over all cells)
    assert counts.min() > 123
    assert counts.max() < 277


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_runs_reassemble_the_text(clients):
    ids = TEN.encode(["one two three four five six seven", "eight nine"])
    runs = equal_runs(ids, clients)
    assert [run.shape for run in runs] == [(2, 10 // clients)] * clients
    np.testing.assert_array_equal(np.hstack(runs), ids)
    assert all(run.flags.c_contiguous and run.dtype == np.int64 for run in runs)


def test_other_lengths_and_clients_are_refused():
    with refused("length is 0"):
        HashTokenizer(length=0)
    with refused("vocabulary is 1"):
        HashTokenizer(length=5, vocabulary=1)

    def choose(clients):
        return choose_tokenizer(None, clients=clients, length=10, vocabulary=9)

    assert choose(5) == HashTokenizer(length=10, vocabulary=9)
    with refused("clients is 3; use a divisor of the 10 tokens: 1, 2, 5, 10"):
        choose(3)
    with refused("partition is 'words', imdb has only one: runs"):
        load("imdb", partition="words")
