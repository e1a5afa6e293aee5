"""Poisson sampling: batches of random size are padded, and padding neither costs bytes nor carries anything over."""

import numpy as np
import pytest
import torch

from dpzv_audit.base.errors import InputError
from mechanisms import METHODS
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import ledger_of, train
from ...helpers.worlds import SMALL as NOISELESS
from ..conftest import MessageLog, start_run, steps, training_data

SMALL = {"batch_size": 4, "epochs": 3, "embedding": 2, "hidden": 3, "sampler": "poisson", "dtype": "float64"}
RECORD_ROWS = {"embeddings", "gradient"}
"""Kinds of messages with a row a record; `embeddings` of a zeroth-order client hold two."""


def configure(method, **options):
    extra = {"sigma": 0.5} if method.startswith("dpzv") else {}
    extra |= {"forward_bits": None} if method == "compressed" else {}
    return METHODS[method].configure(**SMALL, **extra, **options)


def takes_poisson(method):
    try:
        configure(method)
    except InputError:
        return False
    return True


# Where nothing comes down no message is about a batch.
METHODS_WITH_POISSON = [m for m, spec in METHODS.items() if takes_poisson(m) and spec.downlink != "none"]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vafl", {}),
        *(("dpzv", {"server_update": update}) for update in ("sgd", "zo", "joint-zo")),
        ("dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}),
    ],
    ids=str,
)
def test_a_replica_that_diverges_leaves_the_others_alone(method, options):
    """Replicas share the table's scratch row, where padding is written: it must not carry one's nan to another."""
    (run, _), (other, _) = (start_run(configure(method, **options), replicas=(0, 1), records=16) for _ in range(2))
    run.federation.clients[0].parameters.flat[1] = float("nan")
    for each in (run, other):
        steps(each, 8)
    broken, whole = run.federation, other.federation
    assert broken.clients[0].parameters.flat[1].isnan().all()
    assert broken.server_parameters.flat[0].isfinite().all()
    assert torch.equal(broken.server_parameters.flat[0], whole.server_parameters.flat[0])
    for mine, theirs in zip(broken.clients, whole.clients, strict=True):
        assert torch.equal(mine.parameters.flat[0], theirs.parameters.flat[0])


def test_only_shared_directions_need_batches_of_one_size():
    assert {"dpzv", "dpzv-sound", "vafl", "split", "compressed", "zoo-vfl", "cascaded"} < set(METHODS_WITH_POISSON)
    assert "czofo" not in METHODS_WITH_POISSON


def trained(method, replicas, **options):
    log = MessageLog()
    done = train(training_data(records=16), configure(method, **options), seed=0, replicas=replicas, observers=(log,))
    return done, log.messages


@pytest.mark.parametrize("method", METHODS_WITH_POISSON)
def test_padding_carries_nothing(method):
    _, messages = trained(method, (0, 1))
    padded = 0
    for message in messages:
        if message.ids is None or message.kind not in RECORD_ROWS:
            continue
        rows = message.payload if message.payload.dim() == 4 else message.payload.unsqueeze(1)
        empty = (message.ids < 0).unsqueeze(1).expand(rows.shape[:3])
        padded += int(empty.sum())
        assert (rows[empty] == 0).all()
    assert padded > 0


@pytest.mark.parametrize("method", METHODS_WITH_POISSON)
def test_bytes_count_records_not_padding(method):
    """Each replica's own records at 4 bytes a number, whatever stack it is in."""
    stack = (0, 3, 1)
    together, messages = trained(method, stack)
    for place, replica in enumerate(stack):
        apart, _ = trained(method, (replica,))
        up = down = 0
        for message in messages:
            numbers = message.payload[place].numel()
            if message.kind in RECORD_ROWS:
                places = message.ids.shape[1]
                numbers = numbers // places * int((message.ids[place] >= 0).sum())
            up, down = (up, down + 4 * numbers) if message.sender == 0 else (up + 4 * numbers, down)
        assert ledger_of(together, place) == ledger_of(apart, 0)
        assert (sum(ledger_of(together, place).bytes_up.values()), ledger_of(together, place).down) == (up, down)
    sizes = {ledger_of(together, place).up for place in range(3)}
    assert len(sizes) > 1
    assert together.ledger.up == round(sum(ledger_of(together, place).up for place in range(3)) / 3)


def test_poisson_padding_touches_neither_table_nor_counts_nor_scalar():
    """Padded ids are real records that were not drawn: poison their places, and nothing that counts may change."""
    options = {**NOISELESS, "sampler": "poisson", "participation_cap": 100, "client_rate": 0.0, "server_update": "sgd"}

    class Poison:
        first_pass_repeats = 1

        def __init__(self, value):
            self.value = value

        def uploads(self, turn):
            generator = torch.Generator().manual_seed(turn.round)
            both = torch.randn(turn.shape, generator=generator, dtype=turn.dtype)
            return both.masked_fill((turn.batch.weights == 0)[:, None, :, None], self.value)

    results = []
    for value in (0.0, 1e3):
        behaviours = {m: Poison(value) for m in (1, 2, 3)}
        run, log = start_run(DPZVConfig(**options), records=8, behaviours=behaviours)
        steps(run)
        fed = run.federation
        scalars = log.scalars()
        results.append((scalars, fed.table[:-1], run._counts[:-1], fed.server_parameters.flat))
    padded = sum(int((m.ids < 0).sum()) for m in log.messages if m.kind == "scalar")
    assert padded > 0
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    drawn = sum(int((m.ids >= 0).sum()) for m in log.messages if m.kind == "scalar")
    assert int(results[0][2].sum()) == drawn


def test_the_poisson_divisor_is_b_whatever_the_size():
    """Every record saturates at +C, so the scalar is (size of the batch) C / B."""

    class AllUp:
        first_pass_repeats = 1

        def uploads(self, turn):
            plus = torch.full((*turn.batch.ids.shape, turn.shape[-1]), 5.0, dtype=turn.dtype)
            plus[..., 0] = -5.0  # every label is 0, so the loss at h+ is the larger
            return torch.stack((plus, -plus), 1)

    config = DPZVConfig(**{**NOISELESS, "sampler": "poisson", "top_model": False, "epochs": 20})
    labels = np.zeros(8, dtype=np.int64)
    run, log = start_run(config, records=8, labels=labels, behaviours={m: AllUp() for m in (1, 2, 3)})
    steps(run)
    sizes = torch.stack([(m.ids >= 0).sum(1) for m in log.messages if m.kind == "scalar"])
    scalars = log.scalars()
    assert len(sizes.unique()) > 2
    assert torch.allclose(scalars, sizes.double() * config.clip / config.batch_size, rtol=1e-12)
