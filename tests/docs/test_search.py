"""The first hit of the site's search for the words that people type first.

The script of the theme's own search worker ranks, in a headless Chromium, over the index of the built site. Ranking is
lunr's: words of a title weigh 1,000 times those of a text, and a page with a `search: boost` that much more. The theme
then doubles what has all words of the query, and more so whole pages.
"""

import html
import json
import re
import subprocess

import pytest

from ..helpers.places import ROOT
from ..reports.test_browser import CHROMIUM, FLAGS

pytestmark = [pytest.mark.ci, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")]
WANTED = {
    "epsilon": "understand/epsilon/",
    "own data": "data/",
    "quickstart": "#quickstart",
    "glossary": "glossary/",
    "opacus": "guide/from-opacus/",
    "flower": "guide/from-flower/",
    "CI": "ci/",
    "tree": "guide/first-audit/#the-same-for-trees",
    "membership inference": "attacks/#membership-inference",
    "feature inversion": "attacks/#feature_inversion",
    "install": "guide/install/",
    "attackers": "understand/who-attacks/",
    "compliance": "understand/signing/",
    "GDPR": "understand/signing/",
    "manager": "understand/signing/",
    "sign": "understand/signing/",
    "own attack": "guide/own-attack/",
    "plugin": "guide/own-attack/",
    "adversary": "understand/who-attacks/",
    "threat model": "understand/who-attacks/",
    "python": "reference/",
    "accountant": "guide/accounting/",
    "noise multiplier": "guide/accounting/",
    "verify": "reference/command-line/#verify",
}
"""The page or the section that is found first, by what is typed."""


@pytest.fixture(scope="module")
def hits(site, tmp_path_factory):
    """Return the pages that the search finds, each a list of places, by query."""
    folder = tmp_path_factory.mktemp("search")
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    asked = json.dumps({"index": index, "queries": [*WANTED]}).replace("<", "\\u003c")
    ours = (ROOT / "tests" / "docs" / "search.js").read_text("utf-8")
    show = "const out = document.getElementById('out');"
    show += f"hits({asked}).then((found) => (out.textContent = JSON.stringify(found)));"
    (folder / "search.js").write_text(f"{ours}\n{worker.read_text('utf-8')}\n{show}", "utf-8")
    page = folder / "page.html"
    page.write_text('<!doctype html><meta charset="utf-8"><pre id="out"></pre><script src="search.js"></script>')
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return json.loads(html.unescape(re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.DOTALL).group(1)))


@pytest.mark.parametrize("query", WANTED)
def test_the_first_hit_is_the_page_that_a_person_wants(hits, query):
    wanted = WANTED[query]
    first = hits[query][0][0]
    assert first == wanted or first.startswith(f"{wanted}#"), [page[0] for page in hits[query][:5]]
