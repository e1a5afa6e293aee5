"""`dpzv-audit calibrate`: the noise, rounds or batch size with which a release really meets a target."""

from __future__ import annotations

from typing import Any, cast

import typer

from dpzv_audit.cli import release_flags as given
from dpzv_audit.cli import releases
from dpzv_audit.cli.account import DEFAULT_DELTA, method_release
from dpzv_audit.cli.common import Output
from dpzv_audit.cli.flags import Positive, Probability, check_choice, takes
from dpzv_audit.errors import InputError
from dpzv_audit.findings import ADVERSARIES, AdversaryName, NeighbourRelation


@takes(sizes=given.SizeFlags, of=given.MethodFlags, details=given.DetailFlags, output=Output)
def calibrate(
    *,
    epsilon: Positive,
    delta: Probability = DEFAULT_DELTA,
    adversary: str = "client",
    neighbours: str = "replace-label",
    solve: str = "sigma",
    sizes: given.SizeFlags,
    details: given.DetailFlags,
    of: given.MethodFlags,
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
    """
    from dpzv_audit.accounting import calibrate as solved
    from dpzv_audit.accounting.calibration import UNKNOWNS, Unknown
    from dpzv_audit.accounting.release import NEIGHBOURS

    check_choice("adversary", adversary, ADVERSARIES)
    check_choice("neighbours", neighbours, NEIGHBOURS)
    check_choice("solve", solve, UNKNOWNS)
    flags = given.release_flags(sizes, details)
    unknown = cast("Unknown", solve)
    of.refuse_unused(sizes)
    if of.method is None:
        described, noise = _with_unknown(flags, of.sigma, solve)
        template = releases.described(described, sigma=noise)
    else:
        template, _, _ = method_release(of.training(sizes), of.data(details), flags, {}, seed=of.seed)
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
