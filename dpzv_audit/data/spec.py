"""The description of a data set: its reader, its partitions, its files, and the digest that its numbers follow from."""

import importlib.metadata
import inspect
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

from ..base.errors import InputError, check_count, check_names
from ..base.files import data_digest, open_plain
from .files import file_digest, reading, unpacked_digest
from .vertical import Records, VerticalDataset, split_evenly, split_records

T = TypeVar("T")

DATA_VARIABLE = "DPZV_AUDIT_DATA"
"""Environment variable that names the data folder where no flag does."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file at `url`, kept as `name`: exactly `size` bytes with `digest` (hexadecimal) under `algorithm`.

    `unpacked` is the digest of what a gzipped file holds, where one that was gzipped anew will do as well.
    """

    url: str
    name: str
    size: int
    digest: str
    algorithm: str = "md5"
    unpacked: str | None = None

    def is_at(self, path: Path) -> bool:
        """Return whether the file at `path` is this one, or holds the same where `unpacked` says what that is."""
        if not path.is_file():
            return False
        if file_digest(path, self.algorithm) == self.digest:
            return True
        # No original packs a sixteenth of what it holds: whatever goes on beyond that is another file.
        return self.unpacked is not None and unpacked_digest(path, self.algorithm, 16 * self.size) == self.unpacked

    def check(self, path: Path) -> None:
        """Raise `InputError` unless the file at `path` is this one."""
        digest = file_digest(path, self.algorithm)
        if digest != self.digest:
            raise InputError(f"{path}: {self.algorithm} is {digest}, not {self.digest}; download {self.url} again")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set's files: its folder within the data folder, what that holds and where to get it.

    `names` says which the files are, `megabytes` their size (None where nobody publishes it), `remote` those that a
    plain URL has.
    """

    folder: str
    holds: str
    origin: str
    names: str
    megabytes: float | None = None
    remote: tuple[RemoteFile, ...] = ()

    @property
    def size(self) -> float | None:
        """Size of all files in megabytes, None where nobody publishes it."""
        if not self.remote:
            return self.megabytes
        return round(sum(file.size for file in self.remote) / 1e6, 1)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A way of dividing features among clients: `clients` by default, `takes` says in words how many it takes.

    The number of clients must divide the `divides` things that `of` names, or, where it is `fixed`, be the default.
    """

    clients: int
    takes: str
    divides: int | None = None
    of: str = ""
    fixed: bool = False


