"""What is decided before any data is touched: who is active when, and how often a record takes part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpzv_audit.errors import InputError
from dpzv_audit.limits import MOST_CLIENTS, MOST_ROUNDS
from mechanisms.config import AsyncConfig, TrainingConfig
from mechanisms.federation import rounds_of
from mechanisms.schedules import by_compute_times, cyclic, largest_participation, random_activation


def check_plan(config: TrainingConfig, *, records: int, clients: int, rounds: int | None = None) -> int:
    """Return how many rounds a plan will have; takes no time, whatever the sizes.

    Raises `InputError` where the configuration does not fit `records` and `clients`, or makes more than `MOST_ROUNDS`
    rounds (`rounds`, of all clients together, stand in place of the configuration's epochs).
    """
    if config.batch_size > records:
        raise InputError(f"must be at most the {records} training records", "batch_size", config.batch_size)
    config.check_clients(clients)
    if clients > MOST_CLIENTS:
        raise InputError(f"must be at most {MOST_CLIENTS:,}", "clients", clients)
    if rounds is not None and rounds > MOST_ROUNDS:
        raise InputError(f"must be at most {MOST_ROUNDS:,}", "rounds", rounds)
    config.check_sampler()
    return rounds_of(config, records) if rounds is None else rounds


def participations_of(
    config: AsyncConfig, rounds_by_client: Sequence[int], *, records: int, repeats: Mapping[int, int] | None = None
) -> int | None:
    """Largest number of rounds, over all clients, that a record takes part in; None where that is random."""
    if config.sampler != "shuffled":
        return None
    return sum(
        largest_participation(
            rounds, steps_per_pass=config.steps_per_pass(records), first_pass_repeats=(repeats or {}).get(m, 1)
        )
        for m, rounds in enumerate(rounds_by_client, start=1)
    )


def active_clients(config: AsyncConfig, clients: int, seed: int) -> Iterator[int]:
    """The active client of each round, without end; `InputError` where the configuration does not fit their number."""
    config.check_clients(clients)
    if config.compute_times is not None:
        return by_compute_times(config.compute_times)
    if config.activation == "random":
        return random_activation(config.activation_probabilities or [1.0 / clients] * clients, seed=seed)
    return cyclic(clients)
