"""What every method in the registry must keep: replicas, seeds, messages as the only channel, an end in any case."""

import math

import numpy as np
import pytest
import torch

from dpzv_audit.base.errors import InputError
from dpzv_audit.evidence.training import train_result
from mechanisms import METHODS
from mechanisms.core.channel import SERVER, Channel
from mechanisms.core.config import AsyncConfig, BaselineConfig, TrainingConfig
from mechanisms.core.context import RunContext
from mechanisms.core.models import dimension, layout_of
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import architectures, train
from ...helpers.refusals import refused
from ..conftest import MessageLog, random_dataset, training_data

TOLERANCE = 1e-10
SMALL = {
    "batch_size": 5,
    "epochs": 3,
    "embedding": 3,
    "hidden": 4,
    "dtype": "float64",
    "client_rate": 0.02,
    "server_rate": 0.05,
}
VARIANTS = {
    "plain": {},
    "no top model": {"top_model": False},
    "uniform": {"sampler": "uniform"},
    "poisson": {"sampler": "poisson"},
    "momentum": {"momentum": 0.5, "server_momentum": 0.7},
    "by the clock": {"compute_times": (1.0, 2.0, 3.0)},
    "random": {"activation": "random", "activation_probabilities": (0.5, 0.3, 0.2)},
    "embedding": {"dp": "embedding", "dp_clip": 0.1, "dp_sigma": 0.1},
    "embedding, poisson": {"dp": "embedding", "dp_clip": 0.1, "dp_sigma": 0.1, "sampler": "poisson"},
    "embedding-batch, poisson": {"dp": "embedding-batch", "dp_clip": 0.5, "dp_sigma": 0.1, "sampler": "poisson"},
    "gradient": {"dp": "gradient", "dp_clip": 0.1, "dp_sigma": 0.1},
    "gradient, poisson": {"dp": "gradient", "dp_clip": 0.1, "dp_sigma": 0.1, "sampler": "poisson"},
    "quantised": {"forward_bits": 8},
    "quantised both ways": {"forward_bits": 4, "backward_bits": 2},
    "local steps": {"local_steps": 3},
    "falling rates": {"rate_schedule": "linear"},
    "in place": {"perturbation": "in-place"},
    "joint": {"server_update": "joint-zo", "server_smoothing": 1e-3},
    "a record": {"scalars": "record", "direction": "unit-sphere"},
    "unit sphere": {"direction": "unit-sphere"},
}


def configure(method, **options):
    return METHODS[method].configure(**METHODS[method].used(SMALL) | options)


def options_of(method, variant):
    """The variant's options, and what the method needs beside them where batches are not shuffled ones of one size."""
    options = VARIANTS[variant]
    sampler = options.get("sampler", "shuffled")
    if method == "compressed" and sampler == "poisson":
        return {**options, "forward_bits": None}
    if method == "dpzv-sound" and sampler != "shuffled":
        return {**options, "sigma": 0.5}
    return options


def accepted(method, options):
    """Whether the method has these options and does not refuse them."""
    if not set(options) <= set(METHODS[method].config.model_fields):
        return False
    try:
        configure(method, **options)
    except InputError:
        return False
    return True


# Where nothing comes down, clients' models may be functions of their features alone.
ANSWERED = [method for method, spec in METHODS.items() if spec.downlink != "none"]
CASES = [(m, v) for m in METHODS for v in VARIANTS if accepted(m, options_of(m, v))]


def run(method, *, seed=0, replicas=(0,), labels=None, observers=(), **options):
    return train(
        training_data(labels=labels), configure(method, **options), seed=seed, replicas=replicas, observers=observers
    )


def flats(trained):
    return [*(client.flat for client in trained.clients), trained.server.flat]


def facts(message):
    """Everything about a message but its payload, in terms that can be compared."""
    return message._replace(payload=None, ids=None if message.ids is None else message.ids.tolist())


