"""UCI Adult (Becker, Kohavi, 1996): census rows of mixed columns, in four groups, income above $50,000 or not.

Lists of values and the meaning of columns are those of the source's `adult.names`; `?` and any other value
outside a list is all zeros. Numbers are divided by round bounds of what the column can hold.
"""

from __future__ import annotations

from pathlib import Path

from dpzv_audit.data.files import Source, file_digest
from dpzv_audit.data.table import Category, Layout, Number, join_columns
from dpzv_audit.data.tabular import PublishedTable, check_rows, choose_cut, read_published
from dpzv_audit.data.vertical import Records, VerticalDataset

ADULT_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_SOURCE = Source(
    name="adult",
    folder="adult",
    holds="adult.data and adult.test themselves",
    origin=f"download adult.data and adult.test from {ADULT_URL} (or give --download)",
)
TRAIN_FILE, TEST_FILE = "adult.data", "adult.test"
TRAIN_ROWS, TEST_ROWS = (24_720, 7_841), (12_435, 3_846)
"""Rows of each class in the published files: 32,561 and 16,281."""

TABLE = PublishedTable(
    name="adult",
    columns=(
        Number("age", 100.0),
        Category(
            "workclass",
            (
                *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov"),
                *("Without-pay", "Never-worked"),
            ),
        ),
        Number("fnlwgt", 1_000_000.0),
        Category(
            "education",
            (
                *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th"),
                *("7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool"),
            ),
        ),
        Number("education-num", 16.0),
        Category(
            "marital-status",
            (
                *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed"),
                *("Married-spouse-absent", "Married-AF-spouse"),
            ),
        ),
        Category(
            "occupation",
            (
                *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty"),
                *("Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving"),
                *("Priv-house-serv", "Protective-serv", "Armed-Forces"),
            ),
        ),
        Category("relationship", ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")),
        Category("race", ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")),
        Category("sex", ("Female", "Male")),
        Number("capital-gain", 100_000.0),
        Number("capital-loss", 10_000.0),
        Number("hours-per-week", 100.0),
        Category(
            "native-country",
            (
                *("United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany"),
                *("Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran"),
                *("Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal"),
                *("Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia"),
                *("Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador"),
                *("Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands"),
            ),
        ),
    ),
    groups={
        "person": ("age", "race", "sex", "native-country"),
        "work": ("workclass", "occupation", "hours-per-week"),
        "education": ("education", "education-num"),
        "household and money": (
            *("marital-status", "relationship", "capital-gain", "capital-loss"),
            "fnlwgt",
        ),
    },
    label="income",
    classes={"<=50K": 0, ">50K": 1, "<=50K.": 0, ">50K.": 1},
)
LAYOUT = Layout(names=(*(column.name for column in TABLE.columns), TABLE.label), header=False, comment="|")
"""The first line of `adult.test` is a comment; its labels end in a full stop."""


def load_adult(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    subset: bool = False,
) -> VerticalDataset:
    """Return Adult (32,561 train and 16,281 test rows, 2 classes: 1 is an income above $50,000).

    `partition` "groups" (default): 4 clients hold person, work, education, household and money. "columns":
    `clients` (1 to 14) hold runs of whole columns in the file's order. Blocks are float32 (N, width), 105 features
    in all. `data_dir` is the folder that holds `adult/` or the two files themselves; without it DPZV_AUDIT_DATA.
    With `subset` any number of rows will do. Raises `InputError` naming the file, the line and the column for
    whatever is malformed.
    """
    cut = choose_cut(TABLE, clients, partition)
    folder = ADULT_SOURCE.locate(data_dir)
    parts = {}
    digests = {}
    for name, rows in ((TRAIN_FILE, TRAIN_ROWS), (TEST_FILE, TEST_ROWS)):
        path = ADULT_SOURCE.find(folder, name)
        read, labels = read_published(path, LAYOUT, TABLE)
        if not subset:
            check_rows(path, labels, rows, hint="give --subset to use what is there")
        parts[name] = Records(features=join_columns(read.blocks, cut.groups), labels=labels)
        digests[name] = file_digest(path)
    found, right = sum(map(len, parts.values())), sum((*TRAIN_ROWS, *TEST_ROWS))
    return VerticalDataset(
        name="adult",
        train=parts[TRAIN_FILE],
        test=parts[TEST_FILE],
        classes=2,
        partition=cut.words,
        digests=digests,
        notes=() if found == right else (f"a subset: {found:,} of {right:,} rows",),
    )
