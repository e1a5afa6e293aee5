"""Theory and games about a training: its releases, accounted, and games on simulated and real transcripts."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar, cast

from attacks.core import needs
from attacks.core.setting import AttackSetting
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.config import rounds_of
from mechanisms.core.context import Deployment, Plan
from mechanisms.core.scalars import ScalarConfig

from ..accounting import upper_bounds
from ..accounting.release import Release
from ..base.errors import InputError
from ..base.findings import AdversaryName, NeighbourRelation, Void
from ..data.vertical import VerticalDataset
from ..games.engine import Trials, run_chunk
from ..games.game import Canary, Game, GameAdversary, Neighbours, why_undefined
from ..games.labels import LabelTrials
from ..games.real import RealTrials
from ..games.scores import GameScores
from ..games.transcript import SimulatedTrials
from ..statistics.panel import PLANNED_SHARE, SIMULATED_SHARE, TRAINED_SHARE
from .gathering import Pool, Stage, Subject, one_stage, two_stages
from .sentences import said
from .verdict import NO_NOISE, NO_RELEASE, NOT_RELEASED, Theory

T = TypeVar("T")

SIMULATED = "simulated transcripts"
TRAINED = "trainings"
LABELS = "released labels"
TRAINED_BLOCK = 125
"""Pairs of trainings, one in each world, that are drawn, kept and lost together."""
_FIRST_TRAINED = 2
_REST_TRAINED = 8
_KNOWN_BLOCK = 1024
_SECRET_BLOCK = 128
"""Without batch ids every scalar of a transcript is drawn, so there are fewer of them."""
_SIMULATED_BLOCKS = 8
_LABEL_BLOCK = 256
_LABEL_BLOCKS = 8
_MOST_ROUNDS = 250_000
"""Rounds of a transcript that is drawn scalar by scalar: about two minutes of drawing for a claim."""
PLAYED_BY = {"malicious-client": "client", "all-but-one": "colluding-clients"}
"""Adversaries without a game of their own, and those whose game gives lower bounds for them too."""


def scored_block(trials: Trials, first: int, last: int) -> GameScores:
    """Return the scores of pairs `first` to `last` (exclusive) of `trials`."""
    return trials.scored(run_chunk(trials, first, last)[0])


def games_of(
    method: MethodSpec,
    config: ScalarConfig,
    dataset: VerticalDataset | None,
    deployment: Deployment,
    *,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    device: str = "cpu",
) -> Subject:
    """Return what the games test of a claim on DPZV's scalar channel; raises `InputError` where no plan can be made.

    A label is part of a record, and whoever may deviate from the protocol may also follow it, so the label game against
    a client gives lower bounds for `replace-record` and for `malicious-client` too; `all-but-one` has what colluding
    clients have, so that their game is its own too. Of the final model alone (`release`) the loss of a mislabelled
    record is scored, which takes trainings.
    """
    plan = method.scalar_plan(config, deployment)
    game = _game_of(method, config, adversary, neighbours)
    if isinstance(game, str):
        return Subject(unaudited=f"no game against the {adversary} under {neighbours}: {game}")
    simulated, no_simulation = _tried(lambda: _simulated(game, plan, deployment))
    trained = None
    no_training = "the final model of a simulated size does not exist: name a dataset, not records"
    if dataset is not None:
        trained, no_training = _tried(lambda: RealTrials(game, dataset, deployment.seed, device))
    pools: dict[str, Pool] = {}
    stages: tuple[Stage, ...] = ()
    both = simulated is not None and trained is not None
    if simulated is not None:
        pools[SIMULATED] = pool_of(simulated, _simulated_block(game))
        stages += one_stage(SIMULATED, blocks=_SIMULATED_BLOCKS, share=SIMULATED_SHARE if both else PLANNED_SHARE)
    if trained is not None:
        pools[TRAINED] = pool_of(trained, TRAINED_BLOCK)
        share = TRAINED_SHARE if both else PLANNED_SHARE
        stages += two_stages(TRAINED, first=_FIRST_TRAINED, rest=_REST_TRAINED, share=share)
    if not pools:
        return Subject(unaudited=no_training if game.canary == "mislabelled" else no_simulation or no_training)
    played = {"adversary": game.adversary, "neighbours": game.neighbours, "canary": game.canary}
    return Subject(pools=pools, stages=stages, facts={"game": played})


def plan_of_simulation(
    method: MethodSpec,
    config: ScalarConfig,
    records: int,
    *,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    beside_trainings: bool,
) -> Subject | None:
    """Return the plan of the simulated transcripts of `games_of`, of which nothing can be drawn; None without any.

    Takes no more time the longer a training is.
    """
    game = _game_of(method, config, adversary, neighbours)
    if isinstance(game, str) or game.canary == "mislabelled":
        return None
    if not game.knows_ids and rounds_of(config, records) > _MOST_ROUNDS:
        return None

    def draw(number: int) -> GameScores:
        raise AssertionError("a plan draws nothing")

    share = SIMULATED_SHARE if beside_trainings else PLANNED_SHARE
    pool = Pool(draw=draw, pairs=_simulated_block(game), gaussian=game.knows_ids)
    return Subject(pools={SIMULATED: pool}, stages=one_stage(SIMULATED, blocks=_SIMULATED_BLOCKS, share=share))


def _game_of(
    method: MethodSpec, config: ScalarConfig, adversary: AdversaryName, neighbours: NeighbourRelation
) -> Game | str:
    """Return the game that is played for a claim, or why there is none."""
    plays = PLAYED_BY.get(adversary, adversary)
    relation: Neighbours = "replace-label" if neighbours == "replace-record" else neighbours
    canary: Canary = "mislabelled" if plays == "release" else "worst-case"
    why_not = why_undefined(relation, canary, plays, config)
    if why_not:
        return why_not
    player = cast(GameAdversary, plays)
    return Game(method=method, config=config, adversary=player, neighbours=relation, canary=canary)


def _simulated_block(game: Game) -> int:
    return _KNOWN_BLOCK if game.knows_ids else _SECRET_BLOCK


def label_game(trials: LabelTrials) -> Subject:
    """Return what a game of labels that are privatised before training tests of a claim, against whomever."""
    return Subject(
        pools={LABELS: pool_of(trials, _LABEL_BLOCK)},
        stages=one_stage(LABELS, blocks=_LABEL_BLOCKS, share=PLANNED_SHARE),
        facts={"game": {"neighbours": "replace-label", "canary": "a record whose released label is in doubt"}},
    )


def _simulated(game: Game, plan: Plan, deployment: Deployment) -> SimulatedTrials:
    """Return trials on simulated transcripts; `InputError` where they would tell nothing, or take too long."""
    trials = SimulatedTrials.of(game, plan, deployment.records, deployment.seed)
    rounds = len(plan.active)
    if game.knows_ids and trials.law[1:].sum() == 0.0:
        raise InputError("the adversary has no round that could hold the record")
    if not game.knows_ids and rounds > _MOST_ROUNDS:
        many = f"{rounds:,} rounds are more than {_MOST_ROUNDS:,}"
        raise InputError(f"without batch ids every scalar is drawn, and {many}")
    return trials


def pool_of(trials: RealTrials | SimulatedTrials | LabelTrials, pairs: int) -> Pool:
    """Return the blocks of `pairs` pairs of `trials`; those that are trainings cost some, and are kept."""
    trained = isinstance(trials, RealTrials)
    return Pool(
        draw=lambda number: scored_block(trials, number * pairs, (number + 1) * pairs),
        pairs=pairs,
        trials=2 * pairs if trained else 0,
        gaussian=not isinstance(trials, LabelTrials) and trials.game.knows_ids,
        stored=trained,
    )


FEATURES = "no attack looked at what the server learns about features"


def features_unread(setting: AttackSetting, looked: Collection[int | None]) -> tuple[str, ...]:
    """Return what no attack on features read of what clients of a system, or a transcript, send.

    Those attacks `looked` at some clients.
    """
    capabilities = setting.method.capabilities
    own = [m for m in setting.everyone if 0 not in setting.dataset.shapes[m - 1]]
    others = {m: needs.why_unread(setting, m) for m in own if m not in looked}
    unfeatured = [m for m, why in others.items() if why is None and m in capabilities.featureless]
    words = [said("unfeatured", unfeatured)] if unfeatured else []
    if not looked:
        return tuple(words) or (FEATURES,)
    for client, why in others.items():
        if client not in unfeatured:
            words.append(f"no attack on features applies: {why}" if why else f"features of client {client}")
    kinds = sorted(set(capabilities.up) - {"table", "embeddings"})
    if kinds:
        words.append(f"no attack looked for features in messages of kind {', '.join(kinds)}")
    return tuple(words)


LENGTHS = "the number of messages changes with labels, which no attack reads: run dpzv-audit audit system"
"""What attacks on a system leave untested where its rehearsal showed that labels decide how much is sent."""


def voids_of(method: MethodSpec, clients: int, read: Collection[str]) -> tuple[Void, ...]:
    """Return what voids evidence about a system whose labels are looked for in messages of the kinds that are `read`.

    That are messages to any of so many clients which tell of labels and are not read.
    """
    kinds = method.capabilities.unread(range(1, clients + 1), read)
    unknown = ", ".join(kind for kind in kinds if kind not in read)
    nameless = ", ".join(kind for kind in kinds if kind in read)
    words = []
    if unknown:
        alike = method.capabilities.like_groups.issuperset(kind for kind in kinds if kind not in read)
        hint = "; if they say who shares a node of a tree, record them as groups" if alike else ""
        words.append(f"no attack reads messages of kind {unknown}{hint}")
    if nameless:
        right = "record.sent(..., ids) says which records they are about"
        words.append(f"no attack reads messages of kind {nameless} without ids: {right}")
    return tuple(Void(reason="unread-messages", words=line) for line in words)


def voids_of_release(method: MethodSpec) -> tuple[Void, ...]:
    """Return what the rehearsal of a system found against the release that it states."""
    contradictions = method.capabilities.contradicted
    return tuple(Void(reason="release-contradicted", words=words) for words in contradictions)


def _tried(make: Callable[[], T]) -> tuple[T | None, str]:
    """Return trials, or None and why these cannot be made of this configuration."""
    try:
        return make(), ""
    except InputError as error:
        return None, str(error)


KNOWS_DIRECTIONS = ("client", "colluding-clients", "all-but-one", "malicious-client")


def theory_of(
    method: MethodSpec,
    config: TrainingConfig,
    deployment: Deployment,
    *,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    delta: float,
    enough: float | None = None,
) -> Theory:
    """Return every accountant's bound for the method as configured; `enough` as in `upper_bounds`."""
    releases = method.releases(config, deployment)
    if not releases:
        theory = unaccounted(method, config)
        measured = method.differences(config)
        hidden = measured is not None and measured.shared and adversary in KNOWS_DIRECTIONS
        return replace(theory, unaccounted="known-directions") if hidden and theory.unaccounted == NO_NOISE else theory
    (release,) = releases
    theory = account(release, adversary, neighbours, delta, enough)
    return replace(theory, stated=not method.capabilities.simulated)


def unaccounted(method: MethodSpec, config: TrainingConfig) -> Theory:
    """Return what theory says of a method that states no release: why there is nothing to account for."""
    protection = method.protection(config)
    if not method.capabilities.simulated:
        return Theory(applies=True, unaccounted=NO_RELEASE)
    if protection.draws:
        return Theory(applies=True, unaccounted=NOT_RELEASED, why=protection.not_released)
    return Theory(applies=True, unaccounted=NO_NOISE)


def account(
    release: Release,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    delta: float,
    enough: float | None = None,
) -> Theory:
    """Return every accountant's bound on one release; where certified bounds lie below `enough`, no others are made."""
    bounds = upper_bounds(release, delta=delta, adversaries=[adversary], neighbours=[neighbours], enough=enough)
    return Theory(applies=True, bounds=tuple(bounds))
