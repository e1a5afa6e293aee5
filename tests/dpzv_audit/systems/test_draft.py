"""A release is drafted from a rehearsal: what was seen is filled in, and what cannot be seen is left open."""

import numpy as np
import pytest

from dpzv_audit.systems.rehearsal import rehearse
from dpzv_audit.systems.release_tests import held_against
from dpzv_audit.systems.run import method_of
from dpzv_audit.systems.stated import release_of
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task

from ...helpers.refusals import refused

N, BATCH, EPOCHS, CLIP, SIGMA = 60, 20, 3, 1.0, 2.0
SEEN = {"batch_size": BATCH, "rounds": 2 * EPOCHS * N // BATCH, "clients": 2, "sampler": "shuffled"}


def task():
    rng = np.random.default_rng(0)
    blocks = tuple(rng.standard_normal((N, 3)).astype(np.float32) for _ in range(2))
    labels = rng.integers(2, size=N)
    return Task.valued(blocks, labels, tuple(block[:10] for block in blocks), labels[:10], 2, None)


def train(task, record, seed, *, up="embeddings", down=("gradient",), often=1):
    """Send noised labels, `often` in each round."""
    rng = np.random.default_rng(seed)
    for number in range(EPOCHS * N // BATCH):
        if number % (N // BATCH) == 0:
            order = rng.permutation(N)
        ids = order[BATCH * (number % (N // BATCH)) :][:BATCH]
        for client in (1, 2):
            record.sent(number, client, 0, up, task.features[client - 1][ids], ids)
            signs = np.where(task.labels[ids], CLIP, -CLIP)
            for kind in down:
                for _ in range(often):
                    noised = signs[:, None] + SIGMA * rng.standard_normal((BATCH, 1))
                    record.sent(number, 0, client, kind, noised, ids)


def drafted(system):
    capabilities = rehearse(system, task(), 0)
    return method_of(system, capabilities, task()).capabilities.draft, capabilities.rehearsed


def stated(source):
    names = {}
    exec(source, names)
    return names["releases"](task())


def test_what_was_seen_is_filled_in_and_holds_once_the_rest_is():
    source, rehearsal = drafted(System("draft", train))
    found = stated(source)
    assert found == {
        **SEEN,
        "channel": "gradient",
        "clip": ...,
        "clip_scope": "record",
        "sigma": ...,
        "server_update": "sgd",
    }
    with refused("clip: use a finite number above 0"):
        release_of(found, N)
    release, _ = release_of({**found, "clip": CLIP, "sigma": SIGMA}, N)
    assert held_against(release, rehearsal).contradicted == ()


def test_each_line_fits_a_narrow_terminal():
    source, _ = drafted(System("draft", lambda *given: train(*given, down=("gradient", "losses"))))
    assert max(map(len, source.splitlines())) < 80
    assert "    # Labels leave in losses too.\n" in source


@pytest.mark.parametrize(
    ("changed", "top_model", "expected"),
    [
        ({"down": ("scalar",)}, True, {"channel": "scalar"}),
        ({"down": ("losses",)}, True, {"channel": "embedding"}),
        ({"often": 2}, True, {"rounds": 2 * SEEN["rounds"]}),
        ({}, False, {"server_update": "none"}),
    ],
)
def test_the_channel_and_the_counts_are_those_that_were_seen(changed, top_model, expected):
    source, rehearsal = drafted(System("draft", lambda *given: train(*given, **changed), top_model=top_model))
    found = stated(source)
    assert {name: found[name] for name in expected} == expected
    release, _ = release_of({**found, "clip": CLIP, "sigma": SIGMA}, N)
    counts = [words for words in held_against(release, rehearsal).contradicted if "messages" in words]
    assert not [words for words in counts if "implies" in words]


def test_nothing_is_drafted_where_a_release_is_stated_or_no_message_could_have_its_noise():
    release = {**SEEN, "channel": "gradient", "clip": CLIP, "clip_scope": "record", "sigma": SIGMA}
    release["server_update"] = "none"
    assert drafted(System("draft", train, stated=lambda task: release))[0] == ""
    assert drafted(System("draft", lambda *given: train(*given, up="table", down=("losses",))))[0] == ""
