"""Mounts an attack and says what it found without its trainings: what a result needs, and what an interrupt leaves.

Each step that is done is kept: the trainings with the attack and its negative control, the positive control, the
training with frozen clients. A step that was interrupted is done again, since what an adversary sees while it trains is
far larger than all that comes of it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np

from attacks import AttackSpec
from attacks.core.setting import AttackSetting
from attacks.core.spec import AttackOutcome, CoinGame
from mechanisms.controls import frozen_clients
from mechanisms.core.context import Plan, RunContext

from ..base.findings import Control
from ..base.store import Store
from ..results import (
    Bytes,
    CertifiedBound,
    ControlAccuracy,
    Measurement,
    Number,
    PictureRow,
    Plain,
    Read,
    Reconstructions,
    Utility,
)
from ..statistics.estimators import audit_scores
from .choosing import once
from .sections import bytes_of, control_section, utility_section

NO_GAME = "its scores are about no coin: it does not ask which of two neighbouring inputs was trained on"


@dataclass(frozen=True, kw_only=True)
class Mounted:
    """The success of an attack on trainings, and facts of these: `AttackOutcome` as a result has it.

    `reconstructions` is None where it made out no pictures, `certified` where its scores are about no coin, as
    `not_certified` says; `at_once` is how many trainings memory sufficed for at a time, None where for all.
    """

    metric: str
    success: Measurement
    chance: Number
    baselines: dict[str, Measurement | Number]
    controls: dict[str, Annotated[Control, Read]]
    measures: dict[str, Measurement]
    curves: dict[str, list[dict[str, Plain]]]
    reconstructions: Reconstructions | None
    certified: Annotated[CertifiedBound, Read] | None
    not_certified: str | None
    plan: Plan | None
    utility: Utility
    bytes: Bytes
    rounds: int
    at_once: int | None


def mounted(spec: AttackSpec, setting: AttackSetting, store: Store | None = None) -> Mounted:
    """Mount an attack on trainings of the setting, with its controls and frozen clients.

    The `store` keeps each step as it is done, and gives those that were done before.

    Raises:
        InputError: The attack does not apply, or the configuration does not fit the data.
    """
    again = "it is done again"
    measured = once(
        store, "attack.json", Mounted, lambda: _measured(spec, setting, spec.mount_alone(setting)), again=again
    )
    controls = dict(measured.controls)
    if spec.misses_positive(setting, controls):
        positive = partial(spec.positive_control, setting)
        controls["positive"] = once(store, "positive.json", Control, positive, again=again)
    accuracies = dict(measured.utility.controls)
    if setting.method.capabilities.simulated and setting.config.clients_learn:
        # The same training with frozen clients: what the clients' own learning adds nothing to.
        frozen = partial(_frozen, spec, setting, measured.at_once)
        accuracies["frozen-clients"] = once(store, "frozen-clients.json", ControlAccuracy, frozen, again=again)
    utility = measured.utility.model_copy(update={"controls": accuracies})
    return replace(measured, controls=controls, utility=utility)


def _measured(spec: AttackSpec, setting: AttackSetting, outcome: AttackOutcome) -> Mounted:
    game, pictures, trained = outcome.game, outcome.pictures, outcome.trained
    reconstructions = None
    if pictures is not None:
        # Greys to three digits.
        shown = pictures.rows.items()
        rows = [PictureRow(what=kind, records=np.round(greys, 3).tolist()) for kind, greys in shown]
        reconstructions = Reconstructions(shape=list(pictures.shape), rows=rows)
    return Mounted(
        metric=outcome.metric,
        success=outcome.success,
        chance=outcome.chance,
        baselines=dict(outcome.baselines),
        controls=dict(outcome.controls),
        measures=dict(outcome.measures),
        curves=dict(outcome.curves),
        reconstructions=reconstructions,
        certified=None if game is None else _certified(game, setting),
        not_certified=None if game is not None else outcome.no_game or NO_GAME,
        plan=outcome.plan,
        utility=utility_section(trained, setting.dataset, {}, setting.confidence),
        bytes=bytes_of(trained),
        rounds=trained.rounds,
        at_once=outcome.at_once,
    )


def _frozen(spec: AttackSpec, setting: AttackSetting, at_once: int | None) -> ControlAccuracy:
    context = RunContext(seed=setting.seed, replicas=range(setting.trials), device=setting.device)
    data = replace(setting, dataset=spec.setup.trains_on(spec, setting)).data()
    control = frozen_clients(data, setting.config, context, rate=setting.config.server_rate, at_once=at_once)
    return control_section(control.server_rate, control.correct, setting.confidence)


def _certified(game: CoinGame, setting: AttackSetting) -> CertifiedBound:
    """Return the epsilon that the attack's own scores certify, which are about fair coins."""
    (bound,) = audit_scores(
        game.on_one,
        game.on_zero,
        delta=setting.method.protection(setting.config).delta,
        confidence=setting.confidence,
        estimators=("one-run",),
        coin_flips=True,
        seed=setting.seed,
    )
    return CertifiedBound(**vars(bound), neighbours=game.neighbours, game=game.what)
