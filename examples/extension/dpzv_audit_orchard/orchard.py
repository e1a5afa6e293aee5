"""Measures of fruit as a table: `orchard.csv`, six columns of numbers and the kind, one fruit per line."""

from dataclasses import replace

from dpzv_audit.data import DataRequest, DataSpec, Partition, Source, VerticalDataset, load_csv

KINDS = ("apple", "pear", "plum")
SCALES = {"weight_g": 200.0, "length_mm": 100.0, "width_mm": 100.0, "sugar_brix": 15.0, "acid_g": 10.0, "red": 255.0}
"""Constants, not what the records say: nothing is fitted on them, so that nothing is released by it."""


def read(request: DataRequest) -> VerticalDataset:
    """Return the table, its columns dealt out in runs to `request.clients` clients."""
    path = request.find("orchard.csv")
    table = load_csv(path, label="kind", clients=request.clients, scales=SCALES, classes=KINDS)
    return replace(table, name=request.spec.name)


SPEC = DataSpec(
    name="orchard",
    summary="an example: six measures of 600 fruit of three kinds; 3 clients of 2 columns",
    reader=read,
    partitions={"columns": Partition(clients=3, takes="3, or 1, 2, 6", divides=6, of="columns")},
    source=Source(
        folder="orchard",
        holds="orchard.csv itself",
        origin="take orchard.csv from examples/extension/data/orchard of dpzv-audit",
        names="orchard.csv",
        megabytes=0.03,
    ),
)