def test_every_method_is_tried_in_its_main_variants():
    tried = {method: {v for m, v in CASES if m == method} for method in METHODS}
    for method, variants in tried.items():
        meant = {name for name, options in VARIANTS.items() if METHODS[method].used(options) == options}
        assert {"plain", "no top model", "uniform", "momentum"} & meant <= variants
        assert ("poisson" in variants) == (method != "czofo" and "poisson" in meant)
        synchronous = method in ("split", "compressed", "syn-zoo-vfl", "dp-zo") or method not in ANSWERED
        assert ("by the clock" in variants) == ("random" in variants) == (not synchronous)
    assert {v for variants in tried.values() for v in variants} == set(VARIANTS)


@pytest.mark.parametrize(("method", "variant"), CASES)
def test_a_replica_is_the_same_run_alone(method, variant):
    options = options_of(method, variant)
    stack = (4, 0, 3, 1, 2)
    together = run(method, replicas=stack, **options)
    for chunk in ((2,), (1, 3)):
        apart = run(method, replicas=chunk, **options)
        for place, replica in enumerate(chunk):
            where = stack.index(replica)
            for got, want in zip(flats(together), flats(apart), strict=True):
                assert torch.allclose(got[where], want[place], rtol=0, atol=TOLERANCE)
            assert together.loss[where] == pytest.approx(apart.loss[place], abs=TOLERANCE)
            assert np.array_equal(together.correct[where], apart.correct[place])
    assert all(flat.isfinite().all() for flat in flats(together))
    if method in ANSWERED:
        first = flats(together)[0]
        assert not torch.isclose(first[0], first[1]).all()


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_identical_results_and_others_do_not(method):
    first, again, other = (run(method, seed=seed, replicas=(0, 1)) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(flats(first), flats(again), strict=True))
    drawn = slice(None) if method in ANSWERED else slice(-1, None)
    assert not any(torch.isclose(a, b).all() for a, b in zip(flats(first)[drawn], flats(other)[drawn], strict=True))
    assert first.ledger == again.ledger


def two_worlds(method, options):
    """Logs and results of two trainings whose labels all differ."""
    truth = random_dataset().train.labels
    worlds = []
    for labels in (truth, (truth + 1) % 3):
        log = MessageLog()
        worlds.append((log, run(method, labels=labels, observers=(log,), **options)))
    return worlds


ON_LABELS = (
    "plain",
    "no top model",
    "poisson",
    "by the clock",
    "embedding",
    "gradient",
    "quantised both ways",
    "local steps",
    "in place",
    "joint",
)
LABEL_CASES = [(m, v) for m, v in CASES if v in (*ON_LABELS, "a record") and m in ANSWERED]


@pytest.mark.parametrize(("method", "variant"), LABEL_CASES)
def test_before_the_servers_first_answer_nothing_depends_on_labels(method, variant):
    (first, _), (second, _) = two_worlds(method, options_of(method, variant))
    answer = next(i for i, m in enumerate(first.messages) if m.sender == SERVER)
    assert answer > 0
    equal = [torch.equal(a.payload, b.payload) for a, b in zip(first.messages, second.messages, strict=True)]
    assert all(equal[:answer])
    # An answer does, or the test would be blind.
    assert not all(equal)
    assert list(map(facts, first.messages)) == list(map(facts, second.messages))
    assert [note[:3] for note in first.notes] == [note[:3] for note in second.notes]
    assert all(torch.equal(a[3], b[3]) for a, b in zip(first.notes, second.notes, strict=True))


