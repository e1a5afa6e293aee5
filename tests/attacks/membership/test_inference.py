"""Membership attacks: targets, control and shadow models as replicas of one run."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from attacks import ATTACKS
from attacks.core.knowledge import Population
from attacks.core.metrics import trial_areas
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from attacks.membership.inference import (
    VARIANTS,
    better_variant,
    by_likelihood,
    by_ratios,
    fits,
    shares_beaten,
    variance_prior,
)
from attacks.membership.mail import LARGEST, MailReader, sharing_own_block
from attacks.membership.mount import (
    chosen_rows,
    coins_of,
    low_rates,
    overfitted,
    pair_game,
    pool_of,
    roc,
    train_all,
    train_on_coins,
)
from dpzv_audit.base.errors import InputError
from mechanisms import METHODS
from mechanisms.core.channel import SERVER, Message

from ...helpers.refusals import refused
from ..conftest import CONFIDENCE, certified, random_dataset, small_setting

LOSS, LIRA, RMIA = (ATTACKS[f"membership_{name}"] for name in ("loss", "lira", "rmia"))


def mounted(
    name, data, *, method="split", confidence=CONFIDENCE, trials=16, options=None, adversary="release", **config
):
    setting = AttackSetting(
        method=METHODS[method],
        config=METHODS[method].configure(**config),
        dataset=data,
        adversary=adversary,
        trials=trials,
        confidence=confidence,
        options=options or {},
        with_positive=False,
    )
    return ATTACKS[name].mount(setting)


def of_twenty(method="split", *, trials=4, adversary=None, **options):
    """A setting on 20 records of which half are trained on, and the pool of these records."""
    spec = LOSS
    rest = {} if adversary is None else {"adversary": adversary}
    setting = small_setting(
        spec, method, random_dataset(records=20), options={"batch_size": 5, **options}, trials=trials, **rest
    )
    return setting, pool_of(setting, 20)


def gradient_of(round_, payload):
    return Message(round_, SERVER, 1, "gradient", payload, torch.tensor([[0, 1]]))


def losses_of(round_, value, record):
    return Message(round_, SERVER, 1, "losses", torch.tensor([[value, 0.9]]), torch.tensor([[record]]))


def read(*messages):
    """The confidence of client 1 of two clients about candidates of labels 0, 1 and 1, 1, by these messages."""
    reader = MailReader(1, np.array([[0, 1], [1, 1]]), 2)
    for message in messages:
        reader.on_message(message)
    return reader.confidence()


GRADIENT = torch.tensor([[[0.0, 2.0], [0.0, 1.0]]])


@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        pytest.param("membership_loss", {"shadows": 2}, 0.55, marks=pytest.mark.slow),
        ("membership_lira", {"shadows": 64}, 0.65),
        pytest.param("membership_lira", {"shadows": 64, "variant": "offline"}, 0.6, marks=pytest.mark.slow),
        pytest.param("membership_rmia", {"shadows": 64}, 0.55, marks=pytest.mark.slow),
    ],
)
def test_an_overfitted_run_gives_its_members_away(name, options, least, digits):
    """128 records fitted for 100 epochs without noise; the interval over targets at 1 - 1e-4 clears the bar."""
    outcome = mounted(
        name, digits, options={"pool": 256, **options}, batch_size=16, epochs=100, server_rate=0.05, client_rate=0.05
    )
    assert outcome.success.low > least
    assert outcome.controls["other_members"].holds
    if name == "membership_lira":  # more than the false positives themselves
        assert outcome.measures["true positive rate at 1% false positives"].low > 0.01
    assert len(outcome.game.on_one) + len(outcome.game.on_zero) == 16 * 128
    assert certified(outcome.game) > 0.05


@pytest.mark.ci
def test_dpzv_sound_at_epsilon_one_keeps_its_members_apart(digits):
    """No test at 1e-3 tells the area from 0.5, and one that saw a real leak of 0.04 would have."""
    outcome = mounted(
        "membership_lira",
        digits,
        method="dpzv-sound",
        confidence=1 - 1e-3,
        trials=48,
        options={"pool": 256, "shadows": 32},
        batch_size=16,
        epochs=40,
        epsilon=1.0,
    )
    assert outcome.success.low <= 0.5 <= outcome.success.high
    assert outcome.success.high - outcome.success.low < 0.08


@pytest.mark.slow
def test_the_positive_control_is_part_of_the_outcome(digits):
    spec = LIRA
    setting = replace(small_setting(spec, "vafl", digits, options={"epochs": 2}), options={"pool": 64, "shadows": 4})
    outcome = spec.mount(setting)
    assert outcome.controls["positive"].value > 0.65
    assert outcome.controls["positive"].holds
    assert len(spec.setup.trains_on(spec, setting).train) == 32


def test_every_record_is_in_half_of_the_replicas_and_each_pair_is_in_once():
    coins = coins_of(0, range(200), 30)
    rows = chosen_rows(coins)
    assert rows.shape == (200, 30)
    assert np.array_equal(rows // 2, np.tile(np.arange(30), (200, 1)))
    # 6,000 fair coins: within 5 standard errors of a half.
    assert abs(coins.mean() - 0.5) < 5 * 0.5 / np.sqrt(6000)
    assert np.array_equal(coins_of(0, [7], 30)[0], coins[7])


def test_members_are_what_a_replica_trained_on():
    """A replica's released model depends on the records that `members` names and on no other."""
    setting, pool = of_twenty(trials=3, epochs=2)
    coins = coins_of(0, range(3), 10)
    run = train_on_coins(pool, setting, coins)
    changed = replace(pool, train=replace(pool.train, labels=(pool.train.labels + ~run.members[1]) % 4))
    again = train_on_coins(changed, setting, coins)
    assert np.array_equal(run.trained.server.flat[1], again.trained.server.flat[1])
    assert not np.array_equal(run.trained.server.flat[0], again.trained.server.flat[0])
    assert run.members.sum(1).tolist() == [10, 10, 10]


