"""Likelihood ratios of scalar transcripts: known batch ids, secret ids (a mixture over the sampler), capped records.

A round of the scalar channel is N(m, sigma^2), with m = 0 without the canary and m = `mean_in` or `mean_out` with it
(what the other records add is known and subtracted). Everything here is a function of scalars and of what the adversary
knows about the sampler; nothing looks at the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from mechanisms.methods.dpzv import DPZVConfig

Floats = NDArray[np.float64]
_EXPONENT = 60.0
"""Exponents up to this are exponentiated as they are in single precision, which overflows at 88."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a record comes into batches: `records` D, `batch_size` B, sampler, and the active client of each round."""

    sampler: str
    records: int
    batch_size: int
    active: tuple[int, ...]
    sample_rate: float | None = None
    """Public rate of Poisson sampling; None: B/D."""

    @classmethod
    def of(cls, config: DPZVConfig, records: int, active: Sequence[int]) -> Sampling:
        """Return the sampling of a configuration on `records` records, with the active client of each round."""
        return cls(
            sampler=config.sampler,
            records=records,
            batch_size=config.batch_size,
            active=tuple(active),
            sample_rate=config.sample_rate,
        )

    @property
    def rate(self) -> float:
        """Sampling rate: the public one, else B/D."""
        return self.batch_size / self.records if self.sample_rate is None else self.sample_rate

    @property
    def steps_per_pass(self) -> int:
        """Rounds of one client in which it goes through the data once, floor(D/B)."""
        return self.records // self.batch_size

    @cached_property
    def passes(self) -> tuple[NDArray[np.intp], ...]:
        """Rounds (indices) of each client's each pass, the last one perhaps cut short."""
        active = np.asarray(self.active)
        found = []
        for client in np.unique(active):
            own = np.flatnonzero(active == client)
            found += [own[a : a + self.steps_per_pass] for a in range(0, len(own), self.steps_per_pass)]
        return tuple(found)

    def rounds_of(self, clients: Sequence[int] | None = None) -> list[int]:
        """Rounds of each client, or of each of `clients`."""
        counted = Counter(self.active)
        return [counted[m] for m in (sorted(counted) if clients is None else clients)]


def _binomial(n: int, p: float) -> Floats:
    """Probabilities of 0..n successes in n trials of chance p in [0, 1]."""
    if n == 0 or p <= 0.0:
        return np.asarray(np.eye(1, n + 1)[0])
    if p >= 1.0:
        return np.asarray(np.eye(1, n + 1, n)[0])
    k = np.arange(n + 1)
    log = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * np.log(p) + (n - k) * np.log1p(-p)
    return np.asarray(np.exp(log))


