"""Types of arrays that the games share, and rows of several arrays as one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int_]
Arrays = dict[str, NDArray[Any]]
"""Rows of trials by name."""


def joined_arrays(pieces: Sequence[Arrays]) -> Arrays:
    """Return the rows of all pieces, of which there is one at least, by name."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
