"""Registers every command on the app, in the order in which help lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from dpzv_audit.cli import account, app, attack, audit, listing, matrix, report, reproduce, train, verify
from dpzv_audit.cli.flags import RUNNING, check_choice


class Command(TyperCommand):
    """A command that is known while it runs, so that errors can name what its flags gave."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        RUNNING.set(ctx)
        return super().invoke(ctx)


class AuditCommand(Command):
    """`audit`: the command that the first word names; where there is none, the one that flags choose."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command that is to run."""
        if not args or args[0].startswith("-"):
            return super().make_context(info_name, args, parent, **extra)
        check_choice("command", args[0], audit.AUDITS)
        return _audits()[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name in the usage line."""
        return ["COMMAND [ARGS]..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in place of the options, which their own help shows."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(formatter.width)) for name, one in _audits().items()])


def _audits() -> Mapping[str, Any]:
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    for name, command in audit.AUDITS.items():
        group.command(name, cls=Command)(command)
    made: Any = typer.main.get_command(group)
    commands: Mapping[str, Any] = made.commands
    return commands


COMMANDS: dict[str, Callable[..., None]] = {
    "attack": attack.attack,
    "train": train.train,
    "audit": audit.audit,
    "account": account.account,
    "calibrate": account.calibrate,
    "verify": verify.verify,
    "matrix": matrix.matrix,
    "reproduce": reproduce.reproduce,
    "report": report.report,
    "list": listing.list_what,
}
for name, command in COMMANDS.items():
    app.command(name, cls=AuditCommand if command is audit.audit else Command)(command)
