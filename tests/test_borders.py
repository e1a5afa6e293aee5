"""No dictionary of anything crosses a module's border: what goes across has a type, or is opaque (`object`)."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dpzv_audit", "mechanisms", "attacks", "reports")
LOOSE = ("dict[str, Any]", "Mapping[str, Any]")
BORDER = {
    # Flags of the command line and options of a method or an attack by name, which their declarations check.
    "attacks/core/contract.py": {"own_options"},
    "dpzv_audit/cli/listing.py": {"listed"},
    "dpzv_audit/cli/options.py": {"choose", "configure", "parsed_settings"},
    "dpzv_audit/runs.py": {"environment"},
}
"""What still takes or gives one, by file: nothing is to be added."""


def loose(path: Path) -> set[str]:
    """Return the public functions and methods of a module that take or give a dictionary of anything."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        for annotation in (*(argument.annotation for argument in arguments), node.returns):
            if annotation is not None and any(word in ast.unparse(annotation) for word in LOOSE):
                found.add(node.name)
    return found


def test_no_dictionary_of_anything_crosses_a_border():
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    added = {path.relative_to(ROOT).as_posix(): loose(path) for path in files}
    added = {name: functions - BORDER.get(name, set()) for name, functions in added.items()}
    assert {name: functions for name, functions in added.items() if functions} == {}
