"""False alarms on ten systems without leak: how often `attack --attack all` and the game of `audit` find something.

    python benchmarks/alarms.py [--seeds 30] [--systems NAME ...] [--keep FILE] [--output PAGE]

Labels are drawn independently of features, and tell nothing that is sent but the seed of fresh noise: messages change
with labels, as the rehearsal asks, and say nothing about any of them. A run is one seed of one system, with data,
trainings and coins of its own: `attack --attack all` and the game of `audit`, both at confidence 0.999. It raises an
alarm where any of these is so:

    success   the interval of an attack lies above every baseline, as where its sentence says "above"
    epsilon   the scores of an attack certify an epsilon above 0
    control   all negative controls together have a p-value below 0.001
    game      the game certifies an epsilon above 0

Two runs of three attack 2 trainings; the third attacks 8, of which there are intervals over trainings too. With --keep
each run is a line of FILE when it is done, and is not run again.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom
from torch import nn

from attacks import ATTACKS
from attacks.core.setting import AttackSetting
from dpzv_audit.base.findings import FALSE_ALARM
from dpzv_audit.evidence.attacks import attacks_result
from dpzv_audit.evidence.auditing import system_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import dataset_of
from mechanisms import Training

RECORDS = 160
WIDTHS = (4, 3)
BATCH = 40
TRIALS = (2, 2, 8)
"""Trainings of each attack in runs of seeds in turn; 8 is what the command takes."""
OPTIONS = {"shadows": 16, "steps": 50, "pool": 128, "known_records": 60, "candidates": 40, "permutations": 8}
"""Options of attacks: what the command gives, smaller where records are few or a run would take long."""
KINDS = ("success", "epsilon", "control", "game")


def noise_for(task, seed):
    """Return a generator that follows from all labels and the seed."""
    digest = hashlib.sha256(np.ascontiguousarray(task.labels).tobytes()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], np.uint32)])


def batches(task, rng, passes=2):
    """Return the ids of each batch of some passes over the data."""
    return [ids for _ in range(passes) for ids in np.array_split(rng.permutation(task.records), task.records // BATCH)]


def both_ways(record, rng, number, ids, width=4):
    """Record a round of noise: rows up from client 1, and a gradient of each row down."""
    record.sent(number, 1, 0, "embeddings", rng.standard_normal((len(ids), width)), ids)
    record.sent(number, 0, 1, "gradient", rng.standard_normal((len(ids), width)), ids)


def linear(task, rng, outputs=4):
    """Return linear models of all clients, drawn at random."""
    models = {}
    for client, block in enumerate(task.features, start=1):
        models[client] = nn.Linear(block.shape[1], outputs)
        with torch.no_grad():
            models[client].weight.copy_(torch.tensor(rng.standard_normal((outputs, block.shape[1]))))
    return models


def guessing(task, rng):
    """Return a `predict` whose scores are a map of features drawn at random."""
    maps = [rng.standard_normal((block.shape[1], task.classes)) for block in task.features]
    return lambda blocks: sum(np.asarray(block) @ map_ for block, map_ in zip(blocks, maps, strict=True))


def gradients(task, record, seed):
    """Noise both ways, and models that are drawn at random."""
    rng = noise_for(task, seed)
    for number, ids in enumerate(batches(task, rng)):
        both_ways(record, rng, number, ids)
    return {"predict": guessing(task, rng), "clients": linear(task, rng)}


def following(task, record, seed):
    """Features up, answers that follow from them nearly alike in each training, and one prediction for everyone."""
    rng = noise_for(task, seed)
    answers = task.features[0] @ np.random.default_rng(0).standard_normal((task.features[0].shape[1], 4))
    for number, ids in enumerate(batches(task, rng)):
        record.sent(number, 1, 0, "embeddings", task.features[0][ids], ids)
        record.sent(number, 0, 1, "gradient", answers[ids] + 1e-3 * rng.standard_normal((len(ids), 4)), ids)
    row = rng.standard_normal(task.classes)
    everyone = np.arange(task.records)
    record.sent(number + 1, 0, 1, "prediction", np.tile(row, (task.records, 1)), everyone)
    return {"predict": lambda blocks: np.tile(row, (len(blocks[0]), 1))}


def stopping(task, record, seed):
    """A training on labels drawn anew, which stops when lots say so."""
    rng = noise_for(task, seed)
    torch.manual_seed(int(rng.integers(2**31)))
    blocks = [torch.tensor(block) for block in task.features]
    target = torch.tensor(rng.integers(task.classes, size=task.records))
    bottoms = [nn.Linear(block.shape[1], 4) for block in blocks]
    top = nn.Linear(8, task.classes)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.05)
    for number, ids in enumerate(batches(task, rng, int(rng.integers(2, 5)))):
        rows = [record.cut(m, number, ids)(bottoms[m - 1](blocks[m - 1][ids])) for m in (1, 2)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(top(torch.cat(rows, 1)), target[ids]).backward()
        optimizer.step()
    return {"clients": dict(enumerate(bottoms, start=1))}


def missing(task, record, seed):
    """Noise both ways, in rounds of which the client misses a third."""
    rng = noise_for(task, seed)
    for number, ids in enumerate(batches(task, rng)):
        if rng.random() > 0.3:
            both_ways(record, rng, number, ids)


def poisson(task, record, seed):
    """Noise both ways, in Poisson batches."""
    rng = noise_for(task, seed)
    for number in range(8):
        ids = np.flatnonzero(rng.random(task.records) < BATCH / task.records)
        if len(ids):
            both_ways(record, rng, number, ids)


def trees(task, record, seed):
    """Six trees of two levels, which split on features drawn at random."""
    rng = noise_for(task, seed)
    table = np.hstack(task.features)
    for number in range(6):
        columns, edges = rng.integers(table.shape[1], size=2), rng.standard_normal(2)
        node = (table[:, columns] > edges) @ (1, 2)
        record.sent(number, 0, 1, "groups", node, np.arange(task.records))


def tails(task, record, seed):
    """Noise both ways with a number for each class, as of logits."""
    rng = noise_for(task, seed)
    for number, ids in enumerate(batches(task, rng)):
        both_ways(record, rng, number, ids, width=task.classes)
    return {"clients": linear(task, rng, task.classes)}


def numbers(task, record, seed):
    """Noise both ways, of one number a record."""
    rng = noise_for(task, seed)
    for number, ids in enumerate(batches(task, rng)):
        both_ways(record, rng, number, ids, width=1)


def masked(task, record, seed):
    """Masked uploads of noise, and one gradient of a linear model for each batch, which is noise."""
    rng = noise_for(task, seed)
    for number, ids in enumerate(batches(task, rng)):
        record.sent(number, 1, 0, "masked", rng.standard_normal((len(ids), 2)), ids)
        record.sent(number, 0, 1, "batch-gradient", rng.standard_normal((2, task.features[0].shape[1])), ids)
    return {"clients": linear(task, rng, 2)}


def scalars(task, record, seed):
    """Scalar feedback that is noise: one for two uploads of a batch, as of a zeroth-order method."""
    rng = noise_for(task, seed)
    for number, ids in enumerate(batches(task, rng, 6)):
        for _ in range(2):
            record.sent(number, 1, 0, "embeddings", rng.standard_normal((len(ids), task.classes)), ids)
        record.sent(number, 0, 1, "scalar", rng.standard_normal(1), ids)


@dataclass(frozen=True)
class Quiet:
    """A system without leak: its training, shares of its classes (None: a number), and whether it has a top model.

    Where clients send their features, or rows that follow from them, attacks on features find these and are no alarm.
    """

    train: Callable
    shares: tuple[float, ...] | None = (0.5, 0.5)
    top_model: bool = True
    sends_features: bool = False

    def data(self, seed):
        """Return data of a seed: features of two clients, and labels that have nothing to do with them."""
        rng = np.random.default_rng([seed, RECORDS])

        def part(count):
            blocks = [rng.standard_normal((count, width)).astype(np.float32) for width in WIDTHS]
            if self.shares is None:
                return blocks, rng.standard_normal(count)
            return blocks, rng.choice(len(self.shares), count, p=self.shares)

        features, labels = part(RECORDS)
        test_features, test_labels = part(RECORDS // 4)
        answer = {"features": features, "labels": labels, "test_features": test_features, "test_labels": test_labels}
        return dataset_of(answer if self.shares is None else {**answer, "classes": len(self.shares)}, "data")


SYSTEMS = {
    "noise as gradients": Quiet(gradients, (0.7, 0.3)),
    "answers that follow features": Quiet(following, sends_features=True),
    "early stopping by lot": Quiet(stopping, sends_features=True),
    "missed rounds": Quiet(missing),
    "Poisson batches": Quiet(poisson),
    "trees that split at random": Quiet(trees, (0.8, 0.2)),
    "six classes with a long tail": Quiet(tails, (0.4, 0.25, 0.15, 0.1, 0.06, 0.04), top_model=False),
    "a target that is a number": Quiet(numbers, None),
    "masked uploads": Quiet(masked, top_model=False),
    "scalars that are noise": Quiet(scalars, top_model=False),
}


def mounted(base, trials):
    """Yield every attack with its setting, as `attack --attack all` mounts it, for each adversary."""
    for spec in map(ATTACKS.__getitem__, ATTACKS):
        options = {key: value for key, value in OPTIONS.items() if key in spec.setup.options}
        # Attacks on features test each training by itself, and take longest.
        count = TRIALS[0] if spec.goal.reveals == "features" else trials
        for adversary in spec.adversaries:
            yield spec, replace(base, adversary=adversary, trials=count, options=options)


def run_of(name, seed):
    """Return one run of a system as a row: its alarms by kind, and what each attack found."""
    started = time.process_time()
    quiet = SYSTEMS[name]
    trials = TRIALS[seed % len(TRIALS)]
    data = quiet.data(seed)
    method, config = prepared(System(name, quiet.train, top_model=quiet.top_model), data, seed)
    training = Training(method=method, config=config, dataset=data, seed=seed)
    base = AttackSetting.of(training, confidence=1.0 - FALSE_ALARM, with_positive=False)
    result, _ = attacks_result(mounted(base, trials), base)
    cells = []
    for cell in result.attacks:
        known = quiet.sends_features and ATTACKS[cell.attack].goal.reveals == "features"
        if cell.state == "measured":
            found = {"success": bool(cell.clear) and not known, "epsilon": bool(cell.certified) and not known}
            cells.append({"attack": f"{cell.attack}, {cell.adversary}", **found, "control": cell.control_p})
    controls = result.negative_controls
    game = system_outcome(training, "client", AuditPlan(confidence=1.0 - FALSE_ALARM), trainings=trials)
    alarms = {
        "success": any(cell["success"] for cell in cells),
        "epsilon": any(cell["epsilon"] for cell in cells),
        "control": controls is not None and controls.together_p < FALSE_ALARM,
        "game": bool(game.result.privacy.empirical_lower > 0.0),
    }
    seconds = {"training": method.capabilities.seconds, "run": time.process_time() - started}
    return {"system": name, "seed": seed, "alarms": alarms, "cells": cells, "seconds": seconds}


def kept_in(path):
    """Return the rows of a file by system and seed; none of one that is not there."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {(row["system"], row["seed"]): row for row in map(json.loads, lines)}


