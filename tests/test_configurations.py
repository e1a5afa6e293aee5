"""Nobody but a method's own file asks for the type of its configuration: everybody else asks the method."""

import ast

import pytest

from .helpers.shipped import MODULES, tree_of

METHODS = {"compressed", "czofo", "dpzv", "scalars", "vafl", "zoo"}
"""Files of methods, and of noised scalars, which know their own configurations."""


def kinds_in(node):
    """What `node` compares a type with, by a call, a comparison or a pattern."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        return node.args[1:]
    if isinstance(node, ast.Compare) and ast.unparse(node.left).startswith("type("):
        return node.comparators
    return [node.cls] if isinstance(node, ast.MatchClass) else []


def asked(tree):
    """Names of configurations' types that something is asked to be of."""
    parts = [part for node in ast.walk(tree) for kind in kinds_in(node) for part in ast.walk(kind)]
    names = [part.id if isinstance(part, ast.Name) else getattr(part, "attr", "") for part in parts]
    return [name for name in names if name.endswith("Config")]


def test_no_type_of_a_configuration_is_asked_for_outside_a_methods_own_file():
    others = [name for name, path in MODULES.items() if path.stem not in METHODS or not name.startswith("mechanisms/")]
    assert len(others) > 100
    found = {name: asked(tree_of(name)) for name in others}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "isinstance(config, DPZVConfig)",
        "isinstance(config, A | mechanisms.methods.vafl.VAFLConfig)",
        "issubclass(kind, (A, DPZVConfig))",
        "type(config) is DPZVConfig",
        "match config:\n    case DPZVConfig():\n        pass",
    ],
)
def test_a_planted_question_is_found(planted):
    assert asked(ast.parse(planted))
