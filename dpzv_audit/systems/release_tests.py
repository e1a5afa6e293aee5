"""Tests a stated release on what a rehearsal sent: clip, noise, sampler and participations.

A release states a clip C, a noise sigma and a schedule. One training can contradict them, and cannot prove them.

Noise. Let the rows of one message be X = S + sigma Z (n, d). The rows of S have a norm of C at most and follow from the
past; Z is standard normal and independent of the past. Let P be any matrix that follows from the past, and
b = max(0, |P| - C sqrt(n)) / sigma. Given the past, Q = |X + P|^2 / sigma^2 is noncentral chi-square with k = n d
degrees of freedom and a noncentrality of at least b^2. Its Laplace transform falls with the noncentrality, so that for
t > 0

    e = exp(-t Q) (1 + 2 t)^(k / 2) exp(t b^2 / (1 + 2 t))

has a mean of at most 1 given the past. So have the product over messages and the mean over several t, whatever the
training makes of noise that it has seen. An e-value is large where X + P has less energy than its noise: P = 0 shows
noise that is too small, P = an earlier message noise that comes back, with either sign. Within a message the same holds
of orthonormal combinations of rows, and of coordinates, with P = 0.

False alarms. The tests have weights w that sum to 1, and a test alarms where w e >= 1 / `FALSE_ALARM`. By Markov's
inequality on the weighted sum, an honest release alarms with probability at most `FALSE_ALARM`. A p-value p counts as
e = 1 / p where the test is of that kind: it then alarms with probability w `FALSE_ALARM` at most.

The clip. Two trainings of one seed whose labels differ share their noise: rows of both differ by 2 C at most. This test
has no false alarm.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from ..accounting import Release
from .messages import SERVER, Arrays, Sent

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

FALSE_ALARM = 1e-3
"""Probability at most with which an honest release fails any of the tests."""
CARRIES = {"gradient": "gradient", "zo-gradient": "gradient", "scalar": "scalar", "embedding": "embeddings"}
"""The kind of messages that the noise of a channel is on."""
_TILTS = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0])
_MOST_NUMBERS = 1 << 22
_MOST_MESSAGES = 1024
"""Messages that are compared pair by pair; the first ones."""
_MOST_LAG = 256
_MOST_OCCURRENCES = {"any client": 8, "one client": 4}
"""Earlier messages about a record that a later one is compared with."""
_MOST_WIDTH = 512
"""Coordinates that are compared pair by pair."""
_RARE = (1e-2, 1e-4)
"""Shares of rows without noise that are bet on."""
_TAILS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
_SHARED = 1e6
"""The e-value at which noise is taken to be shared by two trainings."""
_SAMPLER = 0.1
"""Share of the false alarms that tests of the sampler have."""
_SLACK = 1.01
"""Clips are rounded, and floats are added: a difference of so many times 2 C is none."""


def _stats() -> Any:
    """Return scipy.stats, which takes a second to import and which most commands do not need."""
    import scipy.stats

    return scipy.stats


@dataclass(frozen=True, eq=False)
class Excerpt:
    """What one training sent: its messages in order, the ids that they name, and the numbers of the first of them."""

    messages: Sequence[Sent]
    tensors: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, messages: Sequence[Sent], tensors: Arrays) -> "Excerpt":
        """Return an excerpt that holds `_MOST_NUMBERS` numbers of each kind of messages that a release may be on."""
        kept = {one.ids: tensors[one.ids] for one in messages if one.ids}
        room = dict.fromkeys(CARRIES.values(), _MOST_NUMBERS)
        for one in messages:
            if room.get(one.kind, 0) > 0:
                kept[one.tensor] = tensors[one.tensor]
                room[one.kind] -= kept[one.tensor].size
        return cls(messages, kept)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What the trainings of a rehearsal sent.

    Attributes:
        first: Of the training on the true labels.
        relabelled: Of one with the same seed and other labels; None where noise is not repeatable.
        refeatured: Trains with the same seed and other features; None where noise is not repeatable.
    """

    first: Excerpt
    relabelled: Excerpt | None = None
    refeatured: Callable[[], Excerpt] | None = None


