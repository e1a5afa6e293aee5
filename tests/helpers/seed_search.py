"""Searches for the seed of a training in the models that leave: what a start and directions of the seed give."""

import numpy as np

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.federation import architectures_of
from mechanisms.core.models import initial_parameters, layout_of


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
    rounding. Or it lies near its start: two random ones of 50 numbers do not have a cosine of 0.9.
    """
    found = set()
    for seed in seeds:
        for party, flat, layout in parties:
            assert rounds <= len(flat) // 2
            start = initial_parameters(layout, stream(seed, Purpose.INIT, party, 0))
            purpose = Purpose.DIRECTIONS if party else Purpose.SERVER_DIRECTIONS
            # The first rows of a block of `Directions`; their lengths do not matter here.
            along = stream(seed, purpose, party, 0, 0).standard_normal((rounds, len(flat)), np.float32).astype(float)
            moved = flat - start
            left = moved - along.T @ np.linalg.solve(along @ along.T, along @ moved)
            near = len(flat) > 50 and (start @ flat) > 0.9 * np.linalg.norm(start) * np.linalg.norm(flat)
            if near or np.linalg.norm(left) < 1e-3 * np.linalg.norm(moved):
                found.add(seed)
    return found
