"""Proof gaps by name, and the table adversary x neighbour relation x sampler of what a bound can rest on."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..base.errors import InputError
from ..base.findings import SERVERS, AdversaryName, NeighbourRelation
from .release import (
    CHANNELS,
    NEIGHBOURS,
    REPLACES,
    SAMPLERS,
    AnyRelease,
    Channel,
    IdsVisibility,
    Release,
    SamplerName,
    relevant_parts,
)

Treatment = Literal["known-ids", "secret-ids", "undefined", "no bound"]

ADVERSARY_NAMES: tuple[AdversaryName, ...] = get_args(AdversaryName)
LISTED = tuple(name for name in ADVERSARY_NAMES if name != "malicious-server")
"""Adversaries that tables have: what holds against the server holds against a malicious one, whatever it answers."""

_WORDS = tomllib.loads((Path(__file__).parent / "tables" / "gaps.toml").read_text("utf-8"))

GAPS: dict[str, str] = _WORDS["gap"]
"""Proof gaps by name, with what each means."""

RATE_FOLLOWS: str = _WORDS["cell"]["rate-follows"][1]
"""Why `add-remove` has no meaning for Poisson batches whose rate is B/D."""

_KNOWS_IDS: tuple[AdversaryName, ...] = ("client", "colluding-clients", "all-but-one", "malicious-client")


@dataclass(frozen=True)
class GapCell:
    """One cell of the table: what a bound can rest on, and why."""

    treatment: Treatment
    reason: str


def treatment(
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    sampler: SamplerName,
    *,
    ids: IdsVisibility = "secret",
    channel: Channel = "scalar",
    public_rate: bool = False,
    clear_uploads: bool = False,
) -> GapCell:
    """Return the cell of `adversary`, `neighbours` and `sampler`; `ids` matters to the eavesdropper alone.

    `public_rate`: the sampling rate and the number of rounds are constants, not B/D and epochs x floor(D/B); it matters
    to `add-remove` alone. `clear_uploads` matters to the eavesdropper, where more than a label may differ. Raises
    `InputError` for an unknown name.
    """
    query = {"adversary": adversary, "neighbours": neighbours, "sampler": sampler, "channel": channel}
    for (name, value), allowed in zip(query.items(), (ADVERSARY_NAMES, NEIGHBOURS, SAMPLERS, CHANNELS), strict=True):
        if value not in allowed:
            raise InputError(f"use one of {', '.join(allowed)}", name, value)
    known = adversary in _KNOWS_IDS or (adversary == "eavesdropper" and ids == "public")
    removed = neighbours == "add-remove"
    if channel == "embedding":
        own = {"replace-label": "own-labels", "add-remove": "row"}.get(neighbours, "told-ids")
        case = own if adversary in SERVERS else "clear-labels"
    elif adversary in SERVERS:
        case = "server"
    elif clear_uploads and adversary == "eavesdropper" and neighbours != "replace-label":
        case = "clear-uploads"
    elif removed and channel == "gradient":
        case = "row"
    elif removed and known:
        case = "ids"
    elif removed and sampler != "poisson":
        case = "other-batches"
    elif removed:
        case = "amplified" if public_rate else "rate-follows"
    else:
        case = "enforced" if adversary == "malicious-client" else "known-ids" if known else "hidden-ids"
    unseen = " where messages do not show the batch's size" if adversary == "eavesdropper" else ""
    pair = " of fixed-size batches" if sampler == "uniform" else unseen
    amplifies = sampler == "poisson" or (sampler == "uniform" and neighbours in REPLACES)
    kind, reason = _WORDS["cell"][case]
    words = reason.format(
        sampler=sampler,
        channel=channel,
        accountants=f"known ids and PRV{pair}, the smaller" if amplifies and channel == "scalar" else "known ids alone",
        held="; the adversary's own block of the record is held fixed" if neighbours == "replace-record" else "",
    )
    return GapCell(kind, words)


def cell_of(release: Release, adversary: AdversaryName, neighbours: NeighbourRelation) -> GapCell:
    """Return the cell of one release."""
    return treatment(
        adversary,
        neighbours,
        release.sampler,
        ids=release.ids,
        channel=release.channel,
        public_rate=release.sample_rate is not None,
        clear_uploads=release.clear_uploads,
    )


def gaps_of(release: AnyRelease, adversary: AdversaryName, neighbours: NeighbourRelation) -> tuple[str, ...]:
    """Return the names of the gaps that any bound for this release, adversary and relation rests on.

    Gaps of an accountant (`clt`, `known-ids`, `no-accountant`) are not among them: accountants add those.
    """
    parts = relevant_parts(release, adversary)
    # A joint-zo server moves by the scalars: where none is accounted for, neither is what moved it.
    scalars = any(each.channel == "scalar" for each in parts)
    gaps_of_parts = [_gaps_of_part(each, adversary, neighbours, scalars=scalars) for each in parts]
    return tuple(dict.fromkeys(name for names in gaps_of_parts for name in names))


def _gaps_of_part(
    release: Release, adversary: AdversaryName, neighbours: NeighbourRelation, *, scalars: bool
) -> tuple[str, ...]:
    cell = cell_of(release, adversary, neighbours)
    if cell.treatment == "no bound":
        return ("unprotected-channel",)
    if cell.treatment == "undefined":
        return ("undefined",)
    # `server_mu` counts the planned participations, which a malicious client does not keep to.
    planned_updates = release.server_mu is not None and adversary != "malicious-client"
    noised = planned_updates or release.server_noise_multiplier is not None
    closed = {
        "joint-zo": scalars,
        "dp-sgd": noised,
        "dp-zo": noised,
        "released": release.channel != "embedding",
        "frozen": True,
        "none": True,
    }
    present = {
        "one-sided-clip": release.clip_rule == "paper-one-sided",
        "unbounded-participation": adversary == "malicious-client"
        and (release.participation_cap is None or not release.distinct_ids),
        "server-state": not closed.get(release.server_update, False) and adversary not in SERVERS,
        "client-state": release.client_update == "first-order"
        and (neighbours == "replace-record" or release.channel == "embedding"),
        "hidden-releases": release.own_rounds_only,
        "batch-coupling": release.batch_coupling,
        "batch-size": adversary == "eavesdropper" and neighbours == "add-remove" and not release.padded,
        # Other relations have a bound for known ids, and accountants add the gap to what they amplify.
        "secret-batches": neighbours == "add-remove" and release.secret_batches,
        "known-directions": release.channel == "zo-gradient" and adversary in _KNOWS_IDS,
        "data-dependent-side": release.data_dependent_side,
        "seeded-noise": release.seeded_noise and release.channel != "zo-gradient",
        # A malicious client draws its own batches: its bound counts the cap.
        "seeded-batches": release.seeded_batches
        and (
            release.channel == "zo-gradient"
            or (release.fixed_participations is None and adversary != "malicious-client")
        ),
        "floating-point": release.noise == "float",
    }
    return tuple(name for name, holds in present.items() if holds)


NO_NUMBER: frozenset[str] = frozenset(
    {
        "unprotected-channel",
        "undefined",
        "one-sided-clip",
        "unbounded-participation",
        "other-trials",
        "no-accountant",
    }
)
"""Gaps without which there would still be no number: a bound that has one carries no epsilon."""
