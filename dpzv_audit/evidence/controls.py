"""Controls of the attacks that claims are about: pooled over all trainings, then judged at one false-alarm rate.

The negative control of an attack is one test, in however many blocks of trainings it ran. Where each block has a
p-value, Fisher's method combines them. Controls of different blocks are independent. They are tested by labels, coins
or orders that the tool dealt. These are independent of the attacked training beside them, whose success decides how
many blocks there are. Otherwise blocks are the units of bets. A claims file shares `FALSE_ALARM` over the negative
controls of all its claims.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..base.findings import FALSE_ALARM, Control, PooledControl, Void
from ..base.rounding import exact_p_value
from ..statistics.panel import Panel
from .verdict import Evidence


def pooled(attack: str, blocks: Iterable[Mapping[str, Sequence[Control]]], *, least: float) -> list[PooledControl]:
    """Return the controls of `attack` over `blocks`, which hold runs by name; no success lies below `least`."""
    runs: dict[str, list[Control]] = {}
    for block in blocks:
        for name, controls in block.items():
            runs.setdefault(name, []).extend(controls)
    return [_pooled(attack, name, controls, least) for name, controls in runs.items()]


def _pooled(attack: str, name: str, runs: Sequence[Control], least: float) -> PooledControl:
    first = runs[0]
    control = PooledControl(
        attack=attack,
        name=name,
        kind=first.kind,
        what=first.what,
        value=float(np.mean([run.value for run in runs])),
        expected=float(np.mean([run.expected for run in runs])),
        runs=len(runs),
    )
    if first.kind == "positive":
        return replace(control, missed=sum(not run.holds for run in runs), value=min(run.value for run in runs))
    if first.kind != "negative":
        return control
    p_values = [run.p_value for run in runs if run.p_value is not None]
    if len(p_values) == len(runs):
        from scipy.stats import chi2

        statistic = -2.0 * float(np.log(np.maximum(p_values, 1e-300)).sum())
        return replace(control, p_value=float(chi2.sf(statistic, 2 * len(runs))), tested_by=first.tested_by or "")
    from attacks.core.controls import by_bets

    # Chance differs from block to block with what the attack guesses: bets are on the distance from it.
    apart = np.array([run.value - run.expected for run in runs])
    test = by_bets(0.5 + 0.5 * apart / (1.0 - least), 0.5, unit="blocks of trainings")
    return control if test is None else replace(control, p_value=test.p, tested_by=test.by)


@dataclass(frozen=True)
class Judge:
    """Judges the controls of one claim, whose negative ones share the false-alarm rate `error`."""

    error: float = FALSE_ALARM

    @classmethod
    def of_file(cls, attack_claims: Collection[object]) -> "Judge":
        """Return the judge of each claim where these of a file are about attacks."""
        return cls(Panel(attack_claims).level(FALSE_ALARM))

    def level(self, controls: Sequence[PooledControl]) -> float:
        """Return the p-value below which one of a claim's negative controls fails."""
        return Panel([control for control in controls if control.p_value is not None]).level(self.error)

    def __call__(self, evidence: Evidence) -> Evidence:
        """Return the evidence with what failed controls void, and with controls that could not be tested.

        Where the negative control of an attack fails, its success is no evidence: the p-value is 1.
        """
        controls = evidence.attack.controls
        level = self.level(controls)
        failed = [control for control in controls if not control.holds(level)]
        untested = [control for control in controls if control.kind == "negative" and control.p_value is None]
        attacked = evidence.attack.means.get("mounted")
        void = any(control.kind == "negative" and control.attack == attacked for control in failed)
        return replace(
            evidence,
            p_value=1.0 if void else evidence.p_value,
            voids=(*evidence.voids, *(_void(control, level, attacked) for control in failed)),
            not_tested=(*evidence.not_tested, *map(_untested, untested)),
        )


def _void(control: PooledControl, level: float, attacked: str | None) -> Void:
    called = f"the {control.kind} control {control.name.replace('_', ' ')} of {control.attack} failed"
    if control.kind == "positive":
        times = f" in {control.missed} of {control.runs} runs" if control.runs > 1 else ""
        words = f"{called}{times}: it reached {_below(control.value, control.expected)} ({control.what})"
        return Void(reason="failed-control", words=words)
    p = "none" if control.p_value is None else exact_p_value(control.p_value)
    test = f"p = {p} by {control.tested_by}, judged at {exact_p_value(level)}"
    words = f"{called}: it found {control.value:.3f} where chance is {control.expected:.3f} ({test})"
    return Void(reason="failed-control", words=words, refutations=control.attack == attacked)


def _below(value: float, expected: float) -> str:
    """Return a value with as many digits as show that it lies below what was expected."""
    digits = next((n for n in range(3, 9) if float(f"{value:.{n}f}") < float(f"{expected:.{n}f}")), 9)
    return f"{value:.{digits}f}"


def _untested(control: PooledControl) -> str:
    called = f"the negative control {control.name.replace('_', ' ')} of {control.attack}"
    return f"{called} ran in {control.runs} {'block' if control.runs == 1 else 'blocks'}, too few to test it"
