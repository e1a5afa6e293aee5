"""The subject of a claim on the success of an attack: blocks of trainings, each attacked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from attacks.core.spec import DoesNotApply

from ..base.findings import STRONGEST, Control, Interval, value_of
from ..evidence.choosing import applicable, named, strongest, target_in, worst_client
from ..evidence.gathering import Pool, Stage, Subject, Success
from .data import facts_of
from .file import AttackClaim

if TYPE_CHECKING:
    from attacks import AttackSetting, AttackSpec


ATTACKED = "trainings"
MOST_BLOCKS = 10**6


def attacked(claim: AttackClaim, setting: "AttackSetting", *, positives: int) -> Subject:
    """Return what a claim about an attack is about: blocks of `setting.trials` trainings.

    An e-process bets on the success of each training. The positive control, which is the same whatever is attacked, is
    in the first `positives` blocks. A pilot, on trainings of its own, says which client looks, and where the claim is
    about the strongest attack which that is. The claim is about each of them: where it may be held, every other attack
    and client is mounted too, from pools of their own.
    """

    mounted = [(spec, replace(setting, adversary=by)) for spec, by in named(claim.attack, claim.adversary)]
    every = claim.attack == STRONGEST
    candidates = {words_of(*pair): pair for pair in applicable(mounted, every=every)}

    @cache
    def chosen() -> "tuple[AttackSpec, AttackSetting]":
        if every:
            return strongest(mounted, claimed=claim.success_at_most)[:2]
        spec, setting = mounted[0]
        return spec, worst_client(spec, setting)[0]

    def draw(number: int) -> Success:
        return success_of(*chosen(), number, with_positive=number < positives)

    def draw_other(words: str, number: int) -> Success:
        try:
            return success_of(
                *candidates[words],
                number,
                with_positive=number == 0,
                most_chance=claim.success_at_most if every else 1.0,
            )
        except DoesNotApply as error:
            return Success(rates=(), baselines={}, controls={}, mounted=words, excluded=error.words)

    draws = {ATTACKED: draw}
    if len(candidates) > 1:
        draws |= {words: partial(draw_other, words) for words in candidates}
    return Subject(
        stages=tuple(
            Stage(name=name, pool=name, blocks=MOST_BLOCKS, sequential=float(name == ATTACKED), stops=True)
            for name in draws
        ),
        pools={name: Pool(draw=draw, trials=setting.trials, stored=True) for name, draw in draws.items()},
        facts={
            "config": setting.config.model_dump(mode="json"),
            "data": facts_of(setting.dataset),
            "set_up": "" if every else mounted[0][0].needs.requires_because,
        },
    )


def words_of(spec: "AttackSpec", setting: "AttackSetting") -> str:
    """Return an attack and by whom it is mounted, in words that no other attack or client has."""
    target = target_in(setting)
    if target is not None:
        return f"{spec.name} by the {setting.adversary} on client {target}"
    if not setting.looks.clients:
        return spec.name
    return f"{spec.name} by {setting.adversary.replace('-', ' ')} {', '.join(map(str, setting.parties))}"


def success_of(
    spec: "AttackSpec", setting: "AttackSetting", number: int, *, with_positive: bool, most_chance: float = 1.0
) -> Success:
    """Return the success of an attack on block `number` of trainings.

    Where knowing nothing finds more than `most_chance`, the block says that it is excluded.
    """
    from ..evidence.sections import not_learnt, utility_section

    blocks = [replace(setting, seed=setting.seed + number, with_positive=with_positive)]
    if spec.goal.reveals == "membership":
        # Targets of one mount share its shadow models: only one of them is independent of the others.
        first = setting.seed + number * setting.trials
        blocks = [
            replace(setting, trials=1, seed=first + i, with_positive=with_positive and i == 0)
            for i in range(setting.trials)
        ]
    outcomes = [spec.mount(block) for block in blocks]
    rates: list[float] = []
    controls: dict[str, tuple[Control, ...]] = {}
    for outcome in outcomes:
        rates += outcome.by_trial.get("success", (outcome.success.value,))
        for name, control in outcome.controls.items():
            controls[name] = (*controls.get(name, ()), control)
    chance = outcomes[0].chance
    return Success(
        rates=tuple(rates),
        baselines=_means_of([outcome.baselines for outcome in outcomes]),
        controls=controls,
        mounted=words_of(spec, setting),
        excluded=f"knowing nothing finds {chance:.3f} already" if chance > most_chance else "",
        warnings=tuple(not_learnt(utility_section(outcomes[0].trained, setting.dataset, {}, setting.confidence))),
    )


def _means_of(rows: "Sequence[Mapping[str, float | Interval]]") -> dict[str, float]:
    """Return the mean over rows of each value of the first row."""
    values = {name: [row[name] for row in rows if name in row] for name in rows[0]}
    return {name: float(np.mean(list(map(value_of, column)))) for name, column in values.items()}
