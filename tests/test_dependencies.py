"""Every dependency has a floor that its pin meets, and constraints.txt holds exact pins alone."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def lock():
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def requirements(lock):
    return lock.asked(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def test_every_dependency_has_a_floor_that_its_pin_meets(lock, requirements):
    pinned = lock.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert len(requirements) >= 20
    assert lock.floor_mistakes(requirements, pinned) == []
    assert [r.name for r in requirements if lock.canonicalize_name(r.name) not in pinned] == []


@pytest.mark.parametrize("line", ["torch", "torch==2.4", "torch>=2.4,<3", "torch~=2.4", "torch>=99"])
def test_a_floor_that_is_none_is_found(lock, line):
    assert len(lock.floor_mistakes([Requirement(line)], {"torch": Version("2.13.0")})) >= 1


@pytest.mark.parametrize(
    "text", ["torch>=2", "torch", "torch==2\nTorch==2", "torch==2.*", "-r other.txt", "torch @ https://x.y/z"]
)
def test_what_is_no_exact_pin_is_found(lock, text):
    with pytest.raises(SystemExit, match=r"constraints.txt:\d: .* is no exact pin"):
        lock.pins(text)


def test_what_is_installed_otherwise_than_it_is_locked_is_found(lock):
    def mistakes(requirement, **pinned):
        return lock.lock_mistakes({"pytest": Requirement(requirement)}, {k: Version(v) for k, v in pinned.items()})

    assert mistakes("pytest>=1", pytest=pytest.__version__) == []
    assert "is pinned at 0.1, but" in mistakes("pytest>=1", pytest="0.1")[0]
    assert "is not pinned" in mistakes("pytest>=1")[0]
    assert mistakes(f"pytest=={pytest.__version__}") == []  # pinned by what asks for it
    missing = lock.lock_mistakes({"no-such-package": Requirement("no-such-package>=1")}, {})
    assert missing == ["no-such-package is not installed, but needed: no-such-package>=1"]


def test_what_follows_is_walked_through_extras(lock):
    found = lock.needed(("dev",))
    assert {"torch", "numpy", "pytest", "hypothesis", "mkdocs-material", "ruff", "iniconfig"} <= set(found)
    assert "distributed" not in found
    assert "dpzv-audit" not in found


def test_the_lock_with_hashes_has_the_versions_that_were_tested(lock):
    pinned = lock.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = set(lock.needed(()))
    assert {"torch", "numpy", "pydantic-core"} <= packages
    assert lock.hash_mistakes(text, packages, pinned) == []
    older = text.replace(f"numpy=={pinned['numpy']} ", "numpy==1.26.0 ")
    assert "numpy is 1.26.0, constraints.txt has" in lock.hash_mistakes(older, packages, pinned)[0]
    assert "lacks numpy" in lock.hash_mistakes(text.replace("\nnumpy==", "\n# numpy=="), packages, pinned)[0]
