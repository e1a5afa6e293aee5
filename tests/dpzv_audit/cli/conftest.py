"""What tests of the command line share."""

import pytest

from attacks import AttackSpec
from dpzv_audit.base.findings import Control


@pytest.fixture
def planted_positive(monkeypatch):
    """Put a planted number in the place of positive controls: trainings longer than all else of a small attack."""
    about = {"what": "planted", "kind": "positive", "expected": 0.6}
    control = Control(value=1.0, low=0.7, high=1.0, n=10, confidence=0.95, **about)
    monkeypatch.setattr(AttackSpec, "positive_control", lambda spec, setting: control)
