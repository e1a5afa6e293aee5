import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import (
    Release,
    calibrate,
    gdp_exact,
    gdp_paper,
    mu_from_epsilon,
    sigma_from_paper,
    sigma_sound,
    tightest_sound,
)
from dpzv_audit.base.rounding import ACCOUNTANT_DIGITS, up

from ...helpers.refusals import refused
from ...helpers.releases import row


@pytest.mark.parametrize(
    ("delta", "sigmas"),
    [(1e-3, (1.2564, 0.1859, 0.0498, 0.0293)), (1e-5, (2.2198, 0.2693, 0.0644, 0.0361))],
)
def test_known_sigmas_of_the_paper(delta, sigmas):
    found = [sigma_from_paper(e, delta, clip=10.0, dataset_size=60_000, rounds=46_900) for e in (0.1, 1.0, 5.0, 10.0)]
    assert found == pytest.approx(sigmas, abs=5e-5)


def release(sigma, participations):
    return Release(
        batch_size=32,
        dataset_size=3000,
        rounds=5000,
        clip=2.0,
        sigma=sigma,
        sampler="shuffled",
        server_update="joint-zo",
        participations=participations,
    )


@settings(deadline=None)
@given(
    epsilon=st.floats(0.01, 50.0),
    delta=st.sampled_from([1e-12, 1e-5, 1e-3, 0.1]),
    participations=st.integers(1, 5000),
    neighbours=st.sampled_from(["replace-label", "replace-record", "zero-out"]),
)
def test_sound_noise_meets_its_target_and_no_more(epsilon, delta, participations, neighbours):
    sigma = sigma_sound(epsilon, delta, clip=2.0, batch_size=32, participations=participations, neighbours=neighbours)
    bound = gdp_exact(release(sigma, participations), "client", neighbours, delta)
    assert bound.sound
    assert bound.epsilon.upper == pytest.approx(epsilon, rel=1e-9)
    assert bound.epsilon.upper <= epsilon * (1 + 1e-13)


@settings(deadline=None)
@given(
    epsilon=st.floats(0.01, 50.0),
    delta=st.sampled_from([1e-12, 1e-5, 1e-3]),
    participations=st.integers(1, 5000),
    neighbours=st.sampled_from(["replace-label", "zero-out"]),
    share=st.floats(0.001, 0.999),
)
def test_sound_noise_leaves_room_for_the_server_s_own_updates(epsilon, delta, participations, neighbours, share):
    """`share` of mu^2 goes to dp-sgd; none is left where its noise is a hair less than all of mu^2 takes."""
    moved = 1.0 if neighbours == "zero-out" else 2.0
    least = moved * math.sqrt(participations) / mu_from_epsilon(epsilon, delta)
    given_ = {"clip": 2.0, "batch_size": 32, "participations": participations, "neighbours": neighbours}
    noise = least / math.sqrt(share)
    sigma = sigma_sound(epsilon, delta, **given_, server_noise_multiplier=noise)
    made = replace(release(sigma, participations), server_update="dp-sgd", server_noise_multiplier=noise)
    bound = gdp_exact(made, "client", neighbours, delta)
    assert bound.sound
    assert bound.epsilon.upper == pytest.approx(epsilon, rel=1e-9)
    with refused(r"server_noise_multiplier is .*; use more than"):
        sigma_sound(epsilon, delta, **given_, server_noise_multiplier=least * 0.999)


@given(epsilon=st.floats(0.01, 50.0), delta=st.sampled_from([1e-12, 1e-5, 1e-3]))
def test_paper_formula_inverts_its_accountant(epsilon, delta):
    sigma = sigma_from_paper(epsilon, delta, clip=2.0, dataset_size=3000, rounds=5000)
    claimed = gdp_paper(release(sigma, None), "client", "replace-label", delta)
    assert claimed.epsilon.estimate == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"epsilon": -1.0}, "epsilon is -1"),
        ({"delta": 1.0}, "delta is 1"),
        ({"clip": -1.0}, "clip is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"participations": 0}, "participations is 0"),
        ({"neighbours": "add-remove"}, "neighbours is 'add-remove'"),
        ({"neighbours": "other"}, "neighbours is 'other'"),
    ],
)
def test_wrong_targets_are_named(changes, says):
    values = {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "batch_size": 10, "participations": 3} | changes
    epsilon, delta = values.pop("epsilon"), values.pop("delta")
    with refused(says):
        sigma_sound(epsilon, delta, **values)


def solved(template, **ask):
    """The noise that gives an epsilon of 1 against a client, or what else is asked for."""
    plain = {"unknown": "sigma", "epsilon": 1.0, "delta": 1e-5, "adversary": "client", "neighbours": "replace-label"}
    return calibrate(template, **(plain | ask))


