"""A pre-trained transformer as a client's model: its encoder, the mean over a run of tokens, a linear layer (001, E).

Needs the extra `[text]`. The encoder starts at its pre-trained weights in every replica; the linear layer is drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from dpzv_audit.data.text import read_pretrained
from dpzv_audit.errors import InputError


class TransformerEncoder(nn.Module):
    """Token ids (n, length) to embeddings (n, outputs): last hidden states, their mean over tokens, a linear layer."""

    def __init__(self, encoder: nn.Module, outputs: int) -> None:
        super().__init__()
        config: Any = encoder.config
        self.encoder = encoder
        self.head = nn.Linear(config.hidden_size, outputs)
        self._padding = 0 if config.pad_token_id is None else int(config.pad_token_id)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, length) to (n, outputs); padding counts for nothing, and a run of padding alone is read as one token."""
        present = ids != self._padding
        # The end of a short text is padding alone, and attention to nothing is no number.
        first = torch.arange(ids.shape[1], device=ids.device) == 0
        attended = present | (first & ~present.any(1, keepdim=True))
        hidden: Tensor = self.encoder(input_ids=ids, attention_mask=attended.long()).last_hidden_state
        weights = attended.unsqueeze(2).to(hidden.dtype)
        outputs: Tensor = self.head((hidden * weights).sum(1) / weights.sum(1))
        return outputs


@lru_cache(maxsize=2)
def _encoder(source: str) -> nn.Module:
    """The pre-trained encoder of `source`, read once; without a pooler, which the mean takes no part of."""
    # Read on the CPU even where a caller only wants shapes.
    with torch.device("cpu"):
        encoder: nn.Module = read_pretrained("AutoModel", source, use_safetensors=True, dtype=torch.float32)
    if "pooler" in encoder._modules:
        encoder._modules["pooler"] = None
    return encoder.eval()


@dataclass(frozen=True)
class TransformerModel:
    """A pre-trained transformer (a folder, or a name on the Hugging Face hub) with a linear layer to the embedding."""

    source: str
    embedding: int

    @staticmethod
    def for_tokens(source: str, embedding: int, *, vocabulary: int, length: int) -> TransformerModel:
        """The model for runs of `length` ids below `vocabulary`; `InputError` where the encoder cannot take them."""
        config: Any = _encoder(source).config
        if vocabulary > config.vocab_size:
            raise InputError(
                f" with {config.vocab_size} token ids, the data has {vocabulary}: "
                "must be read with the transformer's own tokenizer",
                "transformer",
                source,
            )
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and length > most:
            raise InputError(f" for at most {most} tokens, a client's run has {length}", "transformer", source)
        return TransformerModel(source, embedding)

    def module(self) -> nn.Module:
        """The model as a torch module, in evaluation mode: dropout would be noise that nobody accounts for."""
        return TransformerEncoder(copy.deepcopy(_encoder(self.source)), self.embedding).eval()

    def pretrained(self) -> Mapping[str, Tensor]:
        """Parameters by name that do not start at random."""
        return {f"encoder.{name}": value.detach() for name, value in _encoder(self.source).named_parameters()}
