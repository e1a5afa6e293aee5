import numpy as np
import pytest
import torch
from scipy import stats

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.counters import PIECE, SplitMix, normals, signs, squares, words_of

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""
GOLDEN = 0x9E3779B97F4A7C15


class Given:
    """One word that a test chooses, whatever its number."""

    def __init__(self, word):
        self.word = word

    def at(self, first, count, pieces, stride):
        return torch.tensor([self.word], dtype=torch.int64).expand(pieces, count).clone()


def test_words_are_those_of_splitmix64():
    """Published outputs of the generator with seed 1234567 (rosettacode.org, "Pseudo-random numbers/Splitmix64")."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    words = SplitMix(1234567, GOLDEN)
    assert words.at(0, 5, 1, 5)[0].numpy().view(np.uint64).tolist() == published
    # By their numbers: any of them, several stretches at once.
    assert words.at(1, 2, 2, 2).flatten().numpy().view(np.uint64).tolist() == published[1:]


def test_a_gamma_changes_from_bit_to_bit_often_enough():
    for place in range(300):
        words = words_of(0, Purpose.DIRECTIONS, place)
        gamma = words._gamma
        assert gamma % 2 == 1
        assert bin(gamma ^ (gamma >> 1)).count("1") >= 24


def test_a_bit_is_a_sign():
    """Number j of a piece is bit 31 - j // h of half-word j % h, of h half-words: 1 where it is 0."""
    drawn = signs(Given(0), 0)[0]
    assert drawn.eq(1).all()
    assert signs(Given(-1), 0).eq(-1).all()
    one = signs(Given(1), 0)[0]  # the last bit of every other half-word
    half = PIECE // 32
    assert one.eq(-1).nonzero().flatten().tolist() == list(range(31 * half, 32 * half, 2))


def test_signs_are_fair_and_independent():
    """Means over bits, half-words and pieces, and products at some lags, are normal: level 1e-4 over all."""
    words = words_of(3, Purpose.DIRECTIONS, 1)
    drawn = signs(words, 0, 8).double()
    planes = drawn.view(8, 32, -1)
    scores = [planes.mean((0, 2)) * np.sqrt(drawn.numel() / 32), drawn.mean(1) * np.sqrt(PIECE)]
    for lag in (1, 2, 32, 4096, PIECE // 32):
        products = drawn[:, lag:] * drawn[:, :-lag]
        scores.append(products.mean().view(1) * np.sqrt(products.numel()))
    scores.append((planes[:, 1:] * planes[:, :-1]).mean().view(1) * np.sqrt(8 * 31 * PIECE / 32))
    every = torch.cat(scores).abs()
    assert every.max() < stats.norm.isf(LEVEL / 2 / len(every))


@pytest.mark.parametrize("piece", [0, 5])
def test_normals_are_normal(piece):
    """Kolmogorov and Smirnov's test of a piece, of its two halves' products, and of the pairs' lengths: level 1e-4."""
    words = words_of(0, Purpose.DIRECTIONS, 2)
    drawn = normals(words, piece)[0].double().numpy()
    assert stats.kstest(drawn, "norm").pvalue > LEVEL / 3
    first, second = drawn[: PIECE // 2], drawn[PIECE // 2 :]
    score = np.sqrt(PIECE // 2) * np.mean(first * second)
    assert abs(score) < stats.norm.isf(LEVEL / 6)
    lengths = squares(words, piece)[0].double().numpy()
    assert stats.kstest(lengths, "expon", args=(0, 2)).pvalue > LEVEL / 3
    assert np.allclose(lengths, first**2 + second**2, rtol=1e-5)


def test_no_word_makes_a_normal_that_is_no_number():
    extreme = [0, -1, 2**63 - 1, -(2**63), 2**31 - 1, 2**31, -(2**31)]
    for word in extreme:
        drawn = normals(Given(word), 0)
        assert drawn.isfinite().all()
        assert drawn.abs().max() < 6.67
