"""A transcript as a method: attacks read the messages of the recorded training, which cannot be repeated."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.capabilities import Capabilities, downlink_of
from mechanisms.core.method import MethodSpec, Protection, no_noise

from ..data.files import file_digest
from ..data.vertical import Records, VerticalDataset
from .messages import with_ids
from .rehearsal import apart, nameless, told_to_clients
from .run import SystemConfig, SystemRun
from .stated import UNSTATED
from .system import Played
from .task import Task
from .transcript import MANIFEST, Transcript
from .trials import TrialStore

PREFIX = "transcript:"


@dataclass(frozen=True)
class Recorded:
    """One recorded training in the place of a system: its messages are the same whatever the task."""

    name: str
    transcript: Transcript
    seconds: float = 0.0
    trials: TrialStore = field(default_factory=TrialStore)

    def play(self, task: Task, seed: int, which: str, queries: Sequence[Sequence[np.ndarray]] = ()) -> Played:
        """Return the recorded messages."""
        return Played(self.transcript)


def seen_by(method: MethodSpec, client: int) -> MethodSpec:
    """Return a recorded training as a method that sends the messages of one client, which is all that it sees.

    Raises `TypeError` for a method that `method_of_transcript` did not make.
    """
    recorded = method.run.args[0] if isinstance(method.run, partial) else None
    if not isinstance(recorded, Recorded):
        raise TypeError(f"{method.name} is no recorded training")
    alone = replace(recorded, transcript=recorded.transcript.of(client))
    return replace(method, run=partial(SystemRun, alone, {}))


def method_of_transcript(transcript: Transcript) -> MethodSpec:
    """Return a recorded training as a method, by the name `transcript:` and that of its folder."""
    name = transcript.folder.resolve().name
    kinds = told_to_clients(transcript.messages, transcript.clients)
    capabilities = Capabilities(
        simulated=False,
        repeatable=False,
        predicts=False,
        told=kinds,
        public_ids=transcript.manifest.public_ids,
        encrypted=transcript.manifest.encrypted,
        apart=apart(transcript.messages, transcript.clients),
        telling=kinds,
        nameless=nameless(with_ids(transcript.messages, transcript.tensors), kinds),
    )
    protection = Protection(words=UNSTATED)
    return MethodSpec(
        name=f"{PREFIX}{name}",
        summary="a recorded training",
        config=SystemConfig,
        run=partial(SystemRun, Recorded(name, transcript), {}),
        released=no_noise,
        downlink=downlink_of(capabilities.told_to()),
        protection=lambda config: protection,
        defaults={"top_model": transcript.manifest.top_model},
        capabilities=capabilities,
    )


def labelled(transcript: Transcript, labels: NDArray[np.int64], path: Path) -> VerticalDataset:
    """Return the data that a recorded training is scored against: its `labels` (N,), read from `path`.

    A transcript holds no features. A column of zeros for each client stands in their place, which positive controls
    alone train on: attacks that read a client's own features need its model as well, and do not apply.
    """
    rows = len(labels)
    blocks = tuple(np.zeros((rows, 1), np.float32) for _ in range(transcript.clients))
    held = Records(blocks, labels)
    files = [path, *(transcript.folder / name for name in (MANIFEST, *transcript.manifest.files))]
    return VerticalDataset(
        name=path.name,
        train=held,
        test=held,
        classes=transcript.manifest.classes,
        partition="a transcript, which holds no features",
        digests={file.name: file_digest(file) for file in files},
        notes=("The training was recorded and cannot be repeated: nothing here was trained but positive controls.",),
    )
