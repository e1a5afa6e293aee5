"""Mechanisms that are wrong on purpose, and right ones: what an audit is worth is that it tells them apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpzv_audit.auditing.planted import channel, sampling, trained, views
from dpzv_audit.auditing.planted.definition import Case, Draw, DrawnTrials, Planted
from dpzv_audit.errors import unknown_name
from dpzv_audit.evidence import AdversaryName, Verdict

_SUM = "sum of the scalars of batches with the canary"
_RUNS = 10_000
_VIEW_RUNS = 2_000
_FITTED = "fitted to the canary's rounds on separate runs: linear, quadratic or boosted"


def _channel_case(draw: Draw, number: int, exactly_gaussian: bool, changes: dict[str, object], seed: int) -> Case:
    return Case(
        epsilon=channel.EPSILON,
        delta=channel.DELTA,
        release=channel.release(**changes),
        games={"": DrawnTrials(draw, number, seed, exactly_gaussian)},
    )


def _channel(
    name: str,
    summary: str,
    draw: Draw,
    number: int,
    *,
    score: str = _SUM,
    expected: tuple[Verdict, ...] = ("refuted",),
    adversary: AdversaryName = "client",
    exactly_gaussian: bool = False,
    **changes: object,
) -> Planted:
    """A mechanism of `channel`; `exactly_gaussian`: a fixed number of rounds of Gaussian noise."""
    build: Callable[[int], Case] = partial(_channel_case, draw, number, exactly_gaussian, changes)
    return Planted(
        name=name,
        summary=summary,
        expected=expected,
        adversary=adversary,
        neighbours="replace-label",
        score=score,
        runs=_RUNS,
        build=build,
    )


def _view_case(draw: Draw, number: int, rounds: int, changes: dict[str, object], seed: int) -> Case:
    return Case(
        epsilon=channel.EPSILON,
        delta=channel.DELTA,
        release=views.release(rounds, **changes),
        games={"": DrawnTrials(draw, number, seed)},
    )


def _view(
    name: str,
    summary: str,
    draw: Draw,
    number: int,
    *,
    rounds: int = views.ROUNDS,
    expected: tuple[Verdict, ...] = ("refuted",),
    **changes: object,
) -> Planted:
    """A mechanism of `views`, whose score the audit has to fit."""
    return Planted(
        name=name,
        summary=summary,
        expected=expected,
        adversary="client",
        neighbours="replace-label",
        score=_FITTED,
        runs=_VIEW_RUNS,
        build=partial(_view_case, draw, number, rounds, changes),
    )


PLANTED: dict[str, Planted] = {
    planted.name: planted
    for planted in (
        _channel(
            "noise-over-b",
            "noise scaled for B times the sensitivity too little",
            channel.noise_over_b,
            0,
            exactly_gaussian=True,
        ),
        _channel(
            "sensitivity-halved",
            "sensitivity C/B instead of 2C/B for replaced labels",
            channel.sensitivity_halved,
            1,
            exactly_gaussian=True,
        ),
        _channel(
            "noise-reused",
            "noise seed reused every round",
            channel.noise_reused,
            2,
            score="mean of the canary's rounds less the mean of the others",
        ),
        _channel(
            "noise-shared",
            "noise seed shared with the client",
            channel.noise_shared,
            3,
            score="sum of the canary's rounds less the noise, drawn again",
        ),
        _channel("clip-after-average", "clipping after averaging", channel.clip_after_average, 4),
        _channel(
            "one-sided-clip",
            "one-sided clip with an unbounded loss",
            channel.one_sided_clip,
            5,
            clip_rule="paper-one-sided",
        ),
        _channel(
            "noise-once",
            "noise added once an epoch",
            channel.noise_once,
            6,
            score="mean of the canary's rounds without noise",
        ),
        Planted(
            name="actual-divisor",
            summary="Poisson sampling whose divisor is the actual batch size",
            expected=("refuted",),
            adversary="eavesdropper",
            neighbours="add-remove",
            score="likelihood ratio of the scalars alone, others at +C and at 0",
            runs=20_000,
            build=sampling.actual_divisor,
        ),
        Planted(
            name="own-rounds",
            summary="a bound from one client's own rounds (two clients, canary only in the other's batches)",
            expected=("refuted",),
            adversary="client",
            neighbours="replace-label",
            score="the other client's scalars, read off its model in canary-free rounds",
            runs=_RUNS,
            build=sampling.own_rounds_case,
        ),
        _channel(
            "repeated-record",
            "one record repeated in a batch by a malicious client, no cap",
            channel.repeated_record,
            7,
            adversary="malicious-client",
        ),
        _channel(
            "losses-released",
            "training losses released beside the scalars, unnoised",
            channel.losses_released,
            8,
            score="sum of the logged losses less what the model explains",
            data_dependent_side=True,
        ),
        _channel(
            "best-checkpoint",
            "best-checkpoint choice released beside the scalars, unnoised",
            channel.best_checkpoint,
            9,
            score="how far the chosen model is above the mean of all",
            data_dependent_side=True,
        ),
        _view(
            "noise-by-label",
            "noise scaled by what it protects: x 0.8 with one label",
            views.noise_by_label,
            11,
        ),
        _view(
            "uniform-noise",
            "uniform noise of the variance that Gaussian noise should have",
            views.uniform_noise,
            12,
            rounds=views.FEW_ROUNDS,
        ),
        _view(
            "sign-correlation",
            "signs of the noise correlated between rounds, as the label says",
            views.sign_correlated,
            13,
        ),
        _view(
            "early-stop",
            "early stop on the private loss",
            views.early_stop,
            14,
            data_dependent_side=True,
        ),
        Planted(
            name="shuffled-as-poisson",
            summary="shuffled batches accounted as Poisson",
            expected=("overclaimed",),
            adversary="eavesdropper",
            neighbours="replace-label",
            score="likelihood ratio of the scalars alone",
            runs=5_000,
            build=sampling.shuffled_as_poisson,
        ),
        Planted(
            name="theorem-5-1",
            summary="paper calibration against client (theorem 5.1), full size",
            expected=("refuted",),
            adversary="client",
            neighbours="replace-label",
            score=_SUM,
            runs=_RUNS,
            build=sampling.theorem_5_1,
        ),
        Planted(
            name="server-state",
            summary="server trained on true labels, state canary",
            expected=("refuted",),
            adversary="colluding-clients",
            neighbours="replace-label",
            score="likelihood ratio of the rounds without the canary, played again",
            runs=200,
            build=trained.server_state,
        ),
        Planted(
            name="joint-zo-state",
            summary="server moved by released scalars alone, state canary",
            expected=("supported",),
            adversary="colluding-clients",
            neighbours="replace-label",
            score="likelihood ratio of the rounds without the canary, played again",
            runs=50,
            build=trained.joint_zo_state,
        ),
        Planted(
            name="dpzv-sound",
            summary="dpzv-sound with sound calibration",
            expected=("supported",),
            adversary="colluding-clients",
            neighbours="replace-label",
            score="likelihood ratio of the scalars, played again",
            runs=200,
            build=trained.dpzv_sound,
        ),
        _channel(
            "sound",
            "the scalar channel as designed",
            channel.sound,
            10,
            expected=("supported",),
            exactly_gaussian=True,
        ),
        _view(
            "sound-view",
            "the scalar channel as designed, its score fitted to the view",
            views.sound,
            15,
            expected=("supported",),
        ),
        Planted(
            name="paper-secret-ids",
            summary="paper calibration, secret ids, epsilon 1, replace",
            expected=("overclaimed", "supported"),
            adversary="eavesdropper",
            neighbours="replace-label",
            score="likelihood ratio of the scalars alone",
            runs=1_000,
            build=sampling.paper_secret_ids,
        ),
    )
}


def planted_named(name: str, *, what: str = "mechanism planted:NAME", also: tuple[str, ...] = ()) -> Planted:
    """Return the planted mechanism called `name`; `InputError` suggesting the nearest known one otherwise.

    `what` is how the user said it, a key or a flag, and `also` what else it may be.
    """
    if name not in PLANTED:
        raise unknown_name(what, name, (*also, *PLANTED))
    return PLANTED[name]
