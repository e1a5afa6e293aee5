"""Tables of the source papers, ours beside theirs: each is data here, a list of trainings with the published number.

Paper 003 (VFL-CZOFO), tables 3 to 5: MNIST, two clients with a half of the flattened image each, one linear layer to 64
and a server of 128 x 128 x 10, batches of 64. Its epoch is a pass of every client, two of this tool's. Rates are from
the paper's own grid (0.1, 0.01, 0.001, ...); it prints which it searched, not which it chose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from attacks.metrics import rate_interval
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import unknown_name
from dpzv_audit.evidence import to_jsonable
from mechanisms import method_named, train
from mechanisms.controls import frozen_clients
from mechanisms.federation import TrainingData, dtype_of

Result = dict[str, Any]
MEGABYTE = 1e6
SYNCHRONOUS = frozenset({"split", "compressed", "syn-zoo-vfl"})
"""Methods whose rounds activate every client: the papers' epoch is then one of this tool's."""


@dataclass(frozen=True)
class Row:
    """One training: a label, the method and its options, and what the paper prints."""

    label: str
    method: str
    options: Mapping[str, object]
    accuracy: float
    """Test accuracy in the paper, in percent."""
    cost: str = ""
    """Message cost in the paper, as printed."""


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper: the common setting, its rows, and what it takes to run."""

    name: str
    summary: str
    source: str
    dataset: Mapping[str, Any]
    common: Mapping[str, object]
    passes_per_epoch: int
    """Epochs of this tool (D/B rounds in all) in one of the paper's."""
    rows: tuple[Row, ...]
    epochs: int = 100
    notes: tuple[str, ...] = field(default=())


_MLP: Mapping[str, object] = MappingProxyType({"batch_size": 64, "embedding": 64, "hidden": 128})
_HALVES: Mapping[str, Any] = MappingProxyType({"name": "mnist", "clients": 2, "partition": "runs"})
_FIRST_ORDER = {"client_rate": 0.1, "server_rate": 0.1, "momentum": 0.0, "server_momentum": 0.0}
_CZOFO = {"client_rate": 0.01, "server_rate": 0.1}
_ZOO = {"client_rate": 1e-3, "server_rate": 1e-3}


def _czofo(label: str, accuracy: float, cost: str, **options: object) -> Row:
    return Row(label, "czofo", {**_CZOFO, **options}, accuracy, cost)


TABLES: dict[str, PaperTable] = {
    table.name: table
    for table in (
        PaperTable(
            "czofo-table3",
            "test accuracy and message cost of the methods on MNIST (paper 003, table 3)",
            "paper 003, table 3",
            _HALVES,
            _MLP,
            2,
            (
                Row("split learning", "split", _FIRST_ORDER, 98.03, "5859 MB"),
                Row("compressed VFL, 8 bits up", "compressed", {**_FIRST_ORDER, "forward_bits": 8}, 98.17, "3663 MB"),
                Row("VAFL", "vafl", _FIRST_ORDER, 97.36, "6144 MB"),
                Row("Syn-ZOO-VFL", "syn-zoo-vfl", _ZOO, 84.51, "-"),
                Row("ZOO-VFL", "zoo-vfl", _ZOO, 85.62, "-"),
                _czofo("VFL-CZOFO, 8 bits both ways", 95.00, "790 MB", directions=100, forward_bits=8, backward_bits=8),
            ),
            notes=("a synchronous round activates both clients, so split learning has half as many rounds",),
        ),
        PaperTable(
            "czofo-table4",
            "number of directions q against accuracy and backward cost (paper 003, table 4)",
            "paper 003, table 4",
            _HALVES,
            _MLP,
            2,
            (
                Row("first order (VAFL)", "vafl", _FIRST_ORDER, 97.36, "3073 MB down"),
                _czofo("q = 100", 95.30, "75 MB down", directions=100),
                _czofo("q = 10", 93.33, "7.5 MB down", directions=10),
                _czofo("q = 1", 79.66, "0.75 MB down", directions=1),
            ),
        ),
        PaperTable(
            "czofo-table5",
            "quantisation against accuracy and cost, q = 100 (paper 003, table 5)",
            "paper 003, table 5",
            _HALVES,
            _MLP,
            2,
            (
                *(
                    _czofo(f"forward {bits} bit", accuracy, cost, directions=100, forward_bits=bits)
                    for bits, accuracy, cost in (
                        (8, 95.02, "769 MB up"),
                        (4, 93.35, "386 MB up"),
                        (2, 79.10, "194 MB up"),
                        (1, 30.20, "96 MB up"),
                    )
                ),
                *(
                    _czofo(f"backward {bits} bit", accuracy, cost, directions=100, backward_bits=bits)
                    for bits, accuracy, cost in (
                        (8, 94.58, "19 MB down"),
                        (4, 94.50, "10 MB down"),
                        (2, 94.16, "5.4 MB down"),
                        (1, 90.67, "3.1 MB down"),
                    )
                ),
            ),
        ),
    )
}


