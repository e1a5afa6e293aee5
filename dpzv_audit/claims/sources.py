"""Where the evidence about a claim comes from: one source a form of claim, each of theory and of blocks of trials."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.auditing.scores import load_scores
from dpzv_audit.claims.cache import code_of, dataset_digest, files_digest
from dpzv_audit.claims.evidence import Theory
from dpzv_audit.claims.load import PlacedClaim
from dpzv_audit.claims.model import AttackClaim, MechanismClaim, MethodClaim, ScoresClaim
from dpzv_audit.errors import AuditError, InputError, unknown_name
from dpzv_audit.training_defaults import defaults_for

Block = Mapping[str, Any]
"""Trials as plain values: "in" and "out" scores with "gaussian", or a "rate" of success; further keys are facts."""

RUNS_A_BLOCK = 250
"""Runs in each world that are drawn, kept and lost together."""
TRIALS_A_BLOCK = 4
ATTACK_BLOCKS = 16
UNAUDITED_RELATION = "the label game replaces a label, which says nothing about {relation}"
UNAUDITED_VIEW = "no game is played from the view of the {adversary}"


@dataclass(frozen=True)
class Stage:
    """One planned look: its name, the share of the claim's alpha that it may spend, and its blocks by number."""

    name: str
    weight: float
    blocks: range


TWO_STAGES = (Stage("first", 0.2, range(1)), Stage("full", 0.7, range(1, 9)))
"""A short look that most false claims do not survive, then a long one on trials of its own; 0.1 is kept back."""
METHOD_STAGES = (
    Stage("simulated", 0.4, range(20, 28)),
    Stage("first", 0.1, range(1)),
    Stage("full", 0.4, range(1, 5)),
)
"""Of a training method: the mechanism's own transcript first, without a training, then the code as it runs."""
SIMULATED = METHOD_STAGES[0].blocks
SIMULATED_RUNS = 1000
CUT_WEIGHT = 0.1
"""Share of alpha for the one look at a stage that a budget or an interrupt cut off."""
ALL_AT_ONCE = (Stage("all scores", 1.0, range(1)),)
ATTACK_STAGES = (Stage("trainings", 1.0, range(ATTACK_BLOCKS)),)


@dataclass(frozen=True, kw_only=True)
class Source:
    """How evidence about one claim is gathered.

    `draw(number)` makes one block of trials, from streams of its own; it may take seconds. `trials(number)` counts its
    trainings or runs. `stages` is empty where no test can be made, and `unaudited` says why.
    """

    theory: Callable[[], Theory] = Theory
    stages: tuple[Stage, ...] = ()
    draw: Callable[[int], Block] = lambda number: {}
    trials: Callable[[int], int] = lambda number: 0
    expects_gaussian: bool = False
    stored: bool = True
    """Whether blocks cost enough to be kept for `--resume`."""
    unaudited: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a claims file may reach: its folder, the one that score files must lie in, and whether code is trusted."""

    folder: Path
    root: Path
    trust_code: bool = False
    device: str = "cpu"


def data_key(placed: PlacedClaim, place: Place) -> str:
    """Return a digest of the data, and of the user's code, that the evidence about a claim depends on."""
    claim = placed.claim
    if isinstance(claim, ScoresClaim):
        return files_digest(score_paths(claim, place))
    if isinstance(claim, MechanismClaim):
        _require_trust(claim, place)
        with _importable(place.folder):
            return code_of(claim.mechanism)
    if isinstance(claim, MethodClaim) and claim.records is not None:
        return "simulated"
    return dataset_digest(claim.dataset, None if claim.data_dir is None else place.folder / claim.data_dir)


def score_paths(claim: ScoresClaim, place: Place) -> tuple[Path, Path]:
    """Return the two score files; `InputError` for one that is not below the root or is no file."""
    root = place.root.resolve()
    found = []
    for key, given in (("in", claim.scores.in_), ("out", claim.scores.out)):
        path = (place.folder / given).resolve()
        if not path.is_relative_to(root):
            raise InputError(f"scores.{key} is {given!r}, must lie below {place.root} (or below --root DIR)")
        if not path.is_file():
            raise InputError(f"scores.{key} is {given!r}, which is no file below {place.folder}")
        found.append(path)
    return found[0], found[1]


def source_of(placed: PlacedClaim, place: Place, seed: int) -> Source:
    """Return the source of a claim, everything about it validated; `InputError` in one line where it cannot be run."""
    claim = placed.claim
    if isinstance(claim, MethodClaim):
        return _method(claim, place, seed)
    if isinstance(claim, AttackClaim):
        return _attack(claim, place, seed)
    if isinstance(claim, ScoresClaim):
        return _scores(claim, place)
    return _mechanism(claim, place, seed)