@dataclass(frozen=True)
class Findings:
    """What the tests of a stated release found: what contradicts it, and which tests could not be made, in words."""

    contradicted: tuple[str, ...] = ()
    not_made: tuple[str, ...] = ()


def held_against(release: Release, rehearsal: Rehearsal, *, joined: bool = False) -> Findings:
    """Return what the messages of a rehearsal say of a stated release.

    `joined`: one clip and one noise cover the messages of a round to all clients, which count once.
    """
    kind = CARRIES[release.channel]
    noised = _noised(release, rehearsal.first)
    contradicted = [*_counts(release, noised, kind, joined=joined)]
    not_made = []
    if release.channel == "zo-gradient":
        return Findings(tuple(contradicted), ("clip and noise: no noise is added to a gradient estimate",))
    clipped, missing = _clip(release, rehearsal)
    contradicted += clipped
    not_made += missing
    if noised:
        tests = _Noise(release, noised)
        if tests.coarse:
            not_made.append("noise: its grid is coarser than its standard deviation")
        else:
            contradicted += tests.failed()
            not_made += tests.not_made()
    not_made.append("whether noise is secret, and Gaussian beyond its tails")
    return Findings(tuple(contradicted), tuple(not_made))


@dataclass(frozen=True, eq=False)
class _Rows:
    """One message: who it is to or from, its round, its rows (n, d) where they were kept, and its ids where known."""

    client: int
    round: int
    rows: Floats | None
    ids: Ids | None

    def named(self, kind: str) -> str:
        """Return what the message is called."""
        return f"the {kind} of round {self.round} {'from' if kind == 'embeddings' else 'to'} client {self.client}"


def _noised(release: Release, sent: Excerpt) -> list[_Rows]:
    """Return the messages of a channel, in order."""
    kind = CARRIES[release.channel]
    up = release.channel == "embedding"
    found = []
    for one in sent.messages:
        if one.kind != kind or (one.receiver if up else one.sender) != SERVER:
            continue
        rows = None
        if one.tensor in sent.tensors:
            values = np.asarray(sent.tensors[one.tensor], np.float64)
            single = release.channel == "scalar" or values.ndim < 2
            rows = values.reshape(-1, 1) if single else values.reshape(len(values), -1)
        ids = np.asarray(sent.tensors[one.ids]) if one.ids else None
        found.append(_Rows(one.sender if up else one.receiver, one.round, rows, ids))
    return found


# Counts and the sampler.


def _counts(release: Release, noised: Sequence[_Rows], kind: str, *, joined: bool) -> Iterator[str]:
    """Yield how the number, the size and the records of messages contradict a release."""
    if joined:
        rounds = {one.round: one for one in noised}
        noised = list(rounds.values())
    most = release.rounds * release.directions + release.whole_data_rounds
    if len(noised) > most:
        yield f"{len(noised):,} {kind} messages were sent, the release implies at most {most:,}: state rounds"
    batches = [one.ids for one in noised if one.ids is not None]
    if not batches:
        return
    largest = max(map(len, batches))
    if release.sampler != "poisson" and not release.whole_data_rounds and largest > release.batch_size:
        yield f"a batch holds {largest:,} records, the release states {release.batch_size:,}: state batch_size"
    times = int(np.bincount(np.concatenate(batches)).max())
    fixed = release.fixed_participations
    if fixed is not None:
        most = fixed * release.directions + release.whole_data_rounds
        if times > most:
            yield f"a record was in {times:,} messages, the release implies at most {most:,}: state participations"
        return
    yield from _sampled(release, noised, times)


