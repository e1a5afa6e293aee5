import math
import sys

import numpy as np
import pytest
from scipy.special import ndtr

from dpzv_audit.accounting import epsilon_from_mu
from dpzv_audit.accounting.gaussian import log_delta_from_mu
from dpzv_audit.accounting.prv import Rounds, _composed, _grid, _read, _tail, prv_epsilon
from dpzv_audit.accounting.sampled import SampledGaussian, loss_moments


def gaussian_tail(mu, *, order, near, cell):
    """The tail of N(mu^2/2, mu^2), whose tilted law is a normal one around mu^2/2 + order mu^2."""
    t = cell * np.arange(math.floor(-10 * mu / cell), math.ceil((near + 12 * mu) / cell))
    middle = mu**2 / 2 + order * mu**2
    pmf = np.diff(ndtr((np.append(t, t[-1] + cell) - cell / 2 - middle) / mu))
    log_moment = order * mu**2 / 2 + order**2 * mu**2 / 2
    return _tail(t, pmf, order=order, near=near, log_scale=log_moment - order * near)


@pytest.mark.parametrize("mesh", [1e-3, 3e-3])
def test_the_tilt_changes_no_delta(mesh):
    # So seldom sampled that most losses are narrower than the mesh: the correction of the mean moves the grid far.
    pair = SampledGaussian(kind="remove", rate=0.0005, noise=0.6)
    part = Rounds(pair, 1000), loss_moments(pair, log_outside=math.log(1e-15))
    plain, moved, _ = _composed([part], mesh=mesh, size=2**14, order=0.0, near=1.0)
    assert abs(moved) > 0.1
    for order in (0.5, 1.0, 3.0):
        tilted, _, _ = _composed([part], mesh=mesh, size=2**14, order=order, near=1.0)
        for epsilon in (0.1, 0.5, 1.0, 1.5):
            assert tilted.delta(epsilon) == pytest.approx(plain.delta(epsilon), rel=1e-6)


@pytest.mark.parametrize(("mu", "near"), [(1.0, 3.0), (0.5, 6.0), (0.5, 14.0)])
def test_the_tail_of_a_gaussian_down_to_deltas_of_1e_minus_160(mu, near):
    # The last has an untilting weight beyond the floats at losses near 0, which are left out.
    order = near / mu**2 - 0.5
    tail = gaussian_tail(mu, order=order, near=near, cell=1e-4)
    assert tail.whole == (order * near < 600.0)
    for epsilon in (near, near + 0.3):
        assert math.log(tail.delta(epsilon)) == pytest.approx(float(log_delta_from_mu(epsilon, mu)), abs=1e-3)


def test_both_ends_count_the_error_in_delta_and_the_mesh():
    tail = gaussian_tail(1.0, order=2.0, near=2.5, cell=1e-4)
    estimate = epsilon_from_mu(1.0, 1e-3)
    found = _read(tail, estimate, delta=1e-3, delta_error=6e-4, error=0.02, highest=9.0)
    assert found.lower == pytest.approx(epsilon_from_mu(1.0, 1.6e-3) - 0.02, abs=1e-4)
    assert found.upper == pytest.approx(epsilon_from_mu(1.0, 4e-4) + 0.02, abs=1e-4)
    assert found.estimate == estimate


def test_a_grid_that_moves_still_spans_the_reach(monkeypatch):
    reaches, grids = [], []

    def grid(reach, error, mesh_per_error, points):
        reaches.append(reach)
        return plain_grid(reach, error, mesh_per_error, points)

    def composed(parts, *, mesh, size, order, near):
        found = plain_composed(parts, mesh=mesh, size=size, order=order, near=near)
        grids.append((0.5 * mesh * size, abs(found[1])))
        return found

    plain_grid, plain_composed, module = _grid, _composed, sys.modules[prv_epsilon.__module__]
    monkeypatch.setattr(module, "_grid", grid)
    monkeypatch.setattr(module, "_composed", composed)
    assert "composed, error" in prv_epsilon(kind="remove", rate=1.5e-4, noise=0.27, rounds=832, delta=0.007).note
    half, moved = grids[-1]
    # Moved by more than the mesh's error, so it was made anew with room for the move.
    assert len(grids) > 1
    assert moved > 0.05
    assert half - moved >= reaches[0]