@pytest.mark.parametrize(("method", "variant"), LABEL_CASES)
def test_labels_reach_a_client_through_messages_alone(method, variant, monkeypatch):
    """If what comes back is made equal in both worlds, clients and all they send stay equal for ever."""
    send, censored = Channel.send, []

    def deliver(channel, message):
        received = send(channel, message)
        if message.sender != SERVER:
            return received
        censored.append(message)
        return torch.linspace(-0.3, 0.5, received.numel(), dtype=received.dtype).view(received.shape)

    options = options_of(method, variant)
    open_worlds = two_worlds(method, options)
    monkeypatch.setattr(Channel, "send", deliver)
    closed_worlds = two_worlds(method, options)
    assert censored
    for worlds, equal in ((open_worlds, False), (closed_worlds, True)):
        (first_log, first), (other_log, second) = worlds
        for a, b in zip(first.clients, second.clients, strict=True):
            assert torch.equal(a.flat, b.flat) == equal
        uploads = [[m.payload for m in log.messages if m.sender != SERVER] for log in (first_log, other_log)]
        assert all(torch.equal(a, b) for a, b in zip(*uploads, strict=True)) == equal
    # Clients did train on what they were handed instead.
    start = run(method, **{**options, "client_rate": 0.0}).clients
    assert not any(torch.equal(a.flat, b.flat) for a, b in zip(start, closed_worlds[0][1].clients, strict=True))


@pytest.mark.parametrize(("method", "variant"), LABEL_CASES)
def test_payloads_are_never_written_to_after_sending(method, variant):
    log = MessageLog()
    run(method, observers=(log,), replicas=(0, 1), **options_of(method, variant))
    assert all(torch.equal(m.payload, copy) for m, copy in zip(log.messages, log.copies, strict=True))


@pytest.mark.parametrize("method", ANSWERED)
def test_a_round_has_one_client_or_all_of_them_on_one_batch(method):
    log = MessageLog()
    trained = run(method, observers=(log,))
    synchronous = method in ("split", "compressed", "syn-zoo-vfl", "dp-zo")
    for round_ in range(trained.rounds):
        own = [m for m in log.messages if m.round == round_]
        up = [m.sender for m in own if m.sender != SERVER]
        assert up == [m.receiver for m in own if m.sender == SERVER]
        assert up == ([1, 2, 3] if synchronous else [1 + round_ % 3])
        assert all(torch.equal(m.ids, own[0].ids) for m in own)
    # Only asynchronous servers keep what they were sent, and so are told everything once at the start.
    assert {m.sender for m in log.messages if m.kind == "table"} == (set() if synchronous else {1, 2, 3})
    assert {m.kind for m in log.messages if m.sender == SERVER} == {METHODS[method].downlink}
    assert trained.rounds == 3 * (24 // 5)
    assert sum(trained.rounds_by_client) == trained.rounds * (3 if synchronous else 1)


@pytest.mark.parametrize("method", METHODS)
def test_progress_and_history(method):
    done = []
    config = configure(method)
    trained = train(training_data(), config, seed=0, progress=done.append, evaluate_epochs=True)
    assert done == [epoch * config.steps_per_pass(24) for epoch in range(1, config.epochs + 1)]
    assert [epoch for epoch, _, _ in trained.history] == list(range(1, config.epochs + 1))
    assert trained.history[-1][1:] == pytest.approx((trained.accuracy.mean(), trained.loss.mean()))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method):
    """Without noise, on data that a linear rule separates, training at tuned rates beats a guess by far."""
    generator = np.random.default_rng(0)
    dataset = random_dataset(records=256, test=200, classes=2, clients=2)
    teacher = generator.standard_normal((2, 3))
    for records in (dataset.train, dataset.test):
        records.labels[:] = sum(block @ row for block, row in zip(records.features, teacher, strict=True)) > 0
    options = {"batch_size": 32, "epochs": 40, "embedding": 4, "hidden": 8, "momentum": 0.9, "server_momentum": 0.9}
    rates = {"dpzv": (0.005, 0.02), "dpzv-sound": (0.01, 0.01), "zoo-vfl": (0.005, 0.005), "cascaded": (0.005, 0.02)}
    rates["syn-zoo-vfl"] = rates["zoo-vfl"]
    rates["dp-zo"] = (0.02, 0.02)
    rates["fixed-features"] = (0.0, 16.0)
    options["client_rate"], options["server_rate"] = rates.get(method, (0.05, 0.05))
    if "sigma" in METHODS[method].config.model_fields:
        options["sigma"] = 0.0
    if method == "dpzv-sound":
        options["clip"] = 10.0
    if METHODS[method].defaults.get("defences"):
        options["defences"] = ()
    data = training_data(dataset, dtype=torch.float32)
    config = METHODS[method].configure(**METHODS[method].used(options))
    trained = train(data, config, seed=0, replicas=range(3))
    assert trained.accuracy.mean() > 0.8
    assert trained.loss.mean() < 0.8 * math.log(2)


