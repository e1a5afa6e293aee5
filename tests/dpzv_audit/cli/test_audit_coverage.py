import json

import numpy as np
import pytest

from dpzv_audit.cli.audit_scores import family_of
from dpzv_audit.cli.flags import said
from dpzv_audit.statistics.estimators import ESTIMATORS, audit_scores

from ...helpers.refusals import refused


@pytest.fixture
def run(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return lambda line: cli(f"audit {line}")


def test_the_check_prints_its_rows_and_passes(run):
    # Three audits a mechanism: a count above 3 of 3 is impossible, so this cannot fail by chance.
    flags = "coverage --audits 3 --estimator clopper-pearson --estimator one-run"
    text = run(flags)
    assert text.code == 0, text.err
    assert text.out.count("clopper-pearson") == text.out.count("one-run") == 6
    result = json.loads(run(f"{flags} --json").out)
    assert result["schema"] == "dpzv-audit/calibrate-check/1"
    assert result["passed"]
    assert len(result["rows"]) == 12
    assert {row["mechanism"] for row in result["rows"]} >= {"gaussian mu=1", "laplace epsilon=1"}


def test_another_seed_draws_other_audits(run):
    flags = "coverage --audits 2 --estimator clopper-pearson --json"
    first, again, other = (json.loads(run(f"{flags} --seed {seed}").out) for seed in ("0", "0", "5"))
    assert first == again
    assert (first["seed"], other["seed"]) == (0, 5)
    assert [row["mean"] for row in first["rows"]] != [row["mean"] for row in other["rows"]]


@pytest.mark.parametrize(
    "flags",
    [
        "--device cuda",
        "--jobs 2",
        "--runs 10",
        "--out elsewhere",
        "--epochs 3",
        "--canary state",
        "--epsilon 1",
        "--fail-on refuted",
        "--family laplace",
        "--coin-flips",
        "--trial-seconds 5",
    ],
)
def test_a_flag_of_another_audit_is_one_line(flags, cli):
    assert cli.refusal(f"audit coverage {flags}").startswith(f"dpzv-audit: error: No such option: {flags.split()[0]}")


def test_a_bound_that_exceeds_the_truth_fails_the_check(monkeypatch, run):
    from dataclasses import replace

    def boastful(in_scores, out_scores, settings):
        found = ESTIMATORS["one-run"].function(in_scores, out_scores, settings)
        return replace(found, proved=found.provable + 20.0)

    monkeypatch.setitem(ESTIMATORS, "clopper-pearson", replace(ESTIMATORS["clopper-pearson"], function=boastful))
    done = run("coverage --audits 20 --estimator clopper-pearson")
    assert done.code == 3
    assert "in 20 of 20 audits, valid bounds would in at most" in done.err


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("canaries")
    rng = np.random.default_rng(0)
    bits = rng.random(2500) < 0.5
    scores = rng.laplace(size=2500) + 2.0 * bits
    np.save(folder / "ones.npy", scores[bits])
    np.save(folder / "zeros.npy", scores[~bits])
    return f"{folder}/ones.npy", f"{folder}/zeros.npy", scores[bits], scores[~bits]


def test_coin_flips_and_family_reach_the_estimators(files, run):
    names = ["one-run", "one-run-fdp", "curve"]
    flags = " ".join(f"--estimator {name}" for name in names)
    done = run(f"scores {files[0]} {files[1]} --coin-flips --family laplace {flags} --json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    bounds = audit_scores(*files[2:], delta=1e-5, estimators=names, family="laplace", coin_flips=True)
    assert [e["epsilon_lower"] for e in result["estimators"]] == [b.epsilon_lower for b in bounds]
    assert (result["family"], result["coin_flips"]) == ("laplace", True)


def test_a_credible_bound_takes_no_share_of_the_error(files, run):
    done = run(f"scores {files[0]} {files[1]} --epsilon 5 --estimator bayes --estimator one-run --json")
    assert done.code == 0, done.err
    shown = json.loads(done.out)["estimators"]
    assert [e["confidence"] for e in shown] == [0.95, 0.95]
    assert [e["verdict"] for e in shown] == ["cannot refute", "not refuted"]


def test_families_by_name():
    assert family_of("pure").name == "pure"
    sampled = family_of("sampled:rate=0.1,rounds=20,pair=replace")
    assert sampled.name == "sampled-gaussian(rate=0.1, rounds=20, pair=replace)"
    assert family_of("sampled:rate=0.1,rounds=20").name.endswith("pair=remove)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gausian", "family is 'gausian'; use gaussian"),
        ("sampled", "family is 'sampled'"),
        ("sampled:rate=2,rounds=3", "family is 'sampled:rate=2,rounds=3': rate is 2.0; use a number"),
        ("sampled:rate=0.1", "family is"),
        ("sampled:rate=x,rounds=2", "'x' is not a number"),
        ("sampled:rate=0.1,rounds=2.5", "whole number"),
        ("sampled:rate=2,rounds=2", "rate is 2"),
        ("sampled:rate=0.1,rounds=2,sigma=1", "family is"),
    ],
)
def test_wrong_families_are_one_line(text, words):
    with refused("family") as caught:
        family_of(text)
    assert words in said(caught.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("coverage --audits 1", "--audits is 1"),
        ("coverage --estimator x", "--estimator is 'x'"),
    ],
)
def test_wrong_flags_are_named(flags, words, cli):
    assert words in cli.refusal(f"audit {flags}")
