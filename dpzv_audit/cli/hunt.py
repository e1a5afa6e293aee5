"""`dpzv-audit hunt`: looks for the worst pair of worlds of a mechanism, then audits that one."""

from functools import partial
from typing import Annotated

import typer

from ..base.signals import TRIAL_SECONDS
from .audit import GameFlags, apart, carried_out
from .flags import DEFAULT_DELTA, Count, Positive, Probability, takes
from .output import Output

WHAT = "pkg.mod:factory, a mechanism of yours, which is imported."


@takes
def hunt(
    *,
    mechanism: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT)],
    epsilon: Positive | None = None,
    delta: Probability = DEFAULT_DELTA,
    pilot: Count = 40,
    trial_seconds: Positive = TRIAL_SECONDS,
    game: GameFlags,
    output: Output,
) -> None:
    """Look for the two worlds in which a mechanism gives the most away, and audit it there.

    A mechanism names its variants, such as other numbers of records; a training with Opacus has its own. Short pilots
    choose a variant. Further pilots choose a score for it, as `audit mechanism` does: single numbers, fitted scores,
    values that repeat exactly, low bits. Fresh runs test the claim there once, so that the search costs no error.

    Example: dpzv-audit hunt my_training:subject

    Options:
        epsilon X: Claimed epsilon; by default what each variant's own claimed(delta) says.
        delta X: Delta of the claim and of every bound, strictly between 0 and 1.
        pilot N: Runs of each variant in each world, from which one variant is chosen.
        trial_seconds X: Most seconds that one run of the mechanism may take.
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
