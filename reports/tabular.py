"""Heads and figures of results that are tables: planted mechanisms, bounds by accountant, tables of papers."""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap

from dpzv_audit.base.grouping import grouped
from dpzv_audit.results import AccountResult, PaperFigure, PlantedResult, PlantedRow, ReproduceResult

from .answer import answer_of, epsilons
from .curves import curves_figure, rounds_figure
from .document import HEADING, Answer, Judgement, NextStep, Row
from .figures import bars_figure, short
from .head import FALSE_OR_UNPROVEN, RELATIONS, claim_in_words, head_of, judged, no_bound, typed
from .svg import ACCENT, DASHED, INK, LINES, MUTED, Chart
from .text import as_claimed, attacker, capitalized, clean, lower_bound, percent, upper_bound, within
from .verdicts import notes_on, words_of

_LEAST_RATIO = 0.1
"""A bound below this share of its claim is drawn there: an axis of powers has no zero."""
_MOST_NAMES = 5
_MOST_ROWS = 12
"""Rows of a reproduced table that an answer shows."""
_LONGEST_NUMBER = 16
_FILE = re.compile(r"[a-z]+(-[a-z]+)*")
_ROOM = 76
_LABEL = 34
"""Columns of characters for a reproduced table on a terminal, and of these at most for the name of a row."""


