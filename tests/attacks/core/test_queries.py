"""The client that queries: what it sends, and that it draws by replica alone."""

import pytest
import torch

from attacks.core.queries import DUMMY_STD, QueryingClient
from mechanisms.core.context import ClientTurn
from mechanisms.core.streams import BatchStream, Streams


def turn(own_round, replicas=2, batch=5, width=3, dtype=torch.float64):
    drawn = BatchStream(
        "shuffled", Streams(seed=0, replicas=range(replicas)), records=20, batch_size=batch, client=1
    ).next()
    return ClientTurn(0, 1, own_round, drawn, (replicas, 2, batch, width), dtype, "cpu")


def test_a_querying_client_asks_about_each_batch_at_one_point_with_fresh_directions():
    client = QueryingClient(queries=3, smoothing=1e-2, steps_per_pass=2, seed=0, replicas=(0, 1))
    assert client.first_pass_repeats == 3
    sent = [client.uploads(turn(t)) for t in range(6)]
    assert all(s.shape == (2, 2, 5, 3) for s in sent)
    centres = [s.mean(1) for s in sent]
    directions = [(s[:, 0] - s[:, 1]) / 2e-2 for s in sent]
    assert torch.allclose(centres[0], centres[1], rtol=1e-12)
    assert torch.allclose(centres[0], centres[2], rtol=1e-12)
    assert not torch.isclose(centres[0], centres[3]).any()
    for i in range(6):
        for j in range(i):
            assert not torch.isclose(directions[i], directions[j]).any()
    assert not torch.isclose(directions[0][0], directions[0][1]).any()
    # 180 standard normal numbers: the sum of squares is chi-square, 110 to 267 at level 1e-4.
    numbers = torch.stack(directions)
    assert 110 < (numbers**2).sum() < 267
    assert torch.stack(centres).std() == pytest.approx(DUMMY_STD, rel=0.35)
    assert client.uploads(turn(6)) is None


def test_a_one_sided_client_sends_the_point_itself_and_one_step_beside_it():
    options = {"queries": 2, "smoothing": 1e-2, "steps_per_pass": 2, "seed": 0, "replicas": (0, 1)}
    one_sided, two_sided = QueryingClient(**options, one_sided=True), QueryingClient(**options)
    sent, pair = one_sided.uploads(turn(0)), two_sided.uploads(turn(0))
    assert torch.allclose(sent[:, 0], pair.mean(1), rtol=1e-12)
    assert torch.equal(sent[:, 0], one_sided.uploads(turn(1))[:, 0])
    # The same direction, from the point and not around it.
    assert torch.allclose(sent[:, 1], pair[:, 0], rtol=1e-12)
    assert one_sided.uploads(turn(4)) is None


def test_a_replicas_queries_do_not_depend_on_the_stack():
    both = QueryingClient(queries=2, smoothing=0.1, steps_per_pass=2, seed=0, replicas=(0, 5))
    alone = QueryingClient(queries=2, smoothing=0.1, steps_per_pass=2, seed=0, replicas=(5,))
    for t in range(4):
        assert torch.equal(both.uploads(turn(t))[1], alone.uploads(turn(t, replicas=1))[0])
