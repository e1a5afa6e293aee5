"""Upper bounds on epsilon for labels that are privatised once, before training: the rest is post-processing."""

from dataclasses import dataclass

from ..errors import check_probability
from ..findings import AdversaryName, NeighbourRelation, UpperBound
from .gaussian import exactly

ACCOUNTANT = "label-dp"
HELD = "the server is trusted here: it holds the true labels, and privatises them"
MOVES = (
    "features, and whether a record is there, are not protected; where records are grouped they move the others' groups"
)
"""Why a relation beside `replace-label` has no meaning for labels that are privatised once."""


@dataclass(frozen=True)
class LabelRelease:
    """Labels that are privatised once: (epsilon, 0) for each under `replace-label`, whatever is done with them.

    Attributes:
        epsilon: Above 0.
    """

    epsilon: float

    def bound(
        self, adversary: AdversaryName, neighbours: NeighbourRelation, delta: float, *, seeded: bool = False
    ) -> UpperBound:
        """Return the bound against an adversary; none against the server, and under no relation but `replace-label`.

        `seeded` says that the draws follow from a seed that others learn. Raises `InputError` for a wrong `delta`.
        """
        check_probability("delta", delta)
        epsilon = gap = None
        note = "labels are privatised once, the rest is post-processing"
        if adversary == "server":
            gap, note = "unprotected-channel", HELD
        elif neighbours != "replace-label":
            gap, note = "undefined", MOVES
        else:
            epsilon = exactly(self.epsilon)
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
        )
