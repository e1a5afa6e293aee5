"""The section of a report on what the stated bound covers: what of a run folder may leave, and why the rest may not."""

from __future__ import annotations

from dpzv_audit.results import Noise, Published
from reports.model import Block, Prose, Section, Table, columns
from reports.text import clean


def section(noise: Noise | None, published: Published) -> Section | None:
    """Return where the noise came from and what the bound covers; None where the result says neither."""
    blocks: list[Block] = [Prose(text=clean(part.words)) for part in (noise, published) if part and part.words]
    rows = [
        (clean(part), covered, clean(why))
        for parts, covered in ((published.inside_bound, "yes"), (published.not_inside, "no"))
        for part, why in parts.items()
    ]
    if rows:
        note = f"{len(published.of_no_record)} further parts of result.json depend on no record"
        titles = columns("part", "covered", "why", code=("part",))
        blocks.append(Table(caption="Parts of this folder, by the bound", columns=titles, rows=tuple(rows), note=note))
    return Section(anchor="published", title="What the bound covers", blocks=tuple(blocks)) if blocks else None
