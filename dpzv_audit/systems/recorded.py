"""A transcript as a method: attacks read the messages of the recorded training, which cannot be repeated."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.capabilities import Capabilities, downlink_of
from mechanisms.core.method import MethodSpec, Protection, no_noise

from ..data.files import file_digest
from ..data.vertical import Records, VerticalDataset
from .features import ClientFeatures
from .messages import like_groups, paired, with_ids
from .rehearsal import apart, nameless, told_to_clients, uplink, widths_of
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


def method_of_transcript(transcript: Transcript, featured: Collection[int] = ()) -> MethodSpec:
    """Return a recorded training as a method, by the name `transcript:` and that of its folder.

    The features of the clients that are `featured` are known, to score attacks on them.
    """
    name = transcript.folder.resolve().name
    kinds = told_to_clients(transcript.messages, transcript.clients)
    sent = with_ids(transcript.messages, transcript.tensors)
    capabilities = Capabilities(
        simulated=False,
        repeatable=False,
        predicts=False,
        told=kinds,
        public_ids=transcript.manifest.public_ids,
        encrypted=transcript.manifest.encrypted,
        paired=paired(transcript.messages),
        apart=apart(transcript.messages, transcript.clients),
        featureless=frozenset(range(1, transcript.clients + 1)).difference(featured),
        up=uplink(sent, transcript.tensors),
        widths=widths_of(sent, transcript.tensors, transcript.records),
        telling=kinds,
        nameless=nameless(sent, kinds),
        like_groups=like_groups(sent, transcript.tensors),
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


def labelled(
    transcript: Transcript,
    labels: NDArray[np.int64],
    path: Path,
    features: Mapping[int, ClientFeatures] | None = None,
) -> VerticalDataset:
    """Return the data that a recorded training is scored against: its `labels` (N,), read from `path`, and `features`.

    A transcript holds no features. A column of zeros stands in the place of those of a client that are not given,
    which positive controls alone train on: no attack reads them.
    """
    features = features or {}
    rows = len(labels)
    clients = range(1, transcript.clients + 1)
    none = np.zeros((rows, 1), np.float32)
    held = Records(tuple(features[m].values if m in features else none for m in clients), labels)
    files = [path, *(transcript.folder / name for name in (MANIFEST, *transcript.manifest.files))]
    given = {f"features of client {m}/{of.path.name}": file_digest(of.path) for m, of in features.items()}
    return VerticalDataset(
        name=path.name,
        train=held,
        test=held,
        classes=transcript.manifest.classes,
        partition="; ".join(
            ["a transcript, which holds no features", *(f"with those of client {m}" for m in features)]
        ),
        digests={**{file.name: file_digest(file) for file in files}, **given},
        variables=tuple(variable for m, of in features.items() for variable in of.variables(m)),
        notes=("The training was recorded and cannot be repeated: nothing here was trained but positive controls.",),
    )
