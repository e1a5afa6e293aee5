"""Decides on all claims of a file together, and returns the result of `verify`: verdicts, with evidence in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..accounting.release import random_batches
from ..base.findings import FALSE_ALARM, to_jsonable
from ..evidence.sentences import said, supports
from ..evidence.verdict import (
    GIVEN_GAUSSIAN,
    VERDICTS,
    AttackEvidence,
    Evidence,
    decide,
    fails,
    proven,
    refutable,
    theory_curves,
    why_powerless,
)
from ..evidence.verdict import Look as EvidenceLook
from ..results import (
    ClaimResult,
    DecidedIn,
    FileControls,
    GateOptions,
    Measured,
    Noise,
    Refutation,
    Verdict,
    VerifyResult,
)
from ..statistics.panel import adjusted_p_values, holm
from ..statistics.success import trainings_needed
from .file import Claim, ClaimsFile, said_by
from .gate import ClaimRun, Gate
from .ledger import LedgerMemory, about, append_entry, ledger_lock, open_ledger, refuted_over_time, state_of


def verify_result(
    file: ClaimsFile,
    runs: Sequence[ClaimRun],
    decided: "Decided",
    options: GateOptions,
    *,
    seed: int,
    interrupted: bool = False,
) -> VerifyResult:
    """Return the result of `verify`: the same for the same evidence."""
    evidence = [run.evidence() for run in runs]
    adjusted = adjusted_p_values([each.p_value for each in evidence])
    rows = zip(runs, evidence, decided.claims, adjusted, strict=True)
    claims = [_claim_result(*row, decided.alpha, options) for row in rows]
    words = [claim.verdict for claim in claims]
    simulated = any(claim.form != "scores" for claim in claims)
    sampled = any(random_batches(each.facts.get("config", {}).get("sampler")) for each in evidence)
    for_strict_alone = [c for c in claims if c.fails and not fails(c.verdict, audited=True, allow=options.allow)]
    controls = controls_together(claims)
    result = VerifyResult(
        claims_file=shown_path(str(file.path)),
        alpha=file.alpha,
        level=decided.level,
        seed=seed,
        summary={word: words.count(word) for word in VERDICTS},
        sentence=said("verify", claims, VERDICTS, decided.level, len(for_strict_alone), controls),
        noise=Noise.of_simulation(seed, batches=sampled) if simulated else None,
        interrupted=interrupted,
        missing=[claim.name for claim in claims if claim.missing],
        failed=any(claim.fails for claim in claims),
        options=options,
        controls=controls,
        claims=claims,
    )
    if decided.ledger is None:
        return result
    return result.model_copy(update={"ledger": decided.ledger})


def _claim_result(
    run: ClaimRun, evidence: Evidence, decision: "ClaimDecision", adjusted: float, alpha: float, options: GateOptions
) -> ClaimResult:
    """Return a claim with its verdict; upper limits of success are at the error `alpha`."""
    claim = run.placed.claim
    theory = evidence.theory
    level = decision.level
    judged = _judged(claim, evidence, decision, alpha)
    same = ("p_value", "trials", "missing", "unaudited", "split", "facts")
    facts = {key: to_jsonable(getattr(evidence, key)) for key in same}
    facts |= {
        "name": claim.name,
        "form": claim.form,
        "source": claim.source,
        "line": run.placed.line,
        "claim": said_by(claim),
        "rates": evidence.attack.rates,
        "verdict": judged.word,
        "judged": judged,
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
        "attack": _attack(evidence.attack, alpha),
        "reach": _reach(claim, evidence, decision),
        "looks": [_look(look, level) for look in evidence.looks],
        "controls": controls_of(run),
        "tradeoff": _with_curves(evidence, claim),
        "evidence_key": run.evidence_key,
        "scores_digest": evidence.scores,
        "refuted_by": decision.earlier,
        "decided_in": decision.decided_in,
        "sentence": "",
        "fails": False,
    }
    entry = ClaimResult.model_validate(facts)
    supported = entry.upper is not None and supports(entry.upper, entry.claimed)
    why = said("claim", entry, supported, evidence.voids)
    return entry.model_copy(
        update={
            "judged": judged.model_copy(update={"why": why}),
            "sentence": why,
            "fails": fails(entry.verdict, audited=entry.audited, allow=options.allow, strict=options.strict),
        }
    )


def controls_of(run: ClaimRun) -> list[dict[str, object]]:
    """Return the controls of a claim's attacks, each with the level at which it was judged."""
    controls = run.gathered().attack.controls
    level = run.judge.level(controls)
    rows = []
    for control in controls:
        facts = {key: value for key, value in vars(control).items() if key != "missed"}
        tested = control.p_value is not None
        rows.append({**facts, "level": level if tested else None, "holds": control.holds(level)})
    return rows


