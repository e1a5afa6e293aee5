import pytest
import torch

from mechanisms import METHODS
from mechanisms.core.channel import SERVER, ByteLedger, Channel, Message
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import train
from ..conftest import training_data


def message(sender=1, receiver=SERVER, kind="embeddings", shape=(3, 2, 5, 4), dtype=torch.float32):
    return Message(0, sender, receiver, kind, torch.zeros(shape, dtype=dtype))


def test_bytes_are_those_of_one_replica_as_4_byte_floats():
    assert message().nbytes == 2 * 5 * 4 * 4
    assert message(dtype=torch.float64).nbytes == 2 * 5 * 4 * 4
    assert message(shape=(7,)).nbytes == 4


def test_ledger_counts_by_direction_and_kind():
    ledger = ByteLedger()
    for sent in (message(), message(), message(sender=SERVER, receiver=1, kind="scalar", shape=(3,))):
        ledger.record(sent)
    assert ledger.bytes_up == {"embeddings": 320}
    assert ledger.bytes_down == {"scalar": 4}
    assert (ledger.up, ledger.down, ledger.messages) == (320, 4, 3)


def test_answers_of_one_bit_cost_one_bit():
    """22 of them fill 3 bytes, whether their bits are stated or they are truth values; so do rows of them, by batch."""
    for answer in (message(SERVER, 1, "scalar", (3,), torch.bool), message(SERVER, 1, "scalar", (3,))._replace(bits=1)):
        ledger = ByteLedger()
        for _ in range(22):
            ledger.record(answer)
        assert (ledger.down, ledger.bytes_down, answer.nbytes) == (3, {"scalar": 3}, 1)
    rows = message(shape=(2, 5, 3), dtype=torch.bool)._replace(sizes=[5, 2])
    assert (rows.nbits, rows.nbytes) == ([15, 6], [2, 1])


def test_channel_delivers_counts_and_shows(message_log):
    channel = Channel([message_log])
    sent = message()
    assert channel.send(sent) is sent.payload
    channel.note(1, 0, "direction", torch.ones(1))
    assert message_log.messages == [sent]
    assert [note[:3] for note in message_log.notes] == [(1, 0, "direction")]
    assert channel.ledger.messages == 1


@pytest.mark.parametrize("replicas", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dpzv_bytes_of_an_mnist_shaped_epoch(replicas, dtype):
    """7 clients, d_h = 60: N d_h 4 bytes twice up an epoch, 4 bytes down a round, and the table once (methods.md)."""
    records, clients, epochs, batch, width = 48, 7, 3, 8, 60
    config = DPZVConfig(batch_size=batch, epochs=epochs, embedding=width, hidden=4, sigma=0.1, dtype=dtype)
    data = training_data(records=records, clients=clients, dtype=getattr(torch, dtype))
    ledger = train(data, config, seed=0, replicas=replicas).ledger
    rounds = epochs * records // batch
    assert ledger.bytes_up == {
        "table": clients * records * width * 4,
        "embeddings": epochs * records * width * 4 * 2,
    }
    assert ledger.bytes_down == {"scalar": 4 * rounds}
    assert ledger.messages == clients + 2 * rounds


MNIST_MB = {"table": 100.8, "dpzv": 576.0, "vafl": 1209.6, "czofo": 4492.8}
"""Megabytes: seven clients' first table of 60 numbers a record, and paper 004's table I (what 90% took)."""


@pytest.fixture(scope="module")
def mnist_rows():
    """As many records and clients as MNIST in strips; what is in a strip costs no bytes."""
    return training_data(records=60000, clients=7, width=1, classes=10, dtype=torch.float32)


@pytest.mark.parametrize(
    ("method", "epochs", "up", "down"), [("dpzv", 20, 28.8, 0.0), ("vafl", 42, 14.4, 14.4), ("czofo", 312, 14.4, 0.0)]
)
def test_bytes_of_an_epoch_of_mnist_in_strips(method, epochs, up, down, mnist_rows):
    """D/B rounds an epoch, d_h = 60: DPZV sends two embeddings a record, VAFL one each way, CZOFO one and q scalars.

    Whole epochs of them are the published megabytes exactly; the scalars are beside them.
    """
    config = METHODS[method].configure(batch_size=6_000, epochs=1, embedding=60, hidden=4)
    trained = train(mnist_rows, config, seed=0)
    ledger = trained.ledger
    assert trained.rounds == 10
    assert ledger.bytes_up["table"] == 100_800_000 == MNIST_MB["table"] * 1e6
    assert ledger.bytes_up["embeddings"] == up * 1e6
    scalars = {"dpzv": 10 * 4, "vafl": 0, "czofo": 10 * 10 * 4}[method]
    assert ledger.down == down * 1e6 + scalars
    assert epochs * (ledger.bytes_up["embeddings"] + ledger.down - scalars) == MNIST_MB[method] * 1e6
