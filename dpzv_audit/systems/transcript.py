"""Transcripts: a folder with the messages of one training, `manifest.json` beside safetensors files.

`load` reads one, `save` writes one; `recorded.py` makes a method of it, which attacks read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from ..base import limits
from ..base.errors import InputError, check_count, plain_rule, some
from ..base.files import check_values, read_plain
from ..base.npy import open_safetensors
from ..base.store import private_folder, write_atomically
from .messages import PER_RECORD, SERVER, Note, Sent, numbers_of

if TYPE_CHECKING:
    from .record import Recorder

SCHEMA = "dpzv-audit/transcript/1"
MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 1 << 28
_MOST_VALUES = 12_000_000
"""Values in a manifest: a million messages."""
_MOST_FILES = 10_000

Name = Annotated[str, Field(min_length=1, max_length=limits.LONGEST_TEXT)]
Party = Annotated[int, Field(ge=0, le=limits.MOST_CLIENTS)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class SentEntry(_Section):
    """One message."""

    round: Annotated[int, Field(ge=-1, le=10**9)]
    """Round number, from 0; -1 for what is sent before training starts."""
    sender: Party
    """Party number; 0 is the server."""
    receiver: Party
    """Party number."""
    kind: Annotated[str, Field(pattern="^[a-z][a-z0-9_-]{0,39}$")]
    """`embeddings`, `gradient`, `prediction`, `scalar`, `losses`, or a word of the system's own."""
    tensor: Name
    """Name of the tensor that travelled."""
    ids: Annotated[str, Field(max_length=limits.LONGEST_TEXT)] = ""
    """Name of the ids (B,), int64, of its records by row; left out where it is about none."""


class NoteEntry(_Section):
    """Something that a party knows by itself."""

    party: Party
    """Party number."""
    name: Name
    """What it is."""
    tensor: Name
    """Name of its tensor."""


class Manifest(_Section):
    """What a transcript's `manifest.json` says."""

    schema_: Annotated[Literal["dpzv-audit/transcript/1"], Field(alias="schema")]
    """Version of the format."""
    records: Annotated[int, Field(ge=1, le=limits.MOST_RECORDS)]
    """Number of training records; ids are in 0 to `records` - 1."""
    clients: Annotated[int, Field(ge=1, le=limits.MOST_CLIENTS)]
    """Number of clients, parties 1 to `clients`; party 0 is the server, which holds the labels."""
    classes: Annotated[int, Field(ge=2, le=limits.WIDEST)]
    """Number of classes; labels are in 0 to `classes` - 1."""
    top_model: bool = True
    """Whether the server has a model of its own; false where it only sums what clients send."""
    public_ids: bool = False
    """Whether ids travelled in the clear, as entity alignment leaves them: an eavesdropper then knows them too."""
    encrypted: bool = False
    """Whether messages crossed the network under TLS: an eavesdropper then saw their lengths and times alone."""
    files: Annotated[list[Name], Field(min_length=1, max_length=_MOST_FILES), FailFast()]
    """The safetensors files beside the manifest that hold its tensors."""
    messages: Annotated[list[SentEntry], FailFast()]
    """Messages in the order in which they were sent."""
    notes: Annotated[list[NoteEntry], FailFast()] = []
    """What parties know by themselves."""


