"""Decides on all claims of a file together, and returns the result of `verify`: verdicts, with evidence in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpzv_audit.claims.file import AttackClaim, Claim, ClaimsFile, MethodClaim
from dpzv_audit.claims.gate import ClaimRun
from dpzv_audit.claims.ledger import (
    LedgerMemory,
    Look,
    append_entry,
    head_of,
    ledger_lock,
    open_ledger,
    refuted_over_time,
)
from dpzv_audit.evidence.verdict import (
    GIVEN_GAUSSIAN,
    VERDICTS,
    Evidence,
    adjusted_p_values,
    decide,
    fails,
    holm,
    recomputed_curve,
    supports,
)
from dpzv_audit.evidence.verdict import Look as EvidenceLook
from dpzv_audit.findings import down, to_jsonable, up
from dpzv_audit.results import ClaimResult, GateOptions, Noise, Refutation, VerifyResult
from dpzv_audit.statistics.tradeoff import claimed_curve

_OF_EVIDENCE = ("p_value", "trials", "missing", "unaudited", "attack", "rates", "warnings", "split", "facts")
"""What a claim's result holds of its evidence as it is."""
_OF_A_TEST = ("n_in", "n_out", "rule")


def verify_result(
    file: ClaimsFile,
    runs: Sequence[ClaimRun],
    decided: Decided,
    *,
    seed: int,
    interrupted: bool = False,
    allow_overclaimed: bool = False,
    strict: bool = False,
) -> VerifyResult:
    """Return the result of `verify`: the same for the same evidence."""
    adjusted = adjusted_p_values([run.evidence().p_value for run in runs])
    options = GateOptions(allow_overclaimed=allow_overclaimed, strict=strict)
    claims = [_claim_result(run, i, decided, adjusted[i], options) for i, run in enumerate(runs)]
    verdicts = [claim.verdict for claim in claims]
    simulated = any(claim.form != "scores" for claim in claims)
    result = VerifyResult(
        claims_file=shown_path(str(file.path)),
        alpha=file.alpha,
        level=decided.level,
        seed=seed,
        summary={verdict: verdicts.count(verdict) for verdict in VERDICTS},
        sentence=_summary_sentence(claims, decided.level, options),
        noise=Noise.of_simulation(seed) if simulated else None,
        interrupted=interrupted,
        missing=[claim.name for claim in claims if claim.missing],
        failed=any(claim.fails for claim in claims),
        options=options,
        claims=claims,
    )
    if decided.ledger is None:
        return result
    return result.model_copy(update={"ledger": decided.ledger})


def _claim_result(run: ClaimRun, place: int, decided: Decided, adjusted: float, options: GateOptions) -> ClaimResult:
    """Return the claim at a place with its verdict; bounds are those at its even share of the file's error rate."""
    claim, evidence = run.placed.claim, run.evidence()
    theory, earlier = evidence.theory, decided.earlier[place]
    level = decided.level / len(decided.refuted)
    claimed = None if isinstance(claim, AttackClaim) else claim.epsilon
    refuted = decided.refuted[place]
    verdict = decide(refuted=refuted, theory=theory.applies, upper=theory.upper, claimed=claimed)
    given = GIVEN_GAUSSIAN if verdict == "refuted" and not decided.alone[place] else ""
    if earlier is not None:
        given = earlier.given or ""
    found = {key: to_jsonable(getattr(evidence, key)) for key in _OF_EVIDENCE}
    found |= {
        "name": claim.name,
        "form": claim.form,
        "source": claim.source,
        "line": run.placed.line,
        "claim": claim.model_dump(mode="json", by_alias=True, exclude={"name", "source"}),
        "verdict": verdict,
        "verdict_given": given,
        "adjusted_p_value": adjusted,
        "level": level,
        "epsilon_lower": evidence.epsilon_lower(level),
        "ceiling": evidence.ceiling(level),
        "given": evidence.given(level),
        "upper": theory.upper,
        "accountant": theory.tightest.accountant if theory.tightest else "",
        "gap": theory.gap,
        "explanations": theory.explanations,
        "bounds": list(theory.bounds),
        "looks": [_look(look, level) for look in evidence.looks],
        "tradeoff": _with_curves(evidence, claim),
        "evidence_key": run.evidence_key,
        "scores_digest": evidence.scores,
        "refuted_by": earlier,
        "sentence": "",
        "fails": False,
    }
    entry = ClaimResult.model_validate(found)
    failed = fails(verdict, audited=entry.audited, **dict(options))
    return entry.model_copy(update={"sentence": _claim_sentence(entry), "fails": failed})


