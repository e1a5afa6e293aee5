"""`dpzv-audit account`: upper bounds on epsilon for a release, as a table adversary x accountant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dpzv_audit.cli.common import JsonOption, Output, QuietOption
from dpzv_audit.errors import InputError, check_positive, check_probability, unknown_name
from dpzv_audit.evidence import ADVERSARIES, AdversaryName, NeighbourRelation, UpperBound

if TYPE_CHECKING:
    from rich.table import Table

    from dpzv_audit.accounting import Release
    from dpzv_audit.accounting.release import ClipRule, IdsVisibility, SamplerName, ServerUpdate


def account(
    batch_size: Annotated[int, typer.Option("--batch-size", help="B, records a batch.")],
    dataset_size: Annotated[int, typer.Option("--dataset-size", help="D, records in all.")],
    rounds: Annotated[int, typer.Option("--rounds", help="T, scalars released, all clients together.")],
    clip: Annotated[float, typer.Option("--clip", help="C, the clipping norm of one record's difference.")],
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Standard deviation of the noise on the scalar.")
    ] = None,
    claim_epsilon: Annotated[
        float | None,
        typer.Option("--claim-epsilon", help="Instead of --sigma: the noise that theorem 5.1 gives for it."),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Strictly between 0 and 1.")] = 1e-5,
    neighbours: Annotated[
        str,
        typer.Option(
            "--neighbours", metavar="NAME", help="replace-label, replace-record, zero-out, add-remove or all."
        ),
    ] = "all",
    adversary: Annotated[
        str, typer.Option("--adversary", metavar="NAME", help=f"{', '.join(ADVERSARIES)} or all.")
    ] = "all",
    sampler: Annotated[
        str, typer.Option("--sampler", metavar="NAME", help="shuffled, uniform or poisson.")
    ] = "shuffled",
    clients: Annotated[int, typer.Option("--clients", help="M, clients, which take turns.")] = 1,
    server_update: Annotated[
        str,
        typer.Option(
            "--server-update",
            metavar="NAME",
            help="How the server learns: none (it has no parameters), joint-zo, frozen, dp-sgd, sgd or zo.",
        ),
    ] = "none",
    server_mu: Annotated[
        float | None, typer.Option("--server-mu", help="Gaussian-DP mu of the server's own noised updates.")
    ] = None,
    clip_rule: Annotated[
        str, typer.Option("--clip-rule", metavar="NAME", help="symmetric or paper-one-sided.")
    ] = "symmetric",
    ids: Annotated[
        str, typer.Option("--ids", metavar="NAME", help="secret or public batch ids, for the eavesdropper.")
    ] = "secret",
    participations: Annotated[
        int | None,
        typer.Option("--participations", help="Realised largest count of a record's scalars, shuffled."),
    ] = None,
    participation_cap: Annotated[
        int | None,
        typer.Option("--participation-cap", help="Participations of a record that the server enforces."),
    ] = None,
    distinct_ids: Annotated[
        bool, typer.Option("--distinct-ids", help="The server refuses a batch that names a record twice.")
    ] = False,
    batch_coupling: Annotated[
        bool, typer.Option("--batch-coupling", help="A layer mixes the records of a batch.")
    ] = False,
    padded: Annotated[
        bool, typer.Option("--padded", help="Messages have one length whatever the batch's size.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Upper bounds on epsilon for a release, by accountant, adversary and neighbour relation.

    The flags describe the noisy scalar channel; give exactly one of --sigma and --claim-epsilon. A bound is
    sound, or rests on a named gap and says so.

    Example: dpzv-audit account --batch-size 128 --dataset-size 60000 --rounds 46900 --clip 10
    --claim-epsilon 1 --delta 1e-3 --sampler poisson --server-update joint-zo
    """
    from dpzv_audit.accounting import Release, sigma_from_paper, upper_bounds
    from dpzv_audit.accounting.release import CLIP_RULES, IDS, NEIGHBOURS, SAMPLERS, SERVER_UPDATES

    check_probability("--delta", delta)
    adversaries = _choices("--adversary", adversary, tuple(ADVERSARIES))
    relations = _choices("--neighbours", neighbours, NEIGHBOURS)
    if (sigma is None) == (claim_epsilon is None):
        raise InputError("give exactly one of --sigma and --claim-epsilon")
    described = {
        "sampler": _choice("--sampler", sampler, SAMPLERS),
        "server_update": _choice("--server-update", server_update, SERVER_UPDATES),
        "clip_rule": _choice("--clip-rule", clip_rule, CLIP_RULES),
        "ids": _choice("--ids", ids, IDS),
    }
    if sigma is None:
        assert claim_epsilon is not None
        check_positive("--claim-epsilon", claim_epsilon)
        sigma = sigma_from_paper(claim_epsilon, delta, clip=clip, dataset_size=dataset_size, rounds=rounds)
    release = Release(
        batch_size=batch_size,
        dataset_size=dataset_size,
        rounds=rounds,
        clip=clip,
        sigma=sigma,
        sampler=cast("SamplerName", described["sampler"]),
        server_update=cast("ServerUpdate", described["server_update"]),
        clients=clients,
        participations=participations,
        clip_rule=cast("ClipRule", described["clip_rule"]),
        participation_cap=participation_cap,
        distinct_ids=distinct_ids,
        batch_coupling=batch_coupling,
        ids=cast("IdsVisibility", described["ids"]),
        padded=padded,
        server_mu=server_mu,
    )
    bounds = upper_bounds(
        release,
        delta=delta,
        adversaries=cast("tuple[AdversaryName, ...]", adversaries),
        neighbours=cast("tuple[NeighbourRelation, ...]", relations),
    )
    output = Output(as_json=as_json, quiet=quiet)
    output.result({"release": release, "bounds": bounds})
    console = output.console
    console.print(describe(release, delta=delta, claim_epsilon=claim_epsilon), soft_wrap=True)
    for relation in relations:
        console.print()
        console.print(table([bound for bound in bounds if bound.neighbours == relation]))
    console.print()
    for line in explanations(bounds):
        console.print(line, soft_wrap=True)