@dataclass(frozen=True, eq=False)
class Transcript:
    """A transcript that was read: the content of its `Recorder`, by the same names."""

    folder: Path
    manifest: Manifest

    @property
    def records(self) -> int:
        """Number of training records."""
        return self.manifest.records

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.manifest.clients

    @cached_property
    def messages(self) -> list[Sent]:
        """Messages in order."""
        return [Sent(**entry.model_dump()) for entry in self.manifest.messages]

    @cached_property
    def notes(self) -> list[Note]:
        """Notes of parties."""
        return [Note(**entry.model_dump()) for entry in self.manifest.notes]

    def of(self, client: int) -> "Transcript":
        """Return the same training with the messages of one client alone."""
        messages = [entry for entry in self.manifest.messages if client in (entry.sender, entry.receiver)]
        alone = Transcript(self.folder, self.manifest.model_copy(update={"messages": messages}))
        alone.__dict__["_files"] = self._files
        return alone

    @property
    def tensors(self) -> "Transcript":
        """The arrays by name."""
        return self

    @cached_property
    def _files(self) -> dict[str, Any]:
        """The open file of each tensor: it maps them into memory, and reads its header once."""
        files: dict[str, Any] = {}
        for name in self.manifest.files:
            path = self.folder / name
            try:
                file = open_safetensors(path, links=False)
            except (OSError, ValueError) as error:
                raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
            files |= dict.fromkeys(file.keys(), file)
        return files

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return np.asarray(self._files[name].get_tensor(name))
        except (TypeError, AttributeError) as error:  # a type that numpy has not, such as bfloat16
            raise InputError(f"{self.folder}: tensor {name!r} cannot be read by numpy: {error}") from error

    def shards(self) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yield all arrays, those of one file together."""
        for file in dict.fromkeys(self._files.values()):
            yield {name: self[name] for name in file.keys() if self._files[name] is file}  # noqa: SIM118


def save(
    record: "Recorder",
    folder: Path | str,
    *,
    classes: int,
    public_ids: bool = False,
    top_model: bool = True,
    encrypted: bool = False,
) -> Path:
    """Write a record as a transcript; return its folder.

    Its files are their owner's alone: a transcript tells of records and labels.

    Args:
        record: The record of a training.
        folder: Folder to write, which must be empty or absent.
        classes: Number of classes, two at least.
        public_ids: Whether ids travelled in the clear, as entity alignment leaves them.
        top_model: Whether the server has a model of its own; False where it only sums what clients send.
        encrypted: Whether messages crossed the network under TLS.

    Raises:
        InputError: The folder holds files, nothing was recorded, or there are fewer than two classes.
    """
    from safetensors.numpy import save as as_bytes

    folder = Path(folder)
    check_count("classes", classes, least=2)
    if not record.messages:
        raise InputError("nothing was recorded; record at least one message")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: holds files; use an empty or new folder: a transcript is never written over another"
        )
    private_folder(folder)
    files = []
    for number, shard in enumerate(record.tensors.shards()):
        files.append(f"tensors-{number:05}.safetensors")
        write_atomically(folder / files[-1], as_bytes(dict(shard)))
    # The manifest comes last: a folder without one is no transcript.
    messages = [{key: value for key, value in message._asdict().items() if value != ""} for message in record.messages]
    manifest = {
        "schema": SCHEMA,
        "records": record.records,
        "clients": record.clients,
        "classes": classes,
        "top_model": top_model,
        "public_ids": public_ids,
        "encrypted": encrypted,
        "files": files,
        "messages": messages,
        "notes": [note._asdict() for note in record.notes],
    }
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return folder


def load(folder: Path) -> Transcript:
    """Read and check a transcript; `InputError` in one line for what is wrong, with its file and key."""
    path = folder / MANIFEST
    try:
        text = read_plain(path, _LARGEST_MANIFEST, links=False)
        check_values(text, _MOST_VALUES)
        transcript = Transcript(folder, Manifest.model_validate_json(text))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: key {key}: {plain_rule(first['msg'])}" if key else f"{path}: {first['msg']}"
        ) from None
    except ValueError as error:  # of `check_values`
        raise InputError(f"{path}: {error}") from None
    _check(transcript, path)
    return transcript


def _check(transcript: Transcript, path: Path) -> None:
    """Refuse files outside the folder, names without a tensor, parties that are not there, ids that fit no row."""
    names = transcript.manifest.files
    for name in names:
        if Path(name).name != name or name == ".." or not name.isprintable():
            raise InputError(f"{path}: key files holds {name!r}; use names of files beside the manifest")
    if len(set(names)) < len(names):
        raise InputError(f"{path}: key files names a file twice; name each once")
    shapes: dict[str, tuple[int, ...]] = {}
    known: set[str] = set()
    for number, message in enumerate(transcript.messages):
        where = f"{path}: messages.{number}:"
        for tensor in filter(None, (message.tensor, message.ids)):
            if tensor not in transcript._files:
                raise InputError(f"{where} tensor {tensor!r} is in none of {', '.join(names)}")
        if max(message.sender, message.receiver) > transcript.clients or message.sender == message.receiver:
            raise InputError(
                f"{where} is from {message.sender} to {message.receiver}; "
                f"use two of the parties 0 to {transcript.clients}"
            )
        if message.kind in PER_RECORD and not message.ids:
            raise InputError(f"{where} {some(message.kind)} has no ids: say which record each row is about")
        if message.tensor not in shapes:  # many messages may be one tensor
            try:
                shapes[message.tensor] = numbers_of(message.kind, transcript[message.tensor]).shape
            except InputError as error:
                raise error.placed(f"{where} tensor {message.tensor!r}") from None
        if not message.ids:
            continue
        fitting = True
        if message.ids not in known:
            ids = transcript[message.ids]
            fitting = ids.ndim == 1 and ids.dtype.kind in "iu"
            if fitting and ids.size and not 0 <= ids.min() <= ids.max() < transcript.records:
                raise InputError(f"{where} ids {message.ids!r} are out of range; use 0 to {transcript.records - 1}")
            known.add(message.ids)
            shapes.setdefault(message.ids, ids.shape)
        if message.kind in PER_RECORD:
            fitting = fitting and shapes[message.ids] == shapes[message.tensor][:1]
        if not fitting:
            raise InputError(
                f"{where} ids {message.ids!r} do not fit; use whole numbers, one for each row of its tensor"
            )
    for note in transcript.notes:
        if note.tensor not in transcript._files or note.party > transcript.clients:
            raise InputError(f"{path}: note {note.name!r} names a tensor or a party that is not there")


def merge(record: "Recorder", *folders: Path | str) -> None:
    """Add the records of other parties of the same training: each records what it sends, and saves a transcript.

    Within a round messages to the server stand before its answers.
    """
    for number, folder in enumerate(folders):
        other = load(Path(folder))
        if (other.records, other.clients) != (record.records, record.clients):
            raise InputError(
                f"{folder}: is of {other.records} records and {other.clients} clients; "
                f"use one of the same training, of {record.records} and {record.clients}"
            )
        prefix = f"p{len(record.tensors)}-{number}-"
        for shard in other.shards():
            for name, values in shard.items():
                record.tensors.add(prefix + name, values)
        for message in other.messages:
            ids = message.ids and prefix + message.ids
            record.messages.append(message._replace(tensor=prefix + message.tensor, ids=ids))
        record.notes += [note._replace(tensor=prefix + note.tensor) for note in other.notes]
    record.messages.sort(key=lambda message: (message.round, message.receiver != SERVER))


def schema_of_transcripts() -> dict[str, object]:
    """Return the JSON schema (draft 2020-12) of `manifest.json`."""
    schema = Manifest.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": f"{MANIFEST} of a transcript"}


def main() -> None:
    """Print the JSON schema of a transcript's manifest, as the documentation publishes it."""
    print(json.dumps(schema_of_transcripts(), indent=1))


if __name__ == "__main__":
    main()