@pytest.mark.parametrize(
    ("method", "adversary", "options"),
    [
        ("split", "release", {}),
        ("split", "client", {}),
        ("dpzv", "client", {"sigma": 0.1}),
        ("dpzv", "release", {"sigma": 0.1, "sampler": "poisson"}),
    ],
)
def test_where_memory_runs_out_trainings_are_done_in_halves_to_the_same_numbers(
    method, adversary, options, largest_stack
):
    """Planted: no more than three trainings fit. Only sums of another order may differ, in their last digits."""
    setting, pool = of_twenty(method, adversary=adversary, epochs=2, **options)
    coins = coins_of(0, range(11), 10)
    whole, at_once = train_all(pool, setting, coins, kept=7)
    assert at_once is None
    largest_stack(3)
    halved, at_once = train_all(pool, setting, coins, kept=7)
    assert at_once == 2
    assert np.allclose(halved.confidence, whole.confidence, rtol=1e-4, atol=1e-4)
    assert np.allclose(halved.outside, whole.outside, rtol=1e-4, atol=1e-4)
    assert np.array_equal(halved.members, whole.members)
    assert torch.allclose(halved.trained.server.flat, whole.trained.server.flat, rtol=1e-4, atol=1e-5)
    assert [len(client.flat) for client in halved.trained.clients] == [7, 7, 7]
    assert halved.trained.ledger == whole.trained.ledger
    assert halved.trained.correct.shape == whole.trained.correct.shape == (7, 4)


def test_coins_that_memory_cannot_hold_are_refused_before_they_are_drawn(monkeypatch):
    monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda: 8 * 3 * 10 - 1)
    with pytest.raises(MemoryError, match="coins of 3 trainings: 240 bytes, of 239 that are free"):
        coins_of(0, range(3), 10)


def test_confidence_is_the_log_odds_of_the_label():
    setting, pool = of_twenty(trials=2, top_model=False)
    run = train_on_coins(pool, setting, coins_of(0, range(2), 10))
    logits = np.zeros((2, 20, 4))
    for client, block in zip(run.trained.clients, pool.train.features, strict=True):
        views = {name: value.double().numpy() for name, value in client.views.items()}
        (weight,) = (v for v in views.values() if v.ndim == 3)
        (bias,) = (v for v in views.values() if v.ndim == 2)
        logits += np.einsum("nf,kcf->knc", block.astype(float), weight) + bias[:, None]
    p = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    own = p[:, np.arange(20), pool.train.labels]
    assert np.allclose(run.confidence, np.log(own / (1 - own)), atol=1e-5)
    assert run.outside.shape == (2, 4)