def _look(look: EvidenceLook, level: float) -> dict[str, object]:
    test, error = look.test, level * (look.weight or 1.0)
    return {
        "stage": look.stage,
        "estimator": test.name,
        "weight": look.weight,
        "p_value": look.p_value,
        "epsilon_lower": test.epsilon_lower(error),
        "ceiling": test.ceiling(error),
        **{key: getattr(test, key) for key in _OF_A_TEST},
        "assumes": look.assumes,
    }


def measured(runs: Sequence[ClaimRun]) -> dict[str, float]:
    """Return what another run of the same need not give again: seconds of work, and claims that the cache knew."""
    seconds = {f"seconds of claim {place}": round(run.seconds, 3) for place, run in enumerate(runs, start=1)}
    return {
        "seconds": round(sum(run.seconds for run in runs), 3),
        "claims from the cache": sum(run.cached for run in runs),
        **seconds,
    }


def shown_path(text: str) -> str:
    """Return a path as a result shows it, which may not depend on where a checkout lies.

    One below the current folder is relative to it, another absolute path its last part alone.
    """
    path = Path(text)
    if not path.is_absolute():
        return text
    here = Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def _with_curves(evidence: Evidence, claim: Claim) -> dict[str, object] | None:
    """Return the measured trade-off curve beside the claimed one, as `audit` has it, and that of the sound bound."""
    if evidence.tradeoff is None or isinstance(claim, AttackClaim):
        return None
    alpha = evidence.tradeoff["alpha"]
    claimed = claimed_curve(alpha, claim.epsilon, claim.delta, of_method=isinstance(claim, MethodClaim))
    found = {**evidence.tradeoff, "claimed": claimed}
    recomputed = recomputed_curve(alpha, evidence.theory, claim.delta)
    return found if recomputed is None else {**found, "recomputed": recomputed}


def _claim_sentence(entry: ClaimResult) -> str:
    """Return what was claimed, measured and proved about one claim, in words."""
    parts = _attack_parts(entry) if entry.form == "attack" else [_measured(entry), *_proved(entry)]
    parts += [f"Warning: {warning}." for warning in entry.warnings]
    if entry.missing:
        parts.append(f"Incomplete: {entry.missing}.")
    if entry.refuted_by is not None:
        parts.append(f"{_grounds(entry, entry.refuted_by)}: that stands until the claim, or its revision, changes.")
    return " ".join(part for part in parts if part)


def _grounds(entry: ClaimResult, found: Refutation) -> str:
    """Return what an earlier look refuted a claim by, as its entry of the ledger keeps it."""
    given = f", {found.given}" if found.given else ""
    p_value = "" if found.p_value is None else f", p = {found.p_value:.1g}{given}"
    scores = "the same scores" if _same_scores(entry) else f"scores of digest {found.scores[:12]}"
    return f"An earlier look refuted it (entry {found.entry} of the ledger{p_value}, {scores})"


def _same_scores(entry: ClaimResult) -> bool:
    """Whether the scores shown are those by which an earlier look refuted the claim."""
    return entry.refuted_by is not None and entry.refuted_by.scores == entry.scores_digest


def _attack_parts(entry: ClaimResult) -> list[str]:
    limit, success = entry.claimed, entry.attack.success
    if success is None or not entry.rates:
        return [f"The claimed limit of {100 * limit:g}% was not tested."]
    guess = max(entry.attack.baselines.values(), default=0.0)
    done = "above" if _refuted_now(entry) or _same_scores(entry) else "which does not refute"
    parts = [
        f"{entry.claim['attack']} by the {entry.claim['adversary']} succeeds in {100 * success:.1f}% of its "
        f"guesses over {entry.trials} trainings, {done} the claimed limit of {100 * limit:g}% "
        f"(p = {entry.p_value:.1g})."
    ]
    if guess > limit:
        parts.append(f"Guessing without an attack already finds {100 * guess:.1f}%: no method could keep this claim.")
    return parts


def _refuted_now(entry: ClaimResult) -> bool:
    """Whether the evidence shown is what refutes the claim, and not that of an earlier look."""
    return entry.verdict == "refuted" and entry.refuted_by is None


