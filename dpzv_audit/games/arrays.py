"""Types of arrays that the games share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int_]
Arrays = dict[str, NDArray[Any]]
"""Rows of trials by name."""
