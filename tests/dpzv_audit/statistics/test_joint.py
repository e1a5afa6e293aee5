import numpy as np
import pytest
from scipy.special import bdtr

from dpzv_audit.statistics.binomial import CONFINED, Counts, chance_below, lower_limit, p_value, upper_limit
from dpzv_audit.statistics.families import FAMILIES, GAUSSIAN, LAPLACE, PURE, epsilon_delta_family
from dpzv_audit.statistics.fixed import largest_ruled_out


def exact_masses(n, p):
    return np.diff(np.concatenate([[0.0], bdtr(np.arange(n + 1.0), n, p)]))


@pytest.mark.parametrize("n", [7, 60, 4000])
def test_the_chance_is_a_double_sum_and_never_less(n):
    rng = np.random.default_rng(n)
    for _ in range(6):
        alpha, beta = rng.random(1) * 0.5, rng.random(1) * 0.5
        counts = Counts(false_positives=1, n_out=n, false_negatives=1, n_in=n)
        theta = float(rng.uniform(0.5, 2.0))

        def seen(a, theta=theta):
            return GAUSSIAN.curve(a, theta)

        room = np.floor((n + 1.0) * seen((np.arange(n + 1) + 0.5) / (n + 1.0)) - 0.5 + 1e-9 * (n + 1.0))
        below = np.where(room >= 0, bdtr(np.clip(room, 0, n), n, beta[0]), 0.0)
        exact = float(np.sum(exact_masses(n, alpha[0]) * below))
        found = float(chance_below(alpha, beta, counts, seen)[0])
        assert exact - 1e-12 <= found <= exact + (1e-9 if n < 100 else 0.03)


@pytest.mark.parametrize(("n", "m"), [(5, 3), (3, 9), (40, 200)])
@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_every_count_below_a_level_counts_whole(n, m, level):
    """Under a curve at one level the false positives play no part; at level 1 every count of misses is below it."""
    counts = Counts(false_positives=1, n_out=n, false_negatives=1, n_in=m)
    alpha, beta = np.array([0.01, 0.5, 0.99]), np.array([0.7, 0.2, 0.95])
    found = chance_below(alpha, beta, counts, lambda a: np.full_like(a, level))
    room = int(np.floor((m + 1.0) * level - 0.5 + 1e-9))
    exact = np.zeros(3) if room < 0 else bdtr(min(room, m), m, beta)
    assert found == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(6, 2), (2, 6), (30, 31)])
def test_the_counts_that_were_seen_are_among_those_below_their_curve(n, m):
    """The curve goes through the point of the counts: without their own mass the p-value would be too small."""
    alpha, beta = np.array([0.3]), np.array([0.35])
    for a in range(n + 1):
        for b in range(m + 1):
            counts = Counts(false_positives=a, n_out=n, false_negatives=b, n_in=m)
            x, y = counts.rates

            def seen(rate, x=x, y=y):
                return np.where(rate <= x + 1e-15, y, 0.0)

            own = float(exact_masses(n, 0.3)[a] * exact_masses(m, 0.35)[b])
            rest = float(np.sum(exact_masses(n, 0.3)[: a + 1]) * np.sum(exact_masses(m, 0.35)[: b + 1]))
            assert float(chance_below(alpha, beta, counts, seen)[0]) == pytest.approx(rest, abs=1e-12)
            assert rest >= own


@pytest.mark.parametrize("alpha", [0.02, 0.4])
def test_blocks_are_a_small_part_of_the_spread(alpha):
    # True rates on the curve that was seen, where a shift of A matters most: a 16th of its deviation at most.
    n, beta = 40_000, GAUSSIAN.curve(np.array([alpha]), 1.0)
    counts = Counts(false_positives=round(n * alpha), n_out=n, false_negatives=round(n * float(beta[0])), n_in=n)

    def seen(a):
        return GAUSSIAN.curve(a, 1.0)

    room = np.floor((n + 1.0) * seen((np.arange(n + 1) + 0.5) / (n + 1.0)) - 0.5)
    exact = float(exact_masses(n, alpha) @ bdtr(np.clip(room, 0, n), n, beta[0]))
    found = float(chance_below(np.array([alpha]), beta, counts, seen)[0])
    assert 0.4 < exact < 0.6
    assert exact <= found <= exact + 0.4 / 16.0


