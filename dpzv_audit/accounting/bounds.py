"""What an accountant is, what it is asked, and how a release reads as participations of a record."""

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

from ..base.errors import check_delta
from ..base.findings import AdversaryName, EpsilonRange, NeighbourRelation, UpperBound
from .gaps import GAPS, NO_NUMBER, GapCell, cell_of, gaps_of
from .gaussian import Participation
from .prv import Rounds
from .release import REPLACES, AnyRelease, Composition, Release, relevant_parts
from .sampled import PairKind, SampledGaussian
from .selection import Selection

LARGEST_EPSILON = 1e150
"""Past it a number means nothing, and its square would leave the floats."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """What an accountant computes once it is known that there is something to compute.

    Attributes:
        note: What was computed, and why it has gaps of its own.
        shown: What the accountant's macro in `templates/formulas.jinja` shows besides, where it does.
        own_gaps: Gaps of this accountant's number besides those of the release.
    """

    epsilon: EpsilonRange
    note: str
    mu: float | None = None
    shown: object = None
    own_gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why an accountant has no trusted number for a release: its gap is `no-accountant`."""

    reason: str


NO_NOISE = Refusal("no noise is added to this channel; only czofo-theorem speaks of it")
"""CZOFO's estimates, to which no noise is added: no accountant but its own theorem speaks of them."""


_ROWS = "each record has a separate row in each message, which no sum hides"
_VECTORS = "no trusted accountant here for sampled sums of vectors of which one is replaced"