def controls_together(claims: Sequence[ClaimResult]) -> FileControls | None:
    """Return the controls of all claims; None where none had one."""
    every = [(claim, control) for claim in claims for control in claim.controls]
    if not every:
        return None
    failed = [f"{claim.name}: {control.attack}: {control.name}" for claim, control in every if not control.holds]
    tests = sum(control.p_value is not None for _, control in every)
    return FileControls(tests=tests, false_alarm=FALSE_ALARM, failed=failed)


def _judged(claim: Claim, evidence: Evidence, decision: "ClaimDecision", alpha: float) -> Verdict:
    """Return the verdict on a claim; `why` is still empty."""
    theory = evidence.theory
    level = decision.level
    about_attack = claim.kind == "attack"
    attack = evidence.attack
    limit = attack.success_upper(alpha)
    if about_attack and not evidence.missing:
        # Trainings end before the planned number where an attack finds little: the plan could have refuted.
        could_refute = decision.refutable
    else:
        could_refute = evidence.could_refute(level, claim.claimed)
    word, reason = decide(
        refuted=decision.refuted,
        refuted_before=decision.earlier is not None,
        theory=theory.applies,
        upper=theory.upper,
        claimed=None if about_attack else claim.claimed,
        voids=evidence.voids,
        held=about_attack and not evidence.voids and limit is not None and limit <= claim.claimed,
        powerless=why_powerless(tested=evidence.tested, could_refute=could_refute),
    )
    measured = None
    if about_attack and attack.rates:
        value = attack.means["success"]
        measured = Measured(quantity="success", value=value, confidence=1.0 - alpha, limit=limit)
    elif (lower := evidence.epsilon_lower(level)) is not None:
        assumes = evidence.given(level) if lower else ""
        measured = Measured(quantity="epsilon", value=lower, confidence=1.0 - level, assumes=assumes)
    missing = [text for text in (evidence.unaudited, evidence.missing) if text]
    if word != "refuted" and attack.rates:
        missing += left_out(attack)
    return Verdict(
        claim=claim.in_words,
        claimed=claim.claimed,
        adversary=getattr(claim, "adversary", None),
        neighbours=None if about_attack else getattr(claim, "neighbours", None),
        word=word,
        reason=reason,
        why="",
        given=decision.given if word == "refuted" else "",
        measured=measured,
        proven=proven(theory.upper, stated=theory.stated),
        not_tested=[*evidence.not_tested, *missing],
        warnings=[*evidence.warnings, *evidence.set_aside(level, claim.claimed)],
    )


def left_out(attack: AttackEvidence) -> list[str]:
    """Return in sentences which attacks and clients the upper limit of a claim's success says nothing of."""
    sentences = [f"{name}, which is not counted: {why}" for name, why in attack.excluded.items()]
    if attack.unmeasured:
        more = len(attack.unmeasured) - 3
        names = ", ".join(attack.unmeasured[:3]) + (f" and {more} more" if more > 0 else "")
        sentences.append(f"{names}: the claim is about each of them, and so it cannot be held")
    return sentences


def _attack(attack: AttackEvidence, error: float) -> dict[str, object]:
    """Return what was measured of an attack; upper limits at `error`, shared by all that the claim is about."""
    if not attack.rates:
        return {}
    others = {
        name: {"trainings": len(rates), "success": sum(rates) / len(rates), "upper": attack.upper_of(rates, error)}
        for name, rates in attack.others.items()
    }
    return {
        **attack.means,
        "upper": attack.success_upper(error),
        "confidence": 1.0 - error,
        "others": others,
        "unmeasured": list(attack.unmeasured),
        "excluded": dict(attack.excluded),
    }


def _reach(claim: Claim, evidence: Evidence, decision: "ClaimDecision") -> dict[str, object] | None:
    """Return what the planned trials could show at most, and how many trainings refute a claim at its level."""
    if evidence.reach is None:
        return None
    needed = None
    least = evidence.attack.least_success
    if claim.kind == "attack" and claim.claimed > least:
        needed = trainings_needed(claim.claimed, decision.level, least=least)
    facts = {key: getattr(evidence.reach, key) for key in ("trials", "unit", "most")}
    return {**facts, "refutable": decision.refutable, "needed": needed}


def _look(look: EvidenceLook, level: float) -> dict[str, object]:
    test = look.test
    error = level * (look.weight or 1.0)
    return {
        "stage": look.stage,
        "estimator": test.name,
        "weight": look.weight,
        "p_value": look.p_value,
        "epsilon_lower": test.epsilon_lower(error),
        "ceiling": test.ceiling(error),
        "n_in": test.n_in,
        "n_out": test.n_out,
        "rule": test.rule,
        "assumes": look.assumes,
    }


