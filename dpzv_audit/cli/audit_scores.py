"""`dpzv-audit audit scores`: lower bounds from two files of scores that any system wrote; trains nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from reports.text import percent

from ..base.errors import AuditError, InputError, check_count, check_not_negative
from ..base.findings import Void, to_jsonable
from ..evidence.verdict import GIVEN_GAUSSIAN, given_by, largest_gating, on_privacy
from ..results import JudgedBound, Privacy, ScoresClaim, ScoresResult
from ..statistics.assumptions import dependence, remarks, same_scores
from ..statistics.coverage import FALSE_ALARM, as_text, coverage_check
from ..statistics.estimators import DEFAULT_ESTIMATORS, ESTIMATORS, audit_scores, can_refute, may_refute
from ..statistics.families import FAMILIES, CurveFamily, sampled_family
from ..statistics.fixed import expected_bound
from ..statistics.panel import Panel
from ..statistics.scores import LoadedScores, load_score_files
from .flags import DEFAULT_DELTA, Probability, Whole, among, number_in, takes
from .output import Answered, coloured, print_table, table_of
from .summary import at_least, sentence_of

"""What an estimator says of a claim, the strongest first."""
FAMILY_HELP = "gaussian, laplace, pure or sampled:rate=R,rounds=T[,pair=remove|replace]"
CHECKED_SCORES = 1000
Estimators = Annotated[list[str] | None, among(*ESTIMATORS, kind="estimators")]


@takes
def audit_coverage(
    *,
    audits: Annotated[int, partial(check_count, least=2)] = 200,
    estimator: Estimators = None,
    delta: Probability = DEFAULT_DELTA,
    confidence: Probability = 0.95,
    seed: Whole = 0,
    output: Answered,
) -> None:
    """Check estimators on mechanisms of known epsilon.

    Prints coverage and power. Fails if bounds exceed the truth more often than valid bounds would.

    Example: dpzv-audit audit coverage --estimator joint --audits 100

    Basics:
        audits N: Audits of each mechanism.
        estimator NAME: Estimator to check; by default all. May be given several times.
        delta X: Delta of every bound. Strictly between 0 and 1.
        confidence X: Confidence of every bound. Between 0 and 1.
    Execution:
        seed N: Seed of all random numbers.
    """

    def say(text: str) -> None:
        if not output.as_json:
            typer.echo(text.splitlines()[-1])

    say(f"{audits} audits of each mechanism, {CHECKED_SCORES} scores a side, {100 * confidence:g}%, delta {delta:g}")
    say(as_text([]))
    rows = coverage_check(
        audits=audits,
        n=CHECKED_SCORES,
        delta=delta,
        confidence=confidence,
        estimators=tuple(estimator) if estimator else None,
        seed=seed,
        progress=lambda row: say(as_text([row])),
    )
    failed = [row for row in rows if not row.passed]
    output.result(
        {
            "schema": "dpzv-audit/calibrate-check/1",
            "audits": audits,
            "scores": CHECKED_SCORES,
            "delta": delta,
            "confidence": confidence,
            "seed": seed,
            "false_alarm": FALSE_ALARM,
            "passed": not failed,
            "rows": [{**to_jsonable(row), "passed": row.passed} for row in rows],
        }
    )
    if failed:
        worst = failed[0]
        raise AuditError(
            f"{worst.estimator} exceeded the truth of {worst.mechanism} in {worst.exceeded} of {worst.audits} audits, "
            f"valid bounds would in at most {worst.allowed}"
        )
    say(f"no row exceeds what valid bounds pass in any row with probability {FALSE_ALARM:g}")


def family_of(text: str) -> CurveFamily:
    """Return the family of trade-off curves that `--family` names; `InputError` for anything else."""
    if text in FAMILIES:
        return FAMILIES[text]
    kind, _, rest = text.partition(":")
    settings = dict(setting.partition("=")[::2] for setting in rest.split(","))
    if kind != "sampled" or not {"rate", "rounds"} <= set(settings) <= {"rate", "rounds", "pair"}:
        raise InputError(f"use {FAMILY_HELP}", "family", text)
    for key in ("rate", "rounds"):
        if not math.isfinite(number_in(settings[key])):
            raise InputError(f": {settings[key]!r} is not a number; use {FAMILY_HELP}", "family", text)
    rounds = float(settings["rounds"])
    if rounds != int(rounds):
        raise InputError("use a whole number of rounds", "family", text)
    try:
        pair = settings.get("pair", "remove")
        return sampled_family(rate=float(settings["rate"]), rounds=int(rounds), pair=pair)
    except InputError as error:
        raise InputError(f": {error.words}", "family", text) from None


@dataclass(frozen=True, kw_only=True)
class ScoreFlags:
    """Options of an audit of scores.

    Basics:
        epsilon X: Claimed epsilon.
        delta X: Delta of the claim and of bounds. Strictly between 0 and 1.
        confidence X: Confidence of the bound. A true claim is refuted with probability 1 - X at most.
        fail_on refuted: Exit with 1 if the claim is refuted.
    Data:
        coin_flips: Scores of canaries of one training. A fair coin for each canary decided its file (bit 1: IN).
        header yes|no: Whether the first row of a CSV is a header. By default a name is one, and a number only where
            both files begin with it and no other row is spelled like it.
    Audit:
        estimator NAME: Estimator; see `dpzv-audit list estimators`. May be given several times.
        exactly_gaussian: Assume Gaussian scores, on your word. Use it where the construction of the mechanism makes its
            scores Gaussian: the gaussian estimator may then refute the claim.
        family FAMILY: Family of trade-off curves to fit. For the estimators curve and one-run-fdp: gaussian, laplace,
            pure or sampled:rate=R,rounds=T[,pair=remove|replace].
    Execution:
        seed N: Seed of all random numbers.
    """

    epsilon: Annotated[float | None, check_not_negative] = None
    delta: Probability = DEFAULT_DELTA
    confidence: Probability = 0.95
    estimator: Estimators = None
    exactly_gaussian: bool = False
    family: str = "gaussian"
    coin_flips: bool = False
    fail_on: Literal["refuted"] | None = None
    header: Literal["yes", "no"] | None = None
    seed: Whole = 0

    @property
    def _settings(self) -> dict[str, Any]:
        """Return the settings that both an estimator and a result take."""
        names = ("delta", "exactly_gaussian", "coin_flips", "seed")
        return {name: getattr(self, name) for name in names}


FILES = "Scores with and without the canary: CSV, NPY, NPZ, JSONL."


@takes
def audit_score_files(
    *,
    scores: Annotated[tuple[Path, Path], typer.Argument(metavar="IN OUT", help=FILES)],
    options: ScoreFlags,
    output: Answered,
) -> None:
    """Measure a lower bound on epsilon from two files of scores.

    Nothing is trained. IN holds an attack's scores on runs with the canary, OUT on runs without it, one per run.
    Scores of many records under one model depend on each other: give --coin-flips and --estimator one-run, and only if
    a fair coin chose each member.

    Example: dpzv-audit audit scores in.csv out.csv --epsilon 1 --delta 1e-5 --fail-on refuted

    Example: dpzv-audit audit scores ones.csv zeros.csv --coin-flips --estimator one-run
    """
    if options.fail_on is not None and options.epsilon is None:
        raise InputError("--fail-on needs a claim to refute, give --epsilon as well")
    family = family_of(options.family)
    files = load_score_files(*scores, header=None if options.header is None else options.header == "yes")
    sides = (files.inside, files.outside)
    _refuse_too_few(files, options)
    bounds = _judged(files, family, options)
    dependent = dependence(*sides)
    same = same_scores(*sides, "files")
    warnings = [*files.notes, *remarks(*sides, "files"), *([dependent] if dependent else [])]
    claim = None
    if options.epsilon is not None:
        privacy = Privacy(
            claimed=options.epsilon,
            delta=options.delta,
            confidence=options.confidence,
            given=given_by(bounds),
            empirical_lower=largest_gating(bounds),
            estimators=list(bounds),
        )
        voids = [Void(reason="same-scores", words=same)] if same else []
        privacy = on_privacy(privacy, theory=False, voids=voids, warnings=warnings)
        claim = ScoresClaim(
            epsilon=options.epsilon, delta=options.delta, verdict=privacy.verdict, judged=privacy.judged
        )
    result = ScoresResult(
        scores={"in": str(scores[0]), "out": str(scores[1]), "n_in": sides[0].size, "n_out": sides[1].size},
        **options._settings,
        confidence=options.confidence,
        family=family.name,
        claim=claim,
        estimators=list(bounds),
        meaning=_meaning(bounds, options),
        warnings=warnings,
    )
    output.result(result)
    if not output.as_json:
        if output.quiet:
            output.line(result.meaning)
            for warning in warnings:
                typer.echo(f"Warning: {warning}.")
        output.show(result)
        if output.verbose:
            output.say("")
            _print_table(bounds, options.epsilon, output)
            output.line(result.meaning)
    if claim is not None and claim.verdict == options.fail_on:
        raise typer.Exit(1)


def _refuse_too_few(files: LoadedScores, options: ScoreFlags) -> None:
    """Raise `InputError` if no estimator can test so few scores."""
    inside, outside = files.inside.size, files.outside.size
    needed = min(ESTIMATORS[name].least_a_side for name in options.estimator or DEFAULT_ESTIMATORS)
    if min(inside, outside) < needed:
        given = f"{inside} scores with the canary and {outside} without it"
        raise InputError(f"the files hold {given}: give at least {needed} of each, or nothing can be tested")


def _judged(files: LoadedScores, family: CurveFamily, options: ScoreFlags) -> tuple[JudgedBound, ...]:
    """Return a bound for each estimator; those that may refute a claim share the error of one verdict.

    The best of their bounds is then too large with probability at most 1 - confidence, and so is a true claim refuted.
    """
    names = tuple(dict.fromkeys(options.estimator or DEFAULT_ESTIMATORS))
    gating = Panel([name for name in names if may_refute(name, exactly_gaussian=options.exactly_gaussian)])
    judged = []
    for name in names:
        level = gating.confidence(options.confidence) if name in gating.tests else options.confidence
        sides = (files.inside, files.outside)
        (bound,) = audit_scores(*sides, confidence=level, estimators=(name,), family=family, **options._settings)
        verdict = None
        if options.epsilon is not None:
            verdict = "refuted" if bound.epsilon_lower > options.epsilon else "not refuted"
            if not can_refute(bound):
                verdict = "cannot refute"
        judged.append(JudgedBound(**vars(bound), verdict=verdict))
    return tuple(judged)


def _meaning(bounds: Sequence[JudgedBound], options: ScoreFlags) -> str:
    """Return the result in words: the bound, what it does to the claim, and the most this test could see."""
    gates = [bound for bound in bounds if can_refute(bound)]
    best = max(gates or bounds, key=lambda bound: bound.epsilon_lower)
    ceiling = max((bound.ceiling for bound in gates), default=best.ceiling)
    expected = None
    if gates and options.epsilon is not None and options.epsilon < ceiling:
        expected = expected_bound(
            options.epsilon,
            n_in=best.n_in,
            n_out=best.n_out,
            delta=options.delta,
            confidence=gates[0].confidence,
        )
    return sentence_of("scores", gates, best, ceiling, options, expected)


def _print_table(bounds: Sequence[JudgedBound], claimed: float | None, output: Answered) -> None:
    """Print a table with a row per estimator, and below it how each threshold came about."""
    numbers = dict.fromkeys(("epsilon >=", "mu >=", "limit", "at"), "number")
    columns = {"estimator": "name", **numbers, "assumes": "text"}
    with_claim = any(bound.verdict for bound in bounds)
    if with_claim:
        columns["claim"] = "text"
    table = table_of(columns, "Lower bounds on epsilon", rule=True)
    for bound in bounds:
        # Only a bound that the user vouched for has a mu.
        vouched = "what --exactly-gaussian vouches for; a test of it does not object"
        assumes = "nothing" if bound.mu_lower is None else vouched
        # A verdict by a bound on a trade-off curve takes Gaussian noise as given.
        assumption = f" {GIVEN_GAUSSIAN}" if bound.claim_kind == "trade-off" and bound.verdict == "refuted" else ""
        table.add_row(
            bound.name,
            at_least(bound.epsilon_lower, claimed),
            "" if bound.mu_lower is None else at_least(bound.mu_lower),
            at_least(bound.ceiling, claimed),
            percent(bound.confidence),
            Text(bound.assumes or assumes),
            *([coloured(f"{bound.verdict}{assumption}")] if bound.verdict else []),
        )
    print_table(output.console, table)
    for bound in bounds:
        output.console.print(Text(f"{bound.name}: {bound.threshold_rule}."))
