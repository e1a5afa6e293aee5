"""Defences: settings with a name, and what they do to labels, or to what is sent up or down.

Labels change before the first round. Gradients change after the noise of the method's own, so that its bound holds of
them still: of defences that do not read labels what goes down is post-processing. Several change them in turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from dpzv_audit.accounting.labels import LabelRelease
from dpzv_audit.base.errors import InputError, rule_after_value, unknown_name
from dpzv_audit.base.registry import Registry
from dpzv_audit.base.seeds import Purpose

from .secret import Origin

if TYPE_CHECKING:
    from torch import Tensor

    from .bits import BitSource
    from .channel import Channel
    from .config import TrainingConfig
    from .context import RunContext, TrainingData
    from .streams import Batch

Place = Literal["labels", "embedding", "gradient"]
"""Where a defence stands: at labels, before training, at what a client sends up, or at gradients that it gets back."""


@dataclass(frozen=True)
class Draws:
    """The source of a defence's draws: secret bits or a seed, for each replica; `place` is that among the defences.

    `seed` is public: what is random and protects nothing. On the `channel` clients send what a defence needs of them;
    None: a system of the user's own, whose messages are its own. `number` is that of a message among all of the run.
    """

    origin: Origin
    seed: int
    replicas: Sequence[int]
    place: int
    channel: "Channel | None" = None
    number: int = 0

    def send(self, client: int, features: "Tensor") -> "Tensor":
        """Return features (K, N, d) as the server receives them of a client, once, before training."""
        from .channel import SERVER, Message

        if self.channel is None:
            return features
        return self.channel.send(Message(-1, client, SERVER, "features", features))

    def bits(self, replica: int) -> "BitSource":
        """Return the source of one replica, the same each time it is asked for."""
        from .bits import BitSource

        return BitSource(self.origin, Purpose.LABELS, (replica, self.place))

    def normal(self, shape: tuple[int, ...], like: "Tensor") -> "Tensor":
        """Return independent N(0, 1) for one message, (K, *shape), on the device of `like`; the same each time."""
        import torch

        from .noise import gaussian

        rows = [gaussian(shape, 1.0, self.origin, Purpose.DEFENCE, k, self.place, self.number) for k in self.replicas]
        return torch.from_numpy(np.stack(rows)).to(like)


class Defence(BaseModel):
    """Settings of one defence, whose `name` says which; a subclass of each says what it does."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    place: ClassVar[Place] = "labels"
    """Where it stands."""
    binary: ClassVar[bool] = False
    """Whether it is one for two classes alone."""
    reads_labels: ClassVar[bool] = False
    """Whether what it sends of a gradient depends on labels beside it: that is no post-processing."""

    name: str

    def on_labels(self, data: "TrainingData", draws: Draws) -> "TrainingData":
        """Return the data with labels that take the place of the true ones; these alone where that is not its place."""
        return data

    def response(self, classes: int, records: int) -> NDArray[np.float64] | None:
        """Return the chance (classes, classes) of each private label under each true one, a row for each of these.

        It is what anyone can compute who knows the settings; None where labels stay, or settings do not tell.
        """
        return None

    def on_embeddings(self, features: "Tensor", embeddings: "Tensor") -> "Tensor | None":
        """Return what a client adds to the gradient at its `embeddings`; None where that is not its place.

        Args:
            features: The client's features of a batch, (K, B, ...).
            embeddings: What its models make of them, (K, B, width).

        Returns:
            The gradient (K, B, width) of what the client minimises beside the loss of the batch.
        """
        return None

    def on_answers(self, embeddings: "Tensor", gradient: "Tensor") -> "Tensor":
        """Return what a client pulls back of the `gradient` that it was sent; this alone where that is not its place.

        Args:
            embeddings: The client's embeddings of a batch, (K, B, width).
            gradient: What the server answered, (K, B, width).
        """
        return gradient

    def on_gradients(self, values: "Tensor", labels: "Tensor", real: "Tensor", draws: Draws) -> "Tensor":
        """Return gradients of one message as they are sent; these alone where that is not its place.

        Args:
            values: Each record's own gradient at one client's embedding, (K, B, width) in float64.
            labels: Labels that are trained on, (K, B).
            real: Where a place holds a record, booleans (K, B); gradients elsewhere are 0 and stay so.
            draws: Where randomness comes from.
        """
        return values

    @property
    def draws(self) -> bool:
        """Return whether it draws what is to protect something."""
        return self.releases() is not None

    def releases(self) -> LabelRelease | None:
        """Return what it releases of labels, as an accountant takes it; None where nothing is promised."""
        return None


