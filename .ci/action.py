"""Runs action.yml as a runner of GitHub would, in clean environments, and checks what it leaves behind.

    .venv/bin/python .ci/action.py                          everything; fetches 3 GB, twice
    .venv/bin/python .ci/action.py --lock versions          the same by constraints.txt, as with a torch without CUDA
    .venv/bin/python .ci/action.py --installed ENVIRONMENT  quick: with an environment that holds the tool
                                                            already, and what examples/ci/requirements.txt names

Steps, inputs, conditions and outputs are read from action.yml; expressions are evaluated by the few lines below. A job
has a home and a temporary folder of its own, and nothing of this machine but PATH, where packages come from, and one
thread. After the installation no step has a network, where `unshare` can take it away. The first job of a repository
installs, the later ones take its environment. Needs PyYAML, which mkdocs brings.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import yaml

ROOT = Path(__file__).resolve().parents[1]
WAYS_TO_PACKAGES = re.compile(r"PIP_.*|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy", re.IGNORECASE)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FULL_SHA = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
MISTAKEN = """\
# A mechanism of the repository that uses the action: noise of scale 0.2, where epsilon 1 takes 1.
from toolz import identity


def noisy(world, rng):
    return identity(world + rng.laplace(0.0, 0.2))


def release():
    return noisy
"""
CLAIMS = """\
[[claim]]
name = "our release has epsilon 1"
mechanism = "release:release"
epsilon = 1.0

