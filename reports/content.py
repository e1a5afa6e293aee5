"""Writes the report on a result by the template of its command, and what the template does not draw as JSON."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from dpzv_audit.base import rounding
from dpzv_audit.base.findings import ADVERSARIES
from dpzv_audit.results import Reported

from . import answer, curves, figures, head, matrix, measured, risk, tabular, text, verdicts, verification
from .answer import answer_of
from .document import Report

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> "Environment":
    """Return what templates of reports are read and filled in with.

    What a template shows is text made safe: a value becomes words as `reports.text.number` says, and markup is escaped
    but for drawings, which are made here with every text in them escaped, and for Markdown, which is text.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        finalize=lambda value: value if isinstance(value, Markup) else text.number(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for module in (answer, curves, figures, head, matrix, measured, risk, tabular, verdicts, verification):
        made.globals[module.__name__.rpartition(".")[2]] = module
    made.globals |= {"ADVERSARIES": ADVERSARIES, "rounding": rounding}
    made.tests["sound_at"] = measured.is_sound_at
    names = (
        "as_claimed",
        "attacker",
        "capitalized",
        "lower_bound",
        "number",
        "percent",
        "proportion",
        "upper_bound",
        "the",
        "to_json",
    )
    made.filters |= {name: getattr(text, name) for name in names}
    made.filters |= {
        "exact_p_value": rounding.exact_p_value,
        "p_equals": rounding.p_equals,
        "p_value": rounding.p_value,
        "drawn": Markup,
        "fenced": lambda value, language: Markup(text.fenced(value, language)),
        "markdown": lambda value: Markup(text.markdown(value)),
    }
    return made


def report_content(
    result: Reported,
    other: Mapping[str, object] | None = None,
    *,
    timings: Mapping[str, float] | None = None,
    origin: Sequence[str] = (),
    drawings: verification.Drawings | None = None,
) -> Report:
    """Return what a report on a result shows, for HTML and Markdown alike.

    Every key of the result is drawn by a section; `other`, what its file holds beside, stands in the last one as JSON.
    Trade-off curves and long training histories are drawn in full as figures and thinned in tables, which say so.
    `timings` are what was measured beside the result, `origin` the version and the date with which it was computed, and
    `drawings` keeps the figures of one of `verify`.
    """
    report = Report(result.KIND, answer_of(result), origin)
    command = result.SCHEMA.split("/")[1]
    template = environment().get_template(f"{command}.jinja")
    template.render(result=result, doc=report, timings=timings or {}, drawings=drawings)
    if other:
        report.section("else", "Everything else")
        report.text("Keys of the result that no section above draws, as they stand in it.")
        report.code(text.to_json(other, indent=2))
    return report
