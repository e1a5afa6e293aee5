"""Blocks of trials as plain values, which caches and worker processes pass on: scores of both worlds by game.

A block of pairs holds "in" and "out", scores in the order of the pairs. Where the scores are Gaussian by construction,
"given" holds "probability" and, where that is so given a number of participations alone, "count", with the counts of
the runs under "counts". For an (epsilon, delta) mechanism the view given what has probability p in either world is
(epsilon, delta / p), so that a test of those runs at delta / p is one of the whole view at delta.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.games.fitted import FittedScore, fitted_facts
from dpzv_audit.statistics.assumptions import dependence, orders

Block = Mapping[str, Any]
Floats = NDArray[np.float64]

FIT_PAIRS = 400
"""Runs in each world that a score is fitted to, where a mechanism answers with views; they are not tested."""


@dataclass(frozen=True)
class Sides:
    """Scores of both worlds, (n,) and (m,), in the order of the pairs, which something of this `probability` gives.

    `vouched`: that they are Gaussian is the word of a user, not of a game of the tool's own.
    """

    inside: Floats
    outside: Floats
    probability: float = 1.0
    vouched: bool = False


def block_of(
    inside: Floats,
    outside: Floats,
    *,
    probability: float | None = None,
    vouched: bool = False,
    counts: tuple[NDArray[Any], NDArray[Any], int] | None = None,
    fitted: FittedScore | None = None,
) -> Block:
    """Return a block of scores; `probability` where they are Gaussian, given a count of `counts` (in, out, count).

    `fitted` is the score that was fitted, where one was: the evidence names it.
    `vouched` where they are so on the word of a user.
    """
    block: dict[str, Any] = {"in": inside.tolist(), "out": outside.tolist()}
    if probability is not None:
        block["given"] = {"probability": probability, **({"vouched": True} if vouched else {})}
        if counts is not None and probability < 1.0:
            block["given"]["count"] = counts[2]
            block["counts"] = {"in": counts[0].tolist(), "out": counts[1].tolist()}
    if fitted is not None:
        block["score"] = fitted_facts(fitted)
    return block


def block_from(arrays: Mapping[str, NDArray[Any]], fitted: Callable[[], FittedScore], **given: Any) -> Block:
    """Return a block of what a mechanism answered: its scores, or views (n, d) scored by what `fitted` returns."""
    model = fitted() if "in_features" in arrays else None
    inside, outside = (
        arrays[f"{side}_scores"] if model is None else model.score(arrays[f"{side}_features"]) for side in ("in", "out")
    )
    return block_of(inside, outside, fitted=model, **given)


def score_facts(blocks: Sequence[Block]) -> dict[str, str]:
    """Return how the scores of all blocks were fitted; nothing where they were not."""
    return dict(blocks[0].get("score") or {}) if blocks else {}


def scores_digest(pools: Mapping[str, Sequence[Block]]) -> str:
    """SHA-256 of all that was drawn, pool by pool: scores in order and what they are given, or success of trainings."""
    digest = hashlib.sha256()
    for pool in sorted(pools):
        for block in pools[pool]:
            counts = block.get("counts") or {}
            digest.update(json.dumps([pool, block.get("given"), sorted(counts)], sort_keys=True).encode())
            for numbers in (block.get("in"), block.get("out"), block.get("rate"), *map(counts.get, sorted(counts))):
                if numbers is not None:
                    array = np.ascontiguousarray(numbers, dtype="<f8")
                    digest.update(str(array.shape).encode())
                    digest.update(array.data)
    return digest.hexdigest()


def permuted_blocks(blocks: Sequence[Block], seed: int) -> list[Block]:
    """Return blocks whose sides are each in a random order of their own, whatever order the scores came in.

    Block k is read in the same order however many blocks follow.
    """
    found: list[Block] = []
    for number, block in enumerate(blocks):
        order = dict(zip(("in", "out"), orders(len(block["in"]), len(block["out"]), seed, number), strict=True))

        def side(name: str, values: Any, order: Mapping[str, Any] = order) -> NDArray[Any]:
            moved: NDArray[Any] = np.asarray(values)[order[name]]
            return moved

        sides: dict[str, Any] = {name: side(name, block[name]) for name in order}
        if "counts" in block:
            sides["counts"] = {name: side(name, block["counts"][name]) for name in order}
        found.append({**block, **sides})
    return found


def all_sides(blocks: Sequence[Block]) -> Sides:
    """Return the scores of both worlds of all blocks."""
    inside, outside = (
        np.concatenate([np.asarray(block[side], dtype=np.float64) for block in blocks]) for side in ("in", "out")
    )
    return Sides(inside, outside)


def gaussian_sides(blocks: Sequence[Block]) -> Sides | None:
    """Return those scores that are Gaussian by construction; None where a block has none or the blocks disagree."""
    given = [dict(block.get("given") or {}) for block in blocks]
    if not given or not given[0] or any(one != given[0] for one in given):
        return None
    sides = all_sides(blocks)
    probability, count = float(given[0]["probability"]), given[0].get("count")
    if count is None:
        return Sides(sides.inside, sides.outside, probability, bool(given[0].get("vouched")))
    kept = [np.concatenate([np.asarray(block["counts"][side]) == count for block in blocks]) for side in ("in", "out")]
    if not (kept[0].any() and kept[1].any()):
        return None
    return Sides(sides.inside[kept[0]], sides.outside[kept[1]], probability)


def warnings_of(blocks: Sequence[Block]) -> tuple[str, ...]:
    """Return what the scores of `blocks`, in the order in which they came, say against the tests of them."""
    sides = all_sides(blocks)
    found = dependence(sides.inside, sides.outside)
    return (found,) if found else ()


def tradeoff_of(blocks: Sequence[Block], confidence: float = 0.95) -> dict[str, object]:
    """Return the empirical trade-off curve of the scores with its 95% band, for the picture alone."""
    from dpzv_audit.statistics.tradeoff import empirical_tradeoff

    sides = all_sides(blocks)
    curve = empirical_tradeoff(
        sides.inside,
        sides.outside,
        confidence=confidence,
        points=51,
        in_is_high=bool(np.median(sides.inside) >= np.median(sides.outside)),
    )
    return {
        "alpha": list(curve.alpha),
        "empirical": list(curve.beta),
        "empirical_low": list(curve.beta_low),
        "empirical_high": list(curve.beta_high),
        "confidence": confidence,
    }


def attack_facts(blocks: Sequence[Block]) -> dict[str, object]:
    """Return the mean success of an attack, of its baselines and of its controls over all blocks."""
    return {
        "success": float(np.mean([block["rate"] for block in blocks])),
        "baselines": _means([block["baselines"] for block in blocks]),
        "controls": _means([block["controls"] for block in blocks]),
    }


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}
