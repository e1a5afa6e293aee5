"""Runs the commands of the pages in fresh folders, writes what they print back beside them, draws the README's picture.

    python docs/tour.py                        all pages, ten minutes
    python docs/tour.py README.md docs/ci.md   these alone

Columns, seeds and versions are those of the pages; `docs/blocks.py` says which commands are run.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from blocks import ROOT, pages, refreshed

HERE = Path(__file__).resolve().parent


def main(names: list[str]) -> None:
    """Refresh the pages with these names, or all."""
    for page in [Path(name).resolve() for name in names] or pages():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            page.write_text(refreshed(page, folder), encoding="utf-8")
            if page == ROOT / "README.md":
                (run,) = folder.glob("dpzv-runs/*-attack-dpzv-digits-label_direct-seed0")
                subprocess.run([sys.executable, HERE / "images/draw.py", run, HERE / "images/claim.svg"], check=True)
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
