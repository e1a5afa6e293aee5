"""ZOO-VFL, Syn-ZOO-VFL and VFL-Cascaded against a slow reference written from paper 002, and against autograd."""

import numpy as np
import pytest
import torch

from dpzv_audit.base.seeds import Purpose
from mechanisms import METHODS
from mechanisms.core.channel import SERVER
from mechanisms.core.config import active_clients
from mechanisms.core.streams import Directions, Streams
from mechanisms.methods.zoo import ZerothOrderConfig

from ..conftest import Parties, agree, p_value, start_run, steps, vector

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""

SMALL = {
    "batch_size": 5,
    "epochs": 4,
    "embedding": 2,
    "hidden": 4,
    "dtype": "float64",
    "client_rate": 0.05,
    "server_rate": 0.03,
    "smoothing": 1e-2,
}
METHOD_NAMES = ("zoo-vfl", "syn-zoo-vfl", "cascaded")
VARIANTS = {
    "gaussian": {},
    "unit sphere": {"direction": "unit-sphere"},
    "sphere": {"direction": "sphere"},
    "momentum": {"momentum": 0.9, "server_momentum": 0.8},
    "no top model": {"top_model": False},
    "poisson": {"sampler": "poisson"},
    "uniform": {"sampler": "uniform"},
    "frozen server": {"server_rate": 0.0},
    "embedding": {"dp": "embedding", "dp_clip": 0.1, "dp_sigma": 0.05},
    "embedding-batch, poisson": {"dp": "embedding-batch", "dp_clip": 0.3, "dp_sigma": 0.05, "sampler": "poisson"},
}
SCHEDULES = {
    "by the clock": {"compute_times": (1.0, 2.0, 3.5)},
    "random": {"activation": "random", "activation_probabilities": (0.2, 0.3, 0.5)},
}
CASES = [(method, variant) for method in METHOD_NAMES for variant in VARIANTS] + [
    (method, schedule) for method in ("zoo-vfl", "cascaded") for schedule in SCHEDULES
]


class Reference:
    """Algorithm 1 of paper 002, and its zeroth-order server and synchronous relatives, for one replica."""

    def __init__(self, parties, config, *, seed, replica):
        self.parties, self.config = parties, config

        def directions(party, purpose):
            return Directions(
                config.direction,
                len(vector(parties.modules[party])),
                Streams(seed=seed, replicas=(replica,), dtype=torch.float64),
                party=party,
                purpose=purpose,
            )

        self.directions = {m: directions(m, Purpose.DIRECTIONS) for m in parties.m}
        if parties.modules[0] is not None:
            self.server_directions = directions(0, Purpose.SERVER_DIRECTIONS)
        self.round = 0
        if not config.synchronous:
            parties.fill_table()

    def estimate(self, losses, u):
        """phi/mu (f(w + mu u) - f(w)) u, phi = d on the unit sphere and 1 otherwise."""
        phi = len(u) if self.config.direction == "unit-sphere" else 1
        return phi / self.config.smoothing * (losses[1] - losses[0]) * u

    def run_round(self, active):
        """One round in which the clients `active` take part; returns ids and {m: (h, h moved, losses)}."""
        parties, mu = self.parties, self.config.smoothing
        ids = parties.draw(active[0])
        answers = {}
        with torch.no_grad():
            pairs = {}
            for m in active:
                u = self.directions[m].at(parties.rounds[m])[0]
                here = {i: parties.embed(m, i) for i in ids}
                w = torch.nn.utils.parameters_to_vector(parties.modules[m].parameters())
                moved = parties.at(m, w + mu * u, lambda m=m: {i: parties.embed(m, i) for i in ids})
                # Two messages: each is clipped and noised as one of its own.
                here, moved = (parties.sent(parties.clipped(h)) for h in (here, moved))
                pairs[m] = (here, moved, u)
            current = parties.table if not self.config.synchronous else {}
            current.update({(m, i): h for m, (here, _, _) in pairs.items() for i, h in here.items()})
            rows = {i: [current[k, i] for k in parties.m] for i in ids}
            for m, (here, moved, _) in pairs.items():
                both = [
                    parties.mean_loss(
                        {i: [h[i] if k == m else row[k - 1] for k in parties.m] for i, row in rows.items()}
                    )
                    for h in (here, moved)
                ]
                answers[m] = (here, moved, torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in both]))
        if parties.modules[0] is not None:
            self.step_server(rows)
        for m, (_, _, u) in pairs.items():
            parties.step(m, self.estimate(answers[m][2], u))
            parties.rounds[m] += 1
        self.round += 1
        return ids, answers

    def step_server(self, rows):
        parties = self.parties
        if self.config.server_first_order:
            parties.step(0, parties.gradient(parties.mean_loss(rows), 0))
            return
        u = self.server_directions.at(self.round)[0]
        w = torch.nn.utils.parameters_to_vector(parties.modules[0].parameters()).detach()
        with torch.no_grad():
            losses = [parties.at(0, w + s * u, lambda: parties.mean_loss(rows)) for s in (0.0, self.config.smoothing)]
            parties.step(0, self.estimate(losses, u))


