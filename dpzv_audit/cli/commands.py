"""The commands, in the order in which help lists them: each is loaded when it is asked for, so that help is quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from dpzv_audit.cli.flags import RUNNING
from dpzv_audit.errors import InputError


class Command(TyperCommand):
    """A command that is known while it runs, so that errors can name what its flags gave."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        RUNNING.set(ctx)
        return super().invoke(ctx)


class Commands(TyperGroup):
    """A group of the commands in `TABLE`: by name, where the function stands, and what it does."""

    TABLE: ClassVar[Mapping[str, tuple[str, str]]] = {
        "attack": ("attack:attack", "Attack a method, audit its claim, and write a report."),
        "train": ("train:train", "Train a method alone, beside its controls; report its costs."),
        "audit": ("commands:audit", "Bound epsilon from below: of a method, scores or a mechanism."),
        "account": ("account:account", "Bound epsilon from above, by accountant and adversary."),
        "calibrate": ("account:calibrate", "Find the noise, rounds or batch size that meet a target."),
        "verify": ("verify:verify", "Verify every claim of a file, with evidence; the CI gate."),
        "matrix": ("matrix:matrix", "Mount every attack on every method, as one table and heat map."),
        "reproduce": ("reproduce:reproduce", "Run a table or figure of a source paper, ours beside theirs."),
        "report": ("report:report", "Render run folders again, from their result.json alone."),
        "list": ("listing:list_what", "List what there is to choose from, one per line."),
    }

    def __init__(self, **options: Any) -> None:
        """Make the group, which knows the names of its commands alone."""
        super().__init__(**options)
        self.commands: dict[str, Any] = dict.fromkeys(self.TABLE)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, None where there is none."""
        if cmd_name not in self.TABLE:
            return None
        module, name = self.TABLE[cmd_name][0].split(":")
        made = typer.Typer(add_completion=False, rich_markup_mode=None)
        function: Callable[..., None] = getattr(importlib.import_module(f"dpzv_audit.cli.{module}"), name)
        if function is audit:
            made.callback(cls=Audits)(function)
        else:
            made.command(cmd_name, cls=Command)(function)
        return typer.main.get_command(made)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each command does, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self.TABLE.items()])


class Audits(Commands):
    """The commands of `audit`, by their names or by the flags that once chose among them."""

    TABLE: ClassVar[Mapping[str, tuple[str, str]]] = {
        "method": ("audit:audit_method", "Bound epsilon of a method from below, beside every upper bound."),
        "mechanism": ("audit:audit_mechanism", "Bound epsilon of a Python object of yours from below."),
        "scores": (
            "audit_scores:audit_score_files",
            "Bound epsilon from below by two files of scores of any system.",
        ),
        "coverage": (
            "audit_scores:audit_coverage",
            "Print coverage and power of estimators where epsilon is known.",
        ),
    }
    FLAGS: ClassVar[Mapping[str, tuple[str, int]]] = {
        "--method": ("method", 1),
        "--mechanism": ("mechanism", 1),
        "--scores": ("scores", 2),
        "--calibrate-check": ("coverage", 0),
    }
    """The command that each flag chooses, and how many arguments of the command follow the flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, where a flag chooses the command with that command's name first."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = self._by_name(ctx, args)
        return super().parse_args(ctx, args)

    def _by_name(self, ctx: Any, args: list[str]) -> list[str]:
        words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
        chosen = [by for by in self.FLAGS if by in words]
        if len(chosen) != 1:
            named = " and ".join(chosen) or "none of --method, --scores and --mechanism"
            right = "--method NAME, --scores IN OUT or --mechanism pkg.mod:factory"
            raise InputError(f"{named} given, must be one: {right}")
        name, number = self.FLAGS[chosen[0]]
        at = words.index(chosen[0])
        rest = [*words[:at], *words[at + 1 + number :]]
        taken = {by: self._options(ctx, command) for by, (command, _) in self.FLAGS.items()}
        for word in rest:
            takers = [by for by, options in taken.items() if word in options]
            if takers and chosen[0] not in takers:
                raise InputError(f"{word} goes with {' or '.join(takers)}, not with {chosen[0]}")
        return [name, *words[at + 1 : at + 1 + number], *rest]

    def _options(self, ctx: Any, name: str) -> set[str]:
        return {option for parameter in self.get_command(ctx, name).params for option in parameter.opts}


def audit() -> None:
    """Bound epsilon from below: of a method, scores or a mechanism.

    Each command trains or reads what it is named after, prints the lower bound, and says whether it refutes a claim.
    `dpzv-audit audit --method NAME`, `--mechanism WHAT`, `--scores IN OUT` and `--calibrate-check` do the same.

    Example: dpzv-audit audit method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Example: dpzv-audit audit mechanism planted:all

    Example: dpzv-audit audit scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted

    Example: dpzv-audit audit coverage --estimator joint --audits 100
    """
