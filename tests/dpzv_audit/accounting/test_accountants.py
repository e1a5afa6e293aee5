import doctest
import json
import math
import sys
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpzv_audit
from dpzv_audit.accounting import (
    ACCOUNTANTS,
    Composition,
    calibrate,
    gdp_exact,
    gdp_paper,
    prv,
    sigma_from_paper,
    tightest_sound,
    upper_bounds,
)
from dpzv_audit.accounting.accountants import czofo_theorem, gdp_clt, rdp
from dpzv_audit.accounting.bounds import AccountantQuery
from dpzv_audit.accounting.gaps import ADVERSARY_NAMES, GAPS, NO_NUMBER
from dpzv_audit.accounting.gaussian import participations_epsilon
from dpzv_audit.accounting.prv import prv_composition
from dpzv_audit.accounting.release import NEIGHBOURS, SAMPLERS, ClipRule, NoiseForm, ServerUpdate
from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.findings import SERVERS, EpsilonRange, to_jsonable

from ...helpers.refusals import refused
from ...helpers.releases import every_row, release, row

public = partial(release, dataset_size=None, sample_rate=0.05)


releases = st.builds(
    release,
    batch_size=st.sampled_from([1, 50, 1000]),
    rounds=st.integers(1, 2000),
    sigma=st.floats(0.02, 20.0),
    sampler=st.sampled_from(SAMPLERS),
    server_update=st.sampled_from(get_args(ServerUpdate)),
    clients=st.integers(1, 5),
    clip_rule=st.sampled_from(get_args(ClipRule)),
    participation_cap=st.one_of(st.none(), st.integers(1, 50)),
    distinct_ids=st.booleans(),
    batch_coupling=st.booleans(),
    ids=st.sampled_from(["secret", "public"]),
    padded=st.booleans(),
    server_mu=st.one_of(st.none(), st.floats(0.01, 2.0)),
    noise=st.sampled_from(get_args(NoiseForm)),
).map(
    lambda made: (
        replace(made, sample_rate=1.0 if made.clients == 5 else 0.05)
        if made.sampler == "poisson" and made.clients > 2
        else made
    )
)


@settings(max_examples=60, deadline=None)
@given(made=releases, delta=st.sampled_from([1e-8, 1e-5, 1e-3]))
def test_every_accountant_keeps_the_contract(made, delta):
    bounds = every_row(made, delta=delta)
    asked = [(n, a, name) for n in NEIGHBOURS for a in ADVERSARY_NAMES for name in ACCOUNTANTS]
    assert [(b.neighbours, b.adversary, b.accountant) for b in bounds] == asked
    json.dumps(to_jsonable(bounds), allow_nan=False)
    for bound in bounds:
        gaps = bound.gap.split(",") if bound.gap else []
        assert bound.sound == (not gaps)
        assert set(gaps) <= set(GAPS)
        assert (bound.epsilon is None) == bool(NO_NUMBER.intersection(gaps))
        assert bound.note
        assert bound.delta == delta
        if bound.epsilon is None:
            assert bound.mu is None
        else:
            e = bound.epsilon
            assert 0.0 <= e.lower <= e.estimate <= e.upper < math.inf
        if bound.accountant == "gdp-clt" or bound.adversary in SERVERS:
            assert not bound.sound
        if bound.accountant == "gdp-paper" and made.rate < 1.0:
            assert not bound.sound
        if bound.neighbours == "add-remove" and made.sample_rate is None:
            assert bound.epsilon is None
    for relation in NEIGHBOURS:
        for adversary in ADVERSARY_NAMES:
            cell = [b for b in bounds if b.adversary == adversary and b.neighbours == relation]
            best = tightest_sound(cell)
            sound = [b.epsilon.upper for b in cell if b.sound]
            assert (best.epsilon.upper if best else None) == (min(sound) if sound else None)


def test_one_sided_clip_has_no_number_anywhere():
    for bound in every_row(release(clip_rule="paper-one-sided")):
        assert bound.epsilon is None
        assert not bound.sound


closed = st.builds(
    release,
    batch_size=st.sampled_from([1, 50, 999, 1000]),
    rounds=st.integers(1, 2000),
    sigma=st.floats(0.02, 20.0),
    sampler=st.sampled_from(SAMPLERS),
    directions=st.integers(1, 3),
).flatmap(
    lambda made: st.sampled_from(
        [made] + [replace(made, sample_rate=rate) for rate in (0.05, 1.0) if made.sampler == "poisson"]
    )
)


