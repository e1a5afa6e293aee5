"""What the claims of a file are about, what their evidence depends on, and which files they may reach."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dpzv_audit.claims.file import AttackClaim, MechanismClaim, MethodClaim, PlacedClaim, ScoresClaim
from dpzv_audit.data import DATASETS
from dpzv_audit.data.files import model_digest
from dpzv_audit.errors import InputError
from dpzv_audit.evidence.gathering import FIT_PAIRS, Pool, Stage, Subject, two_stages
from dpzv_audit.files import confined_to, data_digest, kind_of, tree_digest
from dpzv_audit.games.engine import Arrays
from dpzv_audit.games.fitting import WORDS, FittedScore, fit_score
from dpzv_audit.games.mechanism import MechanismTrials, check_mechanism, code_of, importable, play
from dpzv_audit.games.scores import GameScores, Given, scored_by, scores_of
from dpzv_audit.registry import code_digest
from dpzv_audit.signals import TRIAL_SECONDS
from dpzv_audit.statistics.binomial import Floats
from dpzv_audit.statistics.estimators import DEFAULT_ESTIMATORS, GAUSSIAN_TESTS
from dpzv_audit.statistics.scores import load_scores

RUNS = "runs"
RUNS_A_BLOCK = 125
"""Pairs of runs, one in each world, that are drawn, kept and lost together."""
_FIRST, _REST = 4, 14
_FIT_STREAM = 2
"""After the numbers of the worlds: runs that a score is fitted to draw from streams of their own."""
SCORES = "scores"


def data_key(placed: PlacedClaim, place: Place) -> str:
    """Return a digest of the data, and of the user's code, that the evidence about a claim depends on.

    Code is that of a mechanism, and of installed packages that bring the method, the attack or the data set.

    Raises `Undigested` where there are too many files for one, or one that cannot be read.
    """
    claim = placed.claim
    if isinstance(claim, ScoresClaim):
        return data_digest(score_paths(claim, place))
    if isinstance(claim, MechanismClaim) and claim.planted:
        return "planted"
    if isinstance(claim, MechanismClaim):
        require_trust(claim, place)
        with importable(place.folder):
            code = code_of(claim.mechanism, place.outputs)
        return f"{code}, {tree_digest(dependencies(claim, place))}" if claim.depends else code
    code = code_digest("dpzv_audit.methods", claim.method)
    if isinstance(claim, MethodClaim) and claim.records is not None:
        return f"simulated {code}"
    code += code_digest("dpzv_audit.datasets", claim.dataset)
    if isinstance(claim, AttackClaim):
        code += code_digest("dpzv_audit.attacks", claim.attack)
    folder, transformer = data_folder(claim, place), transformer_of(claim, place)
    with confined_to(None if folder is None else place.root):
        data = DATASETS.named(claim.dataset, "dataset").digest(folder)
    return f"{data} {code}" if transformer is None else f"{data} {code}, {model_digest(transformer)}"


def score_paths(claim: ScoresClaim, place: Place) -> tuple[Path, Path]:
    """Return the two score files; `InputError` for one that is not below the root or is no file."""
    in_scores = path_below("scores.in", claim.scores.in_, place, FILE)
    return in_scores, path_below("scores.out", claim.scores.out, place, FILE)


def data_folder(claim: MethodClaim | AttackClaim, place: Place) -> Path | None:
    """Return the folder that a claim's data are read from; None where it names none. Raises as `path_below`."""
    return None if claim.data_dir is None else path_below("data_dir", claim.data_dir, place, FOLDER)


def check_claim(placed: PlacedClaim, place: Place) -> None:
    """Raise `InputError` in one line where a claim cannot be run, as far as that can be told without planning it.

    Imports no code of the user's, keeps no data, and takes no more time or memory the larger the sizes it names.
    """
    claim = placed.claim
    if isinstance(claim, ScoresClaim):
        score_paths(claim, place)
    elif isinstance(claim, MechanismClaim):
        if claim.planted:
            from dpzv_audit.claims.trained import check_planted

            check_planted(claim)
        dependencies(claim, place)
    else:
        from dpzv_audit.claims.trained import check_trained

        check_trained(claim, place)


