"""The cases of the gate: evidence that went stale, and a file of true and false claims. Each ends as its page says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def folder(cases, tmp_path, monkeypatch, own_cache):
    """Return a function that copies a case to a folder of its own, which then is the current one."""

    def copied(name):
        shutil.copytree(cases / "gate" / name, tmp_path / name, copy_function=shutil.copyfile)
        monkeypatch.chdir(tmp_path / name)
        return tmp_path / name

    return copied


@pytest.mark.ci
def test_a_file_of_true_and_false_claims_is_red_and_keeps_the_true_one(folder, cli):
    command = (folder("32-ci") / "cmd").read_text()
    assert command.startswith("dpzv-audit ")
    result = cli.answer(command.removeprefix("dpzv-audit"), code=1)
    verdicts = {claim["name"]: claim["verdict"] for claim in result["claims"]}
    refuted = {name for name, verdict in verdicts.items() if verdict == "refuted"}
    assert {"sum of a missing bin", "loss scores"} <= refuted
    assert "a true claim" not in refuted


RELIABILITY = {
    "npy-bool-shape": ("audit scores boolshape.npy boolshape.npy", "boolshape.npy: is not a complete NPY"),
    "toml-hexint": ("verify hexbig.toml --check", "hexbig.toml:4: epsilon is a whole number of 16,000 bits"),
    "transcript-nul": (
        "attack --transcript nulf/run --labels nulf/labels.csv --attack label_norm",
        "nulf/run/manifest.json: key files holds 'tensors.safetensors\\x00'",
    ),
}


@pytest.mark.parametrize("name", RELIABILITY)
def test_a_file_that_breaks_readers_is_one_line(cases, tmp_path, monkeypatch, cli, name):
    arguments, says = RELIABILITY[name]
    shutil.copytree(cases / "reliability" / name, tmp_path / name, copy_function=shutil.copyfile)
    monkeypatch.chdir(tmp_path / name)
    assert says in cli.refusal(arguments)
    assert not Path("dpzv-runs").exists()


@pytest.mark.ci
@pytest.mark.parametrize("module", ["pipes", "code"])
def test_a_module_of_the_folder_is_meant_whatever_it_is_called(folder, cli, monkeypatch, module):
    command = (folder("32-ci") / "shadow" / "cmd").read_text().split()
    monkeypatch.chdir("shadow")
    assert cli("", *command[1:3], f"{module}:fine", *command[4:], "--quiet").code == 0
    text = Path("claims.toml").read_text()
    Path("claims.toml").write_text(text.replace("pipes:", f"{module}:"))
    result = cli.answer("verify claims.toml --trust-code --max-trials 1000 --no-cache", code=1)
    verdicts = {claim["name"]: claim["verdict"] for claim in result["claims"]}
    assert verdicts["sum of a missing bin"] == "refuted"
    assert verdicts["a true claim"] != "refuted"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "codes"), [("f2_env_cache", [0, 1, 1]), ("f3_stale_pyc", [1, 1, 1])])
def test_stale_evidence_is_red(cases, forked, tmp_path, name, codes):
    """The scripts of the cases, with the command in a fork of a process that has loaded the tool."""
    command = tmp_path / "dpzv-audit"
    command.write_text("#!/bin/sh\nexec " + " ".join(f'"{word}"' for word in forked) + ' "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = ["bash", str(cases / "gate" / name / "run.sh")]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    ended = [int(line.split()[-1]) for line in done.stdout.splitlines() if " exit " in line or ": exit" in line]
    assert ended == codes, done.stdout + done.stderr