@settings(max_examples=40, deadline=None)
@given(made=closed, delta=st.sampled_from([1e-8, 1e-5, 1e-3]))
def test_no_sound_bound_lies_below_what_another_certifies(made, delta):
    """`gdp-exact` is exact where ids hide nothing; `prv` composes what sampling with secret ids releases at worst."""
    for relation in NEIGHBOURS:
        for adversary in ("client", "eavesdropper", "release"):
            bounds = row(made, adversary, relation, delta=delta, fast=True)
            by = "prv" if adversary != "client" and made.rate < 1.0 else "gdp-exact"
            lower = max((b.epsilon.lower for b in bounds if b.sound and b.accountant == by), default=0.0)
            for bound in bounds:
                assert not bound.sound or bound.epsilon.upper >= lower * (1.0 - 1e-9) - 1e-9


def test_a_gap_keeps_the_number_that_would_be_without_it():
    clean = gdp_exact(release(), "client", "replace-label", 1e-5)
    gapped = gdp_exact(release(server_update="sgd"), "client", "replace-label", 1e-5)
    assert clean.sound
    assert (gapped.sound, gapped.gap, gapped.epsilon) == (False, "server-state", clean.epsilon)
    paper = gdp_paper(release(server_update="sgd", batch_coupling=True), "client", "replace-label", 1e-5)
    assert paper.gap == "known-ids,server-state,batch-coupling"


def test_paper_is_not_sound_below_full_batches_and_says_why():
    known = gdp_paper(release(), "colluding-clients", "replace-label", 1e-5)
    secret = gdp_paper(release(), "release", "replace-label", 1e-5)
    assert known.mu == secret.mu == pytest.approx(2 * 10.0 * math.sqrt(400) / (1000 * 0.5))
    assert (known.gap, secret.gap) == ("known-ids", "clt")


@pytest.mark.parametrize("dataset_size", [None, 1000])
def test_a_public_rate_takes_the_place_of_batch_by_data(dataset_size):
    """gdp-paper divided by D = 1000 where the scalars are divided by B = 1: 0.0586 where 284 is exact."""
    made = public(batch_size=1, sample_rate=1.0, rounds=100, clip=1.0, sigma=1.0, dataset_size=dataset_size)
    for adversary in ("client", "release"):
        paper, exact = (f(made, adversary, "replace-label", 1e-5) for f in (gdp_paper, gdp_exact))
        assert exact.epsilon.lower > 284.0
        assert (paper.sound, paper.epsilon.upper) == (True, pytest.approx(exact.epsilon.upper, rel=1e-12))
    # 2 C Q sqrt(T) / (B sigma), whatever D is
    assert gdp_paper(replace(made, sample_rate=0.25), "release", "zero-out", 1e-5).mu == pytest.approx(5.0)
    for name in ("gdp-paper", "gdp-clt", "czofo-theorem"):
        channel = "zo-gradient" if name == "czofo-theorem" else "scalar"
        sizes = (made, replace(made, dataset_size=77), replace(made, dataset_size=None))
        asked = [replace(one, sample_rate=0.25, channel=channel, rounds=2) for one in sizes]
        assert len({ACCOUNTANTS[name](one, "release", "zero-out", 1e-5).epsilon for one in asked}) == 1


@pytest.mark.parametrize("adversary", ["client", "release"])
def test_a_sound_bound_below_what_another_certifies_is_an_error(adversary, monkeypatch):
    made = release(sigma=2.0)
    honest = ACCOUNTANTS["rdp"]
    best = tightest_sound(row(made, adversary, "replace-label")).epsilon

    def lowered(by):
        number = EpsilonRange(lower=0.0, estimate=0.0, upper=best.lower * by)
        return replace(honest, answer=lambda asked: replace(honest.answer(asked), epsilon=number))

    monkeypatch.setitem(ACCOUNTANTS, "rdp", lowered(1.0001))
    row(made, adversary, "replace-label")
    monkeypatch.setitem(ACCOUNTANTS, "rdp", lowered(0.999))
    with refused(r"accountants disagree: rdp says epsilon <= .* (prv|gdp-exact) >=", AuditError):
        row(made, adversary, "replace-label")


