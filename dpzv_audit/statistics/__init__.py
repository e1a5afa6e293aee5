"""Lower bounds on epsilon from scores; needs numpy and scipy.special, and loads nothing heavier."""

from dpzv_audit.statistics.estimators import (
    DEFAULT_ESTIMATORS,
    ESTIMATORS,
    GAUSSIAN_TESTS,
    GENERAL_TESTS,
    audit_scores,
    can_refute,
    may_refute,
)
from dpzv_audit.statistics.settings import AuditSettings, Estimator

__all__ = [
    "DEFAULT_ESTIMATORS",
    "ESTIMATORS",
    "GAUSSIAN_TESTS",
    "GENERAL_TESTS",
    "AuditSettings",
    "Estimator",
    "audit_scores",
    "can_refute",
    "may_refute",
]
