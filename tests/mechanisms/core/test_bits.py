"""Exact draws: digits against mpmath, laws against closed forms, and ties that further bits decide."""

from fractions import Fraction
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy.stats import chisquare

from dpzv_audit.base.seeds import Purpose
from mechanisms.core import bits as exact
from mechanisms.core.bits import (
    BitSource,
    happens,
    permutations,
    permute_and_flip,
    randomised_response,
    two_sided_geometric,
    uniform,
)
from mechanisms.core.noise import SecretBits

from ...helpers.draws import bits, law_of_permute_and_flip

# Chance of a false alarm of each test of a law.
ALARM = 1e-5


class Given:
    """Words that a test gives, in the place of random ones."""

    def __init__(self, *calls):
        self.calls = list(calls)

    def words(self, count):
        found = np.array(self.calls.pop(0), np.uint64)
        assert len(found) == count
        return found


@given(st.fractions(Fraction(1, 10**6), 60), st.sampled_from([64, 128, 256]))
def test_digits_are_those_of_the_chance(x, count):
    with mp.workprec(600):
        exactly = mp.ldexp(mp.exp(-mp.mpf(x.numerator) / x.denominator), count)
        assert exact._digits(x, count) == int(mp.floor(exactly))


@pytest.mark.parametrize("x", [10**4, 10**9])
def test_what_hardly_ever_happens_has_no_digits(x):
    assert exact._digits(Fraction(x), 64) == 0


def test_a_tie_is_decided_by_the_digits_that_follow():
    unit = Fraction(1, 3)
    first, second = divmod(exact._digits(unit, 128), 2**64)
    assert first == exact._digits(unit, 64)
    for word, expected in ((first - 1, True), (first + 1, False)):
        assert happens(np.array([1]), unit, Given([word])) == [expected]
    for following, expected in ((second - 1, True), (second + 1, False)):
        assert happens(np.array([1]), unit, Given([first], [following])) == [expected]
    third = exact._digits(unit, 192) % 2**64
    assert happens(np.array([1]), unit, Given([first], [second], [third - 1])) == [True]


def test_nothing_against_it_always_happens():
    assert happens(np.zeros(3, np.int64), Fraction(5), Given([2**64 - 1] * 3)).all()


def test_a_word_past_the_last_multiple_is_drawn_again():
    most = 2**64 // 10 * 10
    assert uniform(2, 10, Given([most - 1, most], [7])).tolist() == [9, 7]


def test_all_orders_are_as_likely():
    found = permutations(24_000, 4, bits())
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > ALARM


def test_permute_and_flip_has_its_law():
    counts, epsilon = np.array([5, 3, 5, 0]), 0.7
    chances = law_of_permute_and_flip(counts, epsilon)
    columns = permute_and_flip(np.tile(counts, (40_000, 1)), epsilon, bits(1))
    assert chances.sum() == pytest.approx(1)
    assert chisquare(np.bincount(columns, minlength=4), 40_000 * chances).pvalue > ALARM


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 1.0), (10, 0.1), (10, 4.0)])
def test_randomised_response_has_its_law(classes, epsilon):
    found = randomised_response(np.ones(40_000, np.int64), classes, epsilon, bits(2))
    chances = np.ones(classes)
    chances[1] = exp(epsilon)
    assert chisquare(np.bincount(found, minlength=classes), 40_000 * chances / chances.sum()).pvalue > ALARM


@pytest.mark.parametrize("unit", [Fraction(1, 20), Fraction(1)])
def test_the_two_sided_geometric_has_its_law(unit):
    drawn = two_sided_geometric((200, 200), unit, bits(3)).ravel()
    reach = int(4 / unit)
    values = np.arange(-reach, reach + 1)
    chances = np.tanh(float(unit) / 2) * np.exp(-float(unit) * abs(values))
    chances = np.append(chances, 1 - chances.sum())
    seen = np.array([*(np.sum(drawn == value) for value in values), np.sum(abs(drawn) > reach)])
    few = chances * drawn.size < 10
    seen, chances = np.append(seen[~few], seen[few].sum()), np.append(chances[~few], chances[few].sum())
    if chances[-1] == 0:
        seen, chances = seen[:-1], chances[:-1]
    assert chisquare(seen, drawn.size * chances).pvalue > ALARM


def test_secret_bits_never_give_the_same_words_again():
    secret = BitSource(SecretBits(bytes(32)), Purpose.NOISE, (0,))
    first, second = secret.words(4), secret.words(4)
    assert not set(first.tolist()) & set(second.tolist())
    again = BitSource(SecretBits(bytes(32)), Purpose.NOISE, (0,))
    assert (again.words(4) == first).all()
