"""What the claims of a file are about, what their evidence depends on, and which files they may reach."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..base.errors import InputError
from ..base.files import Undigested, confined_to, data_digest, kind_of, tree_digest
from ..base.findings import Void
from ..base.loading import importable
from ..base.registry import plug_ins
from ..base.signals import TRIAL_SECONDS
from ..data import DATASETS
from ..data.files import model_digest
from ..evidence.gathering import FIT_PAIRS, Pool, Stage, Subject, two_stages
from ..games.engine import Arrays
from ..games.fitting import WORDS, FittedScore, fit_score, pilot_size
from ..games.mechanism import MechanismTrials, answer_shape, check_mechanism, code_of, native_readers, play
from ..games.scores import GameScores, Given, scored_by, scores_of, views_of
from ..statistics.assumptions import remarks, same_scores
from ..statistics.estimators import DEFAULT_ESTIMATORS, GAUSSIAN_TESTS
from ..statistics.scores import ScoreFiles, load_score_files
from .file import Claim, MechanismClaim, MethodAttackClaim, OwnClaim, ScoresClaim, TrainedClaim, files_of

RUNS = "runs"
RUNS_A_BLOCK = 125
"""Pairs of runs, one in each world, that are drawn, kept and lost together."""
# After the numbers of the worlds: runs that a score is fitted to draw from streams of their own.
_FIT_STREAM = 2
SCORES = "scores"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MOST_FILES = 10_000
FILE = "a regular file"
FOLDER = "a folder"


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a claims file may reach: its `folder`, the `root` that files must lie below, and whether code is trusted.

    `outputs` are files that the run itself writes: they are no part of a mechanism that lies beside them. A run of a
    mechanism that a claim names may take `trial_seconds`.
    """

    folder: Path
    root: Path
    trust_code: bool = False
    device: str = "cpu"
    outputs: tuple[Path, ...] = ()
    trial_seconds: float = TRIAL_SECONDS

    @classmethod
    def of(cls, path: Path, *, root: Path | None = None, outputs: Sequence[Path | None] = (), **options: Any) -> Self:
        """Return what the claims file at `path` may reach; the root is by default the file's folder.

        In full: workers of a cluster start in folders of their own. `options` are the other fields. Raises `InputError`
        for a root that is no folder.
        """
        if root is not None and kind_of(root) != FOLDER:
            raise InputError(f"which is {kind_of(root)}, must be a folder", "root", str(root))
        folder = path.parent.absolute()
        written = tuple(output.absolute() for output in outputs if output is not None)
        return cls(folder=folder, root=root or folder, outputs=written, **options)

    def path(self, key: str, value: str, *kinds: str) -> Path:
        """Return the path that `key` names, of one of `kinds`: FILE, FOLDER.

        Raises `InputError` for anything else, and for a path outside the root.
        """
        path = self._below(key, value, "which", self.folder / value)
        kind = kind_of(path)
        if kind not in kinds:
            raise InputError(f"which is {kind}, must be {' or '.join(kinds)} below {self.root}", key, value)
        return path

    def _below(self, key: str, value: str, what: str, path: Path) -> Path:
        try:
            found = path.resolve()
        except (OSError, RuntimeError, ValueError):  # links in a circle, a name too long
            raise InputError(f"{what} cannot be followed, must be a path below {self.root}", key, value) from None
        if not found.is_relative_to(self.root.resolve()):
            raise InputError(f"{what} lies elsewhere, must lie below {self.root} (or below ‹root› DIR)", key, value)
        return found

    def scores(self, claim: ScoresClaim) -> list[Path]:
        """Return the two score files of a claim. Raises as `path`."""
        return [self.path(key, value, FILE) for key, value in files_of(claim).items()]

    def depends(self, claim: MechanismClaim | OwnClaim) -> list[Path]:
        """Return what `depends` names. Raises as `path`."""
        return [self.path("depends", value, FILE, FOLDER) for value in claim.depends]

    def tables(self, claim: TrainedClaim | OwnClaim) -> list[Path]:
        """Return the files of a claim's table: its rows and, where they are apart, its test rows. Raises as `path`."""
        return [self.path(key, value, FILE) for key, value in files_of(claim).items()]

    @contextmanager
    def data_folder(self, claim: TrainedClaim | OwnClaim) -> Iterator[Path | None]:
        """Yield the folder of a claim's data, and let nothing outside the root be opened; None where it names none.

        Raises as `path`.
        """
        folder = None if claim.data_dir is None else self.path("data_dir", claim.data_dir, FOLDER)
        with confined_to(None if folder is None else self.root):
            yield folder

    def transformer(self, claim: TrainedClaim) -> str | None:
        """Return what to read a claim's pre-trained transformer from; None where it names none.

        That is a folder below the root, or with trust a name on a hub. Raises `InputError` for another folder, one with
        a link that leads out of the root, and for a name without trust: it is fetched from the network.
        """
        key = "config.transformer"
        value = claim.config.get("transformer")
        if not isinstance(value, str):
            return None
        if _HUB_NAME.fullmatch(value) and not Path(value).exists() and not (self.folder / value).exists():
            if not self.trust_code:
                right = f"no folder below {self.folder}; a name on a hub, which is fetched, needs ‹trust_code›"
                raise InputError(f"which is {right}", key, value)
            return value
        folder = self.path(key, value, FOLDER)
        seen = 0
        for inner, folders, files in os.walk(folder):
            seen += len(folders) + len(files)
            if seen > _MOST_FILES:
                raise InputError(f"with more than {_MOST_FILES:,} files, must hold one model", key, value)
            for name in (*folders, *files):
                self._below(key, value, f"whose {name}", Path(inner) / name)
        return str(folder)

    def require_trust(self, claim: MechanismClaim | OwnClaim) -> None:
        """Raise `InputError` unless code that the claim names may be imported."""
        if not self.trust_code:
            right = "code that verify would import and run: give ‹trust_code› to allow it"
            raise InputError(right, *_code_named(claim))

    def code(self, claim: MechanismClaim | OwnClaim) -> str:
        """Return a digest of the code that a claim names, and of what it says that this depends on.

        Raises `InputError` without trust, else as `code_of` and `path`; `Undigested` where it imports a package whose
        native code reads files, and names none.
        """
        self.require_trust(claim)
        key, path = _code_named(claim)
        with importable(self.folder):
            code = code_of(path, self.outputs, key)
            native = [] if claim.depends else native_readers(path, key)
        if native:
            raise Undigested(f"its code imports {native[0]}, which opens files unseen: name them in `depends`")
        return f"{code}, {tree_digest(self.depends(claim))}" if claim.depends else code


