"""Whole evaluations as data: train, attack, audit and account one configuration, and say what follows.

Each function returns the result of a command as its model (`dpzv_audit.results`): a function of its arguments and the
seed, free of times and paths. Reports are drawn from it.
"""

from dpzv_audit.evaluation.auditing import audit_result
from dpzv_audit.evaluation.privacy import privacy_sections
from dpzv_audit.evaluation.training import attack_result, train_result
from dpzv_audit.evidence.bounding import AuditPlan, Reporter, silent

__all__ = ["AuditPlan", "Reporter", "attack_result", "audit_result", "privacy_sections", "silent", "train_result"]