@dataclass(frozen=True)
class DataRequest:
    """A request to the reader of a data set: the partition, its number of clients, and where the files are.

    `read` is the files that it was read from, in order.
    """

    spec: "DataSpec"
    partition: str
    clients: int
    data_dir: Path | None
    read: list[Path] = field(default_factory=list, init=False)

    @cached_property
    def folder(self) -> Path:
        """The folder of the files; raises what `DataSpec.locate` raises."""
        return self.spec.locate(self.data_dir)

    def find(self, name: str) -> Path:
        """Return the path of the file `name`; `InputError` that says what to put there if there is none."""
        path = self.folder / name
        if not path.is_file():
            raise self.spec.missing(path)
        return self.found(path)

    def counted(self, *names: str) -> int:
        """Return the published number of training records; `InputError` unless the files `names` may be opened."""
        for name in names:
            path = self.find(name)
            with reading(path):
                open_plain(path).close()
        assert self.spec.records is not None
        return self.spec.records

    def found(self, path: Path) -> Path:
        """Return `path`, a file that is read: the data set names its digest."""
        self.read.append(path)
        return path

    def split(self, records: Records) -> tuple[Records, Records]:
        """Return the train and the test part of `records`, a fixed split by the data set's seed."""
        return split_records(records, seed=self.spec.seed)

    def dataset(
        self,
        train: Records,
        test: Records,
        held: str,
        *,
        complete: tuple[int, str] | None = None,
        **about: Any,
    ) -> VerticalDataset:
        """Return the data set of `train` and `test`; `held` says what each client holds, `about` what else it is told.

        `complete` are the number and the kind of all records there are: a note says where these are a subset. Digests
        are those of the files that were read, and classes those of the data set, unless `about` has others.
        """
        total = len(train) + len(test)
        if complete is not None and total != complete[0]:
            about["notes"] = (f"a subset: {total:,} of {complete[0]:,} {complete[1]}",)
        digests = {path.name: file_digest(path) for path in self.read}
        about = {"name": self.spec.name, "classes": self.spec.classes, "digests": digests, **about}
        partition = f"{self.clients} clients, {self.partition}: {held}"
        return VerticalDataset(train=train, test=test, partition=partition, **about)


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A data set: its name, one line about it, how it is read, and what its numbers follow from.

    Args:
        name: Its name on the command line and in claims.
        summary: One line about it.
        reader: Reads it: takes a `DataRequest`, and the data set's options as keywords with defaults.
        partitions: Ways of dividing its features among clients, the default first.
        source: Its folder in the data folder, and where to get the files.
        files: The files or folders that its numbers come from, by the data folder; by default `source`'s folder.
        package: The distribution that embeds it, where it needs no files.
        classes: Number of its classes, where it is always the same.
        records: Number of its training records, where it is always the same.
        needs: Files that must be there where `records` is taken for their number.
        counter: Counts its training records by its files, which must be there, without reading a record.
        seed: Decides which records train where its source does not say, for good: a run's seed never does.

    Raises:
        InputError: It says none of `source`, `files` and `package`: nobody could tell when its numbers change.
    """

    name: str
    summary: str
    reader: Callable[..., VerticalDataset]
    partitions: Mapping[str, Partition]
    source: Source | None = None
    files: Callable[[Path | None], tuple[Path, ...]] | None = None
    package: str = ""
    classes: int | None = None
    records: int | None = None
    needs: tuple[str, ...] = ()
    counter: Callable[[DataRequest], int] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.source is None and self.files is None and not self.package:
            raise InputError(f"data set {self.name}: say its source, its files or the package that embeds it")
        if not self.partitions:
            raise InputError(f"data set {self.name}: state at least one partition")

    @property
    def options(self) -> dict[str, object]:
        """The options of the reader with their defaults."""
        parameters = inspect.signature(self.reader).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def load(
        self,
        *,
        clients: int | None = None,
        partition: str | None = None,
        data_dir: Path | None = None,
        **options: Any,
    ) -> VerticalDataset:
        """Return the data set for `clients` by the way that `partition` names; see `dpzv_audit.data.load`."""
        if options and not self.options:
            raise InputError(f"option {next(iter(options))!r} is not for {self.name}, which has no options")
        check_names(f"option of {self.name}", options, self.options)
        return self.reader(DataRequest(self, *self.choose(clients, partition), data_dir), **options)

    def count(self, *, clients: int | None = None, data_dir: Path | None = None) -> tuple[int, int]:
        """Return how many training records and clients it has; no record is read where it says how to count them.

        Raises `InputError` for a number of clients that does not go, and for absent files.
        """
        request = DataRequest(self, *self.choose(clients, None), data_dir)
        if self.counter is not None:
            return self.counter(request), request.clients
        if self.records is not None:
            return request.counted(*self.needs), request.clients
        return len(self.load(clients=clients, data_dir=data_dir).train), request.clients

    def choose(self, clients: int | None, partition: str | None) -> tuple[str, int]:
        """Return the partition and its number of clients; `InputError` for one that is not there or does not go.

        Where none is named it is a fixed one of as many clients, else the first that takes other numbers.
        """
        ways = self.partitions
        fixed = [name for name, way in ways.items() if way.fixed and way.clients == clients]
        free = [name for name, way in ways.items() if clients is None or not way.fixed]
        kind = partition or [*fixed, *free, *ways][0]
        if kind not in ways:
            has = "has only one" if len(ways) == 1 else "has"
            raise InputError(f"{self.name} {has}: {', '.join(ways)}", "partition", partition)
        chosen = ways[kind]
        count = chosen.clients if clients is None else check_count("clients", clients)
        if chosen.fixed and count != chosen.clients:
            of = f" ({chosen.of})" if chosen.of else ""
            raise InputError(f"use {chosen.clients} for {kind}{of}", "clients", count)
        if chosen.divides is not None:
            split_evenly(chosen.divides, count, name="clients", of=chosen.of)
        return kind, count

    @property
    def remote(self) -> tuple[RemoteFile, ...]:
        """The files that a plain URL has."""
        return () if self.source is None else self.source.remote

    def sources(self, data_dir: Path | None) -> tuple[Path, ...]:
        """Return the files or folders that the numbers come from, none where a package embeds them."""
        if self.files is not None:
            return self.files(data_dir)
        return () if self.source is None else (self.locate(data_dir),)

    def digest(self, data_dir: Path | None) -> str:
        """Return what the data set is read from: the digest of its files, or the version of what embeds it.

        Raises `InputError` for absent files, and `dpzv_audit.base.files.Undigested` for files that cannot be read.
        """
        paths = self.sources(data_dir)
        digest = data_digest(paths) if paths else ""
        if self.package:
            digest = f"embedded, {self.package} {importlib.metadata.version(self.package)}{digest}"
        return digest

    def packaged(self, name: str) -> Path | None:
        """Return the file `name` of the installed package that embeds the data set; None where it has none there."""
        try:
            path = Path(str(importlib.metadata.distribution(self.package).locate_file(name)))
        except importlib.metadata.PackageNotFoundError:
            return None
        return path if path.is_file() else None

    def locate(self, data_dir: Path | None) -> Path:
        """Return the folder of the files: `source`'s in `data_dir` (or DPZV_AUDIT_DATA) if there, else itself.

        Raises `InputError` naming the flag or the variable if neither is set or the folder does not exist.
        """
        source = self.source
        if source is None:
            raise InputError(f"{self.name} has no folder of files")
        right = f"the folder that holds {source.folder}/ or {source.holds}"
        value = data_dir or os.environ.get(DATA_VARIABLE)
        if not value:
            raise InputError(
                f"{self.name} needs its files: give ‹data_dir› DIR, {right}, or set {DATA_VARIABLE}; {source.origin}"
            )
        folder = Path(value)
        if not folder.is_dir():
            reason = "is not a folder" if folder.exists() else "does not exist"
            raise InputError(f"which {reason}; use {right}", "data_dir" if data_dir else DATA_VARIABLE, folder)
        inner = folder / source.folder
        return inner if inner.is_dir() else folder

    def missing(self, path: Path) -> InputError:
        """Return an `InputError` for the absent `path`, which says what to download and where to put it."""
        source = self.source
        assert source is not None
        return InputError(f"{path}: no such file; {source.origin}, to go into {source.folder}/ of the data folder")


def declared(name: str, section: str, kind: type[T]) -> T:
    """Return `section` of what `sets/NAME.toml` says of the data set `name`, as a `kind`."""
    return cast(T, _adapter(cast(Any, kind)).validate_python(_declaration(name)[section]))


def declared_spec(
    name: str, reader: Callable[..., VerticalDataset], counter: Callable[[DataRequest], int] | None = None
) -> DataSpec:
    """Return the data set that `sets/NAME.toml` declares, `reader` reads, and `counter` counts where it has files."""
    entries = {**_declaration(name), "name": name, "reader": reader, "counter": counter}
    return cast(DataSpec, _adapter(DataSpec).validate_python(entries))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # takes 10 ms to build


@cache
def _declaration(name: str) -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"sets/{name}.toml").read_text("utf-8"))
