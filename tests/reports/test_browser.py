"""Pages of every kind in a real headless Chromium, at two widths and in both colour schemes: one browser for all."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.cli import main
from dpzv_audit.games.planted import PLANTED
from dpzv_audit.reproduce import TABLES
from dpzv_audit.results import read
from reports import svg
from reports.content import report_content
from reports.matrix import DARK, shade_of
from reports.render import to_html

from .conftest import RESULTS, planted_row
from .test_faces import PICTURE, file_of, random_claim

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")
WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")
TALLEST = 5000
"""Pixels of a page about an attack at the smaller width."""
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --virtual-time-budget=8000"
)
FRAME = '<iframe style="border:0;height:900px;width:{width}px" srcdoc="{page}"></iframe>'
CLAIMS = """
[[claim]]
name = "a name that goes on and on without any room to break it anywhere: {long}"
scores = {{ in = "in.csv", out = "out.csv" }}
epsilon = 0.5
source = "<script>document.title = 'run'</script>"

[[claim]]
name = "theorem 5.1 against colluding clients"
method = "dpzv"
records = 60000
clients = 7
epsilon = 1.0
delta = 1e-3
adversary = "colluding-clients"
config = {{ batch_size = 128, epochs = 10 }}
"""
CELLS = [
    {
        "attack": attack,
        "adversary": "client",
        "method": method,
        "epsilon": 1.0 if method == "dpzv" else None,
        "state": "measured",
        "metric": "labels found",
        "success": success,
        "low": success - 0.02,
        "high": success + 0.02,
        "reference": 0.107,
        "trainings": 9,
        "clear": success > 0.2,
        "damage": max(0.0, success - 0.107) / 0.893,
        "control": 0.1,
        "controls_hold": True,
        "accuracy": 0.9,
        "run": f"cells/{attack}-{method}/report.html",
    }
    for attack, success in (("label_direct", 0.98), ("label_norm", 0.1), ("label_completion_active", 0.62))
    for method in ("dpzv", "syn-zoo-vfl", "compressed")
]
MATRIX = {"schema": "dpzv-audit/matrix/1", "dataset": "digits", "sentence": "9 cells measured.", "cells": CELLS}
ATTACKS = {"schema": "dpzv-audit/attacks/1", "method": "dpzv", "mounted": 9, "attacks": CELLS[:3], "confidence": 0.95}


def all_planted():
    """Return the result of all planted mechanisms, the last of which gets a wrong verdict."""
    numbers = {"claimed": 1.0, "lower": 7.9218, "upper": None, "expected": ["refuted"]}
    rows = [planted_row(name, **numbers, verdict="refuted") | {"bug": made.summary} for name, made in PLANTED.items()]
    rows[-1] |= {"verdict": "supported", "as_expected": False}
    return {**RESULTS["planted"], "rows": rows}


def long_table():
    """Return a reproduced table of 74 rows and 8 columns, with a figure of each kind."""
    table = TABLES["labels-digits"]
    cells = ["95.54 [92.79, 97.43]; 3 seeds 93.83 to 96.92", "-", "none (server-state; 67.74 without it)", "23.64"]
    row = [*cells, "91.43 (0.5)", "1,214.4", "search on MNIST"]
    labels = [item.label for item in table.items]
    lines, intervals = RESULTS["reproduce"]["figures"].values()
    series = [{label: [[x, 50.0 + x] for x in (1, 4, 8)] for label in labels[start::20]} for start in (0, 1)]
    bars = {"kind": "bars", "subject": "Peaks", "across": "peak", "levels": {"the model": 1.0}}
    figures = {
        "lines": {**lines, "scale": "log", "series": series[0], "levels": dict.fromkeys(labels[:4], 90.0)},
        "marks": {**lines, "kind": "marks", "series": series[1], "faint": labels[1:2]},
        "intervals": intervals,
        "bars": {**bars, "ticks": {"DPZV, in place (MeZO)": 0, "VAFL": 1}, "series": {"peak": [[0, 1.29], [1, 3.01]]}},
    }
    return {
        **RESULTS["reproduce"],
        "about": table.about,
        "columns": [heading for heading, _ in table.columns],
        "cells": [[label, *row] for label in labels],
        "rows": [{"label": label, "options": {"epochs": 20, "defences": [{"name": "label-rr"}]}} for label in labels],
        "figures": figures,
    }


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    np.savetxt(folder / "in.csv", rng.normal(1.0, 1.0, 1000))
    np.savetxt(folder / "out.csv", rng.normal(0.0, 1.0, 1000))
    (folder / "claims.toml").write_text(CLAIMS.format(long="x" * 100))
    main(["verify", str(folder / "claims.toml"), "--no-cache", "--quiet", "--out", str(folder / "runs")])
    (run,) = (folder / "runs").iterdir()
    return (run / "report.html").read_text()


def in_scheme(page, scheme):
    """Return a page as it is in a scheme where the browser's own is light."""
    return page if scheme == "light" else re.sub("prefers-color-scheme: ?dark", "prefers-color-scheme:light", page)