def test_exact_composes_the_server_and_the_cap():
    base = release(sampler="shuffled", rounds=200)  # 20 rounds a pass, so 10 passes
    z = base.noise_multiplier("replace-label")
    alone = gdp_exact(base, "client", "replace-label", 1e-5)
    assert alone.mu == pytest.approx(math.sqrt(10) / z)
    server = gdp_exact(replace(base, server_update="dp-sgd", server_mu=0.7), "client", "replace-label", 1e-5)
    assert server.sound
    assert server.mu == pytest.approx(math.hypot(math.sqrt(10) / z, 0.7))
    capped = replace(base, participation_cap=40, distinct_ids=True)
    assert gdp_exact(capped, "malicious-client", "replace-label", 1e-5).mu == pytest.approx(math.sqrt(40) / z)
    assert gdp_exact(capped, "client", "replace-label", 1e-5).mu == pytest.approx(alone.mu)
    assert gdp_exact(base, "client", "zero-out", 1e-5).mu == pytest.approx(alone.mu / 2)


def test_a_cap_above_every_count_changes_nothing_and_below_the_mean_fixes_it():
    free = gdp_exact(release(), "client", "zero-out", 1e-5).epsilon
    loose = gdp_exact(release(participation_cap=400), "client", "zero-out", 1e-5).epsilon
    tight = gdp_exact(release(participation_cap=1), "client", "zero-out", 1e-5).epsilon
    fixed = gdp_exact(release(sampler="shuffled", participations=1), "client", "zero-out", 1e-5).epsilon
    assert loose.estimate == pytest.approx(free.estimate, rel=1e-9)
    assert tight.estimate == pytest.approx(fixed.estimate, rel=1e-6)


def test_uniform_and_poisson_with_known_ids_are_the_same_mixture():
    one, other = (gdp_exact(release(sampler=s), "client", "replace-label", 1e-5) for s in ("uniform", "poisson"))
    assert one.epsilon == other.epsilon
    assert one.mu is None


def test_hiding_the_ids_never_hurts():
    made = release()
    for relation in ("replace-label", "zero-out"):
        known = gdp_exact(made, "client", relation, 1e-5)
        hidden = gdp_exact(made, "release", relation, 1e-5)
        sampled = prv(made, "release", relation, 1e-5)
        assert known.epsilon == hidden.epsilon
        assert hidden.sound
        assert sampled.sound
        assert sampled.epsilon.upper < hidden.epsilon.upper
        assert tightest_sound(row(made, "release", relation)).accountant == "prv"


def test_clt_formula_and_its_reach():
    made = public(sigma=0.8)
    bound = gdp_clt(made, "release", "add-remove", 1e-5)
    z = 0.8 / (10.0 / 50)
    assert bound.mu == pytest.approx(0.05 * math.sqrt(400 * (math.exp(1 / z**2) - 1)), rel=1e-12)
    assert (bound.sound, bound.gap) == (False, "clt")
    # near the numerical truth when no round dominates
    assert bound.epsilon.estimate == pytest.approx(prv(made, "release", "add-remove", 1e-5).epsilon.estimate, rel=0.1)
    assert gdp_clt(made, "release", "replace-label", 1e-5).epsilon is None
    assert gdp_clt(public(sigma=1e-3), "release", "add-remove", 1e-5).epsilon is None
    assert gdp_clt(made, "client", "add-remove", 1e-5).gap == "undefined"


def test_both_directions_count_where_a_record_comes_or_goes():
    for relation in ("add-remove", "zero-out"):
        assert AccountantQuery(release(), "release", relation, 1e-5).sampled.directions.keys() == {"remove", "add"}
    for relation in ("replace-label", "replace-record"):
        assert AccountantQuery(release(), "release", relation, 1e-5).sampled.directions.keys() == {"replace"}


def test_add_remove_needs_a_public_rate():
    # The figures that such a rate gives were printed as sound where it was B/D: 2.002 at mu 20 sqrt(T) r / z = 0.5.
    made = release(batch_size=16, dataset_size=1600, rounds=10**6, clip=1.0, sigma=1.25, server_update="frozen")
    assert not any(bound.sound for bound in every_row(made, neighbours=["add-remove"]))
    for adversary in ("eavesdropper", "release"):
        assert {bound.gap for bound in row(made, adversary, "add-remove")} == {"undefined"}
    (reason,) = {bound.note for bound in row(made, "release", "add-remove")}
    assert "removing a record moves every other record's rate B/D" in reason
    best = tightest_sound(row(replace(made, dataset_size=None, sample_rate=0.01), "release", "add-remove"))
    assert best.accountant == "prv"
    assert best.epsilon.upper == pytest.approx(2.002, abs=5e-4)


