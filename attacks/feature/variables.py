"""Variables of a data set as attacks on features name them: one to infer, its categories, and its value per record."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpzv_audit.base.errors import InputError, unknown_name
from dpzv_audit.data.vertical import Variable, VerticalDataset

from ..core.metrics import Floats, Ints
from .quality import category, variables

AUTO = "auto"
HOLDER = "holder"
NONE_OF_THEM = "none of them"
# A variable whose second category has a smaller share is not chosen by itself.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Attribute:
    """A variable to infer: its `name`, the `holder` (from 1) in whose block it is, and its `columns` there.

    `values` (N,) are numbers, or of a variable with `categories` the place of each record's category.
    """

    name: str
    holder: int
    values: Floats
    categories: tuple[str, ...] = ()
    columns: slice = field(default_factory=lambda: slice(0))

    @classmethod
    def of(cls, dataset: VerticalDataset, variable: Variable) -> "Attribute":
        """Return a variable with its value for each training record.

        One of two values is a category; so is one of several columns, with `none of them` where a record has none.
        """
        columns = _flat(dataset, variable.client)[:, variable.columns]
        width = columns.shape[1]
        where = variable.columns
        if width == 1:
            values, places = np.unique(columns[:, 0], return_inverse=True)
            if len(values) > 2:
                return cls(variable.name, variable.client, columns[:, 0].astype(np.float64), columns=where)
            names = [f"{value:g}" for value in values]
            return cls(variable.name, variable.client, places.astype(np.float64), tuple(names), where)
        places = category(columns)
        names = [*(variable.values or (f"{j}" for j in range(1, width + 1)))]
        if (places == width).any():
            names.append(NONE_OF_THEM)
        return cls(variable.name, variable.client, places.astype(np.float64), tuple(names), where)

    def against(self, value: str) -> "Attribute":
        """Return this variable as one category against all others; `InputError` for one that it does not have."""
        if value not in self.categories:
            if not self.categories:
                raise InputError("a number, which has no categories; leave =... out", "attribute", self.name)
            raise unknown_name(f"category of {self.name}", value, self.categories)
        values = (self.values == self.categories.index(value)).astype(np.float64)
        return Attribute(f"{self.name}={value}", self.holder, values, (f"not {value}", value), self.columns)

    @property
    def counts(self) -> Ints:
        """Return how many records each category has."""
        return np.bincount(self.values.astype(np.int64), minlength=len(self.categories))


def attribute_named(dataset: VerticalDataset, name: str, target: str) -> Attribute:
    """Return the attribute of a name and of the client who is attacked.

    A name is that of a variable, NAME=VALUE one category of it against all others, or the number of a column (from 1)
    in the block of the `target`. `auto` is a variable of the target with the fewest categories, of those the most even
    one, or where it has none the number of the largest variance.

    Raises:
        InputError: There is no such variable, category or column.
    """
    client = client_named(dataset, target)
    known = {variable.name: variable for variable in dataset.variables}
    if name in known:
        return Attribute.of(dataset, known[name])
    variable_name, separator, value = name.partition("=")
    if separator and variable_name in known:
        return Attribute.of(dataset, known[variable_name]).against(value)
    if dataset.train.features[client - 1].dtype != np.float32:
        raise InputError(
            f"client {client} holds token ids; use a data set with numbers or categories", "attribute", name
        )
    if 0 in dataset.shapes[client - 1]:
        raise InputError(f"client {client} holds no features", "attribute", name)
    if name == AUTO and dataset.picture(client - 1):
        name = str(1 + int(_flat(dataset, client).var(0).argmax()))
    if name == AUTO:
        return min((Attribute.of(dataset, variable) for variable in held(dataset, client)), key=_preference)
    if name.isdecimal():
        for variable in held(dataset, client):
            if variable.columns.start < int(name) <= variable.columns.stop:
                return Attribute.of(dataset, variable)
        width = int(np.prod(dataset.shapes[client - 1]))
        raise InputError(f"use a column of client {client}: 1 to {width}", "attribute", name)
    if known:
        raise unknown_name("attribute", name, known)
    raise InputError("no variable of these data has a name; use the number of a column, or auto", "attribute", name)


def client_named(dataset: VerticalDataset, target: str) -> int:
    """Return the client who is attacked where it is not the holder of an attribute: by default the first."""
    if target == HOLDER:
        return 1
    if target.isdecimal() and 1 <= int(target) <= dataset.clients:
        return int(target)
    raise InputError(f"use one of 1 to {dataset.clients}, or {HOLDER}", "option target", target)


def held(dataset: VerticalDataset, client: int) -> Iterator[Variable]:
    """Yield the variables of a client: those of the data set, or where these have no names those that columns make."""
    named = [variable for variable in dataset.variables if variable.client == client]
    if named:
        yield from named
        return
    flat = _flat(dataset, client)
    picture = dataset.picture(client - 1)
    for columns in (slice(j, j + 1) for j in range(flat.shape[1])) if picture else variables(flat):
        first, last = columns.start + 1, columns.stop
        yield Variable(f"column {first}" if first == last else f"columns {first} to {last}", client, columns)


def _flat(dataset: VerticalDataset, client: int) -> Floats:
    block: Any = dataset.train.features[client - 1]
    return np.asarray(block.reshape(len(block), -1))


def _preference(attribute: Attribute) -> tuple[float, ...]:
    """Return the key by which attributes are preferred, the least first."""
    if not attribute.categories:
        return 1.0, 0.0, -float(attribute.values.var())
    shares = np.sort(attribute.counts / len(attribute.values))[::-1]
    if len(shares) < 2 or shares[1] < LEAST_SHARE:
        return 2.0, 0.0, 0.0
    return 0.0, float(len(shares)), float(shares[0])