def transformer_of(claim: MethodClaim | AttackClaim, place: Place) -> str | None:
    """Return what a claim's transformer is read from; None where it names none. Raises as `transformer_below`."""
    given = claim.config.get("transformer")
    return transformer_below(given, place) if isinstance(given, str) else None


def dependencies(claim: MechanismClaim, place: Place) -> list[Path]:
    """Return what `depends` names. Raises as `path_below`."""
    return [path_below("depends", given, place, FILE, FOLDER) for given in claim.depends]


def subject_of(placed: PlacedClaim, place: Place, seed: int) -> Subject:
    """Return what a claim is about, everything about it validated; `InputError` in one line where it cannot be run."""
    claim = placed.claim
    if isinstance(claim, ScoresClaim):
        in_path, out_path = score_paths(claim, place)
        return scores_subject(
            lambda: (load_scores(in_path), load_scores(out_path)),
            exactly_gaussian=claim.exactly_gaussian,
            facts={"scores": {"in": claim.scores.in_, "out": claim.scores.out}},
        )
    if isinstance(claim, MechanismClaim) and claim.planted:
        from dpzv_audit.claims.trained import planted_subject

        return planted_subject(claim, seed)
    if isinstance(claim, MechanismClaim):
        require_trust(claim, place)
        trials = MechanismTrials(claim.mechanism, seed, place.trial_seconds, place.folder)
        return mechanism_subject(trials, claim.mechanism, seed, exactly_gaussian=claim.exactly_gaussian)
    from dpzv_audit.claims.trained import attack_subject, method_subject

    if isinstance(claim, AttackClaim):
        return attack_subject(claim, place, seed)
    return method_subject(claim, place, seed)


def scores_subject(
    read: Callable[[], tuple[Floats, Floats]], *, exactly_gaussian: bool, facts: Mapping[str, object] | None = None
) -> Subject:
    """Return what scores that are there already are about: no further pair can be drawn, so one test takes them all."""

    def draw(number: int) -> GameScores:
        return GameScores(*read(), given=Given(vouched=True) if exactly_gaussian else None)

    return Subject(
        stages=(Stage(name=SCORES, pool=SCORES, blocks=1, full=1.0),),
        pools={SCORES: Pool(draw=draw, gaussian=exactly_gaussian)},
        gaussian_tests=tuple(name for name in GAUSSIAN_TESTS if name in DEFAULT_ESTIMATORS),
        quick=True,
        facts=facts or {},
    )


def require_trust(claim: MechanismClaim, place: Place) -> None:
    """Raise `InputError` unless code that the claim names may be imported."""
    if not place.trust_code:
        right = "code that verify would import and run: give ‹trust_code› to allow it"
        raise InputError(right, "mechanism", claim.mechanism)


