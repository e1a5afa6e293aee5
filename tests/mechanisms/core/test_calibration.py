"""Noise of the baselines from (epsilon, delta): known answers, sensitivities measured on messages, and its limits."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import gaps_of, mu_from_epsilon, tightest_sound, upper_bounds
from dpzv_audit.cli.releases import ReleaseFlags
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.training import train_result
from mechanisms import METHODS, ProtectedConfig
from mechanisms.core.baselines import calibrated, channel_release
from mechanisms.core.channel import SERVER, Channel
from mechanisms.core.context import Deployment
from mechanisms.core.scalars import plan_run
from reports.text import attacker

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import MessageLog, random_dataset, same_models, training_data

RECORDS, CLIENTS = 24, 3
SMALL = {"batch_size": 5, "epochs": 3, "embedding": 3, "hidden": 4, "dtype": "float64", "dp_clip": 0.2}
SHAPE = {"records": RECORDS, "clients": CLIENTS, "seed": 0}
PROTECTED = [m for m in METHODS if issubclass(METHODS[m].config, ProtectedConfig)]
ZEROTH = ("zoo-vfl", "syn-zoo-vfl", "cascaded")


def configure(method, **options):
    extra = {"forward_bits": None} if method == "compressed" else {}
    return METHODS[method].configure(**{**SMALL, **extra, **options})


def guarantee(method, **options):
    """What the noise protects, the release, and the gaps of any bound on it."""
    config = configure(method, **options)
    protection = METHODS[method].protection(config)
    (release,) = METHODS[method].releases(config, Deployment(**SHAPE))
    return protection, release, gaps_of(release, protection.faced, protection.neighbours)


def messages_about_a_record(method):
    """3 epochs of 4 rounds: each of 3 clients makes 4 rounds, a pass; a synchronous method makes 3 passes together."""
    uploads = 2 if method in ZEROTH else 1
    if method in ("split", "compressed", "syn-zoo-vfl"):
        return 3 * CLIENTS * uploads
    return CLIENTS * 1 * uploads + CLIENTS


@pytest.mark.parametrize("method", PROTECTED)
@pytest.mark.parametrize(("neighbours", "factor"), [("replace-record", 2.0), ("zero-out", 1.0)])
def test_sigma_is_the_gaussian_mechanisms_for_all_messages_about_a_record(method, neighbours, factor):
    """sigma = s sqrt(messages) / mu with s = 2C where a record is replaced and C where it is zeroed out."""
    config = configure(method, dp="embedding", epsilon=2.0, delta=1e-4, neighbours=neighbours)
    sigma = calibrated(config, Deployment(**SHAPE)).dp_sigma
    count = messages_about_a_record(method)
    assert sigma == pytest.approx(factor * 0.2 * math.sqrt(count) / mu_from_epsilon(2.0, 1e-4), rel=1e-6)


@pytest.mark.parametrize("neighbours", ["replace-record", "zero-out"])
def test_one_clip_over_a_batch_moves_by_2c_in_either_relation(neighbours):
    batch, record = (
        calibrated(configure("zoo-vfl", dp=dp, epsilon=1.0, neighbours=relation), Deployment(**SHAPE)).dp_sigma
        for dp, relation in (("embedding-batch", neighbours), ("embedding", "replace-record"))
    )
    assert batch == pytest.approx(record, rel=1e-9)


@pytest.mark.parametrize("method", PROTECTED)
@pytest.mark.parametrize(("neighbours", "factor"), [("replace-record", 2.0), ("zero-out", 1.0)])
def test_the_papers_rule_scales_one_message_a_round_by_the_sampling_rate(method, neighbours, factor):
    """sigma = r s sqrt(T) / mu with r = B/D and s = 2C or C, whatever else is sent about a record."""
    config = configure(method, dp="embedding", epsilon=2.0, delta=1e-4, neighbours=neighbours, calibration="paper")
    rounds = 3 * (RECORDS // 5)
    sigma = calibrated(config, Deployment(**SHAPE)).dp_sigma
    expected = 5 / RECORDS * factor * 0.2 * math.sqrt(rounds) / mu_from_epsilon(2.0, 1e-4)
    assert sigma == pytest.approx(expected, rel=1e-9)
    scalar = METHODS["dpzv"].configure(batch_size=5, epochs=3, epsilon=2.0, delta=1e-4, clip=0.2)
    if neighbours == "replace-record":  # the same rule gives DPZV's scalar, a mean over the batch, its noise
        assert sigma == pytest.approx(5 * plan_run(scalar, Deployment(**SHAPE)).sigma, rel=1e-9)


def test_noise_of_the_baselines_at_the_papers_size():
    """MNIST in seven strips, 100 epochs, (1, 1e-3): known ids cost 16.2 times the noise that the papers' rule gives."""
    sizes = {"batch_size": 256, "epochs": 100, "dp_clip": 1.0, "delta": 1e-3, "epsilon": 1.0}
    sigmas = [
        calibrated(
            configure("vafl", dp="embedding", calibration=rule, **sizes), Deployment(records=60_000, clients=7)
        ).dp_sigma
        for rule in ("paper", "messages")
    ]
    assert sigmas == pytest.approx([3.36, 54.5], rel=2e-3)


