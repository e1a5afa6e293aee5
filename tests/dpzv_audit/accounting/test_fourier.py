import pytest

from dpzv_audit.accounting.fourier import Rounds, _composed
from dpzv_audit.accounting.moments import loss_moments
from dpzv_audit.accounting.sampled import SampledGaussian


@pytest.mark.parametrize("mesh", [1e-3, 3e-3])
def test_the_tilt_changes_no_delta(mesh):
    # So seldom sampled that most losses are narrower than the mesh: the correction of the mean moves the grid far.
    pair = SampledGaussian(kind="remove", rate=0.0005, noise=0.6)
    part = Rounds(pair=pair, moments=loss_moments(pair, outside=1e-15), count=1000)
    plain, moved, _ = _composed([part], mesh=mesh, size=2**14, order=0.0, near=1.0)
    assert abs(moved) > 0.1
    for order in (0.5, 1.0, 3.0):
        tilted, _, _ = _composed([part], mesh=mesh, size=2**14, order=order, near=1.0)
        for epsilon in (0.1, 0.5, 1.0, 1.5):
            assert tilted.delta(epsilon) == pytest.approx(plain.delta(epsilon), rel=1e-6)
