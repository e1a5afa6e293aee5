"""Prints the label attack's success by number of queries and batch size, beside reference figures.

Logits are synthetic: mean 0, standard deviation 0.3, 10 classes, Gaussian directions, forward differences
with mu = 1e-3. Run `python benchmarks/query_sweep.py`; it exits with 1 when a figure of the ridge estimator
misses its reference by more than 0.03.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass

import torch

from attacks.core.metrics import t_interval
from attacks.gradient.estimates import (
    correlation,
    forward_difference_error,
    label_prior_std,
    minimum_norm,
    ridge,
)
from attacks.label.direct import argmin
from dpzv_audit.base.seeds import Purpose, stream

CLASSES = 10
LOGIT_STD = 0.3
STEP = 1e-3
TOLERANCE = 0.03
# Enough that 0.03 is six standard errors of every figure or more, so that a miss is not luck.
BATCHES = {1: 400, 10: 200, 100: 100, 320: 160, 640: 120}
MOST_NUMBERS = 8_000_000  # directions held at once, 64 MB in float64


@dataclass(frozen=True)
class Cell:
    """One figure of the table: who sees which scalars, how many, and the reference range [low, high]."""

    row: str
    queries: int
    low: float
    high: float
    records: int = 64
    per_record: bool = False
    knows_directions: bool = True
    noise_std: float = 0.0


@dataclass(frozen=True)
class Queries:
    """What an attacker works on, directions (n, q, B, c) and scalars; labels (n, B) for the score alone."""

    directions: torch.Tensor
    scalars: torch.Tensor
    labels: torch.Tensor


def _row(row, figures, **options):
    ranges = {q: value if isinstance(value, tuple) else (value, value) for q, value in figures.items()}
    return [Cell(row, q, low, high, **options) for q, (low, high) in ranges.items()]  # type: ignore[arg-type]


CELLS = [
    *_row("one a batch", {1: 0.117, 10: 0.173, 100: (0.44, 0.48), 320: 0.94, 640: 1.0}),
    *_row("one a record", {1: 0.2, 10: 1.0, 100: 1.0}, per_record=True),
    *_row("eavesdropper", dict.fromkeys((1, 10, 100, 320, 640), 0.1), knows_directions=False),
    *_row("noise 0.10", {100: 0.35, 320: 0.65, 640: 0.91}, noise_std=0.1),
    *_row("noise 0.26", {100: 0.21, 320: 0.35, 640: 0.48}, noise_std=0.26),
    *(
        Cell(f"batch of {size}", 1, rate, rate, records=size)
        for size, rate in {1: 0.194, 4: 0.162, 16: 0.136, 64: 0.117, 256: 0.105}.items()
    ),
]


def simulate(cell, *, batches, seed, part=0):
    """Return `batches` batches of synthetic queries: forward differences of real cross entropy in float64."""
    generator = stream(seed, Purpose.ATTACK, cell.queries, cell.records, part)
    shape = (batches, cell.records, CLASSES)
    logits = LOGIT_STD * torch.from_numpy(generator.standard_normal(shape))
    labels = torch.from_numpy(generator.integers(CLASSES, size=shape[:2]))
    directions = torch.from_numpy(generator.standard_normal((batches, cell.queries, *shape[1:])))
    difference = _losses(logits[:, None] + STEP * directions, labels) - _losses(logits[:, None], labels)
    scalars = difference / STEP if cell.per_record else difference.mean(-1) / STEP
    scalars = scalars + cell.noise_std * torch.from_numpy(generator.standard_normal(tuple(scalars.shape)))
    if not cell.knows_directions:
        directions = torch.from_numpy(generator.standard_normal(tuple(directions.shape)))
    return Queries(directions, scalars, labels)


def _losses(logits, labels):
    """Return cross entropy (n, q, B) of logits (n, q, B, c) for labels (n, B)."""
    wanted = labels[:, None].expand(logits.shape[:3])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
    return loss.reshape(wanted.shape)


def noise_of(cell):
    """Return the size of a scalar's error: added noise and the forward difference's own, root mean square."""
    records = 1 if cell.per_record else cell.records
    return math.hypot(cell.noise_std, forward_difference_error(STEP, CLASSES, records=records))


def estimates(cell, queries):
    """Return gradients (n, B, c) by the name of the estimator."""
    u, s = queries.directions, queries.scalars
    return {
        "correlation": correlation(u, s),
        "minimum norm": minimum_norm(u, s),
        "ridge": ridge(u, s, noise_std=noise_of(cell), prior_std=label_prior_std(CLASSES)),
    }


def over_batches(correct, confidence=0.95):
    """Return the share of `correct` (batches, B) with Student's interval over batches, whose guesses share scalars."""
    return t_interval(correct.double().mean(1).numpy(), correct.numel(), confidence)


def measure(cell, *, batches, seed):
    """Return success by estimator with its 95% interval over batches, whose guesses share scalars."""
    at_once = max(1, min(batches, MOST_NUMBERS // (cell.queries * cell.records * CLASSES)))
    correct = {}
    for part, done in enumerate(range(0, batches, at_once)):
        queries = simulate(cell, batches=min(at_once, batches - done), seed=seed, part=part)
        for name, gradients in estimates(cell, queries).items():
            correct.setdefault(name, []).append(argmin(gradients) == queries.labels)
    return {name: over_batches(torch.cat(parts)) for name, parts in correct.items()}


def agrees(cell, rate):
    """Return whether `rate` is within the tolerance of the cell's reference."""
    return cell.low - TOLERANCE <= rate <= cell.high + TOLERANCE


def main():
    """Print the table; return 1 if the ridge estimator misses a reference figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="every random number follows from it")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of batches")
    arguments = parser.parse_args()
    header = f"{'scalars':14} {'q':>4} {'B':>4} {'batches':>7}  {'reference':11}"
    print(f"{header} correlation  min. norm  ridge  [95%]")
    missed = 0
    start = time.perf_counter()
    for cell in CELLS:
        many = 16 if cell.records < 64 else 1
        batches = max(2, round(arguments.scale * BATCHES[cell.queries] * many))
        rates = measure(cell, batches=batches, seed=arguments.seed)
        best = rates["ridge"]
        reference = f"{cell.low:g}" if cell.low == cell.high else f"{cell.low:g} to {cell.high:g}"
        mark = "" if agrees(cell, best.value) else "  MISSED"
        missed += bool(mark)
        print(
            f"{cell.row:14} {cell.queries:4} {cell.records:4} {batches:7}  {reference:11} "
            f"{rates['correlation'].value:11.3f} {rates['minimum norm'].value:10.3f} {best.value:6.3f}  "
            f"[{best.low:.3f}, {best.high:.3f}]{mark}",
            flush=True,
        )
    taken = time.perf_counter() - start
    print(f"{len(CELLS) - missed} of {len(CELLS)} within {TOLERANCE} of the reference; {taken:.0f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
