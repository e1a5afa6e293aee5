"""`dpzv-audit account` and `calibrate`: upper bounds on epsilon for a release, and what meets a target."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from reports.text import attacker
from reports.verdicts import notes_of, words_of

from ..accounting import Composition, Release, upper_bounds
from ..accounting import calibrate as solved
from ..accounting.calibration import Calibration
from ..accounting.explain import table_markdown
from ..accounting.gaps import LISTED
from ..accounting.release import NEIGHBOURS
from ..accounting.selection import parse_selection
from ..base.errors import InputError
from ..base.findings import AdversaryName, NeighbourRelation, UpperBound, to_jsonable
from ..base.rounding import ACCOUNTANT_DIGITS, down, up
from ..results import AccountResult, Privacy
from ..runs import versions
from . import account_view as view
from .flags import DEFAULT_DELTA, OutFlags, Positive, flags_given, refuse, takes
from .output import Answered, Output, print_table, save
from .releases import ReleaseFlags, others
from .summary import sentence_of

if TYPE_CHECKING:
    from mechanisms.core.method import Protection

BOTH = "either holds: of labels, and of the noise on what is computed from private ones; not their sum"

MOVED = "a label that is replaced moves private labels of other records too, more than that noise is made for"


@takes
def account(
    *,
    ctx: typer.Context,
    of: ReleaseFlags,
    noise_multiplier: Positive | None = None,
    adversary: Literal[AdversaryName, "all"] | None = None,
    neighbours: Literal[NeighbourRelation, "all"] | None = None,
    everything: Annotated[bool, "--all"] = False,
    also: list[str] | None = None,
    selection: str | None = None,
    fast: bool = False,
    explain: bool = False,
    documentation: Annotated[bool, "--table"] = False,
    out: Path | None = None,
    output: Answered,
) -> None:
    """Compute upper bounds on epsilon, by accountant and adversary.

    Describe one noisy channel by its numbers, with exactly one of --sigma, --epsilon and
    --noise-multiplier, or name a --method. A bound is sound, or says why it is not.

    Example: dpzv-audit account --defence label-cluster --defence-set epsilon=1

    Example: dpzv-audit account --batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10
    --epsilon 1 --delta 1e-3 --sampler poisson --server-update joint-zo

    Basics:
        noise_multiplier Z: Sigma over the sensitivity, instead of --sigma. The sensitivity is 2C/B if a record is
            replaced, else C/B.
        adversary NAME: Against whom; see `dpzv-audit list adversaries`. client, colluding-clients, all-but-one,
            malicious-client, eavesdropper, release, server, malicious-server or all.
        neighbours NAME: How neighbouring data sets differ. replace-label, replace-record, zero-out, add-remove or all.
        everything: Every adversary and every relation. This is the default if neither is named.
    Release:
        also KEY=VALUE,...: One more release, with these settings. The adversary sees it too; all else is as in the
            first, with separate batches. May be given several times.
        selection LAW: The best of a secret number of trials. geometric:mean=12 or logarithmic:mean=12 is the law of
            that number. The noised score that chooses is a release too (--also).
    Execution:
        fast: Only the certified bounds: looser, but quick.
    Output:
        explain: Print each formula with numbers and source.
        documentation: Print all rules as Markdown, and nothing else. The rules say what a bound rests on in every case.
        out DIR: Write a run folder with a report into DIR. Without it nothing is written.
    """
    if documentation:
        other = flags_given(ctx).keys() - {"quiet", "table"}
        refuse(other, flags_given(ctx), "does not go with --table, which prints every case as Markdown")
        typer.echo(table_markdown(), nl=False)
        return
    if everything and (adversary not in (None, "all") or neighbours not in (None, "all")):
        raise InputError("--all asks for every adversary and relation, leave out --adversary and --neighbours")
    adversaries = LISTED if adversary is None or adversary == "all" else (adversary,)
    relations = NEIGHBOURS if neighbours is None or neighbours == "all" else (neighbours,)
    if of.has_defence:
        why = "does not go with --defence, whose epsilon is of labels that are privatised once, whatever follows"
        own = () if of.method else ("sigma", "epsilon")
        refuse(flags_given(ctx), ("noise_multiplier", *own, "also", "selection", "fast", "explain"), why)
        _account_labels(of, adversaries, relations, out, output)
        return
    of.refuse_unused()
    protection = None
    if of.method is None:
        delta = of.delta or DEFAULT_DELTA
        claimed = of.epsilon
        release = of.release(of.noise(noise_multiplier, relations, delta))
    else:
        if noise_multiplier is not None:
            raise InputError("but --method decides it: use --set or --sigma", "noise_multiplier", noise_multiplier)
        release, claimed, protection = of.of_method()
        delta = protection.delta
    parts = others(release, also)
    searched = None if selection is None else parse_selection(selection)
    if searched is not None and not also:
        rule = "; add the score that chooses, a release too, as --also rounds=1,sigma=..."
        raise InputError(rule, "selection", selection)
    whole = Composition(parts, searched) if also or searched else release
    bounds = upper_bounds(whole, delta=delta, adversaries=adversaries, neighbours=relations, fast=fast)
    sentences = [sentence_of("release", release, delta, None if n else claimed) for n, release in enumerate(parts)]
    if searched is not None:
        sentences.append(
            f"Search: the best of a secret number of trials ({searched}), each of which releases the above."
        )
    # What is claimed is of the one release that the flags describe.
    epsilon = None if also or searched else claimed if protection is None else protection.epsilon
    result = AccountResult(
        method=of.method or "",
        release=to_jsonable(whole),
        sentences=sentences,
        privacy=_privacy(bounds, epsilon, _meant(protection), stated=protection is None),
        bounds=bounds,
        **({"explanations": view.explained(whole, bounds)} if explain else {}),
        versions=versions(),
    )
    if out is not None:
        drawn = result.model_copy(update={"figures": view.figures(whole, bounds, fast=fast)})
        result = save(drawn, OutFlags(out=out, seed=of.seed), "account", result.method)
    _show(output, result, parts)


def _meant(protection: "Protection | None") -> tuple[AdversaryName, NeighbourRelation]:
    """Return the adversary and the relation that are meant where none is named: those that a method's noise faces."""
    return ("client", "replace-label") if protection is None else (protection.faced, protection.neighbours)


