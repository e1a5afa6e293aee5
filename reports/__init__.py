"""Reports on a run, drawn from its result alone: figures, one self-contained HTML page, Markdown."""

from reports.figures import epsilon_figure, success_figure, tradeoff_figure
from reports.render import render_html, render_markdown, write_report
from reports.training_figures import accuracy_figure, bytes_figure, staleness_figure

__all__ = [
    "accuracy_figure",
    "bytes_figure",
    "epsilon_figure",
    "render_html",
    "render_markdown",
    "staleness_figure",
    "success_figure",
    "tradeoff_figure",
    "write_report",
]
