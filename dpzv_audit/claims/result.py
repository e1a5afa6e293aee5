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
    claim_in_words,
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
from .gate import ClaimRun
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
    adjusted = adjusted_p_values([run.evidence().p_value for run in runs])
    claims = [_claim_result(run, i, decided, adjusted[i], options) for i, run in enumerate(runs)]
    words = [claim.verdict for claim in claims]
    simulated = any(claim.form != "scores" for claim in claims)
    sampled = any(random_batches(run.evidence().facts.get("config", {}).get("sampler")) for run in runs)
    for_strict_alone = [c for c in claims if c.fails and not fails(c.verdict, audited=True, allow=options.allow)]
    together = controls_together(claims)
    result = VerifyResult(
        claims_file=shown_path(str(file.path)),
        alpha=file.alpha,
        level=decided.level,
        seed=seed,
        summary={word: words.count(word) for word in VERDICTS},
        sentence=said("verify", claims, VERDICTS, decided.level, len(for_strict_alone), together),
        noise=Noise.of_simulation(seed, batches=sampled) if simulated else None,
        interrupted=interrupted,
        missing=[claim.name for claim in claims if claim.missing],
        failed=any(claim.fails for claim in claims),
        options=options,
        controls=together,
        claims=claims,
    )
    if decided.ledger is None:
        return result
    return result.model_copy(update={"ledger": decided.ledger})


def _claim_result(run: ClaimRun, place: int, decided: "Decided", adjusted: float, options: GateOptions) -> ClaimResult:
    """Return the claim at a place with its verdict; bounds are those at its even share of the file's error rate."""
    claim = run.placed.claim
    evidence = run.evidence()
    theory = evidence.theory
    earlier = decided.earlier[place]
    level = decided.levels[place] / len(decided.refuted)
    as_it_is = ("p_value", "trials", "missing", "unaudited", "split", "facts")
    judged = _judged(run, place, decided, level)
    found = {key: to_jsonable(getattr(evidence, key)) for key in as_it_is}
    found |= {
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
        "attack": _attack(evidence.attack, decided.alpha),
        "reach": _reach(claim, evidence, level, could_refute=decided.refutable[place]),
        "looks": [_look(look, level) for look in evidence.looks],
        "controls": controls_of(run),
        "tradeoff": _with_curves(evidence, claim),
        "evidence_key": run.evidence_key,
        "scores_digest": evidence.scores,
        "refuted_by": earlier,
        "decided_in": decided.decided_in[place],
        "sentence": "",
        "fails": False,
    }
    entry = ClaimResult.model_validate(found)
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
    found = []
    for control in controls:
        facts = {key: value for key, value in vars(control).items() if key != "missed"}
        tested = control.p_value is not None
        found.append({**facts, "level": level if tested else None, "holds": control.holds(level)})
    return found


def controls_together(claims: Sequence[ClaimResult]) -> FileControls | None:
    """Return the controls of all claims; None where none had one."""
    every = [(claim, control) for claim in claims for control in claim.controls]
    if not every:
        return None
    failed = [f"{claim.name}: {one.attack}: {one.name}" for claim, one in every if not one.holds]
    tests = sum(one.p_value is not None for _, one in every)
    return FileControls(tests=tests, false_alarm=FALSE_ALARM, failed=failed)


def _judged(run: ClaimRun, place: int, decided: "Decided", level: float) -> Verdict:
    """Return the verdict on the claim at a place, whose bounds are those at the error `level`; `why` is still empty."""
    claim = run.placed.claim
    evidence = run.evidence()
    theory = evidence.theory
    earlier = decided.earlier[place]
    about_attack = claim.kind == "attack"
    claimed = claim.success_at_most if claim.kind == "attack" else claim.epsilon
    attack = evidence.attack
    limit = attack.success_upper(decided.alpha)
    could_refute = evidence.could_refute(level, claimed)
    if about_attack and not evidence.missing:
        # Trainings end before the planned number where an attack finds little: the plan could have refuted.
        could_refute = decided.refutable[place]
    word, reason = decide(
        refuted=decided.refuted[place],
        refuted_before=earlier is not None,
        theory=theory.applies,
        upper=theory.upper,
        claimed=None if about_attack else claimed,
        voids=evidence.voids,
        held=about_attack and not evidence.voids and limit is not None and limit <= claimed,
        powerless=why_powerless(tested=evidence.tested, could_refute=could_refute),
    )
    given = ""
    if word == "refuted":
        given = (earlier.given or "") if earlier is not None else "" if decided.alone[place] else GIVEN_GAUSSIAN
    measured = None
    if about_attack and attack.rates:
        value = attack.means["success"]
        measured = Measured(quantity="success", value=value, confidence=1.0 - decided.alpha, limit=limit)
    elif (lower := evidence.epsilon_lower(level)) is not None:
        measured = Measured(
            quantity="epsilon", value=lower, confidence=1.0 - level, assumes=evidence.given(level) if lower else ""
        )
    missing = [text for text in (evidence.unaudited, evidence.missing) if text]
    if word != "refuted" and attack.rates:
        missing += left_out(attack)
    return Verdict(
        claim=_claim_in_words(claim),
        adversary=getattr(claim, "adversary", None),
        neighbours=None if about_attack else getattr(claim, "neighbours", None),
        word=word,
        reason=reason,
        why="",
        given=given,
        measured=measured,
        proven=proven(theory.upper, stated=theory.stated),
        not_tested=[*evidence.not_tested, *missing],
        warnings=[*evidence.warnings, *evidence.set_aside(level)],
    )


