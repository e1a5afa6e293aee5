import torch
from dpzv_audit_orchard.sign_feedback import SPEC
from torch import tensor
from torch.nn.functional import cross_entropy

from mechanisms.core.context import RunContext, TrainingData

FEATURES = tensor([[1.0], [3.0]], dtype=torch.float64)
LABELS = tensor([0, 1])


def loss(model):
    """Return the batch loss of a client whose linear layer (weights, then biases of two classes) gives the logits."""
    return cross_entropy(FEATURES * model[:2] + model[2:], LABELS, reduction="sum")


@torch.no_grad()
def test_a_client_steps_along_its_direction_by_the_sign_of_the_loss_difference():
    sizes = {"batch_size": 2, "top_model": False, "momentum": 0.0, "client_rate": 0.1, "smoothing": 0.01}
    config = SPEC.configure(**sizes, dtype="float64")
    run = SPEC.start(TrainingData((FEATURES,), LABELS, (FEATURES,), LABELS, 2), config, RunContext(seed=0))
    model = run.federation.clients[0].parameters.flat
    before = model[0].clone()
    direction = run.parties[1].directions.at(0)[0]
    run.step()
    sign = (loss(before + 0.01 * direction) - loss(before - 0.01 * direction)).sign()
    assert sign != 0
    assert torch.allclose(model[0], before - 0.1 * sign * direction, rtol=0, atol=1e-12)
    assert run.federation.channel.ledger.counted_down == {"scalar": 1}, "one bit"
