"""The knowledge that a threat model grants an adversary beside its view.

Nothing here holds a training label, a membership or another party's feature that the threat model does not grant: the
truth is used by the metric alone (attacks.md, rules 1 to 5).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from dpzv_audit.base.errors import InputError
from dpzv_audit.data.vertical import VerticalDataset
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.method import Differences
from mechanisms.core.replicas import Evaluator, ParameterStack

from .metrics import Booleans, Floats, Ints
from .setting import ATTACKER, Progress

T = TypeVar("T")


@dataclass(frozen=True)
class OwnParty:
    """The property of a client: its feature block, its model before and after training, and how to run it.

    `initial` makes the model before training when it is first asked for: few attacks do; None where nobody knows it.
    """

    features: Tensor
    held_out: Tensor
    evaluator: Evaluator
    trained: ParameterStack
    initial: Callable[[], ParameterStack] | None


@dataclass(frozen=True)
class OwnFeatures:
    """The feature block (N, ...) of a client whose model nobody needs."""

    features: Tensor


@dataclass(frozen=True)
class ServerStart:
    """A server's model before training, where all parties know it: how to run it, and for how many clients."""

    server: Evaluator
    parameters: ParameterStack
    clients: int


@dataclass(frozen=True)
class FewLabels:
    """Labels that the threat model grants: (K, n) record ids of each replica and their labels (K, n)."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SomeFeatures:
    """Features (n, ...) at a `client` of records `ids` (n,) that a server is granted, to fit a decoder."""

    client: int
    ids: Tensor
    features: Tensor


@dataclass(frozen=True)
class ServerLabels:
    """The training labels (N,), which a server owns."""

    labels: Ints


@dataclass(frozen=True)
class ClientModels:
    """The models (K, d) of the attacked client at each of its uploads, of each stack that trained, and how to run them.

    `candidates` (C, ...) are the records that the client may hold.
    """

    evaluator: Evaluator
    stacks: tuple[tuple[Tensor, ...], ...]
    candidates: Tensor

    def of_training(self, k: int) -> list[Tensor]:
        """Return the models (1, d) of training `k`, in the order of uploads."""
        for models in self.stacks:
            if k < len(models[0]):
                return [model[k : k + 1] for model in models]
            k -= len(models[0])
        raise IndexError(k)


@dataclass(frozen=True)
class Population:
    """The knowledge of an adversary that asks about membership, of records that may have been trained on.

    `confidence` is what the released models of the targets say of each, log(p / (1 - p)) of its label's probability
    p, (targets, P); `shadows` the same of the adversary's own shadow models, (S, P), of which `members` (S, P) says
    who trained on what. `outside` and `shadows_outside` are confidences in records that nobody trained on. `copies`
    (targets, Q, P) and `shadows_copies` (S, Q, P) are what they say of Q slightly changed copies of each record.
    """

    confidence: Floats
    outside: Floats
    shadows: Floats
    shadows_outside: Floats
    members: Booleans
    copies: Floats
    shadows_copies: Floats


@dataclass(frozen=True)
class AllButOne:
    """The knowledge of all labels but one of each training, and of the two labels that this one may be.

    Of training k that is the label of record `records[k]`, which is `candidates[k, 0]` or `candidates[k, 1]`; the
    others are those of `dataset`. `unit` is what a step of noise stands for where it comes in whole steps whatever the
    configuration says (a planted fault), and `progress` hears how many rounds were played again.
    """

    dataset: VerticalDataset
    records: Ints
    candidates: Ints
    unit: float | None = None
    progress: Progress = lambda done: None


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Knowledge of an adversary beside its view: public parameters, and what it owns or the threat model grants.

    `batches` is the number of batches in a pass over the data, `sigma` the standard deviation of the noise on a
    scalar (0 for methods without), `options` the attack's own with their defaults filled in, `client` the first that
    looks and `clients` how many take part. `shares`, those of the classes among the training records, are public, and
    so are the `values` (classes,) that labels stand for where the target is a number. In a `pilot` an attack may leave
    out what takes long and seldom helps.
    `grants` holds an `OwnParty` or `OwnFeatures` of each client that looks, and at most one of each of `ServerStart`,
    `FewLabels`, `SomeFeatures`, `ServerLabels`, `ClientModels`, `Population` and `AllButOne`.
    """

    method: MethodSpec
    config: TrainingConfig
    classes: int
    records: int
    batches: int
    sigma: float
    replicas: tuple[int, ...]
    seed: int
    queries: int
    options: Mapping[str, Any]
    client: int = ATTACKER
    clients: int = 1
    shares: tuple[float, ...] = (0.5, 0.5)
    values: Tensor | None = None
    pilot: bool = False
    grants: tuple[object, ...] = ()

    @property
    def rarer(self) -> int:
        """Return the class with the fewest records."""
        return int(np.argmin(self.shares))

    @property
    def share_of_ones(self) -> float:
        """Return the share of class 1."""
        return self.shares[1]

    def granted(self, kind: type[T]) -> T:
        """Return what of a `kind` the threat model grants; `InputError` where this adversary does not hold it."""
        return self.all_granted(kind)[0]

    def all_granted(self, kind: type[T]) -> list[T]:
        """Return all of a `kind` that the threat model grants; `InputError` where this adversary holds none."""
        grants = [grant for grant in self.grants if isinstance(grant, kind)]
        return grants or [granted(None, kind.__name__)]

    def label_columns(self, labels: Ints) -> Floats:
        """Return labels (n,) as columns (n, c): a row of the unit matrix for a class, or the number they stand for."""
        columns = np.eye(self.classes) if self.values is None else self.values.cpu().numpy()[:, None]
        return np.asarray(columns[labels])

    @property
    def differences(self) -> Differences:
        """Return how answers measure a gradient; `InputError` for a method whose answers do not."""
        measured = self.method.differences(self.config)
        if measured is None:
            raise InputError("use one whose answers are differences of losses", "method", self.method.name)
        return measured


def granted(grant: T | None, words: str) -> T:
    """Return a `grant` of the threat model, in words; `InputError` where this adversary does not hold it."""
    if grant is None:
        raise InputError(f"the attack needs {words}, which this adversary does not hold")
    return grant