def test_a_public_rate_changes_no_other_relation():
    for relation in ("replace-label", "replace-record", "zero-out"):
        for adversary in ("client", "release"):
            rates = (release(), public(), release(sample_rate=0.05))
            drawn, *public_ones = ([b.epsilon for b in row(made, adversary, relation)] for made in rates)
            assert public_ones == [drawn] * 2


def test_fixed_size_batches_amplify_for_a_record_replaced_alone():
    made = release(sampler="uniform")
    for relation in ("replace-label", "replace-record"):
        for adversary in ("release", "eavesdropper"):  # the size of a batch is known: no messages to pad
            best = tightest_sound(row(made, adversary, relation))
            assert best.accountant == "prv"
            assert best.epsilon.upper < gdp_exact(made, adversary, relation, 1e-5).epsilon.upper
            assert rdp(made, adversary, relation, 1e-5).epsilon.upper > best.epsilon.upper
        assert prv(made, "client", relation, 1e-5).gap == "known-ids"
        assert prv(made, "malicious-client", relation, 1e-5).epsilon is None
    # A contribution set to 0 moves by C/B, but a batch that lacks the record has another in its place: 2C/B.
    amplified = prv(made, "release", "replace-label", 1e-5).epsilon
    assert prv(made, "release", "zero-out", 1e-5).epsilon.lower > amplified.upper
    assert prv(made, "release", "add-remove", 1e-5).gap == "undefined"
    assert prv(release(sampler="uniform", participation_cap=3), "release", "replace-label", 1e-5).epsilon is None
    rows = release(sampler="uniform", channel="gradient", sigma=30.0)
    assert prv(rows, "release", "replace-label", 1e-5).note.startswith("known ids")


def test_fixed_size_and_poisson_rounds_compose():
    fixed, poisson = release(sampler="uniform", sigma=1.0), release(sigma=1.0)
    alone = [prv(part, "release", "replace-label", 1e-5).epsilon for part in (fixed, poisson)]
    both = prv(Composition((fixed, poisson)), "release", "replace-label", 1e-5).epsilon
    assert max(e.upper for e in alone) < both.lower
    # Each pair with its own noise: two parts of one kind are one part of twice the rounds.
    for one, sampler in ((fixed, "uniform"), (poisson, "poisson")):
        twice = prv(Composition((one, one)), "release", "replace-label", 1e-5).epsilon
        whole = prv(release(sampler=sampler, sigma=1.0, rounds=800), "release", "replace-label", 1e-5).epsilon
        assert twice.estimate == pytest.approx(whole.estimate, rel=0.01)
    assert both.estimate < prv(Composition((fixed, fixed)), "release", "replace-label", 1e-5).epsilon.estimate


@pytest.mark.parametrize("adversary", ["malicious-client", "release"])
@pytest.mark.parametrize("rounds", [1, 7, 3000, pytest.param(10**6, marks=pytest.mark.ci)])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("mu", [0.01, 1.0, 4.0, 40.0])
def test_prv_of_unsampled_rounds_agrees_with_gaussian_dp(adversary, rounds, delta, mu):
    made = release(sampler="shuffled", rounds=rounds, participation_cap=rounds, distinct_ids=True, server_mu=mu / 3.0)
    made = replace(made, sigma=0.2 * math.sqrt(made.fixed_participations) / mu)
    for relation in ("replace-label", "zero-out"):
        exact, composed = (f(made, adversary, relation, delta) for f in (gdp_exact, prv))
        assert (composed.sound, composed.gap) == (True, None)
        assert composed.epsilon.lower <= exact.epsilon.lower * (1 + 1e-9) <= composed.epsilon.upper * (1 + 2e-9)
        assert composed.epsilon.upper <= 1.01 * exact.epsilon.upper
        if 1e-3 < exact.epsilon.upper <= 100.0 and rounds <= 3000:
            assert "rounds composed" in composed.note
            # on its own: it does not come out at the bound that it is compared with
            assert composed.epsilon.lower < composed.epsilon.estimate < composed.epsilon.upper
            assert composed.epsilon.estimate == pytest.approx(exact.epsilon.estimate, rel=1e-3)


