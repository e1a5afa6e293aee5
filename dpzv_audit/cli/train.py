"""`dpzv-audit train`: train a method alone, beside its controls, with what it costs and what its claim is worth."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv_audit.cli.bundles import takes
from dpzv_audit.cli.common import (
    DEFAULT_OUT,
    DeviceOption,
    JsonOption,
    OutOption,
    Output,
    QuietOption,
    SeedOption,
    at_least,
    choose_device,
    progress_reporter,
)
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.options import (
    BatchSizeOption,
    CalibrationOption,
    ConfidenceOption,
    DeltaOption,
    EpochsOption,
    EpsilonOption,
    MethodOption,
    SetOption,
    SigmaOption,
    TrialsOption,
    choose,
)
from dpzv_audit.errors import Interrupted, check_probability
from dpzv_audit.locks import hold
from dpzv_audit.runs import MEASURED_FILE, json_text

if TYPE_CHECKING:
    from dpzv_audit.checkpoints import FileCheckpoints

ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on where the same command was interrupted; it saves itself after every epoch."),
]
NoiseSeedOption = Annotated[
    int | None,
    typer.Option(
        "--noise-seed",
        metavar="N",
        callback=at_least("noise_seed", 0),
        help="Draw the noise from this seed, not from the operating system: to be repeated, and no bound is sound.",
    ),
]
NoControlsOption = Annotated[bool, typer.Option("--no-controls", help="Skip the frozen-clients controls.")]


@takes(data=DataFlags)
def train(
    *,
    method: MethodOption = "dpzv",
    data: DataFlags,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    calibration: CalibrationOption = None,
    sigma: SigmaOption = None,
    settings: SetOption = None,
    trials: TrialsOption = 1,
    no_controls: NoControlsOption = False,
    resume: ResumeOption = False,
    confidence: ConfidenceOption = 0.95,
    seed: SeedOption = 0,
    noise_seed: NoiseSeedOption = None,
    device: DeviceOption = "cpu",
    out: OutOption = DEFAULT_OUT,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a method alone, beside its controls; report its costs.

    Prints accuracy, bytes, rounds, memory, and the claimed beside the recomputed epsilon. The controls are frozen
    clients at the method's own server rate, and at the best rate of a grid. Noise comes from the operating system, so
    results vary with it from run to run; all else follows from --seed.

    Example: dpzv-audit train --method dpzv --epochs 40
    """
    output = Output(as_json=as_json, quiet=quiet)
    check_probability("confidence", confidence)
    choice = choose(
        method,
        data,
        settings=settings,
        given={
            "epochs": epochs,
            "batch_size": batch_size,
            "epsilon": epsilon,
            "delta": delta,
            "calibration": calibration,
            "sigma": sigma,
        },
        claims=("epsilon", "delta", "calibration"),
        quiet=quiet,
    )
    where = choose_device(device)
    from dpzv_audit.checkpoints import FileCheckpoints, run_key
    from dpzv_audit.data.files import model_digest

    facts = {
        "method": method,
        "config": choice.config.model_dump(mode="json"),
        "data": choice.dataset.fingerprint,
        "model": model_digest(choice.config.transformer),
        "seed": seed,
        "trials": trials,
        "noise_seed": noise_seed,
    }
    key = run_key(facts)
    checkpoints = FileCheckpoints(out / "checkpoints", key, resume=resume)
    lock = out / "checkpoints" / f"{key}.lock"
    with hold(lock, f"the training that {checkpoints.path} is of", cure="or give another --out DIR"):
        started = time.monotonic()
        with output.progress() as bars, _kept(checkpoints, choice.config.epochs):
            from dpzv_audit.evaluation import train_result

            result, trained = train_result(
                choice.method,
                choice.config,
                choice.dataset,
                seed=seed,
                trials=trials,
                controls=not no_controls,
                device=where,
                confidence=confidence,
                checkpoints=checkpoints,
                reporter=progress_reporter(bars),
                noise_seed=noise_seed,
            )
        measured = {
            "wall_seconds": round(time.monotonic() - started, 3),
            "resumed_at_epoch": checkpoints.resumed_at,
            "peak_memory_mb": _peak_memory_mb(),
        }
        from dpzv_audit.cli.summary import save, train_table
        from mechanisms.parameters import to_safetensors

        models = {f"client-{m}": stack for m, stack in enumerate(trained.clients, start=1)} | {"server": trained.server}
        files = {"models.safetensors": to_safetensors(models), MEASURED_FILE: json_text(measured).encode()}
        saved = save(result, out, "train", seed, files=files)
        checkpoints.remove()
    output.result({**saved.to_json(), **measured})
    train_table(output.console, result, measured)
    output.say(result.sentence)
    output.say(f"What the noise protects: {result.protects}.")
    output.noise(result.noise)
    output.say(result.published.words or "")
    output.memory(result.compute)
    output.path(saved.run)


@contextmanager
def _kept(checkpoints: FileCheckpoints, epochs: int) -> Iterator[None]:
    """Let an interrupt of the block say what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        kept = checkpoints.kept(epochs)
        go_on = "the same command with --resume goes on from there"
        raise Interrupted(f"{kept}; {go_on}" if kept else "no epoch was done, so nothing is kept") from None


def _peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB; the kernel counts kilobytes, on macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
