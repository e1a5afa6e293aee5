"""Searches for the seed of a training in the models that leave: what a start and directions of the seed give."""

import numpy as np
import torch

from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.federation import architectures_of
from mechanisms.core.models import initial_parameters, layout_of
from mechanisms.core.streams import Directions


def parties_of(data, config, tensors):
    """Each party's number, its parameters (d,) by `tensors` of their names, and its layout: the server and client 1."""
    clients, server = architectures_of(data, config)
    for party, name, architecture in ((0, "server", server), (1, "client-1", clients[0])):
        if architecture is not None:
            layout = layout_of(architecture)
            flat = np.concatenate([np.ravel(tensors[f"{name}/{part}"]) for part, _ in layout])
            yield party, flat.astype(np.float64), layout


def shown_by(parties, seeds, *, rounds):
    """Seeds that models show.

    A model is its start and a step along each of its directions: for the right seed nothing is left beside them but
    rounding. Or it lies near its start: two random ones of 50 numbers do not have a correlation of 0.9.
    """
    found = set()
    for seed in seeds:
        for party, flat, layout in parties:
            assert rounds <= len(flat) // 2
            start = initial_parameters(layout, stream(seed, Purpose.INIT, party, 0))
            purpose = Purpose.DIRECTIONS if party else Purpose.SERVER_DIRECTIONS
            streams = {"seed": seed, "replicas": (0,), "dtype": torch.float32}
            along = Directions("sphere", len(flat), party=party, purpose=purpose, **streams)
            basis, _ = np.linalg.qr(np.stack([along.at(t)[0].numpy() for t in range(rounds)]).T)
            moved = flat - start
            left = moved - basis @ (basis.T @ moved)
            near = len(flat) > 50 and np.corrcoef(start, flat)[0, 1] > 0.9
            if near or np.linalg.norm(left) < 1e-3 * np.linalg.norm(moved):
                found.add(seed)
    return found