EPSILON_DELTA = {f"delta={delta:g}": epsilon_delta_family(delta) for delta in (1e-5, 0.1)}
ALL_FAMILIES = FAMILIES | EPSILON_DELTA


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL_FAMILIES.values(), ids=ALL_FAMILIES)
def test_the_search_misses_less_than_the_factor_for_it(family):
    rng = np.random.default_rng(1)
    for _ in range(12):
        n, theta = int(rng.choice([10, 40, 300])), float(rng.choice([0.5, 1.5, 3.0]))
        a = float(rng.uniform(0.01, 0.6))
        b = float(family.curve(np.array([a]), theta)[0])
        counts = Counts(
            false_positives=int(rng.binomial(n, a)), n_out=n, false_negatives=int(rng.binomial(n, b)), n_in=n
        )

        def null(x, theta=theta):
            return family.curve(x, theta)

        def seen(x, top=1.05 * theta + 2.0 / np.sqrt(n)):
            return family.curve(x, top)

        confined = CONFINED * 0.05
        low = float(lower_limit(counts.false_positives, n, confined / 2))
        high = float(upper_limit(counts.false_positives, n, confined / 2))
        grid = np.sin(np.linspace(np.arcsin(np.sqrt(low)), np.arcsin(np.sqrt(high)), 1500)) ** 2
        largest = float(chance_below(grid, null(grid), counts, seen).max())
        assert p_value(null, counts, seen, 0.05) >= min(1.0, largest + confined) * (1.0 - 1e-9)


@pytest.mark.parametrize("error", [0.05, 1e-4])
@pytest.mark.parametrize(
    ("theta", "delta", "wrong", "n"),
    [
        # near the corner of the claim's curve, on both sides of it, and with hardly any errors
        (1.0, 0.1, (526, 524), (3000, 3000)),
        (1.0, 1e-5, (522, 619), (3000, 3000)),
        (4.0, 1e-5, (0, 70), (40, 300)),
        (4.0, 0.1, (0, 26), (40, 300)),
        (2.0, 0.1, (554, 0), (3000, 40)),
        (3.0, 1e-5, (0, 0), (12, 12)),
    ],
)
def test_what_is_ruled_out_has_no_chance_above_the_error_anywhere(theta, delta, wrong, n, error):
    family = epsilon_delta_family(delta)
    counts = Counts(false_positives=wrong[0], n_out=n[0], false_negatives=wrong[1], n_in=n[1])
    found = largest_ruled_out(family, counts, error)
    top = float(family.through(*(np.array([rate]) for rate in counts.rates))[0])
    assert 0.0 < found < top
    confined = CONFINED * error / 2.0
    ends = [float(f(wrong[0], n[0], confined)) for f in (lower_limit, upper_limit)]
    grid = np.sin(np.linspace(*np.arcsin(np.sqrt(ends)), 2000)) ** 2
    largest = max(
        float(chance_below(a, family.curve(a, found), counts, lambda x: family.curve(x, top)).max())
        for a in np.array_split(grid, 8)
    )
    assert largest + 2.0 * confined <= error


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize(
    ("family", "theta"),
    [(GAUSSIAN, 1.0), (LAPLACE, 1.0), (PURE, 2.0), *((family, 1.0) for family in EPSILON_DELTA.values())],
    ids=["gaussian", "laplace", "pure", *EPSILON_DELTA],
)
def test_the_bound_is_valid_by_enumeration(family, theta, exchanged):
    # Every pair of counts of 12 + 9 scores: for any true rates on the curve, bounds above theta have probability
    # at most 10%, whichever rate is confined. Nothing is drawn, so nothing can fail by chance.
    n, m, error = 12, 9, 0.1

    def bound(a, b):
        counts = Counts(false_positives=a, n_out=n, false_negatives=b, n_in=m)
        return largest_ruled_out(family, counts.exchanged if exchanged else counts, error)

    exceeds = np.array([[bound(a, b) for b in range(m + 1)] for a in range(n + 1)]) > theta * (1.0 + 1e-9)
    assert exceeds.any()
    worst = 0.0
    for alpha in np.linspace(0.0, 1.0, 101):
        beta = float(family.curve(np.array([alpha]), theta)[0])
        worst = max(worst, float(exact_masses(n, alpha) @ exceeds @ exact_masses(m, beta)))
    assert worst <= error
    assert worst > 0.2 * error  # and it is no bound that never speaks


