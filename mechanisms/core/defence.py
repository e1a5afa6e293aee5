"""What a defence is to a training: settings of a name, and what they do to labels before the first round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from dpzv_audit.accounting.labels import LabelRelease
from dpzv_audit.errors import InputError
from dpzv_audit.seeds import Purpose

from .bits import BitSource
from .noise import NoiseOrigin

if TYPE_CHECKING:
    from .context import RunContext, TrainingData

Place = Literal["labels"]
"""Where a defence stands: at labels, before training."""


@dataclass(frozen=True)
class Draws:
    """Where a defence draws from: secret bits or a seed, replica by replica; `place` is that among the defences.

    `seed` is public: what is random and protects nothing.
    """

    origin: NoiseOrigin
    seed: int
    replicas: Sequence[int]
    place: int

    def bits(self, replica: int) -> BitSource:
        """Return the source of one replica, the same each time it is asked for."""
        return BitSource(self.origin, Purpose.LABELS, (replica, self.place))


class Defence(BaseModel):
    """Settings of one defence, whose `name` says which; a subclass of each says what it does."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    name: str

    @property
    def place(self) -> Place:
        """Return where it stands."""
        return "labels"

    def on_labels(self, data: "TrainingData", draws: Draws) -> "TrainingData":
        """Return the data with labels that take the place of the true ones; these alone where that is not its place."""
        return data

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
    origin = context.seed if context.origin is None else context.origin
    for place, defence in enumerate(defences):
        data = defence.on_labels(data, Draws(origin, context.seed, tuple(context.replicas), place))
    return data


def label_release(defences: Iterable[Defence]) -> LabelRelease | None:
    """Return what the defences release of labels; None where none of them promises anything."""
    found = [release for defence in defences if (release := defence.releases()) is not None]
    return found[0] if found else None


def checked(value: Any) -> Any:
    """Return defences that are given by name and settings as what they are; `ValueError` where that cannot be."""
    from ..defences import defence_of

    given = (value,) if isinstance(value, dict | Defence) else value
    if not isinstance(given, list | tuple) or not all(isinstance(one, dict | Defence) for one in given):
        raise ValueError("must be defences, each by its name and settings")
    try:
        return tuple(one if isinstance(one, Defence) else defence_of(**one) for one in given)
    except (InputError, TypeError) as error:
        raise ValueError(str(error)) from None
