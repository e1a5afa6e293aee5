"""Saves a run between two rounds and takes it up again to the same numbers.

All random streams are functions of counters (rounds, own rounds, batches), so a checkpoint is tensors (parameters,
momentum, table, what observers count) and a few whole numbers, in one safetensors file: no pickle, no generator states.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpzv_audit.errors import InputError
from dpzv_audit.seeds import Purpose

from .channel import Ledger
from .method import Run
from .replicas import serialized
from .secret import SecretBits
from .training import History

_FORMAT = "dpzv-audit/checkpoint/5"


def save_checkpoint(run: Run, history: History, key: str) -> bytes:
    """Return the state of `run` and its history as a safetensors file's bytes; `key` says which run it belongs to."""
    fed = run.federation
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
    shapes, found = ({name: t.shape for name, t in some.items()} for some in (tensors, saved))
    if facts.get("format") != _FORMAT or facts.get("key") != key or shapes != found:
        raise InputError("the checkpoint belongs to another run; start without ‹resume›, which replaces it")
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])
    fed = run.federation
    for client, rounds, drawn in zip(fed.clients, facts["client_rounds"], facts["client_batches"], strict=True):
        client.rounds = rounds
        # The last batch is drawn again: it may serve further rounds.
        client.batches.skip_to(max(0, drawn - 1))
        client.batch = client.batches.next() if drawn else None
    for secret, drawn in zip(_secrets(run), facts["secret"], strict=True):
        secret.drawn |= set(map(Purpose, drawn))
    ledger = facts["ledger"]
    fed.channel.ledger = Ledger(ledger["up"], ledger["down"], ledger["messages"])
    fed.traffic = [(int(up), int(down)) for up, down in facts["traffic"]]
    run.skip_to(facts["round"])
    return [(int(epoch), float(accuracy), float(loss)) for epoch, accuracy, loss in facts["history"]]


def _secrets(run: Run) -> list[SecretBits]:
    """Return the secret bits that a run draws from: what was drawn before it was taken up counts too."""
    context = run.federation.context
    return [bits for bits in (context.origin, context.sampling) if isinstance(bits, SecretBits)]


def _tensors(run: Run) -> dict[str, Tensor]:
    fed = run.federation
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
        said = json.loads(data[8 : 8 + size])["__metadata__"]
        tensors = load(data)
        digest = _digest(said["facts"], tensors)
        if said["sha256"] != digest:
            raise ValueError(f"facts and tensors have digest {digest[:16]}, must have {said['sha256'][:16]}")
        return json.loads(said["facts"]), tensors
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"no entry {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise InputError(f"the checkpoint is damaged: {reason}; start without ‹resume›, which replaces it") from error


def _digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of everything in a checkpoint: one flipped bit would otherwise go on into other numbers, unseen."""
    found = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
