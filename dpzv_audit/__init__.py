"""Privacy auditing and attack evaluation for vertical federated learning; users import from here alone.

Importing this package loads nothing heavy: what is public is loaded when first used, and `audit_scores` needs numpy
and scipy.special only.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accounting import (
        Release,
        delta_from_mu,
        epsilon_from_mu,
        mu_from_epsilon,
        sigma_from_paper,
        sigma_sound,
        tightest_sound,
        upper_bounds,
    )
    from .base.errors import AuditError, InputError
    from .base.findings import EmpiricalBound, EpsilonRange, Interval, UpperBound
    from .claims.api import ClaimVerdict, verify_claim
    from .cli.functions import account, attack, audit, calibrate, hunt, matrix, train, verify
    from .data import load as load_dataset
    from .evidence.auditing import audit_result
    from .evidence.training import attack_result, attack_system, train_result
    from .statistics.estimators import audit_scores

    __version__: str

__all__ = [
    "AuditError",
    "ClaimVerdict",
    "EmpiricalBound",
    "EpsilonRange",
    "InputError",
    "Interval",
    "Release",
    "UpperBound",
    "__version__",
    "account",
    "attack",
    "attack_result",
    "attack_system",
    "audit",
    "audit_result",
    "audit_scores",
    "calibrate",
    "delta_from_mu",
    "epsilon_from_mu",
    "hunt",
    "load_dataset",
    "matrix",
    "mu_from_epsilon",
    "sigma_from_paper",
    "sigma_sound",
    "tightest_sound",
    "train",
    "train_result",
    "upper_bounds",
    "verify",
    "verify_claim",
]

_HOMES = {
    "dpzv_audit.accounting": (
        "Release delta_from_mu epsilon_from_mu mu_from_epsilon sigma_from_paper sigma_sound tightest_sound upper_bounds"
    ),
    "dpzv_audit.statistics.estimators": "audit_scores",
    "dpzv_audit.claims.api": "ClaimVerdict verify_claim",
    "dpzv_audit.cli.functions": "account attack audit calibrate hunt matrix train verify",
    "dpzv_audit.data": "load_dataset",
    "dpzv_audit.base.errors": "AuditError InputError",
    "dpzv_audit.evidence.auditing": "audit_result",
    "dpzv_audit.evidence.training": "attack_result attack_system train_result",
    "dpzv_audit.base.findings": "EmpiricalBound EpsilonRange Interval UpperBound",
    "reports.display": "Display",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dpzv-audit")
    if name in _HOME_OF:
        check_not_shadowed()
        return getattr(importlib.import_module(_HOME_OF[name]), "load" if name == "load_dataset" else name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *__all__})


def check_not_shadowed() -> None:
    """Raise `ImportError` in one line if another `attacks`, `mechanisms` or `reports` would be imported than ours."""
    home = Path(__file__).resolve().parent.parent
    for package in ("attacks", "mechanisms", "reports"):
        spec = importlib.util.find_spec(package)
        folder = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if folder != home / package:
            namespace = next(iter(spec.submodule_search_locations or ()), None) if spec else None
            where = folder or namespace or "nothing"
            raise ImportError(
                f"dpzv-audit needs its own package {package!r}, but Python finds {where}; "
                "set PYTHONSAFEPATH=1, or install dpzv-audit in a separate environment"
            )
