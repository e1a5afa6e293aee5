"""Draws the picture of the README from a run folder: what claim, audit and theory say of epsilon, on a white card.

    python docs/images/draw.py RUN docs/images/claim.svg

The card keeps the picture readable on white and on dark pages alike, whatever the reader's system prefers.
"""

import re
import sys
from pathlib import Path

from dpzv_audit.results import AttackResult, AuditResult, read
from dpzv_audit.runs import load_run
from reports.curves import tradeoff_figure
from reports.figures import epsilon_figure

MARGIN = 16.0


def part(drawing: str, x: float, y: float) -> tuple[str, float, float]:
    """Return `drawing` as a part placed at (x, y) without its dark colours, and its width and height in units."""
    found = re.search(r'width="[^"]+" height="[^"]+" viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    if found is None:
        raise SystemExit("the run holds no audit to draw: give the folder of `dpzv-audit attack` or `audit`")
    width, height = float(found[1]), float(found[2])
    placed = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    light = re.sub(r"<style>@media.*?</style>\n", "", drawing, count=1)
    return light.replace(found[0], placed), width, height


def card(run: Path) -> str:
    """Return the picture of a run: the three statements about epsilon at the left, the trade-off curves right."""
    result, _ = read(load_run(run))
    if not isinstance(result, AttackResult | AuditResult):
        raise SystemExit("give the folder of `dpzv-audit attack` or `audit`")
    privacy = result.privacy
    drawing = epsilon_figure(privacy.claimed, privacy.empirical_lower, privacy.upper)
    _, width, low = part(drawing, MARGIN, 0.0)
    curves, beside, high = part(tradeoff_figure(result.tradeoff), width + 2 * MARGIN, MARGIN)
    epsilon, _, _ = part(drawing, MARGIN, MARGIN + (high - low) / 2)
    size = (width + beside + 3 * MARGIN, high + 2 * MARGIN)
    labels = "; ".join(re.findall(r'aria-label="([^"]+)"', epsilon + curves))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}" role="img" '
        f'aria-label="{labels}">\n'
        f'<rect width="{size[0]:g}" height="{size[1]:g}" rx="10" fill="#ffffff"/>\n{epsilon}{curves}</svg>\n'
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python docs/images/draw.py RUN FILE.svg")
    Path(sys.argv[2]).write_text(card(Path(sys.argv[1])), encoding="utf-8")
