"""How a bound comes about: its formula with the numbers put in, its source and what it assumes."""

from __future__ import annotations

from dataclasses import dataclass

from dpzv_audit.accounting.accountants import ACCOUNTANTS
from dpzv_audit.accounting.bounds import Question
from dpzv_audit.accounting.gaps import GAPS
from dpzv_audit.accounting.release import AnyRelease, Release, ServerUpdate
from dpzv_audit.findings import UpperBound


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a bound comes about."""

    formula: tuple[str, ...]
    """Formulas with the numbers put in, one per line; empty where there is no number."""
    source: str
    assumes: tuple[str, ...]


def explain(release: AnyRelease, bound: UpperBound) -> Explanation:
    """Return the explanation of `bound`, an answer of one of the accountants for `release`."""
    asked = Question(release, bound.adversary, bound.neighbours, bound.delta)
    accountant, assumes = ACCOUNTANTS[bound.accountant], _assumptions(asked.parts, bound)
    if bound.epsilon is None:
        return Explanation(formula=(), source=accountant.source, assumes=(bound.note, *assumes))
    return Explanation(formula=tuple(accountant.formula(asked, bound)), source=accountant.source, assumes=assumes)


SERVER_ASSUMPTIONS: dict[ServerUpdate, str] = {
    "none": "the server has no parameters that move",
    "frozen": "the server's parameters do not move",
    "joint-zo": "the server's parameters move by the released scalars alone",
    "dp-sgd": "the server's parameters move by noised sums of clipped gradients alone",
}


def _assumptions(parts: tuple[Release, ...], bound: UpperBound) -> tuple[str, ...]:
    found = ["T counts the rounds of all clients together"]
    if any(part.sample_rate is not None for part in parts):
        found.append("the sampling rate and the number of rounds are constants, whatever the records are")
    if any(part.channel != "zo-gradient" for part in parts):
        known = any(part.seeded_noise for part in parts)
        found.append(f"each noise draw is {'Gaussian and fresh' if known else 'Gaussian, fresh and secret'}")
    if any(part.noise == "grid" for part in parts):
        found.append("the Gaussian is rounded to a grid that each record is rounded to first, and added in whole steps")
    if any(part.channel == "scalar" for part in parts):
        found.append("each record's part is clipped on its own, and the sum divided by B whatever the batch's size")
    if bound.adversary != "server":
        updates = dict.fromkeys(part.server_update for part in parts)
        found += [SERVER_ASSUMPTIONS[update] for update in updates if update in SERVER_ASSUMPTIONS]
    if any(part.sampler == "shuffled" and part.participations is None for part in parts):
        turns = "clients take turns, and each goes" if any(part.clients > 1 for part in parts) else "the client goes"
        found.append(f"{turns} through all records, D // B batches a pass, before it begins again")
    secret = bound.accountant == "prv" or "sampling" in bound.note.split(";")[0]
    if secret and any(part.sampler == "poisson" for part in parts):
        found.append(
            "the adversary does not learn which or how many records are in a batch, and each is drawn independently"
        )
    if secret and any(part.sampler == "uniform" for part in parts):
        found.append("the adversary does not learn which records are in a batch, drawn anew each round")
    if secret and any(part.sampler != "shuffled" and not part.secret_batches for part in parts):
        found.append(
            "a round depends on earlier batches through what is released alone, and a record's number does not depend "
            "on who else is in its batch"
        )
    if bound.neighbours == "replace-record" and bound.adversary != "server":
        found.append("the adversary's own block of the record is the same, and other clients' embeddings are not seen")
    if bound.adversary == "eavesdropper" and any(part.ids == "secret" for part in parts):
        found.append("uploads are encrypted, or batch ids follow from a shared seed")
    if any(part.participation_cap is not None for part in parts):
        found.append("the server enforces the cap on participations, over all clients' rounds together")
    if not any(part.data_dependent_side for part in parts):
        found.append("nothing else depends on the data: no fitted scaler, stopping, chosen checkpoint or log")
    found += [f"NOT met, {name}: {GAPS[name]}" for name in (bound.gap or "").split(",") if name]
    return tuple(found)
