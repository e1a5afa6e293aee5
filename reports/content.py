"""Writes the report on a result by the template of its command, and what the template does not draw as JSON."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from dpzv_audit.base import rounding
from dpzv_audit.base.findings import ADVERSARIES
from dpzv_audit.results import Reported

from . import curves, figures, head, matrix, measured, risk, text, verdicts, verification
from .document import Report, Tile

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def _fenced(value: str, language: str = "json") -> "Markup":
    from markupsafe import Markup

    return Markup(text.fenced(value, language))


@cache
def environment() -> "Environment":
    """Return what templates of reports are read and filled in with.

    What a template shows is text made safe: a value becomes words as `reports.text.number` says, and markup is escaped
    but for drawings, which are made here with every text in them escaped, and for Markdown, which is text.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    found = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        finalize=lambda value: value if isinstance(value, Markup) else text.number(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for module in (curves, figures, head, matrix, measured, risk, verdicts, verification):
        found.globals[module.__name__.rpartition(".")[2]] = module
    found.globals |= {"ADVERSARIES": ADVERSARIES, "Tile": Tile}
    found.globals["rounding"] = rounding
    found.tests["sound_at"] = measured.is_sound_at
    shown = (
        text.as_claimed,
        text.lower_bound,
        text.number,
        text.percent,
        text.proportion,
        text.upper_bound,
        text.the,
        text.to_json,
    )
    found.filters |= {function.__name__: function for function in (*shown, rounding.p_value)}
    found.filters |= {
        "capitalized": lambda value: value[:1].upper() + value[1:],
        "drawn": Markup,
        "fenced": _fenced,
        "markdown": lambda value: Markup(text.markdown(value)),
    }
    return found


def report_content(
    result: Reported,
    other: Mapping[str, object] | None = None,
    *,
    timings: Mapping[str, float] | None = None,
    drawings: verification.Drawings | None = None,
) -> Report:
    """Return what a report on a result shows, for HTML and Markdown alike.

    Every key of the result is drawn by a section; `other`, what its file holds beside, stands in the last one as JSON.
    Trade-off curves and long training histories are drawn in full as figures and thinned in tables, which say so.
    `timings` are what was measured beside the result, `drawings` keeps the figures of one of `verify`.
    """
    report = Report(result.KIND)
    command = result.SCHEMA.split("/")[1]
    template = environment().get_template(f"{command}.jinja")
    template.render(result=result, doc=report, timings=timings or {}, drawings=drawings)
    if other:
        report.section("else", "Everything else")
        report.text("Keys of the result that no section above draws, as they stand in it.")
        report.code(text.to_json(other, indent=2))
    return report
