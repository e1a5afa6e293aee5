"""`verify` on claims about attacks: each of the registry, audited and from the cache."""

import json
from dataclasses import replace

import pytest

from attacks import ATTACKS, AttackSpec
from dpzv_audit.base.registry import Registry
from dpzv_audit.claims import method as method_claims
from mechanisms import METHODS

MANY_CLASSES = {"label_direct", "label_probe", "label_inversion"}
ON_SYSTEMS_ALONE = {"label_groups", "label_served"}
LONG = {
    "feature_hijacking",
    "label_completion",
    "label_completion_active",
    "label_matching",
    "label_precision",
    "label_signature",
    "membership_lira",
    "membership_rmia",
}
"""Attacks that fit models of their own for seconds."""
ON_GRADIENTS = (
    "completion_active",
    "corrected",
    "denoised",
    "direction",
    "enumeration",
    "inversion",
    "matching",
    "norm",
)
DPZV = ("dpzv", {"calibration": "none"})
ON = {f"label_{name}": ("vafl", {}) for name in ON_GRADIENTS}
ON["label_received"] = ("compressed", {"local_gradient": "recomputed"})
ON["feature_hijacking"] = ("split", {})


def claim_on(attack):
    """The smallest claim about `attack`: two passes in large batches over the smallest data set that it applies to."""
    method, settings = ON.get(attack, DPZV)
    config = {"batch_size": 64, "epochs": 2, **settings}
    known = METHODS[method].config.model_fields
    config |= {key: value for key, value in ATTACKS[attack].needs.requires.items() if key in known}
    keys = {
        "name": attack,
        "kind": "attack",
        "method": method,
        "attack": attack,
        "adversary": ATTACKS[attack].adversaries[0],
        "success_at_most": 0.99,
        "dataset": "digits" if attack in MANY_CLASSES else "breast-cancer",
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    settings = ", ".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    return "\n".join(["[[claim]]", *lines, f"config = {{ {settings} }}", ""])


@pytest.fixture
def verified(tmp_path, monkeypatch, cli):
    """Verify a claim on an attack with some flags, on one block of two trainings; return its entry of the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(method_claims, "TRIALS_A_BLOCK", 2)

    def quicker(spec):  # steps of fitting are not what is tested here
        options = spec.setup.options
        return (
            replace(spec, setup=replace(spec.setup, options={**options, "steps": 50})) if "steps" in options else spec
        )

    monkeypatch.setattr("attacks.ATTACKS", Registry(ATTACKS.group, AttackSpec, map(quicker, ATTACKS.values())))

    def verify(attack, flags=""):
        (tmp_path / "claims.toml").write_text(claim_on(attack))
        result = cli.answer(f"verify claims.toml --max-trials 2 --allow not-tested {flags}")
        return {**result["claims"][0], "cached": bool(result["cached"])}

    return verify


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(name, marks=pytest.mark.slow if "completion" in name else pytest.mark.ci) if name in LONG else name
        for name in sorted(set(ATTACKS) - ON_SYSTEMS_ALONE)
    ],
)
def test_every_attack_is_verified_and_kept(verified, attack):
    entry = verified(attack, "--cache cache")
    assert not entry["missing"]
    assert -1.0 <= entry["attack"]["success"] <= 1.0
    assert all(isinstance(value, float) for value in entry["attack"]["baselines"].values())
    again = verified(attack, "--cache cache")
    assert again["cached"]
    assert again["attack"] == entry["attack"]


def test_baselines_that_were_measured_need_no_cache(verified):
    assert verified("label_spectral", "--no-cache")["attack"] == verified("label_spectral", "--cache cache")["attack"]


def test_an_attack_on_a_model_that_has_not_learnt_is_warned_of(verified, monkeypatch):
    monkeypatch.setitem(ON, "label_direction", ("vafl", {"server_rate": 1e-9, "client_rate": 1e-9}))
    idle = verified("label_direction", "--cache cache")
    again = verified("label_direction", "--cache cache")
    assert again["cached"]
    for entry in (idle, again):
        assert any(text.startswith("the model has not learnt") for text in entry["judged"]["warnings"])
    monkeypatch.setitem(ON, "label_direction", ("vafl", {"epochs": 20, "server_rate": 0.1, "client_rate": 0.1}))
    assert verified("label_direction", "--no-cache")["judged"]["warnings"] == []
