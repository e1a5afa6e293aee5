"""Puts every claim of a file to the test: theory first, a short look, a long one where needed, and Holm over the file.

Each claim spends one alpha however many looks it takes: the p-value of a claim is the least p / weight over its looks,
whose planned weights sum to 1. Time and trials are spent stage by stage over the whole file, so that a budget that runs
out has seen something of every claim.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.auditing.normality import LEAST_SCORES, normality_p_value
from dpzv_audit.auditing.significance import TestName, fixed_test
from dpzv_audit.claims.betting import success_p_value
from dpzv_audit.claims.cache import Cache, code_digest, evidence_key
from dpzv_audit.claims.evidence import Evidence, Look, Theory
from dpzv_audit.claims.load import ClaimsFile, PlacedClaim
from dpzv_audit.claims.model import AttackClaim
from dpzv_audit.claims.sources import CUT_WEIGHT, Block, Place, Source, Stage, data_key, source_of
from dpzv_audit.claims.verdicts import combined_p_value, stopping_level
from dpzv_audit.errors import AuditError, InputError

GAUSSIAN = "the view is exactly Gaussian"
NORMALITY_LEVEL = 1e-3
"""Below this p-value the word of a configuration, or of a user, that scores are Gaussian is not taken."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What verifying a file may cost: minutes for the whole file, trainings (or runs) a claim; None for no limit."""

    max_minutes: float | None = None
    max_trials: int | None = None


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """What is told of work in progress: (claim's index, what it is doing now)."""

    status: Callable[[int, str], None] = lambda index, text: None


@dataclass
class ClaimRun:
    """One claim on its way through the gate: its evidence grows look by look."""

    placed: PlacedClaim
    key: str
    seed: int
    source: Source | None = None
    theory: Theory | None = None
    looks: tuple[Look, ...] = ()
    rates: tuple[float, ...] = ()
    blocks: tuple[Block, ...] = ()
    trials: int = 0
    missing: str = ""
    cached: Evidence | None = None
    seconds: float = 0.0

    @property
    def p_value(self) -> float:
        """Of the looks taken so far."""
        if isinstance(self.placed.claim, AttackClaim):
            return success_p_value(self.rates, self.placed.claim.success_at_most)
        return combined_p_value((look.p_value, look.weight) for look in self.looks if look.weight > 0)

    def evidence(self) -> Evidence:
        """What was found out so far."""
        if self.cached is not None:
            return self.cached
        source = self.source or Source()
        return Evidence(
            p_value=self.p_value,
            theory=self.theory or Theory(),
            looks=self.looks,
            rates=self.rates,
            attack=attack_facts(self.blocks) if self.rates else {},
            tradeoff=tradeoff_of(self.blocks) if self.looks else None,
            facts={**source.facts, "seed": self.seed},
            trials=self.trials,
            missing=self.missing,
            unaudited=source.unaudited,
        )


