"""Settings of trainings by data set, where neither the user nor the method says otherwise: `tables/training.toml`."""

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from dpzv_audit.base.findings import Preset

if TYPE_CHECKING:
    from .core.method import MethodSpec

_TABLES = tomllib.loads((files("mechanisms") / "tables" / "training.toml").read_text(encoding="utf-8"))
DATASET_DEFAULTS: dict[str, dict[str, object]] = _TABLES["any"]
GRADIENT_DEFAULTS: dict[str, dict[str, object]] = _TABLES["gradient"]
"""The same for methods that send gradients down, over `DATASET_DEFAULTS`."""
LEARNED_DEFAULTS: dict[str, dict[str, dict[str, object]]] = _TABLES["learned"]
"""Settings by method and data set under which the method learns it under noise, over all others."""


def dataset_defaults(
    dataset: str, spec: "MethodSpec", *, transformer: bool = False, preset: Preset = "paper"
) -> dict[str, object]:
    """Return the data set's settings that the method of `spec` uses and does not set itself.

    With a pre-trained `transformer`, without the model and the rates that are those of a bag of embeddings. The
    `preset` `paper` leaves all else at the method's own values, those of its paper; `learned` takes settings under
    which the data set is learned in spite of the noise, where there are any.
    """
    defaults = dict(DATASET_DEFAULTS.get(dataset, {}))
    if transformer:
        defaults.pop("client_model", None)
    elif spec.downlink == "gradient":
        defaults |= GRADIENT_DEFAULTS.get(dataset, {})
    if preset == "learned":
        defaults |= LEARNED_DEFAULTS.get(spec.name, {}).get(dataset, {})
    known = spec.config.model_fields.keys() - spec.config.unused.keys() - spec.defaults.keys()
    return {key: value for key, value in defaults.items() if key in known}
