"""Tables 2 to 5 and figure 2 of paper 003 (VFL-CZOFO): MNIST, two clients with a half of the flattened image each.

One linear layer to 64 at a client, 128 x 128 x 10 at the server, batches of 64, directions on the unit sphere, vanilla
SGD. Its epoch is a pass of every client, two of this tool's. It prints the grid of rates it searched (0.1, 0.01, 0.001,
...), not what it chose: docs/results/rates.md says how the rates here follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dpzv_audit.reproduce.figures import accuracy_by_epoch
from dpzv_audit.reproduce.implicit import COLUMNS as IMPLICIT_COLUMNS
from dpzv_audit.reproduce.implicit import DELTA, ImplicitNoise, gaussian_sigma
from dpzv_audit.reproduce.table import PaperTable
from dpzv_audit.reproduce.training import SYNCHRONOUS, Training, accuracy_columns, below_control

HALVES: Mapping[str, Any] = MappingProxyType({"name": "mnist", "clients": 2, "partition": "runs"})
MLP: Mapping[str, object] = MappingProxyType(
    {"batch_size": 64, "embedding": 64, "hidden": 128, "momentum": 0.0, "server_momentum": 0.0}
)
FIRST_ORDER: Mapping[str, object] = MappingProxyType({"client_rate": 0.1, "server_rate": 0.1})
CZOFO: Mapping[str, object] = MappingProxyType({"client_rate": 0.1, "server_rate": 0.1, "direction": "unit-sphere"})
ZOO: Mapping[str, object] = MappingProxyType({"client_rate": 1e-4, "server_rate": 1e-3, "direction": "unit-sphere"})

ABOUT = (
    "Accuracy on the test records in percent, mean and standard deviation over seeds, after the last epoch; cost of "
    "the messages of these epochs, in megabytes. Frozen clients keep their random starts while the server learns: at "
    "the row's server rate, and at the rate that did best in training over a grid."
)


def row(label: str, method: str, accuracy: float | None, cost: str, **options: object) -> Training:
    """A row of paper 003 in its common setting."""
    passes = 1 if method in SYNCHRONOUS else 2
    options = {**MLP, **options}
    return Training(
        label=label, method=method, options=options, dataset=HALVES, passes=passes, accuracy=accuracy, cost=cost
    )


def _czofo(label: str, accuracy: float | None, cost: str, **options: object) -> Training:
    return row(label, "czofo", accuracy, cost, **CZOFO, **options)


def _vafl(label: str, cost: str) -> Training:
    return row(label, "vafl", 97.36, cost, **FIRST_ORDER)


_CLIP = 0.1
_GAUSSIAN = {"dp": "gradient", "dp_clip": _CLIP}
"""The Gaussian mechanism of section 6.2 on dL/dh_m, clipped to 0.1 a record."""
_RECORDS = 60_000


def _private_vafl(label: str, accuracy: float | None, cost: str, epsilon: float) -> Training:
    """VAFL with gradient noise for `epsilon` a round by eq. 3, the largest norm being the clip."""
    sigma = gaussian_sigma(_CLIP, epsilon, DELTA, _RECORDS)
    return row(label, "vafl", accuracy, cost, **FIRST_ORDER, **_GAUSSIAN, dp_sigma=sigma)


def _implicit(directions: int, **paper: float) -> ImplicitNoise:
    options = {**MLP, **CZOFO, "directions": directions}
    return ImplicitNoise(label=f"q = {directions}", options=options, dataset=HALVES, passes=2, paper=paper)


TABLE_2 = PaperTable(
    name="czofo-table2",
    summary="noise of the zeroth-order estimate and the epsilon claimed for it (paper 003, table 2)",
    source="paper 003, table 2",
    about="One training a row. sigma^2 is the variance of an entry over 100 estimates for one batch, the model frozen; "
    "zeta is the largest norm of a record's estimate after any epoch (the paper: over the whole training); both in "
    "units of the batch's summed loss. delta = delta' = 1e-6.",
    columns=IMPLICIT_COLUMNS,
    epochs=50,
    items=(
        _implicit(10, variance=1.61, norm=20.1, epsilon=2.8e-3, epsilon_composed=85.9, rounds=93_800),
        _implicit(100, variance=0.15, norm=7.3, epsilon=3.3e-3, epsilon_composed=93.6, rounds=93_800),
    ),
    notes=(
        "the client knows the directions, so the q numbers it receives are exact: the claim of theorem 4.1 is repeated "
        "to compare numbers, and bounds no adversary",
        "the paper's composed epsilon does not follow from its epsilon by its own theorem; the column beside it does",
    ),
)

FIGURE_2 = PaperTable(
    name="czofo-figure2",
    summary="VFL-CZOFO beside VAFL with the Gaussian mechanism at the same epsilon a round (paper 003, figure 2)",
    source="paper 003, figure 2",
    about=ABOUT,
    columns=accuracy_columns(),
    figure=accuracy_by_epoch,
    remark=below_control,
    epochs=50,
    items=(
        _czofo("q = 100", None, "", directions=100),
        _private_vafl("VAFL, noise for 3.3e-3 a round", None, "", 3.3e-3),
        _czofo("q = 10", None, "", directions=10),
        _private_vafl("VAFL, noise for 2.8e-3 a round", None, "", 2.8e-3),
    ),
    notes=(
        "gradients are clipped to 0.1 a record; the noise is that of eq. 3 for the epsilon of table 2",
        "the figure prints no numbers",
        "gradient noise protects labels from clients; nothing protects the embeddings sent up",
    ),
)

TABLE_3 = PaperTable(
    name="czofo-table3",
    summary="test accuracy and message cost of the methods on MNIST (paper 003, table 3)",
    source="paper 003, table 3",
    about=ABOUT,
    columns=accuracy_columns("paper, cost of 100 epochs"),
    figure=accuracy_by_epoch,
    remark=below_control,
    items=(
        row("split learning", "split", 98.03, "5859 MB", **FIRST_ORDER),
        row("compressed VFL, 8 bits up", "compressed", 98.17, "3663 MB", **FIRST_ORDER, forward_bits=8),
        _vafl("VAFL", "6144 MB"),
        _private_vafl("VAFL + gradient DP", 95.81, "6144 MB", 2.8e-3),
        row("Syn-ZOO-VFL", "syn-zoo-vfl", 84.51, "-", **ZOO),
        row("ZOO-VFL", "zoo-vfl", 85.62, "-", **ZOO),
        _czofo("VFL-CZOFO, 8 bits both ways", 95.00, "790 MB", directions=100, forward_bits=8, backward_bits=8),
    ),
    notes=(
        "a synchronous round activates both clients, so split learning has half as many rounds",
        "gradient DP: dL/dh_m of a record clipped to 0.1, noise for 2.8e-3 a round by eq. 3 (the paper gives no value)",
    ),
)

TABLE_4 = PaperTable(
    name="czofo-table4",
    summary="number of directions q against accuracy and backward cost (paper 003, table 4)",
    source="paper 003, table 4",
    about=ABOUT,
    columns=accuracy_columns("paper, cost of 100 epochs"),
    figure=accuracy_by_epoch,
    remark=below_control,
    items=(
        _vafl("first order (VAFL)", "3073 MB down"),
        _czofo("q = 100", 95.30, "75 MB down", directions=100),
        _czofo("q = 10", 93.33, "7.5 MB down", directions=10),
        _czofo("q = 1", 79.66, "0.75 MB down", directions=1),
    ),
)

TABLE_5 = PaperTable(
    name="czofo-table5",
    summary="quantisation against accuracy and cost, q = 100 (paper 003, table 5)",
    source="paper 003, table 5",
    about=ABOUT,
    columns=accuracy_columns("paper, cost of 100 epochs"),
    figure=accuracy_by_epoch,
    remark=below_control,
    items=(
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
)

ORDER = PaperTable(
    name="czofo-order",
    summary="the methods of tables 3 and 4 of paper 003 in the order of their accuracy there",
    source="paper 003, tables 3 and 4",
    about=ABOUT,
    columns=accuracy_columns(),
    figure=accuracy_by_epoch,
    remark=below_control,
    items=(
        row("split", "split", 98.03, "", **FIRST_ORDER),
        _vafl("VAFL", ""),
        _czofo("q = 100", 95.30, "", directions=100),
        _czofo("q = 10", 93.33, "", directions=10),
        row("ZOO-VFL", "zoo-vfl", 85.62, "", **ZOO),
        _czofo("q = 1", 79.66, "", directions=1),
    ),
)

_SLOW = {"client_rate": 0.01, "server_rate": 0.01}

READINGS = PaperTable(
    name="czofo-readings",
    summary="rows of paper 003 under other readings: other rates, and the second softmax of its public code",
    source="paper 003, tables 3 and 4",
    about=ABOUT,
    columns=accuracy_columns(),
    figure=accuracy_by_epoch,
    remark=below_control,
    items=(
        row("split, rate 0.01", "split", 98.03, "", **_SLOW),
        row("split, second softmax", "split", 98.03, "", **FIRST_ORDER, softmax_outputs=True),
        row("VAFL, rate 0.01", "vafl", 97.36, "", **_SLOW),
        row("VAFL, second softmax", "vafl", 97.36, "", **FIRST_ORDER, softmax_outputs=True),
        row("q = 10, rate 0.01", "czofo", 93.33, "", **{**CZOFO, **_SLOW}, directions=10),
        row("q = 10, second softmax", "czofo", 93.33, "", **CZOFO, directions=10, softmax_outputs=True),
        row("q = 1, rate 0.01", "czofo", 79.66, "", **{**CZOFO, **_SLOW}, directions=1),
        row("ZOO-VFL, both 0.001", "zoo-vfl", 85.62, "", **{**ZOO, "client_rate": 1e-3}),
        row("ZOO-VFL, server 0.0001", "zoo-vfl", 85.62, "", **{**ZOO, "client_rate": 1e-3, "server_rate": 1e-4}),
    ),
)
