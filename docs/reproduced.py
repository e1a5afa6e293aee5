"""Writes the pages of reproduced tables from the finished rows in docs/results/data; reads no data and trains nothing.

    python docs/reproduced.py           all pages
    python docs/reproduced.py --check   says which pages are not what their rows give, and fails where any is

A row comes there by `dpzv-audit reproduce TABLE --rows docs/results/data`.
"""

import html
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:] = [place for place in sys.path if Path(place).resolve() != DOCS]  # docs/attacks would pass for the package

from dpzv_audit.reproduce import TABLES, KeptRows, described, kept_result  # noqa: E402
from dpzv_audit.reproduce.kept import Made, whole_setting  # noqa: E402
from dpzv_audit.reproduce.pretrained import PACKAGE, OnText  # noqa: E402
from dpzv_audit.reproduce.words import page  # noqa: E402
from reports.tabular import paper_figures  # noqa: E402

RESULTS = DOCS / "results"
ROWS = RESULTS / "data"
COMMAND = """
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


def written(name: str) -> dict[Path, str]:
    """Return the page of a table and its figures by the paths of their files."""
    table = TABLES[name]
    result = described(table, kept_result(table, ROWS))
    title, _, body = page(result).partition("\n")
    files = {}
    pictures = []
    for figure, drawn in paper_figures(result).items():
        path = RESULTS / f"{name}{'' if figure == 'figure' else f'-{figure}'}.svg"
        shown = re.search(r'aria-label="(.*?)"', drawn)
        pictures.append(f"![{html.unescape(shown[1]) if shown else figure}]({path.name})\n")
        files[path] = drawn
    there = [item for item in table.items if item.label not in result.skipped]
    made = KeptRows(ROWS, name).made(there, whole_setting(table))
    needs = ", needs transformers" if any(getattr(item, "encoder", None) for item in table.items) else ""
    needs = f", needs {PACKAGE}" if any(isinstance(item, OnText) for item in table.items) else needs
    how, place = f"slow small on data with --epochs 1 --trials 1 --records 500{needs}", "data"
    clothes = [getattr(item, "dataset", {}).get("name") == "fashion-mnist" for item in table.items]
    if any(clothes) and not all(clothes):
        how += " --row digits"
    if all(clothes):
        how = "elsewhere, tests/mechanisms/defences/test_private_labels.py tries its rule on Debian's data set"
        place = "/usr/share/datasets"
    parts = [
        title,
        COMMAND.format(name=name, how=how, place=place),
        body.strip("\n"),
        "",
        *pictures,
        made_in_words(made, len(table.items)),
        "",
    ]
    return {RESULTS / f"{name}.md": "\n".join(parts), **files}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return how many files are not as they should be."""
    stale = 0
    for name in sorted(folder.name for folder in ROWS.iterdir() if folder.is_dir()):
        for path, text in written(name).items():
            if path.exists() and path.read_text("utf-8") == text:
                continue
            stale += 1
            print(path.relative_to(RESULTS.parents[1]))
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    return stale if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
