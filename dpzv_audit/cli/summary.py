"""The tables on the terminal that sum up a result, as its report does at length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from dpzv_audit.cli.output import print_table, table_of
from dpzv_audit.findings import LEAST_TRAININGS, Control, EmpiricalBound, Interval
from dpzv_audit.results import (
    AttackResult,
    AuditResult,
    ControlAccuracy,
    PlantedResult,
    PlantedRow,
    Privacy,
    TrainResult,
    Utility,
)
from reports.text import percent, verdict_words


def attack_table(console: Console, result: AttackResult) -> None:
    """Print success beside baselines and controls, and the three epsilons."""
    table = _table(f"{result.attack} on {result.method}, {result.dataset}, by the {result.adversary}")
    if result.success is not None:
        table.add_row(f"success: {result.metric}", *_measured(result.success))
    for name, value in result.baselines.items():
        table.add_row(f"baseline: {name}", *_measured(value))
    for name, control in result.controls.items():
        table.add_row(f"control: {name.replace('_', ' ')}", *_control(control))
    for name, value in result.measures.items():
        if not name.startswith("recall of class"):  # the report has them
            table.add_row(name, *_measured(value))
    _certified_row(table, result)
    _accuracy_rows(table, result.utility)
    _privacy_rows(table, result.privacy)
    print_table(console, table)


def _certified_row(table: Table, result: AttackResult) -> None:
    bound = result.certified
    if bound is None:
        table.add_row("epsilon that the attack certifies", "none", result.not_certified)
        return
    words = f"{percent(bound.confidence)}, {bound.neighbours}, from {bound.n_in + bound.n_out:,} coins"
    table.add_row("epsilon that the attack certifies", _number(bound.epsilon_lower, np.floor), words)


def self_check_table(console: Console, attack: str, controls: Mapping[str, Control]) -> None:
    """Print each control of an attack, what it must give, and whether it does."""
    table = _table(f"self-check of {attack}")
    for name, control in controls.items():
        verdict = "holds" if control.holds else "FAILS"
        words = f"{verdict}: {control.what}"
        if control.kind == "negative":
            words += f" ({control.expected:.3f}); {_tested(control)}"
        table.add_row(f"{name.replace('_', ' ')} ({control.kind})", f"{control.value:.3f}", words)
    print_table(console, table)


def train_table(console: Console, result: TrainResult, measured: Mapping[str, float]) -> None:
    """Print accuracy beside its controls, costs, and the claimed and recomputed epsilon."""
    table = _table(f"{result.method} on {result.dataset}")
    _accuracy_rows(table, result.utility)
    table.add_row("rounds", f"{result.rounds:,}", "")
    table.add_row("bytes up", f"{result.bytes.up:,}", "")
    table.add_row("bytes down", f"{result.bytes.down:,}", "")
    resumed = measured["resumed_at_epoch"]
    since = f", since it was taken up after epoch {resumed}" if resumed else ""
    table.add_row("wall time", f"{measured['wall_seconds']:,.1f} s", f"training and controls{since}")
    table.add_row("peak memory", f"{measured['peak_memory_mb']:,.0f} MB", "of the process")
    ages = result.staleness
    if ages is not None:
        table.add_row("staleness", f"{ages.mean:,.1f} rounds", f"mean; 99%: {ages.q99:,}, at most {ages.largest:,}")
    _privacy_rows(table, result.privacy)
    print_table(console, table)


def audit_table(console: Console, result: AuditResult) -> None:
    """Print every lower bound beside every upper bound."""
    table = _table(f"audit of {result.method} on {result.dataset} against the {result.adversary}")
    _lower_rows(table, result.privacy.estimators)
    for bound in result.privacy.bounds:
        words = "sound" if bound.sound else f"not sound: {bound.gap}"
        upper = None if bound.epsilon is None else bound.epsilon.upper
        table.add_row(f"upper: {bound.accountant}", _number(upper, np.ceil), words)
    _privacy_rows(table, result.privacy)
    print_table(console, table)


def mechanism_table(console: Console, result: AuditResult) -> None:
    """Print every lower bound on a mechanism of the user's own."""
    table = _table(f"audit of {result.method}")
    privacy, game = result.privacy, result.game
    if "fitted_score" in game:
        table.add_row("score", "fitted", f"{game['fitted_score']}; on {game['fitted_on']}")
    _lower_rows(table, privacy.estimators)
    table.add_row("epsilon claimed", _number(privacy.claimed), f"delta {privacy.delta:g}")
    verdict = verdict_words(privacy.conclusion, privacy.verdict_given) if privacy.conclusion else "no claim"
    table.add_row("verdict", "", verdict)
    print_table(console, table)


def _lower_rows(table: Table, estimators: Sequence[EmpiricalBound]) -> None:
    for bound in estimators:
        words = f"at {percent(bound.confidence)}, could certify at most {bound.ceiling:.2f}"
        words += f"; assumes {bound.assumes}" if bound.assumes else ""
        table.add_row(f"lower: {bound.name}", _number(bound.epsilon_lower, np.floor), words)


