"""The commands, in the order in which help lists them: each is loaded when it is asked for, so that help is quick."""

import ast
import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from ..base.errors import InputError
from .config import Groups, expanded
from .flags import GIVEN, PANELS, RUNNING

# Help is plain; for rich, typer before 0.26 would write "\[default: 0]" all the same.
typer.core.HAS_RICH = False
HELP = ("-h", "--help", "--help-all")
"""Flags that show help; the last shows all sentences of each option's, the others the first."""
MOST_WIDE = 30
"""Characters of the column of flags; a longer one has a line of its own."""
_EXTRA = re.compile(r"  \[[^]]*\]$")


def write_panels(formatter: Any, panels: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write panels of help, with all descriptions in one column."""
    terms = [term for rows in panels.values() for term, _ in rows]
    width = max((len(term) for term in terms if len(term) <= MOST_WIDE), default=MOST_WIDE)
    for panel, rows in panels.items():
        with formatter.section(panel):
            formatter.write_dl([(term.ljust(width), text) for term, text in rows], col_max=width)


def option_panels(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the flags and help of a command's arguments and options by panel, in the order of `PANELS`."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        term, text = record
        if HELP[-1] in param.opts:  # in any order, as click keeps them
            term, text = ", ".join(HELP), "Show this message; --help-all adds details"
        elif HELP[-1] not in GIVEN.get():
            default = _EXTRA.search(text)
            text = text.partition(". ")[0].removesuffix(".") + (default[0] if default else "")
        usual = "Arguments" if param.param_type_name == "argument" else "Output"
        panels[getattr(param, "rich_help_panel", None) or usual].append((term, text))
    return {panel: rows for panel, rows in panels.items() if rows}


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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by panel, one line each where the terminal has 100 columns."""
        write_panels(formatter, option_panels(self, ctx))

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command, and say now and then that it still runs."""
        from .heartbeat import beating  # with rich, which help does without

        RUNNING.set(ctx)
        with beating(quiet=bool(ctx.params.get("quiet"))):
            return super().invoke(ctx)


class Commands(TyperGroup):
    """A group of commands: by panel of help and name, the module and the function of each."""

    SECTIONS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "Attack and audit": {
            "attack": "attack:attack",
            "audit": "commands:audit",
            "hunt": "hunt:hunt",
            "matrix": "matrix:matrix",
        },
        "Account": {"account": "account:account", "calibrate": "account:calibrate"},
        "Gate": {"verify": "verify:verify"},
        "Train": {"train": "train:train", "reproduce": "reproduce:reproduce"},
        "Look up": {"list": "listing:list_what", "report": "report:report", "view": "view:view"},
    }
    TABLE: ClassVar[Mapping[str, str]] = {
        name: place for section in SECTIONS.values() for name, place in section.items()
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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what each command does, without loading any, and the options."""
        panels = {
            panel: [(name, summary(place)) for name, place in section.items()]
            for panel, section in self.SECTIONS.items()
        }
        (options,) = option_panels(self, ctx).values()
        write_panels(formatter, panels)
        write_panels(formatter, {"Options": options})


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
    SECTIONS: ClassVar[Mapping[str, Mapping[str, str]]] = {"Commands": TABLE}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, which names the command first."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            follows = args[0] if args else "nothing"
            right = f"name a command: {', '.join(self.TABLE)}"
            raise InputError(f"audit is followed by {follows}; {right}; see dpzv-audit audit --help")
        return super().parse_args(ctx, args)


def groups() -> Groups:
    """Return the names of all commands, and of those of `audit`."""
    return {(): [*Commands.TABLE], ("audit",): [*Audits.TABLE]}


def every_command(group: Commands, ctx: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each command of a group, and of the groups in it, by its words, with the context of those around it."""
    for name in group.TABLE:
        command = group.get_command(ctx, name)
        if isinstance(command, Commands):
            yield from every_command(command, typer.Context(command, info_name=name, parent=ctx), (*words, name))
        else:
            yield (*words, name), command, ctx


def no_such_option(given: str, known: Collection[str]) -> str:
    """Return that no option is called as `given`, and which of the `known` ones may be meant."""
    near = [name for name in known if name.startswith(given)] or get_close_matches(given, known, n=1)
    meant = f", did you mean {' or '.join(near)}?" if near else ""
    return f"No such option: {given}{meant}"


def audit() -> None:
    """Measure a lower bound on epsilon, for a system, scores and more.

    Each command prints the lower bound, and says whether it refutes a claim.

    Example: dpzv-audit audit method dpzv --epsilon 1 --delta 1e-5 --adversary client

    Example: dpzv-audit audit scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted
    """
