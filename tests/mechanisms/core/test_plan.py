import math
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import epsilon_from_mu, mu_from_epsilon, tightest_sound, upper_bounds
from mechanisms.core.config import build_config
from mechanisms.core.context import Deployment
from mechanisms.core.scalars import plan_run, scalar_release
from mechanisms.core.schedules import by_compute_times, random_activation
from mechanisms.core.streams import BatchStream, Streams
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.refusals import refused


def made(config=None, *, records=24, clients=3, seed=0, **options):
    config = config or DPZVConfig(batch_size=6, epochs=5)
    return plan_run(config, Deployment(records=records, clients=clients, seed=seed, **options))


def released(config, *, records=24, clients=3):
    deployment = Deployment(records=records, clients=clients)
    return scalar_release(config, plan_run(config, deployment), deployment)


def counted(config, the_plan, *, records, clients, seed, repeats):
    """Largest count of a record over all clients' rounds, by drawing every batch."""
    counts = Counter()
    for m in range(1, clients + 1):
        stream = BatchStream(
            "shuffled", Streams(seed=seed, replicas=(0,)), records=records, batch_size=config.batch_size, client=m
        )
        own, steps, batch = repeats.get(m, 1), records // config.batch_size, None
        for round_ in range(the_plan.rounds_by_client[m - 1]):
            if round_ >= own * steps or round_ % own == 0:
                batch = stream.next()
            counts.update(batch.ids[0].tolist())
    return max(counts.values())


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    records=st.integers(2, 20),
    data=st.data(),
    clients=st.integers(1, 4),
    epochs=st.integers(1, 8),
    seed=st.integers(0, 50),
    repeats=st.integers(1, 4),
    activation=st.sampled_from(["cyclic", "random"]),
)
def test_participations_bound_the_realised_count(records, data, clients, epochs, seed, repeats, activation):
    config = DPZVConfig(batch_size=data.draw(st.integers(1, records)), epochs=epochs, activation=activation, sigma=1.0)
    got = made(config, records=records, clients=clients, seed=seed, repeats={1: repeats})
    count = counted(config, got, records=records, clients=clients, seed=seed, repeats={1: repeats})
    assert count <= got.participations
    if clients == 1 and records % config.batch_size == 0:
        assert count == got.participations


def test_participations_are_exact_after_whole_passes():
    config = DPZVConfig(batch_size=6, epochs=9, sigma=1.0)
    got = made(config)
    assert got.rounds_by_client == (12, 12, 12)
    assert got.participations == 9 == counted(config, got, records=24, clients=3, seed=0, repeats={})
    capped = made(config.model_copy(update={"participation_cap": 4}))
    assert capped.participations == 4
    assert made(config.model_copy(update={"participation_cap": 40})).participations == 9


@pytest.mark.parametrize("sampler", ["uniform", "poisson"])
def test_random_participations_are_unknown(sampler):
    config = DPZVConfig(batch_size=6, sampler=sampler, sigma=1.0)
    assert made(config).participations is None
    with refused(f"sampler is '{sampler}'; use shuffled"):
        made(config, repeats={1: 2})
    with refused("calibration is 'sound'"):
        made(DPZVConfig(batch_size=6, sampler=sampler, calibration="sound"))


def test_activation_follows_the_configuration():
    rounds = 20
    assert made().active == tuple(islice((1, 2, 3) * rounds, rounds))
    weights = (0.2, 0.5, 0.3)
    config = DPZVConfig(batch_size=6, epochs=5, activation="random", activation_probabilities=weights)
    assert made(config, seed=4).active == tuple(islice(random_activation(weights, seed=4), rounds))
    equal = DPZVConfig(batch_size=6, epochs=5, activation="random")
    assert made(equal).active == tuple(islice(random_activation([1 / 3] * 3, seed=0), rounds))
    clock = DPZVConfig(batch_size=6, epochs=5, compute_times=(1.0, 2.0, 4.0))
    assert made(clock).active == tuple(islice(by_compute_times((1.0, 2.0, 4.0)), rounds))
    for config in (equal, clock):
        got = made(config)
        assert got.rounds_by_client == tuple(got.active.count(m) for m in (1, 2, 3))
        assert len(got.active) == rounds