@pytest.mark.parametrize("degrees", [3.0, np.inf])
def test_fits_are_means_and_variances_that_lean_on_each_other_as_far_as_records_are_alike(degrees):
    """Records' own variances are inverse gamma of some `degrees`, or all alike, about 2; 6 models say so of each.

    The fitted variances are nearer to the true ones than each record's own and than one for all (Smyth 2004).
    """
    generator = np.random.default_rng(0)
    true = np.full(2000, 2.0) if degrees == np.inf else 2.0 * degrees / generator.chisquare(degrees, 2000)
    chosen = np.arange(12)[:, None] % 2 == generator.integers(2, size=2000)
    confidence = 5.0 + np.sqrt(true) * generator.standard_normal((12, 2000))
    mean, variance = fits(confidence, chosen)
    own = np.stack([confidence[chosen[:, record], record] for record in range(2000)])
    assert np.allclose(mean, own.mean(1))
    alone = own.var(1, ddof=1)

    def error(guess):
        return np.mean(np.log(guess / true) ** 2)

    assert error(variance) < error(alone) - 0.1
    assert error(variance) < (0.02 if degrees == np.inf else error(alone.mean()) - 0.1)
    fitted = variance_prior(5 * alone, np.full(2000, 5))
    assert fitted[1] == pytest.approx(2.0, rel=0.1)
    assert fitted[0] == pytest.approx(degrees, rel=0.2) if degrees < np.inf else fitted[0] > 50


def test_fits_of_no_or_one_model_are_finite():
    confidence = np.array([[1.0, 2.0, 4.0], [3.0, 5.0, 4.0]])
    chosen = np.array([[True, True, False], [False, True, False]])
    mean, variance = fits(confidence, chosen)
    assert mean.tolist() == [1.0, 3.5, pytest.approx(8 / 3)]
    assert np.all(np.isfinite(variance) & (variance > 0))


def population_of(confidence, shadows, members):
    """What LiRA knows where each record was asked about once."""
    copies, shadows_copies = (np.zeros((len(each), 0, each.shape[1])) for each in (confidence, shadows))
    return SimpleNamespace(
        confidence=confidence, shadows=shadows, members=members, copies=copies, shadows_copies=shadows_copies
    )


def likelihoods(population, variant):
    return by_likelihood(None, SimpleNamespace(granted={Population: population}.get, options={"variant": variant}))


def test_scores_are_log_likelihood_ratios_of_the_fitted_gaussians():
    """Where only the spread tells members apart the logarithms of the variances decide."""
    generator = np.random.default_rng(0)
    members = generator.random((400, 3)) < 0.5
    shadows = generator.standard_normal((400, 3)) * np.where(members, 0.2, 3.0)
    confidence = np.array([[0.0, 1.5, -4.0], [0.1, 0.8, 0.0]])
    population = population_of(confidence, shadows, members)
    (mean_in, variance_in), (mean_out, variance_out) = fits(shadows, members), fits(shadows, ~members)
    online, offline = (likelihoods(population, variant) for variant in ("online", "offline"))
    ratio = norm.logpdf(confidence, mean_in, variance_in**0.5) - norm.logpdf(confidence, mean_out, variance_out**0.5)
    assert np.allclose(online, ratio, rtol=1e-12)
    assert np.allclose(offline, (confidence - mean_out) / variance_out**0.5, rtol=1e-12)
    assert (online > 0).tolist() == [[True, False, False], [True, False, True]]


@pytest.mark.parametrize("variant", ["online", "offline"])
def test_ratios_of_several_queries_add_up(variant):
    """A diagonal covariance: each query has a fit of its own, so asking twice alike counts twice."""
    generator = np.random.default_rng(0)
    members = generator.random((30, 5)) < 0.5
    confidences, shadows = generator.standard_normal((2, 3, 5)), generator.standard_normal((2, 30, 5))
    first, second = (population_of(*pair, members) for pair in zip(confidences, shadows, strict=True))
    total = likelihoods(first, variant) + likelihoods(second, variant)
    first.copies, first.shadows_copies = confidences[1][:, None], shadows[1][:, None]
    assert np.allclose(likelihoods(first, variant), total)


def test_copies_of_records_lie_near_them_and_are_the_same_for_all_models():
    setting, pool = of_twenty(trials=3)
    coins = coins_of(0, range(3), 10)
    run = train_on_coins(pool, setting, coins, copies=2)
    assert run.copies.shape == (3, 2, 20)
    assert not np.array_equal(run.copies[:, 0], run.copies[:, 1])
    moved = np.abs(run.copies - run.confidence[:, None])
    assert 0 < moved.mean() < 0.5 * run.confidence.std()
    again = train_on_coins(pool, replace(setting, first=1, trials=1), coins[1:2], copies=2)
    assert np.allclose(again.copies[0], run.copies[1], atol=1e-5)


