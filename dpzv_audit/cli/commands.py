"""Registers every command on the app, in the order in which help lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from dpzv_audit.cli import account, app, attack, audit, calibrate, listing, matrix, report, reproduce, train, verify
from dpzv_audit.cli.names import RUNNING


class Command(TyperCommand):
    """A command that is known while it runs, so that errors can name what its flags gave."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        RUNNING.set(ctx)
        return super().invoke(ctx)


COMMANDS: dict[str, Callable[..., None]] = {
    "attack": attack.attack,
    "train": train.train,
    "audit": audit.audit,
    "account": account.account,
    "calibrate": calibrate.calibrate,
    "verify": verify.verify,
    "matrix": matrix.matrix,
    "reproduce": reproduce.reproduce,
    "report": report.report,
    "list": listing.list_what,
}
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)
