"""Claims on score files that are there already: nothing is run, and no torch is loaded."""

from collections.abc import Callable, Mapping
from functools import cache

from ..base.findings import Void
from ..evidence.gathering import Pool, Stage, Subject
from ..games.scores import GameScores, GaussianGiven
from ..statistics.assumptions import remarks, same_scores
from ..statistics.estimators import DEFAULT_ESTIMATORS
from ..statistics.panel import GAUSSIAN_TESTS
from ..statistics.scores import LoadedScores

SCORES = "scores"


def scores_subject(
    read: Callable[[], LoadedScores],
    *,
    exactly_gaussian: bool,
    called: str = "sides",
    facts: Mapping[str, object] | None = None,
) -> Subject:
    """Return what scores that are there already are about: no further pair can be drawn, so one test takes them all.

    `called` is what the two lists are: "sides" or "files".
    """

    def draw(number: int) -> GameScores:
        files = read()
        gaussian = GaussianGiven(vouched=True) if exactly_gaussian else None
        same = same_scores(files.inside, files.outside, called)
        voids = (Void(reason="same-scores", words=same),) if same else ()
        notes = (*files.notes, *(line for line in remarks(files.inside, files.outside, called) if line != same))
        return GameScores(files.inside, files.outside, given=gaussian, notes=notes, voids=voids)

    @cache
    def counted() -> tuple[int, int]:
        files = read()
        return files.inside.size, files.outside.size

    return Subject(
        stages=(Stage(name=SCORES, pool=SCORES, blocks=1, full=1.0),),
        pools={SCORES: Pool(draw=draw, gaussian=exactly_gaussian, given=counted)},
        gaussian_tests=tuple(name for name in GAUSSIAN_TESTS if name in DEFAULT_ESTIMATORS),
        quick=True,
        facts=facts or {},
    )
