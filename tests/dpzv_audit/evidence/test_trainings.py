"""How many trainings a claim about an attack's success takes, and what its upper limit covers."""

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.evidence.gathering import Pool, Question, Stage, Subject, Success, gather
from dpzv_audit.evidence.trainings import FEWEST, MOST_TRAININGS, TrainingsRule

ALPHA = 1e-3
CHOSEN = "trainings"


def rule(limit, **options):
    return TrainingsRule(**{"limit": limit, "least": 0.0, "stop": ALPHA, "held_at": ALPHA, "most": 200, **options})


def trainings(rates, asked):
    """Return how many trainings of success `rates(number)` a rule takes."""
    seen = []
    while asked.goes_on(seen):
        seen.append(rates(len(seen)))
    return seen


def attacked(rates, others=None, *, block=1, mounted="attack by client 1"):
    """Return a subject whose chosen attack has success `rates(number)`, and others, each of success by number."""

    def drawing(of, words):
        def draw(number):
            if isinstance(of, str):
                return Success(rates=(), baselines={}, controls={}, mounted=words, excluded=of)
            first = number * block
            found = tuple(float(of(first + i)) for i in range(block))
            return Success(rates=found, baselines={"guess": 0.1}, controls={}, mounted=words)

        return draw

    draws = {CHOSEN: drawing(rates, mounted)}
    for words, of in (others or {}).items():
        draws[words] = drawing(of, words)
    return Subject(
        stages=tuple(Stage(name=name, pool=name, blocks=10**6, stops=True) for name in draws),
        pools={name: Pool(draw=draw, trials=block) for name, draw in draws.items()},
    )


def question(limit, **options):
    return Question(**{"success_at_most": limit, "alpha": ALPHA, "stop": ALPHA, **options})


def test_an_attack_that_always_succeeds_is_refuted_within_the_planned_number():
    for limit, needed in ((0.9, 73), (0.95, 149)):
        asked = rule(limit)
        assert asked.needed == needed
        seen = trainings(lambda number: 1.0, asked)
        assert asked.refuted(seen)
        assert len(seen) <= needed
        assert not asked.refuted(seen[:-1]), "it stops at the first training that decides"


def test_what_the_budget_cannot_refute_is_given_up_after_the_first_look():
    """A limit of 0.99 takes 757 trainings: 200 that all succeed could not refute it."""
    asked = rule(0.99)
    assert len(trainings(lambda number: 1.0, asked)) == FEWEST
    assert rule(0.99, most=757).goes_on([1.0] * FEWEST)
    assert len(trainings(lambda number: 0.5, rule(0.99, most=5))) == 5


def test_an_attack_that_finds_little_ends_after_the_first_look_and_is_held():
    asked = rule(0.9)
    seen = trainings(lambda number: 0.56, asked)
    assert (len(seen), asked.held(seen)) == (FEWEST, True)


def test_trainings_go_on_while_the_success_is_above_the_limit_and_end_at_the_plan_where_it_is_below():
    assert len(trainings(lambda number: 0.92, rule(0.9))) > 73
    # 0.899 is below the limit, but too near to be held by the planned number.
    assert len(trainings(lambda number: 0.899, rule(0.9))) == 73


def test_16_trainings_of_056_against_09_are_held_and_an_attack_of_1_is_refuted():
    rates = 0.56 + 0.01 * np.random.default_rng(0).normal(size=64)
    held = gather(attacked(lambda number: rates[number]), question(0.9))
    assert (held.trials, held.missing, held.p_value) == (16, "", 1.0)
    assert held.attack.success_upper(ALPHA) == pytest.approx(0.721, abs=1e-3)
    for limit, most in ((0.9, 73), (0.95, 149)):
        refuted = gather(attacked(lambda number: 1.0), question(limit))
        assert refuted.p_value <= ALPHA
        assert refuted.trials <= most


def test_blocks_of_four_trainings_are_bet_on_one_by_one():
    found = gather(attacked(lambda number: 1.0, block=4), question(0.9))
    assert found.trials == len(found.attack.rates) == 72
    assert found.p_value <= ALPHA
    assert found.attack.means["success"] == 1.0


def test_every_client_needs_its_limit_at_a_share_of_the_error():
    low = {"attack by client 1": lambda number: 0.5, "attack by client 2": lambda number: 0.6}
    found = gather(attacked(lambda number: 0.5, low), question(0.9))
    assert list(found.attack.others) == ["attack by client 2"]
    assert len(found.attack.others["attack by client 2"]) < FEWEST
    assert found.attack.unmeasured == ()
    alone = gather(attacked(lambda number: 0.5), question(0.9))
    assert alone.attack.success_upper(ALPHA / 2) < found.attack.success_upper(ALPHA) <= 0.9
    assert found.trials == len(found.attack.rates) + len(found.attack.others["attack by client 2"])


def test_no_client_above_the_limit_and_none_that_the_budget_left_out_is_covered():
    high = {"attack by client 1": lambda number: 0.5, "attack by client 2": lambda number: 0.95}
    found = gather(attacked(lambda number: 0.5, high), question(0.9))
    assert found.attack.success_upper(ALPHA) > 0.9
    assert found.p_value == 1.0, "the pilot chose another client: this one refutes nothing"
    many = {f"attack by client {m}": lambda number: 0.5 for m in range(1, 30)}
    cut = gather(attacked(lambda number: 0.5, many), question(0.9, max_trials=40))
    assert cut.trials <= 40
    assert cut.attack.unmeasured
    assert cut.attack.success_upper(ALPHA) is None


def test_an_attack_that_the_claim_is_not_about_is_named():
    others = {"attack by client 1": lambda number: 0.5, "b": "knowing nothing finds 0.950 already"}
    found = gather(attacked(lambda number: 0.5, others), question(0.9))
    assert found.attack.excluded == {"b": "knowing nothing finds 0.950 already"}
    assert found.attack.success_upper(ALPHA) <= 0.9
    only = gather(attacked(lambda number: 0.5), question(0.9))
    half = only.attack.success_upper(ALPHA / 2)
    assert found.attack.success_upper(ALPHA) == half, "its share of the error is not spent again"


def test_a_refuted_claim_measures_no_other_attack():
    others = {"attack by client 1": lambda number: 1.0, "attack by client 2": lambda number: 0.5}
    found = gather(attacked(lambda number: 1.0, others), question(0.5))
    assert (found.attack.others, found.attack.unmeasured) == ({}, ("attack by client 2",))


@pytest.mark.parametrize("files", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_few_files_err_at_the_limit(files):
    """Success is 0.9 on average. At alpha 0.05 a false word has at most the 1 - 1e-4 quantile: 77 of 1,000 files."""
    rng = np.random.default_rng(36)
    most = binom.isf(1e-4, files, 0.05)
    refuted = held = 0
    for _ in range(files):
        rates = np.where(rng.random(MOST_TRAININGS) < 0.8, 1.0, 0.5)
        options = {"alpha": 0.05, "stop": 0.05, "max_trials": 60}
        subject = attacked(lambda number, rates=rates: rates[number])
        refuted += gather(subject, question(0.9, **options)).p_value <= 0.05
        held += gather(subject, question(0.9 - 1e-6, **options)).attack.success_upper(0.05) <= 0.9 - 1e-6
    assert refuted <= most
    assert held <= most