def table(head, rows):
    """Return a table in Markdown, whose first column is words."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, rule, *rows))


def report(rows):
    """Return the alarms of runs by system and by attack, in Markdown."""
    alarmed = sum(any(row["alarms"].values()) for row in rows)
    allowed = int(binom.isf(1e-4, len(rows), FALSE_ALARM))
    by_system = []
    for name in dict.fromkeys(row["system"] for row in rows):
        own = [row for row in rows if row["system"] == name]
        attacks = len({cell["attack"] for row in own for cell in row["cells"]})
        slowest = 1000 * max(row["seconds"]["training"] for row in own)
        counts = [sum(row["alarms"][kind] for row in own) for kind in KINDS]
        by_system.append([name, f"{slowest:.1f} ms", attacks, len(own), *counts])
    by_attack = []
    cells = [cell for row in rows for cell in row["cells"]]
    for attack in sorted({cell["attack"] for cell in cells}):
        own = [cell for cell in cells if cell["attack"] == attack]
        tested = [cell["control"] for cell in own if cell["control"] is not None]
        below = [sum(p < level for p in tested) for level in (0.05, FALSE_ALARM)]
        by_attack.append([attack, len(own), *(sum(c[k] for c in own) for k in KINDS[:2]), len(tested), *below])
    return "\n\n".join(
        (
            f"{len(rows)} runs: an alarm in {alarmed} (at a rate of {FALSE_ALARM:g} a run at most {allowed}).",
            table(["system", "longest training", "attacks", "runs", *KINDS], by_system),
            table(["attack, adversary", "runs", *KINDS[:2], "controls tested", "p < 0.05", "p < 0.001"], by_attack),
        )
    )


INTRO = """# False alarms where nothing leaks

