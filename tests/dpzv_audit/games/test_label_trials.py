"""The game of labels that are privatised before training: on the real mechanisms, a wrong one, and whole commands."""

from typing import Literal

import numpy as np
import pytest

from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.bounding import AuditPlan, bounded_by
from dpzv_audit.evidence.verdict import largest_gating
from dpzv_audit.games.labels import LabelTrials, private_labels
from mechanisms.core.defence import Defence
from mechanisms.defences import defence_of
from mechanisms.defences.label import LabelResponse

from ...helpers.refusals import refused

RUNS = 3000


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def small():
    """Sixty records of three classes whose features say little of the class, of two clients."""
    generator = np.random.default_rng(4)
    labels = generator.integers(3, size=60)
    blocks = tuple((labels[:, None] + generator.normal(0, 2, (60, 4))).astype(np.float32) for _ in range(2))
    part = Records(features=blocks, labels=labels)
    return VerticalDataset("small", part, part, 3, "random blocks", {})


def lower(defence, dataset, runs=RUNS, confidence=0.95):
    found = bounded_by(LabelTrials(defence, dataset, 0), AuditPlan(runs=runs, confidence=confidence), delta=1e-5)
    return largest_gating(found.bounds)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        pytest.param("label-rr", 0.6, marks=pytest.mark.ci),
        pytest.param("label-rr-prior", 0.3, marks=pytest.mark.slow),
        pytest.param("label-cluster", 0.2, marks=pytest.mark.slow),
    ],
)
def test_a_good_part_of_epsilon_is_seen_and_no_more(name, least, small):
    """At 1 - 1e-4 a bound is above the truth in at most one of 10,000 audits."""
    assert least < lower(defence_of(name, epsilon=1.0), small, confidence=1 - 1e-4) <= 1.0


class KeptTooOften(LabelResponse):
    """Planted: responses at epsilon 3 that are said to be at 1."""

    name: Literal["label-rr"] = "label-rr"

    def on_labels(self, data, draws):
        return LabelResponse(epsilon=3.0).on_labels(data, draws)


def test_responses_at_more_than_is_said_are_refuted(small):
    assert lower(KeptTooOften(epsilon=1.0), small, runs=600, confidence=1 - 1e-4) > 1.0


def test_the_canary_is_a_record_whose_released_label_is_in_doubt(digits):
    """Of 1,408 records in 50 groups it is one of a group whose vote is close, so that either label may win."""
    trials = LabelTrials(defence_of("label-cluster", epsilon=1.0), digits, 0)
    record, out, inside = trials.canary
    assert out == digits.train.labels[record] != inside
    arrays = trials(0, 60)
    assert {*np.unique(arrays["out_scores"])} <= {-1.0, 0.0, 1.0}
    assert 0.05 < (arrays["out_scores"] < 0).mean() < 0.95


def test_pairs_do_not_depend_on_how_many_are_drawn_at_once(digits):
    trials = LabelTrials(defence_of("label-cluster", release="shares"), digits, 3)
    whole, parts = trials(0, 6), [trials(0, 2), trials(2, 6)]
    for side in ("in_scores", "out_scores"):
        assert np.array_equal(whole[side], np.concatenate([part[side] for part in parts]))
        assert len(np.unique(whole[side])) > 3  # shares of classes, not the class alone


def test_what_promises_nothing_has_no_game():
    class Nothing(Defence):
        name: Literal["nothing"] = "nothing"

    with refused("defence is 'nothing', promises nothing: there is no epsilon to bound"):
        private_labels((Nothing(),))


def test_audit_defence_sets_what_it_finds_beside_what_is_promised(tmp_path, cli):
    words = "audit defence label-rr --dataset breast-cancer --defence-set epsilon=2 --runs 400 --quiet"
    result = cli.answer(f"{words} --out {tmp_path}")
    assert (result["method"], result["dataset"], result["adversary"]) == ("label-rr", "breast-cancer", "client")
    privacy = result["privacy"]
    assert (privacy["claimed"], privacy["upper"], privacy["verdict"]) == (2.0, 2.0, "supported")
    assert 1.0 < privacy["empirical_lower"] <= 2.0
    assert "gaussian" not in {bound["name"] for bound in privacy["estimators"]}  # what is released has few values
    assert "record" in result["game"]["canary"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("label-r", "did you mean 'label-rr'"),
        ("label-rr --defence-set epsilom=1", "epsilom"),
        ("label-rr --adversary server", "server"),
    ],
)
def test_a_wrong_audit_of_a_defence_is_one_line(words, said, tmp_path, cli):
    assert said in cli.refusal(f"audit defence {words} --out {tmp_path}")


CLAIM = """
[[claim]]
name = "{name}"
method = "{method}"
dataset = "breast-cancer"
epsilon = {epsilon}
delta = 1e-5
adversary = "{adversary}"
neighbours = "{neighbours}"
config = {{ defences = [{{ name = "{defence}", epsilon = 1.0 }}] }}
"""


@pytest.mark.parametrize(
    ("changes", "verdict", "upper"),
    [
        pytest.param({}, "supported", 1.0, marks=pytest.mark.slow),
        ({"epsilon": 0.3}, "refuted", 1.0),
        ({"method": "vafl", "adversary": "release", "defence": "label-cluster"}, "supported", 1.0),
        ({"neighbours": "replace-record"}, "overclaimed", None),
        ({"adversary": "server"}, "overclaimed", None),
    ],
)
def test_claims_of_labels_that_are_privatised_get_verdicts(changes, verdict, upper, tmp_path, cli):
    """A true claim is refuted with a chance of 1e-4 at most; 0.3 of label-rr's 1 is far off."""
    base = {"name": "c", "method": "split", "epsilon": 1.0, "adversary": "client", "neighbours": "replace-label"}
    path = tmp_path / "c.toml"
    path.write_text("[defaults]\nalpha = 1e-4\n" + CLAIM.format(**{**base, "defence": "label-rr", **changes}))
    code = 0 if verdict == "supported" else 1
    (claim,) = cli.answer(f"verify {path} --quiet --out {tmp_path}/out", code=code)["claims"]
    assert claim["verdict"] == verdict
    assert claim.get("upper") == upper
