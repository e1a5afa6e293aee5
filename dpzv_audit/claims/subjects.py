"""What the claims of a file are about, and what their evidence depends on."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.files import Undigested, confined_to, data_digest
from ..base.findings import Void
from ..base.registry import plug_ins
from ..base.signals import TRIAL_SECONDS
from ..data import DATASETS
from ..data.files import model_digest
from ..evidence.gathering import FIT_PAIRS, Pool, Stage, Subject, two_stages
from ..games.engine import Arrays
from ..games.fitting import WORDS, FittedScore, fit_score, pilot_size
from ..games.mechanism import MechanismTrials, answer_shape, check_mechanism, code_of, play
from ..games.scores import GameScores, Given, scored_by, scores_of, views_of
from ..statistics.assumptions import remarks, same_scores
from ..statistics.estimators import DEFAULT_ESTIMATORS, GAUSSIAN_TESTS
from ..statistics.scores import ScoreFiles, load_score_files
from .access import Access
from .file import Claim, MechanismClaim, MethodAttackClaim, OwnClaim, ScoresClaim

RUNS = "runs"
RUNS_A_BLOCK = 125
"""Pairs of runs, one in each world, that are drawn, kept and lost together."""
# After the numbers of the worlds: runs that a score is fitted to draw from streams of their own.
_FIT_STREAM = 2
SCORES = "scores"


def data_key(claim: Claim, access: Access) -> str:
    """Return a digest of the data, and of the user's code, that the evidence about a claim depends on.

    Code is that of a mechanism or a system, and of all installed packages that bring the tool anything: a method, an
    attack, a defence, a data set. What the code reads as it runs is no part of it (`dpzv_audit.base.inputs`).

    Raises `Undigested` where there are too many files for one, or one that cannot be read.
    """
    if isinstance(claim, ScoresClaim):
        with confined_to(access.root):
            return data_digest(access.scores(claim))
    if isinstance(claim, MechanismClaim):
        if claim.planted:
            return "planted"
        return f"{access.code(claim)} {_plugged_in()}"
    code = _plugged_in()
    if isinstance(claim, OwnClaim):
        code = f"{access.code(claim)} {code}"
    elif claim.records is not None:
        return f"simulated {code}"
    data = ""
    with access.data_folder(claim) as folder:
        transformer = None if isinstance(claim, OwnClaim) else access.transformer(claim)
        if claim.csv is not None:
            data = data_digest(access.tables(claim))
        elif claim.dataset is not None:
            data = DATASETS.named(claim.dataset, "dataset").digest(folder)
    if transformer is None:
        return f"{data} {code}"
    if not Path(transformer).is_dir():
        raise Undigested(f"the model {transformer} lies on a hub, where it may change")
    return f"{data} {code}, {model_digest(transformer)}"


def _plugged_in() -> str:
    """Return a digest of all packages that bring the tool anything, and of what they import that is not installed."""
    parts = []
    for point in plug_ins():
        package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            code = code_of(point.value)
        except InputError:  # there is no such module
            code = "absent"
        parts.append(f"{point.group} {point.name} {point.value} {package} {code}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest() if parts else ""


def runs_code(claim: Claim) -> bool:
    """Return whether the evidence about a claim takes code that is none of the tool's: the user's, or a plug-in's."""
    if isinstance(claim, ScoresClaim):
        return False
    if isinstance(claim, OwnClaim):
        return True
    return not claim.planted if isinstance(claim, MechanismClaim) else bool(plug_ins())


def check_claim(claim: Claim, access: Access) -> None:
    """Raise `InputError` in one line where a claim cannot be run, as far as that can be told without planning it.

    Needs no trust: imports no code of the user's and fetches nothing. Keeps no data, and takes no more time or memory
    the larger the sizes it names.
    """
    if isinstance(claim, ScoresClaim):
        access.scores(claim)
        return
    if isinstance(claim, OwnClaim):
        from .systems import check_system

        check_system(claim, access)
        return
    from .trained import check_planted, check_trained

    if not isinstance(claim, MechanismClaim):
        # A model on a hub is fetched by a training alone: its name takes no trust here.
        check_trained(claim, replace(access, trust_code=True))
        return
    if claim.planted:
        check_planted(claim)
    access.depends(claim)


def subject_of(claim: Claim, access: Access, seed: int, max_trials: int | None = None) -> Subject:
    """Return what a claim is about, everything about it validated; `InputError` in one line where it cannot be run.

    Fewer pilots go with fewer than `max_trials` trials; None for no limit.
    """
    if isinstance(claim, ScoresClaim):
        in_path, out_path = access.scores(claim)

        def read() -> ScoreFiles:
            with confined_to(access.root):
                return load_score_files(in_path, out_path, claim.scores.header)

        return scores_subject(
            read,
            called="files",
            exactly_gaussian=claim.exactly_gaussian,
            facts={"scores": claim.scores.names()},
        )
    if isinstance(claim, MechanismClaim) and not claim.planted:
        access.require_trust(claim)
        trials = MechanismTrials(claim.mechanism, seed, access.trial_seconds, access.folder)
        return mechanism_subject(
            trials,
            claim.mechanism,
            seed,
            delta=claim.delta,
            exactly_gaussian=claim.exactly_gaussian,
            max_trials=max_trials,
        )
    if isinstance(claim, OwnClaim):
        from .systems import claimed_system, system_subject

        access.require_trust(claim)
        return system_subject(claim, claimed_system(claim, access), access, seed)
    from .trained import attack_subject, method_subject, planted_subject

    if isinstance(claim, MechanismClaim):
        return planted_subject(claim, seed)
    if isinstance(claim, MethodAttackClaim):
        return attack_subject(claim, access, seed)
    return method_subject(claim, access, seed)


