"""Claims on score files that are there already: nothing is run, and no torch is loaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from ..base.files import confined_to, data_digest
from ..base.findings import Void
from ..evidence.gathering import Pool, Stage, Subject
from ..games.scores import GameScores, Given
from ..statistics.assumptions import remarks, same_scores
from ..statistics.estimators import DEFAULT_ESTIMATORS, GAUSSIAN_TESTS
from ..statistics.scores import ScoreFiles, load_score_files
from .access import Access
from .file import ScoresClaim

SCORES = "scores"


@dataclass(frozen=True)
class ScoresForm:
    """A claim of an epsilon, put to the test on two files of scores."""

    claim: ScoresClaim
    runs_code: ClassVar[bool] = False
    known_when: ClassVar[str] = "read"
    planned: ClassVar[None] = None

    def key(self, access: Access) -> str:
        """Return a digest of the two files. Raises `Undigested` where one cannot be read."""
        with confined_to(access.root):
            return data_digest(access.scores(self.claim))

    def check(self, access: Access) -> None:
        """Raise `InputError` where a file is none, or lies elsewhere."""
        access.scores(self.claim)

    def subject(self, access: Access, seed: int, max_trials: int | None) -> Subject:
        """Return the scores of both files."""
        in_path, out_path = access.scores(self.claim)

        def read() -> ScoreFiles:
            with confined_to(access.root):
                return load_score_files(in_path, out_path, self.claim.scores.header)

        return scores_subject(
            read,
            called="files",
            exactly_gaussian=self.claim.exactly_gaussian,
            facts={"scores": self.claim.scores.names()},
        )


def scores_subject(
    read: Callable[[], ScoreFiles],
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
        given = Given(vouched=True) if exactly_gaussian else None
        same = same_scores(files.inside, files.outside, called)
        voids = (Void(reason="same-scores", words=same),) if same else ()
        notes = (*files.notes, *(line for line in remarks(files.inside, files.outside, called) if line != same))
        return GameScores(files.inside, files.outside, given=given, notes=notes, voids=voids)

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
