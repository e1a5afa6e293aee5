"""UCI bank marketing (Moro, Laureano, Cortez, 2011): mixed columns in three groups, a term deposit or not.

Lists of values are those of the source's `bank-names.txt`; any other value is all zeros. Numbers are divided by
round constants. The column `duration` is dropped: the length of the call is known only once its outcome is.
"""

from __future__ import annotations

from pathlib import Path

from dpzv_audit.data.files import Source, file_digest
from dpzv_audit.data.split import Indices, fixed_split
from dpzv_audit.data.table import Category, Layout, Number, join_columns
from dpzv_audit.data.tabular import PublishedTable, check_rows, choose_cut, read_published
from dpzv_audit.data.vertical import Records, VerticalDataset

BANK_SOURCE = Source(
    name="bank",
    folder="bank",
    holds="bank-full.csv itself",
    origin=(
        "download bank.zip from https://archive.ics.uci.edu/ml/machine-learning-databases/00222/ "
        "and unpack bank-full.csv (and bank.csv, its sample)"
    ),
)
FULL_FILE, SAMPLE_FILE = "bank-full.csv", "bank.csv"
ROWS = {FULL_FILE: (39_922, 5_289), SAMPLE_FILE: (4_000, 521)}
"""Rows of each class in the published files: 45,211 and 4,521."""

SPLIT_SEED = 45_211
YES_NO = ("no", "yes")
DROPPED = "duration"

TABLE = PublishedTable(
    name="bank",
    columns=(
        Number("age", 100.0),
        Category(
            "job",
            (
                *("admin.", "unknown", "unemployed", "management", "housemaid", "entrepreneur", "student"),
                *("blue-collar", "self-employed", "retired", "technician", "services"),
            ),
        ),
        Category("marital", ("married", "divorced", "single")),
        Category("education", ("unknown", "secondary", "primary", "tertiary")),
        Category("default", YES_NO),
        Number("balance", 10_000.0),
        Category("housing", YES_NO),
        Category("loan", YES_NO),
        Category("contact", ("unknown", "telephone", "cellular")),
        Number("day", 31.0),
        Category("month", ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
        Number("campaign", 10.0),
        Number("pdays", 1_000.0),
        Number("previous", 10.0),
        Category("poutcome", ("unknown", "other", "failure", "success")),
    ),
    groups={
        "client": ("age", "job", "marital", "education", "default", "balance", "housing", "loan"),
        "last contact": ("contact", "day", "month"),
        "campaigns": ("campaign", "pdays", "previous", "poutcome"),
    },
    label="y",
    classes={"no": 0, "yes": 1},
)
NAMES = (*(column.name for column in TABLE.columns[:11]), DROPPED, *(c.name for c in TABLE.columns[11:]), TABLE.label)
LAYOUT = Layout(names=NAMES, separator=";")


def load_bank(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    subset: bool = False,
) -> VerticalDataset:
    """Return bank marketing (36,160 train and 9,051 test rows, 2 classes: 1 is a term deposit).

    `partition` "groups" (default): 3 clients hold the source's own groups (client, last contact, campaigns).
    "columns": `clients` (1 to 15) hold runs of whole columns in the file's order. Blocks are float32 (N, width),
    50 features in all. The rows are ordered by date and the split is a fixed shuffle. `data_dir` is the folder
    that holds `bank/` or `bank-full.csv` itself; without it DPZV_AUDIT_DATA. With `subset` the published sample
    `bank.csv` (4,521 rows) is read. Raises `InputError` naming the file, the line and the column for whatever is
    malformed.
    """
    cut = choose_cut(TABLE, clients, partition)
    name = SAMPLE_FILE if subset else FULL_FILE
    path = BANK_SOURCE.find(BANK_SOURCE.locate(data_dir), name)
    read, labels = read_published(path, LAYOUT, TABLE)
    check_rows(path, labels, ROWS[name], hint=f"it must be the original {name}")

    blocks = join_columns(read.blocks, cut.groups)

    def part(chosen: Indices) -> Records:
        return Records(features=tuple(block[chosen] for block in blocks), labels=labels[chosen])

    train, test = fixed_split(len(labels), seed=SPLIT_SEED)
    notes = (f"column {DROPPED} is dropped: it is known only after the call and leaks the label",)
    return VerticalDataset(
        name="bank",
        train=part(train),
        test=part(test),
        classes=2,
        partition=cut.words,
        digests={path.name: file_digest(path)},
        notes=(*notes, "a subset: the source's sample of 4,521 of 45,211 rows") if subset else notes,
    )
