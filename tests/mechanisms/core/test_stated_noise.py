"""A method that adds noise and states no release is an error that names it, never "no noise is added anywhere"."""

from dataclasses import replace

import pytest
import torch

from dpzv_audit.base.registry import Registry
from dpzv_audit.base.seeds import Purpose
from dpzv_audit.claims import method as method_claims
from dpzv_audit.claims.api import verify_claim
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.evidence.privacy import privacy_sections
from dpzv_audit.evidence.refusals import noised
from dpzv_audit.evidence.training import train_result
from mechanisms import METHODS, Training
from mechanisms.core.baselines import FirstOrderRun
from mechanisms.core.context import Deployment
from mechanisms.core.method import MethodSpec, Protection, no_noise
from mechanisms.core.noise import gaussian
from mechanisms.methods.vafl import SPEC

from ...helpers.refusals import refused
from ..conftest import random_dataset

DEPLOYMENT = Deployment(records=100, clients=3)


class NoisyRun(FirstOrderRun):
    """Planted: adds noise to a model that everybody sees, and tells nobody."""

    def step(self):
        super().step()
        fed = self.federation
        origin = fed.context.seed if fed.context.origin is None else fed.context.origin
        drawn = [
            gaussian((fed.server_parameters.flat.shape[1],), 1.0, origin, Purpose.NOISE, k, self.round)
            for k in fed.replicas
        ]
        fed.server_parameters.flat += torch.stack([torch.from_numpy(row) for row in drawn]).to(fed.dtype)


PLANTED = replace(SPEC, name="planted", run=NoisyRun, released=no_noise, protection=lambda config: Protection())
SAYS_SO = replace(PLANTED, protection=lambda config: Protection(words="the server's model", draws=True))


@pytest.mark.parametrize("method", [PLANTED, SAYS_SO], ids=["silent", "says that it draws"])
def test_noise_without_a_release_is_an_error_that_names_the_method(method):
    with refused("which draws noise and states no release") as error:
        method.releases(method.configure(), DEPLOYMENT)
    assert "planted" in str(error.value)
    assert "\n" not in str(error.value)


def test_train_does_not_call_it_a_method_without_noise():
    with refused("'planted', which draws noise and states no release"):
        train_result(PLANTED, PLANTED.configure(batch_size=4, epochs=1), random_dataset(), controls=False)


def test_verify_refuses_the_claim_in_place_of_a_verdict(monkeypatch):
    planted = Registry("dpzv_audit.methods", MethodSpec, [*METHODS.values(), PLANTED])
    monkeypatch.setattr(method_claims, "METHODS", planted)
    with refused(r"planted.*draws noise and states no release"):
        verify_claim(method="planted", epsilon=1.0, delta=1e-5, records=1000, clients=2)


@pytest.mark.parametrize("method", METHODS)
def test_built_in_methods_say_what_they_draw(method):
    """Where a method says that it draws no noise a run draws none, and else there is a release or a reason."""
    spec = METHODS[method]
    options = {"calibration": "none"} if spec.own_noise else {}
    spec.check_noise(spec.configure(**options), clients=3)
    assert spec.releases(spec.configure(**options), DEPLOYMENT) == ()
    if not spec.own_noise and "dp" not in spec.config.model_fields:
        assert not spec.protection(spec.configure()).draws
        return
    noisy = spec.configure() if spec.own_noise else spec.configure(dp="embedding", dp_sigma=1.0)
    assert spec.protection(noisy).draws
    assert spec.releases(noisy, DEPLOYMENT)


def test_activation_that_is_set_by_client_is_no_obstacle():
    config = SPEC.configure(compute_times=(1.0, 2.0, 3.0, 4.0, 5.0))
    SPEC.check_noise(config, clients=5)
    with refused("draws noise"):
        PLANTED.check_noise(config, clients=5)


@pytest.mark.parametrize(
    ("options", "clients"),
    [({"compute_times": [1] * 5}, 5), ({"sampler": "poisson", "sample_rate": 0.9}, 4), ({"shift": 2}, 4)],
    ids=["activation of five clients", "most records in each round", "pictures that are moved sideways"],
)
def test_whether_noise_is_drawn_is_seen_in_as_many_rounds_as_there_are(options, clients):
    method = METHODS["dpzv"]
    method.check_noise(method.configure(calibration="none", **options), clients=clients)


def test_more_releases_than_every_command_accounts_are_an_error():
    config = SPEC.configure(dp="embedding", dp_sigma=1.0)
    twice = replace(SPEC, name="twice", released=lambda *arguments: SPEC.released(*arguments) * 2)
    with refused("method is 'twice', which states 2 releases; state one"):
        twice.releases(config, DEPLOYMENT)


def test_a_method_on_scalars_that_states_another_release_is_accounted_by_what_it_states():
    """It extends DPZV, whose games and accounting speak of DPZV's own scalars: neither may stand for it."""
    dpzv, dataset = METHODS["dpzv"], random_dataset()
    config = dpzv.configure(batch_size=4, epochs=1, sigma=0.5)
    deployment = Deployment(records=len(dataset.train), clients=dataset.clients)
    (own,) = dpzv.releases(config, deployment)
    mine = replace(dpzv, name="mine", released=lambda *arguments: (replace(own, sigma=4.0 * own.sigma),))

    def upper(method):
        plan = method.plan(config, deployment)
        audit = AuditPlan(runs=0)
        training = Training(method=method, config=config, dataset=dataset)
        privacy, _ = privacy_sections(training, "client", plan, audit)
        return min(bound.epsilon.upper for bound in privacy.bounds if bound.epsilon is not None)

    assert upper(mine) < 0.5 * upper(dpzv)
    with refused("method is 'mine'; use another: its release is not that of DPZV"):
        noised(mine, config)
