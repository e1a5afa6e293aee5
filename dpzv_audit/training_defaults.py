"""Settings of trainings by data set, where neither the user nor the method says otherwise."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_IMAGES: dict[str, Any] = {"batch_size": 256, "epochs": 30, "embedding": 60, "hidden": 64, "delta": 1e-3}
DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"server_rate": 0.05},
    "breast-cancer": {"server_rate": 0.05, "epochs": 20},
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "cifar10": {**_IMAGES, "batch_size": 64, "client_model": "patch-cnn"},
    "eth80": {"server_rate": 0.01, "batch_size": 16, "epochs": 40, "client_model": "mlp"},
    "modelnet40": {"epochs": 30, "embedding": 60, "hidden": 64, "client_model": "resnet18"},
    "mfeat": {"server_rate": 0.05, "epochs": 20},
    "amazon-polarity": {"epochs": 6, "client_model": "tokens"},
    "imdb": {"epochs": 6, "client_model": "tokens"},
    "adult": {"server_rate": 0.05, "batch_size": 256, "epochs": 10},
    "bank": {"server_rate": 0.05, "batch_size": 256, "epochs": 10},
}
"""Settings by data set, where neither the user nor the method says otherwise.

MNIST: paper 001 where it gives a value (figure captions: delta = 1e-3; 60 fits its byte counts), the rest ours.
Models are those of paper 001 (ModelNet40: ResNet-18; text: a bag of embeddings in place of its BERT); ETH-80 has 64
training objects, on which convolutions hardly start. Small tables: ten times the paper's server rate, since a run has
hundreds of rounds instead of thousands.
"""

_MOMENTUM = {"momentum": 0.9, "server_momentum": 0.9}
GRADIENT_DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(DATASET_DEFAULTS, _MOMENTUM),
    "eth80": {**_MOMENTUM, "client_rate": 0.01},
    "modelnet40": {**_MOMENTUM, "client_rate": 0.01, "server_rate": 0.01},
    "amazon-polarity": {**_MOMENTUM, "client_rate": 2.0, "server_rate": 0.02},
    "imdb": {**_MOMENTUM, "client_rate": 2.0, "server_rate": 0.02},
}
"""The same for methods that send gradients down, over `DATASET_DEFAULTS`. Rates are ours, from small grids.

A token's embedding moves only where the token is: text needs a far larger rate at the clients than at the server.
"""


def defaults_for(
    dataset: str, *, downlink: str, fields: Collection[str], own: Collection[str], transformer: bool = False
) -> dict[str, Any]:
    """Return the data set's settings among a method's `fields` that its `own` defaults do not set already.

    With a pre-trained `transformer`, without the model and the rates that are those of a bag of embeddings.
    """
    defaults = dict(DATASET_DEFAULTS.get(dataset, {}))
    if transformer:
        defaults.pop("client_model", None)
    elif downlink == "gradient":
        defaults |= GRADIENT_DEFAULTS.get(dataset, {})
    return {key: value for key, value in defaults.items() if key in fields and key not in own}