@dataclass(frozen=True)
class AccountantQuery:
    """What an accountant is asked: an epsilon at `delta` of `release`, against `adversary`, under `neighbours`.

    `fast`: certified bounds alone, nothing is composed. `enough`: a claimed epsilon; nothing is composed where
    certified bounds decide whether it holds.
    """

    release: AnyRelease
    adversary: AdversaryName
    neighbours: NeighbourRelation
    delta: float
    _: KW_ONLY
    fast: bool = False
    enough: float | None = None

    @cached_property
    def parts(self) -> tuple[Release, ...]:
        """Return the releases whose noise stands between the adversary and the record."""
        return relevant_parts(self.release, self.adversary)

    @cached_property
    def cells(self) -> tuple[GapCell, ...]:
        """Return what a bound can rest on in each of `parts`."""
        return tuple(cell_of(release, self.adversary, self.neighbours) for release in self.parts)

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """Return the gaps that any bound rests on; see `gaps_of`. The best of a search alone is shown to `release`."""
        others = ("other-trials",) if self.selection is not None and self.adversary != "release" else ()
        return (*gaps_of(self.release, self.adversary, self.neighbours), *others)

    @property
    def selection(self) -> Selection | None:
        """Return the search whose best trial the release is, None where there is no search."""
        return self.release.selection if isinstance(self.release, Composition) else None

    @property
    def knows_ids(self) -> bool:
        """Whether the adversary knows the batch ids of any part: then sampling hides nothing there."""
        return any(cell.treatment == "known-ids" for cell in self.cells)

    @cached_property
    def counted(self) -> tuple[Participation, ...]:
        """Return how often a record takes part in each of `parts`."""
        return tuple(
            Participation(
                mu=release.participation_mu(self.neighbours),
                rounds=release.rounds,
                rate=release.rate,
                fixed=fixed_participations(release, self.adversary),
                cap=release.participation_cap,
            )
            for release in self.parts
        )

    @cached_property
    def certain(self) -> tuple[float, ...]:
        """Return the mus of what happens in each of `parts` whatever the batches are."""
        return tuple(release.certain_mu(self.neighbours) for release in self.parts)

    @cached_property
    def sampled(self) -> "SampledView | Refusal":
        """Return the view, or why sampling amplifies nothing that a trusted accountant could count.

        Parts with fixed participations count in full: hiding their ids is post-processing. Who sees how many records a
        batch holds does not see Poisson sampling: given that number b, a record that is left out makes room for
        another, and the sum of the others tells whether it is there. With all others at +C a label replaced is
        N(0, sigma^2) against (1 - b/D) N(0, sigma^2) + (b/D) N(-2C, sigma^2) times 1/B, which costs more than the
        symmetric pair.

        Of fixed-size batches (`uniform`) everybody knows the size, and room is made in any case: the pair is
        `fixed-size`, for a record replaced. Its step is 2C/B whatever the record itself moves by.
        """
        parts = self.parts
        neighbours = self.neighbours
        if any(release.channel == "zo-gradient" for release in parts):
            return NO_NOISE
        if self.adversary == "malicious-client":
            return Refusal("a malicious client need not follow the sampler")
        replaced = neighbours in REPLACES
        kinds: tuple[PairKind, ...] = ("replace",) if replaced else ("remove", "add")
        directions: dict[PairKind, list[Rounds]] = {kind: [] for kind in kinds}
        certain = []
        amplified = ("poisson", "uniform") if replaced else ("poisson",)
        if not any(release.sampler in amplified for release in parts):
            return _no_accountant(release.sampler for release in parts)
        for release in parts:
            mu = release.participation_mu(neighbours)
            count = release.fixed_participations
            if mu == math.inf:
                return Refusal("one record has no finite sensitivity")
            certain.append(release.certain_mu(neighbours))
            if count is not None:
                certain.append(mu * count**0.5)
            elif release.sampler not in amplified:
                return _no_accountant([release.sampler])
            elif release.channel != "scalar" and (replaced or release.channel != "model"):
                return Refusal(_VECTORS if release.channel == "model" else _ROWS)
            elif release.participation_cap is not None and release.participation_cap < release.rounds:
                return Refusal(f"a participation cap makes the sampling no longer {release.sampler}")
            else:
                for kind, rounds in directions.items():
                    of = "fixed-size" if release.sampler == "uniform" else kind
                    noise = (2.0 if of == "replace" else 1.0) / mu
                    rounds.append(Rounds(SampledGaussian(kind=of, rate=release.rate, noise=noise), release.rounds))
        return SampledView({kind: tuple(rounds) for kind, rounds in directions.items()}, tuple(certain))

    @property
    def own_gaps(self) -> tuple[str, ...]:
        """Return the gaps that a number resting on sampling has besides those of any bound."""
        if all(release.fixed_participations is not None for release in self.parts):
            return ()
        if self.knows_ids:
            return ("known-ids",)
        if self.neighbours == "add-remove":
            return ()  # there they are gaps of every bound, and `gaps_of` names them
        random = [release for release in self.parts if release.fixed_participations is None]
        # A fixed size is known in any case.
        size_known = any(release.sampler == "poisson" and not release.padded for release in random)
        present = {
            "batch-size": self.adversary == "eavesdropper" and size_known,
            "secret-batches": any(release.secret_batches for release in random),
        }
        return tuple(name for name, holds in present.items() if holds)

    @property
    def amplified(self) -> "SampledView | Refusal":
        """Return the view of sampling where the ids are secret, or why there is none."""
        if isinstance(self.sampled, SampledView) and self.own_gaps:
            return Refusal("known ids show whether the record is there")
        return self.sampled

    @property
    def refusal(self) -> Refusal | None:
        """Return why neither known ids nor sampling gives a number, where that is so."""
        if any(release.channel == "zo-gradient" for release in self.parts):
            return NO_NOISE
        view = self.amplified
        if self.neighbours == "add-remove" and isinstance(view, Refusal):
            return view
        return None


