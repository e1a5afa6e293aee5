"""Settings of trainings by data set, where neither the user nor the method says otherwise: `tables/training.toml`."""

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mechanisms.core.method import MethodSpec

_TABLES = tomllib.loads((files("dpzv_audit") / "tables" / "training.toml").read_text(encoding="utf-8"))
DATASET_DEFAULTS: dict[str, dict[str, object]] = _TABLES["any"]
GRADIENT_DEFAULTS: dict[str, dict[str, object]] = _TABLES["gradient"]
"""The same for methods that send gradients down, over `DATASET_DEFAULTS`."""


def dataset_defaults(dataset: str, spec: "MethodSpec", *, transformer: bool = False) -> dict[str, object]:
    """Return the data set's settings that the method of `spec` has and does not set itself.

    With a pre-trained `transformer`, without the model and the rates that are those of a bag of embeddings.
    """
    defaults = dict(DATASET_DEFAULTS.get(dataset, {}))
    if transformer:
        defaults.pop("client_model", None)
    elif spec.downlink == "gradient":
        defaults |= GRADIENT_DEFAULTS.get(dataset, {})
    return {
        key: value for key, value in defaults.items() if key in spec.config.model_fields and key not in spec.defaults
    }
