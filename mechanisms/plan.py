"""What is decided before any data is touched: who is active when, how often a record takes part, how much noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from dpzv_audit.accounting import Release, sigma_from_paper, sigma_sound
from dpzv_audit.accounting.release import ServerUpdate, batches_reach_further
from dpzv_audit.errors import InputError
from dpzv_audit.limits import MOST_CLIENTS, MOST_ROUNDS
from mechanisms.config import AsyncConfig, DPZVConfig, TrainingConfig
from mechanisms.context import Deployment, Plan
from mechanisms.federation import rounds_of
from mechanisms.schedules import by_compute_times, cyclic, largest_participation, random_activation


def plan(config: DPZVConfig, deployment: Deployment) -> Plan:
    """Decide the schedule and the noise of a run; `InputError` where the configuration does not fit the data.

    The noise is a property of the system that is deployed: whoever attacks or audits it, under whatever neighbour
    relation, meets the same.
    """
    records, clients, repeats = deployment.records, deployment.clients, deployment.repeats
    rounds = check_plan(config, records=records, clients=clients, rounds=deployment.rounds)
    active = tuple(islice(active_clients(config, clients, deployment.seed), rounds))
    counted = Counter(active)
    by_client = tuple(counted[m] for m in range(1, clients + 1))
    participations = participations_of(config, by_client, records=records, repeats=repeats)
    if participations is None and any(r > 1 for r in repeats.values()):
        raise InputError("must be shuffled where a client queries a batch repeatedly", "sampler", config.sampler)
    if config.participation_cap is not None and participations is not None:
        participations = min(participations, config.participation_cap)
    return Plan(active, by_client, participations, _sigma(config, records, rounds, participations))


def scalar_release(config: DPZVConfig, the_plan: Plan, deployment: Deployment) -> Release:
    """Return the noised scalars of `the_plan` as an accountant takes them."""
    # dp-sgd steps on the batch of each round: a record joins both releases or neither, however often it takes part.
    stepped = config.server_update == "dp-sgd"
    moved: ServerUpdate = "frozen" if config.server_rate == 0 else config.server_update
    return Release(
        batch_size=config.batch_size,
        dataset_size=deployment.records,
        rounds=len(the_plan.active),
        clip=config.clip,
        sigma=the_plan.sigma,
        sampler=config.sampler,
        sample_rate=config.sample_rate,
        clients=len(the_plan.rounds_by_client),
        secret_batches=batches_reach_further(config.sampler, len(the_plan.rounds_by_client)),
        participations=the_plan.participations,
        clip_rule=config.clip_rule,
        server_update=moved if config.top_model else "none",
        participation_cap=config.participation_cap,
        distinct_ids=config.distinct_ids,
        server_noise_multiplier=config.server_noise_multiplier if stepped else None,
        seeded_noise=deployment.seeded_noise,
        data_dependent_side=deployment.data_dependent_side,
        noise=config.noise,
    )


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


def _sigma(config: DPZVConfig, records: int, rounds: int, participations: int | None) -> float:
    """The scalar's noise; sound calibration is for a record's label (or features) replaced, the batches known."""
    if config.sigma is not None:
        return config.sigma
    if config.calibration == "none" or config.epsilon is None:
        return 0.0
    if config.calibration == "paper" and config.sample_rate is not None:
        # Noise that followed from D would differ between data sets of which one has a record more.
        expected = config.batch_size / config.sample_rate
        return (
            sigma_from_paper(config.epsilon, config.delta, clip=config.clip, dataset_size=1, rounds=rounds) / expected
        )
    if config.calibration == "paper":
        return sigma_from_paper(config.epsilon, config.delta, clip=config.clip, dataset_size=records, rounds=rounds)
    assert participations is not None  # `check_sampler` refuses other samplers
    return sigma_sound(
        config.epsilon,
        config.delta,
        clip=config.clip,
        batch_size=config.batch_size,
        participations=participations,
        neighbours="replace-label",
        server_noise_multiplier=config.server_noise_multiplier if config.server_update == "dp-sgd" else None,
    )
