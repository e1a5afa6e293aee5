"""A distinguishing game as data (mechanism, neighbours, canary, adversary, score) and its two neighbouring data sets.

Source: Nasr et al., "Adversary instantiation", S&P 2021.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from mechanisms.core.method import MethodSpec
from mechanisms.core.scalars import ScalarConfig
from mechanisms.methods.dpzv import DPZV

from ..accounting.gaps import RATE_FOLLOWS
from ..base.errors import InputError, check_names, check_positive
from ..base.registry import package_digest
from ..data.vertical import FeatureArray, Records, VerticalDataset

Neighbours = Literal["replace-label", "replace-record", "add-remove", "zero-out"]
Canary = Literal["worst-case", "state", "mislabelled", "random"]
GameAdversary = Literal["client", "colluding-clients", "eavesdropper", "release"]
Others = Literal["zero", "saturated"]

NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)
GAME_ADVERSARIES: tuple[GameAdversary, ...] = get_args(GameAdversary)
_WORDS = tomllib.loads((Path(__file__).parent / "tables" / "games.toml").read_text("utf-8"))
CANARIES: dict[Canary, str] = _WORDS["canaries"]
SCORES: dict[str, str] = _WORDS["scores"]
CANARY = 0
"""Record number of the canary."""
DEFAULT_NORM = 1000.0
KNOWS_IDS = ("client", "colluding-clients")


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game on the noised scalars of a method.

    Attributes:
        method: The audited method, which trains.
        config: The audited configuration; its claim and noise are taken as they are.
        neighbours: How the worlds differ in the canary: its label, its record (the adversary's own block held fixed),
            whether it is there, or whether its contribution is 0.
        canary: See `CANARIES`.
        adversary: `client` (client 1), `colluding-clients` (all of them), `eavesdropper` (every scalar, no batch ids),
            `release` (the published scalars where the canary is worst-case, else the final model).
        others: What the other records contribute beside a worst-case canary: 0 (`zero`) or +C each (`saturated`).
        first_pass_repeats: How often each batch of client 1's first pass serves, as in the attacked training.
        norm: What the features of a `state` canary are multiplied by.
    """

    method: MethodSpec = DPZV
    config: ScalarConfig
    neighbours: Neighbours = "replace-label"
    canary: Canary = "worst-case"
    adversary: GameAdversary = "client"
    others: Others = "zero"
    first_pass_repeats: int = 1
    norm: float = DEFAULT_NORM

    def __post_init__(self) -> None:
        check_names("neighbours", [self.neighbours], NEIGHBOURS)
        check_names("canary", [self.canary], CANARIES)
        check_names("others", [self.others], get_args(Others))
        check_positive("norm", self.norm)
        if self.others == "saturated" and self.canary != "worst-case":
            raise InputError(f"‹others› saturated goes with ‹canary› worst-case, not with {self.canary}")
        if self.others == "saturated" and self.neighbours == "zero-out":
            raise InputError("‹others› saturated does not go with ‹neighbours› zero-out; use zero")
        reason = why_undefined(self.neighbours, self.canary, self.adversary, self.config)
        if reason:
            place = f"‹adversary› {self.adversary}"
            if self.adversary not in _NO_VIEW:
                place = f"‹neighbours› {self.neighbours}, ‹canary› {self.canary}, {place}"
            raise InputError(f"no game for {place}: {reason}")

    def facts(self) -> dict[str, object]:
        """Return the method, the configuration and the rest of the game, as plain values.

        Of an installed method also the digest of its package: what was kept of other code is not taken up.
        """
        game = {name: value for name, value in vars(self).items() if name not in ("method", "config")}
        installed = package_digest("dpzv_audit.methods", self.method.name)
        code = {"code": installed} if installed else {}
        return {"method": self.method.name, **code, "config": self.config.model_dump(mode="json"), "game": game}

    @property
    def unit(self) -> float:
        """Contribution C/B of a record to the scalar of its batch where its loss difference is at the clip."""
        return self.config.clip / self.config.batch_size

    @property
    def means(self) -> tuple[float, float]:
        """Mean of a round with the canary in the worlds "out" and "in", where the others contribute 0."""
        return (0.0 if self.neighbours in ("add-remove", "zero-out") else -self.unit), self.unit

    @property
    def knows_ids(self) -> bool:
        """Whether the adversary knows the batch ids: a client draws its own batches."""
        return self.adversary in KNOWS_IDS


_NO_VIEW = {
    "server": "it owns the labels and receives the embeddings, so there is nothing left to tell",
    "all-but-one": "colluding-clients plays it: the replay of a transcript knows every other label too",
    "malicious-server": "as the server it owns the labels, and receives the embeddings",
    "malicious-client": "it does not follow the protocol; planted:repeated-record shows what it can do",
}