def table_named(name: str) -> PaperTable:
    """The table called `name`; `InputError` suggesting the nearest known one otherwise."""
    if name not in TABLES:
        raise unknown_name("NAME", name, TABLES)
    return TABLES[name]


def reproduce(
    table: PaperTable,
    dataset: VerticalDataset,
    *,
    epochs: int,
    seeds: int,
    seed: int = 0,
    device: str = "cpu",
    stage: Callable[[str, int], Callable[[int], None]] = lambda name, total: lambda done: None,
) -> Result:
    """Run every row of `table` for `epochs` of the paper's epochs, `seeds` trainings at once; a JSON-ready result.

    Each row stands beside the published number and its frozen-clients control at the same server rate. Costs are
    those of the whole run, without the one table of embeddings that asynchronous methods start with, in megabytes.
    """
    rows = []
    for row in table.rows:
        method = method_named(row.method)
        passes = 1 if row.method in SYNCHRONOUS else table.passes_per_epoch
        config = method.configure(**{**table.common, **row.options, "epochs": epochs * passes})
        data = TrainingData.of(dataset, dtype=dtype_of(config), device=device)
        total = config.epochs * (len(dataset.train) // config.batch_size)
        trained = train(data, config, seed=seed, replicas=range(seeds), device=device, progress=stage(row.label, total))
        frozen = frozen_clients(data, config, rate=config.server_rate, seed=seed, replicas=range(seeds), device=device)
        up = sum(n for kind, n in trained.ledger.bytes_up.items() if kind != "table")
        rows.append(
            {
                "label": row.label,
                "method": row.method,
                "options": dict(row.options),
                "accuracy": to_jsonable(rate_interval(trained.correct)),
                "by_seed": [float(a) for a in trained.accuracy],
                "standard_deviation": float(np.std(trained.accuracy, ddof=1)) if seeds > 1 else None,
                "paper_accuracy": row.accuracy / 100.0,
                "frozen_clients": to_jsonable(rate_interval(frozen.correct)),
                "megabytes_up": up / MEGABYTE,
                "megabytes_down": trained.ledger.down / MEGABYTE,
                "paper_cost": row.cost,
                "rounds": trained.rounds,
            }
        )
    return {
        "schema": "dpzv-audit/reproduce/1",
        "table": table.name,
        "source": table.source,
        "dataset": dataset.name,
        "epochs": epochs,
        "paper_epochs": table.epochs,
        "seeds": seeds,
        "seed": seed,
        "rows": rows,
        "notes": list(table.notes),
        "data": {"partition": dataset.partition, "digests": dataset.digests},
    }


def to_markdown(result: Result) -> str:
    """The reproduced table as Markdown: ours beside theirs."""
    lines = [
        f"# {result['table']}: {result['source']}",
        "",
        f"{result['epochs']} of the paper's {result['paper_epochs']} epochs, {result['seeds']} "
        f"{'seed' if result['seeds'] == 1 else 'seeds'}. Accuracy on the test records in percent, mean and standard "
        "deviation over seeds; cost of the messages of these epochs, in megabytes.",
        "",
        "| row | ours | paper | frozen clients | up, MB | down, MB | paper, cost of 100 epochs |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        spread = "" if row["standard_deviation"] is None else f" +- {100 * row['standard_deviation']:.2f}"
        lines.append(
            f"| {row['label']} | {100 * row['accuracy']['value']:.2f}{spread} | {100 * row['paper_accuracy']:.2f} "
            f"| {100 * row['frozen_clients']['value']:.2f} | {row['megabytes_up']:.1f} | {row['megabytes_down']:.2f} "
            f"| {row['paper_cost']} |"
        )
    lines += ["", *(f"- {note}" for note in result["notes"])]
    return "\n".join(lines).rstrip() + "\n"