`attack --attack all` and the game of `audit` run on ten small systems without leak, at confidence 0.999, and anything
that they find is a false alarm. Labels are drawn independently of features. They enter what is sent as a seed of
fresh noise alone, so that messages change with labels, as the rehearsal asks, and say nothing about any of them. Each
run has data, trainings and coins of its own.

<!-- run: slow small with --seeds 1 -->
```sh
{command}
```

A run raises an alarm of a kind where:

- success: the interval of an attack lies above every baseline, as where its sentence says "above"
- epsilon: the scores of an attack certify an epsilon above 0
- control: all negative controls together have a p-value below 0.001
- game: the game certifies an epsilon above 0

Two runs of three attack 2 trainings, the third 8, the command's default. Where clients send their features, attacks
on features find these: they are mounted there, and not counted. Options of attacks are smaller than by default where
records are few (`OPTIONS` in the file). At chance one control in twenty has p < 0.05 at most; the bounds behind most
p-values are far above it.

"""


def main():
    """Run what is not kept, seed by seed, print the tables, and write the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path, metavar="PAGE", help="Write a page with the tables there, as Markdown.")
    arguments = parser.parse_args()
    kept = kept_in(arguments.keep)
    rows = []
    for seed in range(arguments.seeds):
        for name in arguments.systems:
            row = kept.get((name, seed))
            if row is None:
                row = run_of(name, seed)
                if arguments.keep is not None:
                    with arguments.keep.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            rows.append(row)
    text = report(rows)
    print(text)
    if arguments.output is not None:
        command = f"python benchmarks/alarms.py --seeds {arguments.seeds}"
        arguments.output.write_text(f"{INTRO.format(command=command)}{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
