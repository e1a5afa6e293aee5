"""The options of `dpzv-audit audit`: what is audited, the game, the claim, and how the runs are carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpzv_audit.cli.common import at_least

DEFAULT_DELTA = 1e-5
DEFAULT_RUNS = 2000
DEFAULT_CHUNK = 256
DEFAULT_GAME = {"adversary": "client", "neighbours": "replace-label", "canary": "worst-case", "others": "zero"}
AuditRunsOption = Annotated[
    int | None,
    typer.Option(
        "--runs",
        metavar="N",
        callback=at_least("runs", 1),
        help=f"Runs in each world; by default {DEFAULT_RUNS}, for a planted mechanism its own number.",
    ),
]
ScoresOption = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--scores",
        metavar="IN OUT",
        help="Scores with the canary and without it: two files, each CSV, NPY, NPZ or JSON lines.",
    ),
]
MechanismOption = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        metavar="WHAT",
        help="pkg.mod:factory, a mechanism of your own, which is imported; or planted:NAME, planted:all.",
    ),
]
DeltaOption = Annotated[
    float | None,
    typer.Option(
        "--delta",
        metavar="X",
        help=f"Delta of the claim and of every bound, in (0, 1); by default {DEFAULT_DELTA:g}.",
    ),
]
ConfidenceOption = Annotated[
    float,
    typer.Option(
        "--confidence",
        metavar="X",
        help="Confidence of the bound: a true claim is refuted with probability 1 - X at most.",
    ),
]
EpsilonOption = Annotated[
    float | None, typer.Option("--epsilon", metavar="X", help="Claimed epsilon, which the evidence is held against.")
]
FailOnOption = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        metavar="refuted|overclaimed",
        help="Exit with 1 when the claim is refuted; with overclaimed, also when no sound bound supports it.",
    ),
]
EstimatorOption = Annotated[
    list[str] | None,
    typer.Option("--estimator", metavar="NAME", help="Estimator to use; may be given several times."),
]
MethodOption = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="Training method to audit; see `dpzv-audit list methods`."),
]
AdversaryOption = Annotated[
    str,
    typer.Option(
        "--adversary",
        metavar="client|colluding-clients|eavesdropper|release",
        help="Who tells the worlds apart.",
    ),
]
NeighboursOption = Annotated[
    str,
    typer.Option(
        "--neighbours",
        metavar="replace-label|replace-record|add-remove|zero-out",
        help="How the two worlds differ in the canary.",
    ),
]
CanaryOption = Annotated[
    str,
    typer.Option(
        "--canary",
        metavar="worst-case|state|mislabelled|random",
        help="The record that differs; see `dpzv-audit list canaries`.",
    ),
]
CanaryNormOption = Annotated[
    float | None,
    typer.Option("--canary-norm", metavar="X", help="Factor by which the features of a state canary are multiplied."),
]
CanariesOption = Annotated[
    int | None,
    typer.Option(
        "--canaries",
        metavar="M",
        callback=at_least("canaries", 2),
        help="One training with M canaries of coin-flip labels, whose labels are guessed, instead of many trainings.",
    ),
]
OthersOption = Annotated[
    str,
    typer.Option("--others", metavar="zero|saturated", help="What the records beside the canary contribute: 0 or +C."),
]
SimulateOption = Annotated[
    bool,
    typer.Option(
        "--simulate", help="Draw the scalars of a training of any size instead of training; worst-case canary."
    ),
]
DatasetSizeOption = Annotated[
    int | None,
    typer.Option(
        "--dataset-size",
        metavar="D",
        callback=at_least("dataset_size", 1),
        help="With --simulate: number of records.",
    ),
]
RoundsOption = Annotated[
    int | None,
    typer.Option(
        "--rounds", metavar="T", callback=at_least("rounds", 1), help="With --simulate: rounds, all clients together."
    ),
]
ExactlyGaussianOption = Annotated[
    bool,
    typer.Option(
        "--exactly-gaussian",
        help="The scores are Gaussian by construction, on your word: the gaussian estimator may then refute the claim.",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", metavar="N", callback=at_least("jobs", 1), help="Worker processes on this machine."),
]
ExecutorOption = Annotated[
    str | None, typer.Option("--executor", metavar="loky|dask", help="Processes here, or a Dask cluster.")
]
SchedulerOption = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="The Dask scheduler, such as tcp://host:8786.")
]
MaxMinutesOption = Annotated[
    float | None,
    typer.Option("--max-minutes", metavar="X", help="Stop after X minutes and answer with the runs done by then."),
]
TrialSecondsOption = Annotated[
    float,
    typer.Option("--trial-seconds", metavar="X", help="Most seconds that one run of a mechanism of your own may take."),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on where an interrupted audit with the same options stopped.")
]