[[claim]]
name = "our release has epsilon 6"
mechanism = "release:release"
epsilon = 6.0
"""
_TOKEN = re.compile(r"\s*(?:'(?P<text>[^']*)'|(?P<sign>==|!=|&&|\|\|)|(?P<name>[A-Za-z_][\w.-]*)(?P<call>\(\))?)")


class Wrong(Exception):
    """Something that the action does is not what it should do."""


def must(holds: object, words: str) -> None:
    """Raise `Wrong` unless it holds."""
    if not holds:
        raise Wrong(words)


def evaluate(expression: str, context: Mapping[str, str]) -> str:
    """Return the value of an expression of names, texts in quotes, `==`, `!=`, `&&`, `||` and `always()`, as text."""
    parts: list[str] = []
    place = 0
    while expression[place:].strip():
        token = _TOKEN.match(expression, place)
        must(token, f"no expression that this script can evaluate: {expression!r}")
        place = token.end()
        if token["sign"]:
            parts.append({"&&": "and", "||": "or"}.get(token["sign"], token["sign"]))
        elif token["call"]:
            must(token["name"] == "always", f"an unknown function: {token['name']}")
            parts.append("'true'")
        elif token["name"]:
            # As on GitHub, an output that was never set is empty; any other name must be known.
            outputs = re.fullmatch(r"steps\.[\w-]+\.outputs\.[\w-]+", token["name"])
            must(outputs or token["name"] in context, f"an unknown name: {token['name']}")
            parts.append(repr(context.get(token["name"], "")))
        else:
            parts.append(repr(token["text"]))
    found = eval(" ".join(parts), {"__builtins__": {}})  # literals and operators alone: see above
    return str(found).lower() if isinstance(found, bool) else found


def filled(text: str, context: Mapping[str, str]) -> str:
    """Return the text with its expressions evaluated."""
    return re.sub(r"\$\{\{(.+?)\}\}", lambda match: evaluate(match[1], context), text)


def obeyed(log: str) -> list[str]:
    """Return the commands in a log that a runner obeys: none between `stop-commands` and its token."""
    found = []
    token = ""
    for line in log.splitlines():
        if token:
            token = "" if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif re.match(r"::\w", line):
            found.append(line)
    return found


@dataclass
class Ran:
    """A use of the action: how it ended, what it said and what it left."""

    failed: bool
    outputs: dict[str, str]
    log: str
    summary: str
    seconds: float

    @property
    def annotations(self) -> list[str]:
        """Return the commands of the log that show something to a reader."""
        return [line for line in obeyed(self.log) if line.startswith(("::error", "::warning", "::notice"))]

    def sarif(self) -> list[tuple[str, int]]:
        """Return level and line of every result in the SARIF file."""
        results = json.loads(Path(self.outputs["sarif"]).read_text())["runs"][0]["results"]
        return [(one["level"], one["locations"][0]["physicalLocation"]["region"]["startLine"]) for one in results]

    def junit(self) -> tuple[int, int]:
        """Return how many tests and failures the JUnit file counts."""
        root = ElementTree.parse(self.outputs["junit"]).getroot()
        return int(root.attrib["tests"]), int(root.attrib["failures"])


@dataclass
class Repository:
    """A repository whose workflow uses the action at `action`: its cache outlives its jobs, their folders do not."""

    folder: Path
    workspace: Path
    action: Path
    installed: Path | None
    uses: int = 0
    saved: dict[str, list[tuple[Path, Path]]] = field(default_factory=dict)
    """Copies in the cache by key: (where it was, the copy of it)."""

    def use(self, **given: str) -> Ran:
        """Run all steps of the action, as one job with the inputs that are `given`."""
        self.uses += 1
        folder = self.folder / f"job-{self.uses}"
        for part in ("home", "temp"):
            (folder / part).mkdir(parents=True)
        action = yaml.safe_load((self.action / "action.yml").read_text())
        inputs = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
        must(given.keys() <= inputs.keys(), f"no such input: {given.keys() - inputs.keys()}")
        context = {f"inputs.{name}": given.get(name, value) for name, value in inputs.items()}
        context |= {"github.action_path": str(self.action), "github.job": "claims", "github.workflow": "privacy"}
        context |= {"github.run_id": str(self.uses), "github.run_attempt": "1"}
        context |= {"runner.os": "Linux", "runner.temp": str(folder / "temp")}
        job = _Job(self, folder, context)
        started = time.monotonic()
        for step in action["runs"]["steps"]:
            job.step(step)
        if self.installed is None:
            self.installed = Path(context.get("steps.install.outputs.work", "")) / "env"
        outputs = {name: filled(one["value"], context) for name, one in action["outputs"].items()}
        summary = folder / "summary.md"
        seen = summary.read_text() if summary.exists() else ""
        ran = Ran(job.failed, outputs, job.log, seen, time.monotonic() - started)
        (folder / "log").write_text(ran.log)
        return ran


@dataclass
class _Job:
    repository: Repository
    folder: Path
    context: dict[str, str]
    failed: bool = False
    log: str = ""
    path: str = os.environ["PATH"]

    def step(self, step: Mapping[str, object]) -> None:
        """Run one step of a composite action, or skip it as its condition says."""
        condition = str(step.get("if", ""))
        if self.failed and "always()" not in condition:
            return
        if condition and evaluate(condition, self.context) in ("", "false"):
            return
        if "uses" in step:
            must(FULL_SHA.fullmatch(step["uses"]), f"{step['uses']} is not pinned by a full SHA")
            name = step["uses"].partition("@")[0]
            options = {key: filled(str(value), self.context) for key, value in step["with"].items()}
            known = {"actions/setup-python": self._python, "actions/cache/restore": self._restore}
            known["actions/cache/save"] = self._save
            must(name in known, f"this script does not know {name}")
            known[name](options)
        else:
            must(step["shell"] == "bash" and "${{" not in step["run"], f"{step['run']!r} has an expression in its code")
            self._run(step)

    def _python(self, options: Mapping[str, str]) -> None:
        """Put a Python of the version first on the path, or what runs this script, where there is none."""
        wanted = shutil.which(f"python{options['python-version']}")
        works = wanted and subprocess.run([wanted, "-c", ""], capture_output=True, check=False).returncode == 0
        found = wanted if works else sys.executable
        command = [found, "-c", "import sys; print(sys.executable)"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("python", "python3"):
            (tools / name).write_text(f'#!/bin/sh\nexec "{shown.stdout.strip()}" "$@"\n')
            (tools / name).chmod(0o755)
        self.path = f"{tools}:{self.path}"

    def _places(self, options: Mapping[str, str]) -> list[Path]:
        lines = [line.strip() for line in options["path"].splitlines() if line.strip()]
        home = str(self.folder / "home")
        return [self.repository.workspace / line.replace("~", home, 1) for line in lines]

    def _restore(self, options: Mapping[str, str]) -> None:
        for prefix in (options["key"], *(line.strip() for line in options["restore-keys"].splitlines())):
            for key in reversed(self.repository.saved):
                if key.startswith(prefix):
                    for place, (_, copy) in zip(self._places(options), self.repository.saved[key], strict=True):
                        if copy.exists():
                            place.parent.mkdir(parents=True, exist_ok=True)
                            _copy(copy, place)
                    return

    def _save(self, options: Mapping[str, str]) -> None:
        must(options["key"] not in self.repository.saved, f"the cache has {options['key']} already")
        kept = []
        for number, place in enumerate(self._places(options)):
            copy = self.folder / "cache" / str(number)
            copy.parent.mkdir(exist_ok=True)
            if place.exists():
                _copy(place, copy)
            kept.append((place, copy))
        self.repository.saved[options["key"]] = kept

    def _run(self, step: Mapping[str, object]) -> None:
        name = step.get("id", "")
        own = self.repository.installed
        if name == "install" and own is not None:
            (self.folder / "temp" / "work").mkdir()
            (self.folder / "temp" / "work" / "env").symlink_to(own)
            self.context["steps.install.outputs.work"] = str(self.folder / "temp" / "work")
            self.context["steps.install.outputs.use"] = filled(step["env"]["USE"], self.context)
            return
        output = self.folder / f"output-{name}"
        output.touch()
        env = {key: value for key, value in os.environ.items() if WAYS_TO_PACKAGES.fullmatch(key)}
        env |= {"PATH": self.path, "HOME": str(self.folder / "home"), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        env |= {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output)}
        env |= {"GITHUB_STEP_SUMMARY": str(self.folder / "summary.md")}
        env |= {"GITHUB_WORKSPACE": str(self.repository.workspace)}
        env |= {key: filled(str(value), self.context) for key, value in step.get("env", {}).items()}
        script = self.folder / f"script-{name}.sh"
        script.write_text(step["run"])
        shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)]
        done = subprocess.run(
            [*([] if name == "install" else without_network()), *shell],
            cwd=self.repository.workspace,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.log += done.stdout
        for line in output.read_text().splitlines():
            key, equals, value = line.partition("=")
            must(equals, f"no output: {line!r}")
            self.context[f"steps.{name}.outputs.{key}"] = value
        self.failed = self.failed or done.returncode != 0


def without_network() -> list[str]:
    """Return what runs a command without any network; nothing where that is not allowed here."""
    command = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") is None:
        return []
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def checkout(target: Path) -> Path:
    """Copy what git tracks or would track to `target`, as a runner has it."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def from_a_checkout(folder: Path, installed: Path | None, **given: str) -> None:
    """`uses: ./` in a checkout of this repository: a true claim, then a false one beside a true one."""
    here = checkout(folder / "checkout")
    repository = Repository(folder, workspace=here, action=here, installed=installed)
    ran = repository.use(claims=".github/claims/true.toml", **given)
    told("a checkout, a true claim", ran)
    must(not ran.failed and ran.outputs["exit-code"] == "0", "a true claim must pass")
    must(ran.junit() == (1, 0), f"JUnit counts {ran.junit()}")
    must(ran.sarif() == [("none", 3)], f"SARIF holds {ran.sarif()}")
    must(ran.annotations == [], f"annotations of a true claim: {ran.annotations}")
    must("supported" in ran.summary, "the step summary lacks the verdict")
    must(list(Path(ran.outputs["report"]).glob("*/report.html")), "no report")

    ran = repository.use(claims=".github/claims/false.toml", ledger="ledger.jsonl", **given)
    told("a checkout, a false claim", ran)
    must(ran.failed and ran.outputs["exit-code"] == "1", "a false claim must fail, with exit code 1")
    must(ran.junit() == (2, 1), f"JUnit counts {ran.junit()}")
    must(ran.sarif() == [("error", 3), ("none", 8)], f"SARIF holds {ran.sarif()}")
    at = "::error file=.github/claims/false.toml,line=3,title=privacy claim refuted::"
    must(len(ran.annotations) == 1 and ran.annotations[0].startswith(at), f"annotations: {ran.annotations}")
    must("refuted" in ran.summary and "supported" in ran.summary, "the step summary lacks a verdict")
    cache, ledger = [copy for _, copy in list(repository.saved.values())[-1]]
    must(list(cache.rglob("*")), "the cache was not kept after the red run")
    looks = ledger.read_text()
    must("refuted" in looks, "the ledger was not kept after the red run")

    (here / "ledger.jsonl").unlink()  # as in a fresh checkout
    ran = repository.use(claims=".github/claims/false.toml", ledger="ledger.jsonl", **given)
    told("the same again, from the cache", ran)
    must(ran.failed and ran.outputs["exit-code"] == "1", "a false claim must fail again")
    must(ran.log.count("From the cache: 2 of 2 claims") == 1, "evidence must come from the cache")
    must((here / "ledger.jsonl").read_text() == looks, "the same evidence must be no further look of the ledger")

    (here / "broken.toml").write_text('[[claim]]\nname = "a"\nmetod = "dpzv"\nepsilon = 1.0\n')
    ran = repository.use(claims="broken.toml", **given)
    told("a claims file that is wrong", ran)
    must(ran.failed and ran.outputs["exit-code"] == "2", "a wrong file must fail, with exit code 2")
    must(ran.outputs["sarif"] == "", "there are no verdicts, so there is no SARIF file")
    at = "::error file=broken.toml,line=3,title=dpzv-audit verify ended with exit code 2::"
    must(len(ran.annotations) == 1 and ran.annotations[0].startswith(at), f"annotations: {ran.annotations}")


