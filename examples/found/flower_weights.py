"""A weighted mean of Flower with the noise of an unweighted one: dpzv-audit audit mechanism flower_weights:subject"""

import logging

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from dpzv_audit.accounting.gaussian import epsilon_from_mu

NOISE, CLIENTS, LITTLE = 10.0, 20, 1e-9

logging.getLogger("flwr").setLevel(logging.ERROR)


class Round:
    """A round of 20 clients, the first of which updates by the whole clip, or by hardly anything in the other world.

    The first has so many examples, and each other one. The score is the new model's only weight.
    """

    def __init__(self, examples):
        self.examples = examples

    def run(self, world, rng):
        """Aggregate the round and return the weight."""
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), noise_multiplier=NOISE, clipping_norm=1.0, num_sampled_clients=CLIENTS
        )
        strategy.current_round_params = [np.zeros(1)]
        updates = [(1.0 if world else LITTLE, self.examples), *[(LITTLE, 1)] * (CLIENTS - 1)]
        results = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([np.array([update])]), examples, {}))
            for update, examples in updates
        ]
        np.random.seed(int(rng.integers(2**31)))  # noqa: NPY002  (the generator that the library draws from)
        parameters, _ = strategy.aggregate_fit(1, results, [])
        return float(parameters_to_ndarrays(parameters)[0][0])

    def claimed(self, delta):
        """Return the epsilon of the noise multiplier, which is in units of the clip through the number of clients."""
        return epsilon_from_mu(1 / NOISE, delta)


def subject():
    """A client with 10,000 examples among clients with one."""
    return Round(examples=10_000)


def equal_weights():
    """Clients with one example each."""
    return Round(examples=1)
