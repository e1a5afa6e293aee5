"""Pre-trained transformers: whole at each client, or split between clients and server (paper 002, section VI-A).

A transformer is counted in stages: its embeddings are the first, each block is one more. A part of it is a range of
stages. What a client holds below its part is frozen: it stays as it was pre-trained, and is no parameter of the client.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from dpzv_audit.base.errors import InputError
from dpzv_audit.data.text import read_pretrained

from .config import TrainingConfig

_MOST_KEPT = 2_000_000_000
"""Bytes of frozen outputs that are kept for one transformer; further ones are computed whenever they are asked for."""


class Given(nn.Module):
    """Stands for the embeddings of a part that begins at a block: hidden states pass through it."""

    def forward(self, input_ids: None, *given: Tensor, inputs_embeds: Tensor | None = None, **others: Any) -> Tensor:
        """Return hidden states (n, length, width); DistilBERT hands them over by place, BERT by name."""
        return given[0] if inputs_embeds is None else inputs_embeds


@lru_cache(maxsize=2)
def _encoder(source: str) -> nn.Module:
    """Return the pre-trained encoder of `source`, read once; without a pooler, which the mean takes no part of."""
    # Read on the CPU even where a caller only wants shapes.
    with torch.device("cpu"):
        encoder: nn.Module = read_pretrained("AutoModel", source, use_safetensors=True, dtype=torch.float32)
    if "pooler" in encoder._modules:
        encoder._modules["pooler"] = None
    return encoder.eval()


def _anatomy(source: str) -> tuple[nn.Module, nn.ModuleList]:
    """Return embeddings and blocks of an encoder of BERT's or DistilBERT's kind; `InputError` for another."""
    encoder = _encoder(source)
    embeddings = getattr(encoder, "embeddings", None)
    blocks = getattr(getattr(encoder, "encoder", getattr(encoder, "transformer", None)), "layer", None)
    if not isinstance(embeddings, nn.Module) or not isinstance(blocks, nn.ModuleList):
        rule = "which is neither of BERT's kind nor of DistilBERT's; use such a one, or leave its blocks together"
        raise InputError(rule, "transformer", source)
    return embeddings, blocks


@lru_cache(maxsize=8)
def _part(source: str, first: int, last: int | None) -> nn.Module:
    """Return the stages from `first` to `last` - 1 of an encoder, as it was pre-trained."""
    if first == 0 and last is None:
        return _encoder(source)
    embeddings, blocks = _anatomy(source)
    chosen = blocks[max(0, first - 1) : None if last is None else last - 1]
    kept = nn.ModuleList(copy.deepcopy(block) for block in chosen)
    # What is in the memo is not copied: it stands in the place of the whole.
    memo: dict[int, Any] = {id(blocks): kept}
    if first:
        memo[id(embeddings)] = Given()
    return copy.deepcopy(_encoder(source), memo).eval()


class FrozenStages:
    """The outputs of the first stages of a pre-trained encoder, which no training changes.

    On a CPU the output of each run of tokens is computed once, by itself, so that it depends on nothing else, and kept
    for all clients, replicas and trainings of this process. A GPU computes it each time: a look-up would wait for it.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self._encoder = encoder
        self._kept: dict[bytes, Tensor] = {}
        self._bytes = 0

    def hidden(self, ids: Tensor, attended: Tensor) -> Tensor:
        """Return hidden states (n, length, width) in single precision of `ids` (n, length), with their mask."""
        if ids.device.type != "cpu":
            return self._computed(ids, attended)
        return torch.stack([self._looked_up(*row) for row in zip(ids, attended, strict=True)])

    def _looked_up(self, ids: Tensor, attended: Tensor) -> Tensor:
        key = ids.numpy().tobytes()
        found = self._kept.get(key)
        if found is None:
            (found,) = self._computed(ids.unsqueeze(0), attended.unsqueeze(0))
            if self._bytes + found.nbytes <= _MOST_KEPT:
                self._kept[key] = found
                self._bytes += found.nbytes
        return found

    def _computed(self, ids: Tensor, attended: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
            hidden: Tensor = self._encoder(input_ids=ids, attention_mask=attended.long()).last_hidden_state
        return hidden


@lru_cache(maxsize=2)
def frozen_stages(source: str, count: int, device: str) -> FrozenStages:
    """Return the first `count` stages of the encoder of `source` on a device."""
    return FrozenStages(copy.deepcopy(_part(source, 0, count)).to(device))


def attended_to(present: Tensor) -> Tensor:
    """Return which tokens (n, length) take part: those `present`, or the first alone of a run that has none.

    The end of a short text is padding alone, and attention to nothing is no number.
    """
    first = torch.arange(present.shape[1], device=present.device) == 0
    return present | (first & ~present.any(1, keepdim=True))


class _Stages(nn.Module):
    """Some stages of an encoder, with what comes before and after them at a party.

    With `half` its products are in bfloat16, its parameters and outputs in single precision.
    """

    def __init__(self, encoder: nn.Module, *, half: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self._half = half

    def _run(self, attended: Tensor, **inputs: Tensor) -> Tensor:
        with torch.autocast(attended.device.type, torch.bfloat16, enabled=self._half):
            hidden: Tensor = self.encoder(attention_mask=attended.long(), **inputs).last_hidden_state
        return hidden.float() if self._half else hidden


class _AtClient(_Stages):
    """Stages of an encoder above `frozen` ones, None where nothing is frozen, on a client's token ids."""

    def __init__(self, encoder: nn.Module, frozen: Callable[[str], FrozenStages] | None, *, half: bool) -> None:
        super().__init__(encoder, half=half)
        config: Any = encoder.config
        self._padding = config.pad_token_id or 0
        self._frozen = frozen

    def _hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states (n, length, width) of token ids (n, length), and which tokens take part."""
        attended = attended_to(ids != self._padding)
        if self._frozen is None:
            return self._run(attended, input_ids=ids), attended
        below = self._frozen(str(ids.device)).hidden(ids, attended)
        weight = next(self.parameters())
        return self._run(attended, inputs_embeds=below.to(weight.dtype)), attended


def _mean(hidden: Tensor, attended: Tensor) -> Tensor:
    """Return the mean (n, width) over the tokens that take part."""
    weights = attended.unsqueeze(2).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


class TransformerEncoder(_AtClient):
    """Token ids (n, length) to embeddings (n, outputs): last hidden states, their mean over tokens, a linear layer."""

    def __init__(
        self, encoder: nn.Module, frozen: Callable[[str], FrozenStages] | None, outputs: int, *, half: bool
    ) -> None:
        super().__init__(encoder, frozen, half=half)
        config: Any = encoder.config
        self.head = nn.Linear(config.hidden_size, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        """Map (n, length) to (n, outputs); padding does not count, and a run of padding alone is read as one token."""
        outputs: Tensor = self.head(_mean(*self._hidden(ids)))
        return outputs


class TransformerStem(_AtClient):
    """Token ids (n, length) to the hidden states of the first stages, flattened; zeros where a token is padding."""

    def forward(self, ids: Tensor) -> Tensor:
        """Map (n, length) to (n, length * width)."""
        hidden, attended = self._hidden(ids)
        return (hidden * attended.unsqueeze(2)).flatten(1)


class TransformerRest(_Stages):
    """The stages above the clients', on their hidden states one after the other, and a linear layer to the logits.

    A token of zeros alone is padding: clients send no other.
    """

    def __init__(self, encoder: nn.Module, outputs: int, *, half: bool) -> None:
        super().__init__(encoder, half=half)
        config: Any = encoder.config
        self._width = config.hidden_size
        self.head = nn.Linear(self._width, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows (n, clients * length * width) to logits (n, outputs)."""
        hidden = rows.unflatten(1, (-1, self._width))
        attended = attended_to((hidden != 0).any(2))
        outputs: Tensor = self.head(_mean(self._run(attended, inputs_embeds=hidden), attended))
        return outputs


@dataclass(frozen=True)
class TransformerModel:
    """A party's part of the pre-trained transformer `source` (a folder, or a name on the Hugging Face hub).

    Attributes:
        source: See above.
        outputs: Width of a linear layer on the mean of the last hidden states; None: hidden states are sent.
        first: First stage of the part: those below are frozen, or the clients'.
        last: The stage after its last; None: it reaches to the end.
        server: Whether it is the server's part.
        half: Whether products are in bfloat16.
    """

    source: str
    outputs: int | None
    first: int = 0
    last: int | None = None
    server: bool = False
    half: bool = False

    def module(self) -> nn.Module:
        """Return the model as a torch module, in evaluation mode: dropout would be noise that nobody accounts for."""
        part = copy.deepcopy(_part(self.source, self.first, self.last))
        return self._around(part).eval()

    def _around(self, part: nn.Module) -> nn.Module:
        if self.server:
            assert self.outputs is not None
            return TransformerRest(part, self.outputs, half=self.half)
        frozen = self._frozen if self.first else None
        if self.outputs is None:
            return TransformerStem(part, frozen, half=self.half)
        return TransformerEncoder(part, frozen, self.outputs, half=self.half)

    def _frozen(self, device: str) -> FrozenStages:
        return frozen_stages(self.source, self.first, device)

    def pretrained(self) -> Mapping[str, Tensor]:
        """Return parameters by name that do not start at random."""
        named = _part(self.source, self.first, self.last).named_parameters()
        return {f"encoder.{name}": value.detach() for name, value in named}


def client_transformer(
    config: TrainingConfig, source: str, outputs: int | None, *, vocabulary: int, length: int
) -> TransformerModel:
    """Return a client's transformer for runs of `length` ids below `vocabulary`; without `outputs` it is a stem.

    Raises:
        InputError: No encoder takes them, or it has fewer blocks than are frozen or are the client's.
    """
    facts: Any = _encoder(source).config
    if vocabulary > facts.vocab_size:
        raise InputError(
            f" with {facts.vocab_size} token ids, the data has {vocabulary}; "
            "read it with the transformer's own tokenizer",
            "transformer",
            source,
        )
    most = getattr(facts, "max_position_embeddings", None)
    if most is not None and length > most:
        raise InputError(f" for at most {most} tokens, a client's run has {length}", "transformer", source)
    last = None
    if outputs is None:
        last = 1 + config.client_blocks
        _check_blocks(source, "client_blocks", config.client_blocks, "the server has the rest", spare=1)
        if config.embedding != length * facts.hidden_size:
            rule = (
                f"use {length * facts.hidden_size}: hidden states of {length} tokens, {facts.hidden_size} numbers each"
            )
            raise InputError(rule, "embedding", config.embedding)
    first = 0
    if config.frozen_blocks is not None:
        first = 1 + config.frozen_blocks
        _check_blocks(source, "frozen_blocks", config.frozen_blocks, "it has no more")
    return TransformerModel(source, outputs, first, last, half=config.half_precision)


def _check_blocks(source: str, name: str, count: int, why: str, *, spare: int = 0) -> None:
    """Raise `InputError` where the setting `name` counts more blocks than the encoder has, but for some to `spare`."""
    _, blocks = _anatomy(source)
    if count > len(blocks) - spare:
        raise InputError(f"use at most {len(blocks) - spare} with {len(blocks)} blocks: {why}", name, count)


def server_transformer(config: TrainingConfig, source: str, classes: int) -> TransformerModel:
    """Return the server's transformer above the clients' stems."""
    first = 1 + config.client_blocks
    return TransformerModel(source, classes, first, server=True, half=config.half_precision)