def measured(runs: Sequence[ClaimRun]) -> dict[str, float]:
    """Return what another run of the same need not give again: seconds of work, and claims that the cache knew."""
    return {
        "seconds": round(sum(run.seconds for run in runs), 3),
        "claims from the cache": sum(run.cached for run in runs),
        **{f"seconds of claim {place}": round(run.seconds, 3) for place, run in enumerate(runs, start=1)},
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
    if evidence.tradeoff is None or claim.kind == "attack":
        return None
    alpha = evidence.tradeoff["alpha"]
    of_method = claim.form == "method"
    curves = theory_curves(alpha, evidence.theory, epsilon=claim.epsilon, delta=claim.delta, of_method=of_method)
    return {**evidence.tradeoff, **{name: curve for name, curve in curves.items() if curve is not None}}


@dataclass(frozen=True, kw_only=True)
class ClaimDecision:
    """The decision on one claim: whether it is refuted, by this run or by an `earlier` entry of a ledger.

    `level` is the claim's even share of the error rate at which its scores are judged: that of the entry `decided_in`
    which decided on these scores, or of this run. `given` is what a refutation takes as given. `refutable` says whether
    the planned trials could have refuted it.
    """

    refuted: bool
    given: str
    refutable: bool
    level: float
    earlier: Refutation | None = None
    decided_in: DecidedIn | None = None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The decisions on all claims of a file, of which a true one is refuted with probability at most `level`.

    `alpha` is the error of the whole file, at which success has its upper limits. `ledger` is the state of the ledger,
    None without one.
    """

    claims: Sequence[ClaimDecision]
    level: float
    alpha: float
    ledger: dict[str, str | int] | None = None


def decided(runs: Sequence[ClaimRun], alpha: float) -> Decided:
    """Decide by the evidence of `runs` alone."""
    evidence = [run.evidence() for run in runs]
    refuted = holm([each.p_value for each in evidence], alpha)
    alone = holm([each.general_p_value for each in evidence], alpha)
    claims = [
        ClaimDecision(
            refuted=refuted[place],
            given="" if alone[place] else GIVEN_GAUSSIAN,
            refutable=could,
            level=alpha / len(runs),
        )
        for place, could in enumerate(refutable(evidence, alpha))
    ]
    return Decided(claims=claims, level=alpha, alpha=alpha)


def decided_by_ledger(path: Path, memory: LedgerMemory, gate: Gate, runs: Sequence[ClaimRun], *, new: bool) -> Decided:
    """Decide by the ledger, and enter what it did not know: on the disk before anybody is told of a verdict.

    Of an interrupted run too: what was looked at was looked at. A run that goes on (`gate.resume`) and finds what the
    last entry says is the run of that entry, and decides by those before it alone.
    Raises `InputError` where an entry is not what was measured.
    """
    alpha = gate.file.alpha
    evidence = [run.evidence() for run in runs]
    looks = [(run.placed, each) for run, each in zip(runs, evidence, strict=True)]
    digests = [run.placed.digest() for run in runs]
    with ledger_lock(path):
        book = open_ledger(path, alpha, memory, new=new)
        with about(path):
            book.check()
            before = book
            refuted, earlier, entry = refuted_over_time(book, looks, gate.made)
            if gate.resume and not entry.decisions and book.entries:
                again = refuted_over_time(book.without_last(), looks, gate.made)
                if again[2] == book.entries[-1]:
                    before = book.without_last()
                    refuted, earlier, entry = again
            numbers = [before.decided_in(*look, gate.made) for look in zip(digests, evidence, strict=True)]
        if before is book and entry.decisions:
            book = append_entry(path, book, entry, memory)
        elif book.entries:
            memory.remember(path, book)
    levels = [entry.level if number is None else before.entries[number - 1].level for number in numbers]
    could = {level: refutable(evidence, level) for level in set(levels)}
    claims = []
    for place, (digest, number, level) in enumerate(zip(digests, numbers, levels, strict=True)):
        new_decision = entry.decisions.get(digest)
        assumption = GIVEN_GAUSSIAN if new_decision is None else new_decision.given or ""
        if (refutation := earlier[place]) is not None:
            assumption = refutation.given or ""
        claims.append(
            ClaimDecision(
                refuted=refuted[place],
                given=assumption,
                refutable=could[level][place],
                level=level / len(runs),
                earlier=refutation,
                decided_in=None if number is None else DecidedIn(entry=number, level=level),
            )
        )
    spent = book.spent_on(digests) or entry.level
    return Decided(claims=claims, level=spent, alpha=alpha, ledger=vars(state_of(book)))
