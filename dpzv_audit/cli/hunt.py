"""`dpzv-audit hunt`: looks for the worst pair of worlds of a mechanism, then audits that one."""

from functools import partial
from typing import Annotated

import typer

from ..base.signals import TRIAL_SECONDS
from .audit import GameFlags, apart, carried_out
from .flags import DEFAULT_DELTA, Count, Positive, Probability, takes
from .output import Answered

WHAT = "Your mechanism, pkg.mod:factory. It is imported."


@takes
def hunt(
    *,
    mechanism: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT)],
    epsilon: Positive | None = None,
    delta: Probability = DEFAULT_DELTA,
    pilot: Count = 40,
    trial_seconds: Positive = TRIAL_SECONDS,
    game: GameFlags,
    output: Answered,
) -> None:
    """Find the worst inputs of a mechanism, and audit it there.

    Short trial runs choose among the mechanism's variants, then a score. Fresh runs test the claim, so the search
    costs no error. A training with Opacus has its own variants.

    Example: dpzv-audit hunt my_training:subject

    Basics:
        epsilon X: Claimed epsilon. By default what each variant's own claimed(delta) says.
        delta X: Delta of the claim and of bounds. Strictly between 0 and 1.
    Audit:
        pilot N: Trial runs per variant and data set. From them one variant is chosen. Further trial
            runs choose a score for it, as `audit mechanism` does: single numbers, fitted scores, values that repeat
            exactly, low bits.
    Execution:
        trial_seconds X: Longest run, in seconds.
    """
    from ..evidence.auditing import hunted_outcome

    play = partial(
        hunted_outcome,
        mechanism,
        epsilon=epsilon,
        delta=delta,
        trial_seconds=trial_seconds,
        pilot=pilot,
        seed=game.seed,
    )
    carried_out(play, apart(game.plan()), "mechanism", game, output)
