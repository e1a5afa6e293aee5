"""A file of planted bugs: every one is refuted, nothing is imported, and right mechanisms keep their verdict."""

from pathlib import Path

import pytest

from dpzv_audit.claims.file import load_claims, parse_claims
from dpzv_audit.evidence.verdict import decide
from dpzv_audit.games.planted import PLANTED
from dpzv_audit.statistics.panel import holm

from ...helpers.gates import gate_of, gate_on, gathered
from ...helpers.places import ROOT
from ...helpers.refusals import refused

EXAMPLE = ROOT / "examples" / "planted.toml"
TRAINED = ("planted:server-state",)


def verdicts(file):
    runs = gathered(gate_of(file))
    found = [run.evidence() for run in runs]
    return {
        run.placed.claim.mechanism: decide(
            refuted=refuted,
            theory=evidence.theory.applies,
            upper=evidence.theory.upper,
            claimed=run.placed.claim.epsilon,
        )[0]
        for run, evidence, refuted in zip(runs, found, holm([e.p_value for e in found], file.alpha), strict=True)
    }


def test_the_example_holds_every_bug_that_must_be_refuted():
    named = {placed.claim.mechanism.removeprefix("planted:") for placed in load_claims(EXAMPLE).claims}
    assert named == {planted.name for planted in PLANTED.values() if planted.expected == ("refuted",)}


@pytest.mark.slow
def test_every_bug_without_trainings_is_refuted():
    # Chance of a bug that escapes: that of its evidence, which at these sizes is below 1e-9 each.
    file = load_claims(EXAMPLE)
    drawn = file.only([placed.name for placed in file.claims if placed.claim.mechanism not in TRAINED])
    assert set(verdicts(drawn).values()) == {"refuted"}


@pytest.mark.slow
def test_every_bug_is_refuted():
    assert set(verdicts(load_claims(EXAMPLE)).values()) == {"refuted"}


@pytest.mark.ci
def test_right_mechanisms_keep_their_verdict():
    text = "".join(
        f'[[claim]]\nname = "{name}"\nmechanism = "planted:{name}"\nepsilon = {epsilon}\ndelta = {delta}\n'
        f'adversary = "{PLANTED[name].adversary}"\n'
        for name, epsilon, delta in (("sound", 1.0, 1e-5), ("shuffled-as-poisson", 1.0, 1e-3))
    )
    found = verdicts(parse_claims(text, Path("claims.toml")))
    assert found == {"planted:sound": "supported", "planted:shuffled-as-poisson": "overclaimed"}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('mechanism = "planted:soud"', "did you mean 'sound'"),
        ('mechanism = "planted:sound"\nadversary = "server"', "adversary is 'server'; use 'client' with planted:"),
        ('mechanism = "planted:actual-divisor"\nadversary = "eavesdropper"', "use 'add-remove'"),
        ('mechanism = "planted:sound"\nexactly_gaussian = true', "exactly_gaussian does not go with"),
        ('mechanism = "planted:sound"\ndepends = ["x"]', "depends does not go with planted:sound, which reads no file"),
    ],
)
def test_a_wrong_planted_claim_is_one_line(keys, says):
    file = parse_claims(f'[[claim]]\nname = "c"\nepsilon = 1.0\n{keys}\n', Path("claims.toml"))
    with refused(says) as caught:
        verdicts(file)
    assert str(caught.value).startswith("claims.toml:")


@pytest.mark.parametrize("name", ["all", "noise-resued"])
def test_an_unknown_name_is_told_at_its_key_and_not_as_a_flag(name):
    text = f'[[claim]]\nname = "a"\nepsilon = 1.0\nmechanism = "planted:{name}"\n'
    gate = gate_on(Path(), text)
    with refused(f"claims.toml:4: claim 'a': mechanism planted:NAME is '{name}'[:;] ") as caught:
        gate.prepare()
    assert "--" not in str(caught.value)
    assert "one of all" not in str(caught.value)