def why_undefined(neighbours: str, canary: str, adversary: str, config: ScalarConfig) -> str | None:
    """Return in words why a combination has no game, None where it has one; `InputError` for an unknown adversary."""
    if adversary in _NO_VIEW:
        return _NO_VIEW[adversary]
    check_names("adversary", [adversary], GAME_ADVERSARIES)
    if neighbours == "add-remove":
        if adversary in KNOWS_IDS:
            return "the batch ids themselves show whether the record is there"
        if config.sampler != "poisson":
            return f"with the {config.sampler} sampler the other records' batches change with the number of records"
        if config.sample_rate is None:
            return f"{RATE_FOLLOWS}: set sample_rate"
        if canary == "mislabelled":
            return "a wrong label needs the record in both data sets"
    if neighbours == "zero-out" and canary != "worst-case":
        return "only of a worst-case canary is the contribution set to 0"
    if canary == "state" and adversary not in KNOWS_IDS:
        return "without batch ids the rounds without the record are not known"
    return None


def _labels_of(game: Game, dataset: VerticalDataset) -> tuple[int, int]:
    """Return the canary's labels in the worlds "out" and "in".

    0 and 1 for a worst-case or state canary, else its own label and, for a mislabelled one, the one whose records it is
    least like, for a random one the next class.
    """
    if game.canary in ("worst-case", "state"):
        return 0, 1
    own = int(dataset.train.labels[CANARY])
    return own, _unlikely_label(dataset) if game.canary == "mislabelled" else (own + 1) % dataset.classes


Features = tuple[FeatureArray, ...]


@dataclass(frozen=True)
class Worlds:
    """Both worlds: data sets of "out" and "in", the canary's labels, and whether only its label differs.

    `present` says in which of the worlds the canary is there (`add-remove`: not in "out"; `zero-out`: in "out" its
    record is there, but what is sent for it is 0).
    """

    data: tuple[VerticalDataset, VerticalDataset]
    labels: tuple[int, int]
    label_alone: bool
    present: tuple[bool, bool] = (True, True)


def worlds_of(game: Game, dataset: VerticalDataset) -> Worlds:
    """Return the two worlds of `game` on `dataset`.

    `state` multiplies the canary's features by `game.norm` in both worlds. `replace-record`: in "in" the record has the
    features of another record of the label that it has there, except in the blocks that the adversary holds; to one who
    holds them all it is `replace-label`.
    `add-remove`: "out" lacks the record. `zero-out`: both have it, in "out" nobody sends anything but 0 for it.
    Raises `InputError` for a canary that there cannot be.
    """
    labels = _labels_of(game, dataset)
    features: Features = dataset.train.features
    if game.canary == "state":
        features = _scaled(features, game)
    if game.neighbours == "add-remove":
        # The worst-case canary's contribution is -C where the others are at +C: there a wrong divisor shows.
        label = labels[0] if game.others == "saturated" else labels[1]
        own = label if game.canary in ("worst-case", "state") else labels[0]
        inside = _with(dataset, features, own)
        return Worlds((_without(inside), inside), labels, False, (False, True))
    if game.neighbours == "zero-out":
        inside = _with(dataset, features, labels[1])
        return Worlds((inside, inside), labels, False, (False, True))
    out, inside = (_with(dataset, features, label) for label in labels)
    held = {"client": 1, "colluding-clients": len(features)}.get(game.adversary, 0)
    if game.neighbours == "replace-label" or held == len(features):
        return Worlds((out, inside), labels, True)
    donors = np.flatnonzero(dataset.train.labels == labels[1])
    donors = donors[donors != CANARY]
    if donors.size == 0:
        raise InputError(
            f"but no other record has label {labels[1]} to take the canary's place; use replace-label",
            "neighbours",
            "replace-record",
        )
    changed: Features = tuple(block if m < held else _row(block, block[donors[0]]) for m, block in enumerate(features))
    return Worlds((out, _with(dataset, changed, labels[1])), labels, False)


def _unlikely_label(dataset: VerticalDataset) -> int:
    """Return the label whose records' mean is furthest from the record's features; not its own."""
    rows = np.concatenate([block.reshape(len(block), -1) for block in dataset.train.features], axis=1)
    labels = dataset.train.labels
    others = [label for label in np.unique(labels) if label != labels[CANARY]]
    if not others:
        raise InputError("use another: all records have one label", "canary", "mislabelled")
    distances = [np.linalg.norm(rows[labels == label].mean(0) - rows[CANARY]) for label in others]
    return int(others[int(np.argmax(distances))])


def _scaled(features: Features, game: Game) -> Features:
    if any(block.dtype.kind != "f" for block in features):
        raise InputError("‹canary› state needs numeric features; use it on other data than token ids")
    return tuple(_row(block, block[CANARY] * np.float32(game.norm)) for block in features)


def _row(block: FeatureArray, value: Any) -> FeatureArray:
    changed = block.copy()
    changed[CANARY] = value
    return changed


def _with(dataset: VerticalDataset, features: Features, label: int) -> VerticalDataset:
    labels = dataset.train.labels.copy()
    labels[CANARY] = label
    return replace(dataset, train=Records(features=features, labels=labels))


def _without(dataset: VerticalDataset) -> VerticalDataset:
    features: Features = tuple(np.delete(block, CANARY, axis=0) for block in dataset.train.features)
    return replace(dataset, train=Records(features=features, labels=np.delete(dataset.train.labels, CANARY)))