def _listed(names: Iterable[str]) -> str:
    """Return the names in words, "a, b and c", of many the first."""
    shown = [*map(clean, names)]
    if len(shown) > _MOST_NAMES:
        shown = [*shown[:_MOST_NAMES], f"{len(shown) - _MOST_NAMES} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


@head_of.register
def _(result: PlantedResult) -> Judgement:
    wrong = [row for row in result.rows if not row.as_expected]
    right = len(result.rows) - len(wrong)
    about = f"{right} of {len(result.rows)} planted mechanisms got the verdict they must get"
    if len(result.rows) == 1:
        (row,) = result.rows
        right_one = f", and {_expected(row)} is right" if wrong else ""
        about = f"planted:{clean(row.name)} is {clean(row.verdict)}{right_one}"
    verdicts = grouped((clean(row.verdict), row.name) for row in result.rows if row.as_expected)
    why = ", ".join(f"{len(names)} {verdict}" for verdict, names in verdicts.items())
    notes = ["Not tested: your mechanisms and trainings. This run checks the audit itself."]
    if not wrong:
        step = NextStep("Audit your mechanism the same way", command="dpzv-audit audit mechanism pkg.mod:factory")
        why = f"The right verdict is known of each: {why}." if why else "No mechanism was audited."
        if len(result.rows) == 1:
            lower, claimed = lower_bound(result.rows[0].empirical_lower), as_claimed(result.rows[0].claimed)
            why = f"The audit shows ε of at least {lower} where {claimed} is claimed."
        return Judgement("as expected", about=about, why=why, notes=notes, step=step)
    why = "; ".join(
        f"{clean(row.name)} got {clean(row.verdict)}, and {_expected(row)} is right" for row in wrong[:_MOST_NAMES]
    )
    step = NextStep("Do not rely on audits here before this is explained. Leave --runs out, or give more of them.")
    return Judgement("not as expected", about=about, why=f"{why}.", alarming=True, notes=notes, step=step)


def _expected(row: PlantedRow) -> str:
    return " or ".join(map(clean, row.expected))


@answer_of.register
def _(result: PlantedResult) -> Answer:
    judgement = head_of(result)
    if len(result.rows) == 1:
        (row,) = result.rows
        whom = attacker(row.adversary)
        return Answer(
            judgement=judgement,
            subject=f"{clean(row.name)}: {clean(row.bug)}. Attacker: {whom}.",
            facts={
                "claimed": f"ε ≤ {as_claimed(row.claimed)} (δ = {as_claimed(row.delta)})",
                "measured": _measured(row, result.confidence),
                "proven": f"ε ≤ {upper_bound(row.upper, row.claimed)}, of what its maker states"
                if row.upper is not None
                else f"theory gives no sound bound (gap {clean(row.gap)})",
            },
        )
    rows = sorted(result.rows, key=lambda row: row.as_expected)
    shown = grouped((_got(row), f"{clean(row.name)} {lower_bound(row.empirical_lower, row.claimed)}") for row in rows)
    return Answer(
        judgement=judgement,
        caption="Verdict",
        rows=[{"verdict": verdict, "mechanisms": ", ".join(names)} for verdict, names in shown.items()],
        more="Each number is the ε that the audit shows at least",
    )


def _got(row: PlantedRow) -> str:
    """Return the verdict on a mechanism, and the right one where it is another."""
    verdict = clean(row.verdict)
    return verdict if row.as_expected else f"{verdict} (right: {_expected(row)})"


def _measured(row: PlantedRow, confidence: float | None) -> str:
    if row.empirical_lower is None:
        return "nothing"
    shown = lower_bound(row.empirical_lower, row.claimed)
    return f"ε ≥ {shown}{'' if confidence is None else f', {percent(confidence)} confidence'}"


def planted_figure(rows: Sequence[PlantedRow]) -> str:
    """Return what the audit shows of each mechanism and what theory proves as SVG; "" without rows.

    Both stand over the claim: right of the dashed line the audit contradicts it. The axis is logarithmic.
    """
    known = [row for row in rows if within(row.claimed, 1e-100, 1e100) is not None]
    if not known:
        return ""
    chart = Chart("ε over the claimed ε; dashed: the claim", "", "log", bottom=len(known) - 0.4, top=-0.6)
    chart.settings |= {"yticks": range(len(known)), "yticklabels": [short(row.name, 26) for row in known]}
    chart.level(None, 1.0, upright=True, color=MUTED, ls="--", lw=1.0)
    values = {
        "shown by the audit, at least": [row.empirical_lower for row in known],
        "theory, of what its maker states, at most": [row.upper for row in known],
    }
    looks = ({"color": ACCENT, "marker": "o"}, {"color": INK, "marker": "D", "mfc": "none"})
    for (name, bounds), look in zip(values.items(), looks, strict=True):
        ratios = [(place, _ratio(bound, row)) for place, (bound, row) in enumerate(zip(bounds, known, strict=True))]
        points = [(place, ratio) for place, ratio in ratios if ratio is not None]
        if points:
            chart.line(name, points, upright=True, ls="", ms=5.0, **look)
    texts = (
        f"{clean(row.name)} claims {as_claimed(row.claimed)}, shown {lower_bound(row.empirical_lower, row.claimed)}, "
        f"theory {upper_bound(row.upper, row.claimed)}"
        for row in known
    )
    alt = f"Epsilon of planted mechanisms: {'; '.join(texts)}"
    return chart.draw("planted", alt, 1.0 + 0.27 * len(known), handlelength=1.0)


def _ratio(bound: float | None, row: PlantedRow) -> float | None:
    known = within(bound, 0.0, 1e100)
    return None if known is None else max(known / row.claimed, _LEAST_RATIO)


@head_of.register
def _(result: AccountResult) -> Judgement:
    privacy = result.privacy
    verdict = judged(privacy)
    notes = [*notes_on(verdict, []), *_unproven(result)]
    if verdict is not None:
        alarming = verdict.word in FALSE_OR_UNPROVEN
        step = _noise_for(result) if alarming else _audit_of(result)
        return Judgement(
            words_of(verdict), claim_in_words(privacy), clean(verdict.why), alarming=alarming, notes=notes, step=step
        )
    notes.insert(0, "Not tested: nothing was run. The bounds are on what is stated here.")
    relation = RELATIONS.get(privacy.neighbours or "", "")
    against = ", ".join(filter(None, [f"against {attacker(privacy.adversary or 'the adversary')}", relation]))
    if privacy.upper is None:
        why = no_bound(privacy)
        return Judgement("no sound bound", f"ε {against}", f"{capitalized(why)}.", notes=notes)
    delta = "" if privacy.delta is None else f" at δ = {as_claimed(privacy.delta)}"
    about = f"ε ≤ {upper_bound(privacy.upper, privacy.claimed)}{delta} {against}"
    return Judgement("bounded", about, "No ε is claimed; theory proves this one.", notes=notes, step=_audit_of(result))


@answer_of.register
def _(result: AccountResult) -> Answer:
    facts = epsilons(result.privacy, None)
    return Answer(
        judgement=head_of(result),
        subject=" ".join(map(clean, result.sentences[:1])),
        facts={name: text for name, text in facts.items() if name != "measured"},
    )


def _unproven(result: AccountResult) -> list[str]:
    """Return against whom nothing is proven under the page's relation, as a note, with the gaps."""
    own = [bound for bound in result.bounds if bound.neighbours == result.privacy.neighbours]
    proven = {bound.adversary for bound in own if bound.sound and bound.epsilon is not None}
    gaps = grouped((bound.adversary, bound.gaps) for bound in own if bound.adversary not in proven)
    others = [name for name in gaps if name != result.privacy.adversary]
    if not others:
        return []
    names = dict.fromkeys(gap for name in others for each in gaps[name] for gap in each if gap != "no-accountant")
    return [f"Not proven: any ε against {_listed(others)} (gaps: {_listed(names) or 'no-accountant'})."]


_ASKED = {"--sigma", "--noise-multiplier", "--epsilon", "--delta", "--adversary", "--neighbours", "--also", "--out"}
"""Flags of `account` that `calibrate` does without, or gets with other values."""
_SWITCHES = {"--all", "--fast", "--explain"}
_AUDITED = {"--epsilon", "--delta", "--calibration", "--sigma", "--clip", "--sample-rate", "--set", "--dataset"}
"""Flags of a method's account that `audit method` takes too: with others it would audit another claim."""


def _noise_for(result: AccountResult) -> NextStep:
    """Return how to make a claim true: the noise that it needs, or a number that is proven."""
    privacy = result.privacy
    if privacy.upper is None:
        closed = result.method and "server-state" in (privacy.gap or "")
        return NextStep(
            "Do not state this epsilon before its gaps are closed"
            + (". dpzv-sound closes this one" if closed else "."),
            command="dpzv-audit account --method dpzv-sound" if closed else "",
        )
    kept = _without((result.command_line or [])[2:], _ASKED, _SWITCHES)
    values = {"epsilon": privacy.claimed, "delta": privacy.delta}
    claim = [f"--{name}={typed(value)}" for name, value in values.items() if value is not None]
    claim += [f"--adversary={privacy.adversary}", f"--neighbours={privacy.neighbours}"]
    command = shlex.join(["dpzv-audit", "calibrate", *kept, *map(clean, claim)])
    instead = f"State ε ≤ {upper_bound(privacy.upper, privacy.claimed)} instead"
    return NextStep(f"{instead}, or find the noise that the claim needs", command=command)


def _audit_of(result: AccountResult) -> NextStep:
    """Return how to test what theory proves: what runs may release more than is stated."""
    words = [*map(clean, result.command_line or []), ""]
    subject = ["system", "our_vfl:train"]
    if "--defence" in words:
        subject = ["defence", words[words.index("--defence") + 1]]
        subject += [word for flag, value in pairwise(words) if flag == "--defence-set" for word in (flag, value)]
    elif result.method:
        subject = ["method", clean(result.method)]
        subject += [word for flag, value in pairwise(words) if flag in _AUDITED for word in (flag, value)]
    command = shlex.join(["dpzv-audit", "audit", *subject])
    return NextStep("Audit what runs, which may release more than is stated", command=command)


def account_figures(result: AccountResult) -> dict[str, str]:
    """Return the drawings of `account` by name: epsilon by rounds, and trade-off curves; those that show anything."""
    privacy, figures = result.privacy, result.figures
    first = next(iter(result.bounds), None)
    relation, delta = ("", None) if first is None else (first.neighbours, first.delta)
    subject = ", ".join(
        [clean(result.method) or "one channel", relation, *([] if delta is None else [f"delta {delta:g}"])]
    )
    alpha = figures.tradeoff.get("alpha", [])
    curves = {
        short(name, 90): curve
        for name, curve in figures.tradeoff.items()
        if name != "alpha" and len(curve) == len(alpha)
    }
    rounds = {short(name, 90): points for name, points in figures.rounds.items()}
    strong = privacy.adversary or "client"
    drawings = {
        "epsilon-rounds": rounds_figure(rounds, subject=subject, strong=_naming(strong, rounds)),
        "trade-off": curves_figure(alpha, curves, subject=subject, strong=_naming(strong, curves)),
    }
    return {name: drawing for name, drawing in drawings.items() if drawing}


def _naming(adversary: str, lines: Iterable[str]) -> str:
    """Return the line that an adversary stands on; several share one."""
    return next((name for name in lines if adversary in name.split(", ")), "")


@head_of.register
def _(result: ReproduceResult) -> Judgement:
    name = clean(result.table)
    shown, whole = len(result.rows), max(result.rows_of_table, len(result.rows))
    short_of = [f"{shown} of {whole} rows"] if shown < whole else []
    if result.epochs < result.paper_epochs:
        short_of.append(f"{result.epochs} of {result.paper_epochs} epochs")
    if result.records is not None:
        short_of.append(f"{result.records:,} training records of each data set")
    about = f"{shown} of {whole} rows of {name}, {clean(result.source)}"
    notes = [f"Not tested: {name} at full length. This run has {_listed(short_of)}."] if short_of else []
    notes += [f"Not tested: {clean(label)}: {clean(why)}." for label, why in [*result.skipped.items()][:_MOST_NAMES]]
    if result.seeds == 1:
        notes.append("Warning: one seed does not show how far other seeds lie.")
    typed_words = (result.command_line or [])[2:]
    words = _without(typed_words, {*_SHORTER, "--seed"}) or [name]
    if not short_of:
        words += ["--seed", str(result.seed + 1)]
    elif result.epochs < result.paper_epochs and typed_words and not any(map(_EPOCHS, typed_words)):
        words += ["--epochs", str(result.paper_epochs)]
    command = ["dpzv-audit", "reproduce", *words]
    step = NextStep("Run the whole table" if short_of else "Repeat it with another seed", command=shlex.join(command))
    word = "shortened run" if short_of else "full run"
    return Judgement(word, about, clean(result.sentence), notes=notes, step=step)


def _without(words: Sequence[str], flags: Collection[str], switches: Collection[str] = ()) -> list[str]:
    """Return the words of a command line without `flags`, which have a value, and `switches`, which have none."""
    kept = []
    rest = iter(map(clean, words))
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in flags:
            if not equals:
                next(rest, None)
        elif word not in switches:
            kept.append(word)
    return kept


_EPOCHS = re.compile("--epochs(=|$)").match
_SHORTER = ("--epochs", "--trials", "--records", "--row", "--out")
"""Flags that make a table shorter."""


@answer_of.register
def _(result: ReproduceResult) -> Answer:
    rows = _fitting(result)
    left = [f"{len(rows) - _MOST_ROWS} more rows"] if len(rows) > _MOST_ROWS else []
    if rows and len(rows[0]) < len(result.columns):
        left.append("more columns")
    return Answer(
        judgement=head_of(result),
        subject=f"{clean(result.table)}: {clean(result.scope)}" if result.scope else "",
        facts={"found": clean(result.sentence)} if result.sentence else {},
        caption=f"Rows of {clean(result.table)}",
        rows=rows[:_MOST_ROWS],
        more=f"table.md has {' and '.join(left)}" if left else "",
    )


def _fitting(result: ReproduceResult) -> list[Row]:
    """Return the rows of the table with the columns for which a terminal has room; the first is called "row".

    A measurement goes without the reach of its seeds, and a column of dashes alone is left out.
    """
    table = [[clean(cell).partition(";")[0] for cell in cells] for cells in result.cells]
    kept: list[int] = []
    room = _ROOM
    for place, title in enumerate(map(clean, result.columns)):
        texts = [cells[place] for cells in table if place < len(cells)]
        wide = max(map(len, texts), default=0)
        if place:
            heading = wrap(title, max(wide, HEADING), break_long_words=False)
            wide = max(wide, *map(len, heading or [""]))
        else:
            wide = min(wide, _LABEL)
        if (not place or {*texts} != {"-"}) and wide + 2 <= room:
            kept.append(place)
            room -= wide + 2
    titles = ["row", *(clean(result.columns[place]) for place in kept[1:])]
    places = [cells for cells in table if 0 < len(cells) == len(result.columns)]
    return [dict(zip(titles, (cells[place] for place in kept), strict=True)) for cells in places]


def table_rows(result: ReproduceResult) -> list[Row]:
    """Return the rows of a reproduced table by the titles of its columns."""
    titles = [*map(clean, result.columns)]
    return [dict(zip(titles, cells, strict=True)) for cells in result.cells if len(cells) == len(titles)]


def number_columns(result: ReproduceResult) -> list[str]:
    """Return the titles of the columns of short numbers; others fold."""
    rows = table_rows(result)
    names = [*map(clean, result.columns)][1:]
    return [name for name in names if all(len(str(row[name])) <= _LONGEST_NUMBER for row in rows)]


def paper_figures(result: ReproduceResult) -> dict[str, str]:
    """Return the figures of a reproduced table as SVG by name, "" for what cannot be drawn.

    A name is that of a file: one of anything but letters and hyphens is none of ours.
    """
    table = "".join(char if char.isalnum() else "-" for char in result.table.lower() if char.isascii())
    return {
        name: paper_figure(table if name == "figure" else f"{table}-{name}", figure) if _FILE.fullmatch(name) else ""
        for name, figure in result.figures.items()
    }


_COLOURS = (INK, ACCENT, MUTED)
_LONGEST_NAME = 80


def paper_figure(name: str, figure: PaperFigure) -> str:
    """Return a figure of a reproduced table as SVG, whose ids `name` prefixes; "" where nothing can be drawn."""
    series = {short(title, _LONGEST_NAME): _drawable(figure, points) for title, points in figure.series.items()}
    series = {title: points for title, points in series.items() if points}
    if not series:
        return ""
    draw = {"lines": _lines, "marks": _marks, "intervals": _intervals, "bars": _bars}[figure.kind]
    return draw(name, figure, series)


_Series = Mapping[str, Sequence[tuple[float, ...]]]


def _drawable(figure: PaperFigure, points: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the points that the figure has a place for; a file may hold any."""
    length = 4 if figure.kind == "intervals" else 2
    least = 0.0 if figure.scale == "log" else -math.inf
    return [tuple(point) for point in points if len(point) == length and point[0] > least]


def _folded(label: str) -> str:
    """Return the name of a line as a legend has room for it."""
    return "\n".join(wrap(label, 46, break_on_hyphens=False))


def _named(label: str, value: float) -> str:
    """Return the name of a line with its last value."""
    return _folded(f"{label}  {value:.1f}")


def _lines(name: str, figure: PaperFigure, series: _Series) -> str:
    """Draw lines by their names and last values, and levels below them."""
    chart = Chart(short(figure.across, 60), short(figure.up, 60), figure.scale)
    if figure.ticks:
        chart.settings |= {
            "xticks": [*figure.ticks.values()],
            "xticklabels": [short(tick, 12) for tick in figure.ticks],
        }
    for index, (label, value) in enumerate(figure.levels.items()):
        look = {"color": INK, "ls": LINES[1 + index % (len(LINES) - 1)], "lw": 1.0}
        chart.level(_named(short(label, _LONGEST_NAME), value), value, **look)
    for index, (label, points) in enumerate(series.items()):
        turn, place = divmod(index, len(LINES))
        marker = "osD^"[turn % 4] if len(points) < 8 else ""
        look = {"color": _COLOURS[(index + turn) % 3], "ls": LINES[place], "lw": 1.5, "marker": marker}
        chart.line(_named(label, points[-1][1]), points, ms=4, **look)
    ends = "; ".join(f"{label} {points[-1][1]:.1f}" for label, points in series.items())
    rows = sum(1 + (len(label) > 42) for label in (*series, *figure.levels))
    return chart.draw(name, f"{figure.subject}. At the right end: {ends}", 2.8 + 0.2 * rows)


def _marks(name: str, figure: PaperFigure, series: _Series) -> str:
    """Draw a mark for each point, and levels."""
    chart = Chart(short(figure.across, 60), short(figure.up, 60), figure.scale)
    for label, value in figure.levels.items():
        chart.level(_folded(short(label, _LONGEST_NAME)), value, color=INK, ls=DASHED)
    faint = {short(label, _LONGEST_NAME) for label in figure.faint}
    for index, (label, points) in enumerate(series.items()):
        colour = MUTED if label in faint else ACCENT
        chart.line(_folded(label), points, color=colour, ls="", marker="os^xD"[index % 5], ms=5)
    lines = sum(_folded(label).count("\n") + 1 for label in (*series, *figure.levels))
    return chart.draw(name, figure.subject, 3.2 + 0.2 * lines)


def _intervals(name: str, figure: PaperFigure, series: _Series) -> str:
    """Draw intervals on one scale beside their row's name: the first series filled, others open; levels dashed."""
    rows = {place: short(label, _LONGEST_NAME) for label, place in figure.ticks.items()}
    chart = Chart(short(figure.across, 60), "", bottom=len(rows) - 0.4, top=-0.4)
    chart.settings |= {"xlim": (-0.02, 1.02), "yticks": [*rows]}
    chart.settings["yticklabels"] = ["\n".join(wrap(label, 26)) for label in rows.values()]
    for value in figure.levels.values():
        chart.level(None, value, upright=True, color=MUTED, ls="--", lw=1.0)
    for index, (label, points) in enumerate(series.items()):
        look = {"color": INK, "mfc": "none"} if index else {"color": ACCENT}
        placed = [(place + 0.2 * index, *values) for place, *values in points]
        chart.line(label, placed, upright=True, ls="", marker="oDs"[index % 3], ms=4.5, **look)
    texts = []
    for place, row in rows.items():
        values = [
            f"{label} {point[1]:.3f}" for label, points in series.items() for point in points if point[0] == place
        ]
        texts.append(f"{row}: {', '.join(values)}")
    levels = "".join(f" {capitalized(clean(label))}: {value:.3f}." for label, value in figure.levels.items())
    legend = {"ncols": len(series), "columnspacing": 0.8, "handlelength": 1.0, "handletextpad": 0.4}
    return chart.draw(name, f"{figure.subject}.{levels} {'; '.join(texts)}", 0.5 * len(rows) + 1.0, **legend)


def _bars(name: str, figure: PaperFigure, series: _Series) -> str:
    """Draw a bar for each row."""
    rows = {place: short(label, _LONGEST_NAME) for label, place in figure.ticks.items()}
    (points, *_) = series.values()
    bars = {rows[place]: (value, f" {value:.2f}") for place, value in points if place in rows and value >= 0.0}
    if not bars:
        return ""
    level = next(iter(figure.levels.values()), None)
    return bars_figure(name, f"{figure.subject}. ", bars, level=level, xlabel=short(figure.across, 60))