def _privacy(
    bounds: Sequence[UpperBound],
    claimed: float | None,
    meant: tuple[AdversaryName, NeighbourRelation],
    *,
    stated: bool,
) -> Privacy:
    """Return the bounds against the adversary and under the relation that are `meant`, and the verdict on a claim.

    Where nothing was asked about these, the first that were asked about take their place.
    """
    from ..evidence.verdict import Theory, on_privacy

    asked = [(bound.adversary, bound.neighbours) for bound in bounds]
    adversary, neighbours = meant if meant in asked else asked[0]
    own = [bound for bound in bounds if (bound.adversary, bound.neighbours) == (adversary, neighbours)]
    theory = Theory(applies=True, bounds=tuple(own))
    privacy = Privacy(
        claimed=claimed,
        upper=theory.upper,
        gap=theory.gap or None,
        delta=own[0].delta,
        adversary=adversary,
        neighbours=neighbours,
        bounds=own,
        gap_explanations=Theory(applies=True, bounds=tuple(bounds)).explanations,
        not_audited="the bounds are on what is stated here, and nothing was run",
    )
    return on_privacy(privacy, theory=True, stated=stated)


def _account_labels(
    of: ReleaseFlags,
    adversaries: Sequence[AdversaryName],
    relations: Sequence[NeighbourRelation],
    out: Path | None,
    output: Answered,
) -> None:
    """Account for labels that a defence privatises, and for the noise on what is computed from private ones."""
    labels, noise, delta = of.of_labels()
    bounds = [labels.bound(adversary, relation, delta) for relation in relations for adversary in adversaries]
    sentences = [f"Labels privatised once, before training: {labels.words}."]
    if noise is not None:
        # The noise of a training on private labels says something of one label that is replaced, and of no more.
        bounds += upper_bounds(noise, delta=delta, adversaries=adversaries, neighbours=("replace-label",))
        sentences.append(f"A private label moves with its own record's alone, so that a bound of {BOTH}.")
    elif of.epsilon is not None or of.sigma is not None:
        sentences.append(f"Noise of {of.method} is not counted: {MOVED}.")
    result = AccountResult(
        method=of.method or "",
        release=to_jsonable(labels),
        sentences=sentences,
        privacy=_privacy(bounds, None, _meant(None), stated=True),
        bounds=bounds,
        versions=versions(),
    )
    if out is not None:
        result = save(result, OutFlags(out=out, seed=of.seed), "account", result.method)
    _show(output, result, () if noise is None else (noise,))