@dataclass
class Gate:
    """Gathers the evidence about all claims of a file within a budget; an interrupt leaves what there is so far."""

    file: ClaimsFile
    place: Place
    cache: Cache
    seed: int = 0
    resume: bool = False
    effort: Effort = Effort()
    watcher: Watcher = Watcher()

    def prepare(self, sources: Sequence[Source] = ()) -> list[ClaimRun]:
        """Find what the cache knows, and validate every other claim before any runs; `InputError` names the line.

        `sources` replace the claims' own, one for each claim; there is then nothing to look up.
        """
        self._stop = stopping_level(self.file.alpha, len(self.file.claims))
        if sources:
            pairs = zip(self.file.claims, sources, strict=True)
            return [ClaimRun(placed, "", claim_seed(placed, self.seed), source) for placed, source in pairs]
        runs = []
        for placed in self.file.claims:
            with self._named(placed):
                key = evidence_key(
                    {
                        "claim": placed.digest(),
                        "data": data_key(placed, self.place),
                        "code": code_digest(),
                        "alpha": self.file.alpha,
                        "stop": self._stop,
                        "seed": self.seed,
                        "max_trials": self.effort.max_trials,
                        "device": self.place.device,
                    }
                )
            run = ClaimRun(placed, key, claim_seed(placed, self.seed))
            run.cached = self.cache.evidence(key)
            runs.append(run)
        for run in runs:
            if run.cached is None:
                with self._named(run.placed):
                    run.source = source_of(run.placed, self.place, run.seed)
        return runs

    def gather(self, runs: Sequence[ClaimRun]) -> None:
        """Account for and test every claim, stage by stage; raises `KeyboardInterrupt` where it is interrupted."""
        started = time.monotonic()
        limit = self.effort.max_minutes
        deadline = None if limit is None else started + 60.0 * limit
        todo = [(index, run) for index, run in enumerate(runs) if run.cached is None]
        for index, run in enumerate(runs):
            self.watcher.status(index, "waiting" if run.cached is None else "from the cache")
        for _, run in todo:
            run.missing = "interrupted before anything was done"
        for index, run in todo:
            with self._timed(run), self._named(run.placed):
                self.watcher.status(index, "accounting")
                assert run.source is not None
                run.theory = run.source.theory()
                run.missing = "interrupted before any test" if run.source.stages else ""
        most = max((len(run.source.stages) for _, run in todo if run.source), default=0)
        for number in range(most):
            for index, run in todo:
                assert run.source is not None
                if number < len(run.source.stages) and not self._decided(run):
                    with self._timed(run), self._named(run.placed):
                        self._stage(index, run, run.source.stages[number], deadline)
                    if not run.missing and number + 1 < len(run.source.stages) and not self._decided(run):
                        run.missing = f"interrupted before the {run.source.stages[number + 1].name} look"
        for index, run in todo:
            self.watcher.status(index, run.missing or "done")
            if not run.missing:
                self.cache.keep(run.key, run.evidence())

    def _decided(self, run: ClaimRun) -> bool:
        return run.p_value <= self._stop or run.missing.startswith(("the budget", "--max"))

    def _stage(self, index: int, run: ClaimRun, stage: Stage, deadline: float | None) -> None:
        """Draw the blocks of one stage and take its look; a stage cut off takes the small look kept back for that."""
        source = run.source
        assert source is not None
        run.missing = f"interrupted in the {stage.name} look"
        sequential = isinstance(run.placed.claim, AttackClaim)
        blocks: list[Block] = []
        cut = ""
        for number in stage.blocks:
            if deadline is not None and time.monotonic() >= deadline and source.stored:
                cut = f"the budget of {self.effort.max_minutes:g} minutes ended in the {stage.name} look"
                break
            most = self.effort.max_trials
            if most is not None and source.trials(number) and run.trials + source.trials(number) > most:
                cut = f"--max-trials {most} ended the {stage.name} look"
                break
            done = f"{len(blocks)}/{len(stage.blocks)}"
            self.watcher.status(index, f"{stage.name} look {done}, p = {run.p_value:.1g}")
            block = self._block(run, source, number)
            blocks.append(block)
            run.trials += source.trials(number)
            if sequential:
                run.rates = (*run.rates, float(block["rate"]))
                run.blocks = (*run.blocks, block)
                if run.p_value <= self._stop:
                    break
        if not sequential and blocks:
            run.blocks = tuple(blocks)
            run.looks = (*run.looks, *self._looks(run, stage, blocks, weight=CUT_WEIGHT if cut else stage.weight))
        run.missing = cut

    def _block(self, run: ClaimRun, source: Source, number: int) -> Block:
        stored = self.cache.block(run.key, number) if source.stored and self.resume else None
        if stored is not None:
            return stored
        block = source.draw(number)
        if source.stored:
            self.cache.keep_block(run.key, number, block)
        return block

    def _looks(self, run: ClaimRun, stage: Stage, blocks: Sequence[Block], *, weight: float) -> list[Look]:
        claim = run.placed.claim
        assert not isinstance(claim, AttackClaim)
        source = run.source
        assert source is not None
        inside, outside = sides(blocks)
        # Given what has probability p whatever the world, an (epsilon, delta) view is (epsilon, delta / p).
        delta = claim.delta / min(float(block.get("probability", 1.0)) for block in blocks)
        if delta >= 1.0:
            return []
        names: list[tuple[TestName, float]] = [("clopper-pearson", weight)]
        if source.expects_gaussian:
            names = [("clopper-pearson", 0.5 * weight), ("gaussian", 0.5 * weight)]
        looks = []
        for name, share in names:
            test = fixed_test(
                inside,
                outside,
                name=name,
                delta=delta,
                design_error=0.1 * self.file.alpha * share,
                seed=run.seed,
            )
            assumes = gaussian_assumption(blocks, inside, outside) if name == "gaussian" else ""
            looks.append(
                Look(
                    stage=stage.name,
                    weight=0.0 if assumes else share,
                    test=test,
                    p_value=test.p_value(claim.epsilon),
                    assumes=assumes,
                )
            )
        return looks

    @contextmanager
    def _timed(self, run: ClaimRun) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            run.seconds += time.monotonic() - started

    @contextmanager
    def _named(self, placed: PlacedClaim) -> Iterator[None]:
        """Let an error of the block open with file, line and name of the claim."""
        try:
            yield
        except AuditError as error:
            key = str(error).split(" ", 1)[0].split(".")[0]
            where = f"{self.file.path}:{placed.line_of(key)}: claim {placed.name!r}: "
            kind = InputError if isinstance(error, InputError) else AuditError
            raise kind(f"{where}{error}") from error