@pytest.mark.parametrize("changes", [{"sampler": "poisson", "channel": "gradient"}, {"sampler": "uniform"}])
def test_prv_composes_random_counts_of_known_batches(changes):
    made = release(**changes, rounds=100, clip=1.0, sigma=0.05 if len(changes) == 1 else 2.5, server_update="frozen")
    exact, composed = (f(made, "client", "zero-out", 1e-5) for f in (gdp_exact, prv))
    assert (composed.sound, "rounds composed" in composed.note) == (True, True)
    assert composed.epsilon.estimate == pytest.approx(exact.epsilon.estimate, rel=1e-3)


def test_unsampled_rounds_that_contradict_the_exact_gaussian_are_an_error(monkeypatch):
    def half(parts, **rest):
        return participations_epsilon([replace(part, mu=part.mu / 2) for part in parts], **rest)

    monkeypatch.setattr(sys.modules["dpzv_audit.accounting.prv"], "participations_epsilon", half)
    with refused("accountants disagree: one says", AuditError):
        prv(release(sampler="shuffled"), "client", "zero-out", 2e-5)


def test_amplification_needs_sampling_and_secret_ids():
    shuffled = prv(release(sampler="shuffled"), "release", "replace-label", 1e-5)
    assert (shuffled.sound, shuffled.note.startswith("known ids")) == (True, True)
    assert prv(release(participation_cap=3), "release", "replace-label", 1e-5).gap == "no-accountant"
    assert prv(release(), "client", "replace-label", 1e-5).gap == "known-ids"
    assert prv(release(ids="public"), "eavesdropper", "replace-label", 1e-5).gap == "known-ids"
    assert prv(public(), "eavesdropper", "add-remove", 1e-5).gap == "batch-size"
    assert prv(public(padded=True), "eavesdropper", "add-remove", 1e-5).sound


@pytest.mark.parametrize("delta", [1e-320, 1e-310, 2.3e-308, 1e-305, 0.99e-300])
def test_a_delta_whose_shares_are_no_floats_is_refused(delta):
    for made in (release(), release(sampler="shuffled")):
        with refused(r"^delta is .+e-3.+; use at least 1e-300"):
            every_row(made, delta=delta)
    with refused("at least 1e-300"):
        calibrate(release(), unknown="sigma", epsilon=1.0, delta=delta, adversary="client", neighbours="zero-out")


@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1.0 - 1e-15])
@pytest.mark.parametrize("rounds", [1, pytest.param(10**4, marks=pytest.mark.ci)])
@pytest.mark.parametrize("sampler", ["poisson", "uniform", "shuffled"])
@pytest.mark.parametrize("sigma", [0.8, 1e18])
def test_the_smallest_and_the_largest_deltas_have_finite_bounds(delta, rounds, sampler, sigma):
    made = release(sampler=sampler, rounds=rounds, sigma=sigma, padded=True)
    bounds = upper_bounds(made, delta=delta, adversaries=["client", "release"], neighbours=["zero-out"])
    json.dumps(to_jsonable(bounds), allow_nan=False)
    assert {bound.accountant for bound in bounds if bound.sound} >= {"gdp-exact", "prv", "rdp"}
    estimates = replace(made, channel="zo-gradient", sigma=0.8)
    assert czofo_theorem(estimates, "release", "zero-out", delta).epsilon is not None


@pytest.mark.parametrize("sigma", [1e-45, 1e-10, 1e10, 1e45])
def test_absurd_noise_gives_finite_answers_or_none(sigma):
    json.dumps(to_jsonable(every_row(release(sigma=sigma))), allow_nan=False)
    exact = gdp_exact(release(sigma=sigma), "client", "replace-label", 1e-5).epsilon
    assert (exact.upper == 0.0) if sigma > 1 else (exact.lower > 1e10)


def test_tightest_sound_refuses_to_compare_different_things():
    with pytest.raises(ValueError, match="one adversary"):
        tightest_sound(every_row(release()))
    assert tightest_sound([]) is None


def test_the_example_of_tightest_sound_works_as_it_reads():
    """With public names alone; without adversaries and relations the bounds are against one client, on one label."""
    names = {name: getattr(dpzv_audit, name) for name in ("Release", "tightest_sound", "upper_bounds")}
    (example,) = doctest.DocTestFinder(recurse=False).find(tightest_sound, globs=names)
    assert doctest.DocTestRunner().run(example) == (0, 2)
    best = tightest_sound(upper_bounds(release(), delta=1e-5))
    assert (best.adversary, best.neighbours, best.delta) == ("client", "replace-label", 1e-5)
    assert best == tightest_sound(row(release(), "client", "replace-label"))


