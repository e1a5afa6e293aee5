"""Results to render. Fixtures for rendering only: their numbers are plausible, and no run produced them."""

import copy
import json
import math
import shlex
from statistics import NormalDist
from xml.etree import ElementTree

import pytest

from dpzv_audit.evidence.verdict import on_privacy
from dpzv_audit.results import Privacy

MARK = "Fixture for rendering, from no real run: "
NORMAL = NormalDist()


def interval(value, low, high, n, **more):
    return {"value": value, "low": low, "high": high, "n": n, "confidence": 0.95, **more}


def gaussian_curve(mu, alpha):
    inner = [1.0 if a <= 0 else 0.0 if a >= 1 else NORMAL.cdf(NORMAL.inv_cdf(1 - a) - mu) for a in alpha]
    return [round(b, 6) for b in inner]


def claimed_curve(epsilon, delta, alpha):
    steep = [1 - delta - math.exp(epsilon) * a for a in alpha]
    flat = [math.exp(-epsilon) * (1 - delta - a) for a in alpha]
    return [round(max(0.0, s, f), 6) for s, f in zip(steep, flat, strict=True)]


def tradeoff():
    alpha = [round(i / 200, 6) for i in range(201)]
    measured = gaussian_curve(1.13, alpha)
    spread = [
        0.003 + 0.12 * math.sqrt(b * (1 - b)) * (1 + 0.15 * math.sin(40 * a))
        for a, b in zip(alpha, measured, strict=True)
    ]
    return {
        "alpha": alpha,
        "claimed": claimed_curve(1.0, 1e-5, alpha),
        "recomputed": gaussian_curve(1.327, alpha),
        "empirical": measured,
        "empirical_low": [round(max(0.0, b - s), 6) for b, s in zip(measured, spread, strict=True)],
        "empirical_high": [round(min(1.0, b + s), 6) for b, s in zip(measured, spread, strict=True)],
        "confidence": 0.95,
        "note": "The band holds at all false positive rates together, half the error a side.",
    }


def bound(accountant, adversary, epsilon, **more):
    return {
        "accountant": accountant,
        "adversary": adversary,
        "neighbours": "replace-label",
        "delta": 1e-5,
        "epsilon": None if epsilon is None else dict(zip(("lower", "estimate", "upper"), epsilon, strict=True)),
        "sound": True,
        "gap": None,
        "note": "",
        "mu": None,
        **more,
    }


def privacy():
    estimator = {
        "name": "clopper-pearson",
        "epsilon_lower": 2.1374,
        "delta": 1e-5,
        "confidence": 0.95,
        "claim_kind": "epsilon-delta",
        "assumes": "",
        "mu_lower": None,
        "threshold_rule": "pilot of 10% of the scores",
        "directions": 2,
        "looks": 1,
        "n_in": 2000,
        "n_out": 2000,
        "ceiling": 6.2918,
    }
    gaussian = estimator | {
        "name": "gaussian",
        "epsilon_lower": 4.8653,
        "claim_kind": "trade-off",
        "assumes": "Gaussian noise, a fixed number of participations",
        "mu_lower": 1.0946,
        "ceiling": 34.617,
    }
    return {
        "claimed": 1.0,
        "upper": 5.8127,
        "gap": None,
        "empirical_lower": 2.1374,
        "delta": 1e-5,
        "adversary": "client",
        "neighbours": "replace-label",
        "bounds": [
            bound(
                "gdp-exact",
                "client",
                (5.8119, 5.8123, 5.8127),
                mu=1.3268,
                note="participations counted, ids known",
            ),
            bound("prv", "client", None, note="undefined: the ids are known, so sampling does not amplify"),
            bound("gdp-exact", "eavesdropper", (5.8119, 5.8123, 5.8127), mu=1.3268),
            bound("prv", "eavesdropper", (0.9712, 0.9755, 0.9798), sound=False, gap="server-state"),
            bound(
                "gdp-paper",
                "eavesdropper",
                (1.0, 1.0, 1.0),
                sound=False,
                gap="shuffled-as-poisson",
                mu=0.2676,
            ),
        ],
        "estimators": [estimator, gaussian],
        "confidence": 0.95,
        "release": {
            "sigma": 0.7537218264,
            "noise_multiplier": 2.4119,
            "rounds_by_client": [330, 330, 330, 330],
        },
        "gap_explanations": {
            "server-state": "The server's updates use the labels without noise, so later scalars carry them.",
            "shuffled-as-poisson": "The formula assumes Poisson sampling; batches here come from shuffling.",
        },
    }


