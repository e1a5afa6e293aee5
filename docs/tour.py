"""Runs the commands of the pages in fresh folders, and writes what they print back beside them.

    python docs/tour.py                        all pages, ten minutes
    python docs/tour.py README.md docs/ci.md   these alone

Columns, seeds and versions are those of the pages; `docs/blocks.py` says which commands are run.
"""

import sys
import tempfile
from pathlib import Path

from blocks import ROOT, pages, refreshed


def main(names: list[str]) -> None:
    """Refresh the pages with these names, or all."""
    for page in [Path(name).resolve() for name in names] or pages():
        with tempfile.TemporaryDirectory() as name:
            page.write_text(refreshed(page, Path(name)), encoding="utf-8")
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
