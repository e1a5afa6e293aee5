"""The command line: one module a command, which is loaded when it is asked for; torch is loaded inside commands."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Abort

from .. import check_not_shadowed
from ..base.errors import AuditError, InputError, Interrupted, one_line, out_of_memory
from ..base.signals import INTERRUPTED, exit_code, stoppable
from .commands import HELP, Commands, no_such_option
from .failures import say_unexpected, spell_plainly, threads_watched
from .flags import GIVEN, RUNNING, said

FAILED = 3
CHECK = "--check"
"""The flag of `verify` that checks what others may have written."""
USAGE_ERROR: type[Exception]
(USAGE_ERROR,) = (kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""The exception for what the user mistyped, by its name: typer's own, or click's before typer 0.26."""
COMPLETION = {
    "install_completion": "Install completion for your shell.",
    "show_completion": "Print what completion installs.",
}
"""Help of typer's flags for completion, each on one line."""
LEFT_OUT = {
    "sklearn": "scikit-learn",
    "prv_accountant": "prv-accountant",
    **{name: name for name in ("torch", "joblib", "safetensors", "mpmath", "threadpoolctl")},
}
"""Packages by their modules that an installation for scores alone leaves out (docs/guide/install.md)."""
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path that no file can have: the path that was given is wrong."""
_NO_NUMBER = re.compile(r"(.+) is not a valid (float|int)(?:eger)?\.")

app = typer.Typer(
    name="dpzv-audit",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": [*HELP], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"dpzv-audit {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Measure how private a vertical federated learning system is.

    Example: dpzv-audit attack --method dpzv --attack label_direct

    A process uses one thread; OMP_NUM_THREADS=N gives more, and --jobs more processes.
    """


def main(arguments: list[str] | None = None) -> int:
    """Run the command line on `arguments` (default: the process's own) and return its exit code.

    0 all well, 1 a claim was refuted, 2 the user's input is wrong, 3 something failed, 130 interrupted (by SIGTERM
    143, by SIGHUP 129).
    Whatever goes wrong is one line on stderr; the traceback of an unexpected error goes to a log file
    (`dpzv_audit.cli.failures`). Sets `OMP_NUM_THREADS` to 1 where it is not set.
    """
    # Threads of torch and BLAS in one process. The products here are small, more threads than idle cores make them many
    # times slower, and sums in another order change last digits: what uses more cores is `--jobs`.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spell_plainly(sys.stdout)
    with stoppable() as came, threads_watched() as raised:
        try:
            code = _run(sys.argv[1:] if arguments is None else arguments)
            _flush()
        except BaseException as error:
            code = _report(error)
        finally:
            RUNNING.set(None)
    return FAILED if raised and code in (0, 1) else exit_code(code, came)


def _flush() -> None:
    """Write out what stdout holds: a full disk is told here, not by the interpreter as it ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):  # the interpreter would try, and fail, again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


@contextmanager
def _nothing_of_the_repository() -> Iterator[None]:
    """Let a check import nothing of the current folder, nor of the repository around it, while the block runs.

    Off the import path are its folders, but for environments in it. Packages that load what plug-ins bring as they are
    imported, torch and pydantic, load none.
    """
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    own = Path(__file__).resolve().parents[2]

    def kept(entry: str) -> bool:
        place = Path(entry or ".").resolve()
        if place == own or not {"site-packages", "dist-packages"}.isdisjoint(place.parts):
            return True
        return place != here and (root is None or not place.is_relative_to(root) or place.is_relative_to(sys.prefix))

    before = list(sys.path)
    sys.path[:] = [entry for entry in before if kept(entry)]
    for name, value in (("PYDANTIC_DISABLE_PLUGINS", "__all__"), ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")):
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        sys.path[:] = before


def _run(arguments: list[str]) -> int:
    with _nothing_of_the_repository() if CHECK in arguments else nullcontext():
        try:
            check_not_shadowed()
        except ImportError as error:
            raise InputError(error) from None
        GIVEN.set(tuple(arguments))
        command = typer.main.get_command(app)
        for param in command.params:
            param.help = COMPLETION.get(param.name or "", getattr(param, "help", None))  # type: ignore[attr-defined]
        # A shell that completes calls without arguments.
        completes = (arguments or [""])[0].partition("=")[0] in ("", "--install-completion", "--show-completion")
        try:
            code = command.main(arguments or ["--help"], prog_name="dpzv-audit", standalone_mode=False)
        except SystemExit as ended:  # typer ends the process when completion is done, but so may all that is imported
            if not completes or RUNNING.get() is not None or isinstance(ended.__context__, BrokenPipeError):
                raise
            code = ended.code
    if code == 1 and RUNNING.get() is None:  # no completion for this shell: 1 would say that a claim is refuted
        return 2
    if code == INTERRUPTED:  # typer answers an interrupt with this code instead of raising it
        print("dpzv-audit: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _report(error: BaseException) -> int:
    """Say in one line what `error` means for the user, and return the exit code."""
    if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
        # A reader who has gone, as of `| head -1`; typer's answer, exit with 1, would say that a claim is refuted.
        return FAILED
    code, message = _explained(error)
    if message:
        print(f"dpzv-audit: {message}", file=sys.stderr)
    else:
        say_unexpected(error)
    return code


def _explained(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message of an error; no message for an unexpected one."""
    if isinstance(error, USAGE_ERROR):
        return 2, f"error: {one_line(mistake(error))}"
    match error:
        case AuditError():
            kind = "interrupted; " if isinstance(error, Interrupted) else "error: "
            return error.exit_code, kind + said(error)
        case KeyboardInterrupt() | Abort():
            return INTERRUPTED, "interrupted"
        case ModuleNotFoundError(name=module) if module in LEFT_OUT:
            package = LEFT_OUT[module]
            return FAILED, f"error: {package} is not installed, which this command needs: pip install {package}"
        case OSError():
            place = f": {error.filename}" if error.filename else ""
            code = 2 if error.errno in _NO_PATH else FAILED
            return code, f"error: {one_line(error.strerror or error)}{one_line(place)}"
    if out_of_memory(error):
        cure = "use fewer --trials, --runs or --epochs, a smaller --chunk or --batch-size, or a machine with more"
        return FAILED, f"error: memory ran out; {cure}"
    return FAILED, ""


def mistake(error: Any) -> str:
    """Return typer's message, with the value that was given where it leaves it out, and near flags alone suggested."""
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        # Of those that begin as the mistake does typer gives three at most, and may leave out some of them.
        known = () if error.ctx is None else [name for param in error.ctx.command.params for name in param.opts]
        return no_such_option(error.option_name, known)
    cause = error.__cause__
    details = cause.errors() if hasattr(cause, "errors") else []
    by_click = _NO_NUMBER.fullmatch(error.message)
    for kind, words in (("float", "a number"), ("int", "a whole number")):
        if details and details[0]["type"].startswith(f"{kind}_") and error.param.opts:
            return f"{error.param.opts[-1]} is {details[0]['input']!r}; use {words}"
        if by_click and by_click[2] == kind and error.param.opts:
            return f"{error.param.opts[-1]} is {by_click[1]}; use {words}"
    return str(error.format_message())