def _show(output: Answered, result: AccountResult, parts: Sequence[Release]) -> None:
    """Print a release in words, its bounds as a table for each relation, what they mean, and the run folder."""
    # What is printed has never had the schema and the command line that the file begins with.
    output.result(result.model_dump(include={"release", "bounds", "explanations", "run"}, exclude_unset=True), result)
    bounds = result.bounds
    if output.quiet and result.run is None:
        for line in view.tightest(bounds):
            output.answer(line)
    console = output.console
    for sentence in result.sentences:
        console.print(sentence, soft_wrap=True)
    console.print()
    judged = result.privacy.judged
    if judged is not None:
        output.say(f"{words_of(judged).upper()}: {judged.claim}, against {attacker(result.privacy.adversary)}")
        for note in notes_of(judged):
            output.say(f"  {note}")
    if output.verbose:
        _print_tables(console, bounds)
    else:
        for line in view.tightest(bounds, result.privacy.claimed):
            console.print(line)
    for line in (*view.legend(parts, bounds, tables=output.verbose), *result.explanations):
        console.print(line, soft_wrap=True, markup=False)
    if result.run is not None:
        output.report(result.run)


def _print_tables(console: Console, bounds: Sequence[UpperBound]) -> None:
    """Print every bound: a table accountant by adversary for each neighbour relation."""
    for relation in dict.fromkeys(bound.neighbours for bound in bounds):
        for shown in view.tables([bound for bound in bounds if bound.neighbours == relation]):
            if isinstance(shown, str):
                console.print(shown, soft_wrap=True)
            else:
                print_table(console, shown)
        console.print()


