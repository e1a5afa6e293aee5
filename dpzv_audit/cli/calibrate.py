"""`dpzv-audit calibrate`: the noise, rounds or batch size with which a release really meets a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dpzv_audit.cli import release_flags as given
from dpzv_audit.cli import releases
from dpzv_audit.cli.account import DEFAULT_DELTA, method_release, refuse_unused
from dpzv_audit.cli.common import Output
from dpzv_audit.cli.data_options import DataFlags
from dpzv_audit.cli.flags import Count, TrainingFlags, Whole, check_choice, takes
from dpzv_audit.errors import InputError, check_positive, check_probability
from dpzv_audit.findings import ADVERSARIES, AdversaryName, NeighbourRelation


@takes(sizes=given.SizeFlags, details=given.DetailFlags, output=Output)
def calibrate(
    *,
    epsilon: float,
    delta: float = DEFAULT_DELTA,
    adversary: str = "client",
    neighbours: str = "replace-label",
    solve: str = "sigma",
    sizes: given.SizeFlags,
    sigma: float | None = None,
    details: given.DetailFlags,
    method: str | None = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    epochs: Count | None = None,
    calibration: str | None = None,
    settings: Annotated[list[str] | None, "--set"] = None,
    seed: Whole = 0,
    output: Output,
) -> None:
    """Find the noise, rounds or batch size that meet a target.

    The target is (epsilon, delta) against one adversary, under one neighbour relation. Only sound bounds count, and the
    answer is checked by accounting for it again. That a target cannot be reached is an answer too: it says what stands
    in the way.

    Example: dpzv-audit calibrate --epsilon 1 --delta 1e-5 --adversary client --batch-size 128
    --dataset-size 60000 --rounds 46900 --clip 10 --server-update joint-zo

    Options:
        epsilon X: Target epsilon, above 0.
        delta X: Target delta, strictly between 0 and 1.
        adversary NAME: Against whom: client, colluding-clients, all-but-one, malicious-client, eavesdropper, release,
            server.
        neighbours NAME: How neighbours differ: replace-label, replace-record, zero-out or add-remove.
        solve NAME: What is sought: sigma, rounds or batch-size.
        sigma X: Standard deviation of the noise on the message.
        method NAME: Instead of numbers: a method and its settings.
        dataset NAME: With --method: whose records, unless --dataset-size; digits by default.
        data_dir DIR: Folder with the data sets' original files; by default what DPZV_AUDIT_DATA names.
        epochs N: Epochs of D/B rounds, over all clients together; by default the method's own.
        calibration paper|sound|none: How the noise follows from the claim; by default the method's own.
        settings KEY=VALUE: Any other setting of the method; may be given several times.
        seed N: Every random stream follows from this number.
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
        training = TrainingFlags(
            method=method,
            batch_size=sizes.batch_size,
            epochs=epochs,
            calibration=calibration,
            sigma=sigma,
            settings=settings,
        )
        data = DataFlags(dataset=dataset, data_dir=data_dir, clients=details.clients)
        template, _, _ = method_release(training, data, flags, {}, seed=seed)
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