def test_noise_of_each_calibration():
    base = {"batch_size": 6, "epochs": 5, "epsilon": 2.0, "delta": 1e-4, "clip": 3.0}
    mu = mu_from_epsilon(2.0, 1e-4)
    paper = made(DPZVConfig(**base))
    assert paper.sigma == pytest.approx(2 * 3.0 * math.sqrt(20) / (24 * mu), rel=1e-9)
    sound = made(DPZVConfig(**base, calibration="sound"))
    assert sound.participations == 6  # two passes begun by each of three clients in 7, 7 and 6 rounds of 4 a pass
    assert sound.sigma == pytest.approx(2 * 3.0 * math.sqrt(6) / (6 * mu), rel=1e-9)
    z = sound.sigma / (2 * 3.0 / 6)
    assert epsilon_from_mu(math.sqrt(sound.participations) / z, 1e-4) <= 2.0
    assert made(DPZVConfig(**base, calibration="none")).sigma == 0.0
    assert made(DPZVConfig(**base, sigma=0.123)).sigma == 0.123
    repeated = made(DPZVConfig(**base, calibration="sound"), repeats={1: 5})
    assert repeated.participations == 9
    assert repeated.sigma > sound.sigma


def test_the_release_is_what_the_plan_says():
    config = DPZVConfig(batch_size=6, epochs=5, sigma=0.2, participation_cap=3, distinct_ids=True)
    release = released(config)
    assert (release.batch_size, release.dataset_size, release.rounds, release.clients) == (6, 24, 20, 3)
    assert (release.sigma, release.clip, release.participations) == (0.2, 10.0, 3)
    assert (release.participation_cap, release.distinct_ids, release.server_update) == (3, True, "sgd")
    summing = config.model_copy(update={"top_model": False})
    assert released(summing).server_update == "none"


