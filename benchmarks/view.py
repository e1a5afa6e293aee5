"""How long the page of a thousand runs takes: from the start of `dpzv-audit view` to a list that is drawn, and written.

The runs are copies of one small attack's result with seeds and dates of their own. The page is opened in a headless
Chromium that runs already, where there is one. Times are by the clock, the least of a few turns: a user waits that
long, and all of it is the work of one process after the other.

Run: OMP_NUM_THREADS=1 python benchmarks/run.py view
"""

import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from ratios import Row

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 2.0
"""A thousand runs open in at most so long."""
RUNS = 1000
TOOL = (sys.executable, "-m", "dpzv_audit")
ATTACK = (*TOOL, "attack", "--attack", "label_direct", "--trials", "2", "--epochs", "1", "--runs", "100", "--quiet")


def rows(*, quick=False):
    """The seconds until a list is drawn in a browser, and until the page is written, over what was promised."""
    if find_spec("plotly") is None:
        reason = "plotly is not installed"
        yield Row(what=f"{RUNS:,} runs", ours=reason, beside=f"{SECONDS:g} s", ratio=None, promised=1.0)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = copies(Path(scratch))
        size = sum(path.stat().st_size for path in folder.rglob("result.json")) / 1e6
        what = f"{RUNS:,} runs, {size:.0f} MB"
        turns = 1 if quick else 3
        opened = min(listed(folder, Path(scratch) / f"profile{turn}") for turn in range(turns))
        yield _row(f"{what}: listed in a browser", opened)
        written = min(exported(folder, Path(scratch) / f"page{turn}") for turn in range(turns))
        yield _row(f"{what}: written with --export, and the page of each", written, promised=False)


def _row(what, seconds, *, promised=True):
    if seconds is None:
        return Row(what=what, ours="no Chromium found", beside=f"{SECONDS:g} s", ratio=None)
    limit = 1.0 if promised else None
    return Row(what=what, ours=f"{seconds:.2f} s", beside=f"{SECONDS:g} s", ratio=seconds / SECONDS, promised=limit)


def copies(scratch):
    """Return a folder of runs that differ in their seeds and dates alone."""
    done = subprocess.run([*ATTACK, "--out", str(scratch / "one")], capture_output=True, text=True, check=True)
    result = json.loads((Path(done.stdout.strip()) / "result.json").read_text("utf-8"))
    for place in range(RUNS):
        folder = scratch / "runs" / f"202611{1 + place // 40:02}-{place % 40:06}-attack-dpzv-digits-seed{place}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result | {"seed": place}, indent=2), "utf-8")
    return scratch / "runs"


def listed(folder, profile):
    """Return the seconds from the start of the command to a drawn list of all runs; None without a browser."""
    sys.path.insert(0, str(ROOT))
    from tests.helpers.chromium import CHROMIUM, browser

    if CHROMIUM is None:
        return None
    with browser(profile) as tab:
        began = time.perf_counter()
        command = [*TOOL, "view", str(folder), "--no-browser", "--quiet"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                tab.open(server.stdout.readline().strip())
                seconds = time.perf_counter() - began
                if tab.js("document.querySelectorAll('.list tbody tr').length") != RUNS:
                    raise RuntimeError("not all runs are listed")
            finally:
                server.terminate()
    return seconds


def exported(folder, page):
    """Return the seconds in which the command writes the page, with that of every run."""
    began = time.perf_counter()
    subprocess.run([*TOOL, "view", str(folder), "--export", str(page), "--quiet"], capture_output=True, check=True)
    return time.perf_counter() - began