@dataclass(frozen=True, kw_only=True)
class DefenceSpec:
    """A defence as users name it.

    Attributes:
        name: The name on the command line.
        summary: One line about it.
        source: Whose it is: paper and section.
        settings: Its settings, which say what it does.
    """

    name: str
    summary: str
    source: str
    settings: type[Defence]


def defended(data: "TrainingData", defences: Sequence[Defence], context: "RunContext") -> "TrainingData":
    """Return what a run trains on: labels through each of the `defences` in turn."""
    for defence in defences:
        if defence.binary and data.classes != 2:
            rule = f"leave it out: it is for 2 classes, and there are {data.classes}"
            raise InputError(rule, "defence", defence.name)
        if data.values is not None and (defence.place == "labels" or defence.reads_labels):
            raise InputError("leave it out: it is for classes, and the target is a number", "defence", defence.name)
    for place, defence in enumerate(defences):
        draws = Draws(context.noise_origin, context.seed, context.replicas, place, context.channel)
        data = defence.on_labels(data, draws)
    return data


def penalised(gradient: "Tensor", defences: Iterable[Defence], features: "Tensor", embeddings: "Tensor") -> "Tensor":
    """Return the gradient (K, B, width) at `embeddings` that a client pulls back: what its defences make of it."""
    for defence in defences:
        gradient = defence.on_answers(embeddings, gradient)
        added = defence.on_embeddings(features, embeddings)
        gradient = gradient if added is None else gradient + added
    return gradient


class GradientDefences:
    """Changes gradients that a server sends down by each of a configuration's defences that stands there, in turn.

    `messages` says how many have been changed: each draws from a stream of its own, so a run can be taken up again.
    """

    def __init__(self, config: "TrainingConfig", context: "RunContext") -> None:
        import torch

        self._defences = [(n, defence) for n, defence in enumerate(config.defences) if defence.place == "gradient"]
        self._context = context
        self._size = config.batch_size
        self.messages = torch.zeros(1, dtype=torch.int64)

    def __bool__(self) -> bool:
        """Return whether any stands there."""
        return bool(self._defences)

    def __call__(self, values: "Tensor", data: "TrainingData", batch: "Batch") -> "Tensor":
        """Return gradients (K, B, width) of the mean over `batch` as they are sent.

        Defences see a record's own gradient, which is B times its part of the mean.
        """
        if not self._defences:
            return values
        context = self._context
        number = int(self.messages)
        self.messages += 1
        labels = data.named_labels(batch)
        rows = values.double() * self._size
        for place, defence in self._defences:
            draws = Draws(context.noise_origin, context.seed, context.replicas, place, number=number)
            rows = defence.on_gradients(rows, labels, batch.members >= 0, draws)
        return (rows / self._size).to(values.dtype)


def words_of(defences: Sequence[Defence]) -> str:
    """Return which labels and gradients the defences protect, in words for every result; empty where none."""
    private = ", ".join(defence.name for defence in defences if defence.releases() is not None)
    changing = ", ".join(defence.name for defence in defences if defence.place == "gradient")
    labels = f"labels, privatised once before training by {private}"
    gradients = f"gradients sent to clients, changed by {changing}, which promises nothing"
    return "; and ".join([labels] * bool(private) + [gradients] * bool(changing))


def label_release(defences: Iterable[Defence]) -> LabelRelease | None:
    """Return what the defences release of labels; None where none of them promises anything."""
    return next((release for defence in defences if (release := defence.releases()) is not None), None)


DEFENCES: Registry[DefenceSpec] = Registry("dpzv_audit.defences", DefenceSpec)
"""Every defence by name; `mechanisms.defences` adds the tool's own."""


def defence_of(name: str, **settings: Any) -> Defence:
    """Return the defence called `name` with its settings; `InputError` for an unknown name or a wrong setting."""
    kind = DEFENCES.named(name, "defence").settings
    for key in settings:
        if key not in kind.model_fields or key == "name":
            raise unknown_name(
                f"option of defence {name}", key, [field for field in kind.model_fields if field != "name"]
            )
    try:
        return kind(name=name, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(rule_after_value(first["msg"]), f"option {field} of defence {name}", first["input"]) from None


def checked(value: Any) -> Any:
    """Return defences that are given by name and settings as what they are; `ValueError` where that cannot be."""
    items = (value,) if isinstance(value, dict | Defence) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, dict | Defence) for item in items):
        raise ValueError("use defences, each by its name and settings")
    try:
        return tuple(item if isinstance(item, Defence) else defence_of(**item) for item in items)
    except (InputError, TypeError) as error:
        raise ValueError(str(error)) from None
