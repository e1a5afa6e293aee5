"""What the tool keeps for itself between runs: JSON with a digest, so that a file that was damaged is never believed.

The digest finds accidents (a failing disk, a file cut short, an edit by hand), not a forger, who can compute it too.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})", "value": (.*)\}', re.DOTALL)


def sealed(value: Any) -> str:
    """Return `value`, plain JSON values, as JSON text with the SHA-256 of its own text; `ValueError` for nan."""
    text = json.dumps(value, allow_nan=False)
    return f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "value": {text}}}'


def unsealed(content: bytes) -> Any:
    """Return the value that `sealed` wrote as `content`; `ValueError` where it is anything else, or was damaged."""
    found = _SEALED.fullmatch(content)
    if found is None or hashlib.sha256(found[2]).hexdigest().encode() != found[1]:
        raise ValueError("is damaged")
    return json.loads(found[2])