def looked_at(pages, folder):
    """Return what a browser says of pages in all widths and schemes, by (page, width, scheme), and its console."""
    places = [(name, width, scheme) for name in pages for width in WIDTHS for scheme in SCHEMES]
    frames = "".join(FRAME.format(width=w, page=html.escape(in_scheme(pages[name], s))) for name, w, s in places)
    path = folder / "harness.html"
    script = Path(__file__).with_name("look.js").read_text("utf-8")
    path.write_text(f'<!doctype html><meta charset="utf-8"><pre id="out"></pre>{frames}<script>{script}</script>')
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    text = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.DOTALL).group(1)
    by_place = dict(zip(places, json.loads(html.unescape(text)), strict=True))
    return by_place, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def reports(of_each_schema):
    """The contents of a page of each kind, by name."""
    unclaimed = {**of_each_schema["attack"], "privacy": {"gap": "no-noise", "bounds": []}}
    others = {**of_each_schema["attack"], "beside": [{**CELLS[0], "clients": [3]}, CELLS[1]]}
    more = {"attack without a claim": unclaimed, "attack beside others": others, "attacks": ATTACKS, "matrix": MATRIX}
    more |= {"all planted": all_planted(), "a long table": long_table()}
    contents = {name: report_content(*read(result)) for name, result in (of_each_schema | more).items()}
    claims = [random_claim(np.random.default_rng(place), place) for place in range(60)]
    return contents | {"many claims": report_content(file_of(claims), drawings=lambda key, draw: PICTURE)}


@pytest.fixture(scope="module")
def seen(verified, reports, tmp_path_factory):
    pages = {name: to_html(report) for name, report in reports.items() if name != "many claims"}
    pages |= {
        f"summary of {name}": to_html(reports[name], summary=True) for name in ("attack", "matrix", "many claims")
    }
    return looked_at(pages | {"verify": verified}, tmp_path_factory.mktemp("browser"))


def test_pages_say_nothing_to_the_console_and_follow_the_scheme(seen):
    pages, console = seen
    assert console == []
    for (_, width, scheme), page in pages.items():
        assert page["width"] == width
        assert page["background"] == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 22, 27)")


@pytest.mark.parametrize("fault", ["outside", "broken", "faint", "cut"])
def test_nothing_overflows_breaks_fades_or_is_cut(seen, fault):
    """Outside the page; a word broken inside; a contrast below 4.5 to 1; a label that leaves its figure."""
    assert {place: page[fault][:5] for place, page in seen[0].items() if page[fault]} == {}


def test_pages_are_as_wide_as_the_window_and_those_of_attacks_no_scroll_without_end(seen):
    for (name, width, _), page in seen[0].items():
        assert page["scroll"] <= width
        assert page["height"] > 800 or name.startswith("summary")
        if name.startswith("attack") and width == min(WIDTHS):
            assert page["height"] <= TALLEST, name


def test_every_page_has_a_figure_with_a_name(seen):
    for (name, _, _), page in seen[0].items():
        assert all(page["figures"])
        assert page["figures"] or name == "summary of many claims"


@pytest.mark.parametrize("size", ["A4", "Letter"])
@pytest.mark.parametrize("summary", [True, False], ids=["summary.html", "report.html in print"])
def test_each_kind_of_result_is_one_printed_page_to_sign(reports, size, summary, tmp_path):
    """All heads follow each other, each on a new page: one that needs two makes a page more."""
    pages = [to_html(report, summary=summary) for report in reports.values()]
    bodies = [re.search("<body(.*)</body>", page, re.DOTALL).group(1) for page in pages]
    assert all("<dt>Signature</dt>" in body for body in bodies)
    head = f"{pages[0].partition('</head>')[0]}<style>@page {{ size: {size} }}</style></head>"
    together = "".join(f'<div style="break-after: page"{body}</div>' for body in bodies)
    path = tmp_path / "pages.html"
    path.write_text(f"{head}<body>{together}</body></html>", "utf-8")
    flags = [*FLAGS.split(), "--no-pdf-header-footer", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *flags, f"--print-to-pdf={tmp_path / 'pages.pdf'}", path.as_uri()]
    subprocess.run(command, capture_output=True, timeout=240, check=True)
    assert len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "pages.pdf").read_bytes())) == len(reports)


@pytest.mark.parametrize("colours", [lambda color: color, svg._DARK.get], ids=SCHEMES)
def test_numbers_of_a_heat_map_stand_out_on_every_shade(colours):
    def light(color):
        parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
        return tuple(parts)

    def luminance(color):
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in color]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear)) + 0.05

    page = light("#ffffff" if colours(svg.INK) == svg.INK else "#14161b")
    for damage in np.linspace(0.0, 1.0, 101):
        shade = shade_of(damage)
        below = luminance(
            [shade * a + (1.0 - shade) * b for a, b in zip(light(colours(svg.ACCENT)), page, strict=True)]
        )
        text = luminance(light(colours(svg.ON_ACCENT if damage > DARK else svg.INK)))
        assert max(text, below) / min(text, below) >= 4.5, damage
