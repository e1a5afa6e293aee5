"""No module imports itself by way of others: what is imported first would otherwise depend on who asks."""

import ast
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("attacks", "dpzv_audit", "mechanisms", "reports")


def modules():
    """Return every module by its dotted name, packages by theirs."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {path: path.relative_to(ROOT).with_suffix("").parts for path in files}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in named.items()}


def imported(name, path, known):
    """Return the modules that `name` imports, inside its functions too; what is for types alone is left out."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text("utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            # Of a package, the modules that are named; the package itself only where something else is.
            inner = {f"{source}.{alias.name}" for alias in node.names}
            names |= inner if inner <= known else {source, *inner}
    return names & known


def cycle(imports):
    """Return the names along one cycle, none where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others():
    known = modules()
    assert len(known) > 100
    assert cycle({name: imported(name, path, set(known)) - {name} for name, path in known.items()}) == []


def test_a_cycle_is_found():
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
