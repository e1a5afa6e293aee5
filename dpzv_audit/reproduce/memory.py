"""Figure 5 of paper 001 (figure 4 of 004): peak memory of a training round by method, against the client's model.

Everything is counted that lives between the making of a run and its second round: every tensor that an operation
makes, followed until it is freed, and what numpy and Python allocate. There is one client, a ResNet-18 on random
images or a BERT of random weights on random token ids; the small server and its table count too, the file that a
BERT starts from does not. Runs differ by kilobytes that Python allocates, not by what is learnt.
"""

import gc
import tempfile
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.method import Run, federation_of
from mechanisms.methods import method_named

from ..base.errors import InputError
from ..data.vertical import Records, VerticalDataset
from .table import Row, Setting, TableRow, Values, Work, pace
from .training import MEGABYTE


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operations inside it made and that still live, and their peak.

    `by_operation` and `at_peak` say of which operations' results these are made, by name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.at_peak: Mapping[str, int] = {}
        self._known: set[int] = set()
        self.by_operation: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = (each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor))
        before = {tensor.untyped_storage()._cdata for tensor in inputs}
        out = function(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in before and storage._cdata not in self._known:
                    name = function.overloadpacket.__name__
                    self._known.add(storage._cdata)
                    self.now += storage.nbytes()
                    self.by_operation[name] += storage.nbytes()
                    if self.now > self.peak:
                        self.peak, self.at_peak = self.now, dict(self.by_operation)
                    weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes(), name)
        return out

    def _freed(self, key: int, size: int, name: str) -> None:
        self._known.discard(key)
        self.now -= size
        self.by_operation[name] -= size


def random_images(records: int, size: int) -> VerticalDataset:
    """Return random colour images of `size` x `size` for one client: memory does not depend on what is in them."""
    generator = np.random.default_rng(0)
    images = generator.random((records, 3, size, size), dtype=np.float32)
    data = Records((images,), generator.integers(10, size=records))
    return VerticalDataset("images", data, data, 10, "one client", {})


VOCABULARY = 30_522
"""Token ids of BERT, and the default of `transformers.BertConfig`."""


def random_tokens(records: int, length: int) -> VerticalDataset:
    """Return random token ids, `length` of a record, for one client; two classes."""
    generator = np.random.default_rng(0)
    ids = generator.integers(1, VOCABULARY, (records, length))
    data = Records((ids,), np.arange(records) % 2)
    return VerticalDataset("tokens", data, data, 2, "one client", {}, vocabulary=VOCABULARY)


@contextmanager
def random_encoder(shape: Values) -> Iterator[str]:
    """Yield a folder with a BERT of random weights, whose `shape` is named as in `transformers.BertConfig`.

    Raises:
        InputError: The extra [text] is not installed.
    """
    needs_transformers()
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertModel(transformers.BertConfig(**shape)).save_pretrained(folder)
        yield folder


def needs_transformers() -> None:
    """Raise `InputError` where the extra [text] is not installed."""
    if find_spec("transformers") is None:
        raise InputError("a client of BERT's shape needs the extra [text]: pip install 'dpzv-audit[text]'")


def peak_of_a_round(make: Callable[[], Run]) -> int:
    """Return the peak bytes during the second round of a run, what lives when it starts included."""
    make().step()  # whatever is imported on first use is no part of a round
    gc.collect()
    tracemalloc.start()
    with LiveBytes() as live:
        run = make()
        run.step()
        gc.collect()
        live.peak = live.now
        tracemalloc.reset_peak()
        run.step()
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return int(live.peak + python)


_ROUNDS_COUNTED = 8
"""Rounds without counting that take about as long as a row of the figure."""


_LEAST_NAMED = 0.05
"""Megabytes from which an operation's activations are named."""


class MemoryRow(Row, protected_namespaces=()):
    """Megabytes of the peak of a round, of the client's model, and of activations, these by what made them.

    `activations` are those at the peak of one forward pass without a graph, `kept` what one with a graph leaves for a
    backward pass.
    """

    peak_megabytes: float
    model_megabytes: float
    activations: dict[str, float]
    kept: dict[str, float]

    def peak_of_model(self) -> float:
        """Return the peak as a multiple of the client's model."""
        return self.peak_megabytes / self.model_megabytes