def mechanism_subject(
    mechanism: Any, label: str, seed: int, *, exactly_gaussian: bool = False, trial_seconds: float = TRIAL_SECONDS
) -> Subject:
    """Return a mechanism (see `dpzv_audit.games.mechanism`), or `MechanismTrials` of a named one, as a subject.

    Where it answers with views that it does not score, a score is fitted to `FIT_PAIRS` further runs in each world. Of
    a view that is `exactly_gaussian` only a linear score is Gaussian too: no other is fitted.
    """
    if isinstance(mechanism, MechanismTrials):
        check_mechanism(mechanism.mechanism, label)  # here, so that one that cannot be imported is told of first
        played = mechanism.played
    else:
        played = partial(play, check_mechanism(mechanism, label), label, seconds=trial_seconds)

    def run(number: int, first: int, last: int, *further: int) -> Arrays:
        def streams(world: int, run: int | None) -> np.random.Generator:
            place = () if run is None else (run - first,)
            return np.random.default_rng(np.random.SeedSequence([seed, number, world, *further], spawn_key=place))

        arrays, failure = played(first, last, streams=streams)
        if failure is not None:
            raise failure
        return arrays

    @cache
    def fitted(width: int) -> FittedScore:
        views = run(0, 0, FIT_PAIRS, _FIT_STREAM)
        found = views["in_features"].shape[1] if "in_features" in views else 0
        if found != width:
            raise InputError(f"mechanism {label}: runs answered {found} numbers after {width}, must be as many always")
        kinds = ("linear",) if exactly_gaussian else tuple(WORDS)
        return fit_score(views["in_features"], views["out_features"], kinds=kinds)

    def draw(number: int) -> GameScores:
        arrays = run(number, number * RUNS_A_BLOCK, (number + 1) * RUNS_A_BLOCK)
        views = arrays.get("in_features")
        scores = scores_of(arrays) if views is None else scored_by(fitted(views.shape[1]), arrays)
        return replace(scores, given=Given(vouched=True) if exactly_gaussian else None)

    pool = Pool(draw=draw, pairs=RUNS_A_BLOCK, trials=2 * RUNS_A_BLOCK, gaussian=exactly_gaussian, stored=True)
    return Subject(
        stages=two_stages(RUNS, first=_FIRST, rest=_REST),
        pools={RUNS: pool},
        facts={"mechanism": label},
    )


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOST_FILES = 10_000
FILE, FOLDER = "a regular file", "a folder"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a claims file may reach: its folder, the one that score files must lie in, and whether code is trusted.

    `outputs` are files that the run itself writes: they are no part of a mechanism that lies beside them.
    """

    folder: Path
    root: Path
    trust_code: bool = False
    device: str = "cpu"
    outputs: tuple[Path, ...] = ()
    trial_seconds: float = TRIAL_SECONDS
    """What one run of a mechanism that a claim names may take."""


def place_of(path: Path, *, root: Path | None, outputs: Sequence[Path | None] = (), **options: Any) -> Place:
    """Return where the claims file at `path` may reach: score files lie below `root`, by default the file's folder.

    In full: workers of a cluster start in folders of their own. `outputs` are files that the run writes, `options` the
    other fields of a `Place`.
    """
    folder = path.parent.absolute()
    written = tuple(output.absolute() for output in outputs if output is not None)
    return Place(folder=folder, root=root or folder, outputs=written, **options)


def path_below(key: str, given: str, place: Place, *kinds: str) -> Path:
    """Return the path that `key` names, of one of `kinds`: FILE, FOLDER.

    Raises `InputError` for anything else, and for a path outside the root.
    """
    path = _check_below(key, given, "which", place.folder / given, place)
    kind = kind_of(path)
    if kind not in kinds:
        raise InputError(f"which is {kind}, must be {' or '.join(kinds)} below {place.root}", key, given)
    return path


def transformer_below(given: str, place: Place) -> str:
    """Return what to read a pre-trained transformer from: a folder below the root, or with trust a name on a hub.

    Raises `InputError` for another folder, one with a link that leads out of the root, and for a name without trust:
    it is fetched from the network.
    """
    key = "config.transformer"
    is_name = _HUB_NAME.fullmatch(given) and not Path(given).exists()
    if is_name and not (place.folder / given).exists():
        if not place.trust_code:
            right = f"no folder below {place.folder}; a name on a hub, which is fetched, needs ‹trust_code›"
            raise InputError(f"which is {right}", key, given)
        return given
    folder = path_below(key, given, place, FOLDER)
    seen = 0
    for inner, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > _MOST_FILES:
            raise InputError(f"with more than {_MOST_FILES:,} files, must hold one model", key, given)
        for name in (*folders, *files):
            _check_below(key, given, f"whose {name}", Path(inner) / name, place)
    return str(folder)


def _check_below(key: str, given: str, what: str, path: Path, place: Place) -> Path:
    try:
        found = path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long
        raise InputError(f"{what} cannot be followed, must be a path below {place.root}", key, given) from None
    if not found.is_relative_to(place.root.resolve()):
        raise InputError(f"{what} lies elsewhere, must lie below {place.root} (or below ‹root› DIR)", key, given)
    return found