def test_noise_by_the_papers_rule_does_not_give_its_claim():
    protection, release, _ = guarantee("vafl", dp="embedding", epsilon=1.0, calibration="paper", epochs=30)
    messages = replace(release, client_update="frozen", server_update="none", noise="exact")
    faced = {"adversaries": [protection.faced], "neighbours": [protection.neighbours]}
    proven = tightest_sound(upper_bounds(messages, delta=1e-5, **faced))
    assert proven.epsilon.upper > 2.0


@settings(derandomize=True, deadline=None, max_examples=15)
@given(
    st.sampled_from(ZEROTH),
    st.sampled_from(["embedding", "embedding-batch"]),
    st.floats(0.1, 8.0),
    st.sampled_from(["shuffled", "uniform", "poisson"]),
)
@pytest.mark.slow
def test_a_sound_target_is_met_when_checked_forward(method, dp, epsilon, sampler):
    protection, release, gaps = guarantee(method, dp=dp, epsilon=epsilon, calibration="sound", sampler=sampler)
    assert gaps == ()
    assert (protection.channel, protection.faced, protection.neighbours) == ("embedding", "server", "replace-record")
    best = tightest_sound(
        upper_bounds(release, delta=protection.delta, adversaries=["server"], neighbours=["replace-record"])
    )
    assert 0.97 * epsilon <= best.epsilon.upper <= epsilon


