"""Tests a stated release on the messages of a rehearsal: participations, sampler, clip and noise.

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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
"""Clips are rounded, and floats are added: a change up to this factor times 2 C contradicts no clip."""


@dataclass(frozen=True, eq=False)
class Excerpt:
    """The messages of one training in order, the ids that they name, and the numbers of the first of them."""

    messages: Sequence[Sent]
    tensors: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, messages: Sequence[Sent], tensors: Arrays) -> "Excerpt":
        """Return an excerpt that holds `_MOST_NUMBERS` numbers of each kind of messages that a release may be on."""
        kept = {message.ids: tensors[message.ids] for message in messages if message.ids}
        room = dict.fromkeys(CARRIES.values(), _MOST_NUMBERS)
        for message in messages:
            if room.get(message.kind, 0) > 0:
                kept[message.tensor] = tensors[message.tensor]
                room[message.kind] -= kept[message.tensor].size
        return cls(messages, kept)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The messages of the trainings of a rehearsal.

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
    """The result of the tests of a stated release, in words: contradictions, and tests that could not be made."""

    contradicted: tuple[str, ...] = ()
    not_made: tuple[str, ...] = ()


def held_against(release: Release, rehearsal: Rehearsal, *, joined: bool = False) -> Findings:
    """Return the contradictions between the messages of a rehearsal and a stated release.

    `joined`: one clip and one noise cover the messages of a round to all clients, which count once.
    """
    noised = _noised(release, rehearsal.first)
    counts = tuple(_counts(release, noised, joined=joined))
    if release.channel == "zo-gradient":
        return Findings(counts, ("clip and noise: no noise is added to a gradient estimate",))
    clip = _clip(release, rehearsal)
    noise = _Noise(release, noised).findings() if noised else Findings()
    return Findings(
        counts + clip.contradicted + noise.contradicted,
        (*clip.not_made, *noise.not_made, "whether noise is secret, and Gaussian beyond its tails"),
    )


@dataclass(frozen=True, eq=False)
class _Message:
    """One message: its kind, client and round, its rows (n, d) where they were kept, and its ids where known."""

    kind: str
    client: int
    round: int
    rows: Floats | None
    ids: Ids | None

    @property
    def name(self) -> str:
        """Words for the message."""
        way = "from" if self.kind == "embeddings" else "to"
        return f"the {self.kind} of round {self.round} {way} client {self.client}"


def _noised(release: Release, sent: Excerpt) -> list[_Message]:
    """Return the messages of a channel, in order."""
    up = release.channel == "embedding"
    noised = []
    for message in sent.messages:
        client, other = (message.sender, message.receiver) if up else (message.receiver, message.sender)
        if message.kind != CARRIES[release.channel] or other != SERVER:
            continue
        rows = None
        if message.tensor in sent.tensors:
            values = np.asarray(sent.tensors[message.tensor], np.float64)
            single = release.channel == "scalar" or values.ndim < 2
            rows = values.reshape(-1, 1) if single else values.reshape(len(values), -1)
        ids = np.asarray(sent.tensors[message.ids]) if message.ids else None
        noised.append(_Message(message.kind, client, message.round, rows, ids))
    return noised


# Counts and the sampler.


def _counts(release: Release, noised: Sequence[_Message], *, joined: bool) -> Iterator[str]:
    """Yield how the number, the size and the records of messages contradict a release."""
    if joined:
        noised = list({message.round: message for message in noised}.values())
    most = release.rounds * release.directions + release.whole_data_rounds
    if len(noised) > most:
        kind = CARRIES[release.channel]
        yield f"{len(noised):,} {kind} messages were sent, the release implies at most {most:,}: state rounds"
    batches = [message.ids for message in noised if message.ids is not None]
    if not batches:
        return
    largest = max(map(len, batches))
    if release.sampler != "poisson" and not release.whole_data_rounds and largest > release.batch_size:
        yield f"a batch holds {largest:,} records, the release states {release.batch_size:,}: state batch_size"
    times = int(np.bincount(np.concatenate(batches)).max())
    fixed = release.fixed_participations
    if fixed is None:
        yield from _sampled(release, noised, times)
        return
    most = fixed * release.directions + release.whole_data_rounds
    if times > most:
        yield f"a record was in {times:,} messages, the release implies at most {most:,}: state participations"


def _sampled(release: Release, noised: Sequence[_Message], times: int) -> Iterator[str]:
    """Yield how batches contradict a sampler that draws each by itself; error `_SAMPLER` of `FALSE_ALARM` in all."""
    from scipy.stats import binom, hypergeom  # takes a second to import

    level = _SAMPLER * FALSE_ALARM / 4.0
    records = round(release.records)
    stated = f"the release states {release.sampler!r} batches"
    rounds = -(-(times - release.whole_data_rounds) // release.directions)
    if records * binom.sf(rounds - 1, release.rounds, release.rate) <= level:
        yield f"a record was in {times:,} messages, which {stated} of rate {release.rate:.3g} hardly ever give"
    by_client: dict[int, list[Ids]] = {}
    for message in noised:
        earlier = by_client.setdefault(message.client, [])
        if message.ids is not None and not (earlier and np.array_equal(earlier[-1], message.ids)):
            earlier.append(message.ids)
    batches = max(by_client.values(), key=len)
    apart = [np.intersect1d(a, b).size == 0 for a, b in list(pairwise(batches))[::2]]
    if release.sampler == "poisson":
        chance = (1.0 - release.rate**2) ** records
    else:
        chance = float(hypergeom.pmf(0, records, release.batch_size, release.batch_size))
    if apart and binom.sf(sum(apart) - 1, len(apart), chance) <= level:
        yield f"{sum(apart)} of {len(apart)} pairs of batches share no record, as if shuffled: {stated}"
    sizes = [len(batch) for batch in batches]
    if release.sampler == "poisson" and len(sizes) > 1:
        likely = float(binom.pmf(math.floor((records + 1) * release.rate), records, release.rate))
        if len(set(sizes)) == 1 and likely ** (len(sizes) - 1) <= level:
            yield f"all {len(sizes):,} batches hold {sizes[0]:,} records, {stated}, whose sizes vary"
        total = sum(sizes)
        law = binom(records * len(sizes), release.rate)
        if min(law.cdf(total), law.sf(total - 1)) <= level / 2.0:
            yield f"batches hold {total / len(sizes):.1f} records on average, {stated} of {records * release.rate:.1f}"
    elif len(set(sizes)) > 1:
        yield f"batches hold {min(sizes):,} to {max(sizes):,} records, {stated} of {release.batch_size:,}"


# The clip.


def _clip(release: Release, rehearsal: Rehearsal) -> Findings:
    """Return the contradiction of the clip by two trainings that share their noise, or why the test was not made."""
    changed = "features" if release.channel == "embedding" else "labels"
    other = rehearsal.relabelled
    if other is None:
        return Findings(
            not_made=("clip: the system draws numbers that its seed does not decide, so no noise comes twice",)
        )
    if release.channel == "embedding":
        assert rehearsal.refeatured is not None
        other = rehearsal.refeatured()
    by_row = release.clip_scope != "batch" and release.channel != "scalar"
    most = 2.0 * release.clip
    pairs = _paired(release, rehearsal.first, other)
    for place, (message, change, largest) in enumerate(pairs):
        moved = float(np.max(np.linalg.norm(change, axis=1 if by_row else None)))
        width = change.shape[1]
        if moved <= _SLACK * most + 1e-6 * largest * math.sqrt(width):
            continue
        # Fresh noise in both trainings would be on every row from here on.
        later = [values for _, values, _ in pairs[place:]]
        rest = np.concatenate(later) if {values.shape[1] for values in later} == {width} else change
        if _rare(_log_e((rest**2).sum(1) / (2.0 * release.sigma**2), width)) < math.log(_SHARED):
            return Findings(not_made=(f"clip: from {message.name} on other noise was drawn when {changed} changed",))
        return Findings(
            (
                f"a{' row' if by_row else ''} of {message.name} moved by {moved:.3g} when {changed} changed, "
                f"a clip of {release.clip:.3g} allows at most {most:.3g}",
            )
        )
    return Findings(not_made=() if pairs else (f"clip: no message could be compared when {changed} changed",))


def _paired(release: Release, first: Excerpt, other: Excerpt) -> list[tuple[_Message, Floats, float]]:
    """Return each message, its change in the other training, and its largest number, while both send alike."""
    pairs = []
    for here, there in zip(_noised(release, first), _noised(release, other), strict=False):
        if here.rows is None or there.rows is None:
            break
        alike = (here.client, here.round, here.rows.shape) == (there.client, there.round, there.rows.shape)
        if not alike or not np.array_equal(np.asarray(here.ids), np.asarray(there.ids)):
            break
        pairs.append((here, there.rows - here.rows, float(np.abs(here.rows).max())))
    return pairs


# Noise.


def _log_e(energy: ArrayLike, freedom: ArrayLike, known: ArrayLike = 0.0) -> Floats:
    """Return the log e-values (n,) of Q = `energy` with k = `freedom` and b^2 = `known`: each the mean over t."""
    q, k, b = np.broadcast_arrays(np.atleast_1d(energy), freedom, np.asarray(known, float))
    total = np.full(q.shape, -np.inf)
    for t in _TILTS:
        total = np.logaddexp(total, -t * q + 0.5 * k * math.log1p(2.0 * t) + t * b / (1.0 + 2.0 * t))
    return np.asarray(total - math.log(len(_TILTS)))


def _rare(logs: Floats) -> float:
    """Return the log e-value of bets that some independent e-values, (n,) by their logarithms, are large."""
    bets = [np.logaddexp(math.log1p(-share), math.log(share) + logs).sum() for share in _RARE]
    return float(logsumexp(bets) - math.log(len(bets)))


@dataclass(frozen=True)
class _Family:
    """Tests of one kind, which share a weight: their log e-values, and the words of the n-th one where it alarms.

    Of several kinds that alarm the one that `tells` most is named.
    """

    logs: Floats
    words: Callable[[int], str]
    tells: int = 2


class _Noise:
    """The tests of noise on the messages of one training."""

    def __init__(self, release: Release, noised: Sequence[_Message]) -> None:
        self.release = release
        self.kind = CARRIES[release.channel]
        kept = [(message, message.rows) for message in noised if message.rows is not None]
        self.width = max(rows.shape[1] for _, rows in kept)
        kept = [(message, rows) for message, rows in kept if rows.shape[1] == self.width]
        self.noised = [message for message, _ in kept]
        self.rows = [rows / release.sigma for _, rows in kept]
        self.left_out = len(noised) - len(kept)
        self.sizes = np.array([len(rows) for rows in self.rows])
        self.energies = np.array([np.vdot(rows, rows) for rows in self.rows])

    def findings(self) -> Findings:
        """Return which tests alarm, and which could not be made."""
        if self.release.noise == "grid":
            values = np.unique(np.abs(self.rows[0].ravel()))
            if len(values) < 2 or float(np.diff(values).min()) > 1.0:
                return Findings(not_made=("noise: its grid is coarser than its standard deviation",))
        return Findings(tuple(self._failed()), tuple(self._not_made()))

    def _signal(self, rows: NDArray[np.int64] | int) -> Floats:
        """Return the largest norm of all but the noise in this number of rows, in units of sigma."""
        clip = self.release.clip / self.release.sigma
        return np.asarray(clip if self.release.clip_scope == "batch" else clip * np.sqrt(rows))

    def _failed(self) -> Iterator[str]:
        """Yield the words for the tests that alarm, if any: of the kind whose evidence is largest."""
        families = list(self._families())
        # The rest of the level belongs to the tests of the sampler and of shared noise.
        share = 1.0 - _SAMPLER - 1.0 / (_SHARED * FALSE_ALARM)
        level = -math.log(FALSE_ALARM * share / len(families))
        alarms = [int((family.logs >= level + math.log(len(family.logs))).sum()) for family in families]
        if any(alarms):
            family, number = max(
                ((family, number) for family, number in zip(families, alarms, strict=True) if number),
                key=lambda pair: (pair[0].tells, float(pair[0].logs.max())),
            )
            more = f", and {number - 1:,} more like it" if number > 1 else ""
            yield family.words(int(family.logs.argmax())) + more

    def _not_made(self) -> Iterator[str]:
        """Yield the words for the messages and the faults that these tests leave out."""
        if self.left_out:
            yield f"noise of {self.left_out:,} messages: {len(self.rows):,} were tested"
        smaller = self.energies / 9.0 + self._signal(self.sizes) ** 2
        if _log_e(smaller.sum(), self.sizes.sum() * self.width) < math.log(1.0 / FALSE_ALARM) + math.log(20.0):
            stated = f"the {self.release.sigma:.3g} that is stated"
            yield f"whether noise is a third of {stated}: a clip of {self.release.clip:.3g} hides it"

    def _deviation(self, energy: float, freedom: float, before: str = ", the release states") -> str:
        """Return words that compare a standard deviation of noise with that which is stated."""
        sigma = self.release.sigma
        return f"{sigma * math.sqrt(max(energy, 0.0) / freedom):.3g} at most{before} {sigma:.3g}"

    def _families(self) -> Iterator[_Family]:
        """Yield all kinds of tests."""
        energies, freedom = self.energies, self.sizes * self.width
        yield _Family(
            _log_e(energies.sum(), freedom.sum()),
            lambda n: (
                f"the noise of {self.kind} messages has a standard deviation of "
                f"{self._deviation(energies.sum(), freedom.sum())}"
            ),
            # Where hardly any noise is there, everything else follows from it.
            tells=3 if energies.sum() < 0.25 * freedom.sum() else 2,
        )
        yield _Family(
            _log_e(energies, freedom),
            lambda n: (
                f"{self.noised[n].name} has noise of a standard deviation of {self._deviation(energies[n], freedom[n])}"
            ),
        )
        several = np.flatnonzero(self.sizes > 1)
        if several.size:
            yield from self._within(several)
            yield self._lags()
        if self.width > 1:
            yield from self._coordinates()
        yield from self._by_row()
        if len(self.rows) > 1:
            yield from self._by_place()
        for of, most in _MOST_OCCURRENCES.items():
            yield from self._by_occurrence(of, most)
        yield self._tails()

    def _within(self, several: NDArray[np.intp]) -> Iterator[_Family]:
        """Yield tests of noise that the rows of one message share, in `several` messages."""
        centred = np.array([self.energies[n] - len(self.rows[n]) * _square(self.rows[n].mean(0)) for n in several])
        freedom = (self.sizes[several] - 1) * self.width
        yield _Family(
            _log_e(centred.sum(), freedom.sum()),
            lambda n: (
                f"rows of a {self.kind} message share their noise: what they differ by has a standard deviation of "
                f"{self._deviation(centred.sum(), freedom.sum())}"
            ),
        )
        yield _Family(
            _log_e(centred, freedom),
            lambda n: (
                f"rows of {self.noised[several[n]].name} share their noise: what they differ by has a "
                f"standard deviation of {self._deviation(centred[n], freedom[n])}"
            ),
        )

    def _lags(self) -> _Family:
        """Return the tests of sums and differences of rows of a message that are a lag apart, for each lag."""
        totals: defaultdict[int, Floats] = defaultdict(lambda: np.zeros(3))
        for rows in self.rows[:_MOST_MESSAGES]:
            for lag in range(1, min(len(rows), _MOST_LAG + 1)):
                first = np.flatnonzero(np.arange(len(rows) - lag) % (2 * lag) < lag)
                a, b = rows[first], rows[first + lag]
                both, cross = _square(a) + _square(b), 2.0 * float(np.vdot(a, b))
                totals[lag] += (0.5 * (both + cross), 0.5 * (both - cross), a.size)
        lags = list(totals)
        table = np.array([totals[lag] for lag in lags])
        return _Family(
            _log_e(table[:, :2].ravel(), np.repeat(table[:, 2], 2)),
            lambda n: f"noise comes back {lags[n // 2]} rows later within messages of kind {self.kind}",
        )

    def _coordinates(self) -> Iterator[_Family]:
        """Yield tests of coordinates, their sums and differences, and of the direction in which noise was least."""
        number = float(self.sizes.sum())
        width = min(self.width, _MOST_WIDTH)
        gram = sum((rows[:, :width].T @ rows[:, :width] for rows in self.rows), np.zeros((width, width)))
        own = np.diag(gram)
        yield _Family(
            _log_e(own, number),
            lambda n: (
                f"coordinate {n} of {self.kind} rows has noise of a standard deviation of "
                f"{self._deviation(own[n], number)}"
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
        # The direction follows from the messages before, which are dealt with in eight chunks.
        seen = np.zeros((width, width))
        weakest, freedom = 0.0, 0.0
        for chunk in np.array_split(np.arange(len(self.rows)), min(8, len(self.rows))):
            rows = np.concatenate([self.rows[n][:, :width] for n in chunk])
            if seen.any():
                weakest += _square(rows @ np.linalg.eigh(seen)[1][:, 0])
                freedom += len(rows)
            seen += rows.T @ rows
        if freedom:
            yield _Family(
                _log_e(weakest, freedom),
                lambda n: (
                    f"{self.kind} rows have a direction with noise of a standard deviation of "
                    f"{self._deviation(weakest, freedom)}"
                ),
            )

    def _by_row(self) -> Iterator[_Family]:
        """Yield tests of single rows, of places in a batch, and of records."""
        squares = np.concatenate([(rows**2).sum(1) for rows in self.rows])
        yield _Family(
            np.array([_rare(_log_e(squares, self.width))]),
            lambda n: (
                f"some {self.kind} rows have hardly any noise, the least "
                f"{self._deviation(squares.min(), self.width, ' of')}"
            ),
            tells=1,
        )
        places = np.concatenate([np.arange(len(rows)) for rows in self.rows])
        energy, freedom = np.bincount(places, squares), np.bincount(places) * self.width
        yield _Family(
            _log_e(energy, freedom),
            lambda n: (
                f"row {n} of {self.kind} messages has less noise than stated: "
                f"{self._deviation(energy[n], freedom[n], ' of')}"
            ),
        )
        known = [(ids, (rows**2).sum(1)) for _, ids, rows in self._with_ids()]
        if known:
            ids = np.concatenate([ids for ids, _ in known])
            by_id, times = np.bincount(ids, np.concatenate([energy for _, energy in known])), np.bincount(ids)
            named = np.flatnonzero(times)
            yield _Family(
                _log_e(by_id[named], times[named] * self.width),
                lambda n: (
                    f"{self.kind} rows about record {named[n]} have less noise than stated: "
                    f"{self._deviation(by_id[named[n]], times[named[n]] * self.width, ' of')}"
                ),
            )

    def _with_ids(self) -> Iterator[tuple[int, Ids, Floats]]:
        """Yield the client, the ids and the rows of each message that says which records they are about."""
        for message, rows in zip(self.noised, self.rows, strict=True):
            if message.ids is not None and len(message.ids) == len(rows):
                yield message.client, message.ids, rows

    def _by_place(self) -> Iterator[_Family]:
        """Yield tests of each pair of messages, and of all pairs that are equally far apart, by places in the batch."""
        count = min(len(self.rows), _MOST_MESSAGES)
        sizes = self.sizes[:count]
        padded = np.zeros((count, sizes.max(), self.width))
        for n, values in enumerate(self.rows[:count]):
            padded[n, : len(values)] = values
        flat = padded.reshape(count, -1)
        products = flat @ flat.T
        # Energy of the first rows of each message, as many as the other has.
        sums = np.cumsum((padded**2).sum(2), axis=1)
        later, earlier = np.tril_indices(count, -1)
        shared = np.minimum(sizes[earlier], sizes[later])
        known = sums[earlier, shared - 1]
        floor = np.tile(np.maximum(0.0, np.sqrt(known) - self._signal(shared)) ** 2, 2)
        both, cross = known + self.energies[:count][later], 2.0 * products[later, earlier]
        energy = np.concatenate([both - cross, both + cross])
        freedom = np.tile(sizes[later] * self.width, 2)
        pairs = len(later)

        def again(n: int) -> str:
            a, b = self.noised[earlier[n % pairs]], self.noised[later[n % pairs]]
            sign = "" if n < pairs else ", with the opposite sign"
            return f"{b.name} has the noise of {a.name}{sign}"

        yield _Family(_log_e(energy, freedom, floor), again)
        lags = np.tile(later - earlier, 2) + np.repeat([0, count], pairs)
        used = np.flatnonzero(np.bincount(lags, minlength=2 * count))
        totals = [np.bincount(lags, values, 2 * count)[used] for values in (energy, freedom, floor)]
        yield _Family(
            _log_e(*totals), lambda n: f"noise of {self.kind} messages comes back {used[n] % count} messages later"
        )

    def _by_occurrence(self, of: str, most: int) -> Iterator[_Family]:
        """Yield tests of noise that comes back in a later row about the same record, to one client or to any."""
        latest: defaultdict[tuple[int, int], list[Floats]] = defaultdict(list)
        totals = np.zeros((most, 2, 3))
        for client, ids, rows in self._with_ids():
            before = [latest[client if of == "one client" else 0, int(i)] for i in ids]
            for back in range(min(most, max(map(len, before), default=0))):
                had = [n for n, seen in enumerate(before) if len(seen) > back]
                past = np.stack([before[n][-1 - back] for n in had])
                here = rows[had]
                known = _square(past)
                floor = max(0.0, math.sqrt(known) - float(self._signal(len(had)))) ** 2
                cross = 2.0 * float(np.vdot(past, here))
                energy = known + _square(here)
                totals[back] += [(energy - cross, here.size, floor), (energy + cross, here.size, floor)]
            for seen, row in zip(before, rows, strict=True):
                seen.append(row)
                del seen[:-most]
        used = np.flatnonzero(totals[:, 0, 1])
        if used.size:
            yield _Family(
                _log_e(*totals[used].reshape(-1, 3).T),
                lambda n: (
                    f"{self.kind} rows about one record have the same noise{' with opposite signs' if n % 2 else ''}: "
                    f"the message {used[n // 2] + 1} before, to {of}"
                ),
            )

    def _tails(self) -> _Family:
        """Return the tests of how many numbers are far from zero: never fewer than of Gaussian noise alone."""
        from scipy.stats import binom, norm

        values = np.abs(np.concatenate([rows.ravel() for rows in self.rows]))
        chances = 2.0 * norm.sf(_TAILS)
        seen = np.array([(values > far).sum() for far in _TAILS])

        def words(n: int) -> str:
            far = f"{_TAILS[n] * self.release.sigma:.3g}"
            expected = f"{chances[n] * len(values):,.0f}"
            return f"{seen[n]:,} numbers of {self.kind} messages lie beyond {far}, Gaussian noise has {expected}"

        return _Family(-binom.logcdf(seen, len(values), chances), words, tells=0)


def _square(values: Floats) -> float:
    return float(np.vdot(values, values))