def from_a_tag(folder: Path, **given: str) -> None:
    """`uses: owner/name@tag` in a repository of somebody else's, whose mechanism needs a package of its own."""
    action = checkout(folder / "_actions" / "dpzv-audit" / "dpzv-audit" / "tag")
    workspace = folder / "somebody"
    workspace.mkdir()
    (workspace / "release.py").write_text(MISTAKEN)
    (workspace / "claims.toml").write_text(CLAIMS)
    (workspace / "requirements.txt").write_text("toolz\n")
    repository = Repository(folder, workspace=workspace, action=action, installed=None)
    ran = repository.use(requirements="requirements.txt", arguments="--max-trials 4000\n--trust-code", **given)
    told("a tag, a mechanism with requirements, one claim of two false", ran)
    must(ran.failed and ran.outputs["exit-code"] == "1", "a false claim must fail, with exit code 1")
    must(ran.junit() == (2, 1), f"JUnit counts {ran.junit()}")
    at = "::error file=claims.toml,line=1,title=privacy claim refuted::"
    must(len(ran.annotations) == 1 and ran.annotations[0].startswith(at), f"annotations: {ran.annotations}")
    must(not (workspace / "dpzv-runs").exists(), "the action writes into the workspace")

    ran = repository.use(claims="claims.toml", arguments="", **given)
    told("a tag, code without trust", ran)
    must(ran.outputs["exit-code"] == "2" and "--trust-code" in ran.annotations[0], "code must not run without trust")

    (workspace / "release.py").write_text("raise SystemExit(7)\n")
    ran = repository.use(claims="claims.toml", arguments="--check", **given)
    told("a tag, a check of the same claims, whose code cannot be imported", ran)
    must(not ran.failed and not ran.outputs["sarif"], "a check must pass, without verdicts")