def claim_seed(placed: PlacedClaim, seed: int) -> int:
    """Return the seed of a claim's streams: it follows from what the claim says, so no change there, none in it."""
    return int.from_bytes(hashlib.sha256(f"{placed.digest()} {seed}".encode()).digest()[:4], "big") * 1000


def sides(blocks: Sequence[Block]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of both worlds, in and out, of all blocks."""
    inside, outside = (
        np.concatenate([np.asarray(block[side], dtype=np.float64) for block in blocks]) for side in ("in", "out")
    )
    return inside, outside


def gaussian_assumption(blocks: Sequence[Block], inside: NDArray[np.float64], outside: NDArray[np.float64]) -> str:
    """Return what an epsilon from mu rests on; "" where scores are Gaussian by construction and no test objects."""
    counts = {tuple(block.get("participations", ())) for block in blocks}
    if not all(block["gaussian"] for block in blocks) or len(counts) > 1:
        return GAUSSIAN
    if min(inside.size, outside.size) < LEAST_SCORES:
        return f"{GAUSSIAN} (too few scores to test it: {LEAST_SCORES} a side are needed)"
    p = normality_p_value(inside, outside)
    return "" if p >= NORMALITY_LEVEL else f"{GAUSSIAN} (the scores contradict it: p = {p:.1e})"


def tradeoff_of(blocks: Sequence[Block], confidence: float = 0.95) -> dict[str, Any]:
    """Return the empirical trade-off curve of the last look's scores with its 95% band, for the picture alone."""
    from dpzv_audit.auditing.tradeoff import empirical_tradeoff

    inside, outside = sides(blocks)
    curve = empirical_tradeoff(
        inside, outside, confidence=confidence, points=51, in_is_high=bool(np.median(inside) >= np.median(outside))
    )
    return {
        "alpha": list(curve.alpha),
        "empirical": list(curve.beta),
        "empirical_low": list(curve.beta_low),
        "empirical_high": list(curve.beta_high),
        "confidence": confidence,
    }


def attack_facts(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the mean success of an attack, its baselines and its controls over all blocks."""
    controls: dict[str, list[float]] = {}
    for block in blocks:
        for name, value in block["controls"].items():
            controls.setdefault(name, []).append(value)
    baselines: Mapping[str, float] = blocks[0]["baselines"]
    return {
        "success": float(np.mean([block["rate"] for block in blocks])),
        "baselines": dict(baselines),
        "controls": {name: float(np.mean(values)) for name, values in controls.items()},
    }


def place_of(path: Path, *, root: Path | None, trust_code: bool, device: str) -> Place:
    """Return where the claims file at `path` may reach: score files lie below `root`, by default the file's folder."""
    folder = path.parent
    return Place(folder=folder, root=root or folder, trust_code=trust_code, device=device)