def _sampled(release: Release, noised: Sequence[_Rows], times: int) -> Iterator[str]:
    """Yield how batches contradict a sampler that draws each by itself; error `_SAMPLER` of `FALSE_ALARM` in all."""
    level = _SAMPLER * FALSE_ALARM / 4.0
    records = round(release.records)
    said = f"the release states {release.sampler!r} batches"
    rounds = -(-(times - release.whole_data_rounds) // release.directions)
    if records * _stats().binom.sf(rounds - 1, release.rounds, release.rate) <= level:
        yield f"a record was in {times:,} messages, which {said} of rate {release.rate:.3g} hardly ever give"
    by_client: dict[int, list[Ids]] = {}
    for one in noised:
        known = by_client.setdefault(one.client, [])
        if one.ids is not None and not (known and np.array_equal(known[-1], one.ids)):
            known.append(one.ids)
    batches = max(by_client.values(), key=len)
    apart = [np.intersect1d(a, b).size == 0 for a, b in list(pairwise(batches))[::2]]
    if release.sampler == "poisson":
        chance = (1.0 - release.rate**2) ** records
    else:
        chance = float(_stats().hypergeom.pmf(0, records, release.batch_size, release.batch_size))
    if apart and _stats().binom.sf(sum(apart) - 1, len(apart), chance) <= level:
        yield f"{sum(apart)} of {len(apart)} pairs of batches share no record, as if shuffled: {said}"
    sizes = [len(one) for one in batches]
    if release.sampler == "poisson" and len(sizes) > 1:
        likely = float(_stats().binom.pmf(math.floor((records + 1) * release.rate), records, release.rate))
        if len(set(sizes)) == 1 and likely ** (len(sizes) - 1) <= level:
            yield f"all {len(sizes):,} batches hold {sizes[0]:,} records, {said}, whose sizes vary"
        total = sum(sizes)
        tail = min(_stats().binom.cdf(total, records * len(sizes), release.rate), 1.0)
        tail = min(tail, float(_stats().binom.sf(total - 1, records * len(sizes), release.rate)))
        if tail <= level / 2.0:
            yield f"batches hold {total / len(sizes):.1f} records on average, {said} of {records * release.rate:.1f}"
    elif len(set(sizes)) > 1:
        yield f"batches hold {min(sizes):,} to {max(sizes):,} records, {said} of {release.batch_size:,}"


# The clip.


def _clip(release: Release, rehearsal: Rehearsal) -> tuple[list[str], list[str]]:
    """Return how two trainings that share their noise contradict the clip, or why the test was not made."""
    if rehearsal.relabelled is None:
        return [], ["clip: the system draws numbers that its seed does not decide, so no noise comes twice"]
    if release.channel == "embedding":
        assert rehearsal.refeatured is not None
        other = rehearsal.refeatured()
    else:
        other = rehearsal.relabelled
    most = 2.0 * release.clip
    pairs = _paired(release, rehearsal.first, other)
    for place, (one, change, largest) in enumerate(pairs):
        norms = np.array([np.linalg.norm(change)]) if _whole(release) else np.linalg.norm(change, axis=1)
        rounding = 1e-6 * largest * math.sqrt(change.shape[1])
        if norms.max() <= _SLACK * most + rounding:
            continue
        # Fresh noise in both trainings would be on every row from here on.
        rest = np.concatenate([values.ravel() for _, values, _ in pairs[place:]])
        width = change.shape[1]
        rest = rest.reshape(-1, width) if all(v.shape[1] == width for _, v, _ in pairs[place:]) else change
        if _rare(_log_e((rest**2).sum(1) / (2.0 * release.sigma**2), width)) < math.log(_SHARED):
            where = f"from {one.named(CARRIES[release.channel])} on other noise was drawn"
            return [], [f"clip: {where} when {_what(release)} changed"]
        of = "" if _whole(release) else " row"
        moved = (
            f"a{of} of {one.named(CARRIES[release.channel])} moved by {norms.max():.3g} when {_what(release)} changed"
        )
        return [f"{moved}, a clip of {release.clip:.3g} allows at most {most:.3g}"], []
    return [], [] if pairs else [f"clip: no message could be compared when {_what(release)} changed"]


def _what(release: Release) -> str:
    return "features" if release.channel == "embedding" else "labels"


def _whole(release: Release) -> bool:
    return release.clip_scope == "batch" or release.channel == "scalar"


def _paired(release: Release, first: Excerpt, other: Excerpt) -> list[tuple[_Rows, Floats, float]]:
    """Return each message, what it moved by in the other training, and its largest number, while both send alike."""
    found = []
    for one, two in zip(_noised(release, first), _noised(release, other), strict=False):
        if one.rows is None or two.rows is None:
            break
        alike = (one.client, one.round, one.rows.shape) == (two.client, two.round, two.rows.shape)
        same = (one.ids is None) == (two.ids is None) and (one.ids is None or np.array_equal(_ids(one), _ids(two)))
        if not (alike and same):
            break
        found.append((one, two.rows - one.rows, float(np.abs(one.rows).max())))
    return found


# Noise.


def _log_e(energy: ArrayLike, freedom: ArrayLike, known: ArrayLike = 0.0) -> Floats:
    """Return the log e-value of Q = `energy` with k = `freedom` and b^2 = `known`, of one shape: the mean over t."""
    q, k, b = np.broadcast_arrays(energy, freedom, np.asarray(known, float))
    total = np.full(q.shape, -np.inf)
    for t in _TILTS:
        total = np.logaddexp(total, -t * q + 0.5 * k * math.log1p(2.0 * t) + t * b / (1.0 + 2.0 * t))
    return np.asarray(total - math.log(len(_TILTS)))


def _rare(logs: Floats) -> float:
    """Return the log e-value of bets that some independent e-values, (n,) by their logarithms, are large."""
    found = [np.logaddexp(math.log1p(-share), math.log(share) + logs).sum() for share in _RARE]
    return float(logsumexp(found) - math.log(len(found)))


@dataclass(frozen=True)
class _Family:
    """Tests of one kind, which share a weight: their log e-values, and what the n-th one says where it alarms.

    Of several kinds that alarm the one that `tells` most is named.
    """

    logs: Floats
    words: Callable[[int], str]
    tells: int = 2


class _Noise:
    """The tests of noise on the messages of one training."""

    def __init__(self, release: Release, noised: Sequence[_Rows]) -> None:
        self.release = release
        self.kind = CARRIES[release.channel]
        kept = [(one, one.rows) for one in noised if one.rows is not None]
        self.width = max(rows.shape[1] for _, rows in kept)
        kept = [(one, rows) for one, rows in kept if rows.shape[1] == self.width]
        self.noised = [one for one, _ in kept]
        self.rows = [rows / release.sigma for _, rows in kept]
        self.left_out = len(noised) - len(kept)
        self.sizes = np.array([len(one) for one in self.rows])
        self.energies = np.array([np.vdot(one, one) for one in self.rows])

    @cached_property
    def coarse(self) -> bool:
        """Whether noise is in steps of more than its standard deviation."""
        if self.release.noise != "grid":
            return False
        values = np.unique(np.abs(self.rows[0].ravel()))
        return len(values) < 2 or float(np.diff(values).min()) > 1.0

    def signal(self, rows: NDArray[np.int64] | int) -> Floats:
        """Return the largest norm of what so many rows hold beside noise, in units of sigma."""
        clip = self.release.clip / self.release.sigma
        return np.asarray(clip if self.release.clip_scope == "batch" else clip * np.sqrt(rows))

    def failed(self) -> list[str]:
        """Return in words the tests that alarm: of the kind whose evidence is largest."""
        families = list(self._families())
        # What the sampler's tests and that of shared noise have is left to them.
        share = 1.0 - _SAMPLER - 1.0 / (_SHARED * FALSE_ALARM)
        level = -math.log(FALSE_ALARM * share / len(families))
        alarms = [int((family.logs >= level + math.log(len(family.logs))).sum()) for family in families]
        if not any(alarms):
            return []
        family, number = max(
            ((family, number) for family, number in zip(families, alarms, strict=True) if number),
            key=lambda pair: (pair[0].tells, float(pair[0].logs.max())),
        )
        more = f", and {number - 1:,} more like it" if number > 1 else ""
        return [family.words(int(family.logs.argmax())) + more]

    def not_made(self) -> list[str]:
        """Return in words what these tests leave out."""
        missing = []
        if self.left_out:
            missing.append(f"noise of {self.left_out:,} messages: {len(self.rows):,} were tested")
        smaller = self.energies / 9.0 + self.signal(self.sizes) ** 2
        if _log_e(smaller.sum(), self.sizes.sum() * self.width) < math.log(1.0 / FALSE_ALARM) + math.log(20.0):
            clip = f"a clip of {self.release.clip:.3g} hides it"
            missing.append(f"whether noise is a third of the {self.release.sigma:.3g} that is stated: {clip}")
        return missing

    def _families(self) -> Iterator[_Family]:
        """Yield all kinds of tests."""
        sigma = self.release.sigma
        sizes, energies, width = self.sizes, self.energies, self.width
        freedom = sizes * width

        def least(energy: float, of: float) -> str:
            return f"{sigma * math.sqrt(max(energy, 0.0) / of):.3g} at most, the release states {sigma:.3g}"

        yield _Family(
            _log_e(energies.sum(), freedom.sum()).reshape(1),
            lambda n: (
                f"the noise of {self.kind} messages has a standard deviation of {least(energies.sum(), freedom.sum())}"
            ),
            # Where hardly any noise is there, everything else follows from it.
            tells=3 if energies.sum() < 0.25 * freedom.sum() else 2,
        )
        yield _Family(
            _log_e(energies, freedom),
            lambda n: (
                f"{self.noised[n].named(self.kind)} has noise of a standard deviation of "
                f"{least(energies[n], freedom[n])}"
            ),
        )
        yield from self._within(least)
        yield from self._by_row()
        yield from self._between()
        yield self._tails()

    def _within(self, least: Callable[[float, float], str]) -> Iterator[_Family]:
        """Yield tests of rows and coordinates of one message, which are drawn at once."""
        several = [n for n, rows in enumerate(self.rows) if len(rows) > 1]
        if several:
            centred = np.array([self.energies[n] - len(self.rows[n]) * _square(self.rows[n].mean(0)) for n in several])
            left = (self.sizes[several] - 1) * self.width
            yield _Family(
                _log_e(centred.sum(), left.sum()).reshape(1),
                lambda n: (
                    f"rows of a {self.kind} message share their noise: what they differ by has a standard deviation of "
                    f"{least(centred.sum(), left.sum())}"
                ),
            )
            yield _Family(
                _log_e(centred, left),
                lambda n: (
                    f"rows of {self.noised[several[n]].named(self.kind)} share their noise: what they differ by has a "
                    f"standard deviation of {least(centred[n], left[n])}"
                ),
            )
            lags, energy, freedom = self._lags()
            yield _Family(
                _log_e(energy, freedom),
                lambda n: f"noise comes back {lags[n]} rows later within messages of kind {self.kind}",
            )
        if self.width > 1:
            yield from self._coordinates(least)

    def _lags(self) -> tuple[list[int], Floats, Floats]:
        """Return each lag twice, with the energies of sums and differences of rows so far apart, and their freedom."""
        found: dict[int, list[float]] = {}
        for rows in self.rows[:_MOST_MESSAGES]:
            for lag in range(1, min(len(rows), _MOST_LAG + 1)):
                first = np.flatnonzero(np.arange(len(rows) - lag) % (2 * lag) < lag)
                a, b = rows[first], rows[first + lag]
                both, cross = _square(a) + _square(b), 2.0 * float(np.vdot(a, b))
                known = found.setdefault(lag, [0.0, 0.0, 0.0])
                known[0] += 0.5 * (both + cross)
                known[1] += 0.5 * (both - cross)
                known[2] += a.size
        lags = [lag for lag in found for _ in (0, 1)]
        energy = np.array([value for known in found.values() for value in known[:2]])
        return lags, energy, np.array([known[2] for known in found.values() for _ in (0, 1)])

    def _coordinates(self, least: Callable[[float, float], str]) -> Iterator[_Family]:
        """Yield tests of coordinates, their sums and differences, and of the direction in which noise was least."""
        number = float(self.sizes.sum())
        width = min(self.width, _MOST_WIDTH)
        gram = sum((rows[:, :width].T @ rows[:, :width] for rows in self.rows), np.zeros((width, width)))
        own = np.diag(gram)
        yield _Family(
            _log_e(own, number),
            lambda n: (
                f"coordinate {n} of {self.kind} rows has noise of a standard deviation of {least(own[n], number)}"
            ),
        )
        first, second = np.triu_indices(width, 1)
        both = own[first] + own[second]
        energy = np.concatenate([both - 2.0 * gram[first, second], both + 2.0 * gram[first, second]]) / 2.0
        yield _Family(
            _log_e(energy, number),
            lambda n: (
                f"coordinates {first[n % len(first)]} and {second[n % len(first)]} of {self.kind} rows "
                "share their noise"
            ),
        )
        # The direction follows from the messages before, which are dealt with in eight parts.
        parts = np.array_split(np.arange(len(self.rows)), min(8, len(self.rows)))
        seen = np.zeros((width, width))
        weakest, freedom = 0.0, 0.0
        for part in parts:
            rows = np.concatenate([self.rows[n][:, :width] for n in part])
            if seen.any():
                direction = np.linalg.eigh(seen)[1][:, 0]
                weakest += _square(rows @ direction)
                freedom += len(rows)
            seen += rows.T @ rows
        if freedom:
            yield _Family(
                _log_e(weakest, freedom).reshape(1),
                lambda n: (
                    f"{self.kind} rows have a direction with noise of a standard deviation of {least(weakest, freedom)}"
                ),
            )

    def _by_row(self) -> Iterator[_Family]:
        """Yield tests of single rows, of places in a batch, and of records."""
        squares = np.concatenate([(rows**2).sum(1) for rows in self.rows])
        logs = _log_e(squares, self.width)
        yield _Family(
            np.array([_rare(logs)]),
            lambda n: f"some {self.kind} rows have hardly any noise, the least {self._size(squares.min())}",
            tells=1,
        )
        places = np.concatenate([np.arange(len(rows)) for rows in self.rows])
        energy, count = np.bincount(places, squares), np.bincount(places)
        yield _Family(
            _log_e(energy, count * self.width),
            lambda n: f"row {n} of {self.kind} messages has less noise than stated: {self._size(energy[n], count[n])}",
        )
        known = [n for n, one in enumerate(self.noised) if self._has_ids(one)]
        if known:
            ids = np.concatenate([_ids(self.noised[n]) for n in known])
            squares_of = np.concatenate([(self.rows[n] ** 2).sum(1) for n in known])
            by_id, times = np.bincount(ids, squares_of), np.bincount(ids)
            named = np.flatnonzero(times)
            yield _Family(
                _log_e(by_id[named], times[named] * self.width),
                lambda n: (
                    f"{self.kind} rows about record {named[n]} have less noise than stated: "
                    f"{self._size(by_id[named[n]], times[named[n]])}"
                ),
            )

    def _size(self, energy: float, rows: float = 1.0) -> str:
        sigma = self.release.sigma
        return f"{sigma * math.sqrt(energy / (rows * self.width)):.3g} at most of {sigma:.3g}"

    def _has_ids(self, one: _Rows) -> bool:
        return one.ids is not None and one.rows is not None and len(one.ids) == len(one.rows)

    def _between(self) -> Iterator[_Family]:
        """Yield tests of noise that comes back in a later message, by places in the batch and by records."""
        count = min(len(self.rows), _MOST_MESSAGES)
        if count > 1:
            yield from self._by_place(count)
        for of in _MOST_OCCURRENCES:
            yield from self._by_occurrence(of)

    def _by_place(self, count: int) -> Iterator[_Family]:
        """Yield tests of each pair of messages, and of all pairs that are equally far apart."""
        rows, sizes = self.rows[:count], self.sizes[:count]
        padded = np.zeros((count, sizes.max(), self.width))
        for n, values in enumerate(rows):
            padded[n, : len(values)] = values
        flat = padded.reshape(count, -1)
        products = flat @ flat.T
        # Energy of the first rows of each message, as many as the other has.
        sums = np.cumsum((padded**2).sum(2), axis=1)
        later, earlier = np.tril_indices(count, -1)
        known = sums[earlier, np.minimum(sizes[earlier], sizes[later]) - 1]
        floor = np.maximum(0.0, np.sqrt(known) - self.signal(np.minimum(sizes[earlier], sizes[later]))) ** 2
        both, cross = known + self.energies[:count][later], 2.0 * products[later, earlier]
        energy = np.concatenate([both - cross, both + cross])
        freedom = np.tile(sizes[later] * self.width, 2)
        floor = np.tile(floor, 2)
        pairs = len(later)

        def again(n: int) -> str:
            a, b = self.noised[earlier[n % pairs]], self.noised[later[n % pairs]]
            sign = "" if n < pairs else ", with the opposite sign"
            return f"{b.named(self.kind)} has the noise of {a.named(self.kind)}{sign}"

        yield _Family(_log_e(energy, freedom, floor), again)
        lags = np.tile(later - earlier, 2) + np.repeat([0, count], pairs)
        totals = [np.bincount(lags, values, 2 * count) for values in (energy, freedom, floor)]
        used = np.flatnonzero(np.bincount(lags, minlength=2 * count))
        yield _Family(
            _log_e(totals[0][used], totals[1][used], totals[2][used]),
            lambda n: f"noise of {self.kind} messages comes back {used[n] % count} messages later",
        )

    def _by_occurrence(self, of: str) -> Iterator[_Family]:
        """Yield tests of noise that comes back in a later row about the same record, to one client or to any."""
        most = _MOST_OCCURRENCES[of]
        latest: dict[tuple[int, int], list[Floats]] = {}
        totals = np.zeros((most, 2, 3))
        for one, rows in zip(self.noised, self.rows, strict=True):
            if not self._has_ids(one):
                continue
            client = one.client if of == "one client" else 0
            before = [latest.setdefault((client, int(i)), []) for i in _ids(one)]
            for back in range(min(most, max(map(len, before), default=0))):
                had = [n for n, seen in enumerate(before) if len(seen) > back]
                past = np.stack([before[n][-1 - back] for n in had])
                here = rows[had]
                known = _square(past)
                floor = max(0.0, math.sqrt(known) - float(self.signal(len(had)))) ** 2
                cross = 2.0 * float(np.vdot(past, here))
                for sign in (0, 1):
                    energy = known + _square(here) + (cross if sign else -cross)
                    totals[back, sign] += (energy, here.size, floor)
            for seen, row in zip(before, rows, strict=True):
                seen.append(row)
                del seen[:-most]
        used = np.flatnonzero(totals[:, 0, 1])
        if used.size:
            flat = totals[used].reshape(-1, 3)
            yield _Family(
                _log_e(flat[:, 0], flat[:, 1], flat[:, 2]),
                lambda n: (
                    f"{self.kind} rows about one record have the same noise{' with opposite signs' if n % 2 else ''}: "
                    f"the message {used[n // 2] + 1} before, to {of}"
                ),
            )

    def _tails(self) -> _Family:
        """Return the tests of how many numbers are far from zero: never fewer than of Gaussian noise alone."""
        values = np.abs(np.concatenate([rows.ravel() for rows in self.rows]))
        chances = 2.0 * _stats().norm.sf(_TAILS)
        seen = [int((values > far).sum()) for far in _TAILS]
        logs = -np.array([_stats().binom.logcdf(n, len(values), p) for n, p in zip(seen, chances, strict=True)])

        def words(n: int) -> str:
            expected = chances[n] * len(values)
            far = f"{_TAILS[n] * self.release.sigma:.3g}"
            return f"{seen[n]:,} numbers of {self.kind} messages lie beyond {far}, Gaussian noise has {expected:,.0f}"

        return _Family(logs, words, tells=0)


def _square(values: Floats) -> float:
    return float(np.vdot(values, values))


def _ids(one: _Rows) -> Ids:
    assert one.ids is not None
    return one.ids