def scores_subject(
    read: Callable[[], ScoreFiles],
    *,
    exactly_gaussian: bool,
    called: str = "sides",
    facts: Mapping[str, object] | None = None,
) -> Subject:
    """Return what scores that are there already are about: no further pair can be drawn, so one test takes them all.

    `called` is what the two lists are: "sides" or "files".
    """

    def draw(number: int) -> GameScores:
        files = read()
        given = Given(vouched=True) if exactly_gaussian else None
        same = same_scores(files.inside, files.outside, called)
        voids = (Void(reason="same-scores", words=same),) if same else ()
        notes = (*files.notes, *(line for line in remarks(files.inside, files.outside, called) if line != same))
        return GameScores(files.inside, files.outside, given=given, notes=notes, voids=voids)

    @cache
    def counted() -> tuple[int, int]:
        files = read()
        return files.inside.size, files.outside.size

    return Subject(
        stages=(Stage(name=SCORES, pool=SCORES, blocks=1, full=1.0),),
        pools={SCORES: Pool(draw=draw, gaussian=exactly_gaussian, given=counted)},
        gaussian_tests=tuple(name for name in GAUSSIAN_TESTS if name in DEFAULT_ESTIMATORS),
        quick=True,
        facts=facts or {},
    )


def mechanism_subject(
    mechanism: Any,
    label: str,
    seed: int,
    *,
    delta: float = 0.0,
    exactly_gaussian: bool = False,
    trial_seconds: float = TRIAL_SECONDS,
    max_trials: int | None = None,
) -> Subject:
    """Return a mechanism (see `dpzv_audit.games.mechanism`), or `MechanismTrials` of a named one, as a subject.

    A score is chosen on `FIT_PAIRS` further runs in each world, or a quarter of what `max_trials` allows, for a claim
    at `delta`, as `audit mechanism` and `hunt` choose it. Of a view that is `exactly_gaussian` only a linear score is
    Gaussian too: no other is fitted.
    """
    if isinstance(mechanism, MechanismTrials):
        check_mechanism(mechanism.mechanism, label)  # here, so that one that cannot be imported is told of first
        played = mechanism.played
    else:
        played = partial(play, check_mechanism(mechanism, label), label, seconds=trial_seconds)

    def run(number: int, first: int, last: int, *further: int) -> Arrays:
        def streams(world: int, run: int | None) -> np.random.Generator:
            key = () if run is None else (run - first,)
            return np.random.default_rng(np.random.SeedSequence([seed, number, world, *further], spawn_key=key))

        arrays, failure = played(first, last, streams=streams)
        if failure is not None:
            raise failure
        return arrays

    pairs = FIT_PAIRS if max_trials is None else min(FIT_PAIRS, pilot_size(max_trials // 2))

    @cache
    def chosen(shape: tuple[int, ...]) -> FittedScore:
        pilots = run(0, 0, pairs, _FIT_STREAM)
        found = answer_shape(pilots)
        if found != shape:
            raise InputError(
                f"mechanism {label}: runs answered shape {found} after shape {shape}, must be the same always"
            )
        kinds = ("linear",) if exactly_gaussian else tuple(WORDS)
        return fit_score(*views_of(pilots), kinds=kinds, delta=delta, own=not shape)

    def draw(number: int) -> GameScores:
        arrays = run(number, number * RUNS_A_BLOCK, (number + 1) * RUNS_A_BLOCK)
        shape = answer_shape(arrays)
        if exactly_gaussian and not shape:
            return replace(scores_of(arrays), given=Given(vouched=True))
        scores = scored_by(chosen(shape), arrays)
        return replace(scores, given=Given(vouched=True) if exactly_gaussian else None)

    stages, pools = run_plan(draw, exactly_gaussian=exactly_gaussian)
    return Subject(stages=stages, pools=pools, facts={"mechanism": label})


def run_plan(draw: Callable[[int], GameScores], *, exactly_gaussian: bool) -> tuple[tuple[Stage, ...], dict[str, Pool]]:
    """Return the stages in which runs of a mechanism are tested, and their pool, whose blocks `draw` makes."""
    pool = Pool(draw=draw, pairs=RUNS_A_BLOCK, trials=2 * RUNS_A_BLOCK, gaussian=exactly_gaussian, stored=True)
    return two_stages(RUNS, first=4, rest=14), {RUNS: pool}
