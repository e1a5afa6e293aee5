"""Drafts the release of a system that states none: a rehearsal fills in what it saw, and leaves clip and sigma open."""

from collections.abc import Iterator

from mechanisms.core.capabilities import Capabilities

from ..accounting import Release
from .messages import SERVER
from .release_tests import CARRIES, Excerpt

_ROWS = {"clip": "largest norm of one record's row as it travels", "sigma": "noise on each number, in the same units"}
_SCALARS = {"clip": "largest loss difference of one record", "sigma": "noise on the number that is sent"}


def draft_of(sent: Excerpt, capabilities: Capabilities, records: int, *, top_model: bool) -> str:
    """Return a function `releases(task)` as source text; "" where no message could have noise that a release is on.

    The channel is the first of gradients and scalars that tell clients of labels, and else the embeddings. `clip` and
    `sigma` stand as `...`, which no release accepts. The sampler and the server's update cannot be seen: batches are
    taken to be shuffled, and the server to learn from true labels, which no bound covers.
    """
    seen = {**capabilities.up, **capabilities.down}
    channel = next((name for name in ("gradient", "scalar", "embedding") if CARRIES[name] in seen), "")
    if not channel:
        return ""
    kind = CARRIES[channel]
    up = channel == "embedding"
    messages = [message for message in sent.messages if message.kind == kind and (message.receiver == SERVER) == up]
    sizes = [len(sent.tensors[message.ids]) for message in messages if message.ids]
    batch = max(sizes, default=records)
    clients = {message.sender if up else message.receiver for message in messages}
    whom = "from" if up else "to"
    words = _SCALARS if channel == "scalar" else _ROWS
    entries: dict[str, tuple[object, str]] = {
        "channel": (channel, ""),
        "clip": (..., words["clip"]),
        "clip_scope": ("record", "" if channel == "scalar" else "'batch': one clip over all rows"),
        "sigma": (..., words["sigma"]),
        "batch_size": (batch, "the largest that was seen" if sizes else "not seen: messages name no records"),
        "rounds": (len(messages), f"messages {whom} all clients together, as seen"),
        "clients": (len(clients), "as seen"),
        "sampler": ("shuffled", "or 'uniform', 'poisson'"),
    }
    most = Release(
        batch_size=batch,
        dataset_size=records,
        rounds=len(messages),
        clients=len(clients),
        clip=1.0,
        sigma=1.0,
        sampler="shuffled",
        server_update="none",
    ).fixed_participations
    if most is not None and seen[kind].of_one > most:
        entries["participations"] = seen[kind].of_one, "messages about one record, as seen"
    update = ("sgd", "'released': only what is noised moves it") if top_model else ("none", "it only sums")
    entries["server_update"] = update
    others = sorted(capabilities.down.keys() - {kind})
    return "\n".join(_lines(entries, others))


def _lines(entries: dict[str, tuple[object, str]], others: list[str]) -> Iterator[str]:
    yield "# The system states no release. If it adds noise, put this beside its function,"
    yield "# fill in clip and sigma, and change what is not so."
    yield "def releases(task):"
    if others:
        yield f"    # Labels leave in {', '.join(others)} too."
    yield "    return {"
    for name, (value, why) in entries.items():
        comment = f"  # {why}" if why else ""
        shown = "..." if value is ... else f'"{value}"' if isinstance(value, str) else f"{value}"
        yield f'        "{name}": {shown},{comment}'
    yield "    }"
