"""Runs `dpzv-audit` in this process, by a command line written as a user writes it."""

import json
import shlex
from dataclasses import dataclass

import typer

from dpzv_audit.cli import app, commands, main


@dataclass(frozen=True)
class Done:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class Command:
    """Runs commands: the words of a line, and what is no text of a line (paths) after it."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, line, *more):
        self.capsys.readouterr()
        code = main([*shlex.split(line), *map(str, more)])
        return Done(code, *self.capsys.readouterr())

    def answer(self, line, *more, code=0):
        """The JSON object that a command prints, which exits with `code`."""
        done = self(line, *more, "--json")
        assert done.code == code, done.err
        return done.json

    def refusal(self, line, *more, code=2):
        """The one line on stderr with which a command is refused; nothing is on stdout."""
        done = self(line, *more)
        assert (done.code, done.out) == (code, ""), done
        (refusal,) = done.err.splitlines()
        return refusal


def every_command():
    """Yield each command by its words, with the context of those around it."""
    top = typer.main.get_command(app)
    return commands.every_command(top, typer.Context(top, info_name="dpzv-audit"))
