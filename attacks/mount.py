"""What users of attacks import: settings, outcomes and the client that is attacked from."""

from attacks.contract import AttackOutcome, AttackSetting, DoesNotApply
from attacks.controls import Control
from attacks.run import ADVERSARY_CLIENT

__all__ = ["ADVERSARY_CLIENT", "AttackOutcome", "AttackSetting", "Control", "DoesNotApply"]