def test_dp_sgds_own_release_is_accounted():
    """Noise of z C_0 on a sum that a replaced label moves by 2 C_0: mu = 2 / z each time that the record takes part."""
    config = DPZVConfig(
        batch_size=6, epochs=5, sigma=0.2, server_update="dp-sgd", server_noise_multiplier=4.0, server_clip=0.3
    )
    release = released(config)
    alone = config.model_copy(update={"server_update": "frozen"})
    scalar = released(alone).participation_mu("replace-label")
    assert release.participation_mu("replace-label") == pytest.approx(math.hypot(scalar, 2 / 4.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 25}, "batch_size is 25; use at most the 24 training records"),
        ({"compute_times": (1.0, 2.0)}, "compute_times has 2 entries; use one for each of the 3 clients"),
        (
            {"activation": "random", "activation_probabilities": (1.0,)},
            "activation_probabilities has 1 entries; use one for each of the 3 clients",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_the_data_is_one_line(options, message):
    with refused(message):
        made(DPZVConfig(**{"batch_size": 6, **options}))


def test_sound_noise_counts_the_updates_of_a_server_by_dp_sgd():
    """Scalars and server together meet the claim; and where nothing is left for the scalars, the key is named."""
    sizes = {"batch_size": 10, "epochs": 2, "epsilon": 1.0, "delta": 1e-5, "calibration": "sound"}
    config = DPZVConfig(**sizes, server_update="dp-sgd", server_noise_multiplier=30.0)
    release = released(config, records=40, clients=2)
    best = tightest_sound(upper_bounds(release, delta=1e-5, adversaries=["client"], neighbours=["replace-label"]))
    assert best.epsilon.upper == pytest.approx(1.0, rel=1e-9)
    less = DPZVConfig(**sizes, server_update="dp-sgd", server_noise_multiplier=2.0)
    with refused(r"server_noise_multiplier is 2\.0; use more than "):
        plan_run(less, Deployment(records=40, clients=2))


def test_with_a_public_rate_one_record_more_changes_nothing_that_is_seen():
    public = DPZVConfig(batch_size=6, epochs=5, sampler="poisson", sample_rate=0.3, epsilon=1.0)
    follows = DPZVConfig(batch_size=6, epochs=5, sampler="poisson", epsilon=1.0)
    with_it, without = made(public, records=24), made(public, records=23)
    assert (with_it.active, with_it.sigma) == (without.active, without.sigma)
    assert len(with_it.active) == 5 * 3  # floor(1 / 0.3) rounds in each epoch
    # at B/D both the rounds and the noise of theorem 5.1 tell
    assert len(made(follows, records=24).active) == 20
    assert len(made(follows, records=23).active) == 15
    # theorem 5.1 with B / Q = 20 in the place of D
    assert with_it.sigma == pytest.approx(2 * 10 * math.sqrt(15) / (20 * mu_from_epsilon(1.0, 1e-5)), rel=1e-12)


def test_add_remove_of_a_method_is_defined_by_its_public_rate():
    for options, gap in (({"sample_rate": 0.1}, "secret-batches"), ({}, "undefined")):
        config = DPZVConfig(batch_size=6, sampler="poisson", sigma=2.0, server_update="joint-zo", **options)
        release = released(config, records=60)
        bounds = upper_bounds(release, delta=1e-3, adversaries=["release"], neighbours=["add-remove"])
        prv = next(bound for bound in bounds if bound.accountant == "prv")
        assert tightest_sound(bounds) is None
        assert prv.gap == gap
        assert (prv.epsilon is not None) == (gap == "secret-batches")


@pytest.mark.parametrize(
    ("sampler", "clients", "amplified"),
    [("poisson", 1, False), ("poisson", 3, False), ("uniform", 1, True), ("uniform", 2, False)],
)
def test_the_hidden_batches_of_a_training_amplify_only_where_no_table_keeps_them(sampler, clients, amplified):
    """A record that is drawn shifts the rows of a Poisson batch; the table keeps other clients' earlier batches."""
    config = DPZVConfig(batch_size=6, sampler=sampler, sigma=2.0, server_update="joint-zo")
    release = released(config, records=60, clients=clients)
    bounds = upper_bounds(release, delta=1e-3, adversaries=["release"], neighbours=["replace-label"])
    prv = next(bound for bound in bounds if bound.accountant == "prv")
    assert (prv.sound, prv.gap) == ((True, None) if amplified else (False, "secret-batches"))
    best = tightest_sound(bounds)
    assert best.accountant == ("prv" if amplified else "gdp-exact")
    assert best.epsilon.upper >= prv.epsilon.upper


def test_a_public_rate_needs_poisson_batches():
    for sampler in ("shuffled", "uniform"):
        with refused(f"sample_rate is 0.1 with sampler {sampler}; leave it out"):
            build_config(DPZVConfig, {"sampler": sampler, "sample_rate": 0.1})
    for rate in (0.0, 1.5, -0.1, "often"):
        with refused("sample_rate"):
            build_config(DPZVConfig, {"sampler": "poisson", "sample_rate": rate})


@pytest.mark.parametrize("update", ["joint-zo", "dp-sgd", "dp-zo"])
def test_float_noise_is_a_gap_of_every_bound_and_grid_noise_of_none(update):
    """The same number either way; beside `floating-point` it is not sound, and nothing takes it for the tightest."""
    options = {"batch_size": 6, "server_update": update, "server_noise_multiplier": 5.0}
    by_noise = {}
    for noise in ("grid", "float"):
        config = DPZVConfig(**options, noise=noise)
        release = released(config)
        by_noise[noise] = upper_bounds(release, delta=1e-5, adversaries=["client"], neighbours=["replace-label"])
    best = tightest_sound(by_noise["grid"])
    assert best is not None
    assert tightest_sound(by_noise["float"]) is None
    for bound in by_noise["float"]:
        assert bound.epsilon is None or "floating-point" in (bound.gap or "").split(",")
    beside = next(bound for bound in by_noise["float"] if bound.accountant == best.accountant)
    assert beside.epsilon == best.epsilon