# A sum of frozen features has no parameter that could diverge, nor has a head that is solved for.
STEPPED = [m for m, spec in METHODS.items() if "server_rate" not in spec.config.unused]
DIVERGING = [(m, o) for m in STEPPED for o in ({}, {"dtype": "float32"})]
DIVERGING += [(m, {"top_model": False}) for m in ANSWERED]


def huge(method):
    """Rates at which a method diverges, without noise that shortens steps."""
    spec = METHODS[method]
    still = {"sigma": 0.0} if "logit_noise" in spec.config.model_fields else {}
    return {**spec.used({"client_rate": 1e30, "server_rate": 1e30, "epochs": 6}), **still}


@pytest.mark.parametrize(("method", "options"), DIVERGING, ids=str)
def test_a_diverging_training_ends_with_a_result(method, options):
    """No warning (warnings are errors here) and no traceback: accuracy is a share, the loss any number or none."""
    data = training_data(dtype=getattr(torch, options.get("dtype", "float64")))
    config = configure(method, **huge(method), **options)
    trained = train(data, config, seed=0, replicas=(0, 1), evaluate_epochs=True)
    assert ((trained.accuracy >= 0) & (trained.accuracy <= 1)).all()
    assert not (trained.loss < 10).any()
    assert len(trained.history) == 6


def test_a_confidence_out_of_range_is_named_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr("dpzv_audit.evidence.training.train_in_stacks", None)
    with refused(r"confidence is 1\.5; use a number strictly between 0 and 1"):
        train_result(METHODS["split"], configure("split"), random_dataset(), confidence=1.5)


@pytest.mark.parametrize("method", STEPPED)
def test_a_diverging_training_is_reported(method):
    config = configure(method, **huge(method), dtype="float32")
    result, _ = train_result(
        METHODS[method], config, random_dataset(), seed=0, trials=1, controls=False, device="cpu", confidence=0.95
    )
    loss = result.utility.final_loss
    assert loss is None or loss > 10
    assert ("diverged" in result.sentence) == (loss is None)
    assert 0 <= result.utility.test_accuracy.value <= 1


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("compressed", {"forward_bits": 3}, "forward_bits is 3; use 1, 2, 4 or 8"),
        ("czofo", {"forward_bits": 16}, "forward_bits is 16"),
        ("czofo", {"backward_bits": 0}, "backward_bits is 0"),
        ("split", {"forward_bits": "eight"}, "forward_bits is 'eight'"),
        ("czofo", {"directions": 0}, "directions is 0"),
        ("czofo", {"smoothing": 0.0}, "smoothing is 0.0"),
        ("czofo", {"scalars": "round"}, "scalars is 'round'"),
        ("czofo", {"direction": "cube"}, "direction is 'cube'"),
        ("czofo", {"sampler": "poisson"}, "use sampler shuffled or uniform"),
        ("czofo", {"dp": "gradient", "dp_sigma": 1.0}, "use dp none, embedding or embedding-batch"),
        ("compressed", {"sampler": "poisson"}, "use sampler shuffled or uniform with forward_bits"),
        ("compressed", {"local_steps": 0}, "local_steps is 0"),
        ("vafl", {"client_rate": -0.1}, "client_rate is -0.1"),
        ("vafl", {"server_rate": math.nan}, "server_rate is nan"),
        ("vafl", {"dp": "labels"}, "dp is 'labels'"),
        ("vafl", {"dp": "embedding", "dp_sigma": -1.0}, "dp_sigma is -1.0"),
        ("vafl", {"dp": "embedding", "dp_clip": 0.0}, "dp_clip is 0.0"),
        ("vafl", {"dp_sigma": 1.0}, "dp_sigma above 0 needs dp"),
        ("split", {"dp_sigma": 1.0}, "dp_sigma above 0 needs dp"),
        ("zoo-vfl", {"smoothing": -1.0}, "smoothing is -1.0"),
        ("zoo-vfl", {"direction": "ball"}, "direction is 'ball'"),
        ("zoo-vfl", {"client_rate": math.inf}, "client_rate is inf"),
        ("cascaded", {"compute_times": (1.0, 2.0), "activation": "random"}, "use activation cyclic"),
        ("vafl", {"compute_times": (0.0, 1.0, 1.0)}, "use more than 0 for each of compute_times"),
        ("syn-zoo-vfl", {"compute_times": (1.0, 2.0, 3.0)}, "compute_times does not apply"),
        ("syn-zoo-vfl", {"activation": "random"}, "activation does not apply"),
        ("split", {"compute_times": (1.0, 2.0, 3.0)}, "compute_times does not apply"),
        ("compressed", {"activation": "random"}, "activation does not apply"),
    ],
)
def test_wrong_options_are_one_line(method, options, message):
    with pytest.raises(InputError) as caught:
        METHODS[method].configure(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [m for m in METHODS if issubclass(METHODS[m].config, AsyncConfig)])
