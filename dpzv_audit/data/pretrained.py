"""Pre-trained transformers through the extra `[text]`: where they are read from, and their tokenizers.

A source is a local folder or a name on the Hugging Face hub; only a name ever uses the network. Weights are read from
safetensors alone, never from a pickle, and no code that comes with a model is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpzv_audit.data.vertical import TokenArray
from dpzv_audit.errors import InputError, check_count


def read_pretrained(kind: str, source: str, **options: Any) -> Any:
    """What `transformers`' class `kind` reads from `source`, its progress bars and logs silenced.

    Raises:
        InputError: The extra is not installed, or `source` holds or names no such thing.
    """
    try:
        import transformers
    except ImportError:
        raise InputError(
            "which needs the extra [text]: pip install 'dpzv-audit[text]'", "transformer", source
        ) from None
    logs = transformers.utils.logging
    verbosity, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        return getattr(transformers, kind).from_pretrained(
            source, local_files_only=Path(source).is_dir(), trust_remote_code=False, **options
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"must be a folder with config.json, model.safetensors and a tokenizer, "
            f"or a name on the Hugging Face hub: {reason}",
            "transformer",
            source,
        ) from None
    finally:
        logs.set_verbosity(verbosity)
        if bars:
            logs.enable_progress_bar()


@lru_cache(maxsize=2)
def _tokenizer(source: str) -> Any:
    return read_pretrained("AutoTokenizer", source)


@dataclass(frozen=True, kw_only=True)
class PretrainedTokenizer:
    """A pre-trained model's own tokenizer: the first `length` ids of a text, without marks of begin and end, padded."""

    source: str
    length: int

    def __post_init__(self) -> None:
        check_count("length", self.length)

    @property
    def name(self) -> str:
        """What the tokenizer is, in words."""
        return f"the tokenizer of {Path(self.source).name} ({self.vocabulary} ids), the first {self.length}"

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return len(_tokenizer(self.source))

    def encode(self, texts: Sequence[str]) -> TokenArray:
        """Return ids, int64 (N, length); each row depends on its own text alone.

        Raises `InputError` where the tokenizer has no id for padding.
        """
        read = _tokenizer(self.source)
        if read.pad_token_id is None:
            raise InputError("whose tokenizer has no padding token, must have one", "transformer", self.source)
        ids = np.full((len(texts), self.length), read.pad_token_id, dtype=np.int64)
        if not texts:
            return ids
        found = read(list(texts), add_special_tokens=False, truncation=True, max_length=self.length)["input_ids"]
        for row, numbers in zip(ids, found, strict=True):
            row[: len(numbers)] = numbers
        return ids
