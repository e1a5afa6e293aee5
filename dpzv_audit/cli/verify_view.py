"""What `verify` shows on a terminal: what each claim is doing, the table of verdicts, and a sentence a claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpzv_audit.cli.common import Output
from dpzv_audit.inert import inert
from reports.text import verdict_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dpzv_audit.results import ClaimResult

STYLES = {"refuted": "bold red", "overclaimed": "yellow", "supported": "green", "inconclusive": "dim"}


@contextmanager
def live_status(output: Output, names: Sequence[str]) -> Iterator[Any]:
    """Show what each claim is doing as a table on stderr while the block runs; nothing where that is no terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True)
    status = ["waiting"] * len(names)

    def table() -> Table:
        shown = Table(box=None, pad_edge=False, show_header=False)
        # A long file shows what is under way, not everything.
        busy = [i for i, text in enumerate(status) if text not in ("waiting", "done", "from the cache")]
        rows = range(len(names)) if len(names) <= 30 else busy[:30]
        for index in rows:
            shown.add_row(Text(inert(names[index][:60])), Text(status[index]))
        done = sum(
            text in ("done", "from the cache") or text.startswith(("the budget", "the limit")) for text in status
        )
        shown.add_row("", Text(f"{done} of {len(names)} claims done", style="dim"))
        return shown

    def show(index: int, text: str) -> None:
        status[index] = text

    if output.quiet or not console.is_terminal:
        yield show
        return
    # Drawn by the clock, not with every change: thousands of claims change faster than anybody reads.
    with Live(get_renderable=table, console=console, transient=True, refresh_per_second=4):
        yield show


def verdict_table(claims: Sequence[ClaimResult]) -> Table:
    """Return the verdicts in one glance: claim, verdict, claimed, measured, proved, p-value over the file."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from dpzv_audit.findings import down, up

    table = Table(box=SIMPLE_HEAD, title_justify="left")
    table.add_column("claim")
    table.add_column("verdict", min_width=len("inconclusive *"))
    for title in ("claimed", "measured", "proved", "p (Holm)"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in claims:
        if entry.form == "attack":
            claimed = f"≤ {100 * entry.claimed:g}%"
            measured = f"{100 * (entry.attack.success or 0.0):.1f}%" if entry.rates else "–"
            proved = ""
        else:
            claimed = f"≤ {entry.claimed:g}"
            measured = "–" if entry.epsilon_lower is None else f"≥ {down(entry.epsilon_lower)}"
            proved = "–" if entry.upper is None else f"≤ {up(entry.upper)}"
        words = verdict_words(entry.verdict, entry.verdict_given)
        verdict = Text(words + (" *" if entry.missing else ""), style=STYLES[entry.verdict])
        table.add_row(Text(inert(entry.name)), verdict, claimed, measured, proved, f"{entry.adjusted_p_value:.1g}")
    return table


def print_sentence(console: Console, entry: ClaimResult, *, cached: bool, not_cached: str) -> None:
    """Print what was found of one claim as a sentence, with whether it was `cached`, or why it could not be."""
    from rich.text import Text

    text = Text(inert(f"{entry.name}: {entry.sentence}"))
    text.stylize("bold", 0, len(inert(entry.name)))
    if cached:
        text.append(" [from the cache]", style="dim")
    if not_cached:
        text.append(inert(f" [not cached: {not_cached}]"), style="dim")
    console.print(text)