@pytest.mark.parametrize(("fitted", "variant"), [(2.0, "online"), (0.25, "offline")])
def test_the_variant_is_the_one_that_tells_members_of_shadow_models_apart(fitted, variant):
    """Planted: training lifts a record's confidence by `fitted` deviations, and where it fits steadies it by half.

    Gaussian confidences of 16 shadow models; the chosen variant is the better one on 100 targets as well, although
    what targets say and trained on does not reach the choice.
    """
    generator = np.random.default_rng(0)
    members = generator.random((116, 200)) < 0.5
    spread = np.where(members & (fitted > 1), 0.5, 1.0)
    confidence = 3 * generator.standard_normal(200) + fitted * members + spread * generator.standard_normal((116, 200))
    targets, shadows = confidence[:100], confidence[100:]
    population = population_of(targets, shadows, members[100:])

    areas = {name: trial_areas(likelihoods(population, name), members[:100]).mean() for name in VARIANTS}
    assert max(areas, key=areas.get) == variant
    for confidence in (targets, -targets):
        population.confidence = confidence
        assert np.array_equal(likelihoods(population, "auto"), likelihoods(population, variant))


def test_one_shadow_model_leaves_nothing_to_choose_a_variant_by():
    members = np.array([[True, False, True, False]])
    assert better_variant(np.zeros((1, 1, 4)), members) == "offline"


def test_shares_beaten_counts_the_population():
    shares = shares_beaten(np.array([0.5, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]), 2.0)
    assert shares.tolist() == [0.0, 1 / 3, 2 / 3]


def test_low_rates_and_the_curve_count_ties_against_the_attacker():
    scores = np.array([[3.0, 2.0, 2.0, 1.0, 0.0, 0.0] * 50])
    members = np.array([[True, True, False, True, False, False] * 50])
    rates = low_rates(scores, members, 0.95)
    assert rates["true positive rate at 1% false positives"].value == pytest.approx(1 / 3)
    rows = roc(scores, members)
    assert rows[0] == {"false positive rate": 0.0, "true positive rate": 1 / 3}
    assert rows[-1] == {"false positive rate": 1.0, "true positive rate": 1.0}


def test_every_pair_of_every_target_plays_the_game():
    coins = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    scores = np.zeros((4, 4))
    rows = chosen_rows(coins)
    np.put_along_axis(scores, rows, 1.0, axis=1)
    game = pair_game(scores, coins)
    assert game.on_one.tolist() == [1.0] * 4
    assert game.on_zero.tolist() == [-1.0] * 4
    assert game.neighbours == "replace-record"
    assert pair_game(scores, np.ones_like(coins)) is None


@pytest.mark.parametrize(
    ("options", "config", "adversary", "message"),
    [
        ({"pool": 10}, {}, "release", "option pool gives 5 records to train on; use at least the batch of 8"),
        ({"variant": "onlin"}, {}, "release", "option variant of membership_lira is 'onlin': did you mean 'online'"),
        ({"shadow": 3}, {}, "release", "did you mean 'shadows'"),
        ({"queries_per_record": 0}, {}, "release", "option queries_per_record of membership_lira is 0; use"),
        ({"queries_per_record": 4}, {}, "client", "use queries_per_record 1: there is no released model"),
    ],
)
def test_what_does_not_apply_is_one_line(options, config, adversary, message):
    spec = LIRA
    setting = small_setting(spec, "split", options=config, options_of_attack=options, adversary=adversary)
    with pytest.raises(DoesNotApply if adversary == "client" else InputError, match=message) as caught:
        spec.mount(setting)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_are_options_as_pythons_are():
    setting = small_setting(RMIA, "split", options_of_attack={"a": np.float64(0.4)})
    assert RMIA.own_options(setting)["a"] == 0.4


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5])
def test_a_confidence_out_of_range_is_named_before_anything_is_trained(confidence, monkeypatch):
    spec = LOSS
    monkeypatch.setattr("attacks.core.setting.train", None)
    with refused(f"confidence is {confidence}; use a number strictly between 0 and 1"):
        spec.mount(replace(small_setting(spec, "split"), confidence=confidence))


BY_MAIL = {"batch_size": 32, "epochs": 30, "adversary": "client", "trials": 8}


@pytest.mark.parametrize("name", ["membership_loss", "membership_lira"])
@pytest.mark.parametrize("method", ["split", "vafl"])
def test_a_clients_mail_of_gradients_tells_which_record_stands_behind_an_id(name, method, digits):
    options = {"pool": 256, "shadows": 2 if name == "membership_loss" else 32}
    outcome = mounted(name, digits, method=method, options=options, **BY_MAIL)
    assert outcome.success.low > 0.7
    assert outcome.controls["other_members"].holds
    assert certified(outcome.game) > 1.0


