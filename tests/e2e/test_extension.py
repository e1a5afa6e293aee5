"""An outside package, installed beside this one: its method, attack and data set work in every command.

It is what examples/extension/README.md, docs/guide/own-attack.md and CONTRIBUTING.md show; its contract tests
run in `tests/dpzv_audit/testing`.
"""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci  # each command is a process of its own, which imports the package anew
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "extension"
PACKAGE = "dpzv-audit-orchard 1.0"
SMALL = ("--dataset", "orchard", "--epochs", "1", "--seed", "0")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where the package is installed, by an installer, from a copy: building leaves files beside the source."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("extension")
    shutil.copytree(EXAMPLE, folder / "source")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*install, "--target", str(folder / "site"), str(folder / "source")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture
def here(site, tmp_path):
    """A folder with a copy of what is installed and of the example's data and claims."""
    shutil.copytree(site, tmp_path / "site")
    shutil.copytree(EXAMPLE / "data", tmp_path / "data")
    shutil.copy(EXAMPLE / "claims.toml", tmp_path)
    return tmp_path


def environment(folder):
    return {"PYTHONPATH": str(folder / "site"), "DPZV_AUDIT_DATA": str(folder / "data")}


@pytest.mark.parametrize(
    ("what", "names"),
    [("methods", ["masked", "sign-feedback"]), ("attacks", ["label_largest"]), ("datasets", ["orchard"])],
)
def test_list_names_it_with_its_package(tool, here, what, names):
    done = tool("list", what, env=environment(here))
    lines = [line for line in done.stdout.splitlines() if f"[{PACKAGE}]" in line]
    assert [line.split()[0] for line in lines] == names
    assert all(line.endswith(f"[{PACKAGE}]") for line in lines)


def test_the_zeroth_order_method_trains_at_one_bit_a_round(tool, here):
    result = tool.json("train", "--method", "sign-feedback", *SMALL, "--no-controls", cwd=here, env=environment(here))
    assert result["method"] == "sign-feedback"


@pytest.mark.slow
def test_attack_accounts_its_noise_by_what_it_states(tool, here):
    command = ("attack", "--method", "masked", "--attack", "label_largest", *SMALL, "--trials", "2", "--runs", "0")
    clear = tool.json(*command, "--set", "sigma=0", cwd=here, env=environment(here))
    assert (clear["method"], clear["attack"], clear["dataset"]) == ("masked", "label_largest", "orchard")
    assert clear["success"]["value"] == 1.0
    assert clear["controls"]["positive"]["value"] >= 0.95
    assert clear["privacy"]["gap"] == "no-noise"
    noised = tool.json(*command, "--set", "sigma=40", cwd=here, env=environment(here))
    assert noised["success"]["value"] < 0.6
    bound = next(bound for bound in noised["privacy"]["bounds"] if bound["accountant"] == "gdp-exact")
    # Each of the three clients goes through the data once at most: a record takes part three times, and moves by 2C.
    assert bound["sound"]
    assert bound["mu"] == pytest.approx(math.sqrt(3) * 2.0 / 40.0)


def test_audit_takes_the_data_set_and_says_where_a_method_has_no_game(tool, here, refused):
    options = (*SMALL, "--runs", "40")
    result = tool.json("audit", "method", "dpzv", *options, cwd=here, env=environment(here))
    assert result["dataset"] == "orchard"
    done = tool("audit", "method", "masked", *options, cwd=here, env=environment(here))
    assert "masked" in refused(done, 2)


@pytest.mark.slow
def test_train_resumes(tool, here):
    command = (
        "train",
        "--method",
        "masked",
        "--dataset",
        "orchard",
        "--epochs",
        "3",
        "--no-controls",
        "--set",
        "sigma=0",
    )
    whole = tool.json(*command, cwd=here, env=environment(here))
    again = tool.json(*command, "--resume", cwd=here, env=environment(here))
    assert again["utility"] == whole["utility"]


@pytest.mark.slow
def test_verify_in_workers_audits_again_where_data_or_code_changed(tool, here):
    command = ("verify", "claims.toml", "--jobs", "2", "--cache", "cache")

    def verified():
        result = tool.json(*command, cwd=here, env=environment(here))
        return result["cached"], {claim["name"]: claim["verdict"] for claim in result["claims"]}

    cached, verdicts = verified()
    assert not cached
    assert verdicts["labels of masked gradients stay hidden"] != "refuted"
    again, same = verified()
    assert len(again) == len(verdicts)
    assert same == verdicts
    table = here / "data" / "orchard" / "orchard.csv"
    table.write_text(table.read_text().replace(",plum", ",pear", 1))
    assert verified()[0] == ["three passes under noise"]  # which trains on no data
    code = here / "site" / "dpzv_audit_orchard" / "label_largest.py"
    code.write_text(code.read_text() + "\n# changed\n")
    assert not verified()[0]


@pytest.mark.slow
def test_a_matrix_holds_it_and_resumes(tool, here):
    command = (
        "matrix",
        "--methods",
        "masked,vafl",
        "--attacks",
        "label_largest",
        *SMALL,
        "--trials",
        "2",
        "--jobs",
        "2",
    )
    result = tool.json(*command, cwd=here, env=environment(here))
    cells = {cell["method"]: cell for cell in result["cells"]}
    assert {cell["state"] for cell in cells.values()} == {"measured"}
    again = tool.json(*command, "--resume", cwd=here, env=environment(here))
    assert again["cells"] == result["cells"]


@pytest.mark.slow
def test_a_broken_package_is_one_line_and_stops_no_other_command(tool, here, refused):
    (here / "site" / "dpzv_audit_orchard" / "masked.py").write_text("import nowhere_at_all\n")
    message = refused(tool("train", "--method", "masked", *SMALL, cwd=here, env=environment(here)), 2)
    assert message.startswith(
        f"'masked' of {PACKAGE} (entry point masked = dpzv_audit_orchard.masked:SPEC in dpzv_audit.m"
    )
    assert message.endswith("cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'")
    assert tool("train", "--epochs", "1", "--no-controls", cwd=here, env=environment(here)).returncode == 0
    listed = tool("list", "methods", env=environment(here))
    assert listed.returncode == 0
    assert listed.stderr.strip() == message


def test_two_packages_of_one_name_are_told_by_both(tool, here, refused):
    second = here / "site" / "other-2.0.dist-info"
    second.mkdir()
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    (second / "entry_points.txt").write_text("[dpzv_audit.methods]\nmasked = dpzv_audit_orchard.masked:SPEC\n")
    message = refused(tool("train", "--method", "masked", *SMALL, cwd=here, env=environment(here)), 2)
    assert PACKAGE in message
    assert "other 2.0" in message
