"""Direct label inference through the real training paths, with its controls."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from attacks import attack_named
from attacks.core.metrics import rate_limits
from attacks.core.queries import QueryingClient
from attacks.core.run import attacked_run, public_knowledge
from attacks.core.spec import LabelGuesses
from attacks.label.direct import infer
from attacks.label.mount import correctness, label_measures
from mechanisms import METHODS
from mechanisms.core.channel import Adversary, BatchLog, View, ViewRecorder
from mechanisms.core.context import TrainingData

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import CONFIDENCE, mount, random_dataset, small_setting

DIRECT = attack_named("label_direct")
setting = partial(small_setting, DIRECT)


mounted = partial(mount, DIRECT)


def known_of(of, client, queries=1):
    """What one client of 48 records knows beside its view."""
    return replace(public_knowledge(DIRECT, replace(of, queries=queries), None), client=client)


GRADIENT = [name for name, spec in METHODS.items() if spec.downlink == "gradient"]
SCALAR = [name for name, spec in METHODS.items() if spec.downlink not in ("gradient", "none")]


def check_chance(outcome):
    """The control on permuted labels covers what agreement by chance gives."""
    control = outcome.controls["shuffled_labels"]
    assert control.low <= outcome.baselines["prior"] <= control.high


def watched(of, client, behaviours=None):
    """Guesses of `client` from its view of a training, the view, and the batches that it was answered about."""
    data = TrainingData.of(of.dataset, dtype=torch.float32, device="cpu")
    recorder, log = ViewRecorder(Adversary("client", (client,))), BatchLog("scalar", (client,))
    train(data, of.config, seed=0, replicas=(0, 1), behaviours=behaviours or {}, observers=(recorder, log))
    view = recorder.view
    assert {m.kind for m in view.messages} == {"table", "embeddings", "scalar"}  # of which none is a label
    assert all(client in (m.sender, m.receiver) for m in view.messages)
    known = known_of(of, client, queries=2 if behaviours else 1)
    guesses = infer(view, known)
    assert torch.equal(guesses.labels, infer(View(view.adversary, list(view.messages), view.notes), known).labels)
    # Each record of the first pass is guessed once.
    for ids in guesses.ids.unbind(1):
        assert sorted(ids.flatten().tolist()) == list(range(48))
    return guesses, log.stacked()


def test_a_client_that_queries_guesses_from_its_view_alone():
    one = setting(queries=2, trials=2)
    client = QueryingClient(queries=2, smoothing=one.config.smoothing, steps_per_pass=6, seed=0, replicas=(0, 1))
    guesses, batches = watched(one, 1, {1: client})
    assert torch.equal(guesses.ids, batches[: 2 * len(guesses.ids) : 2])


def test_an_honest_client_guesses_from_the_directions_of_its_own_notes():
    one = setting("czofo", options={"directions": 4, "scalars": "record"}, trials=2)
    guesses, batches = watched(one, 2)
    assert torch.equal(guesses.ids, batches[:6])
    assert correctness(guesses, one.dataset.train.labels).mean() > 0.95


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("batch_size", [1, 7, 48])
@pytest.mark.parametrize(
    ("rule", "adversary"),
    [
        ("argmin", "client"),
        ("first-negative", "eavesdropper"),
        pytest.param("argmin", "eavesdropper", marks=pytest.mark.slow),
        pytest.param("first-negative", "client", marks=pytest.mark.slow),
    ],
)
def test_first_order_gradients_give_every_label(classes, batch_size, rule, adversary):
    outcome = mounted(
        "split",
        random_dataset(classes=classes),
        options={"batch_size": batch_size, "epochs": 1},
        options_of_attack={"rule": rule},
        adversary=adversary,
        trials=2,
        with_positive=True,
    )
    assert outcome.success.value == 1.0
    assert outcome.success.n == 2 * (48 // batch_size) * batch_size
    assert outcome.controls["positive"].value == 1.0
    # Labels permuted before training are read off as exactly, and score what agreement by chance gives.
    assert outcome.controls["shuffled_labels"].value < 0.9
    assert outcome.plan is None


@pytest.mark.parametrize("adversary", ["client", "eavesdropper"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dp": "embedding", "dp_clip": 0.5, "dp_sigma": 10.0},
        {"dp": "embedding-batch", "dp_clip": 0.5, "dp_sigma": 0.1},
        {"sampler": "uniform"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", GRADIENT)
def test_every_gradient_method_gives_every_label(method, options, adversary):
    """Noise on embeddings protects features: the gradient at whatever was sent still names the label."""
    # Every client of `vafl` has its own pass, of which each takes its turn.
    outcome = mounted(method, options={"epochs": 3, **options}, adversary=adversary, trials=2)
    assert outcome.success.value == 1.0
    assert outcome.success.n == 2 * 48
    assert outcome.controls["shuffled_labels"].value < 0.9


@pytest.mark.parametrize("adversary", ["client", "eavesdropper"])
@pytest.mark.parametrize(
    "schedule",
    [
        {"activation": "random", "activation_probabilities": (0.1, 0.6, 0.3)},
        {"compute_times": (5.0, 1.0, 2.0)},
    ],
    ids=str,
)
def test_an_attacked_client_need_not_be_the_first_that_is_active(schedule, adversary):
    """Guesses about one client's batches are scored against the records of those batches."""
    outcome = mounted("vafl", options={"epochs": 12, **schedule}, adversary=adversary, trials=2)
    assert outcome.success.value == 1.0
    assert outcome.success.n > 2 * 8


