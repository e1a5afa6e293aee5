"""`dpzv-audit account` and `calibrate`: upper bounds on epsilon for a release, and what meets a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dpzv_audit.cli import releases
from dpzv_audit.cli.flags import Positive, Probability, TrainingFlags, check_choice, flags_given, takes
from dpzv_audit.cli.options import DataFlags
from dpzv_audit.cli.output import Output, print_table, refuse_beside, repeatable_command_line
from dpzv_audit.cli.releases import DetailFlags, MethodFlags, SizeFlags, release_flags
from dpzv_audit.errors import InputError, check_probability
from dpzv_audit.findings import ADVERSARIES, AdversaryName, NeighbourRelation

if TYPE_CHECKING:
    from dpzv_audit.accounting import Release
    from dpzv_audit.accounting.release import AnyRelease
    from dpzv_audit.results import AccountResult


DEFAULT_DELTA = 1e-5


@takes(sizes=SizeFlags, of=MethodFlags, details=DetailFlags, output=Output)
def account(
    *,
    ctx: typer.Context,
    sizes: SizeFlags,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    neighbours: str | None = None,
    adversary: str | None = None,
    everything: Annotated[bool, "--all"] = False,
    details: DetailFlags,
    also: list[str] | None = None,
    of: MethodFlags,
    fast: bool = False,
    explain: bool = False,
    documentation: Annotated[bool, "--table"] = False,
    out: Path | None = None,
    output: Output,
) -> None:
    """Bound epsilon from above, by accountant and adversary.

    Describe one noisy channel by its numbers, with exactly one of --sigma, --epsilon and
    --noise-multiplier, or name a --method. A bound is sound, or rests on a named gap and says so.

    Example: dpzv-audit account --batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10
    --epsilon 1 --delta 1e-3 --sampler poisson --server-update joint-zo

    Options:
        epsilon X: Instead of --sigma: the claim that the noise follows from, by theorem 5.1 or as the --method has it.
        noise_multiplier Z: Instead of --sigma: sigma over the sensitivity (2C/B where a record is replaced, else C/B).
        delta X: Delta of every bound, strictly between 0 and 1; by default 1e-5, or the method's.
        neighbours NAME: How neighbours differ: replace-label, replace-record, zero-out, add-remove or all.
        adversary NAME: Against whom: client, colluding-clients, all-but-one, malicious-client, eavesdropper, release,
            server or all (default).
        everything: Every adversary and every relation: what is asked where neither is named.
        also KEY=VALUE,...: Another release that is seen too: the same but for these settings, with batches of its own;
            may be given several times.
        fast: Only the certified bounds, which are looser and quick.
        explain: Print each formula with the numbers put in, source and assumptions.
        documentation: Print what a bound can rest on in every case, as Markdown, and nothing else.
        out DIR: Folder that receives the result and its figures.
    """
    from dpzv_audit.accounting import Composition, upper_bounds
    from dpzv_audit.findings import to_jsonable
    from dpzv_audit.results import AccountResult

    if documentation:
        others = [flag for flag in flags_given(ctx) if flag not in ("--table", "--quiet")]
        refuse_beside("--table", others, "prints every case as Markdown")
        from dpzv_audit.accounting.explain import table_markdown

        typer.echo(table_markdown(), nl=False)
        return
    if everything and (adversary not in (None, "all") or neighbours not in (None, "all")):
        raise InputError("--all asks for every adversary and relation, leave out --adversary and --neighbours")
    adversaries, relations = asked(adversary, neighbours)
    flags = release_flags(sizes, details)
    if delta is not None:
        check_probability("delta", delta)
    of.refuse_unused(sizes)
    if of.method is None:
        delta = DEFAULT_DELTA if delta is None else delta
        noise = releases.sigma_of(
            flags,
            sigma=of.sigma,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            relations=relations,
            delta=delta,
        )
        release, claimed = releases.described(flags, sigma=noise), epsilon
    else:
        release, claimed, delta = method_release(
            of.training(sizes, epsilon=epsilon, delta=delta),
            of.data(details),
            flags,
            {"noise_multiplier": noise_multiplier},
            seed=of.seed,
        )
    parts = releases.others(release, also)
    whole: AnyRelease = Composition(parts) if also else release
    bounds = upper_bounds(whole, delta=delta, adversaries=adversaries, neighbours=relations, fast=fast)
    result = AccountResult(release=to_jsonable(whole), bounds=bounds)
    if explain:
        from dpzv_audit.cli.account_view import explained

        result = result.model_copy(update={"explanations": list(explained(whole, bounds))})
    if out is not None:
        result = save(out, of.method, parts, whole, result, delta=delta, fast=fast, seed=of.seed)
    show(output, parts, whole, result, delta=delta, claimed=claimed)
    if out is not None:
        output.path(result.run)


def asked(
    adversary: str | None, neighbours: str | None
) -> tuple[tuple[AdversaryName, ...], tuple[NeighbourRelation, ...]]:
    """Return the adversaries and relations asked for, all where none is named; `InputError` for an unknown one."""
    from dpzv_audit.accounting.release import NEIGHBOURS

    if adversary not in (None, "all"):
        check_choice("adversary", str(adversary), (*ADVERSARIES, "all"))
    if neighbours not in (None, "all"):
        check_choice("neighbours", str(neighbours), (*NEIGHBOURS, "all"))
    whom = tuple(ADVERSARIES) if adversary in (None, "all") else (str(adversary),)
    relations = NEIGHBOURS if neighbours in (None, "all") else (cast("NeighbourRelation", neighbours),)
    return cast("tuple[AdversaryName, ...]", whom), relations


def method_release(
    training: TrainingFlags, data: DataFlags, flags: dict[str, Any], others: dict[str, Any], *, seed: int
) -> tuple[Release, float | None, float]:
    """Return a method's release, claim and delta; flags that the method decides itself are refused."""
    kept = ("batch_size", "dataset_size", "clients")
    decided = {key: value for key, value in flags.items() if key not in kept} | others
    for flag, value in decided.items():
        if value is not None:
            raise InputError("but --method decides it: use --set, --epochs or --sigma", flag, value)
    records = flags["dataset_size"]
    try:
        return releases.of_method(training, data, records=records, seed=seed)
    except InputError as error:
        if records is None or error.field != "batch_size":
            raise
        raise InputError(
            f"{error.rule}; give --batch-size B, or a larger --dataset-size", error.field, error.value
        ) from None


