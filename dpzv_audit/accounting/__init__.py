"""Upper bounds on epsilon: what theory gives for a release, an adversary and a neighbour relation."""

from .accountants import ACCOUNTANTS, gdp_exact, gdp_paper, prv, tightest_sound, upper_bounds
from .calibration import calibrate, sigma_from_paper, sigma_sound
from .gaps import GAPS, gaps_of
from .gaussian import delta_from_mu, epsilon_delta_tradeoff, epsilon_from_mu, gaussian_tradeoff, mu_from_epsilon
from .release import Composition, Release

__all__ = [
    "ACCOUNTANTS",
    "GAPS",
    "Composition",
    "Release",
    "calibrate",
    "delta_from_mu",
    "epsilon_delta_tradeoff",
    "epsilon_from_mu",
    "gaps_of",
    "gaussian_tradeoff",
    "gdp_exact",
    "gdp_paper",
    "mu_from_epsilon",
    "prv",
    "sigma_from_paper",
    "sigma_sound",
    "tightest_sound",
    "upper_bounds",
]
