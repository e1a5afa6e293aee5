"""Contract tests for methods, attacks and data sets, which this package's own pass and those of others must pass.

Each check takes what a registry holds and raises `AssertionError` in one line that names the object and the rule that
it breaks:

    from dpzv_audit.testing import check_method
    from my_package.laplace import SPEC

    def test_the_contract():
        check_method(SPEC)
"""

from .attacks import check_attack
from .datasets import check_dataset
from .methods import check_method

__all__ = ["check_attack", "check_dataset", "check_method"]
