"""The command line: one module a command; heavy imports happen inside commands, so that help is quick."""

from __future__ import annotations

import sys

import typer
from typer.exceptions import Abort, TyperException

from dpzv_audit.cli.common import ARGUMENTS
from dpzv_audit.errors import AuditError

app = typer.Typer(
    name="dpzv-audit",
    help="How private is this vertical federated learning system, really?",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line on `arguments` (default: the process's own) and return its exit code.

    0 all well, 1 a claim was refuted, 2 the user's input is wrong, 3 something failed, 130 interrupted.
    A mistake by the user is one line on stderr, never a traceback.
    """
    from dpzv_audit.cli import commands  # noqa: F401  registers every command

    arguments = sys.argv[1:] if arguments is None else arguments
    ARGUMENTS.set(tuple(arguments))
    try:
        code = typer.main.get_command(app).main(arguments or ["--help"], prog_name="dpzv-audit", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        print(f"dpzv-audit: error: {error.format_message()}", file=sys.stderr)
        return 2
    except AuditError as error:
        print(f"dpzv-audit: error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Abort):
        print("dpzv-audit: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        print(f"dpzv-audit: error: {error.strerror or error}{place}", file=sys.stderr)
        return 3
