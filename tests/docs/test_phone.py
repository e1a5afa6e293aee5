"""Pages of the site on a phone, in a real headless Chromium: no word breaks inside, and nothing leaves the page."""

import functools
import html
import http.server
import json
import re
import subprocess
import threading

import pytest

from ..helpers.places import ROOT
from ..reports.test_browser import CHROMIUM, FLAGS, WIDTHS

pytestmark = [pytest.mark.ci, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")]
PAGES = (
    *("", "ci/", "data/", "glossary/", "defences/which/", "understand/who-attacks/", "understand/verdicts/"),
    *("guide/own-system/", "guide/from-opacus/", "guide/accounting/", "reference/command-line/", "reference/python/"),
    *("methods/", "attacks/", "defences/", "results/labels-mnist/", "found/opacus-noise/"),
)
FRAME = '<iframe data-within="article" style="border:0;height:900px;width:{width}px" src="/{page}"></iframe>'


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a line on stderr for each."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def seen(site, tmp_path_factory):
    """Return what a browser says of each page at the width of a phone."""
    frames = "".join(FRAME.format(width=min(WIDTHS), page=page) for page in PAGES)
    script = (ROOT / "tests" / "reports" / "look.js").read_text("utf-8")
    (site / "phone.html").write_text(f'<!doctype html><pre id="out"></pre>{frames}<script>{script}</script>', "utf-8")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/phone.html"
        profile = tmp_path_factory.mktemp("phone") / "profile"
        command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={profile}", "--dump-dom", place]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        server.shutdown()
    text = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.DOTALL).group(1)
    return dict(zip(PAGES, json.loads(html.unescape(text)), strict=True))


@pytest.mark.parametrize("page", PAGES)
def test_on_a_phone_no_word_breaks_inside_and_nothing_leaves_the_page(seen, page):
    # An assignment may break at its sign.
    assert [word for word in seen[page]["broken"] if "=" not in word] == []
    assert seen[page]["outside"] == []
    assert seen[page]["scroll"] <= min(WIDTHS)
