"""Upper bounds on epsilon: what theory gives for a release, an adversary and a neighbour relation."""

from dpzv_audit.accounting.accountants import (
    ACCOUNTANTS,
    advanced_composition,
    czofo_guarantee,
    czofo_theorem,
    gdp_clt,
    gdp_exact,
    gdp_paper,
    prv,
    rdp,
    tightest_sound,
    upper_bounds,
)
from dpzv_audit.accounting.calibration import calibrate, sigma_from_paper, sigma_sound
from dpzv_audit.accounting.gaps import GAPS, TABLE, gaps_of, treatment
from dpzv_audit.accounting.gaussian import (
    delta_from_mu,
    epsilon_delta_tradeoff,
    epsilon_from_mu,
    gaussian_tradeoff,
    log_delta_from_mu,
    mu_from_epsilon,
)
from dpzv_audit.accounting.release import Composition, Release

__all__ = [
    "ACCOUNTANTS",
    "GAPS",
    "TABLE",
    "Composition",
    "Release",
    "advanced_composition",
    "calibrate",
    "czofo_guarantee",
    "czofo_theorem",
    "delta_from_mu",
    "epsilon_delta_tradeoff",
    "epsilon_from_mu",
    "gaps_of",
    "gaussian_tradeoff",
    "gdp_clt",
    "gdp_exact",
    "gdp_paper",
    "log_delta_from_mu",
    "mu_from_epsilon",
    "prv",
    "rdp",
    "sigma_from_paper",
    "sigma_sound",
    "tightest_sound",
    "treatment",
    "upper_bounds",
]