@dataclass(frozen=True)
class Accountant:
    """An upper bound on epsilon by name: `answer` computes it, and how it comes about.

    Called with a release, an adversary, a neighbour relation and delta it returns an `UpperBound`.

    Attributes:
        answer: What it has to say where no gap of the release leaves it nothing to say.
        source: Paper and theorem.
    """

    answer: Callable[[AccountantQuery], Number | Refusal]
    _: KW_ONLY
    name: str
    summary: str
    source: str

    def __call__(
        self,
        release: AnyRelease,
        adversary: AdversaryName,
        neighbours: NeighbourRelation,
        delta: float,
        *,
        fast: bool = False,
        enough: float | None = None,
    ) -> UpperBound:
        """Return the bound; see `AccountantQuery`."""
        return self.bound(AccountantQuery(release, adversary, neighbours, delta, fast=fast, enough=enough))

    def bound(self, query: AccountantQuery) -> UpperBound:
        """Join the release's gaps with the accountant's own; compute a number unless a gap leaves none."""
        check_delta("delta", query.delta)
        gaps = tuple(gap for gap in query.gaps if gap in NO_NUMBER)
        reasons = "; ".join(dict.fromkeys(cell.reason for cell in query.cells))
        epsilon = mu = None
        if gaps:
            note = reasons
            if not {"undefined", "unprotected-channel"}.intersection(gaps):
                note = GAPS[gaps[0]]
        elif isinstance(answer := self._answer(query), Refusal):
            gaps = ("no-accountant",)
            note = answer.reason
        else:
            gaps = (*answer.own_gaps, *query.gaps)
            epsilon = answer.epsilon
            mu = answer.mu
            note = "; ".join(filter(None, (answer.note, reasons)))
        return UpperBound(
            accountant=self.name,
            adversary=query.adversary,
            neighbours=query.neighbours,
            delta=query.delta,
            epsilon=epsilon,
            sound=not gaps,
            gap=",".join(gaps) or None,
            note=note,
            mu=mu,
        )

    def _answer(self, query: AccountantQuery) -> Number | Refusal:
        """Return what the accountant says of a release, or of the best of several trials that are such releases."""
        selection = query.selection
        if selection is None:
            return self.answer(query)
        answer = self.answer(query) if self.name in _OF_GAUSSIANS else _NO_SELECTION
        if isinstance(answer, Refusal):
            return answer
        if answer.mu is None:
            return _NO_SELECTION
        note = f"{answer.note}; best of a secret number of trials, {selection}"
        return replace(answer, epsilon=selection.epsilon(answer.mu, query.delta), mu=None, note=note)


_OF_GAUSSIANS = frozenset({"gdp-paper", "gdp-clt", "gdp-exact"})
"""Accountants whose number is the epsilon of one mu, from which the price of a search follows."""
_NO_SELECTION = Refusal("a search is accounted from the one mu of fixed participations: see gdp-exact")


def accountant(summary: str) -> Callable[[Callable[[AccountantQuery], Number | Refusal]], Accountant]:
    """Make a function of an `AccountantQuery` an `Accountant` of its name; its docstring ends with the source."""

    def made(answer: Callable[[AccountantQuery], Number | Refusal]) -> Accountant:
        source = " ".join((answer.__doc__ or "").rpartition("Source: ")[2].split()).rstrip(".")
        return Accountant(answer, name=answer.__name__.replace("_", "-"), summary=summary, source=source)

    return made


def meanings(bounds: Iterable[UpperBound]) -> dict[str, str]:
    """Return each gap among `bounds` with what it means; `undefined` means what the bounds that have it say."""
    by_gap: dict[str, dict[str, None]] = {}
    for answer in bounds:
        for name in answer.gaps:
            meaning = answer.note if name == "undefined" else GAPS[name]
            by_gap.setdefault(name, {}).setdefault(meaning)
    return {name: "; ".join(words) for name, words in by_gap.items()}


def fixed_participations(release: Release, adversary: AdversaryName) -> int | None:
    """Return n where it is fixed: a malicious client takes part as often as the cap allows; None where random."""
    if adversary == "malicious-client" and release.participation_cap is not None:
        return min(release.participation_cap, release.rounds)
    return release.fixed_participations


@dataclass(frozen=True)
class SampledView:
    """A release as amplification by sampling takes it: the random rounds in each direction, and certain mus."""

    directions: dict[PairKind, tuple[Rounds, ...]]
    certain: tuple[float, ...]

    @property
    def rounds(self) -> tuple[Rounds, ...]:
        """Return the random rounds of the first direction; those of another have the same rates and noise."""
        return next(iter(self.directions.values()))


def _no_accountant(samplers: Iterable[str]) -> Refusal:
    names = ", ".join(dict.fromkeys(samplers))
    return Refusal(f"no trusted accountant for secret ids with the {names} sampler")
