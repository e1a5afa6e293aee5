"""`dpzv-audit audit coverage`: how often each estimator's bound exceeds a known truth, and how far it sees."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv_audit.cli.common import Output
from dpzv_audit.cli.flags import Probability, Whole, in_registry, takes
from dpzv_audit.errors import AuditError, InputError, check_count

if TYPE_CHECKING:
    from dpzv_audit.statistics.families import CurveFamily

FAMILY_HELP = "gaussian, laplace, pure or sampled:rate=R,rounds=T[,pair=remove|replace]"
CHECKED_SCORES = 1000
DEFAULT_AUDITS = 200
DEFAULT_FAMILY = "gaussian"

DEFAULT_DELTA = 1e-5


@takes(output=Output)
def audit_coverage(
    *,
    audits: Annotated[int, partial(check_count, least=2)] = DEFAULT_AUDITS,
    estimator: Annotated[list[str] | None, in_registry("dpzv_audit.statistics", "ESTIMATORS")] = None,
    delta: Probability = DEFAULT_DELTA,
    confidence: Probability = 0.95,
    seed: Whole = 0,
    output: Output,
) -> None:
    """Print coverage and power of the estimators where epsilon is known.

    Each estimator audits mechanisms of known epsilon many times. Fails where a count of bounds above the truth is one
    that valid bounds would not have.

    Example: dpzv-audit audit coverage --estimator joint --audits 100

    Options:
        audits N: Audits of each mechanism.
        estimator NAME: Estimator to check; may be given several times; by default all.
        delta X: Delta of every bound, strictly between 0 and 1.
        confidence X: Confidence of every bound, between 0 and 1.
        seed N: Every random stream follows from this number.
    """
    from dpzv_audit.findings import to_jsonable
    from dpzv_audit.statistics.coverage import FALSE_ALARM, CheckRow, as_text, coverage_check

    def show(row: CheckRow) -> None:
        if not output.as_json:
            typer.echo(as_text([row]).splitlines()[-1])

    if not output.as_json:
        typer.echo(
            f"{audits} audits of each mechanism, {CHECKED_SCORES} scores a side, {100 * confidence:g}%, delta {delta:g}"
        )
        typer.echo(as_text([]).splitlines()[-1])
    rows = coverage_check(
        audits=audits,
        n=CHECKED_SCORES,
        delta=delta,
        confidence=confidence,
        estimators=tuple(estimator) if estimator else None,
        seed=seed,
        progress=show,
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
    if not output.as_json:
        typer.echo(f"no row exceeds what valid bounds pass in any row with probability {FALSE_ALARM:g}")


def family_of(text: str) -> CurveFamily:
    """Return the family of trade-off curves that `--family` names; `InputError` for anything else."""
    from dpzv_audit.statistics.families import FAMILIES, sampled_family

    if text in FAMILIES:
        return FAMILIES[text]
    kind, _, rest = text.partition(":")
    if kind != "sampled":
        raise InputError(f"must be {FAMILY_HELP}", "family", text)
    given = dict(part.partition("=")[::2] for part in rest.split(",")) if rest else {}
    if not {"rate", "rounds"} <= set(given) <= {"rate", "rounds", "pair"}:
        raise InputError(f"must be {FAMILY_HELP}", "family", text)
    rate = _number(text, given["rate"])
    rounds = _number(text, given["rounds"])
    if rounds != int(rounds):
        raise InputError("its rounds must be a whole number", "family", text)
    try:
        return sampled_family(rate=rate, rounds=int(rounds), pair=given.get("pair", "remove"))
    except InputError as error:
        raise InputError(f": {error.words}", "family", text) from None


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f": {value!r} is no number, must be {FAMILY_HELP}", "family", text)
    return number
