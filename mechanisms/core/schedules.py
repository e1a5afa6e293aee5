"""Public schedules of a run: which client is active in which round, and how often a record takes part.

They need no model and no data, so an accountant may ask for them.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np

from dpzv_audit.base.seeds import Purpose, stream


def cyclic(clients: int) -> Iterator[int]:
    """Yield clients 1..M in turn, the same objects each time, of which a plan of millions of rounds keeps all."""
    return cycle(range(1, clients + 1))


def random_activation(probabilities: Sequence[float], *, seed: int) -> Iterator[int]:
    """Yield client m with probability q_m, independently each round (paper 001, assumption 4.3)."""
    block = 0
    cumulative = np.cumsum(probabilities)
    while True:
        draws = stream(seed, Purpose.ACTIVATION, block).random(4096) * cumulative[-1]
        yield from (1 + np.searchsorted(cumulative, draws, side="right")).tolist()
        block += 1


def by_compute_times(times: Sequence[float]) -> Iterator[int]:
    """Yield a client whenever its computation ends, client m's taking `times[m-1]`; ties go to the lower number.

    Slow clients are active less often and their rows in the server's table grow stale: asynchrony without threads.
    """
    clock = [(time, client) for client, time in enumerate(times, start=1)]
    heapq.heapify(clock)
    while True:
        now, client = heapq.heappop(clock)
        yield client
        heapq.heappush(clock, (now + times[client - 1], client))


def largest_participation(rounds: int, *, steps_per_pass: int, first_pass_repeats: int = 1) -> int:
    """Return how many rounds of one client a record can be in under `shuffled` sampling: the passes begun.

    Each batch of the first pass counts `first_pass_repeats` times, as often as it serves.
    """
    first = first_pass_repeats * steps_per_pass
    if rounds <= first:
        return min(rounds, first_pass_repeats)
    return first_pass_repeats + -(-(rounds - first) // steps_per_pass)
