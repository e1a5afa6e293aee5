"""Errors carry fields; the command line alone calls them by flags, and no code reads what an error says."""

import ast
import pickle
import re

import pytest

from dpzv_audit.base.errors import InputError, check_count, with_options
from dpzv_audit.cli.flags import flag, said

from ...helpers.places import ROOT

FLAG = re.compile(r"(?<![\w-])--[a-z]")


def sources(*but):
    for top in ("dpzv_audit", "attacks", "mechanisms", "reports"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not any(path.is_relative_to(ROOT / place) for place in but):
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_string_below_the_command_line_holds_a_flag():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value[:80]}"
        # Pages propose commands.
        for path, tree in sources("dpzv_audit/cli", "dpzv_audit/__main__.py", "reports/head.py", "reports/tabular.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.search(node.value)
    ]
    assert found == []


def _ours(handler):
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id.endswith(("InputError", "AuditError")) for kind in kinds)


def _reads(node, name):
    """Whether `node` takes apart, or looks for something in, the words of the error `name`."""
    words = {f"str({name})", f"{name}.rule", f"{name}.words", f"{name}.args[0]", f"{name}.said()"}
    if isinstance(node, ast.Compare):
        return any(ast.unparse(part) in words for part in (node.left, *node.comparators))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value) in words
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) in words


def test_no_code_reads_what_an_error_says():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in sources()
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.type is not None and handler.name and _ours(handler)
        for node in ast.walk(handler)
        if _reads(node, handler.name)
    ]
    assert found == []


def test_an_error_says_its_field_value_and_rule():
    error = InputError("use more than 0; see ‹max_minutes›", "trial_seconds", -1)
    assert (error.field, error.value) == ("trial_seconds", -1)
    assert str(error) == "trial_seconds is -1; use more than 0; see max_minutes"
    assert error.said(flag) == "--trial-seconds is -1; use more than 0; see --max-minutes"
    assert (
        str(error.placed("claims.toml:3: ")) == "claims.toml:3: trial_seconds is -1; use more than 0; see max_minutes"
    )
    assert str(InputError(": did you mean 'b'?", "name", "a")) == "name is 'a': did you mean 'b'?"
    assert str(InputError("is missing", "label")) == "label is missing"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field, again.value) == (str(error), error.field, error.value)


def test_names_in_a_path_stay_as_they_are():
    assert str(InputError("{resume}/--out: no such file")) == "{resume}/--out: no such file"
    assert with_options("‹out›", flag) == "--out"


def test_outside_a_command_every_field_is_a_flag():
    with pytest.raises(InputError) as caught:
        check_count("batch_size", 0)
    assert said(caught.value) == "--batch-size is 0; use a whole number of at least 1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--method dpzv --set clip=-1", "--set clip is -1; use more than 0"),
        ("--epochs 0", "--epochs is 0; use a whole number of at least 1"),
        ("--delta 2", "--delta is 2.0; use less than 1"),
        ("--max-grad-norm -1", "--clip is -1.0; use more than 0"),
        ("--sample-rate 2", "--sample-rate is 2.0; use at most 1"),
        ("--clip 3 --set clip=1", "--set clip=1 contradicts --clip, give one of them"),
        ("--batch-size 5000", "--batch-size is 5000; use at most the 1408 training records"),
    ],
)
def test_a_field_is_called_by_what_gave_it(arguments, line, cli):
    assert cli.refusal(f"train {arguments}") == f"dpzv-audit: error: {line}"