def activations_in_words(rows: Sequence[MemoryRow]) -> str:
    """Return what the activations of a batch are: every row of a table has the same client."""
    return (
        f"activations of a batch are named by torch's operations. A forward pass without a graph holds at most "
        f"{_named(rows[0].activations)}. One with a graph keeps {_named(rows[0].kept)} for the backward pass"
    )


def _named(sizes: Mapping[str, float]) -> str:
    """Return a total with its larger parts, the largest first."""
    parts = sorted(sizes.items(), key=lambda item: -item[1])
    words = ", ".join(f"{name} {size:.1f}" for name, size in parts if size >= _LEAST_NAMED)
    return f"{sum(sizes.values()):.1f} MB ({words})"


@dataclass(frozen=True, kw_only=True)
class PeakMemory(TableRow[MemoryRow]):
    """A bar of the figure: a method with `options`, and what the paper says of it in words.

    Args:
        paper: Peak over model as the paper states it.
        batch_size: Records of a batch.
        image_size: Side of the images that a ResNet-18 gets, in pixels.
        encoder: Shape of a BERT in its place, as `transformers.BertConfig` names it.
        length: Token ids of a record that a BERT gets.
    """

    paper: str
    batch_size: int = 8
    image_size: int = 32
    encoder: Values = field(default_factory=dict)
    length: int = 32

    row_type: ClassVar[type[Row]] = MemoryRow

    @property
    def settings(self) -> dict[str, object]:
        """Options of the method and the size of a batch and of the model."""
        model = "transformer" if self.encoder else "resnet18"
        return {**self.options, "batch_size": self.batch_size, "client_model": model, "epochs": 8}

    def run(self, setting: Setting) -> MemoryRow:
        """Measure on the CPU; epochs and seeds of `setting` do not matter."""
        record = {"encoder": self.encoder, "length": self.length} if self.encoder else {"image_size": self.image_size}
        facts = {"memory": self.method, "options": self.settings, **record}
        peaks = setting.kept.part(facts, lambda _: self.measured())
        return MemoryRow(label=self.label, options=self.settings, paper=self.paper, **peaks)

    def check(self, setting: Setting) -> str:
        """See `TableRow.check`."""
        model = {}
        if self.encoder:
            needs_transformers()
            model["transformer"] = "a folder that is written later"
        method_named(self.method).configure(**self.settings, **model)
        return self.label

    @torch.no_grad()
    def rehearse(self, setting: Setting) -> Work:
        """See `TableRow.rehearse`: two runs of a few rounds, which are slower while memory is counted."""
        with self._maker() as make:
            return Work(_ROUNDS_COUNTED * pace(make().step, most=1))

    @contextmanager
    def _maker(self) -> Iterator[Callable[[], Run]]:
        """Yield what makes a run on random data before its first round."""
        method = method_named(self.method)
        records = 2 * self.batch_size
        with ExitStack() as stack:
            settings = self.settings
            if self.encoder:
                settings["transformer"] = stack.enter_context(random_encoder(self.encoder))
                whole = random_tokens(records, self.length)
            else:
                whole = random_images(records, self.image_size)
            config = method.configure(**settings)
            data = TrainingData.of(whole, dtype=torch.float32, device="cpu")
            yield lambda: method.start(data, config, RunContext(seed=0))

    @torch.no_grad()
    def measured(self) -> Mapping[str, float | Mapping[str, float]]:
        """Return the megabytes of the peak of a round, of the model and of the activations of one batch."""
        with self._maker() as make:
            fed = federation_of(make())
            client = fed.clients[0]
            inputs = fed.data.features[0][: self.batch_size].unsqueeze(0)
            with LiveBytes() as live:
                client.evaluator.forward(client.parameters, inputs)
            with LiveBytes() as kept:
                graph = client.evaluator.vjp(client.parameters, inputs)
            sizes: dict[str, float | Mapping[str, float]] = {
                "model_megabytes": client.parameters.flat.nbytes / MEGABYTE,
                "activations_megabytes": live.peak / MEGABYTE,
                "activations": {name: size / MEGABYTE for name, size in live.at_peak.items() if size},
                "kept": {name: size / MEGABYTE for name, size in kept.by_operation.items() if size},
            }
            del fed, client, graph
            return {"peak_megabytes": peak_of_a_round(make) / MEGABYTE, **sizes}