@takes
def calibrate(
    *,
    of: ReleaseFlags,
    adversary: AdversaryName = "client",
    neighbours: NeighbourRelation = "replace-label",
    solve: Literal["sigma", "rounds", "batch-size"] = "sigma",
    out: Path | None = None,
    output: Output,
) -> None:
    """Find the noise, rounds or batch size that meet a target epsilon.

    Only sound bounds count, and the answer is checked by accounting for it again. For a target that cannot be reached,
    the answer says why.

    Example: dpzv-audit calibrate --epsilon 1 --delta 1e-5 --adversary client --batch-size 128
    --dataset-size 60000 --rounds 46900 --clip 10 --server-update joint-zo

    Basics:
        epsilon X: Target epsilon, above 0.
        delta X: Target delta, strictly between 0 and 1.
        adversary NAME: Against whom; see `dpzv-audit list adversaries`. client, colluding-clients, all-but-one,
            malicious-client, eavesdropper, release, server or malicious-server.
        neighbours NAME: How neighbouring data sets differ. replace-label, replace-record, zero-out or add-remove.
        solve NAME: What to find: sigma, rounds or batch-size.
    Output:
        out DIR: Write a run folder with a report on the answer into DIR. Without it nothing is written.
    """
    if of.defence:
        raise InputError("leave it out: its epsilon is the one that it is given", "defence", ", ".join(of.defence))
    of.refuse_unused()
    epsilon = of.epsilon
    delta = of.delta or DEFAULT_DELTA
    if epsilon is None:
        raise InputError("--epsilon is missing: give the target")
    if of.method is None:
        template = _with_unknown(of, solve)
    else:
        template, _, _ = replace(of, epsilon=None, delta=None).of_method()
        if solve != "sigma" and template.participations is not None:
            raise InputError("but --method plans its rounds: solve for sigma, or give numbers", "solve", solve)
    answer = solved(template, unknown=solve, epsilon=epsilon, delta=delta, adversary=adversary, neighbours=neighbours)
    run = None if out is None else _certified(answer, of, out)
    output.result(
        {"schema": "dpzv-audit/calibrate/1", "calibration": answer, **({} if run is None else {"run": run})}, answer
    )
    if answer.warning is not None:
        typer.echo(f"dpzv-audit: warning: {answer.warning}", err=True)
    target = f"epsilon = {epsilon:g}, delta = {delta:g} against {attacker(adversary)} ({neighbours})"
    if not answer.reached:
        output.answer(f"{target} {answer.reason}.")
        return
    bound = answer.bound
    assert bound is not None
    # In full: a digit less, and the noise may be too little.
    output.answer(f"{solve} = {answer.value!r} gives {target}: {answer.reason}.")
    output.say(f"Checked forward: {bound.accountant} gives epsilon <= {bound.upper!r}{_tolerance(answer)}.")
    if run is not None:
        output.path(run if output.quiet else f"Report: {run}/report.html")


def _certified(answer: Calibration, of: ReleaseFlags, out: Path) -> str | None:
    """Write a run folder that accounts for the release of an answer; return its path, None where there is no answer."""
    release = answer.release
    if release is None:
        return None
    bounds = upper_bounds(release, delta=answer.delta, neighbours=[answer.neighbours], adversaries=LISTED)
    stated = of.method is None
    result = AccountResult(
        method=of.method or "",
        release=to_jsonable(release),
        sentences=[sentence_of("release", release, answer.delta, None)],
        privacy=_privacy(bounds, answer.epsilon, (answer.adversary, answer.neighbours), stated=stated),
        bounds=bounds,
        figures=view.figures(release, bounds, fast=False),
        versions=versions(),
    )
    return save(result, OutFlags(out=out, seed=of.seed), "calibrate", result.method).run


def _tolerance(answer: Calibration) -> str:
    """Return how far below the target the true epsilon may lie."""
    if answer.at_least is None or answer.tolerance is None:
        return "; nothing here bounds it from below, so the true epsilon may be smaller"
    if answer.tolerance < 1e-6:
        return ", which is exact"
    most = up(100.0 * answer.tolerance, ACCOUNTANT_DIGITS)
    return f"; the true epsilon is at least {down(answer.at_least, ACCOUNTANT_DIGITS)}, so the target is met to {most}%"


def _with_unknown(of: ReleaseFlags, solve: str) -> Release:
    """Return the release with what is sought filled in; `InputError` where it was given, or is missing."""
    key = solve.replace("-", "_")
    if getattr(of, key) is not None:
        raise InputError(f"--{solve} is what --solve {solve} seeks, leave it out")
    if of.clip is None:
        raise InputError("--clip is missing: it says what one record adds to a message")
    if solve == "sigma":
        return of.release(of.unit)
    if solve == "batch-size" and of.sample_rate is not None:
        raise InputError("leave it out with --solve batch-size", "sample_rate", of.sample_rate)
    if of.sigma is None:
        raise InputError(f"--sigma is missing: it stays as it is while {solve} is sought")
    sought: dict[str, Any] = {key: 1}
    return replace(of, **sought).release(of.sigma)
