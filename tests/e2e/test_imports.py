"""What importing costs, and what happens where another package has the name of one of ours."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "sklearn", "scipy.stats", "prv_accountant")
NOT_FOR_HELP = (
    *("torch", "matplotlib", "sklearn", "prv_accountant", "scipy", "numpy", "pydantic", "rich", "jinja2", "joblib"),
    *("safetensors", "transformers", "distributed", "pandas", "http.client", "asyncio", "multiprocessing"),
)
"""What the list of commands must do without, so that it is there at once."""


def python(tool, code, **options):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**tool.environment, **options.pop("env", {})},
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import dpzv_audit",
        "from dpzv_audit import audit_scores; audit_scores([0.0] * 50, [1.0] * 50, delta=1e-5)",
        "from dpzv_audit.cli import main; assert main(['--help']) == 0",
        "from dpzv_audit.cli import main; assert main(['attack', '--help']) == 0",
        "from dpzv_audit.cli import main; assert main(['list', 'adversaries']) == 0",
        "from dpzv_audit.cli import main; assert main(['list', 'attacks']) == 0",
        "from dpzv_audit.cli import main; assert main(['list', 'methods']) == 0",
        "from dpzv_audit.cli import main; assert main(['list', 'defences']) == 0",
        "from dpzv_audit.data import load; load('digits')",
    ],
)
def test_nothing_heavy_is_loaded(tool, tmp_path, code):
    done = python(tool, f"{code}\nimport sys\nprint(sorted(set(sys.modules) & set({HEAVY})))", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--method", "dpzv", "--dataset", "digits"),
        ("--method", "dpzv-sound", "--dataset-size", "1000", "--clients", "2"),
        ("--method", "dp-zo", "--dataset-size", "1000", "--clients", "2"),
        ("--method", "feature-private", "--dataset-size", "1000", "--clients", "2"),
    ],
)
def test_the_account_of_a_method_whose_rounds_stand_apart_loads_no_torch_and_no_attack(tool, tmp_path, arguments):
    code = f"from dpzv_audit.cli import main; assert main(['account', *{arguments}]) == 0"
    done = python(tool, f"{code}\nimport sys\nprint(sorted(set(sys.modules) & {{'torch', 'attacks'}}))", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_help_of_a_command_loads_no_scipy_either(tool, tmp_path):
    code = "from dpzv_audit.cli import main; assert main(['attack', '--help']) == 0"
    done = python(tool, f"{code}\nimport sys\nprint('scipy' in sys.modules)", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "False"


CLAIMS = """
[[claim]]
name = "simulated"
method = "dpzv"
epsilon = 1.0
records = 100
clients = 1
config = {epochs = 1, batch_size = 50}

[[claim]]
name = "scored"
scores = {in = "in.csv", out = "out.csv"}
epsilon = 1.0
"""


@pytest.mark.ci
def test_a_cached_verify_and_a_check_of_scores_load_no_torch(tool, tmp_path):
    (tmp_path / "claims.toml").write_text(CLAIMS)
    for side in ("in", "out"):
        (tmp_path / f"{side}.csv").write_text("\n".join(map(str, range(60))))

    def loaded(*options):
        code = f"from dpzv_audit.cli import main; assert main(['verify', 'claims.toml', *{options}]) in (0, 1)"
        done = python(tool, f"{code}\nimport sys\nprint('torch' in sys.modules)", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1] == "True"

    everything = ("--cache", "cache", "--out", "out")
    assert loaded(*everything)
    assert not loaded(*everything)
    assert not loaded("--check", "--only", "scored")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["--version"]])
def test_the_list_of_commands_loads_no_library_but_typer(tool, tmp_path, arguments):
    code = f"from dpzv_audit.cli import main; assert main({arguments}) == 0"
    done = python(tool, f"{code}\nimport sys\nprint(sorted(set(sys.modules) & set({NOT_FOR_HELP})))", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("package", ["attacks", "mechanisms", "reports"])
def test_a_shadowing_package_is_named_with_the_cure(tool, tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    code = "import dpzv_audit; dpzv_audit.audit_scores"
    used = python(tool, code, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    ran = tool("list", "methods", module=True, cwd=tmp_path)
    assert (used.returncode, ran.returncode) == (1, 2)
    for done, before in ((used, "ImportError: "), (ran, "dpzv-audit: error: ")):
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"{before}dpzv-audit needs its own package '{package}', but Python finds ")
        assert str(tmp_path / package) in last
        assert "PYTHONSAFEPATH=1" in last
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.ci
def test_the_cure_works(tool, tmp_path):
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "__init__.py").write_text("")
    done = tool("list", "methods", module=True, cwd=tmp_path, env={"PYTHONSAFEPATH": "1"})
    assert (done.returncode, done.stderr) == (0, "")


def test_the_installed_command_ignores_the_folder_it_runs_in(tool, tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").write_text("raise SystemExit(9)")
    assert tool("list", "methods", cwd=tmp_path).returncode == 0
