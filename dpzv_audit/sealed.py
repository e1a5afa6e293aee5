"""What the tool keeps for itself between runs: JSON with a digest, so that a file that was damaged is never believed.

The digest finds accidents (a failing disk, a file cut short, an edit by hand), not a forger, who can compute it too.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_DIGEST, _VALUE = "sha256", "value"


def sealed(value: Any) -> str:
    """Return `value`, plain JSON values, as JSON text with its digest; `ValueError` for nan and infinity."""
    return json.dumps({_DIGEST: _digest(value), _VALUE: value}, allow_nan=False)


def unsealed(text: str | bytes) -> Any:
    """Return the value that `sealed` wrote as `text`; `ValueError` where it is anything else, or was damaged."""
    try:
        found = json.loads(text)
        if set(found) == {_DIGEST, _VALUE} and found[_DIGEST] == _digest(found[_VALUE]):
            return found[_VALUE]
    except (ValueError, TypeError, RecursionError):
        pass
    raise ValueError("is damaged")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()
