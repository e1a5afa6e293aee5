"""Completion in a shell: commands, flags and names, without torch."""

import os
import subprocess
import sys

import pytest

PROGRAM = (
    "import sys; from dpzv_audit.cli import main; code = main(sys.argv[1:]); "
    "sys.exit('torch was loaded' if 'torch' in sys.modules else code)"
)


def ended(*arguments, **environment):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("dpzv-audit at", "attack"),
        ("dpzv-audit audit sco", "scores"),
        ("dpzv-audit train --dataset mni", "mnist"),
        ("dpzv-audit account --sampl", "--sampler"),
        ("dpzv-audit attack --method zoo", "zoo-vfl"),
        ("dpzv-audit attack --attack label_sc", "label_scalar"),
        ("dpzv-audit train --defence label-", "label-cluster"),
        ("dpzv-audit audit defence mar", "marvell"),
    ],
)
def test_the_last_word_is_completed(line, completed):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_DPZV_AUDIT_COMPLETE": "complete_bash"}
    done = ended(**words)
    assert (done.returncode, done.stderr) == (0, "")
    assert completed in done.stdout.split()


def test_nothing_after_audit_completes_to_its_commands():
    words = {"COMP_WORDS": "dpzv-audit audit ", "COMP_CWORD": "2", "_DPZV_AUDIT_COMPLETE": "complete_bash"}
    assert "coverage" in ended(**words).stdout.split()


def test_a_shell_without_completion_is_no_refuted_claim():
    done = ended(_DPZV_AUDIT_COMPLETE="complete_abc", COMP_WORDS="dpzv-audit at", COMP_CWORD="1")
    assert (done.returncode, done.stderr.strip()) == (2, "Shell abc not supported.")


def test_help_says_each_flag_of_completion_on_one_line(cli):
    lines = [line for line in cli("--help").out.splitlines() if "completion" in line]
    assert [line.split()[0] for line in lines] == ["--install-completion", "--show-completion"]


def test_a_module_that_ends_the_process_as_it_is_imported_is_no_success(tmp_path):
    (tmp_path / "csv.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "claims.toml").write_text("[[claim]]\nname = 'a'\nmethod = 'dpzv'\nepsilon = 1.0\n")
    command = [sys.executable, "-m", "dpzv_audit", "verify", "claims.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