@pytest.mark.parametrize("adversary", ["client", "eavesdropper"])
@pytest.mark.parametrize("method", ["vafl", "split"])
def test_gradient_noise_hides_labels(method, adversary, digits):
    """A gradient clipped to 0.1 under noise of 3 a coordinate: at most 0.108 of 5,632 guesses are right in expectation.

    Guesses err independently, so that 0.13 is 5 standard deviations away: false-alarm rate below 1e-6.
    """
    options = {"batch_size": 64, "epochs": 4, "dp": "gradient", "dp_clip": 0.1}
    noisy, clipped = (
        mounted(method, digits, options={**options, "dp_sigma": s}, adversary=adversary, trials=4) for s in (3.0, 0.0)
    )
    assert noisy.success.n == 4 * 1408
    assert noisy.success.value < 0.13
    # The clip keeps directions, and with them labels.
    assert clipped.success.value == 1.0


def test_the_shuffled_control_is_at_chance(digits):
    """Permutations agree with the truth in sum p_k^2 of places in expectation; interval over trials at 1 - 1e-4."""
    outcome = mounted("split", digits, options={"batch_size": 64, "epochs": 1}, trials=16)
    check_chance(outcome)
    control = outcome.controls["shuffled_labels"]
    assert control.high - control.low < 0.03
    assert outcome.success.value == 1.0


SWEEP = {1: 0.117, 10: 0.173}


# At one query the estimators differ by a positive factor, so that the smallest coordinate is the same.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("queries", "estimator"), [(1, "ridge"), (10, "ridge"), (10, "correlation"), (10, "minimum-norm")]
)
def test_query_sweep_through_the_real_path(queries, estimator, digits):
    """A curious client of DPZV without noise, B = 64, 10 classes: the figures of synthetic logits within 0.03."""
    outcome = mounted(
        data=digits,
        options={"batch_size": 64, "epochs": 4 * queries},
        queries=queries,
        options_of_attack={"estimator": estimator},
        trials=16,
        with_positive=True,
    )
    assert outcome.success.value == pytest.approx(SWEEP[queries], abs=0.03)
    if queries == 10:
        assert outcome.success.low > 0.13
    check_chance(outcome)
    assert outcome.controls["positive"].value == 1.0
    trained = outcome.trained
    assert trained.rounds == 22 * 4 * queries
    assert outcome.plan is not None
    assert outcome.plan.sigma == 0.0


ZEROTH_ORDER = {"zoo-vfl": 4, "cascaded": 4, "syn-zoo-vfl": 1}
"""Epochs that make a pass over the data of the one curious client among four."""


@pytest.mark.ci
@pytest.mark.parametrize(("method", "queries"), [(m, q) for m in ZEROTH_ORDER for q in (1, 10)])
def test_two_losses_give_what_a_scalar_gives(method, queries, digits):
    """The same figures from forward differences: `losses` are a scalar and the point that it starts from."""
    outcome = mounted(
        method,
        digits,
        options={"batch_size": 64, "epochs": ZEROTH_ORDER[method] * queries},
        queries=queries,
        trials=12,
        with_positive=True,
    )
    error = outcome.success.high - outcome.success.value
    assert error < 0.02
    assert outcome.success.value == pytest.approx(SWEEP[queries], abs=0.03 + error)
    if queries == 10:
        assert outcome.success.low > 0.13
    check_chance(outcome)
    assert outcome.controls["positive"].value == 1.0
    assert outcome.plan is None