def show(
    output: Output,
    parts: Sequence[Release],
    whole: AnyRelease,
    result: AccountResult,
    *,
    delta: float,
    claimed: float | None,
) -> None:
    """Print the result: JSON, or the releases, a table for each relation, the legend and the explanations.

    With `--quiet` the tightest sound bounds alone, a line each, where they are not kept in a run folder.
    """
    from dpzv_audit.cli import account_view as view

    bounds = result.bounds
    # What is printed has never had the schema and the command line that the file begins with.
    shown_keys = {"release", "bounds", "explanations", "run"}
    output.result(result.model_dump(include=shown_keys, exclude_unset=True))
    if output.quiet and result.run is None:
        for line in view.tightest(bounds):
            output.answer(line)
    console = output.console
    for number, part in enumerate(parts):
        console.print(view.describe(part, delta=delta, claim_epsilon=claimed if number == 0 else None), soft_wrap=True)
    for relation in dict.fromkeys(bound.neighbours for bound in bounds):
        console.print()
        for shown in view.tables([bound for bound in bounds if bound.neighbours == relation]):
            if isinstance(shown, str):
                console.print(shown, soft_wrap=True)
            else:
                print_table(console, shown)
    console.print()
    for line in (*view.legend(whole, bounds), *result.explanations):
        console.print(line, soft_wrap=True, markup=False)


def save(
    out: Path,
    method: str | None,
    parts: Sequence[Release],
    whole: AnyRelease,
    result: AccountResult,
    *,
    delta: float,
    fast: bool,
    seed: int,
) -> AccountResult:
    """Write the result and its figures as one run folder, whole or not at all; return it with the folder's path."""
    from dpzv_audit.cli import account_view as view
    from dpzv_audit.runs import RESULT_FILE, environment, run_name, write_run
    from reports.curves import curves_figure, rounds_figure

    bounds = result.bounds
    adversaries = list(dict.fromkeys(bound.adversary for bound in bounds))
    relation = bounds[0].neighbours
    alpha = [i / 200.0 for i in range(201)]
    subject = f"{method or 'one channel'}, {relation}, delta {delta:g}"
    curves = view.curves(whole, bounds, alpha, relation=relation, fast=fast)
    lines = {}
    if len(parts) == 1:
        lines = view.rounds_lines(parts[0], delta=delta, adversaries=adversaries, relation=relation, fast=fast)
    with write_run(out, run_name("account", method, seed=seed)) as folder:
        figures = {"rounds": lines, "tradeoff": {"alpha": alpha, **curves}}
        stored = result.with_command_line(repeatable_command_line()).model_copy(update={"figures": figures})
        folder.write_json(RESULT_FILE, stored)
        folder.write_json("environment.json", environment())
        for name, drawing in (
            ("epsilon-rounds.svg", rounds_figure(lines, subject=subject, strong=_strong(lines))),
            ("trade-off.svg", curves_figure(alpha, curves, subject=subject, strong=_strong(curves))),
        ):
            if drawing:
                folder.write_text(name, drawing)
    return result.model_copy(update={"run": str(folder.path)})


def _strong(lines: Iterable[str]) -> str:
    return next((name for name in lines if "client" in name), "")


@takes(sizes=SizeFlags, of=MethodFlags, details=DetailFlags, output=Output)
def calibrate(
    *,
    epsilon: Positive,
    delta: Probability = DEFAULT_DELTA,
    adversary: str = "client",
    neighbours: str = "replace-label",
    solve: str = "sigma",
    sizes: SizeFlags,
    details: DetailFlags,
    of: MethodFlags,
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
    flags = release_flags(sizes, details)
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
