"""`dpzv-audit train`: train a method alone, beside its controls, with what it costs and what its claim is worth."""

import resource
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import typer

from ..base.errors import InputError, Interrupted
from ..base.store import hold
from ..runs import MEASURED_FILE, json_text
from .flags import NOT_BOTH, Count, Probability, RunFlags, TrainingFlags, Whole, flags_given, refuse, takes
from .options import DataFlags, choose
from .output import Answered, save
from .summary import table_from
from .trials import TrialFlags, kept_trials, saying_what_is_kept, training_facts

if TYPE_CHECKING:
    from mechanisms import Training
    from mechanisms.core.checkpoints import FileCheckpoints


@takes
def train(
    *,
    ctx: typer.Context,
    training: TrainingFlags,
    data: DataFlags,
    trials: Count = 1,
    no_controls: bool = False,
    resume: bool = False,
    confidence: Probability = 0.95,
    run: RunFlags,
    how: TrialFlags,
    noise_seed: Whole | None = None,
    output: Answered,
) -> None:
    """Train without an attack; report accuracy, controls and costs.

    Noise comes from the operating system, so results vary from run to run. With --system it follows from the seeds.

    Example: dpzv-audit train --method dpzv --epochs 40

    Example: dpzv-audit train --system our_vfl:train --trials 8

    Basics:
        trials N: Trainings with different seeds, run together.
    Audit:
        no_controls: Skip the frozen-clients controls. They are frozen clients at the method's own server rate, and at
            the best rate of a grid; your training has only the majority class as its control.
        confidence X: Confidence of each bound. It holds for each interval too; between 0 and 1.
    Execution:
        resume: Continue an interrupted run of this command. Progress is saved after every epoch, with --system after
            every training.
        noise_seed N: Draw the noise from this seed: no bound is sound. All else follows from --seed, so that the run
            can be repeated. Without it, noise comes from the operating system; so do batches, directions and starts
            where a bound counts on random batches.
    """
    choose_training = partial(choose, training, data, quiet=output.quiet, seed=run.seed, device=run.device)
    if training.system is not None:
        refuse(flags_given(ctx), ("method",), NOT_BOTH)
        if noise_seed is not None:
            raise InputError("--noise-seed does not apply to --system, whose noise follows from the seeds it is given")
        with kept_trials(how, training.system, run.out, resume=resume) as kept:
            chosen = choose_training(trials=kept, seconds=how.seconds)
            _train(output, run, chosen, trials=trials, confidence=confidence)
        return
    how.refuse()
    try:
        chosen = choose_training(claims=("epsilon", "delta", "calibration"))
    except KeyboardInterrupt:
        raise Interrupted("the training had not begun") from None
    from mechanisms.core.checkpoints import FileCheckpoints, run_key

    key = run_key({**training_facts(chosen), "trials": trials, "noise_seed": noise_seed})
    checkpoints = FileCheckpoints(run.out / "checkpoints", key, resume=resume)
    lock = run.out / "checkpoints" / f"{key}.lock"
    with hold(lock, f"the training that {checkpoints.path} is of"):
        _train(
            output,
            run,
            chosen,
            trials=trials,
            confidence=confidence,
            controls=not no_controls,
            checkpoints=checkpoints,
            noise_seed=noise_seed,
        )


def _train(
    output: Answered,
    run: RunFlags,
    training: "Training",
    *,
    trials: int,
    confidence: float,
    controls: bool = True,
    checkpoints: "FileCheckpoints | None" = None,
    noise_seed: int | None = None,
) -> None:
    """Train, write the run folder, forget the checkpoints, and print what was found."""
    from mechanisms.core.replicas import to_safetensors

    from ..evidence.training import train_result

    started = time.monotonic()
    with _kept_by(checkpoints, training.config.epochs), output.progress() as reporter:
        result, trained = train_result(
            training.method,
            training.config,
            training.dataset,
            seed=training.seed,
            trials=trials,
            controls=controls,
            device=training.device,
            confidence=confidence,
            checkpoints=checkpoints,
            reporter=reporter,
            noise_seed=noise_seed,
        )
    measured = {
        "wall_seconds": round(time.monotonic() - started, 3),
        "resumed_at_epoch": checkpoints.resumed_at if checkpoints else 0,
        "peak_memory_mb": _peak_memory_mb(),
    }
    models = {f"client-{m}": stack for m, stack in enumerate(trained.clients, start=1)} | {"server": trained.server}
    files: dict[str, str | bytes] = {
        "models.safetensors": to_safetensors(models),
        MEASURED_FILE: json_text(measured),
    }
    with _kept_by(checkpoints, training.config.epochs, failing=True):
        saved = save(result, run, "train", result.method, result.dataset, files=files)
    if checkpoints is not None:
        checkpoints.remove()
    output.finish(saved, table_from("train", result, measured), measured=measured)


def _kept_by(
    checkpoints: "FileCheckpoints | None", epochs: int, *, failing: bool = False
) -> AbstractContextManager[None]:
    """Let what interrupts the block say what checkpoints hold of a training; with `failing` an error of it too."""
    if checkpoints is None:
        return nullcontext()
    return saying_what_is_kept(
        partial(checkpoints.kept, epochs), "no epoch was finished, so nothing is kept", failing=failing
    )


def _peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in MB; the kernel counts kB, on macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