def test_more_errors_never_prove_more():
    def bound(a, b):
        return largest_ruled_out(GAUSSIAN, Counts(false_positives=a, n_out=200, false_negatives=b, n_in=300), 0.05)

    assert bound(0, 0) > bound(3, 4) > bound(20, 30) > bound(40, 60) > 0.0
    assert bound(0, 300) == bound(200, 0) == bound(100, 150) == 0.0
    # Without any error: the largest (1 - a)^200 (1 - f(a))^300 is the error, less what confines a and the factor.
    a = np.linspace(0.0, 0.05, 5001)
    largest = float(np.max((1.0 - a) ** 200 * (1.0 - GAUSSIAN.curve(a, bound(0, 0))) ** 300))
    assert largest == pytest.approx(0.05 * (1.0 - CONFINED) / 1.02, rel=0.02)


@pytest.mark.parametrize("place", [0.5, 11.6, 23.5])
def test_a_peak_between_two_points_of_the_search_is_found_at_either_end_too(place):
    # A made-up null whose chance peaks between the points `place` of the 25 that are tried first, the ends among them.
    counts, error = Counts(false_positives=60, n_out=800, false_negatives=40, n_in=800), 0.05
    ends = (float(f(60, 800, CONFINED * error / 2.0)) for f in (lower_limit, upper_limit))
    start, stop = (float(np.arcsin(np.sqrt(a))) for a in ends)
    peak = start + place * (stop - start) / 24.0

    def null(alpha):
        return 0.05 + 0.5 * np.abs(np.arcsin(np.sqrt(alpha)) - peak)

    def seen(alpha):
        return np.full(alpha.shape, 0.05)

    grid = np.sin(np.linspace(start, stop, 4001)) ** 2
    largest = float(chance_below(grid, null(grid), counts, seen).max())
    first = np.sin(np.linspace(start, stop, 25)) ** 2
    assert float(chance_below(first, null(first), counts, seen).max()) < 0.97 * largest  # the refinement is needed
    assert largest <= p_value(null, counts, seen, error) <= 1.03 * largest + CONFINED * error


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1, 0.6])
def test_the_curves_of_epsilon_and_delta_are_inverted_in_closed_form(delta):
    family = epsilon_delta_family(delta)
    alpha = np.linspace(0.0, 1.0, 1001)
    for epsilon in (0.01, 1.0, 5.0, 40.0):
        beta = family.curve(alpha, epsilon)
        assert np.all(beta >= 0.0)
        assert np.all(np.diff(beta) <= 1e-15)
        # the two inequalities of Kairouz, Oh and Viswanath, one of them tight where the curve is above 0
        slack = np.minimum(np.exp(epsilon) * alpha + beta, alpha + np.exp(epsilon) * beta) - (1.0 - delta)
        assert np.all(slack >= -1e-9)
        assert np.all(slack[(beta > 0.0)] <= 1e-9 * np.exp(epsilon))
        inner = (beta > 1e-6) & (alpha > 1e-6)
        assert family.through(alpha[inner], beta[inner]) == pytest.approx(np.full(inner.sum(), epsilon), rel=1e-6)
        r = 0.37
        assert 1.0 - float(family.curve(np.array([family.blow_up(r, epsilon)]), epsilon)[0]) >= r - 1e-9
    assert family.through(np.array([0.9, 0.5]), np.array([0.3, 0.5])).tolist() == [0.0, 0.0]
