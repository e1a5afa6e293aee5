"""Where the evidence about a claim comes from: one source a form of claim, each of theory and of blocks of trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpzv_audit.auditing import DEFAULT_ESTIMATORS, GAUSSIAN_TESTS
from dpzv_audit.auditing.mechanism import importable
from dpzv_audit.auditing.mechanism_code import code_of
from dpzv_audit.auditing.scores import Scores, load_scores
from dpzv_audit.claims.load import PlacedClaim
from dpzv_audit.claims.model import AttackClaim, MechanismClaim, MethodClaim, ScoresClaim
from dpzv_audit.claims.paths import FILE, FOLDER, path_below, transformer_below
from dpzv_audit.data import DATASETS
from dpzv_audit.data.files import model_digest
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError
from dpzv_audit.evidence.blocks import Block
from dpzv_audit.evidence.subject import Source, Stage
from dpzv_audit.plain_files import confined_to
from dpzv_audit.registry import code_digest
from dpzv_audit.trees import data_digest, tree_digest

SCORES = "scores"


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
    in_scores = path_below("scores.in", claim.scores.in_, place, (FILE,))
    return in_scores, path_below("scores.out", claim.scores.out, place, (FILE,))


def data_folder(claim: MethodClaim | AttackClaim, place: Place) -> Path | None:
    """Return the folder that a claim's data are read from; None where it names none. Raises as `path_below`."""
    return None if claim.data_dir is None else path_below("data_dir", claim.data_dir, place, (FOLDER,))


def check_claim(placed: PlacedClaim, place: Place) -> None:
    """Raise `InputError` in one line where a claim cannot be run, as far as that can be told without planning it.

    Imports no code of the user's, keeps no data, and takes no more time or memory the larger the sizes it names.
    """
    claim = placed.claim
    if isinstance(claim, ScoresClaim):
        score_paths(claim, place)
    elif isinstance(claim, MechanismClaim):
        if claim.planted:
            from dpzv_audit.claims.planted_source import check_planted

            check_planted(claim)
        dependencies(claim, place)
    else:
        from dpzv_audit.claims.method_source import check_trained

        check_trained(claim, place)


def transformer_of(claim: MethodClaim | AttackClaim, place: Place) -> str | None:
    """Return what a claim's transformer is read from; None where it names none. Raises as `transformer_below`."""
    given = claim.config.get("transformer")
    return transformer_below(given, place) if isinstance(given, str) else None


def dependencies(claim: MechanismClaim, place: Place) -> list[Path]:
    """Return what `depends` names. Raises as `path_below`."""
    return [path_below("depends", given, place, (FILE, FOLDER)) for given in claim.depends]


def source_of(placed: PlacedClaim, place: Place, seed: int) -> Source:
    """Return the source of a claim, everything about it validated; `InputError` in one line where it cannot be run."""
    claim = placed.claim
    if isinstance(claim, ScoresClaim):
        return _scores(claim, place)
    if isinstance(claim, MechanismClaim) and claim.planted:
        from dpzv_audit.claims.planted_source import planted_source

        return planted_source(claim, seed)
    if isinstance(claim, MechanismClaim):
        require_trust(claim, place)
        from dpzv_audit.claims.mechanism_source import named_mechanism_source

        return named_mechanism_source(claim, place, seed)
    from dpzv_audit.claims.method_source import attack_source, method_source

    if isinstance(claim, AttackClaim):
        return attack_source(claim, place, seed)
    return method_source(claim, place, seed)


def _scores(claim: ScoresClaim, place: Place) -> Source:
    paths = score_paths(claim, place)

    def draw(pool: str, number: int) -> Block:
        inside, outside = (load_scores(path) for path in paths)
        return scores_block(inside, outside, exactly_gaussian=claim.exactly_gaussian)

    return scores_source(
        draw,
        exactly_gaussian=claim.exactly_gaussian,
        facts={"scores": {"in": claim.scores.in_, "out": claim.scores.out}},
    )


def scores_block(inside: Scores, outside: Scores, *, exactly_gaussian: bool) -> Block:
    """Return a block of scores that somebody else drew, as arrays: it is never stored."""
    given = {"given": {"probability": 1.0, "vouched": True}} if exactly_gaussian else {}
    return {"in": inside, "out": outside, **given}


def scores_source(
    draw: Callable[[str, int], Block], *, exactly_gaussian: bool, facts: Mapping[str, object] | None = None
) -> Source:
    """Return the source of scores that are there already: no further pair can be drawn, so one test takes them all."""
    return Source(
        stages=(Stage(name=SCORES, pool=SCORES, blocks=1, full=1.0),),
        draw=draw,
        gaussian=frozenset({SCORES} if exactly_gaussian else ()),
        gaussian_tests=tuple(name for name in GAUSSIAN_TESTS if name in DEFAULT_ESTIMATORS),
        quick=True,
        facts=facts or {},
    )


def require_trust(claim: MechanismClaim, place: Place) -> None:
    """Raise `InputError` unless code that the claim names may be imported."""
    if not place.trust_code:
        raise InputError(
            "code that verify would import and run: give ‹trust_code› to allow it",
            "mechanism",
            claim.mechanism,
        )