@pytest.mark.parametrize(("method", "variant"), CASES)
def test_rounds_are_those_of_the_paper(method, variant):
    config = METHODS[method].configure(**{**SMALL, **{**VARIANTS, **SCHEDULES}[variant]})
    run, log = start_run(config, seed=3, replicas=(1, 2), records=16)
    reference = Reference(Parties(run.federation.data, config, seed=3, replica=2), config, seed=3, replica=2)
    active = active_clients(config, 3, 3)
    for _ in range(9):
        before = len(log.messages)
        steps(run, 1)
        clients = [1, 2, 3] if config.synchronous else [next(active)]
        ids, answers = reference.run_round(clients)
        new = log.messages[before:]
        assert [(m.sender, m.receiver) for m in new] == [(m, SERVER) for m in clients] + [(SERVER, m) for m in clients]
        for message in new:
            members = [i for i in message.ids[1].tolist() if i >= 0]
            assert members == ids
            here, moved, losses = answers[message.sender or message.receiver]
            if message.sender == SERVER:
                assert message.kind == "losses"
                assert torch.allclose(message.payload[1], losses, rtol=0, atol=1e-10)
                continue
            places = [p for p, i in enumerate(message.ids[1].tolist()) if i >= 0]
            for p, i in zip(places, ids, strict=True):
                assert torch.allclose(message.payload[1, 0, p], here[i], rtol=0, atol=1e-10)
                assert torch.allclose(message.payload[1, 1, p], moved[i], rtol=0, atol=1e-10)
        # Rounding of 1e-16 in a loss grows by phi / mu, up to 5,000.
        agree(run, 1, reference.parties, atol=1e-9)
    assert 0 not in {party for party, *_ in log.notes}, "a party knows the server's directions"


def test_the_methods_differ_in_what_the_paper_says_they_differ():
    configs = {name: METHODS[name].configure() for name in METHOD_NAMES}
    assert {name: (c.synchronous, c.server_first_order) for name, c in configs.items()} == {
        "zoo-vfl": (False, False),
        "syn-zoo-vfl": (True, False),
        "cascaded": (False, True),
    }
    assert all(c.direction == "gaussian" and c.smoothing == 1e-3 and c.momentum == 0 for c in configs.values())


def steps_taken(config, rounds):
    """(client's, server's) negated steps at rate 1 from one and the same point, each (rounds, d)."""
    run, _ = start_run(config, seed=2, records=12, clients=1, width=2)
    fed = run.federation
    flats = [fed.clients[0].parameters.flat, fed.server_parameters.flat]
    starts = [flat.clone() for flat in flats]
    negated = ([], [])
    with torch.no_grad():
        for _ in range(rounds):
            run.step()
            for flat, start, rows in zip(flats, starts, negated, strict=True):
                rows.append((start - flat)[0].clone())
                flat.copy_(start)
    return [torch.stack(rows).numpy() for rows in negated], run


@pytest.mark.parametrize("direction", ["gaussian", pytest.param("unit-sphere", marks=pytest.mark.slow), "sphere"])
def test_steps_of_both_parties_are_unbiased_estimates_of_the_gradient(direction):
    """2,500 steps from one point on the whole data set at mu = 1e-6 against autograd: level 1e-4 for each party."""
    config = ZerothOrderConfig(
        batch_size=12,
        embedding=2,
        hidden=3,
        sampler="uniform",
        dtype="float64",
        smoothing=1e-6,
        direction=direction,
        client_rate=1.0,
        server_rate=1.0,
    )
    both, run = steps_taken(config, 2500)
    reference = Parties(run.federation.data, config, seed=2, replica=0)
    rows = {i: [reference.embed(1, i)] for i in range(12)}
    loss = reference.mean_loss(rows)
    for party, estimates in zip((1, 0), both, strict=True):
        truth = reference.gradient(loss, party).numpy()
        assert np.abs(truth).max() > 0.01
        assert p_value(estimates, truth) > LEVEL
        assert p_value(estimates, 1.5 * truth) < 1e-6, "blind to a scale that is off by half"


class Dummies:
    first_pass_repeats = 2

    def __init__(self, transposed=False):
        self.transposed = transposed

    def uploads(self, turn):
        sent = torch.full(turn.shape, 0.5, dtype=turn.dtype)
        sent[:, 1] += 0.1
        return sent.transpose(0, 1).contiguous() if self.transposed else sent


@pytest.mark.parametrize("method", [*METHOD_NAMES, "dpzv"])
def test_a_client_that_sends_something_else_does_not_step_and_is_answered(method):
    run, log = start_run(METHODS[method].configure(**SMALL), behaviours={2: Dummies()}, replicas=(0, 1))
    before = [client.parameters.flat.clone() for client in run.federation.clients]
    steps(run, 9)
    moved = [not torch.equal(a, c.parameters.flat) for a, c in zip(before, run.federation.clients, strict=True)]
    assert moved == [True, False, True]
    own = [m for m in log.messages if m.sender == 2 and m.kind == "embeddings"]
    assert all((m.payload[:, 0] == 0.5).all() for m in own)
    # Each batch of its first pass serves two of its rounds.
    assert torch.equal(own[0].ids, own[1].ids)
    assert not torch.equal(own[1].ids, own[2].ids)


@pytest.mark.parametrize("method", [*METHOD_NAMES, "dpzv"])
def test_uploads_of_another_shape_are_refused(method):
    run, _ = start_run(METHODS[method].configure(**SMALL), replicas=(0, 1, 2), behaviours={1: Dummies(True)})
    with pytest.raises(ValueError, match=r"client 1 sends embeddings of shape \(2, 3, 5, 2\); use \(3, 2, 5, 2\)"):
        run.step()


def test_bytes_of_a_round():
    """Two uploads of B x d_h and two losses a client (paper 002); Syn-ZOO-VFL for every client and without a table."""
    for method, clients in (("zoo-vfl", 1), ("cascaded", 1), ("syn-zoo-vfl", 3)):
        run, _ = start_run(METHODS[method].configure(**SMALL), replicas=(0, 1))
        ledger = run.federation.channel.ledger
        table = ledger.up
        assert table == (0 if clients == 3 else 3 * 24 * 2 * 4)
        steps(run, 1)
        assert ledger.up - table == clients * 2 * 5 * 2 * 4
        assert ledger.down == clients * 2 * 4
