"""What Opacus's accountant says of steps: the claim of the subjects here that are Opacus's."""

import warnings

from opacus.accountants import PRVAccountant


def epsilon(noise, delta, *, rate=1.0, steps=1):
    """Return the epsilon of `steps` steps at a sampling `rate`."""
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return accountant.get_epsilon(delta)