CZOFO = {
    "q = 1": ({"directions": 1}, 0.117),
    "q = 10": ({"directions": 10}, 0.173),
    "q = 10, unit sphere": ({"directions": 10, "direction": "unit-sphere"}, 0.173),
    "q = 10, a record": ({"directions": 10, "scalars": "record"}, 1.0),
    "q = 10, noise on embeddings": (
        {"directions": 10, "scalars": "record", "dp": "embedding", "dp_clip": 0.3, "dp_sigma": 0.3},
        1.0,
    ),
}


@pytest.mark.parametrize("name", CZOFO)
def test_czofo_tells_an_honest_client_what_queries_would(name, digits):
    """Directions are shared, so q of them are q queries that nobody had to make; the interval is added to 0.03."""
    options, expected = CZOFO[name]
    outcome = mounted("czofo", digits, options={"batch_size": 64, "epochs": 4, **options}, trials=12)
    error = outcome.success.high - outcome.success.value
    assert error < 0.02
    assert outcome.success.value == pytest.approx(expected, abs=0.03 + error)
    assert outcome.success.n == 12 * 22 * 64
    check_chance(outcome)


def test_backward_bits_hide_little(digits):
    """Differences on 256 levels between their extremes carry what they carried."""
    options = {"batch_size": 64, "epochs": 4, "directions": 10, "scalars": "record", "backward_bits": 8}
    assert mounted("czofo", digits, options=options, trials=4).success.value > 0.9


def test_a_batch_of_one_record_is_known_after_as_many_queries_as_classes():
    """Exact at q >= dimension without noise: four classes, four queries of a batch of one, float64."""
    outcome = mounted(
        data=random_dataset(records=20),
        options={"batch_size": 1, "epochs": 18, "dtype": "float64", "smoothing": 1e-5},
        queries=6,
    )
    assert outcome.success.n == 4 * 20
    assert outcome.success.value == 1.0


def test_noise_hides_what_queries_would_show():
    """The same attack against a scalar whose noise is a hundred times the signal is at chance: exact binomial, 1e-4."""
    quiet = setting(
        data=random_dataset(records=20),
        options={"batch_size": 1, "epochs": 18, "dtype": "float64", "smoothing": 1e-5, "sigma": 100.0},
        queries=6,
        trials=40,
    )
    success = DIRECT.mount(quiet).success
    prior = DIRECT.mount(replace(quiet, trials=1)).baselines["majority"]
    assert success.value < min(1.0, prior + 0.15)


SEVERAL = [{"directions": 3}, {"directions": 3, "scalars": "record"}]


@pytest.mark.parametrize(
    ("method", "options", "own"),
    [
        *((method, {}, {}) for method in SCALAR),
        *(("czofo", several, {}) for several in SEVERAL),
        *(("dpzv", {}, {"estimator": estimator}) for estimator in ("correlation", "minimum-norm")),
    ],
    ids=str,
)
def test_an_eavesdropper_is_at_chance_on_every_scalar_method(method, options, own, digits):
    """Its own directions are exchangeable over classes, so hits are Binomial(n, 1/10): exact interval, level 1e-4."""
    options = {"batch_size": 64, "epochs": 1, **options}
    outcome = mounted(method, digits, options=options, options_of_attack=own, adversary="eavesdropper", trials=4)
    hits = round(outcome.success.value * outcome.success.n)
    low, high = rate_limits(hits, outcome.success.n, CONFIDENCE)
    assert outcome.success.n == 4 * 1408
    assert low <= 0.1 <= high


@pytest.mark.parametrize("method", ["split", "dpzv", "zoo-vfl", "czofo"])
def test_results_follow_the_seed(method):
    first, again, other = (
        mounted(method, options={"batch_size": 8}, seed=seed, queries=2, with_positive=True) for seed in (1, 1, 2)
    )
    assert first.success == again.success
    assert first.controls == again.controls
    if method != "split":
        assert first.success != other.success
    assert np.array_equal(first.trained.correct, again.trained.correct)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"top_model": True}}, "label_direct does not apply with top_model True, needs False"),
        ({"options": {"sampler": "poisson"}}, "sampler is 'poisson'; use shuffled or uniform"),
        ({"options_of_attack": {"rule": "argmax"}}, "rule of label_direct is 'argmax': did you mean 'argmin'"),
        ({"options_of_attack": {"estimator": "rigde"}}, "estimator of label_direct is 'rigde': did you mean 'ridge'"),
        ({"adversary": "server"}, "adversary is 'server'"),
        ({"queries": 100}, r"epochs 6 gives client 1 12 rounds, too few for queries 100"),
        ({"queries": 0}, "queries is 0"),
        ({"trials": 0}, "trials is 0"),
        ({"queries": 2, "options": {"sampler": "uniform"}}, "sampler is 'uniform'; use shuffled"),
        ({"options": {"batch_size": 49}}, "batch_size is 49"),
    ],
)
def test_what_does_not_apply_is_one_line(change, message):
    with refused(message):
        mounted(**change)


