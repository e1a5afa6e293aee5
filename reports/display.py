"""How a result shows itself in Python: a line, the head of its page, the figure that decides, rows of a data frame."""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from dpzv_audit.base.errors import InputError, one_line
from dpzv_audit.base.findings import Interval, value_of
from dpzv_audit.results import (
    AccountResult,
    AttackResult,
    AttacksResult,
    MatrixResult,
    PlantedResult,
    Reported,
    ReproduceResult,
    RunResult,
    ScoresResult,
    TrainingRun,
    Verdict,
    VerifyResult,
)

from . import svg
from .answer import answer_of
from .content import report_content
from .figures import short
from .render import to_html
from .verdicts import measured_of, proven_of, words_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 299
"""Characters of a result's line."""
_SUBJECT, _WORD, _NUMBER = 70, 60, 80
"""Characters of its subject, its verdict and each of its numbers."""


@dataclass(frozen=True)
class Display:
    """Shows one result."""

    result: Reported

    def line(self) -> str:
        """Return subject, verdict, and what was measured and proven, in a line of at most `LONGEST` characters."""
        result = self.result
        answer = answer_of(result)
        judgement = answer.judgement
        verdict = result.verdict
        words = _cut(judgement.word, _WORD)
        claimed = "" if verdict is None else _cut(words_of(verdict), _WORD)
        if claimed.startswith(words):
            words = claimed
        elif claimed and not words.startswith(claimed):
            words = f"{words}; claim {claimed}"
        shown = {} if verdict is None else {"measured": measured_of(verdict), "proven": proven_of(verdict)}
        shown |= {name: answer.facts[name] for name in ("measured", "proven") if name in answer.facts}
        numbers = [f"; {name}: {_cut(text, _NUMBER)}" for name, text in shown.items() if text is not None]
        subject = _cut(answer.subject.partition(". ")[0].rstrip("."), _SUBJECT)
        before = f"<{type(result).__name__} {subject}: {words}"
        after = f"{''.join(numbers)}>"
        room = LONGEST - len(before) - len(after) - 2
        about = f": {_cut(judgement.about, room)}" if room > 20 and judgement.about else ""
        return f"{before}{about}{after}"

    def html(self) -> str:
        """Return the head of the page, with its style for this head alone."""
        with _figures_to(lambda make: ""):
            page = to_html(report_content(self.result).top())
        _, _, style = page.partition("<style>")
        style = re.sub(r"(?<!\w)body \{", "& {", style.partition("</style>")[0].replace(":root", "&"))
        head = page[page.index("<header") : page.index("</header>") + len("</header>")]
        return f'<div class="dpzv-audit">\n<style>\n.dpzv-audit {{\n{style}\n}}\n</style>\n{head}\n</div>\n'

    def figure(self) -> "Figure":
        """Return the figure that decides, or the first of the page; raise `InputError` where there is none."""
        made: list[Callable[[], Figure]] = []

        def take(make: "Callable[[], Figure]") -> str:
            made.append(make)
            return f"@{len(made) - 1}"

        with _figures_to(take):
            pictures = report_content(self.result).pictures
        if not pictures:
            raise InputError(f"this {type(self.result).__name__} has no numbers to draw; to_frame() has what there is")
        figure = made[int(pictures[0].svg.rpartition("@")[2])]()
        # A notebook draws a figure that pyplot does not know only where it can say how.
        vars(figure)["_repr_png_"] = partial(_png_of, figure)
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row per claim, attack, estimator, bound or mechanism where there are several, else one row."""
        result = self.result
        match result:
            case VerifyResult():
                return [
                    {"claim": claim.name, "claimed": claim.claimed, **_of_verdict(claim.judged)}
                    | {"p_value": claim.adjusted_p_value, "fails": claim.fails}
                    for claim in result.claims
                ]
            case AttacksResult():
                return [cell.model_dump() for cell in result.attacks]
            case MatrixResult():
                return [cell.model_dump() for cell in result.cells]
            case PlantedResult():
                return [row.model_dump(exclude={"games"}) for row in result.rows]
            case ScoresResult():
                verdict = _of_verdict(result.verdict, result.warnings)
                return [{**verdict, **asdict(bound)} for bound in result.estimators]
            case AccountResult():
                return [
                    {**asdict(bound), "epsilon": None if bound.epsilon is None else bound.epsilon.upper}
                    for bound in result.bounds
                ]
            case ReproduceResult():
                return [*map(_of_row, result.rows)]
        return [_of_run(result)]


def _of_verdict(verdict: Verdict | None, warnings: Sequence[str] = ()) -> dict[str, object]:
    """Return the columns of a verdict, with further warnings of the result that it belongs to."""
    measured = None if verdict is None else verdict.measured
    proven = None if verdict is None else verdict.proven
    return {
        "verdict": None if verdict is None else verdict.word,
        "given": "" if verdict is None else verdict.given,
        "measured": _number(getattr(measured, "value", None)),
        "confidence": _number(getattr(measured, "confidence", None)),
        "proven": _number(getattr(proven, "value", None)),
        "rests_on": "" if proven is None else proven.rests_on,
        "not_tested": "; ".join(() if verdict is None else verdict.not_tested),
        "warnings": "; ".join(dict.fromkeys([*(() if verdict is None else verdict.warnings), *warnings])),
    }


def _of_row(row: Mapping[str, object]) -> dict[str, object]:
    """Return what a row of a reproduced table holds in single values; of a measurement its value."""
    values = {key: value.get("value") if isinstance(value, Mapping) else value for key, value in row.items()}
    return {key: value for key, value in values.items() if value is None or isinstance(value, str | int | float)}


def _of_run(result: RunResult) -> dict[str, object]:
    """Return the row of an attack, a training or an audit."""
    privacy = result.privacy
    row: dict[str, object] = {"method": result.method, "dataset": result.dataset}
    if isinstance(result, AttackResult):
        row |= {"attack": result.attack, "metric": result.metric, **_interval("success", result.success)}
        row["baseline"] = max(map(value_of, result.baselines.values()), default=math.nan)
    if isinstance(result, TrainingRun):
        row |= _interval("accuracy", result.utility.test_accuracy)
    row |= {"adversary": privacy.adversary, "neighbours": privacy.neighbours}
    row |= {"delta": _number(privacy.delta), "claimed": _number(privacy.claimed)}
    row |= _of_verdict(result.verdict, result.warnings)
    if result.verdict is None:
        row |= {"measured": _number(privacy.empirical_lower), "confidence": _number(privacy.confidence)}
        row |= {"proven": _number(privacy.upper)}
    return {**row, "run": result.run}


def _number(value: float | None) -> float:
    """Return a number as a column of numbers has it, which lacks one as nan."""
    return math.nan if value is None else value


def _interval(name: str, interval: Interval | None) -> dict[str, object]:
    columns = {name: "value", f"{name}_low": "low", f"{name}_high": "high"}
    return {column: math.nan if interval is None else getattr(interval, key) for column, key in columns.items()}


def _cut(text: str, length: int) -> str:
    return short(one_line(text), length)


def _png_of(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


@contextmanager
def _figures_to(take: "Callable[[Callable[[], Figure]], str]") -> Iterator[None]:
    """Give figures that would be drawn in the block to `take` instead."""
    token = svg.TAKES_FIGURE.set(take)
    try:
        yield
    finally:
        svg.TAKES_FIGURE.reset(token)
