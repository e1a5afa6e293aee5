import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import Release, gdp_exact, gdp_paper, sigma_from_paper, sigma_sound
from dpzv_audit.errors import InputError


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
    with pytest.raises(InputError, match=says):
        sigma_sound(epsilon, delta, **values)