def left_out(attack: AttackEvidence) -> list[str]:
    """Return in sentences which attacks and clients the upper limit of a claim's success says nothing of."""
    unmeasured = attack.unmeasured
    found = [f"{name}, which is not counted: {why}" for name, why in attack.excluded.items()]
    if unmeasured:
        names = ", ".join(unmeasured[:3]) + (f" and {len(unmeasured) - 3} more" if len(unmeasured) > 3 else "")
        found.append(f"{names}: the claim is about each of them, and so it cannot be held")
    return found


def _claim_in_words(claim: Claim) -> str:
    if claim.kind == "attack":
        return f"success of {claim.attack} at most {100.0 * claim.success_at_most:g}%"
    if claim.kind == "coins":
        return f"each coin guessed right with a chance of at most {100.0 * claim.coin_success_at_most:g}%"
    return claim_in_words(claim.epsilon, claim.delta)


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


def _reach(claim: Claim, evidence: Evidence, level: float, *, could_refute: bool) -> dict[str, object] | None:
    """Return what the planned trials could show at most, and how many trainings refute a claim at `level`."""
    reach = evidence.reach
    if reach is None:
        return None
    needed = None
    least = evidence.attack.least_success
    if claim.kind == "attack" and claim.success_at_most > least:
        needed = trainings_needed(claim.success_at_most, level, least=least)
    facts = {"trials": reach.trials, "unit": reach.unit, "most": reach.most}
    return {**facts, "refutable": could_refute, "needed": needed}


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
    found: dict[str, float] = {
        "seconds": round(sum(run.seconds for run in runs), 3),
        "claims from the cache": sum(run.cached for run in runs),
    }
    for place, run in enumerate(runs, start=1):
        found[f"seconds of claim {place}"] = round(run.seconds, 3)
    return found


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
class Decided:
    """Which claims are refuted, by this run or by an `earlier` entry of a ledger.

    A true claim among them is refuted with probability at most `level`. The scores of each claim are judged at its
    `levels`, an error rate of all claims of one look together: that of the entry `decided_in` which decided on these
    scores, or of this run. `alone` says of those that this run refuted whether tests that take nothing as given did,
    `refutable` which claims the planned trials could have refuted. `alpha` is the error of the whole file, at which
    success has its upper limits. `ledger` is the state of the ledger, None without one.
    """

    refuted: tuple[bool, ...]
    alone: tuple[bool, ...]
    refutable: tuple[bool, ...]
    level: float
    levels: tuple[float, ...]
    alpha: float
    earlier: tuple[Refutation | None, ...]
    decided_in: tuple[DecidedIn | None, ...]
    ledger: dict[str, str | int] | None = None


def decided(runs: Sequence[ClaimRun], alpha: float) -> Decided:
    """Decide by the evidence of `runs` alone."""
    gathered = [run.evidence() for run in runs]
    return Decided(
        refuted=holm([found.p_value for found in gathered], alpha),
        alone=holm([found.general_p_value for found in gathered], alpha),
        refutable=refutable(gathered, alpha),
        level=alpha,
        levels=(alpha,) * len(runs),
        alpha=alpha,
        earlier=(None,) * len(runs),
        decided_in=(None,) * len(runs),
    )


def decided_by_ledger(
    path: Path, memory: LedgerMemory, alpha: float, runs: Sequence[ClaimRun], *, new: bool, made: str, resume: bool
) -> Decided:
    """Decide by the ledger, and enter what it did not know: on the disk before anybody is told of a verdict.

    Of an interrupted run too: what was looked at was looked at. `made` is that of the gate. A run that goes on
    (`resume`) and finds what the last entry says is the run of that entry, and decides by those before it alone.
    Raises `InputError` where an entry is not what was measured.
    """
    looks = [(run.placed, run.evidence()) for run in runs]
    digests = [run.placed.digest() for run in runs]
    with ledger_lock(path):
        book = open_ledger(path, alpha, memory, new=new)
        with about(path):
            book.check()
            before = book
            refuted, earlier, entry = refuted_over_time(book, looks, made)
            if resume and not entry.decisions and book.entries:
                again = refuted_over_time(book.without_last(), looks, made)
                if again[2] == book.entries[-1]:
                    before = book.without_last()
                    refuted, earlier, entry = again
            decided_in = [before.decided_in(run, found, made) for run, (_, found) in zip(digests, looks, strict=True)]
        if before is book and entry.decisions:
            book = append_entry(path, book, entry, memory)
        elif book.entries:
            memory.remember(path, book)
    decisions = [entry.decisions.get(digest) for digest in digests]
    levels = [entry.level if number is None else before.entries[number - 1].level for number in decided_in]
    could = {level: refutable([evidence for _, evidence in looks], level) for level in set(levels)}
    return Decided(
        refuted=refuted,
        alone=tuple(one is not None and not one.given for one in decisions),
        refutable=tuple(could[level][place] for place, level in enumerate(levels)),
        level=book.spent_on(digests) or entry.level,
        levels=tuple(levels),
        alpha=alpha,
        earlier=earlier,
        decided_in=tuple(
            None if number is None else DecidedIn(entry=number, level=level)
            for number, level in zip(decided_in, levels, strict=True)
        ),
        ledger=vars(state_of(book)),
    )
