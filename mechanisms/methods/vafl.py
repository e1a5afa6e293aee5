"""VAFL: asynchronous first-order vertical federated learning (papers 001, 003), with noise on a channel where asked.

The active client sends its embeddings; the server refreshes its table, steps, and answers with dL/dh_m of every record.
"""

from ..core.baselines import FirstOrderRun, baseline_method
from ..core.config import BaselineConfig


class VAFLConfig(BaselineConfig):
    """VAFL."""


SPEC = baseline_method(
    name="vafl",
    summary="asynchronous, first order: one client per round, per-record gradients go down",
    config=VAFLConfig,
    run=FirstOrderRun,
    downlink="gradient",
    deviation="own_gradient",
)