_PLANTED_COLUMNS = ("mechanism", "what is wrong", "claim", "at least", "at most", "verdict", "must be")


def planted_table(console: Console, result: PlantedResult) -> None:
    """Print what each planted mechanism got beside what it must get."""
    kinds = dict.fromkeys(_PLANTED_COLUMNS, "name") | {"claim": "number", "at least": "number"}
    # The names of gaps, and of more than one verdict, fold.
    kinds |= {"at most": "text", "must be": "text"}
    del kinds["what is wrong"]
    table = table_of(kinds, "Planted mechanisms", rule=True)
    table.columns[list(kinds).index("at most")].justify = "right"
    for row in result.rows:
        cells = _planted_cells(row)
        table.add_row(cells[0], *(cell.removeprefix("none: ") for cell in cells[2:]))
    print_table(console, table)


def planted_markdown(result: PlantedResult) -> str:
    """The same as a Markdown table, with the sentence below it."""
    lines = [_PLANTED_COLUMNS, ("---",) * len(_PLANTED_COLUMNS), *map(_planted_cells, result.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\n{result.sentence}\n"


def _planted_cells(row: PlantedRow) -> tuple[str, ...]:
    return (
        row.name,
        row.bug,
        f"{row.claimed:g}",
        _number(row.empirical_lower, np.floor),
        f"none: {row.gap}" if row.upper is None else _number(row.upper, np.ceil),
        row.verdict if row.as_expected else f"{row.verdict} (!)",
        " or ".join(row.expected),
    )


def _table(title: str) -> Table:
    columns = {"what": "text", "value": "number", "interval or reason": "text"}
    return table_of(columns, title, show_header=False)


def _measured(rate: Interval | float) -> tuple[str, str]:
    if not isinstance(rate, Interval):
        return f"{rate:.3f}", ""
    value, level, over = f"{rate.value:.3f}", percent(rate.confidence), rate.over_trainings
    records = f"{rate.low:.3f} to {rate.high:.3f}"
    if over is None:
        return value, f"{level}: {records}, n = {rate.n:,}"
    words = f"{level} by records {records}, n = {rate.n:,}; "
    if over.low is not None:
        words += f"over {over.count} trainings {over.low:.3f} to {over.high:.3f}"
    elif over.count == 1:
        words += "one training"
    else:
        words += f"{over.count} trainings: {over.least:.3f} to {over.most:.3f}"
    return value, words


def _control(control: Interval | float) -> tuple[str, str]:
    """A negative control is tested for chance; a positive one is judged by its value alone."""
    if not isinstance(control, Control):
        return _measured(control)
    expected = f"must be {control.expected:.3f} at least"
    if control.kind == "negative":
        expected = f"chance is {control.expected:.3f}; {_tested(control)}"
    return f"{control.value:.3f}", f"{expected}, n = {control.n:,}"


def _tested(control: Control) -> str:
    """The p-value of a negative control and how it was found, or why there is none."""
    if control.p_value is None:
        return f"too few trainings to test it: give --trials {LEAST_TRAININGS}"
    return f"p = {control.p_value:.2g} by {control.tested_by}"


def _accuracy_rows(table: Table, utility: Utility) -> None:
    table.add_section()
    if utility.test_accuracy is not None:
        table.add_row("test accuracy", *_measured(utility.test_accuracy))
    for name, control in utility.controls.items():
        value, words = _measured(control)
        what = f", {control.what}" if isinstance(control, ControlAccuracy) else ""
        table.add_row(f"control: {name}", value, words + what)
    table.add_section()


def _privacy_rows(table: Table, privacy: Privacy) -> None:
    table.add_section()
    delta = "" if privacy.delta is None else f"delta {privacy.delta:g}, {privacy.neighbours}"
    table.add_row("epsilon claimed", _number(privacy.claimed), delta)
    sound = f"gap: {privacy.gap}" if privacy.upper is None else f"sound, against the {privacy.adversary}"
    table.add_row("epsilon at most", _number(privacy.upper, np.ceil), sound)
    lower = privacy.not_audited or privacy.verdict or ""
    if privacy.empirical_lower is not None:
        words = verdict_words(privacy.verdict, privacy.verdict_given)
        verdict = f"; claim {words}" if privacy.verdict else ""
        # "refuted given Gaussian noise" says already what the bound beside it takes as given.
        given = f", {privacy.given}" if privacy.given and not verdict.endswith(privacy.given) else ""
        lower = f"{percent(privacy.confidence)} confidence{given}{verdict}"
    table.add_row("epsilon at least", _number(privacy.empirical_lower, np.floor), lower)


def _number(value: float | None, rounding: Callable[[float], float] = np.rint) -> str:
    """Three decimals: upper bounds are rounded up, lower bounds down, and what is missing is `none`."""
    return "none" if value is None else f"{rounding(value * 1000.0) / 1000.0:.3f}"
