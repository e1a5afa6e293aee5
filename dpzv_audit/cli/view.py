"""The command `view`: a page of all runs, served to this machine alone or written as files."""

import secrets
import sys
import webbrowser
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from reports.view import File, Pages

from ..base.errors import AuditError, InputError, check_count, one_line
from ..base.store import partial_folder, private_folder, write_atomically
from .flags import takes
from .heartbeat import paused
from .output import Output

HERE = "127.0.0.1"
MISSING = 'view draws with plotly, which is not installed: pip install "dpzv-audit[view]"'


def _port(name: str, value: int) -> int:
    return check_count(name, value, least=0, most=65_535)


@takes
def view(
    *,
    runs: Annotated[Path, typer.Argument(metavar="[RUNS]", help="Folder of run folders.")] = Path("dpzv-runs"),
    export: Path | None = None,
    port: Annotated[int, _port] = 0,
    no_browser: bool = False,
    output: Output,
) -> None:
    """Show and compare all runs on a local page.

    Reads result.json of each run and nothing else; this machine alone can open the page. Ctrl-C ends it.

    Example: dpzv-audit view dpzv-runs --export runs-page

    Output:
        export DIR: Write the page as files that need no server, and end. They hold all that the results hold.
        port N: Port to listen on. By default a free one.
        no_browser: Do not open the browser.
    """
    if not runs.is_dir():
        raise InputError(": is no folder; give one with run folders, such as dpzv-audit attack writes", str(runs))
    pages = Pages(runs, drawing())
    if export is not None:
        _write(pages, export)
        found = {"runs": len(pages.rows), "unreadable": len(pages.unreadable)}
        output.result({"schema": "dpzv-audit/view/1", "export": str(export), **found})
        output.path(export / "index.html")
        return
    try:
        server = Server(pages, port)
    except OSError as error:
        raise InputError(f"which cannot be listened on ({error.strerror}); use another, or 0", "port", port) from None
    with server:
        output.result({"schema": "dpzv-audit/view/1", "address": server.address})
        output.path(server.address)
        output.say("Only this machine can open this address. Ctrl-C ends the page.")
        sys.stdout.flush()
        if not no_browser and sys.stdout.isatty():
            webbrowser.open(server.address)
        with paused():
            try:
                server.serve_forever()
            except KeyboardInterrupt:  # the way to end it
                return


def drawing() -> Callable[[], str]:
    """Return what reads the script that draws curves; raise `AuditError` where plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise AuditError(MISSING) from None
    made: Callable[[], str] = cache(get_plotlyjs)
    return made


def _write(pages: Pages, folder: Path) -> None:
    """Write all files of the page into a folder that is empty or not there: it appears whole, or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("use an empty folder, or one that does not exist yet", "export", str(folder))
    target = folder.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with partial_folder(target.parent, target.name) as partial:
        private_folder(partial / "runs")
        for name in pages.names():
            file = pages.get(name)
            if file is not None:
                write_atomically(partial / name, file.content)
        if target.exists():
            target.rmdir()
        partial.rename(target)


class Server(ThreadingHTTPServer):
    """Serves the files of a page below a path that cannot be guessed, to requests that name this machine's address."""

    daemon_threads = True

    def __init__(self, pages: Pages, port: int) -> None:
        self.pages = pages
        self._secret = secrets.token_urlsafe(16)
        super().__init__((HERE, port), Handler)

    @property
    def address(self) -> str:
        """The address of the page. Other users of this machine do not know it."""
        return f"http://{HERE}:{self.server_port}/{self._secret}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that a request may name: another one is a website whose name was pointed at this machine."""
        return (f"{HERE}:{self.server_port}", f"localhost:{self.server_port}")

    def file(self, path: str) -> File | None:
        """Return the file at the path of a request; None where there is none."""
        before, secret, name = path.partition("?")[0].partition(f"/{self._secret}/")
        return self.pages.get(name) if secret and not before else None

    def handle_error(self, request: object, client_address: object) -> None:
        """Say in one line what went wrong; nothing where the browser has gone."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"dpzv-audit: error: {one_line(f'{type(error).__name__}: {error}')}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """Answers GET alone, with files of the page."""

    server: Server
    server_version = "dpzv-audit"
    sys_version = ""
    timeout = 30.0

    def do_GET(self) -> None:
        """Answer with a file, or with why there is none."""
        if self.headers.get("Host") not in self.server.hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        file = self.server.file(self.path)
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._answer(HTTPStatus.OK, file)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the name of an error, and nothing of the request."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._answer(status, File("text/plain; charset=utf-8", f"{status.value} {status.phrase}\n".encode()))

    def _answer(self, status: HTTPStatus, file: File) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": file.kind,
            "Content-Length": str(len(file.content)),
            "Content-Security-Policy": "frame-ancestors 'none'",  # the page itself has the rest, as a file too
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(file.content)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing: what is asked for is the page's own."""
