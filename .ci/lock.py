"""Checks that constraints.txt locks this environment: every package that dpzv-audit and its extras pull in, exactly.

    .venv/bin/python .ci/lock.py [EXTRA ...]        by default: test docs dev text dask flower opacus view

What pyproject.toml asks for must have a floor, no ceiling, and a pin that meets the floor. Every package that follows
from it here must be installed as it is pinned, or be pinned by what asks for it (as torch does with CUDA). With
all extras, nothing may be pinned that follows from none of them. requirements.lock, which has the hashes of what
dpzv-audit needs without extras on every system, must have the same versions.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "dpzv-audit"
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+]+)(?: *;.*)?")
LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
EXTRAS = ("test", "docs", "dev", "text", "dask", "flower", "opacus", "view")


def pins(text: str) -> dict[str, Version]:
    """The pinned versions by canonical name; `SystemExit` for a line that is no exact pin, or a name twice."""
    found: dict[str, Version] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = PIN.fullmatch(line.strip())
        name = canonicalize_name(match[1]) if match else ""
        if match is None or name in found:
            raise SystemExit(f"constraints.txt:{number}: {line!r} is no exact pin, or the second of its name")
        found[name] = Version(match[2])
    return found


def asked(project: dict[str, object]) -> list[Requirement]:
    """Everything that pyproject.toml's [project] asks for by itself, in all extras, without its own extras."""
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    lines: list[str] = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]  # type: ignore[misc]
    requirements = [Requirement(line) for line in lines]
    return [r for r in requirements if canonicalize_name(r.name) != PROJECT]


def floor_mistakes(requirements: list[Requirement], pinned: dict[str, Version]) -> list[str]:
    """What is wrong with the floors, a line each."""
    mistakes = []
    for requirement in requirements:
        kinds = [specifier.operator for specifier in requirement.specifier]
        if kinds != [">="]:
            mistakes.append(f"pyproject.toml: {requirement} must have a floor (>=) and nothing else")
        pin = pinned.get(canonicalize_name(requirement.name))
        if pin is not None and not requirement.specifier.contains(pin, prereleases=True):
            mistakes.append(f"constraints.txt: {requirement.name} is {pin}, must meet {requirement.specifier}")
    return mistakes


def needed(extras: tuple[str, ...]) -> dict[str, Requirement]:
    """Every package that follows from the project with `extras` here, with the requirement that asks for it."""
    found: dict[str, Requirement] = {}
    left = [(PROJECT, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        name, wanted = left.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                other = canonicalize_name(requirement.name)
                found.setdefault(other, requirement)
                left.append((other, frozenset(requirement.extras)))
    found.pop(PROJECT, None)
    return found


def lock_mistakes(packages: dict[str, Requirement], pinned: dict[str, Version]) -> list[str]:
    """What of `packages` is not installed as it is pinned, a line each; local builds (+cpu) count as their version."""
    mistakes = []
    for name, requirement in sorted(packages.items()):
        try:
            installed = Version(distribution(name).version)
        except PackageNotFoundError:
            mistakes.append(f"{name} is not installed, but needed: {requirement}")
            continue
        pin = pinned.get(name)
        exact = [specifier.operator for specifier in requirement.specifier] == ["=="]
        if pin is None and not exact:
            mistakes.append(f"constraints.txt: {name} {installed} is not pinned, but needed: {requirement}")
        elif pin is not None and Version(installed.public) != Version(pin.public):
            mistakes.append(f"constraints.txt: {name} is pinned at {pin}, but {installed} is installed")
    return mistakes


def hash_mistakes(text: str, packages: set[str], pinned: dict[str, Version]) -> list[str]:
    """Return what is wrong with requirements.lock, a line each: a version that is not the pin, or a package too few."""
    locked = {canonicalize_name(name): Version(version) for name, version in LOCKED.findall(text)}
    cure = "make it anew by the command at its head"
    mistakes = [
        f"requirements.lock: {name} is {version}, constraints.txt has {pinned[name]}; {cure}"
        for name, version in locked.items()
        if pinned.get(name, version) != version
    ]
    return mistakes + [f"requirements.lock: lacks {name}; {cure}" for name in sorted(packages - locked.keys())]


def main(extras: list[str]) -> int:
    """Print what is wrong, a line each; 1 if anything is."""
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chosen = tuple(extras) or EXTRAS
    packages = needed(chosen)
    mistakes = floor_mistakes(asked(project), pinned) + lock_mistakes(packages, pinned)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    mistakes += hash_mistakes(lock, set(needed(())), pinned)
    if set(chosen) >= set(EXTRAS):
        mistakes += [f"constraints.txt: nothing needs {name}" for name in sorted(set(pinned) - set(packages))]
    print("\n".join(mistakes) or f"{len(packages)} packages installed as locked, {len(pinned)} pinned")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