def test_the_registry_says_who_can_mount_it_and_on_what():
    spec = attack_named("label_direct")
    assert spec.check("client", {"epochs": 3}) == {"epochs": 3, "top_model": False}
    with refused("label_direct does not apply with top_model True"):
        spec.check("client", {"top_model": True})
    with refused("adversary is 'release', but label_direct is mounted by client or"):
        spec.check("release", {})
    with refused(r"attack is 'label_drect': did you mean 'label_direct'"):
        attack_named("label_drect")


def test_correctness_scores_place_by_place():
    guesses = LabelGuesses(torch.tensor([[[0, 1], [2, 2]]]), torch.tensor([[[3, 0], [1, 2]]]))
    right = correctness(guesses, np.array([1, 2, 0, 0]))
    assert right.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("adversary", [Adversary("client", (1,)), Adversary("eavesdropper")], ids=str)
@pytest.mark.parametrize("method", ["split", "dpzv", "zoo-vfl", "czofo"])
def test_an_empty_view_is_one_line(method, adversary):
    with refused("holds no answer"):
        infer(View(adversary), known_of(setting(method), 1, queries=2))


def ranked(scores, data):
    """Labels found and labels among the three likeliest of `scores` (records, classes), of one training."""
    guesses = LabelGuesses(scores.argmax(1)[None, None], torch.arange(len(scores))[None, None], scores[None, None])
    assert guesses.ids is not None
    right = correctness(guesses, data.train.labels).mean()
    return right, label_measures(guesses, setting(data=data))["label among the 3 likeliest"].value


def test_among_the_likeliest_is_the_rank_where_no_scores_are_equal():
    data = random_dataset(records=200, classes=6)
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 6)))
    own = scores[torch.arange(200), torch.from_numpy(data.train.labels)]
    _, among = ranked(scores, data)
    assert among == pytest.approx(float(((scores >= own[:, None]).sum(1) <= 3).double().mean()))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_what_is_found_is_among_the_likeliest_where_scores_are_equal(levels):
    data = random_dataset(records=200, classes=6)
    scores = torch.from_numpy(np.random.default_rng(0).integers(levels, size=(200, 6)).astype(float))
    right, among = ranked(scores, data)
    assert among > right
    if levels == 1:
        assert among == pytest.approx((data.train.labels < 3).mean())


@pytest.mark.parametrize("method", ["zoo-vfl", "syn-zoo-vfl", "cascaded"])
def test_too_few_rounds_for_the_queries_are_one_line(method):
    with refused("fewer than the 100 queries of one batch"):
        mounted(method, queries=100)


@pytest.mark.parametrize(
    ("method", "more"),
    [("dpzv", {}), ("dpzv", {"queries": 2}), ("dpzv", {"adversary": "eavesdropper"}), ("vafl", {"clients": (2,)})],
)
def test_a_control_stops_after_the_first_pass_and_finds_the_same(method, more):
    """Three clients, whose first pass has six batches each: 18 rounds of 36, and all with two queries a batch."""
    whole = replace(DIRECT, needs=replace(DIRECT.needs, first_pass=False))
    outcome, in_full = (
        spec.mount(small_setting(spec, method, with_positive=False, **more)) for spec in (DIRECT, whole)
    )
    assert outcome.controls == in_full.controls
    assert (outcome.success, outcome.baselines) == (in_full.success, in_full.baselines)
    assert np.array_equal(outcome.trained.correct, in_full.trained.correct)
    if more.get("adversary") != "eavesdropper":  # whose guesses are about no record
        assert outcome.game.on_one.tolist() == in_full.game.on_one.tolist()
    setting = small_setting(DIRECT, method, **more)
    rounds = [attacked_run(spec, setting, models=False).trained.rounds for spec in (DIRECT, whole)]
    assert rounds == [18 * setting.queries, 36]
    assert attacked_run(DIRECT, setting).trained.rounds == 36
