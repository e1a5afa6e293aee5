"""Work of a round against numbers by hand and against what rounds really do; the simulated clock against a slow one."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.reproduce import TABLES, Setting, reproduce, with_rows
from dpzv_audit.reproduce.costs import (
    one_by_one,
    operations,
    round_work,
    together,
)
from mechanisms import METHODS, method_named
from mechanisms.core.context import TrainingData
from mechanisms.core.models import MLP
from mechanisms.core.schedules import by_compute_times

from ...helpers.built_in import new_run
from ...helpers.refusals import refused
from .conftest import drawn_figure

B, WIDTH, HIDDEN, CLASSES, FEATURES, CLIENTS = 64, 16, 32, 10, 16, 4
"""Of a round on digits with the settings of `sizes`."""
LAYERS = 2 * B * (CLIENTS * WIDTH * HIDDEN + HIDDEN * CLASSES)
"""Operations of one pass through the server's two layers."""


@pytest.fixture(scope="module")
def data(digits):
    return TrainingData.of(digits({"clients": CLIENTS}), dtype=torch.float32, device="cpu")


def configured(method, **options):
    return method_named(method).configure(batch_size=B, embedding=WIDTH, hidden=HIDDEN, **options)


def test_a_pass_by_hand():
    forward = 2 * B * (8 * 5 + 5 * 3)
    weights, inside, inputs = forward, 2 * B * 5 * 3, 2 * B * 8 * 5
    model = MLP((8, 5, 3))
    assert operations(model, B, (8,), at_inputs=False) == (forward, weights + inside)
    assert operations(model, B, (8,), at_inputs=True) == (forward, weights + inside + inputs)
    assert operations(None, B, (8,), at_inputs=True) == (0, 0)


@pytest.mark.parametrize(
    ("method", "options", "answers", "forward", "back"),
    [
        ("split", {}, 1, 1, "to embeddings"),
        ("vafl", {}, 1, 1, "to embeddings"),
        ("compressed", {"forward_bits": 8}, 1, 1, "to embeddings"),
        ("zoo-vfl", {}, 2, 3, "none"),
        ("syn-zoo-vfl", {}, 5, 6, "none"),
        ("cascaded", {}, 2, 2, "to weights"),
        ("czofo", {"directions": 10}, 11, 11, "to weights"),
    ],
)
def test_the_server_of_a_round_by_hand(method, options, answers, forward, back, data):
    config = configured(method, **options)
    own = {"none": 0, "to weights": LAYERS + 2 * B * HIDDEN * CLASSES, "to embeddings": 2 * LAYERS}[back]
    assert config.answered_losses(CLIENTS) == answers
    assert config.passes(CLIENTS).forward == forward
    work = round_work(config, data)
    assert work.server == forward * LAYERS + own
    assert work.client == 2 * (2 * B * FEATURES * WIDTH)  # twice forward, or forward and back to the weights alone


@pytest.mark.parametrize(("method", "active"), [("vafl", 1), ("split", CLIENTS)])
def test_a_real_first_order_round_works_as_counted(method, active, data):
    config = configured(method, epochs=1)
    run = new_run(data, config, seed=0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run.step()
    work = round_work(config, data)
    assert counter.get_total_flops() == work.server + active * work.client


def test_methods_of_other_papers_have_no_such_count():
    assert METHODS["dpzv"].configure().answered_losses(CLIENTS) == 2
    with refused("use a method of papers 002 and 003"):
        METHODS["dpzv"].configure().passes(CLIENTS)


def test_synchronous_rounds_wait_for_the_slowest():
    clock = together([1, 1, 4], 2, 10)
    assert (clock.time, clock.waiting, clock.serving) == (60, 10 * (5 + 5 + 2), 20)
    assert clock.rounds == (10, 10, 10)


def by_ticks(times, server, rounds):
    """The same clock a tick at a time: (time, waiting, rounds by client, rounds as (client, tick))."""
    left, queue, busy = list(times), [], None
    counts, done, waiting, now = [0] * len(times), [], 0, 0
    while True:
        queue += [client for client, rest in enumerate(left) if rest == 0 and client not in queue and client != busy]
        if busy is None and queue:
            busy, rest = queue.pop(0), server
        if busy is not None and rest == 0:
            counts[busy] += 1
            done.append(busy)
            left[busy] = times[busy]
            if len(done) == rounds:
                return now, waiting, tuple(counts), done
            busy = None
            continue
        waiting += sum(rest == 0 for rest in left)
        left = [max(0, rest - 1) for rest in left]
        now += 1
        if busy is not None:
            rest -= 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 4), st.integers(1, 25))
def test_asynchronous_rounds_against_a_simulation_by_ticks(times, server, rounds):
    clock = one_by_one(times, server, rounds)
    now, waiting, counts, done = by_ticks(times, server, rounds)
    assert (clock.time, clock.waiting, clock.rounds) == (now, waiting, counts)
    assert clock.serving == server * rounds
    gaps = []
    for client in range(len(times)):
        own = [0, *(number for number, active in enumerate(done, 1) if active == client), rounds]
        gaps += [later - sooner for sooner, later in pairwise(own)]
    assert clock.gap == max(gaps)


def test_with_a_server_that_takes_no_time_the_order_is_that_of_compute_times():
    times = (3, 5, 4)
    order = by_compute_times(times)
    active = [next(order) for _ in range(50)]
    for rounds in range(1, 50):
        clock = one_by_one(times, 0, rounds)
        assert clock.rounds == tuple(active[:rounds].count(client) for client in (1, 2, 3))
        assert clock.waiting == 0


def test_the_tables_say_who_works_and_who_waits(digits):
    setting = Setting(load=digits, epochs=2, seeds=1)
    table = TABLES["czofo-server-work"]
    result = reproduce(table, setting)
    by_label = {row.label: row for row in result.rows}
    assert by_label["VAFL"].server_times == 1.0
    assert by_label["split learning"].server_times == 0.5
    assert "VFL-CZOFO, q = 100 " in drawn_figure(table, result)
    table = with_rows(TABLES["cascaded-table3-clock"], ["split learning", "VAFL"])
    pixels = Records((np.zeros((256, 196), np.float32),) * 4, np.arange(256) % 10)
    flat = VerticalDataset("blank", pixels, pixels, 10, "runs", {})
    result = reproduce(table, replace(setting, load=lambda keywords: flat))
    by_label = {row.label: row for row in result.rows}
    slow = "one client 5 times as slow"
    assert by_label[f"split learning, {slow}"].clients_wait > 0.6
    assert by_label[f"VAFL, {slow}"].clients_wait < 0.1
    assert f"split learning, {slow} 0.6" in drawn_figure(table, result)


def test_a_clock_is_for_as_many_clients_as_there_are(digits):
    table = TABLES["cascaded-table3-clock"]
    with refused("slowness is 4; use one for each of 2 clients"):
        reproduce(table, Setting(load=lambda keywords: digits({"clients": 2}), epochs=1, seeds=1))