@dataclass(frozen=True, kw_only=True)
class Remembering(Access):
    """The same, for a check of a whole file in one go: each path is followed once, however many claims name it."""

    known: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False)

    @classmethod
    def as_in(cls, access: Access) -> Self:
        """Return what reaches the same."""
        return cls(**vars(access))

    def path(self, key: str, value: str, *kinds: str) -> Path:
        """See `Access.path`."""
        asked = (value, *kinds)
        if asked not in self.known:
            self.known[asked] = super().path(key, value, *kinds)
        found: Path = self.known[asked]
        return found

    def transformer(self, claim: TrainedClaim) -> str | None:
        """See `Access.transformer`."""
        value = claim.config.get("transformer")
        if not isinstance(value, str):
            return None
        if (value,) not in self.known:
            self.known[value,] = super().transformer(claim)
        found: str | None = self.known[value,]
        return found


def _code_named(claim: MechanismClaim | OwnClaim) -> tuple[str, str]:
    """Return the key that names code, and the path that it gives."""
    if isinstance(claim, MechanismClaim):
        return "mechanism", claim.mechanism
    return "system", claim.system


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
    from .trained import check_planted, check_trained

    if isinstance(claim, OwnClaim):
        from .systems import check_system

        check_system(claim, access)
        return
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