def _scores(claim: ScoresClaim, place: Place) -> Source:
    paths = score_paths(claim, place)

    def draw(number: int) -> Block:
        inside, outside = (load_scores(path) for path in paths)
        return {"in": inside, "out": outside, "gaussian": claim.exactly_gaussian}

    return Source(
        stages=ALL_AT_ONCE,
        draw=draw,
        expects_gaussian=claim.exactly_gaussian,
        stored=False,
        facts={"scores": {"in": claim.scores.in_, "out": claim.scores.out}},
    )


def _trained(claim: MethodClaim | AttackClaim, place: Place, options: dict[str, Any]) -> Any:
    """Return (method, configuration, data set) of a claim; None for the data where the claim names records instead.

    Raises `InputError` naming the key at fault.
    """
    from dpzv_audit.data import load
    from mechanisms import METHODS

    if claim.method not in METHODS:
        raise unknown_name("method", claim.method, METHODS)
    spec = METHODS[claim.method]
    if isinstance(claim, MethodClaim) and claim.records is not None:
        config = spec.configure(**options)
        if config.batch_size > claim.records:
            raise InputError(f"config.batch_size is {config.batch_size}, must be at most records = {claim.records}")
        return spec, config, None
    data_dir = None if claim.data_dir is None else place.folder / claim.data_dir
    data = load(claim.dataset, clients=claim.clients, data_dir=data_dir)
    usual = defaults_for(claim.dataset, downlink=spec.downlink, fields=spec.config.model_fields, own=spec.defaults)
    config = spec.configure(**{**usual, **options})
    if config.batch_size > len(data.train):
        raise InputError(f"config.batch_size is {config.batch_size}, must be at most the {len(data.train)} records")
    return spec, config, data


def _method(claim: MethodClaim, place: Place, seed: int) -> Source:
    from dpzv_audit.claims.theory import theory_of
    from mechanisms import METHODS, DPZVConfig

    options = dict(claim.config)
    fields = METHODS[claim.method].config.model_fields if claim.method in METHODS else {}
    # The noise follows from the claim where the configuration does not say otherwise.
    noise_given = options.get("dp_sigma") is not None or ("dp" in fields and options.get("dp", "none") == "none")
    for key in ("epsilon", "delta"):
        if key in fields and not noise_given:
            options.setdefault(key, getattr(claim, key))
    spec, config, data = _trained(claim, place, options)
    records = claim.records or len(data.train)
    clients = data.clients if data is not None else claim.clients or 1
    theory = partial(theory_of, claim, config, records=records, clients=clients, seed=seed)
    facts: dict[str, Any] = {"config": config.model_dump(mode="json"), "records": records, "clients": clients}
    if data is not None:
        facts["data"] = {"digests": data.digests, "partition": data.partition}
    noisy = isinstance(config, DPZVConfig) and (config.sigma is None or config.sigma > 0)
    if not isinstance(config, DPZVConfig) or not noisy or config.calibration == "none":
        return Source(theory=theory, facts=facts, unaudited=f"no label game is played on the channel of {spec.name}")
    why = unaudited(claim)
    if why:
        return Source(theory=theory, facts=facts, unaudited=why)
    from dpzv_audit.claims.games import play_block, transcript_of

    transcript = transcript_of(claim, config, records=records, clients=clients, seed=seed)
    stages = METHOD_STAGES[: 1 if data is None else None] if transcript else METHOD_STAGES[1:]
    if transcript is None and data is None:
        return Source(theory=theory, facts=facts, unaudited="the transcript of this configuration is not simulated")

    def draw(number: int) -> Block:
        if number in SIMULATED:
            assert transcript is not None
            return transcript.block(number, seed=seed, runs=SIMULATED_RUNS)
        assert data is not None
        return play_block(claim, config, data, number, seed=seed, runs=RUNS_A_BLOCK, device=place.device)

    return Source(
        theory=theory,
        stages=stages,
        draw=draw,
        trials=lambda number: 0 if number in SIMULATED else 2 * RUNS_A_BLOCK,
        expects_gaussian=True,
        facts=facts,
    )


def unaudited(claim: MethodClaim) -> str:
    """Return why no game tests a claim, "" where one does.

    A label is part of a record, and whoever may deviate may also follow the protocol: lower bounds of the label game
    hold for `replace-record` and for the malicious client too.
    """
    if claim.adversary not in ("client", "colluding-clients", "malicious-client"):
        return UNAUDITED_VIEW.format(adversary=claim.adversary)
    if claim.neighbours not in ("replace-label", "replace-record"):
        return UNAUDITED_RELATION.format(relation=claim.neighbours)
    return ""


