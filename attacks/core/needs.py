"""Conditions of attacks on a setting: each returns in one line why it is not met, or None where it is."""

from collections.abc import Callable, Iterable

from .setting import COLLUDING, AttackSetting
from .spec import AttackSpec, Condition

READ = ("gradient", "prediction")
"""Kinds of messages from a system's server that some attack on labels always reads."""


def read_by(specs: Iterable[AttackSpec]) -> frozenset[str]:
    """Return kinds of messages from a system's server that the attacks `specs` read, beside `READ`."""
    return frozenset(READ).union(*(spec.needs.reads or () for spec in specs))


def one_batch_size(setting: AttackSetting) -> str | None:
    """Need batches that can be read side by side: under Poisson sampling their sizes differ."""
    if setting.config.sampler == "poisson":
        return "sampler is 'poisson'; use shuffled or uniform: batches of one size are read"
    return None


def own_model(setting: AttackSetting) -> str | None:
    """Need the model of the client that looks, which a system returns or does not."""
    capabilities = setting.method.capabilities
    missing = capabilities.without_model(setting.parties)
    if not missing:
        return None
    m = missing[0]
    if not capabilities.repeatable:
        return f"a transcript holds no model of client {m}; a system that returns it has one"
    return f'the system returns no model of client {m}: let it return {{"clients": {{{m}: bottom}}}}'


def predictions(setting: AttackSetting) -> str | None:
    """Need a released model that can be asked about records, which a system returns or does not."""
    if setting.method.capabilities.predicts:
        return None
    return 'the system returns no model to ask: let it return {"predict": predict}, scores of feature blocks'


def mail(setting: AttackSetting) -> str | None:
    """Need a server that answers the client that looks about records by their ids."""
    if setting.method.capabilities.simulated or setting.told & {"gradient", "prediction", "scalar", "losses"}:
        return None
    return "its server sends a client no answer about records; record.cut where embeddings leave records both ways"


def served(setting: AttackSetting) -> str | None:
    """Need predictions of training records that are served to the party that looks."""
    capabilities = setting.method.capabilities
    if capabilities.simulated:
        return "a built-in method serves no prediction to a party; a system or a transcript may"
    if "prediction" in capabilities.told_to(setting.parties):
        return None
    m = setting.client
    if capabilities.repeatable:
        line = f'record.sent(round, 0, {m}, "prediction", logits, ids)'
        return f"it serves client {m} no prediction of a record; {line} where the server answers records it"
    return f"the transcript holds no 'prediction' to client {m}, who looks; record one"


def own_protocol(setting: AttackSetting) -> str | None:
    """Need rounds that are played here, in which a client can send what it wants, or which can be played again."""
    if setting.method.capabilities.simulated:
        return None
    return "it plays a client, or rounds again, by the protocol of a built-in method; a system's rounds are its own"


def askable(setting: AttackSetting) -> str | None:
    """Need gradients of records, or a server that a client can ask about a batch time and again."""
    if setting.method.capabilities.simulated or setting.downlink == "gradient":
        return None
    if setting.downlink in ("scalar", "losses"):
        return (
            "its server sends no gradients, and a client cannot ask it twice about a batch: label_scalar reads scalars"
        )
    return f"its server sends no gradient of a record{_unlock(setting)}"


def true_gradient(setting: AttackSetting) -> str | None:
    """Need a method whose true gradients are known, with which an estimate is compared."""
    if setting.method.capabilities.simulated:
        return None
    return "an estimate is compared with the true gradient, which no party of a system has: label_scalar reads scalars"


def pairs(setting: AttackSetting) -> str | None:
    """Need scalars that answer two embeddings of a batch in one round, with a number for each class in a row."""
    capabilities = setting.method.capabilities
    if capabilities.simulated:
        return None
    m = next((m for m in setting.parties if m not in capabilities.paired), None)
    if m is not None:
        return unpaired(m)
    classes = setting.dataset.classes
    for m in setting.parties:
        for width in capabilities.widths.get(m, ()):
            if width != classes and (width, classes) != (1, 2):
                return not_summed(m, width, classes)
    return None


def unpaired(client: int) -> str:
    """Return why scalars to a `client` say nothing of records, and what to record."""
    both = f'record.sent(round, {client}, 0, "embeddings", h, ids) for h+ and for h-'
    answer = f'record.sent(round, 0, {client}, "scalar", s)'
    return f"no scalar answers two embeddings of client {client} in one round; {both}, then {answer}"


def not_summed(client: int, width: int, classes: int) -> str:
    """Return why embeddings of a `client` are no logits that a server sums."""
    rule = f"a server that only sums gets logits of {classes} classes"
    return f"client {client} sends embeddings of {width} number{'s' if width > 1 else ''}; {rule}"


def uploads_of(attacked: Callable[[AttackSetting], int]) -> Condition:
    """Need embeddings at the server of the client that is `attacked`, of one width, whose records are known.

    And its features, which known records have, and which success is compared with.
    """

    def need(setting: AttackSetting) -> str | None:
        client = attacked(setting)
        if 0 in setting.dataset.shapes[client - 1]:
            return f"client {client} holds no features"
        why = why_unread(setting, client)
        if why is None and client in setting.method.capabilities.featureless:
            return f"a transcript holds no features of client {client}; ‹features› {client}=FILE gives them"
        return why

    return need


def why_unread(setting: AttackSetting, client: int) -> str | None:
    """Return in one line why what a `client` sends the server about records cannot be read; None where it can."""
    capabilities = setting.method.capabilities
    if capabilities.simulated:
        return None
    if 0 in setting.dataset.shapes[client - 1]:
        return f"client {client} holds no features"
    widths = capabilities.widths.get(client, ())
    if not widths:
        line = f'record.sent(round, {client}, 0, "embeddings", rows, ids)'
        return f"client {client} sends the server no embeddings; record.cut, or {line}, where it does"
    if len(widths) > 1:
        several = " and ".join(map(str, widths))
        return f"client {client} sends embeddings of {several} numbers; let one kind of message have one width"
    return None


def binary_labels(setting: AttackSetting) -> str | None:
    """Need two classes."""
    data = setting.dataset
    if data.classes != 2:
        return f"{data.name} has {data.classes} classes; use data with 2"
    return None


def _unlock(setting: AttackSetting) -> str:
    """Return what makes a server's gradients seen."""
    if setting.method.capabilities.simulated:
        return ""
    if setting.method.capabilities.repeatable:
        return "; record.cut where embeddings leave a client records both ways"
    m = setting.client
    return f"; record a 'gradient' from 0 to client {m}, who looks"


def downlink(gradient: bool, otherwise: str) -> Condition:
    """Need a server that sends gradients, or one that does not: the reason `otherwise`."""

    def need(setting: AttackSetting) -> str | None:
        if (setting.downlink == "gradient") == gradient:
            return None
        return f"{otherwise}{_unlock(setting)}"

    return need


def gradients_of_colluders(setting: AttackSetting) -> str | None:
    """Need gradients where clients collude: scalars that they pool are those of `label_scalar`."""
    if setting.adversary != COLLUDING or setting.downlink == "gradient":
        return None
    return "its server sends scalars, which colluding clients pool in label_scalar"


record_gradients: tuple[Condition, ...] = (downlink(True, "its server sends no gradient of a record"), one_batch_size)