def test_delta_is_checked():
    for delta in (0.0, 1.0, -1e-5, 2, math.nan, math.inf, "1e-5", None):
        with refused("delta"):
            upper_bounds(release(), delta=delta)


# B, T, (eps, delta), mu, z, PRV add-remove, PRV replace, known ids n = 100, n = 101, binomial
REFERENCE = [
    (64, 93_750, 1.0, 1e-3, 0.3884, 0.8409, 0.490, 1.012, (106.58, 0.005), 107.47, (115.1, 0.05)),
    (128, 46_900, 0.1, 1e-3, 0.0575, 8.041, 0.041, 0.100, (4.119, 0.0005), 4.145, (4.18, 0.005)),
    (128, 46_900, 1.0, 1e-3, 0.3884, 1.190, 0.464, 1.003, (60.47, 0.005), 60.95, (64.1, 0.05)),
    (1024, 5_900, 10.0, 1e-5, 2.0004, 0.6553, 5.346, 10.25, (180.63, 0.005), 182.12, (205.649, 5e-4)),
]


@pytest.mark.parametrize(
    ("batch", "rounds", "claim", "delta", "mu", "z", "added", "replaced", "hundred", "one_more", "binomial"),
    REFERENCE,
)
def test_reference_values(batch, rounds, claim, delta, mu, z, added, replaced, hundred, one_more, binomial):
    sigma = sigma_from_paper(claim, delta, clip=10.0, dataset_size=60_000, rounds=rounds)

    def made(sampler, **changes):
        return release(batch_size=batch, dataset_size=60_000, rounds=rounds, sigma=sigma, sampler=sampler, **changes)

    paper = gdp_paper(made("poisson"), "client", "replace-label", delta)
    assert paper.mu == pytest.approx(mu, abs=5e-5)
    assert paper.epsilon.estimate == pytest.approx(claim, rel=1e-9)
    multiplier = made("poisson").noise_multiplier("replace-label")
    assert multiplier == pytest.approx(z, rel=6e-4)
    assert made("poisson").noise_multiplier("add-remove") == pytest.approx(2 * multiplier)
    assert prv(made("poisson"), "release", "add-remove", delta).gap == "undefined"
    public_rate = prv(made("poisson", sample_rate=batch / 60_000), "release", "add-remove", delta)
    assert public_rate.epsilon.estimate == pytest.approx(added, abs=0.01)
    sampled = prv(made("poisson"), "release", "replace-label", delta)
    assert sampled.epsilon.estimate == pytest.approx(replaced, abs=0.01)
    assert sampled.sound
    value, tolerance = hundred
    for count, expected in ((100, value), (101, one_more)):
        known = gdp_exact(made("shuffled", participations=count), "client", "replace-label", delta)
        assert known.epsilon.estimate == pytest.approx(expected, abs=tolerance)
        assert known.mu == pytest.approx(math.sqrt(count) / multiplier)
    mixture = gdp_exact(made("uniform"), "client", "replace-label", delta)
    assert mixture.epsilon.upper == pytest.approx(binomial[0], abs=binomial[1])


def test_low_noise_breaks_for_everybody(monkeypatch):
    sigma = sigma_from_paper(10.0, 1e-3, clip=10.0, dataset_size=60_000, rounds=93_750)
    made = public(batch_size=64, sample_rate=64 / 60_000, rounds=93_750, sigma=sigma)
    bound = prv(made, "release", "add-remove", 1e-3)
    assert "vacuous (> 100)" in bound.note
    assert 100.0 < bound.epsilon.lower <= 234 <= bound.epsilon.upper
    monkeypatch.setattr(sys.modules["dpzv_audit.accounting.prv"], "VACUOUS", math.inf)
    prv_composition.cache_clear()
    assert prv(made, "release", "add-remove", 1e-3).epsilon.estimate == pytest.approx(234, abs=0.5)
    prv_composition.cache_clear()


def test_an_unknown_accountant_is_named_before_anything_is_computed():
    with refused("magic"):
        upper_bounds(release(), delta=1e-5, accountants=["gdp-exact", "magic"])
