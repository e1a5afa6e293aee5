"""Attacks on trainings on a device of their own: what they find is what they find on the machine."""

from dataclasses import replace

import pytest

from attacks import ATTACKS
from attacks.core.knowledge import SomeFeatures
from attacks.core.run import attacked_run
from mechanisms import METHODS

from ...helpers.pretended import OnDevice, pretended_cuda
from ..conftest import random_dataset, small_setting

CHEAP = {
    "label_completion": {"steps": 5, "labels_per_class": 2},
    "label_completion_active": {"steps": 5, "labels_per_class": 2},
    "label_scalar": {"scalars": 20},
    "membership_loss": {"pool": 32},
    "membership_lira": {"pool": 32, "shadows": 4},
    "membership_rmia": {"pool": 32, "shadows": 4},
}
ALWAYS = ("dpzv", "split")
"""Methods on the first of which every third attack is tried always, by one adversary; the rest is slow."""


def cases():
    """Every attack by every adversary on every method that it applies to, of four classes or two."""
    for turn, (name, spec) in enumerate(ATTACKS.items()):
        for place, adversary in enumerate(spec.adversaries):
            tried = False
            for method in sorted(METHODS, key=lambda name: name not in ALWAYS):
                asks = adversary == "client" and METHODS[method].downlink != "gradient"
                rest = {"adversary": adversary, "trials": 2, "with_positive": False}
                rest |= {"queries": min(2, spec.setup.queries) if asks else 1, "options_of_attack": CHEAP.get(name, {})}
                settings = (small_setting(spec, method, random_dataset(classes=c), **rest) for c in (4, 2))
                setting = next((s for s in settings if spec.needs.unmet(s) is None), None)
                if setting is not None:
                    further = pytest.mark.slow if place or turn % 3 else ()
                    marks = pytest.mark.slow if tried or method not in ALWAYS else further
                    tried = True
                    yield pytest.param(spec, setting, id=f"{name}-{adversary}-{method}", marks=marks)


@pytest.mark.parametrize(("spec", "setting"), list(cases()))
def test_an_attack_finds_the_same_on_a_device(spec, setting):
    here = spec.mount(setting)
    with pretended_cuda():
        there = spec.mount(replace(setting, device="cuda"))
    assert there.success == here.success
    assert there.controls == here.controls
    assert there.measures == here.measures
    assert there.baselines == here.baselines
    assert all(isinstance(model.flat, OnDevice) for model in there.trained.clients)


def test_every_attack_is_tried():
    """A system, which alone serves predictions, has them on the machine whatever it trains on.

    Labels are sent to clients where bottoms are trained locally, on privatised ones: no method does so by default.
    """
    tried = {case.values[0].name for case in cases()}
    assert tried == set(ATTACKS) - {"label_groups", "label_served", "label_received"}


def test_what_a_server_knows_of_features_is_where_its_mail_is():
    spec = ATTACKS["feature_inversion"]
    with pretended_cuda():
        run = attacked_run(spec, small_setting(spec, "split", trials=2, device="cuda"))
        some = run.known.granted(SomeFeatures)
        assert isinstance(some.features, OnDevice)
        assert isinstance(some.ids, OnDevice)
        assert spec.infer(run.view, run.known).ids.device.type == "cpu"