def test_a_schedule_for_another_number_of_clients_is_one_line(method):
    if accepted(method, {"compute_times": (1.0, 2.0)}):
        with refused("compute_times has 2 entries; use one for each of the 3 clients"):
            run(method, compute_times=(1.0, 2.0))
    with refused("batch_size is 25; use at most the 24 training records"):
        run(method, batch_size=25)


def parameters(shapes, classes, **options):
    """Numbers of parameters of (each client, the server) in the default architectures."""
    clients, server = architectures(shapes, classes, top_model=True, **options)
    return [dimension(layout_of(c)) for c in clients], dimension(layout_of(server))


@pytest.mark.parametrize(("width", "count"), [(128, 66_954), (256, 133_898), (512, 267_786)])
def test_parameter_counts_of_002(width, count):
    """MNIST on four clients of 196 pixels, embeddings of 128, a server of `width` (paper 002, section VI-D)."""
    assert parameters(((196,),) * 4, 10, embedding=128, hidden=width) == ([25_216] * 4, count)


def test_parameter_counts_of_003():
    """MNIST on two clients of 392 pixels, embeddings of 64, a server of 128 (paper 003, section 6.1)."""
    assert parameters(((392,),) * 2, 10, embedding=64, hidden=128) == ([25_152] * 2, 17_802)


class Silent:
    first_pass_repeats = 1
    asked = 0

    def uploads(self, turn):
        self.asked += 1


@pytest.mark.parametrize("kind", [TrainingConfig, AsyncConfig, BaselineConfig, DPZVConfig])
def test_a_configuration_of_another_method_is_one_line(kind):
    data = training_data()
    config = kind(batch_size=5, epochs=1)
    with refused(rf"^config is a {kind.__name__}; use a VAFLConfig for method vafl"):
        METHODS["vafl"].start(data, config, RunContext(seed=0))


@pytest.mark.parametrize("method", METHODS)
def test_behaviours_are_followed_or_refused_in_one_line(method):
    """Clients that deviate choose the two uploads of a zeroth-order client; methods with one upload refuse them."""
    data, config = training_data(), configure(method)
    if METHODS[method].deviation == "uploads":
        client = Silent()
        trained = train(data, config, seed=0, behaviours={1: client})
        assert client.asked == trained.rounds_by_client[0] > 0
        return
    with refused(r"^behaviours are given for client 1 of a \w+; leave it out"):
        train(data, config, seed=0, behaviours={1: Silent()})


@pytest.mark.parametrize("method", ["dpzv", "zoo-vfl"])
@pytest.mark.parametrize("number", [0, 4])
def test_behaviours_of_a_client_that_is_not_there_are_one_line(method, number):
    with refused(f"^behaviours are given for client {number}; give them for clients 1 to 3"):
        train(training_data(), configure(method), seed=0, behaviours={number: Silent()})