def the_skeleton(folder: Path, installed: Path) -> None:
    """Run what examples/ci/README.md lists, as it stands: workflow, GitLab job and hook; then without noise."""
    here = folder / "skeleton"
    shutil.copytree(ROOT / "examples" / "ci", here)
    workflow = yaml.safe_load((here / ".github" / "workflows" / "privacy.yml").read_text())
    used = next(step for step in workflow["jobs"]["claims"]["steps"] if step.get("id") == "audit")
    must(used["uses"] == f"dpzv-audit/dpzv-audit@v{VERSION}", f"the skeleton uses {used['uses']}")
    repository = Repository(folder, workspace=here, action=ROOT, installed=installed)
    ran = repository.use(**used["with"])
    told("the skeleton on GitHub", ran)
    must(not ran.failed and ran.junit() == (2, 0), f"both claims must pass: JUnit counts {ran.junit()}")
    must("held" in ran.summary and "inconclusive" in ran.summary, "the step summary lacks a verdict")

    gitlab(here, installed)

    config = yaml.safe_load((here / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    for source in config["repos"]:
        must(source["rev"] == f"v{VERSION}", f"the skeleton takes hooks of {source['rev']}")
        for hook in source["hooks"]:
            whole = hooks[hook["id"]] | hook
            command = [*shlex.split(whole["entry"]), *whole["args"]]
            done = subprocess.run([installed / "bin" / command[0], *command[1:]], cwd=here, check=False)
            must(done.returncode == 0, f"the hook {hook['id']} ended with exit code {done.returncode}")

    federation = here / "federation.py"
    federation.write_text(federation.read_text().replace("NOISE = 0.01, 2.0", "NOISE = 0.01, 0.0"))
    ran = repository.use(**used["with"])
    told("the skeleton on GitHub, without its noise", ran)
    at = "::error file=claims.toml,line=3,title=privacy claim refuted::"
    must(ran.failed and len(ran.annotations) == 1 and ran.annotations[0].startswith(at), f"{ran.annotations}")


def gitlab(here: Path, installed: Path) -> None:
    """Run the script of `.gitlab-ci.yml` in `here`, with the environment `installed` in place of its image."""
    job = yaml.safe_load((here / ".gitlab-ci.yml").read_text())["privacy"]
    given = {name: str(value).replace("$CI_PROJECT_DIR", str(here)) for name, value in job["variables"].items()}
    env = {key: value for key, value in os.environ.items() if WAYS_TO_PACKAGES.fullmatch(key)}
    env |= {"PATH": f"{installed / 'bin'}:{os.environ['PATH']}", "HOME": str(here.parent), "LANG": "C.UTF-8"}
    env |= {"CI": "true", "GITLAB_CI": "true", "CI_PROJECT_DIR": str(here), "OMP_NUM_THREADS": "1", **given}
    started = time.monotonic()
    script = "\n".join(job["script"])
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=here, env=env, check=False)
    print(f"the skeleton on GitLab: exit code {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)
    must(done.returncode == 0, "the job of .gitlab-ci.yml must pass")
    counted = ElementTree.parse(here / job["artifacts"]["reports"]["junit"]).getroot().attrib
    must((counted["tests"], counted["failures"]) == ("2", "0"), f"JUnit counts {counted}")
    for kept in (place for cache in job["cache"] for place in cache["paths"]):
        must(any((here / kept).iterdir()), f"the job leaves nothing in its cache {kept}")
    for kept in job["artifacts"]["paths"]:
        must(list((here / kept).glob("*/report.html")), f"the job leaves no report in {kept}")


def told(what: str, ran: Ran) -> None:
    """Print what was run, how it ended and what a reader of the workflow sees of it."""
    print(f"{what}: exit code {ran.outputs['exit-code'] or 'none'}, {ran.seconds:.0f} s", flush=True)
    for line in ran.annotations:
        print(f"    {line[:150]}")
    if not ran.outputs["exit-code"]:
        raise Wrong(f"the action ended before the verification:\n{ran.log[-3000:]}")


def main() -> int:
    """Run all; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", choices=("hashes", "versions"), help="the input lock; by default that of action.yml")
    parser.add_argument("--installed", type=Path, help="an environment with the tool: installs nothing")
    parser.add_argument("--keep", type=Path, help="a folder for what the jobs leave, logs too; by default temporary")
    options = parser.parse_args()
    given = {} if options.lock is None else {"lock": options.lock}
    print(f"network after the installation: {'none' if without_network() else 'as it is here'}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        try:
            from_a_checkout(folder / "checkout", options.installed and options.installed.absolute(), **given)
            if options.installed is None:
                from_a_tag(folder / "tag", **given)
            else:
                the_skeleton(folder, options.installed.absolute())
        except Wrong as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
