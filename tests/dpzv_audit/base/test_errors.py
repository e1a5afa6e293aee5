"""Checks of single numbers, which every command uses."""

import numpy as np
import pytest

from dpzv_audit.base.errors import check_count, check_positive, check_probability

from ...helpers.refusals import refused


@pytest.mark.parametrize("check", [check_count, check_positive, check_probability])
@pytest.mark.parametrize("value", [True, False, "1", None, float("nan"), float("inf"), 10**400, 1 + 0j])
def test_what_is_no_finite_number_is_refused_by_name_and_value(check, value):
    with refused(r"^size is "):
        check("size", value)


def test_numbers_pass_as_they_are():
    assert check_count("n", np.int64(3)) == 3
    assert check_count("n", 3.0) == 3
    assert check_count("n", 0, least=0) == 0
    assert check_positive("x", np.float32(0.5)) == 0.5
    assert check_probability("p", 0.5) == 0.5
    for wrong in (2.5, 0, -1):
        with refused("use a whole number of at least 1"):
            check_count("n", wrong)
