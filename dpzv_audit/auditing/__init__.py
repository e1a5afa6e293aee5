"""Lower bounds on epsilon from scores; needs numpy and scipy.special, and loads nothing heavier."""

from dpzv_audit.auditing.estimators import (
    DEFAULT_ESTIMATORS,
    ESTIMATORS,
    AuditSettings,
    Estimator,
    audit_scores,
    can_refute,
    clopper_pearson,
    gaussian,
)

__all__ = [
    "DEFAULT_ESTIMATORS",
    "ESTIMATORS",
    "AuditSettings",
    "Estimator",
    "audit_scores",
    "can_refute",
    "clopper_pearson",
    "gaussian",
]
