"""Claims on a training of the user's own: attacked, or accounted for by what it states and put to a game."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from attacks.core import needs
from attacks.core.setting import BY_CLIENTS, AttackSetting
from mechanisms import Training

from ..base.errors import InputError
from ..base.findings import SERVERS, STRONGEST, Void
from ..base.limits import MOST_RECORDS
from ..base.loading import importable
from ..data import load
from ..data.vertical import VerticalDataset
from ..evidence.choosing import applicable, lacking, named, possible, target_in
from ..evidence.games import FEATURES, LENGTHS, PLAYED_BY, features_unread, theory_of, voids_of, voids_of_release
from ..evidence.gathering import Block, Pool, Stage, Subject
from ..games.lengths import COINS as NUMBERS
from ..games.messages import READ
from ..games.scores import GameScores
from ..games.system import (
    ADVERSARIES,
    FIT_TRAININGS,
    NEIGHBOURS,
    MessageScore,
    SystemGame,
    fitted_score,
    play,
    play_numbers,
)
from ..systems.rehearsal import SystemCapabilities, rehearse
from ..systems.run import method_of, setting_of
from ..systems.stated import data_of, release_of
from ..systems.system import System
from ..systems.trials import LatestTrials, TrialStore
from .access import Access
from .attack import attacked
from .data import facts_of, loaded, sizes_of
from .file import CoinClaim, OwnClaim, SystemAttackClaim, SystemClaim

COINS = "coin-flip trainings"
COIN_TRAININGS = 16
"""Trainings whose coins are guessed; the score is fitted on others."""
_REHEARSED: dict[tuple[object, ...], SystemCapabilities] = {}
"""What systems offer, by function, data and time: the claims of a file on one system rehearse it once."""
_LATEST = LatestTrials()
"""The latest trainings of systems: claims of one run share those that are on the same data, labels and seed."""


def check_system(claim: OwnClaim, access: Access) -> None:
    """Raise `InputError` naming the key at fault where a claim on a system cannot be run; imports no code of it."""
    access.depends(claim)
    records = MOST_RECORDS
    if _names_data(claim):
        records, _ = sizes_of(claim, access)
    if claim.kind == "attack":
        mounted = named(claim.attack, claim.adversary)
        if claim.attack != STRONGEST:
            mounted[0][0].check(claim.adversary, {})
    elif claim.kind == "epsilon" and claim.release:
        _check_release(claim, records)


def _check_release(claim: SystemClaim, records: int) -> None:
    try:
        release_of(claim.release, records)
    except InputError as error:
        raise InputError(error.words, "release") from error


def _names_data(claim: OwnClaim) -> bool:
    return any(value is not None for value in (claim.csv, claim.dataset, claim.data_dir, claim.clients))


def system_subject(
    claim: OwnClaim, system: System, access: Access, seed: int, own: VerticalDataset | None = None
) -> Subject:
    """Return a system, which is rehearsed first, as the subject of a claim.

    It trains on the data that the claim names, else on its `own`, else on those beside its code, else on digits in two
    blocks.

    Raises:
        InputError: The system cannot be audited, data or the release are wrong, or the attack does not apply.
        SystemFailed: As `rehearse`.
    """
    if _names_data(claim):
        data = loaded(claim, access)
    else:
        with importable(access.folder):
            beside = data_of(system) if own is None else own
        data = load("digits", clients=2) if beside is None else beside
    if claim.kind == "epsilon" and claim.release:
        _check_release(claim, len(data.train))
        system = replace(system, stated=lambda task: claim.release)
    system = replace(system, trials=TrialStore(latest=_LATEST, mark=f"{access.run} {claim.system}"))
    config, task = setting_of(system, data)
    key = (system.train, system.seconds, data.name, data.partition, len(data.train), *sorted(data.digests.items()))
    with importable(access.folder):
        if key not in _REHEARSED:
            _REHEARSED[key] = rehearse(system, task, 0)
        method = method_of(system, _REHEARSED[key], task)
    training = Training(method=method, config=config, dataset=data, seed=seed, device=access.device)
    if claim.kind == "attack":
        return _attack_on(claim, training, access)
    if claim.kind == "coins":
        games = _games_on(claim, training, access)
        return replace(games, facts={"system": claim.system, "data": facts_of(data), **games.facts})
    return _release_of(claim, training, access)


def _attack_on(claim: SystemAttackClaim, training: Training, access: Access) -> Subject:
    """Return the attack on a system; its code may import more of itself in every training."""
    method = training.method
    setting = AttackSetting.of(training, adversary=claim.adversary, trials=1)
    mounted = [(spec, replace(setting, adversary=by)) for spec, by in named(claim.attack, claim.adversary)]
    if claim.attack != STRONGEST:
        mounted[0][0].check(claim.adversary, {})
    reasons = [lacking(spec, possible(spec, mounting)[0]) for spec, mounting in mounted]
    applies = [spec for (spec, _), why in zip(mounted, reasons, strict=True) if why is None]
    unread = voids_of(method, training.dataset.clients, needs.read_by(applies))
    if None not in reasons:
        why = unread[0].words if unread else _none_applies(claim, setting, reasons[0] or "")
        raise InputError(f"but it does not apply to {method.name}: {why}", "attack", claim.attack)
    # Each training is a block of its own: no two of them are cheaper side by side.
    subject = attacked(claim, setting, positives=1)

    def within(pool: Pool, number: int) -> Block:
        with importable(access.folder):
            return pool.draw(number)

    pools = {name: replace(pool, draw=partial(within, pool)) for name, pool in subject.pools.items()}
    voids = (*subject.voids, *unread)
    # Attacks that read the most need two classes: what they would find of more is not known.
    classes = needs.binary_labels(setting)
    binary = dict.fromkeys(spec.name for (spec, _), why in zip(mounted, reasons, strict=True) if why == classes)
    if claim.attack == STRONGEST and classes is not None and binary:
        voids += (Void(reason="unread-messages", words=f"no attack stands in for {', '.join(binary)}: {classes}"),)
    left_out = dict.fromkeys(spec.name for (spec, _), why in zip(mounted, reasons, strict=True) if why is not None)
    missing = (*subject.not_tested, *method.capabilities.not_made)
    missing += (LENGTHS,) if method.capabilities.lengths_tell else ()
    if claim.adversary in SERVERS:
        candidates = applicable(mounted, every=True)
        missing += features_unread(setting, {target_in(alone) for _, alone in candidates})
    else:
        missing += (FEATURES,)
    if left_out:
        missing += (f"attacks that do not apply: {', '.join(left_out)}",)
    facts = {"system": claim.system, **subject.facts}
    return replace(subject, pools=pools, voids=voids, not_tested=missing, facts=facts)


def _none_applies(claim: SystemAttackClaim, setting: AttackSetting, why: str) -> str:
    """Return why no attack of a claim applies; `why` is the reason of the one that it names, or of the first."""
    sent_nothing = needs.mail(setting) if claim.attack == STRONGEST and claim.adversary in BY_CLIENTS else None
    if sent_nothing is None:
        return why
    by_server = [(spec, replace(setting, adversary=by)) for spec, by in named(STRONGEST, "server")]
    if all(lacking(spec, possible(spec, mounting)[0]) is not None for spec, mounting in by_server):
        return sent_nothing
    return f'{sent_nothing}. A claim about the features that its server learns has adversary = "server"'


def _release_of(claim: SystemClaim, training: Training, access: Access) -> Subject:
    """Return what theory says of the stated release; beside it the game on the system, where there is one."""
    method = training.method
    against: dict[str, Any] = {"adversary": claim.adversary, "neighbours": claim.neighbours}
    about = (method, training.config, training.deployment())
    theory = partial(theory_of, *about, delta=claim.delta, enough=claim.epsilon, **against)
    facts = {"system": claim.system, "data": facts_of(training.dataset)}
    games = _games_on(claim, training, access)
    voids = (*voids_of_release(method), *games.voids)
    missing = (*games.not_tested, *method.capabilities.not_made)
    return replace(games, theory=theory, voids=voids, not_tested=missing, facts={**facts, **games.facts})


def _games_on(claim: SystemClaim | CoinClaim, training: Training, access: Access) -> Subject:
    """Return the game that tests a claimed epsilon of a system: coins decide labels, and a fitted score guesses them.

    A label is part of a record, and whoever has more than colluding clients, or may deviate, can do what they do: see
    `evidence.games.games_of`.
    """
    adversary = PLAYED_BY.get(claim.adversary, claim.adversary)
    if adversary not in ADVERSARIES:
        return Subject(unaudited=f"the game of labels is played by clients, not by the {claim.adversary}")
    if claim.neighbours not in (NEIGHBOURS, "replace-record"):
        return Subject(unaudited=f"the game of labels replaces labels, which says nothing of {claim.neighbours}")
    game = SystemGame(training, adversary)
    if (why := game.unplayable) is not None:
        return Subject(unaudited=why)
    tell = training.method.capabilities.lengths_tell

    @cache
    def fitted() -> MessageScore:
        return fitted_score(game)

    def draw(number: int) -> GameScores:
        with importable(access.folder):
            score = fitted()
            told = play(game, score, 1, first=number)
            if score.numbers is None:
                return told
            # Scores of the rule, 1 or -1, are further out than all others: its guesses are taken for themselves.
            beside = play_numbers(game, score.numbers, 1, first=number)
            surest = 2.0 * float(np.abs(np.concatenate(told.sides)).max(initial=1.0))
            inside, outside = (
                np.concatenate((own, surest * extra)) for own, extra in zip(told.sides, beside.sides, strict=True)
            )
            return replace(told, in_scores=inside, out_scores=outside)

    return Subject(
        stages=(Stage(name=COINS, pool=COINS, blocks=COIN_TRAININGS, sequential=1.0, stops=True),),
        pools={COINS: Pool(draw=draw, trials=1, coins=game.coins + (NUMBERS if tell else 0), stored=True)},
        voids=voids_of(training.method, training.dataset.clients, READ),
        facts={"game": {"adversary": adversary, "neighbours": NEIGHBOURS, "fit_trainings": FIT_TRAININGS}},
    )
