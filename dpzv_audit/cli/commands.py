"""The commands, in the order in which help lists them: each is loaded when it is asked for, so that help is quick."""

import ast
import importlib
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from ..base.errors import InputError
from .config import Groups, expanded
from .flags import RUNNING

# Help is plain; for rich, typer before 0.26 would write "\[default: 0]" all the same.
typer.core.HAS_RICH = False


class Command(TyperCommand):
    """A command that is known while it runs, so that errors can name what its flags gave, and may read a file."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the command line, with the options of a file in the place of `--config FILE`."""
        if not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            args = expanded(self, ctx, args, groups())
        ctx.allow_extra_args = True  # told here, with a hint
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            from .hints import unexpected

            raise InputError(unexpected(rest, [name for param in self.params for name in param.opts]))
        return rest

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command, and say now and then that it still runs."""
        from .heartbeat import beating  # with rich, which help does without

        RUNNING.set(ctx)
        with beating(quiet=bool(ctx.params.get("quiet"))):
            return super().invoke(ctx)


class Commands(TyperGroup):
    """A group of the commands in `TABLE`: by name, the module and the function that each is."""

    TABLE: ClassVar[Mapping[str, str]] = {
        "attack": "attack:attack",
        "train": "train:train",
        "audit": "commands:audit",
        "hunt": "hunt:hunt",
        "account": "account:account",
        "calibrate": "account:calibrate",
        "verify": "verify:verify",
        "matrix": "matrix:matrix",
        "reproduce": "reproduce:reproduce",
        "report": "report:report",
        "list": "listing:list_what",
    }

    def __init__(self, **options: Any) -> None:
        """Make the group, which knows the names of its commands alone."""
        super().__init__(**options)
        self.commands: dict[str, Any] = dict.fromkeys(self.TABLE)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, None where there is none."""
        if cmd_name not in self.TABLE:
            return None
        module, name = self.TABLE[cmd_name].split(":")
        made = typer.Typer(add_completion=False, rich_markup_mode=None)
        function: Callable[..., None] = getattr(importlib.import_module(f"dpzv_audit.cli.{module}"), name)
        if function is audit:
            made.callback(cls=Audits)(function)
        else:
            made.command(cmd_name, cls=Command)(function)
        return typer.main.get_command(made)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and the words after it; `help WORDS` stands for `WORDS --help`."""
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or word in self.TABLE:
            return super().resolve_command(ctx, args)
        if word != "help":
            from .hints import no_such_command

            raise InputError(no_such_command(word, tuple(ctx.command_path.split()[1:]), self.TABLE))
        if args[1:]:
            return self.resolve_command(ctx, [*args[1:], "--help"])
        typer.echo(ctx.get_help())
        raise typer.Exit

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each command does, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(place)) for name, place in self.TABLE.items()])


def summary(place: str) -> str:
    """Return the first line of a command's docstring, read from its module's text so that nothing is loaded."""
    module, name = place.split(":")
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    (command,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return (ast.get_docstring(command) or "").partition("\n")[0]


class Audits(Commands):
    """The commands of `audit`."""

    TABLE: ClassVar[Mapping[str, str]] = {
        "method": "audit:audit_method",
        "system": "audit:audit_system",
        "defence": "audit:audit_defence",
        "mechanism": "audit:audit_mechanism",
        "scores": "audit_scores:audit_score_files",
        "coverage": "audit_scores:audit_coverage",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, which names the command first."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            follows = args[0] if args else "nothing"
            right = f"must be followed by a command: {', '.join(self.TABLE)}"
            raise InputError(f"audit is followed by {follows}, {right}; see dpzv-audit audit --help")
        return super().parse_args(ctx, args)


def groups() -> Groups:
    """Return the names of all commands, and of those of `audit`."""
    return {(): [*Commands.TABLE], ("audit",): [*Audits.TABLE]}


def no_such_option(given: str, known: Collection[str]) -> str:
    """Return that no option is called as `given`, and which of the `known` ones may be meant."""
    near = [name for name in known if name.startswith(given)] or get_close_matches(given, known, n=1)
    meant = f", did you mean {' or '.join(near)}?" if near else ""
    return f"No such option: {given}{meant}"


def audit() -> None:
    """Bound epsilon from below, for a method, a defence, a system of yours, scores or a mechanism.

    Each command trains or reads what it is named after, prints the lower bound, and says whether it refutes a claim.

    Example: dpzv-audit audit method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Example: dpzv-audit audit system our_vfl:train

    Example: dpzv-audit audit defence label-cluster --defence-set epsilon=1

    Example: dpzv-audit audit mechanism planted:all

    Example: dpzv-audit audit scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted

    Example: dpzv-audit audit coverage --estimator joint --audits 100
    """