def _measured(entry: ClaimResult) -> str:
    claimed = entry.claimed
    if entry.unaudited:
        return f"Not audited: {entry.unaudited}."
    if entry.epsilon_lower is None:
        return "Not audited."
    given = f", {entry.given}" if entry.given and entry.epsilon_lower > 0 else ""
    measured = f"The audit measures epsilon of at least {down(entry.epsilon_lower)}{given} (p = {entry.p_value:.1g})"
    if _refuted_now(entry):
        # "given Gaussian noise" stands once: at the bound, or, where nothing else refutes the claim, at the verdict.
        rests = f" {entry.verdict_given}" if entry.verdict_given and not given else ""
        return f"{measured}, which refutes the claimed {claimed:g}{rests}."
    if _same_scores(entry):
        return f"{measured}."
    return (
        f"{measured}, which neither refutes nor confirms the claimed {claimed:g}; it could have certified at most "
        f"{down(entry.ceiling or 0.0)}."
    )


def _proved(entry: ClaimResult) -> list[str]:
    claimed, upper, adversary = entry.claimed, entry.upper, entry.claim["adversary"]
    if upper is not None:
        side = "at or below" if supports(upper, claimed) else "above"
        parts = [f"The tightest sound upper bound against the {adversary} is {up(upper)}, {side} the claim."]
        if entry.verdict == "refuted" and supports(upper, claimed):
            parts.append(
                "Theory supports this configuration, so what runs is not what is configured, or this is the rare "
                "false alarm."
            )
        return parts
    if entry.gap:
        why = "; ".join(entry.explanations.get(name, "") for name in entry.gap.split(","))
        return [f"No sound upper bound exists (gap {entry.gap}{': ' + why if why.strip('; ') else ''})."]
    return ["No theory speaks of it."]


def _summary_sentence(claims: Sequence[ClaimResult], level: float, options: GateOptions) -> str:
    """Return the counts of all verdicts, what they hold with, what is missing, and what fails for `strict` alone."""
    verdicts = [claim.verdict for claim in claims]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts)
    text = f"{len(claims)} claim{'' if len(claims) == 1 else 's'}: {counts}."
    text += f" A true claim among them is refuted with probability at most {level:g}."
    missing = sum(bool(claim.missing) for claim in claims)
    if missing:
        text += f" The evidence about {missing} of them is incomplete."
    allowed = options.allow_overclaimed
    more = sum(
        claim.fails and not fails(claim.verdict, audited=True, allow_overclaimed=allowed, strict=False)
        for claim in claims
    )
    if more:
        text += f" With strict, {more} more {'fails' if more == 1 else 'fail'}: inconclusive, cut off or not audited."
    return text


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Which claims are refuted at `level`, the error rate of all together, or by an `earlier` entry of a ledger.

    `alone` says of those that this run refuted whether tests that take nothing as given did. `ledger` is the state of
    the ledger, None without one.
    """

    refuted: tuple[bool, ...]
    alone: tuple[bool, ...]
    level: float
    earlier: tuple[Refutation | None, ...]
    ledger: dict[str, str | int] | None = None


def decided(runs: Sequence[ClaimRun], alpha: float) -> Decided:
    """Decide by the evidence of `runs` alone."""
    gathered = [run.evidence() for run in runs]
    return Decided(
        refuted=holm([found.p_value for found in gathered], alpha),
        alone=holm([found.general_p_value for found in gathered], alpha),
        level=alpha,
        earlier=(None,) * len(runs),
    )


def decided_by_ledger(
    path: Path, memory: LedgerMemory, alpha: float, runs: Sequence[ClaimRun], *, new: bool
) -> Decided:
    """Decide by the ledger, and enter what it did not know: on the disk before anybody is told of a verdict.

    Of an interrupted run too: what was looked at was looked at.
    """
    looks = [
        Look(
            claim=run.placed.digest(),
            scores=found.scores,
            name=run.placed.name,
            p_value=found.p_value,
            general_p_value=found.general_p_value,
            tested=found.tested,
            split=found.split,
        )
        for run in runs
        for found in (run.evidence(),)
    ]
    with ledger_lock(path):
        book = open_ledger(path, alpha, memory, new=new)
        refuted, earlier, entry = refuted_over_time(book, looks)
        if entry.decisions:
            book = append_entry(path, book, entry, memory)
        elif book.entries:
            memory.remember(path, book)
    return Decided(
        refuted=refuted,
        alone=tuple(look.claim in entry.decisions and not entry.decisions[look.claim].given for look in looks),
        level=entry.level,
        earlier=earlier,
        ledger={"ledger": book.name, "entries": len(book.entries), "head": head_of(book)},
    )
