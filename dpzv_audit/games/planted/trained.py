"""Planted mechanisms that are real trainings on digits: a server trained on true labels, and DPZV as it should be."""

from __future__ import annotations

from dpzv_audit.data import load
from dpzv_audit.games.game import Game
from dpzv_audit.games.planted.cases import Case, case
from dpzv_audit.games.real import RealTrials
from mechanisms.core.context import Deployment
from mechanisms.methods.dpzv import DPZVConfig, scalar_release

_EPOCHS = 4
_WITHOUT = "likelihood ratio of the rounds without the canary, played again"


@case("server trained on true labels, state canary", adversary="colluding-clients", score=_WITHOUT, runs=200)
def server_state(seed: int) -> Case:
    """DPZV with noise that is right for known ids, whose server takes SGD steps on true labels: (0.5, 1e-5).

    The canary has features a thousand times as large, and only rounds that do not hold it are scored.
    """
    return _case(
        Game(
            config=DPZVConfig(epsilon=0.5, epochs=_EPOCHS, calibration="sound", server_update="sgd", server_rate=0.05),
            canary="state",
            adversary="colluding-clients",
        ),
        seed,
    )


@case(
    "server moved by released scalars alone, state canary",
    expected=("supported",),
    adversary="colluding-clients",
    score=_WITHOUT,
    runs=50,
)
def joint_zo_state(seed: int) -> Case:
    """The same canary where the server steps by the released scalar alone: the same rounds say nothing."""
    return _case(
        Game(
            config=DPZVConfig(
                epsilon=0.5,
                epochs=_EPOCHS,
                calibration="sound",
                server_update="joint-zo",
                server_rate=1e-3,
                momentum=0.0,
                server_momentum=0.0,
            ),
            canary="state",
            adversary="colluding-clients",
        ),
        seed,
    )


@case(
    "dpzv-sound with sound calibration",
    expected=("supported",),
    adversary="colluding-clients",
    score="likelihood ratio of the scalars, played again",
    runs=200,
)
def dpzv_sound(seed: int) -> Case:
    """`dpzv-sound` with its defaults and a worst-case canary against all clients together: (1, 1e-5)."""
    config = DPZVConfig(
        epsilon=1.0,
        epochs=_EPOCHS,
        calibration="sound",
        server_update="joint-zo",
        clip=1.0,
        client_rate=1e-3,
        server_rate=1e-3,
        momentum=0.0,
        server_momentum=0.0,
    )
    return _case(Game(config=config, adversary="colluding-clients"), seed)


def _case(game: Game, seed: int) -> Case:
    trials = RealTrials(game, load("digits"), seed)
    deployment = Deployment(records=trials.sampling.records, clients=len(trials.plan.rounds_by_client))
    release = scalar_release(game.config, trials.plan, deployment)
    assert game.config.epsilon is not None
    return Case(epsilon=game.config.epsilon, delta=game.config.delta, release=release, games={"": trials})
