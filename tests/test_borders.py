"""No dictionary of anything crosses a module's border: what goes across has a type, or is opaque (`object`)."""

import ast
import re

from .helpers.shipped import MODULES, tree_of

LOOSE = ("dict[str, Any]", "Mapping[str, Any]")


def aliases(tree):
    """Return the names that a module gives to dictionaries of anything, such as `Row = Mapping[str, Any]`."""
    values = {
        ast.unparse(target): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    return {name for name, value in values.items() if any(word in value for word in LOOSE)}


ALIASES = {(name.removesuffix(".py").replace("/", "."), alias) for name in MODULES for alias in aliases(tree_of(name))}


def loose(tree):
    """Return the public functions and methods of a module that take or give a dictionary of anything, or an alias."""
    imported = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if (node.module, each.name) in ALIASES
    }
    named = aliases(tree) | imported
    functions = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        for annotation in (*(argument.annotation for argument in arguments), node.returns):
            text = "" if annotation is None else ast.unparse(annotation)
            if any(word in text for word in LOOSE) or named & set(re.findall(r"\w+", text)):
                functions.add(node.name)
    return functions


def test_no_dictionary_of_anything_crosses_a_border():
    found = {name: loose(tree_of(name)) for name in MODULES}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_a_name_for_a_dictionary_of_anything_is_seen_where_it_is_used():
    tree = ast.parse("Row = Mapping[str, Any]\ndef taken(row: Sequence[Row]) -> int: ...\ndef given() -> int: ...")
    assert loose(tree) == {"taken"}