def judged(privacy, *, theory=True):
    """Return a privacy section with the verdict that its numbers give."""
    unjudged = {key: value for key, value in privacy.items() if key not in ("verdict", "judged")}
    section = on_privacy(Privacy.model_validate(unjudged), theory=theory)
    assert section.judged is not None
    return {**unjudged, "verdict": section.verdict, "judged": section.judged.to_json()}


ATTACK = {
    "schema": "dpzv-audit/attack/1",
    "method": "dpzv",
    "dataset": "digits",
    "attack": "label_direct",
    "adversary": "client",
    "success": interval(0.1207, 0.1042, 0.1389, 1408),
    "baselines": {"majority": 0.1044, "prior": 0.1003},
    "controls": {
        "shuffled_labels": interval(0.0987, 0.0836, 0.1155, 1408),
        "positive": interval(
            1.0, 0.9974, 1.0, 1408, what="label_direct on split without a top model", kind="positive", expected=1.0
        ),
    },
    "privacy": judged(privacy()),
    "tradeoff": tradeoff(),
    "sentence": MARK
    + "one curious client infers 12% of the labels, little above the 10% of a blind guess, yet an audit "
    "certifies ε of at least 2.137 where 1 was claimed: the claim does not hold against a client.",
    "utility": {
        "test_accuracy": interval(0.8743, 0.8361, 0.9062, 366),
        "controls": {"majority": 0.1038, "frozen-clients": interval(0.8607, 0.8209, 0.8945, 366)},
        "final_loss": 0.4318,
    },
    "bytes": {"up": 5767168, "down": 90112, "by_kind": {"embedding": 5767424, "scalar": 90368}},
    "rounds": 1320,
    "attack_setting": {"queries": 1, "rule": "argmin", "estimator": "ridge", "trials": 16},
    "protects": "the scalars that the server sends to each client; embeddings go up without noise.",
    "config": {
        "batch_size": 64,
        "clients": 4,
        "clip": 1.0,
        "directions": 1,
        "client_lr": 0.02,
        "server_lr": 0.05,
        "rounds": 1320,
        "sigma": 0.7537218264,
        "sampler": "shuffle",
        "smoothing": 0.001,
        "update": "zo",
        "enforced_cap": None,
    },
    "seed": 0,
    "data": {
        "partition": "4 strips of 2 rows each, 16 pixels a client",
        "digests": {"digits.csv.gz": "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"},
    },
    "versions": {"dpzv-audit": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.3.4"},
}

TRAIN = {
    "schema": "dpzv-audit/train/1",
    "method": "vafl",
    "dataset": "digits",
    "sentence": MARK + "the model learns, and most of that is the server's doing.",
    "utility": {
        "test_accuracy": interval(0.9126, 0.8788, 0.9394, 366),
        "controls": {"majority": 0.1038, "frozen-clients": interval(0.8607, 0.8209, 0.8945, 366)},
        "final_loss": 0.3127,
        "history": [
            {
                "epoch": e,
                "test_accuracy": round(0.9126 - 0.8 * math.exp(-e / 4), 4),
                "loss": round(0.3 + 2 * math.exp(-e / 5), 4),
                "bytes_up": 100_000 * (1 + e),
                "bytes_down": 30_000 * e,
            }
            for e in range(31)
        ],
    },
    "bytes": ATTACK["bytes"],
    "rounds": 1320,
    "staleness": {
        "mean": 1.7,
        "q50": 1,
        "largest": 5,
        "distribution": [
            {"from": 1, "to": 1, "share": 0.6246},
            {"from": 2, "to": 3, "share": 0.375},
            {"from": 4, "to": 5, "share": 0.0004},
        ],
        "mean_by_client": {"client 1": 1.1, "client 2": 2.3},
    },
    "privacy": {"claimed": None, "upper": None, "gap": "server-state", "bounds": []},
    "config": {"batch_size": 64, "epochs": 30},
    "seed": 3,
}

AUDIT = {
    "schema": "dpzv-audit/audit/1",
    "method": "dpzv-sound",
    "dataset": "digits",
    "adversary": "client",
    "sentence": MARK + "2,000 + 2,000 runs found nothing against the claim.",
    "game": {
        "canary": "worst-case",
        "neighbours": "replace-label",
        "adversary": "client",
        "score": "sum of the canary rounds' residuals",
        "runs_in": 2000,
        "runs_out": 2000,
    },
    "privacy": judged(privacy() | {"empirical_lower": 0.4127, "upper": None}, theory=False),
    "tradeoff": tradeoff() | {"recomputed": None},
    "config": {"batch_size": 64},
    "seed": 1,
}

SCORES = {
    "schema": "dpzv-audit/audit-scores/1",
    "estimators": [
        estimator | {"verdict": verdict}
        for estimator, verdict in zip(privacy()["estimators"], ("refuted", "cannot refute"), strict=True)
    ],
    "scores": {"in": "in.csv", "out": "out.csv", "n_in": 2000, "n_out": 2000},
    "delta": 1e-5,
    "confidence": 0.95,
    "seed": 0,
    "exactly_gaussian": False,
    "claim": {"epsilon": 1.0, "delta": 1e-5}
    | {key: judged(privacy() | {"upper": None}, theory=False)[key] for key in ("verdict", "judged")},
    "meaning": MARK + "at delta = 1e-05, epsilon is at least 2.137 with 95% confidence.",
}


def planted_row(name, *, claimed, lower, upper, verdict, expected):
    """Return a planted mechanism that was audited in one game."""
    estimator = privacy()["estimators"][0] | {"epsilon_lower": lower, "confidence": 0.95}
    return {
        "name": name,
        "bug": "noise drawn after seeding the generator with the direction's seed, which is logged",
        "adversary": "client",
        "neighbours": "replace-label",
        "score": "sum of the scalars of batches with the canary",
        "runs": 10_000,
        "claimed": claimed,
        "delta": 1e-5,
        "empirical_lower": lower,
        "upper": upper,
        "gap": None if upper else "unbounded-participation",
        "expected": expected,
        "verdict": verdict,
        "as_expected": verdict in expected,
        "games": {"the game": {"empirical_lower": lower, "estimators": [estimator]}},
    }


PLANTED = {
    "schema": "dpzv-audit/planted/1",
    "method": "planted",
    "rows": [
        planted_row("noise-over-b", claimed=1.0, lower=71.482, upper=1.0, verdict="refuted", expected=["refuted"]),
        planted_row("repeated-record", claimed=1.0, lower=8.0183, upper=None, verdict="refuted", expected=["refuted"]),
        planted_row("joint-zo-state", claimed=0.5, lower=0.0, upper=0.5, verdict="supported", expected=["supported"]),
        planted_row(
            "paper-secret-ids",
            claimed=1.0,
            lower=0.1968,
            upper=1.0069,
            verdict="overclaimed",
            expected=["overclaimed", "supported"],
        ),
    ],
    "sentence": MARK + "4 of 4 mechanisms got the verdict they must get.",
    "confidence": 0.95,
    "seed": 0,
    "versions": ATTACK["versions"],
    "command_line": ["dpzv-audit", "audit", "mechanism", "planted:all"],
}

UNAUDITED = ("empirical_lower", "estimators", "confidence", "release")

ACCOUNT = {
    "schema": "dpzv-audit/account/1",
    "command_line": shlex.split("dpzv-audit account --batch-size 128 --dataset-size 60000 --epsilon 1 --delta=1e-5"),
    "method": "",
    "release": {"batch_size": 128, "dataset_size": 60_000, "rounds": 46_900, "sigma": 0.18594, "ids": "secret"},
    "sentences": [MARK + "46900 scalars, B = 128 of D = 60000 (shuffled), C = 10, sigma = 0.18594 (theorem 5.1)."],
    "privacy": judged(
        {key: value for key, value in privacy().items() if key not in UNAUDITED}
        | {"bounds": privacy()["bounds"][:2], "not_audited": "nothing was run"}
    ),
    "bounds": [
        *privacy()["bounds"],
        bound("gdp-exact", "server", None, sound=False, gap="unprotected-channel"),
        bound("gdp-exact", "client", (2.5761, 2.5765, 2.5769), neighbours="zero-out", mu=0.62911),
    ],
    "explanations": ["gdp-exact, replace-label, against client: epsilon <= 5.813", "    mu = 2 C sqrt(k) / (B sigma)"],
    "figures": {
        "rounds": {
            "theorem 5.1, as claimed": [[1, 0.00462], [46_900, 1.0]],
            "client, colluding-clients": [[1, 0.1171], [469, 4.021], [46_900, 5.8127]],
        },
        "tradeoff": {
            "alpha": tradeoff()["alpha"],
            "theorem 5.1, as claimed": gaussian_curve(0.2676, tradeoff()["alpha"]),
            "client, colluding-clients": gaussian_curve(1.3268, tradeoff()["alpha"]),
        },
    },
    "versions": ATTACK["versions"],
}


def trained_row(label, ours, paper):
    """Return a row of a reproduced table: one training beside what a paper prints."""
    return {
        "label": label,
        "method": "czofo",
        "options": {"client_rate": 0.1, "direction": "unit-sphere", "directions": 10},
        "accuracy": interval(ours, ours - 0.012, ours + 0.011, 10_000),
        "paper_accuracy": paper,
    }


REPRODUCE = {
    "schema": "dpzv-audit/reproduce/1",
    "table": "czofo-table4",
    "source": "paper 003, table 4",
    "epochs": 20,
    "paper_epochs": 100,
    "seeds": 1,
    "records": 12_000,
    "seed": 4,
    "rows": [
        trained_row("first order (VAFL)", 0.9531, 0.9736),
        trained_row("q = 100", 0.9418, 0.953),
        trained_row("local bottoms, uploaded once, label-cluster of shares, epsilon 0.25", 0.8127, 0.7966),
    ],
    "skipped": {"q = 1": "clients is 6, must divide the 8 image columns: one of 1, 2, 4, 8"},
    "notes": ["cost of 100 epochs: 3.5 MB down"],
    "rows_of_table": 9,
    "sentence": MARK + "1 of 3 accuracies lie within 1 point of the paper's.",
    "scope": "20 of the paper's 100 epochs on 12,000 records, 1 seed.",
    "about": "Accuracy on the test records in percent, mean and standard deviation over seeds, after the last epoch.",
    "lead": "",
    "remark": "no better than frozen clients with a tuned server: q = 100",
    "columns": ["row", "ours", "paper", "frozen clients, tuned (rate)", "up, MB", "settings"],
    "cells": [
        ["first order (VAFL)", "95.31 +- 0.41", "97.36", "91.20 (0.5)", "614.4", "search on MNIST"],
        ["q = 100", "94.18 [92.98, 95.28]; 5 seeds 93.71 to 94.60", "95.30", "94.20 (0.5)", "614.4", "by hand"],
        [
            "local bottoms, uploaded once, label-cluster of shares, epsilon 0.25",
            "81.27",
            "79.66",
            "-",
            "1,203.7",
            "by hand",
        ],
    ],
    "figures": {
        "figure": {
            "kind": "lines",
            "subject": MARK + "Test accuracy by epoch, paper 003, table 4",
            "across": "epoch, as the paper counts them",
            "up": "test accuracy, %",
            "series": {
                "first order (VAFL)": [[1, 81.0], [10, 93.2], [20, 95.31]],
                "local bottoms, uploaded once, label-cluster of shares, epsilon 0.25": [[20, 81.27]],
            },
            "levels": {"split, true labels": 97.1},
        },
        "bytes": {
            "kind": "intervals",
            "subject": MARK + "Direct label inference",
            "across": "share of labels found; dashed: guessing",
            "ticks": {"split learning": 0, "zeroth order, eavesdropper, VFL-Cascaded": 1},
            "series": {
                "curious client": [[0, 1.0, 0.997, 1.0], [1, 0.1207, 0.1042, 0.1389]],
                "eavesdropper": [[1, 0.1044, 0.09, 0.12]],
            },
            "levels": {"guessing": 0.1003},
        },
    },
    "versions": ATTACK["versions"],
    "command_line": shlex.split(
        "dpzv-audit reproduce czofo-table4 --data-dir data --epochs 20 --row 'q = 100' --seed 4"
    ),
}

RESULTS = {
    "attack": ATTACK,
    "train": TRAIN,
    "audit": AUDIT,
    "audit-scores": SCORES,
    "planted": PLANTED,
    "account": ACCOUNT,
    "reproduce": REPRODUCE,
}


@pytest.fixture(scope="session")
def of_each_schema():
    """Return one result of each schema, to be left as it is."""
    return RESULTS


@pytest.fixture
def judge():
    """Return what puts the verdict into a privacy section."""
    return judged


@pytest.fixture
def results():
    """Return one result of each schema, fresh for each test."""
    return copy.deepcopy(RESULTS)


@pytest.fixture
def run_folder(tmp_path):
    """Return a run folder that holds the attack's result."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(ATTACK), encoding="utf-8")
    return folder


def texts_of(svg):
    """The texts of a drawing."""
    return [e.text or "" for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
