"""Upper bounds on epsilon for labels that are privatised once, before training: the rest is post-processing.

Noise that a method adds by itself to what it computes from private labels is one more step of post-processing: the
bound of the labels stands whatever it is. Its own bound stands too where a label that is replaced moves the private
label of its own record alone (`LabelRelease.by_record`): given the draws for all others, two neighbouring trainings are
then trainings on two data sets in which one label differs, and their mixtures keep the bound. The smaller one counts,
not the sum. Where one label moves those of a whole group, the noise of the method is made for fewer labels than move,
and nothing is said of it.
"""

from dataclasses import dataclass

from ..base.errors import check_delta
from ..base.findings import SERVERS, AdversaryName, NeighbourRelation, UpperBound
from .gaussian import epsilon_from_mu, exactly, mu_from_epsilon

ACCOUNTANT = "label-dp"
HELD = "the server is trusted here: it holds the true labels, and privatises them"
MOVES = (
    "features, and whether a record is there, are not protected; where records are grouped they move the others' groups"
)
"""Why a relation beside `replace-label` has no meaning for labels that are privatised once."""


@dataclass(frozen=True)
class LabelRelease:
    """Labels that are privatised once, under `replace-label`, whatever is done with them.

    Attributes:
        epsilon: Above 0, at `delta`.
        delta: 0 of a pure mechanism, (epsilon, 0) for each label; above 0 of Gaussian noise, whose epsilon at any other
            delta follows from the same mu.
        by_record: Whether a label that is replaced moves the private label of its own record alone.
    """

    epsilon: float
    delta: float = 0.0
    by_record: bool = False

    @property
    def mu(self) -> float | None:
        """The Gaussian-DP mu; None of a pure mechanism."""
        return mu_from_epsilon(self.epsilon, self.delta) if self.delta else None

    @property
    def words(self) -> str:
        """What it promises of each label, in a few words."""
        return f"epsilon {self.epsilon:g} for each, delta {self.delta:g}"

    def at(self, delta: float) -> float:
        """Return epsilon at a `delta` in (0, 1)."""
        if self.mu is None or delta == self.delta:
            return self.epsilon
        return epsilon_from_mu(self.mu, delta)

    def bound(
        self, adversary: AdversaryName, neighbours: NeighbourRelation, delta: float, *, seeded: bool = False
    ) -> UpperBound:
        """Return the bound against an adversary; none against the server, and under no relation but `replace-label`.

        `seeded` says that the draws follow from a seed that others learn. Raises `InputError` for a wrong `delta`.
        """
        check_delta("delta", delta)
        epsilon = gap = None
        note = "labels are privatised once, the rest is post-processing"
        if adversary in SERVERS:
            gap, note = "unprotected-channel", HELD
        elif neighbours != "replace-label":
            gap, note = "undefined", MOVES
        else:
            epsilon = exactly(self.at(delta))
            gap = "seeded-noise" if seeded else None
        return UpperBound(
            accountant=ACCOUNTANT,
            adversary=adversary,
            neighbours=neighbours,
            delta=delta,
            epsilon=epsilon,
            sound=gap is None,
            gap=gap,
            note=note,
            mu=None if epsilon is None else self.mu,
        )