def _attack(claim: AttackClaim, place: Place, seed: int) -> Source:
    from attacks import ATTACKS
    from attacks.mount import AttackSetting

    if claim.attack not in ATTACKS:
        raise unknown_name("attack", claim.attack, ATTACKS)
    spec = ATTACKS[claim.attack]
    try:
        options = spec.check(claim.adversary, dict(claim.config))
    except InputError as error:
        raise InputError(str(error).removeprefix("--")) from None
    method, config, data = _trained(claim, place, options)

    def draw(number: int) -> Block:
        setting = AttackSetting(
            method=method,
            config=config,
            dataset=data,
            adversary=claim.adversary,
            queries=claim.queries,
            trials=TRIALS_A_BLOCK,
            seed=seed + number,
            device=place.device,
        )
        outcome = spec.mount(setting)
        return {
            "rate": outcome.success.value,
            "baselines": outcome.baselines,
            "controls": {name: control.value for name, control in outcome.controls.items()},
        }

    return Source(
        stages=ATTACK_STAGES,
        draw=draw,
        trials=lambda number: TRIALS_A_BLOCK,
        facts={
            "config": config.model_dump(mode="json"),
            "data": {"digests": data.digests, "partition": data.partition},
            "set_up": spec.requires_because,
        },
    )


def _require_trust(claim: MechanismClaim, place: Place) -> None:
    if not place.trust_code:
        raise InputError(
            f"mechanism is {claim.mechanism!r}, code that verify would import and run: give --trust-code to allow it"
        )


class _importable:
    """Puts a folder at the end of the import path while a block runs: the user's package lies beside the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder.resolve())

    def __enter__(self) -> None:
        sys.path.append(self._folder)
        importlib.invalidate_caches()

    def __exit__(self, *_: object) -> None:
        sys.path.remove(self._folder)


def load_factory(path: str) -> Callable[..., Any]:
    """Import `package.module:factory` and return the factory; `InputError` where there is no such thing."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise InputError(f"mechanism is {path!r}, which cannot be imported: {error}") from error
    except Exception as error:
        raise AuditError(f"mechanism {path!r} failed while it was imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise InputError(f"mechanism is {path!r}, but {module} has no callable {name}")
    return found  # type: ignore[no-any-return]


def _mechanism(claim: MechanismClaim, place: Place, seed: int) -> Source:
    _require_trust(claim, place)
    with _importable(place.folder):
        factory = load_factory(claim.mechanism)
        mechanism = _called(claim.mechanism, factory)
    return mechanism_source(mechanism, claim.mechanism, seed, exactly_gaussian=claim.exactly_gaussian)


def mechanism_source(mechanism: Any, label: str, seed: int, *, exactly_gaussian: bool = False) -> Source:
    """Return the source of a mechanism: an object with `run(world, rng)` or `run_batch(world, rng, n)`, or a function.

    `world` is 1 with the canary and 0 without it, `rng` a `numpy.random.Generator` of the run's own. A run answers with
    a score, or with a view that the object's `score(view)` turns into one (see `dpzv_audit.auditing.mechanism`).
    """
    run = getattr(mechanism, "run", mechanism)
    batch = getattr(mechanism, "run_batch", None)
    score = getattr(mechanism, "score", None)
    if not callable(run) and not callable(batch):
        raise InputError(f"mechanism {label!r} gives a {type(mechanism).__name__}, must be run(world, rng) -> score")

    def draw(number: int) -> Block:
        sides: dict[int, NDArray[np.float64]] = {}
        for world in (0, 1):
            sequence = np.random.SeedSequence([seed, number, world])
            if callable(batch):
                answers = list(_called(label, batch, world, np.random.default_rng(sequence), RUNS_A_BLOCK))
            else:
                streams = map(np.random.default_rng, sequence.spawn(RUNS_A_BLOCK))
                answers = [_called(label, run, world, rng) for rng in streams]
            if callable(score):
                answers = [_called(label, score, answer) for answer in answers]
            if len(answers) != RUNS_A_BLOCK:
                raise AuditError(f"mechanism {label!r}: run_batch gave {len(answers)} answers, asked {RUNS_A_BLOCK}")
            sides[world] = np.asarray([_score(label, world, answer) for answer in answers])
        return {"in": sides[1].tolist(), "out": sides[0].tolist(), "gaussian": exactly_gaussian}

    return Source(
        stages=TWO_STAGES,
        draw=draw,
        trials=lambda number: 2 * RUNS_A_BLOCK,
        expects_gaussian=exactly_gaussian,
        facts={"mechanism": label},
    )


def _score(label: str, world: int, value: Any) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = float("nan")
    if not np.isfinite(score):
        raise AuditError(f"mechanism {label!r}: run({world}, rng) gave {value!r:.60}, must be a finite number")
    return score


def _called(label: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call the user's code; whatever it raises becomes one line."""
    try:
        return function(*arguments)
    except AuditError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise AuditError(f"mechanism {label!r} failed: {type(error).__name__}: {text}") from error
