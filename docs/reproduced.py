"""Writes the pages of reproduced tables from the finished rows in docs/results/data; reads no data and trains nothing.

    python docs/reproduced.py           all pages
    python docs/reproduced.py --check   says which pages are not what their rows give, and fails where any is

A row comes there by `dpzv-audit reproduce TABLE --rows docs/results/data`.
"""

import html
import re
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:] = [place for place in sys.path if Path(place).resolve() != DOCS]  # docs/attacks would pass for the package

from dpzv_audit.reproduce import TABLES, KeptRows, described, kept_result  # noqa: E402
from dpzv_audit.reproduce.kept import Made, whole_setting  # noqa: E402
from dpzv_audit.reproduce.pretrained import PACKAGE, OnText  # noqa: E402
from dpzv_audit.reproduce.words import filled, page  # noqa: E402
from dpzv_audit.results import PaperFigure  # noqa: E402
from reports.tabular import paper_figure, paper_figures  # noqa: E402

RESULTS = DOCS / "results"
ROWS = RESULTS / "data"
OPENINGS = tomllib.loads((RESULTS / "openings.toml").read_text("utf-8"))
COMMAND = """\
<!-- run: {how} -->
```sh
dpzv-audit reproduce {name} --data-dir {place} --rows docs/results/data
```
"""


def made_in_words(made: list[Made], rows: int) -> str:
    """Return how many of its `rows` a page has, and when, by which commits and in how much time they were made."""
    dates = sorted({each.date for each in made})
    commits = ", ".join(sorted({each.commit or "unknown" for each in made}))
    seconds = [each.seconds for each in made if each.seconds is not None]
    took = f", in {sum(seconds) / 60:,.0f} minutes of one core" if len(seconds) == len(made) else ""
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{len(made)} of {rows} rows are there, made {when} by commit {commits}{took}."


def command(name: str, when: str) -> str:
    """Return the block of the command that makes a table, below a comment that says when it is tested, and how."""
    table = TABLES[name]
    needs = ", needs transformers" if any(getattr(item, "encoder", None) for item in table.items) else ""
    needs = f", needs {PACKAGE}" if any(isinstance(item, OnText) for item in table.items) else needs
    data = " on data" if any(item.dataset for item in table.items) else ""
    how, place = f"{when}{data} with --epochs 1 --trials 1 --records 500{needs}", "data"
    clothes = [getattr(item, "dataset", {}).get("name") == "fashion-mnist" for item in table.items]
    if any(clothes) and not all(clothes):
        how += " --row digits"
    if all(clothes):
        how = "elsewhere, tests/mechanisms/defences/test_private_labels.py tries its rule on Debian's data set"
        place = "/usr/share/datasets"
    return COMMAND.format(name=name, how=how, place=place)


def written(name: str) -> dict[Path, str]:
    """Return a page of `openings.toml` and its figures by the paths of their files."""
    opening = OPENINGS[name]
    tables = [TABLES[table] for table in opening["tables"]]
    kept = [kept_result(table, ROWS) for table in tables]
    rows = [(row.label, {**row.to_json(), "row": row}) for result in reversed(kept) for row in result.rows]
    found = filled(opening["found"], {"row": dict(rows)})
    headings = [f"# {opening['title']}", *(f"## {head}" for head in opening.get("heads", ()))]
    files, parts, about = {}, [], ""
    for heading, table, of_table in zip(headings, tables, kept, strict=True):
        result = described(table, of_table)
        pictures = []
        for figure, drawn in paper_figures(result).items():
            path = RESULTS / f"{table.name}{'' if figure == 'figure' else f'-{figure}'}.svg"
            shown = re.search(r'aria-label="(.*?)"', drawn)
            pictures.append(f"![{html.unescape(shown[1]) if shown else figure}]({path.name})")
            files[path] = drawn
        if result.about == about:
            result = result.model_copy(update={"about": ""})
        about = about or result.about
        there = [item for item in table.items if item.label not in (result.skipped or {})]
        made = KeptRows(ROWS, table.name).made(there, whole_setting(table))
        parts.append(page(result, heading=heading, opening="" if parts else found, pictures=pictures))
        parts += [command(table.name, opening.get("when", "slow small")), made_in_words(made, len(table.items)), ""]
    return {RESULTS / f"{name}.md": "\n".join(parts), **files}


def alarms() -> dict[Path, str]:
    """Return the page of false alarms with its figure, drawn from the page's second table."""
    page = DOCS / "results" / "false-alarms.md"
    text = page.read_text("utf-8")
    table = text.partition("| attack, adversary |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    shares = {name: int(below) / int(tested) for name, _, _, _, tested, below, _ in rows}
    figure = PaperFigure(
        kind="bars",
        subject="Share of negative controls with p < 0.05, by attack",
        across="share of controls with p < 0.05",
        ticks={name: place for place, name in enumerate(shares)},
        series={"controls": [[place, share] for place, share in enumerate(shares.values())]},
        levels={"at chance": 0.05},
    )
    drawn = paper_figure("false-alarms", figure)
    shown = re.search(r'aria-label="(.*?)"', drawn)
    assert shown is not None
    alt = f"![{html.unescape(shown[1])}](false-alarms.svg)"
    return {
        RESULTS / page.name: re.sub(r"!\[.*?\]\(false-alarms.svg\)", alt, text),
        RESULTS / "false-alarms.svg": drawn,
    }


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return how many files are not as they should be."""
    stale = 0
    for files in [*map(written, OPENINGS), alarms()]:
        for path, text in files.items():
            if path.exists() and path.read_text("utf-8") == text:
                continue
            stale += 1
            print(path.relative_to(RESULTS.parents[1]))
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    return stale if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
