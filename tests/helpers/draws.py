"""What tests of exact draws share: a source of bits, and the law of permute-and-flip."""

from itertools import permutations
from math import factorial

import numpy as np

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.bits import BitSource


def bits(place=0):
    return BitSource(0, Purpose.NOISE, (place,))


def law_of_permute_and_flip(counts, epsilon):
    """Chances of each column, summed over all orders (McKenna and Sheldon 2020, algorithm 1)."""
    chances = np.zeros(len(counts))
    accepted = np.exp(-epsilon * (max(counts) - np.array(counts)) / 2)
    for order in permutations(range(len(counts))):
        left = 1 / factorial(len(counts))
        for column in order:
            chances[column] += left * accepted[column]
            left *= 1 - accepted[column]
    return chances