def participation_law(sampling: Sampling, rounds: Sequence[int]) -> Floats:
    """Return the probabilities that one record takes part 0, 1, ... times in `rounds` (a number for each client).

    `shuffled`: once in each whole pass with chance floor(D/B) B/D (the short last batch is dropped), and in a pass of
    which j rounds were run with chance j B/D. `uniform` and `poisson`: Binomial(T, B/D).
    """
    if sampling.sampler != "shuffled":
        return _binomial(sum(rounds), sampling.rate)
    steps = sampling.steps_per_pass
    law = _binomial(sum(r // steps for r in rounds), min(1.0, steps * sampling.rate))
    for part in (r % steps for r in rounds):
        if part:
            law = np.convolve(law, [1.0 - part * sampling.rate, part * sampling.rate])
    return law


def counted_law(sampling: Sampling, clients: Sequence[int] | None, cap: int | None) -> Floats:
    """Return the law of the rounds of `clients` (None: of all) that hold one record and count under a `cap`."""
    law = participation_law(sampling, sampling.rounds_of(clients))
    return law if cap is None or cap >= len(law) else np.append(law[:cap], law[cap:].sum())


def cap_weights(sampling: Sampling, client: int, cap: int) -> Floats:
    """Chance that a record's k-th participation with `client` still counts under a cap over all clients' rounds.

    Shape (own rounds, cap + 1): by own round and number k of participations with this client before it. The client does
    not see the other clients' batches, but it knows their sampler and how many rounds they had.
    """
    clients = sorted(set(sampling.active))
    rounds = dict.fromkeys(clients, 0)
    weights = []
    for active in sampling.active:
        if active == client:
            law = np.cumsum(participation_law(sampling, [r for m, r in rounds.items() if m != client]))
            room = cap - 1 - np.arange(cap + 1)
            weights.append(np.where(room >= 0, law[np.clip(room, 0, len(law) - 1)], 0.0))
        rounds[active] += 1
    return np.array(weights).reshape(-1, cap + 1)


def mixture_score(
    scalars: NDArray[np.floating], sampling: Sampling, *, sigma: float, mean_in: float, mean_out: float
) -> Floats:
    """Log-likelihood ratio (n,) of scalars (T, n), rounds in order, for one who does not know the batch ids.

    Independent rounds (`poisson`, `uniform`): sum over rounds of ln[(1 - r) + r e^L1(x)] - ln[(1 - r) + r e^L0(x)],
    Lb(x) = (m_b x - m_b^2 / 2) / sigma^2, r = B/D. `shuffled`: the record is in at most one round of each client's
    pass, in each with chance B/D, so a pass of j rounds has (1 - j B/D) + (B/D) sum_t e^Lb(x_t) in either logarithm.
    For `poisson` with one record more this is exact; for `uniform` a batch's other records do not matter where they
    contribute nothing.
    """
    total = np.zeros(scalars.shape[1])
    # What the likelihood is a product over: passes of one client, or rounds.
    groups = sampling.passes if sampling.sampler == "shuffled" else (np.arange(len(sampling.active)),)
    for rows in groups:
        part = scalars[rows] / sigma
        absent = 1.0 - (len(rows) * sampling.rate if sampling.sampler == "shuffled" else sampling.rate)
        for sign, mean in ((1.0, mean_in), (-1.0, mean_out)):
            if mean != 0.0:
                total += sign * _log_mixture(part, mean / sigma, max(absent, 0.0), sampling)
    return total


def _log_mixture(x: NDArray[np.floating], shift: float, absent: float, sampling: Sampling) -> Floats:
    """Log of the mixture's density over that of N(0, 1), summed over independent rounds: x (t, n) -> (n,)."""
    exponent = x * x.dtype.type(shift) - x.dtype.type(0.5 * shift * shift)
    safe = abs(shift) * (8.0 + 0.5 * abs(shift)) < _EXPONENT and float(exponent.max(initial=0.0)) < _EXPONENT
    if sampling.sampler == "shuffled":
        if safe:
            inside = np.exp(exponent, out=exponent).sum(0, dtype=np.float64)
            return np.asarray(np.log(absent + sampling.rate * inside))
        inside = logsumexp(exponent.astype(np.float64), axis=0) + np.log(sampling.rate)
        return np.asarray(np.logaddexp(np.log(absent) if absent > 0.0 else -np.inf, inside))
    if safe and sampling.rate < 1.0:
        np.exp(exponent, out=exponent)
        exponent *= exponent.dtype.type(sampling.rate)
        exponent -= exponent.dtype.type(sampling.rate)
        return np.asarray(np.log1p(exponent, out=exponent).sum(0, dtype=np.float64))
    inside = exponent.astype(np.float64) + np.log(sampling.rate)
    return np.asarray(np.logaddexp(np.log(absent) if absent > 0.0 else -np.inf, inside).sum(0))


def known_ids_score(
    scalars: NDArray[np.float64], held: NDArray[np.bool_], others: NDArray[np.float64] | float = 0.0
) -> Floats:
    """Sum (n,) over the rounds that `held` (T, n) the canary of the scalars (T, n) less what the `others` add.

    The exact log-likelihood ratio up to scale for means of +-m or 0 and m, equal in all rounds.
    """
    return np.asarray(((scalars - others) * held).sum(0))


def telling_count(law: Floats) -> tuple[int, float]:
    """Return the number n of participations with the largest n p_n, and p_n: often enough, and telling enough."""
    count = int(np.argmax(np.arange(len(law)) * law))
    return count, float(law[count])