def test_gradients_are_protected_soundly_where_the_server_has_no_parameters():
    found, release, gaps = guarantee("vafl", dp="gradient", epsilon=1.0, calibration="sound", top_model=False)
    assert (found.channel, found.faced, found.neighbours, gaps) == ("gradient", "client", "replace-label", ())
    assert release.sigma == pytest.approx(0.4 * math.sqrt(CLIENTS) / mu_from_epsilon(1.0, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("method", "options", "gap"),
    [
        ("vafl", {"dp": "embedding"}, "client-state"),
        ("czofo", {"dp": "embedding-batch"}, "client-state"),
        ("split", {"dp": "gradient"}, "server-state"),
    ],
)
def test_what_the_messages_do_not_cover_is_named(method, options, gap):
    assert guarantee(method, **options, epsilon=1.0)[2] == (gap,)
    with refused(rf"^calibration is 'sound' with dp .*{gap}"):
        calibrated(configure(method, **options, epsilon=1.0, calibration="sound"), Deployment(**SHAPE))


def test_float_noise_leaves_a_sound_bound_without_soundness():
    """The same messages with noise in floating point: the number is the same, the gap is named, `sound` is refused."""
    options = {"dp": "gradient", "top_model": False, "epsilon": 1.0}
    guarantees = [guarantee("vafl", **options, noise=noise) for noise in ("grid", "float")]
    assert [gaps for _, _, gaps in guarantees] == [(), ("floating-point",)]
    assert guarantees[0][1].sigma == guarantees[1][1].sigma
    bounds = [
        upper_bounds(release, delta=1e-5, adversaries=["client"], neighbours=["replace-label"])
        for _, release, _ in guarantees
    ]
    best = tightest_sound(bounds[0])
    assert best is not None
    assert tightest_sound(bounds[1]) is None
    beside = next(b for b in bounds[1] if b.accountant == best.accountant)
    assert (beside.epsilon, beside.gap) == (best.epsilon, "floating-point")
    with refused(r"^calibration is 'sound' with dp gradient.*floating-point"):
        calibrated(configure("vafl", **options, noise="float", calibration="sound"), Deployment(**SHAPE))


def worlds(method, config, monkeypatch):
    """Messages of two noiseless trainings whose record 3 has other features, every answer replaced by a fixed one."""
    dataset = random_dataset(records=RECORDS, clients=CLIENTS)
    send = Channel.send

    def deliver(channel, message):
        received = send(channel, message)
        if message.sender != SERVER:
            return received
        return torch.linspace(-0.3, 0.5, received.numel(), dtype=received.dtype).view(received.shape)

    monkeypatch.setattr(Channel, "send", deliver)
    messages = []
    for shift in (0.0, 5.0):
        blocks = tuple(block.copy() for block in dataset.train.features)
        for block in blocks:
            block[3] -= shift
        changed = VerticalDataset(
            "random", Records(blocks, dataset.train.labels), dataset.test, dataset.classes, dataset.partition, {}
        )
        log = MessageLog()
        train(training_data(changed), config, seed=0, observers=(log,))
        messages.append([message for message in log.messages if message.receiver == SERVER])
    return messages


@pytest.mark.parametrize("method", ZEROTH)
@pytest.mark.parametrize("dp", ["embedding", "embedding-batch"])
def test_one_record_moves_all_messages_by_no_more_than_the_calibration_counts(method, dp, monkeypatch):
    """Squared distance of two views, given the answers: at most messages x (2C)^2; a row clip: in its rows alone."""
    config = configure(method, dp=dp)
    first, second = worlds(method, config, monkeypatch)
    total = 0.0
    for a, b in zip(first, second, strict=True):
        gap = a.payload - b.payload
        total += float(gap.square().sum())
        if dp == "embedding":
            ids = torch.arange(RECORDS).unsqueeze(0) if a.ids is None else a.ids
            rows = gap if gap.dim() == 4 else gap.unsqueeze(1)
            assert (rows[:, :, (ids != 3)[0]] == 0).all()
            assert (rows.norm(dim=-1) <= 0.4 * (1 + 1e-12)).all()
    release = channel_release(config.model_copy(update={"dp_sigma": 1.0}), Deployment(**SHAPE))
    counted = release.directions * release.participations + release.whole_data_rounds
    assert counted == messages_about_a_record(method)
    assert 0 < total <= counted * 0.4**2 * (1 + 1e-9)


@pytest.mark.parametrize("method", ["vafl", "czofo"])
@pytest.mark.parametrize("embeddings", ["stale", "fresh"])
def test_as_many_messages_are_accounted_as_are_sent_about_a_record(method, embeddings):
    config = configure(method, dp="embedding", dp_sigma=1.0, embeddings=embeddings)
    data = training_data(records=RECORDS, clients=CLIENTS)
    about, log = torch.zeros(RECORDS, dtype=torch.int64), MessageLog()
    train(data, config, seed=0, observers=(log,))
    for message in log.messages:
        if message.receiver == SERVER:
            about[torch.arange(RECORDS) if message.ids is None else message.ids[0]] += 1
    release = channel_release(config, Deployment(**SHAPE))
    counted = release.directions * release.participations + release.whole_data_rounds
    assert counted == about.max() == (3 * CLIENTS if embeddings == "fresh" else messages_about_a_record(method))


@pytest.mark.parametrize("method", ["vafl", "czofo", "split"])
def test_first_order_clients_do_leak_past_their_noised_rows(method, monkeypatch):
    """The gap client-state is real: given equal answers, a record's features move rows of OTHER records later."""
    first, second = worlds(method, configure(method, dp="embedding", dp_clip=10.0), monkeypatch)
    others = [
        float((a.payload - b.payload)[:, (a.ids != 3)[0]].abs().max())
        for a, b in zip(first, second, strict=True)
        if a.ids is not None
    ]
    assert max(others) > 1e-4


@pytest.mark.parametrize("calibration", ["messages", "sound"])
def test_noise_is_the_same_wherever_it_is_drawn_and_whatever_else_is_published(calibration):
    config = configure("vafl", dp="gradient", epsilon=1.0, calibration=calibration, top_model=False)
    published = Deployment(**SHAPE, seeded_noise=True, data_dependent_side=True)
    assert calibrated(config, published) == calibrated(config, Deployment(**SHAPE))


@pytest.mark.parametrize("method", PROTECTED)
def test_training_uses_the_calibrated_noise(method):
    data = training_data(records=RECORDS, clients=CLIENTS)
    config = configure(method, dp="embedding", epsilon=2.0)
    sigma = calibrated(config, Deployment(**SHAPE)).dp_sigma
    assert sigma > 0
    plain = configure(method, dp="embedding", dp_sigma=sigma)
    first, second = (train(data, c, seed=0) for c in (config, plain))
    assert same_models(first, second)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("vafl", {"epsilon": 1.0}, "epsilon needs dp embedding"),
        ("vafl", {"dp": "embedding", "epsilon": 1.0, "dp_sigma": 1.0}, "give one of the two"),
        ("vafl", {"dp": "embedding", "epsilon": 0.0}, "epsilon is 0.0"),
        ("vafl", {"dp": "embedding", "epsilon": 1.0, "delta": 1.0}, "delta is 1.0"),
        ("vafl", {"dp": "embedding", "neighbours": "replace-label"}, "the server owns the labels"),
        ("split", {"dp": "embedding", "neighbours": "add-remove"}, "neighbours is 'add-remove'"),
        ("zoo-vfl", {"dp": "gradient"}, "no gradient travels here"),
        ("cascaded", {"dp_sigma": 1.0}, "dp_sigma above 0 needs dp"),
        ("zoo-vfl", {"dp": "embedding", "calibration": "none"}, "calibration is 'none'"),
    ],
)
def test_wrong_targets_are_one_line(method, options, words):
    with refused(words):
        configure(method, **options)