def _choice(flag: str, given: str, allowed: Sequence[str]) -> str:
    if given not in allowed:
        raise unknown_name(flag, given, allowed)
    return given


def _choices(flag: str, given: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return all of `allowed` for `all`, else the one that was `given`."""
    return tuple(allowed) if given == "all" else (_choice(flag, given, (*allowed, "all")),)


def describe(release: Release, *, delta: float, claim_epsilon: float | None = None) -> str:
    """Return a line that names the release: sizes, noise, sampling and how the server moves."""
    origin = f" (theorem 5.1 at epsilon {claim_epsilon:g})" if claim_epsilon is not None else ""
    clients = f" of {release.clients} clients" if release.clients > 1 else ""
    return (
        f"Release: {release.rounds} scalars{clients}, B = {release.batch_size} of D = {release.dataset_size} "
        f"({release.sampler}), C = {release.clip:g} ({release.clip_rule}), "
        f"sigma = {release.sigma:.6g}{origin}, "
        f"server update {release.server_update}, batch ids {release.ids}, delta = {delta:g}"
    )


def table(bounds: Sequence[UpperBound]) -> Table:
    """Return the table adversary x accountant of bounds for ONE neighbour relation.

    A cell is the upper epsilon with `sound`, the number in brackets with its gap, or a dash with why there is
    none; a star marks the tightest sound number of its row.
    """
    from rich.table import Table

    from dpzv_audit.accounting import tightest_sound

    accountants = list(dict.fromkeys(bound.accountant for bound in bounds))
    result = Table(title=f"epsilon, neighbours {bounds[0].neighbours}", title_justify="left")
    result.add_column("adversary")
    for name in accountants:
        result.add_column(name, overflow="fold")
    for adversary in dict.fromkeys(bound.adversary for bound in bounds):
        row = [bound for bound in bounds if bound.adversary == adversary]
        best = tightest_sound(row)
        result.add_row(adversary, *(_cell(bound, bound is best) for bound in row))
    return result


def _cell(bound: UpperBound, best: bool) -> str:
    if bound.epsilon is None:
        return f"- {bound.gap}"
    number = f"{bound.epsilon.upper:.4g}" if bound.epsilon.upper < 1e4 else f"{bound.epsilon.upper:.2e}"
    if bound.sound:
        return f"{number} sound{' *' if best else ''}"
    return f"({number}) {', '.join((bound.gap or '').split(','))}"


def explanations(bounds: Sequence[UpperBound]) -> list[str]:
    """Return the legend and one line for each gap that occurs among `bounds`."""
    from dpzv_audit.accounting import GAPS

    lines = ["* tightest sound bound; (number): what it would be without the gap beside it; -: no number."]
    present = dict.fromkeys(name for bound in bounds for name in (bound.gap or "").split(",") if name)
    return lines + [f"{name}: {GAPS[name]}." for name in present]
