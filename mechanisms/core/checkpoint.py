"""Saving a run between two rounds, and taking it up again to the same numbers.

All random streams are functions of counters (rounds, own rounds, batches), so a checkpoint is tensors (parameters,
momentum, table, what observers count) and a few whole numbers, in one safetensors file: no pickle, no generator states.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.files import json_in
from dpzv_audit.base.seeds import Purpose

from .channel import ByteLedger
from .method import Run, federation_of
from .replicas import serialized
from .secret import SecretBits
from .training import History

_FORMAT = "dpzv-audit/checkpoint/5"
_FACTS = 128_000_000
"""Bytes of all but the tensors: the most epochs take 100 MB."""
_MOST_COUNTED = 1 << 40
"""The most rounds or batches that a count can say."""
_REFUSED = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
"""What facts that are no checkpoint's raise where they are read."""


def save_checkpoint(run: Run, history: History, key: str) -> bytes:
    """Return the state of `run` and its history as a safetensors file's bytes; `key` says which run it belongs to."""
    fed = federation_of(run)
    ledger = fed.channel.ledger
    facts = {
        "format": _FORMAT,
        "key": key,
        "round": run.round,
        "client_rounds": [client.rounds for client in fed.clients],
        "client_batches": [client.batches.drawn for client in fed.clients],
        "history": history,
        "traffic": fed.traffic,
        "secret": [sorted(secret.drawn) for secret in _secrets(run)],
        "ledger": {"up": ledger.counted_up, "down": ledger.counted_down, "messages": ledger.messages},
    }
    # Tensors that share memory cannot be saved together, hence the clones.
    tensors = {name: t.detach().cpu().clone() for name, t in _tensors(run).items()}
    text = json.dumps(facts)
    return serialized(tensors, {"facts": text, "sha256": _digest(text, tensors)})


def load_checkpoint(run: Run, data: bytes, key: str) -> History:
    """Put `run`, freshly made, where the checkpoint in `data` left off; returns the history so far.

    Raises:
        InputError: `data` is no checkpoint, or one of another run.
    """
    facts, saved = _read(data)
    tensors = _tensors(run)
    shapes, kept = ({name: t.shape for name, t in stored.items()} for stored in (tensors, saved))
    if facts.get("format") != _FORMAT or facts.get("key") != key or shapes != kept:
        raise InputError("the checkpoint belongs to another run; start without ‹resume›, which replaces it")
    fed = federation_of(run)
    try:
        rounds, drawn = ([_count(n) for n in facts[name]] for name in ("client_rounds", "client_batches"))
        if not len(rounds) == len(drawn) == len(fed.clients):
            raise ValueError(f"counts of {len(rounds)} clients")
        ledger = ByteLedger(
            dict(facts["ledger"]["up"]), dict(facts["ledger"]["down"]), _count(facts["ledger"]["messages"])
        )
        traffic = [(int(up), int(down)) for up, down in facts["traffic"]]
        history = [(int(epoch), float(accuracy), float(loss)) for epoch, accuracy, loss in facts["history"]]
        done = _count(facts["round"])
        secret = [set(map(Purpose, purposes)) for purposes in facts["secret"]]
        if len(secret) != len(_secrets(run)):
            raise ValueError(f"purposes of {len(secret)} secrets")
    except _REFUSED as error:
        raise _damaged(error) from error
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])
    for client, own_rounds, batches in zip(fed.clients, rounds, drawn, strict=True):
        client.rounds = own_rounds
        # The last batch is drawn again: it may serve further rounds.
        client.batches.skip_to(max(0, batches - 1))
        client.batch = client.batches.next() if batches else None
    for bits, purposes in zip(_secrets(run), secret, strict=True):
        bits.drawn |= purposes
    fed.channel.ledger = ledger
    fed.traffic = traffic
    run.skip_to(done)
    return history


def largest_checkpoint(run: Run) -> int:
    """Return the most bytes that a checkpoint of `run` has."""
    return sum(tensor.nbytes for tensor in _tensors(run).values()) + _FACTS


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < _MOST_COUNTED:
        raise ValueError("it counts what cannot be")
    return value


def _damaged(error: Exception) -> InputError:
    reason = f"no entry {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
    return InputError(f"the checkpoint is damaged: {reason}; start without ‹resume›, which replaces it")


def _secrets(run: Run) -> list[SecretBits]:
    """Return the secret bits that a run draws from: what was drawn before it was taken up counts too."""
    context = federation_of(run).context
    return [bits for bits in (context.origin, context.sampling) if isinstance(bits, SecretBits)]


def epochs_in(file: BinaryIO) -> int:
    """Return how many epochs the checkpoint in `file` holds; 0 where it is none. Its digest is not looked at."""
    try:
        size = int.from_bytes(file.read(8), "little")
        facts = json.loads(file.read(min(size, _FACTS)))["__metadata__"]["facts"]
        return len(json.loads(facts)["history"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def _tensors(run: Run) -> dict[str, Tensor]:
    fed = federation_of(run)
    tensors = {}
    for number, optimizer in enumerate(fed.optimizers):
        party = f"client-{number}" if number else "server"
        tensors[party] = optimizer.parameters.flat
        tensors[f"{party}-momentum"] = optimizer.buffer
    if hasattr(fed, "table"):  # synchronous first-order methods keep none
        tensors["table"] = fed.table
    if fed.config.defences:  # labels are privatised once: drawn anew they would be released twice
        tensors["labels"] = fed.data.labels
        if fed.data.soft is not None:
            tensors["soft"] = fed.data.soft.rows
    return tensors | run.own_tensors() | fed.channel.observer_tensors()


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        size = int.from_bytes(data[:8], "little")
        if 8 + size > len(data):
            raise ValueError(f"a header of {size} bytes does not fit the {len(data)} bytes there are")
        metadata = json_in(data[8 : 8 + size])["__metadata__"]
        tensors = load(data)
        digest = _digest(metadata["facts"], tensors)
        if metadata["sha256"] != digest:
            raise ValueError(f"facts and tensors have digest {digest[:16]}, must have {metadata['sha256'][:16]}")
        facts = json.loads(metadata["facts"])
        if not isinstance(facts, dict):
            raise TypeError("its facts are no object")
        return facts, tensors
    except (SafetensorError, *_REFUSED) as error:
        raise _damaged(error) from error


def _digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 of a whole checkpoint: one flipped bit would otherwise go on into other numbers, unseen."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
