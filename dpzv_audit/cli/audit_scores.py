"""`dpzv-audit audit --scores`: lower bounds from two files of scores that any system wrote; trains nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpzv_audit.cli.common import Output
from dpzv_audit.cli.tables import print_table
from dpzv_audit.errors import InputError, check_probability, unknown_name
from reports.text import percent, verdict_words

if TYPE_CHECKING:
    from dpzv_audit.auditing.families import CurveFamily
    from dpzv_audit.findings import EmpiricalBound


@dataclass(frozen=True, kw_only=True)
class ScoreAuditOptions:
    """The flags of an audit from score files, as given; `estimators` None stands for the default ones."""

    epsilon: float | None
    delta: float
    confidence: float
    estimators: tuple[str, ...] | None
    exactly_gaussian: bool
    family: CurveFamily
    coin_flips: bool
    fail_on: str | None
    seed: int


def audit_score_files(files: tuple[Path, Path], options: ScoreAuditOptions, output: Output) -> None:
    """Audit the scores in two files, print the result, and exit with 1 where `--fail-on` asks for it.

    Raises `InputError` for a flag or a file that is wrong.
    """
    from dpzv_audit.auditing import DEFAULT_ESTIMATORS
    from dpzv_audit.auditing.order import dependence
    from dpzv_audit.auditing.scores import load_scores
    from dpzv_audit.evidence.verdict import refuted_given

    _check_options(options)
    names = tuple(dict.fromkeys(options.estimators or DEFAULT_ESTIMATORS))
    in_scores, out_scores = (load_scores(path) for path in files)
    bounds = _bounds(in_scores, out_scores, names, options)
    verdicts = [_verdict(bound, options.epsilon) for bound in bounds]
    overall = _overall(verdicts)
    meaning = _meaning(bounds, options)
    warning = dependence(in_scores, out_scores)
    output.result(
        {
            "schema": "dpzv-audit/audit-scores/1",
            "scores": {
                "in": str(files[0]),
                "out": str(files[1]),
                "n_in": in_scores.size,
                "n_out": out_scores.size,
            },
            "delta": options.delta,
            "confidence": options.confidence,
            "seed": options.seed,
            "exactly_gaussian": options.exactly_gaussian,
            "family": options.family.name,
            "coin_flips": options.coin_flips,
            "claim": None
            if overall is None
            else {
                "epsilon": options.epsilon,
                "delta": options.delta,
                "verdict": overall,
                "given": None if options.epsilon is None else refuted_given(options.epsilon, bounds),
            },
            "estimators": [
                {**_as_dict(bound), "verdict": verdict} for bound, verdict in zip(bounds, verdicts, strict=True)
            ],
            "meaning": meaning,
            "warnings": [warning] if warning else [],
        }
    )
    if not output.as_json:
        _print_table(bounds, verdicts, output)
        typer.echo(meaning)
        if warning:
            typer.echo(f"Warning: {warning}.")
    if overall == "refuted" and options.fail_on == "refuted":
        raise typer.Exit(1)


def _check_options(options: ScoreAuditOptions) -> None:
    """Raise `InputError` naming the flag that is out of range or does not go with the others."""
    from dpzv_audit.auditing import ESTIMATORS

    check_probability("delta", options.delta)
    check_probability("confidence", options.confidence)
    if options.epsilon is not None and not 0.0 <= options.epsilon < float("inf"):
        raise InputError("must be a finite number of at least 0", "epsilon", options.epsilon)
    if options.fail_on not in (None, "refuted"):
        raise InputError("must be refuted with --scores", "fail_on", options.fail_on)
    if options.fail_on is not None and options.epsilon is None:
        raise InputError("--fail-on needs a claim to refute, give --epsilon as well")
    for name in options.estimators or ():
        if name not in ESTIMATORS:
            raise unknown_name("estimator", name, ESTIMATORS)


def _bounds(
    in_scores: Any, out_scores: Any, names: tuple[str, ...], options: ScoreAuditOptions
) -> tuple[EmpiricalBound, ...]:
    """Return a bound for each name; estimators that may refute a claim share the error of one verdict.

    The best of their bounds is then too large with probability at most 1 - confidence, and so is a true claim refuted.
    """
    from dpzv_audit.auditing import audit_scores, may_refute

    gating = [n for n in names if may_refute(n, exactly_gaussian=options.exactly_gaussian)]
    shared = 1.0 - (1.0 - options.confidence) / max(1, len(gating))
    return tuple(
        audit_scores(
            in_scores,
            out_scores,
            delta=options.delta,
            confidence=shared if name in gating else options.confidence,
            estimators=(name,),
            exactly_gaussian=options.exactly_gaussian,
            family=options.family,
            coin_flips=options.coin_flips,
            seed=options.seed,
        )[0]
        for name in names
    )


def _verdict(bound: EmpiricalBound, epsilon: float | None) -> str | None:
    """Return what `bound` says about the claimed epsilon; None without a claim."""
    from dpzv_audit.auditing import can_refute

    if epsilon is None:
        return None
    if not can_refute(bound):
        return "cannot refute"
    return "refuted" if bound.epsilon_lower > epsilon else "not refuted"


def _overall(verdicts: list[str | None]) -> str | None:
    """Return the verdict on the claim: the strongest that any estimator gives; None without a claim."""
    return next((v for v in ("refuted", "not refuted", "cannot refute") if v in verdicts), None)


def _as_dict(bound: EmpiricalBound) -> dict[str, Any]:
    from dpzv_audit.findings import to_jsonable

    fields: dict[str, Any] = to_jsonable(bound)
    return fields


def _meaning(bounds: tuple[EmpiricalBound, ...], options: ScoreAuditOptions) -> str:
    """Return the result in words: the bound, what it does to the claim, and the most this test could see."""
    from dpzv_audit.auditing import can_refute
    from dpzv_audit.auditing.fixed import expected_bound

    gates = [bound for bound in bounds if can_refute(bound)]
    first = bounds[0]
    sizes = f"{first.n_in:,} + {first.n_out:,} scores"
    if not gates:
        best = max(bounds, key=lambda bound: bound.epsilon_lower)
        return (
            "Nothing here can refute an (epsilon, delta) claim: "
            f"epsilon is at least {_down(best.epsilon_lower)} only if {best.assumes}; "
            f"with {sizes} this test can certify at most {best.ceiling:.2f}."
        )
    best = max(gates, key=lambda bound: bound.epsilon_lower)
    ceiling = max(bound.ceiling for bound in gates)
    given = ", given Gaussian noise" if best.claim_kind == "trade-off" else ""
    chosen = f", the best of {len(gates)} that share the error" if len(gates) > 1 else ""
    text = (
        f"At delta = {options.delta:g}, epsilon is at least {_down(best.epsilon_lower)} with "
        f"{percent(options.confidence)} confidence ({best.name}{given}{chosen})"
    )
    if options.epsilon is not None:
        refuted = best.epsilon_lower > options.epsilon
        says = "which refutes" if refuted else "which does not refute"
        text = f"{text}, {says} the claimed epsilon of {options.epsilon:g}"
        if not refuted:
            text = f"{text} and does not confirm it"
            if options.epsilon >= ceiling:
                text = f"{text} (no result of so few scores could refute it)"
            else:
                seen = expected_bound(
                    options.epsilon,
                    n_in=first.n_in,
                    n_out=first.n_out,
                    delta=options.delta,
                    confidence=gates[0].confidence,
                )
                text = f"{text} (of a true {options.epsilon:g} joint would see about {_down(seen)})"
    return f"{text}; with {sizes} this test can certify at most {ceiling:.2f}."


def _down(value: float) -> str:
    """Return `value` cut, not rounded, to three decimals: a lower bound is never shown larger than it is."""
    return f"{math.floor(value * 1000.0) / 1000.0:.3f}"


def _shown(bound: EmpiricalBound, verdict: str | None) -> str:
    """Return a bound's verdict in words: that of one on a trade-off curve takes Gaussian noise as given."""
    from dpzv_audit.evidence.verdict import GIVEN_GAUSSIAN

    return verdict_words(verdict or "", GIVEN_GAUSSIAN if bound.claim_kind == "trade-off" else "")


def _vouched(bound: EmpiricalBound) -> str:
    """Return what the user vouched for with `--exactly-gaussian`; "" for a bound that rests on nothing."""
    return "what --exactly-gaussian vouches for; a test of it does not object" if bound.mu_lower is not None else ""


def _print_table(bounds: tuple[EmpiricalBound, ...], verdicts: list[str | None], output: Output) -> None:
    """Print a table with a row an estimator, and below it how each threshold came about."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Lower bounds on epsilon", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("estimator", no_wrap=True)
    for number in ("epsilon >=", "mu >=", "can see", "at"):
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column("assumes")
    with_claim = any(verdicts)
    if with_claim:
        table.add_column("claim")
    for bound, verdict in zip(bounds, verdicts, strict=True):
        table.add_row(
            bound.name,
            _down(bound.epsilon_lower),
            "" if bound.mu_lower is None else _down(bound.mu_lower),
            f"{bound.ceiling:.2f}",
            percent(bound.confidence),
            Text(bound.assumes or _vouched(bound) or "nothing"),
            *([_shown(bound, verdict)] if with_claim else []),
        )
    print_table(output.console, table)
    for bound in bounds:
        output.console.print(Text(f"{bound.name}: {bound.threshold_rule}."))
