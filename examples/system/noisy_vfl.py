"""The training of our_vfl.py with noise on the gradients that go down, and what it states that it releases."""

from our_vfl import data  # noqa: F401  `data` is what it trains on
from our_vfl import train as without_noise


def train(task, record, seed):
    """Train with noise of twice the clip."""
    return without_noise(task, record, seed, noise=2.0)


def releases(task):
    """State the noised channel, as `dpzv-audit account` takes it."""
    batches = -(-len(task.labels) // 64)
    return {
        "channel": "gradient",
        "clip": 0.01,
        "clip_scope": "record",
        "sigma": 0.02,
        "noise": "float",  # drawn by torch.randn, whose low bits no bound covers
        "batch_size": 64,
        "rounds": 2 * 5 * batches,  # each client's gradient has a clip and noise of its own
        "clients": 2,
        "sampler": "shuffled",
        "server_update": "sgd",  # the top model learns from the true labels, which no noise covers
    }
