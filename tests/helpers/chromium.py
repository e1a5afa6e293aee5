"""Drives a headless Chromium through its pipe: pages are opened, clicked and pointed at as a user does it."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)
SECONDS = 120.0
"""How long a page may take to answer on a busy machine."""


class Browser:
    """One tab: `console` holds what pages wrote there, errors and refusals of the policy among them."""

    def __init__(self, reading, writing):
        self._in, self._out = reading, writing
        self._rest = b""
        self._numbers = itertools.count(1)
        self._session = None
        self.console = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == number:
                if "error" in got:
                    raise RuntimeError(got["error"]["message"])
                return got["result"]

    def _next(self):
        ends = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            self._rest += os.read(self._in, 1 << 20)
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.console.append(message["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
            case "Runtime.consoleAPICalled":
                self.console.append(str(message["params"]["args"]))
            case "Log.entryAdded":
                self.console.append(message["params"]["entry"]["text"])
        return message

    def js(self, code):
        """Return what an expression is in the page; a promise is waited for."""
        done = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"]["description"])
        return done["result"].get("value")

    def until(self, code):
        """Wait until an expression holds in the page."""
        ends = time.monotonic() + SECONDS
        while not self.js(f"!!({code})"):
            if time.monotonic() > ends:
                raise TimeoutError(f"never so: {code}")
            time.sleep(0.02)

    def size(self, width, height=900, *, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address):
        """Open an address, and wait until its page says that it is drawn."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until("location.href !== 'about:blank' && document.body && !!document.body.dataset.shown")

    def go(self, view):
        """Go to a view of the page by its part of the address."""
        self.js(f"location.hash = {json.dumps(view)}")
        self.until(f"document.body.dataset.shown === {json.dumps('#' + view)}")

    def point(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path):
        """Write what the whole page looks like as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder):
    """Yield a tab of a Chromium whose profile lies in `folder`."""
    theirs, ours = os.pipe()
    reading, writing = os.pipe()
    command = f'exec "$0" "$@" 3<&{theirs} 4>&{writing}'
    words = ["bash", "-c", command, CHROMIUM, *FLAGS.split(), f"--user-data-dir={folder}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, pass_fds=(theirs, writing), **quiet) as process:
        os.close(theirs)
        os.close(writing)
        try:
            yield Browser(reading, ours)
        finally:
            process.kill()
            os.close(ours)
            os.close(reading)