def test_what_is_not_noised_is_not_released():
    """A clip alone protects nothing, so there is nothing for an accountant."""
    for options in ({}, {"dp": "embedding"}):
        config = configure("vafl", **options)
        assert METHODS["vafl"].releases(config, Deployment(**SHAPE)) == ()
        assert METHODS["vafl"].protects(config) == "nothing: no noise is added anywhere"


@pytest.mark.parametrize(
    ("method", "options", "adversary", "sound"),
    [
        ("zoo-vfl", {"dp": "embedding"}, "server", True),
        ("vafl", {"dp": "embedding-batch"}, "server", False),
        ("split", {"dp": "gradient", "top_model": False}, "client", True),
        ("compressed", {"dp": "gradient"}, "client", False),
    ],
)
def test_a_result_says_whom_the_noise_faces_and_what_it_is_worth(method, options, adversary, sound):
    config = configure(method, **options, epsilon=3.0)
    result, _ = train_result(METHODS[method], config, random_dataset(records=RECORDS, clients=CLIENTS), controls=False)
    privacy = result.privacy
    assert (privacy.claimed, privacy.adversary) == (3.0, adversary)
    assert privacy.neighbours == ("replace-label" if options["dp"] == "gradient" else "replace-record")
    assert (privacy.upper is not None) == sound == (privacy.gap is None)
    assert not sound or privacy.upper <= 3.0
    assert f"against {attacker(adversary)}" in result.sentence
    assert ("labels" if options["dp"] == "gradient" else "embeddings sent to the server") in result.protects
    assert privacy.release["sigma"] > 0


def test_a_baselines_release_is_what_account_describes():
    settings_ = ["dp=embedding", "epsilon=2.0", *(f"{key}={value}" for key, value in SMALL.items())]
    flags = ReleaseFlags(method="zoo-vfl", settings=settings_, clients=CLIENTS, dataset_size=RECORDS)
    release, by_theorem, protection = flags.of_method()
    assert release == guarantee("zoo-vfl", dp="embedding", epsilon=2.0)[1]
    assert (by_theorem, protection.delta) == (None, 1e-5)
