"""Says what in a table of one's own usually keeps a model from learning: identifiers, and numbers of unlike scales.

A hint is for whoever runs the training. It changes nothing: features never depend on what other rows hold.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

IDENTIFIER = re.compile(r"(?i:(?:^|[\W_])(?:id|ids|index|key|uuid|guid)$|^unnamed: 0$)|[a-z]I[Dd]$")
"""Names that columns of identifiers go by, such as `ID`, `customer_id`, `customerID`, and `Unnamed: 0` of pandas."""

LEAST_ROWS = 20
"""Fewer rows may all differ by chance."""

UNLIKE = 100.0
"""How many times the largest number of one column may be that of another, or 1."""


def is_identifier(name: str, cells: Sequence[str], *, words: bool) -> bool:
    """Return whether a column looks like an identifier: every cell another, and all `words` or whole numbers.

    Numbers must also run on with few gaps, or the column have the `name` of one: amounts may all differ too.
    """
    if len(cells) < LEAST_ROWS or len(set(cells)) < len(cells):
        return False
    if words:
        return True
    numbers = np.array(cells, np.float64)
    whole = bool((numbers == np.floor(numbers)).all())
    return whole and (float(np.ptp(numbers)) < 2 * len(cells) or IDENTIFIER.search(name) is not None)


def hints_of(identifiers: Collection[str], largest: Mapping[str, float], scaled: Collection[str]) -> tuple[str, ...]:
    """Return a sentence on each thing that a user had better look at; none where a table is as it should be.

    Args:
        identifiers: Columns that look like identifiers.
        largest: The largest absolute number of each column of numbers, after scaling.
        scaled: Columns with a constant of their own: whoever gave it knows best.
    """
    hints = [
        f"column {name!r} looks like an identifier (no value occurs twice), from which nothing can be learnt about "
        "other records: leave it out (option ‹drop›)"
        for name in identifiers
    ]
    numbers = {name: size for name, size in largest.items() if name not in identifiers and size > 0.0}
    most = max((name for name in numbers if name not in scaled), key=numbers.__getitem__, default=None)
    if most is not None:
        least = min(numbers, key=numbers.__getitem__)
        if numbers[most] >= UNLIKE * min(1.0, numbers[least]):
            between = "" if least == most else f" and {least!r} {numbers[least]:.2g}"
            hints.append(
                f"numbers are used as they are, and {most!r} reaches {numbers[most]:.2g}{between}. On scales so far "
                "from 1 clients often learn nothing: divide such columns by public constants (option ‹scales›, such "
                f"as {most}={10.0 ** np.ceil(np.log10(numbers[most])):g})"
            )
    return tuple(hints)
