"""Audits the libraries of the gallery, each in an environment of its own, and prints a table.

    python examples/found/environments.py FOLDER                        all of them, a quarter of an hour
    python examples/found/environments.py FOLDER --only flower-1.42.0
    python examples/found/environments.py FOLDER --list                 what there is

Environments are made below FOLDER with this Python and stay there; each needs about 2 GB. What cannot be installed is
skipped with one line that says why. What SmartNoise 1.0.5 shows stands in docs/found/smartnoise-covariance.md.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Environment:
    """What is installed beside dpzv-audit, with what it needs or, if `alone`, without, and what is audited there."""

    packages: tuple[str, ...]
    subjects: tuple[str, ...]
    alone: tuple[str, ...] = ()


KMEANS = ("diffprivlib_kmeans:subject", "diffprivlib_kmeans:empty_cluster", "diffprivlib_kmeans:full_clusters")
REGRESSION = ("diffprivlib_regression:subject", "diffprivlib_regression:symmetric")
HELD = ("held_diffprivlib:mean", "held_diffprivlib:median", "held_diffprivlib:gaussian")
OPACUS = ("opacus_noise", "opacus_adaptive", "opacus_order")
SMARTNOISE = tuple(f"smartnoise_covariance:{name}" for name in ("subject", "triangle", "equal_ranges"))
ENVIRONMENTS = {
    "opacus-1.6.0": Environment(("opacus==1.6.0",), tuple(f"{name}:subject" for name in OPACUS)),
    "diffprivlib-0.6.6": Environment(("diffprivlib==0.6.6", "scikit-learn==1.7.2"), (*REGRESSION, *KMEANS, *HELD)),
    "datasynthesizer-0.1.13": Environment(
        ("DataSynthesizer==0.1.13",),
        tuple(f"datasynthesizer_domain:{name}" for name in ("subject", "default_seed", "public_domain")),
    ),
    "smartnoise-1.0.5": Environment(("pandas",), SMARTNOISE, alone=("smartnoise-synth==1.0.5",)),
    "smartnoise-1.0.8": Environment(("pandas",), SMARTNOISE, alone=("smartnoise-synth==1.0.8",)),
    "flower-1.42.0": Environment(("flwr==1.42.0",), ("flower_weights:subject", "flower_weights:equal_weights")),
}


class NotInstalled(Exception):
    """An environment could not be made."""


def made(name: str, folder: Path) -> Path:
    """Return the Python of an environment, which is made where it is not there yet."""
    environment, place = ENVIRONMENTS[name], folder / name
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        for words in ([str(ROOT), *environment.packages], ["--no-deps", *environment.alone]):
            if words == ["--no-deps"]:
                continue
            ran = subprocess.run([*pip, *words], capture_output=True, text=True)
            if ran.returncode:
                errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
                raise NotInstalled((errors or ran.stderr.splitlines() or ["pip failed"])[-1])
        done.touch()
    return python


def audited(python: Path, subject: str, runs: int, folder: Path) -> dict[str, object]:
    """Audit a subject with the Python of its environment, and return what the audit says of privacy."""
    command = ["audit", "mechanism", subject, "--runs", str(runs), "--json", "--out", str(folder / "runs")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    ran = subprocess.run(
        [python, "-P", "-W", "ignore", "-m", "dpzv_audit", *command],
        cwd=HERE,
        env={"OMP_NUM_THREADS": "1", **kept, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        return {"verdict": (ran.stderr.strip().splitlines() or ["failed"])[-1]}
    return dict(json.loads(ran.stdout)["privacy"])


def number(value: object) -> str:
    """Return a number as the table has it."""
    return f"{value:.3f}" if isinstance(value, float) else "-"


def main() -> None:
    """Make the environments that are asked for and print a row for each subject."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the environments are made, and runs kept")
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, metavar="NAME", help="these environments alone")
    parser.add_argument("--runs", type=int, default=500, metavar="N", help="runs in each world, by default 500")
    parser.add_argument("--list", action="store_true", help="print the environments and their subjects, and do nothing")
    asked = parser.parse_args()
    if asked.list:
        for name, environment in ENVIRONMENTS.items():
            print(f"{name}: {', '.join(environment.subjects)}")
        return
    folder = asked.folder.resolve()
    print(f"{'environment':24}{'subject':38}{'certified':>10}{'claimed':>9}{'seconds':>9}  verdict", flush=True)
    for name in asked.only or ENVIRONMENTS:
        try:
            python = made(name, folder)
        except NotInstalled as error:
            print(f"{name:24}skipped: {error}", flush=True)
            continue
        for subject in ENVIRONMENTS[name].subjects:
            start = time.monotonic()
            found = audited(python, subject, asked.runs, folder)
            seconds = f"{time.monotonic() - start:.0f}"
            numbers = f"{number(found.get('empirical_lower')):>10}{number(found.get('claimed')):>9}{seconds:>9}"
            print(f"{name:24}{subject:38}{numbers}  {found['verdict']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