@pytest.mark.parametrize(
    "config", [{"method": "dpzv-sound", "epsilon": 1.0}, {"method": "vafl", "dp": "gradient", "dp_sigma": 50.0}]
)
def test_noise_on_a_clients_mail_hides_the_record(config, digits):
    options = {"pool": 256, "shadows": 32}
    outcome = mounted("membership_lira", digits, options=options, **{**BY_MAIL, "trials": 32}, **config)
    assert outcome.success.low <= 0.5 <= outcome.success.high
    assert outcome.success.high - outcome.success.low < 0.15


def test_one_threshold_on_scalars_cannot_tell_two_candidates_apart(digits):
    message = "membership_loss does not apply to dpzv: a client's mail holds no gradient of a record"
    with refused(message, DoesNotApply):
        mounted("membership_loss", digits, method="dpzv", adversary="client")


def test_both_candidates_have_the_clients_own_block_and_nothing_else_is_changed():
    pool = random_dataset(records=20)
    shared = sharing_own_block(pool)
    block = shared.train.features[0]
    assert np.array_equal(block[::2], pool.train.features[0][::2])
    assert np.array_equal(block[1::2], block[::2])
    for place in (1, 2):
        assert np.array_equal(shared.train.features[place], pool.train.features[place])
    assert np.array_equal(shared.train.labels, pool.train.labels)


def test_a_client_reads_no_mail_but_its_own():
    ids, ones = torch.tensor([[0, 1]]), torch.ones(1, 2, 2)
    others = [Message(0, 1, SERVER, "embeddings", ones, ids), Message(0, SERVER, 2, "gradient", ones, ids)]
    assert not read(*others).any()
    # Id 1 has label 1 whoever stands behind it; from the second round on it is what gradients are compared with.
    confidence = read(*others, gradient_of(0, GRADIENT), gradient_of(1, GRADIENT))
    assert confidence == pytest.approx(np.array([[0.0, 0.5, 0.5, 0.5]]))


def test_a_number_a_batch_says_the_same_of_both_candidates():
    confidence = read(losses_of(0, 0.7, 0), losses_of(1, 0.3, 1))
    assert confidence == pytest.approx(np.array([[-0.7, -0.7, -0.3, -0.3]]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_mail_of_a_model_that_diverged_tells_nothing(bad):
    worse = GRADIENT.clone()
    worse[0, 1, 0] = bad
    confidence = read(*(gradient_of(round_, payload) for round_, payload in enumerate((GRADIENT, worse, GRADIENT))))
    # Id 0 is told of in all three rounds, id 1 not in the second.
    assert confidence == pytest.approx(np.array([[0.0, 2 / 3, 0.5, 0.5]]))
    confidence = read(*(losses_of(round_, loss, 0) for round_, loss in enumerate((0.5, bad, 1e30))))
    assert confidence[0] == pytest.approx([-(LARGEST + 0.5) / 2] * 2 + [0.0, 0.0])


def test_overfitting_is_without_noise():
    setting = overfitted(small_setting(LIRA, "dpzv"))
    assert setting.method.name == "split"
    assert setting.config.epochs == 100


def test_rmia_is_its_papers_formula():
    """Zarifzadeh et al. 2024, eqs. 2 and 3 and its offline approximation, for x and z alike: record by record."""
    generator = np.random.default_rng(0)
    targets, shadows, records, outside = 3, 8, 12, 20
    population = Population(
        confidence=generator.normal(1.0, 2.0, (targets, records)),
        outside=generator.normal(0.0, 2.0, (targets, outside)),
        shadows=generator.normal(0.5, 2.0, (shadows, records)),
        shadows_outside=generator.normal(0.0, 2.0, (shadows, outside)),
        members=generator.random((shadows, records)) < 0.5,
        copies=np.zeros((targets, 0, records)),
        shadows_copies=np.zeros((shadows, 0, records)),
    )
    a, gamma = 0.3, 1.5

    def probability(confidence):
        return 1.0 / (1.0 + np.exp(-confidence))

    def corrected(out):
        return 0.5 * ((1.0 + a) * np.mean(probability(out)) + 1.0 - a)

    wanted = np.zeros((targets, records))
    for target in range(targets):
        for x in range(records):
            p_x = corrected(population.shadows[~population.members[:, x], x])
            ratio_x = probability(population.confidence[target, x]) / p_x
            for z in range(outside):
                p_z = corrected(population.shadows_outside[:, z])
                wanted[target, x] += ratio_x >= gamma * probability(population.outside[target, z]) / p_z
    known = SimpleNamespace(granted=lambda kind: population, options={"a": a, "gamma": gamma})
    assert by_ratios(None, known) == pytest.approx(wanted / outside)