def sampled(**changes):
    values = {
        "batch_size": 32,
        "dataset_size": 3000,
        "rounds": 500,
        "clip": 2.0,
        "sigma": 0.3,
        "sampler": "poisson",
        "server_update": "joint-zo",
    }
    return Release(**(values | changes))


@pytest.mark.parametrize(
    ("epsilon", "truth", "tolerance"), [(50.0, 49.84, 0.01), pytest.param(1000.0, 934.8, 0.4, marks=pytest.mark.ci)]
)
def test_the_tolerance_that_is_stated_holds_the_truth(epsilon, truth, tolerance):
    """The truth is that of the sampled Gaussian's moments by a contour integral, at the sigma of the answer."""
    made = sampled(dataset_size=1000, sample_rate=0.1, rounds=100, clip=1.0, batch_size=1)
    found = solved(made, epsilon=epsilon, adversary="release", neighbours="add-remove")
    assert found.at_least <= truth <= found.bound.upper <= epsilon
    assert epsilon * (1.0 - found.tolerance) == pytest.approx(found.at_least)
    assert 0.0 < found.tolerance <= tolerance


@pytest.mark.parametrize(("adversary", "exact"), [("client", True), ("release", False)])
def test_a_closed_form_is_exact_where_the_ids_are_known(adversary, exact):
    made = sampled(sampler="shuffled")
    found = solved(made, adversary=adversary, neighbours="zero-out")
    if exact:
        assert found.tolerance < 1e-6
    else:
        assert (found.at_least, found.tolerance) == (None, None)


def accounted(made, adversary="client", relation="replace-label", delta=1e-5):
    """The tightest sound upper epsilon, accounted for from scratch; infinite where there is none."""
    best = tightest_sound(row(made, adversary, relation, delta=delta))
    return float("inf") if best is None else best.epsilon.upper


@settings(max_examples=15, deadline=None)
@given(
    unknown=st.sampled_from(["sigma", "rounds", "batch-size"]),
    epsilon=st.floats(0.05, 20.0),
    delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
    sampler=st.sampled_from(["shuffled", "uniform", "poisson"]),
    adversary=st.sampled_from(["client", "release", "malicious-client"]),
    relation=st.sampled_from(["replace-label", "zero-out", "add-remove"]),
    changes=st.fixed_dictionaries(
        {},
        optional={
            "directions": st.just(3),
            "server_noise_multiplier": st.just(20.0),
            "participation_cap": st.just(5),
            "distinct_ids": st.just(True),
            "server_mu": st.just(0.5),
        },
    ).filter(lambda c: not {"server_mu", "server_noise_multiplier"} <= set(c)),
)
def test_calibrate_then_account_never_exceeds_the_target(
    unknown, epsilon, delta, sampler, adversary, relation, changes
):
    if sampler == "poisson" and unknown != "batch-size":
        changes = {**changes, "sample_rate": 0.03}
    template = sampled(sampler=sampler, **changes)
    found = solved(template, unknown=unknown, epsilon=epsilon, delta=delta, adversary=adversary, neighbours=relation)
    assert found.reached == (found.value is not None) == (found.bound is not None)
    assert found.reason
    if found.reached:
        made = replace(template, **{unknown.replace("-", "_"): found.value})
        assert made == found.release
        assert accounted(made, adversary, relation, delta) <= epsilon
        assert found.bound.sound


@pytest.mark.parametrize(
    ("sampler", "adversary", "slack"),
    [("shuffled", "client", 1e-9), ("uniform", "client", 1e-9), ("poisson", "release", 0.02)],
)
def test_calibrated_noise_is_not_more_than_needed(sampler, adversary, slack):
    found = solved(sampled(sampler=sampler), adversary=adversary)
    less = replace(found.release, sigma=found.value * (1 - slack))
    assert accounted(less, adversary) > 1.0


def test_calibrated_rounds_and_batches_are_the_extremes():
    template = sampled(sampler="shuffled", sigma=1.0)
    rounds = solved(template, unknown="rounds")
    assert accounted(replace(template, rounds=rounds.value + 1)) > 1.0
    batch = solved(template, unknown="batch-size")
    assert accounted(replace(template, batch_size=batch.value - 1)) > 1.0
    assert solved(replace(template, sigma=1e5), unknown="rounds").value == 10**7


