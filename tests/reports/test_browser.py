"""The report on a claims file in a real headless Chromium: no message, no scroll sideways, both colour schemes."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from dpzv_audit.cli import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")
WIDTHS = (390, 1280)
HARNESS = """<!doctype html><meta charset="utf-8"><pre id="out"></pre>{frames}
<script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument;
    return {{
      width: frame.clientWidth,
      scroll: page.documentElement.scrollWidth,
      background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
      figures: [...page.querySelectorAll("svg[role=img]")].map((svg) => svg.getAttribute("aria-label")),
      height: page.documentElement.scrollHeight,
    }};
  }});
  document.getElementById("out").textContent = JSON.stringify(found);
}});
</script>"""
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


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    np.savetxt(folder / "in.csv", rng.normal(1.0, 1.0, 1000))
    np.savetxt(folder / "out.csv", rng.normal(0.0, 1.0, 1000))
    (folder / "claims.toml").write_text(CLAIMS.format(long="x" * 100))
    main(["verify", str(folder / "claims.toml"), "--no-cache", "--quiet", "--out", str(folder / "runs")])
    (run,) = (folder / "runs").iterdir()
    return (run / "report.html").read_text()


def measured(page, folder, *flags):
    """What a browser says of the page in frames of all widths, and its console."""
    frames = "".join(
        f'<iframe style="border:0;height:900px;width:{width}px" srcdoc="{html.escape(page)}"></iframe>'
        for width in WIDTHS
    )
    path = folder / "harness.html"
    path.write_text(HARNESS.format(frames=frames))
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", *flags, "--dump-dom"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=240, check=False)
    text = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.DOTALL).group(1)
    return json.loads(html.unescape(text)), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize(("flags", "background"), [((), 255), (("--blink-settings=preferredColorScheme=0",), 20)])
def test_the_page_fits_every_width_in_both_schemes(page, tmp_path, flags, background):
    found, console = measured(page, tmp_path, *flags)
    assert console == []
    assert [frame["width"] for frame in found] == list(WIDTHS)
    for frame in found:
        assert frame["scroll"] <= frame["width"]
        assert f"rgb({background}," in frame["background"]
        assert len(frame["figures"]) == 2
        assert all(frame["figures"])
        assert frame["height"] > 1000
