"""Tables of the site sort by a click on a column's head, in a real browser."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "sort.js"
ROWS = (("b, epsilon 10", "1,012"), ("a", "-"), ("b, epsilon 2", "-0.5 [1, 2]"), ("c", "9.5%"), ("d", "3e34"))


def shown(folder, clicks):
    """Return the second cells of a table and the state of its heads after `clicks` on columns, in a browser."""
    rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in ROWS)
    pressed = "".join(f"document.querySelectorAll('th button')[{column}].click();" for column in clicks)
    page = folder / "page.html"
    page.write_text(
        f"<article><table><thead><tr><th>row</th><th>value</th></tr></thead><tbody>{rows}</tbody></table></article>"
        f"<script>{SCRIPT.read_text()}</script><script>{pressed}</script>"
    )
    start = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*start, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return re.findall(r"<td>[^<]*</td><td>([^<]*)</td>", done.stdout), re.findall(r'aria-sort="(\w+)"', done.stdout)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_numbers_sort_from_the_largest_and_back_and_what_has_none_stays_last(tmp_path):
    down = ["3e34", "1,012", "9.5%", "-0.5 [1, 2]", "-"]
    assert shown(tmp_path, [1]) == (down, ["descending"])
    assert shown(tmp_path, [1, 1]) == ([*reversed(down[:-1]), "-"], ["ascending"])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_words_sort_with_the_numbers_in_them(tmp_path):
    assert shown(tmp_path, [1, 0]) == (["-", "-0.5 [1, 2]", "1,012", "9.5%", "3e34"], ["ascending"])