@pytest.mark.parametrize(
    ("changes", "unknown", "adversary", "says"),
    [
        ({"server_update": "sgd"}, "sigma", "client", "server-state"),
        ({"clip_rule": "paper-one-sided"}, "sigma", "client", "one-sided-clip"),
        ({}, "sigma", "server", "unprotected-channel"),
        ({}, "sigma", "malicious-client", "unbounded-participation"),
        ({"server_mu": 3.0}, "sigma", "client", "even with sigma = "),
        ({"sigma": 1e-3}, "rounds", "client", "of a single round is "),
        ({"sigma": 1e-5, "rounds": 5000}, "batch-size", "client", "even with all 3000 records in a batch"),
    ],
)
def test_what_cannot_be_reached_is_an_answer(changes, unknown, adversary, says):
    found = solved(sampled(**changes), unknown=unknown, adversary=adversary)
    assert (found.reached, found.value, found.release, found.bound) == (False, None, None, None)
    assert found.reason.startswith("cannot be reached")
    assert says in found.reason


BATCHES = {"sampler": "shuffled", "dataset_size": 60, "rounds": 40}
SMALLER_IS_BETTER = [
    # Noise on rows: a record takes part more often in larger batches, and nothing is won.
    {"channel": "gradient", "server_update": "frozen", "sigma": 8.0},
    # Noise on scalars falls with the batch, what the server's own updates cost rises with it.
    {"server_update": "dp-sgd", "server_noise_multiplier": 8.0, "sigma": 0.05},
    {"server_update": "dp-sgd", "server_noise_multiplier": 3.0, "sigma": 0.5},
    {"sigma": 0.05},
]


@pytest.mark.parametrize("changes", SMALLER_IS_BETTER)
@pytest.mark.parametrize("share", [0.999, 1.001, 1.2])
def test_a_batch_is_found_where_any_meets_the_target(changes, share):
    """Every batch from 1 to D tried, and the target just below and just above the least epsilon of all."""
    template = sampled(**BATCHES, **changes)
    costs = {size: accounted(replace(template, batch_size=size)) for size in range(1, 61)}
    target = share * min(costs.values())
    found = solved(template, unknown="batch-size", epsilon=target)
    assert found.reached == (share > 1.0)
    if found.reached:
        assert costs[found.value] <= target
        assert found.value == 1 or costs[found.value - 1] > target
    else:
        assert up(min(costs.values()), ACCOUNTANT_DIGITS) in found.reason


def test_a_gap_of_the_release_is_named_before_an_accountant_that_does_not_apply():
    made = sampled(server_update="sgd", participation_cap=5, distinct_ids=True)
    found = solved(made, adversary="malicious-client")
    assert "server-state" in found.reason
    assert "no-accountant" not in found.reason


@pytest.mark.parametrize("rounds", [1, 2, 3, 8, 500, 9_000_000])
def test_a_target_that_is_met_exactly_is_met(rounds):
    # Every batch holds every record, so that each round more costs more; 9,000,000 lies past the search's last step.
    made = sampled(sampler="shuffled", batch_size=3000, rounds=rounds, sigma=0.1 + rounds**0.5 / 1000)
    # Of `gdp-exact`, which is what calibrate asks: theorem 5.1 says the same here but for rounding.
    target = gdp_exact(made, "client", "replace-label", 1e-5).epsilon.upper
    found = solved(made, unknown="rounds", epsilon=target)
    assert found.value == rounds
    assert found.bound.epsilon.upper == target


def test_no_noise_is_needed_where_taking_part_is_rarer_than_delta():
    made = sampled(batch_size=1, dataset_size=10**7, rounds=3)
    found = solved(made, epsilon=0.1)
    assert found.reached
    assert 0.0 < found.value < 1e-30
    assert found.bound.epsilon.upper == 0.0


@pytest.mark.parametrize(
    ("unknown", "easiest"),
    [("rounds", {"rounds": 1}), ("batch-size", {"batch_size": 3000}), ("sigma", {"sigma": 1e12})],
)
def test_the_easiest_release_there_is_decides_whether_a_target_can_be_reached(unknown, easiest):
    template = sampled(sampler="shuffled", sigma=0.1, rounds=400, server_mu=0.2)
    least = accounted(replace(template, **easiest))
    above = solved(template, unknown=unknown, epsilon=least * 1.001)
    below = solved(template, unknown=unknown, epsilon=least * 0.999)
    assert above.reached
    assert not below.reached
    assert up(least, ACCOUNTANT_DIGITS) in below.reason


def test_calibration_names_wrong_targets():
    for change, says in (
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"delta": 1.0}, "delta is 1"),
        ({"unknown": "clip"}, "unknown is 'clip'"),
    ):
        with refused(says):
            solved(sampled(), **change)
    with refused("participations is 7; leave it out where rounds is sought"):
        solved(sampled(sampler="shuffled", participations=7), unknown="rounds")
