"""`dpzv-audit calibrate`: the noise, rounds or batch size with which a release really meets a target."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from dpzv_audit.cli import release_flags as given
from dpzv_audit.cli import releases
from dpzv_audit.cli.account import DEFAULT_DELTA, method_release, refuse_unused
from dpzv_audit.cli.bundles import takes
from dpzv_audit.cli.common import JsonOption, Output, QuietOption, SeedOption, check_choice
from dpzv_audit.cli.data_options import DEFAULT_DATASET, DataDirOption
from dpzv_audit.cli.options import CalibrationOption, EpochsOption, SetOption
from dpzv_audit.errors import InputError, check_positive, check_probability
from dpzv_audit.evidence import ADVERSARIES, AdversaryName, NeighbourRelation


@takes(sizes=given.SizeFlags, details=given.DetailFlags)
def calibrate(
    *,
    epsilon: Annotated[float, typer.Option("--epsilon", metavar="X", help="Target epsilon, above 0.")],
    delta: Annotated[
        float, typer.Option("--delta", metavar="X", help="Target delta, strictly between 0 and 1.")
    ] = DEFAULT_DELTA,
    adversary: Annotated[
        str, typer.Option("--adversary", metavar="NAME", help=f"Against whom: {', '.join(ADVERSARIES)}.")
    ] = "client",
    neighbours: Annotated[
        str,
        typer.Option(
            "--neighbours",
            metavar="NAME",
            help="How neighbours differ: replace-label, replace-record, zero-out or add-remove.",
        ),
    ] = "replace-label",
    solve: Annotated[
        str, typer.Option("--solve", metavar="NAME", help="What is sought: sigma, rounds or batch-size.")
    ] = "sigma",
    sizes: given.SizeFlags,
    sigma: given.NoiseOption = None,
    details: given.DetailFlags,
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="Instead of numbers: a method and its settings.")
    ] = None,
    dataset: given.DatasetOption = None,
    data_dir: DataDirOption = None,
    epochs: EpochsOption = None,
    calibration: CalibrationOption = None,
    settings: SetOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the noise, rounds or batch size that meet a target.

    The target is (epsilon, delta) against one adversary, under one neighbour relation. Only sound bounds count, and the
    answer is checked by accounting for it again. That a target cannot be reached is an answer too: it says what stands
    in the way.

    Example: dpzv-audit calibrate --epsilon 1 --delta 1e-5 --adversary client --batch-size 128
    --dataset-size 60000 --rounds 46900 --clip 10 --server-update joint-zo
    """
    from dpzv_audit.accounting import calibrate as solved
    from dpzv_audit.accounting.calibration import UNKNOWNS, Unknown
    from dpzv_audit.accounting.release import NEIGHBOURS

    check_positive("epsilon", epsilon)
    check_probability("delta", delta)
    check_choice("adversary", adversary, ADVERSARIES)
    check_choice("neighbours", neighbours, NEIGHBOURS)
    check_choice("solve", solve, UNKNOWNS)
    flags = given.release_flags(sizes, details)
    unknown = cast("Unknown", solve)
    only_method = {"epochs": epochs, "calibration": calibration, "set": settings}
    refuse_unused(method, sizes, {"dataset": dataset, "data_dir": data_dir}, only_method)
    if method is None:
        described, noise = _with_unknown(flags, sigma, solve)
        template = releases.described(described, sigma=noise)
    else:
        options = {"batch_size": sizes.batch_size, "epochs": epochs, "calibration": calibration, "sigma": sigma}
        chosen = releases.MethodFlags(
            name=method,
            dataset=dataset or DEFAULT_DATASET,
            data_dir=data_dir,
            settings=settings,
            options=options,
            seed=seed,
        )
        template, _, _ = method_release(chosen, flags, {})
        if solve != "sigma" and template.participations is not None:
            raise InputError("but --method plans its rounds: solve for sigma, or give numbers", "solve", solve)
    answer = solved(
        template,
        unknown=unknown,
        epsilon=epsilon,
        delta=delta,
        adversary=cast("AdversaryName", adversary),
        neighbours=cast("NeighbourRelation", neighbours),
    )
    output = Output(as_json=as_json, quiet=quiet)
    output.result({"schema": "dpzv-audit/calibrate/1", "calibration": answer})
    if answer.warning is not None:
        typer.echo(f"dpzv-audit: warning: {answer.warning}", err=True)
    target = f"epsilon = {epsilon:g}, delta = {delta:g} against the {adversary} ({neighbours})"
    if not answer.reached:
        output.answer(f"{target} {answer.reason}.")
        return
    assert answer.bound is not None
    assert answer.bound.epsilon is not None
    # In full: a digit less, and the noise may be too little.
    output.answer(f"{solve} = {answer.value!r} gives {target}: {answer.reason}.")
    found = answer.bound
    output.say(f"Checked forward: {found.accountant} gives epsilon <= {answer.bound.epsilon.upper!r}.")


def _with_unknown(flags: dict[str, Any], sigma: float | None, solve: str) -> tuple[dict[str, Any], float]:
    """Return the flags and the noise with what is sought filled in; `InputError` where it was given, or is missing."""
    flag = f"--{solve}"
    key = solve.replace("-", "_")
    if (sigma if solve == "sigma" else flags[key]) is not None:
        raise InputError(f"{flag} is what --solve {solve} seeks, leave it out")
    if flags.get("clip") is None:
        raise InputError("--clip is missing: it says what one record adds to a message")
    if solve == "sigma":
        return flags, releases.described_unit(flags)
    if solve == "batch-size" and flags["sample_rate"] is not None:
        raise InputError("must be left out with --solve batch-size", "sample_rate", flags["sample_rate"])
    if sigma is None:
        raise InputError(f"--sigma is missing: it stays as it is while {solve} is sought")
    return {**flags, key: 1}, sigma
