"""The game of a record on noised sums of gradients: its scores are exact, and it refutes no sound descent."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, norm

from dpzv_audit.accounting import mu_from_epsilon
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.evidence.auditing import sums_outcome
from dpzv_audit.evidence.bounding import AuditPlan, lower_bounds
from dpzv_audit.games.planted import PLANTED
from dpzv_audit.games.sums import SumTrials
from mechanisms import METHODS, Training
from mechanisms.core.context import RunContext, TrainingData

from ...helpers.refusals import refused
from ...mechanisms.conftest import random_dataset

SPEC = METHODS["fixed-features"]
CONFIG = SPEC.configure(epochs=5, embedding=4, features="columns", dtype="float64")
LEVEL = 1e-4
"""False-alarm rate of every statistical test here; seeds are fixed."""
MU = mu_from_epsilon(1.0, 1e-5)


def planted(name="private-descent", seed=0):
    (trials,) = PLANTED[name].build(seed).games.values()
    return trials


def test_a_canary_at_the_clip_tells_all_that_the_bound_allows():
    """The two labels' gradients are opposite and at the clip in each step: the information is mu^2, on the grid."""
    arrays = planted()(0, 50)
    for side in ("in", "out"):
        assert np.allclose(arrays[f"{side}_information"], MU**2, rtol=1e-3)
        assert (arrays[f"{side}_information"] <= MU**2 * (1 + 1e-9)).all()
    assert planted().scored(arrays).given is not None


def test_scores_are_the_log_likelihood_ratio():
    """N(mu^2/2, mu^2) in one world and N(-mu^2/2, mu^2) in the other: means and variances of 2,000 runs each."""
    arrays = planted()(0, 2000)
    for side, sign in (("in", 1.0), ("out", -1.0)):
        scores = arrays[f"{side}_scores"]
        z = (scores.mean() - sign * MU**2 / 2) / (MU / math.sqrt(len(scores)))
        assert abs(z) < norm.isf(LEVEL / 8)
        spread = ((scores - sign * MU**2 / 2) ** 2).sum() / MU**2
        assert chi2.ppf(LEVEL / 8, len(scores)) < spread < chi2.isf(LEVEL / 8, len(scores))


def test_a_score_is_that_of_the_sums_that_were_released():
    """By hand: every step's sums under either label at the weights so far, and the noise of the run's own stream."""
    dataset = random_dataset(classes=2)
    trials = SumTrials(SPEC, replace_noise(CONFIG), dataset, seed=4)
    arrays = trials(0, 1)
    data = TrainingData.of(dataset, dtype=torch.float64, device="cpu")
    for replica, side in ((0, "out"), (1, "in")):
        runs = []
        for label in trials.labels:
            labels = data.labels.clone()
            labels[0] = label
            context = RunContext(seed=4, replicas=(replica,))
            runs.append(SPEC.start(replace_labels(data, labels), trials.config, context)._descent)
        real, score = runs[replica], 0.0
        for _ in range(trials.config.epochs):
            out, inside = (run.clear() for run in runs)
            sent = real.noised()
            score += float(((inside - out) * (sent - (out + inside) / 2)).sum()) / trials.config.sigma**2
            for run in runs:
                run.move(sent)
        assert arrays[f"{side}_scores"][0] == pytest.approx(score, rel=1e-9)


def replace_noise(config):
    return config.model_copy(update={"noise": "float", "sigma": 0.7, "epsilon": None})


def replace_labels(data, labels):
    return replace(data, labels=labels)


def test_runs_are_the_same_in_any_chunk():
    trials = planted()
    whole = trials(0, 6)
    parts = [trials(0, 2), trials(2, 6)]
    for name, values in whole.items():
        assert np.allclose(np.concatenate([part[name] for part in parts]), values, rtol=1e-9, atol=1e-12)


def test_each_step_telling_less_as_weights_grow_is_not_called_gaussian():
    config = SPEC.configure(epochs=40, embedding=4, clip=1.0, sigma=2.0, logit_noise=50.0)
    trials = SumTrials(SPEC, config, random_dataset(classes=2))
    assert trials.scored(trials(0, 20)).given is None


@pytest.mark.parametrize("games", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_game_of_forty_trainings_refutes_the_claim_more_often_than_it_may(games):
    """At 5% a game; more than the 1 - 1e-4 quantile of as many coins of 5% is an alarm: 12 of 60, 77 of 1,000."""
    trials = planted(seed=int(stream(1, Purpose.SIMULATION, 0).integers(2**31)))
    arrays = trials(0, 20 * games)
    refuted, largest = 0, 0.0
    for game in range(games):
        own = {name: values[20 * game : 20 * (game + 1)] for name, values in arrays.items()}
        scores = trials.scored(own)
        assert scores.given is not None  # the strongest tests apply
        lower = max(bound.epsilon_lower for bound in lower_bounds(scores, delta=1e-5, confidence=0.95, seed=game))
        refuted += lower > 1.0
        largest = max(largest, lower)
    alarm = binom.ppf(1 - LEVEL, games, 0.05)
    assert refuted <= alarm
    assert alarm <= 0.2 * games
    assert largest > 0.0  # something is seen at all


def test_the_audit_of_a_method_is_supported_and_says_what_it_played():
    training = Training(method=SPEC, config=CONFIG, dataset=random_dataset(classes=2), seed=0)
    result = sums_outcome(training, "release", AuditPlan(runs=30)).result
    assert result.privacy.upper <= 1.0
    assert result.privacy.neighbours == "replace-record"
    assert result.privacy.verdict == "supported"
    assert "every noised sum" in result.game["adversary"]


@pytest.mark.parametrize(
    ("options", "adversary", "plan", "says"),
    [
        ({}, "server", {}, "adversary is 'server'; use one of release, client"),
        ({}, "eavesdropper", {}, "adversary is 'eavesdropper'; use one of release, client"),
        ({"sigma": 0.0}, "release", {}, "the noise is 0"),
        (
            {},
            "release",
            {"canary": "state"},
            "canary is 'state'; use worst-case: no other game is played",
        ),
        ({}, "release", {"others": "saturated"}, "others is 'saturated'; use zero"),
    ],
)
def test_a_game_that_there_is_not_is_one_line(options, adversary, plan, says):
    config = SPEC.configure(**{"epochs": 2, "embedding": 4, **options})
    training = Training(method=SPEC, config=config, dataset=random_dataset(), seed=0)
    with refused(says):
        sums_outcome(training, adversary, AuditPlan(runs=2, **plan))
