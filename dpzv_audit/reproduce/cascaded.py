"""Table II of paper 002 (VFL-Cascaded) on MNIST: 4, 6 and 8 clients, and three widths of the server, by method.

Equal runs of pixels, one linear layer to 128 at a client, 128 M x width x 10 at the server, smoothing 0.001, vanilla
SGD. The paper searched rates of 0.020, 0.015, 0.010, 0.005, 0.001 and does not print its choice; here first-order steps
have the largest and zeroth-order ones the smallest, untuned. The numbers of the table are missing from the text of the
paper that this was written from, so only the order that it states in words can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dpzv_audit.reproduce.figures import accuracy_by_epoch
from dpzv_audit.reproduce.table import PaperTable
from dpzv_audit.reproduce.training import SYNCHRONOUS, Training, accuracy_columns, below_control

COMMON: Mapping[str, object] = MappingProxyType(
    {"batch_size": 64, "embedding": 128, "momentum": 0.0, "server_momentum": 0.0}
)
_FIRST_ORDER = {"client_rate": 0.02, "server_rate": 0.02}
_ZOO = {"client_rate": 1e-3, "server_rate": 1e-3}
RATES: Mapping[str, Mapping[str, float]] = {
    "split": _FIRST_ORDER,
    "vafl": _FIRST_ORDER,
    "syn-zoo-vfl": _ZOO,
    "zoo-vfl": _ZOO,
    "cascaded": {"client_rate": 1e-3, "server_rate": 0.02},
}
NAMES = {
    "split": "split learning",
    "vafl": "VAFL",
    "syn-zoo-vfl": "Syn-ZOO-VFL",
    "zoo-vfl": "ZOO-VFL",
    "cascaded": "VFL-Cascaded",
}


def training(method: str, clients: int, width: int) -> Training:
    """`method` with so many clients and so wide a server; an epoch of the paper is a pass of every client."""
    passes = 1 if method in SYNCHRONOUS else clients
    return Training(
        label=f"{NAMES[method]}, {clients} clients, server {width}",
        method=method,
        options={**COMMON, **RATES[method], "hidden": width},
        dataset={"name": "mnist", "clients": clients, "partition": "runs"},
        passes=passes,
    )


TABLE_2 = PaperTable(
    name="cascaded-table2-mnist",
    summary="test accuracy by number of clients and width of the server on MNIST (paper 002, table II)",
    source="paper 002, table II, MNIST",
    about="Accuracy on the test records in percent, mean and standard deviation over seeds, after the last epoch; cost "
    "of the messages of these epochs, in megabytes. Frozen clients keep their random starts while the server learns: "
    "at the row's server rate, and at the rate that did best in training over a grid.",
    columns=accuracy_columns(),
    figure=accuracy_by_epoch,
    remark=below_control,
    items=tuple(
        training(method, clients, width)
        for clients, width in ((4, 128), (6, 128), (8, 128), (4, 256), (4, 512))
        for method in NAMES
    ),
    notes=(
        "rates are the ends of the paper's grid, 0.020 for first-order steps and 0.001 for zeroth-order ones, untuned",
        "the numbers of the paper's table are not in the text this was written from; in words, VFL-Cascaded comes out "
        "slightly below VAFL and much above ZOO-VFL",
    ),
)
