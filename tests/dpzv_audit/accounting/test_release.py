import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.accounting import Composition
from dpzv_audit.accounting.release import NEIGHBOURS, parts_of, relevant_parts

from ...helpers import releases
from ...helpers.places import toml_beside
from ...helpers.refusals import refused

release = partial(releases.release, batch_size=64, rounds=300, sampler="shuffled")

REFUSED = toml_beside(__file__, "releases.toml")["refused"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *REFUSED,
        ({"rounds": 10**400}, "use a whole number of at least 1, at most 1,000,000,000,000,000"),
        ({"sigma": None}, "sigma is None"),
        ({"sigma": 10**400}, "sigma is 1000"),
    ],
)
def test_impossible_input_names_the_field(changes, says):
    with refused(says):
        release(**changes)


def test_numpy_numbers_become_pythons():
    made = release(rounds=np.int64(300), batch_size=np.int32(64), sigma=np.float32(0.5), dataset_size=1000.0)
    assert made == release()
    assert [type(v) for v in (made.rounds, made.batch_size, made.sigma, made.dataset_size)] == [
        int,
        int,
        float,
        int,
    ]


def test_sensitivity_and_noise_multiplier():
    made = release()
    assert made.rate == 0.064
    assert {r: made.sensitivity(r) for r in NEIGHBOURS} == {
        "replace-label": 20.0 / 64,
        "replace-record": 20.0 / 64,
        "zero-out": 10.0 / 64,
        "add-remove": 10.0 / 64,
    }
    assert made.noise_multiplier("add-remove") == pytest.approx(3.2)
    one_sided = release(clip_rule="paper-one-sided")
    assert one_sided.sensitivity("zero-out") == math.inf
    assert one_sided.noise_multiplier("zero-out") == 0.0
    with refused("neighbours"):
        made.sensitivity("replace")


@given(
    dataset_size=st.integers(1, 60),
    batch=st.integers(1, 60),
    rounds=st.integers(1, 200),
    clients=st.integers(1, 8),
)
def test_passes_begun_is_the_largest_count_of_a_played_schedule(dataset_size, batch, rounds, clients):
    batch = min(batch, dataset_size)
    a_pass = dataset_size // batch
    made = release(dataset_size=dataset_size, batch_size=batch, rounds=rounds, clients=clients, participation_cap=None)
    # The unluckiest record is in the first batch of every client's every pass.
    counts = [0] * clients
    for t in range(rounds):
        counts[t % clients] += 1
    worst = sum(1 for count in counts for k in range(count) if k % a_pass == 0)
    assert made.passes_begun == worst
    assert made.fixed_participations == worst


def test_fixed_participations():
    assert release(participations=7).fixed_participations == 7
    assert release(participations=7, participation_cap=3).fixed_participations == 3
    assert release(sampler="poisson").fixed_participations is None
    assert release(sampler="poisson", batch_size=1000).fixed_participations == 300
    assert release(sampler="uniform", participation_cap=3).fixed_participations is None
    assert release(batch_size=128, dataset_size=60_000, rounds=46_900).fixed_participations == 101


def test_rows_of_their_own_have_the_clip_for_a_contribution():
    for channel in ("gradient", "embedding"):
        made = release(channel=channel)
        assert made.contribution == 10.0
        assert made.sensitivity("zero-out") == 10.0
        assert made.sensitivity("replace-record") == 20.0
        batch = release(channel=channel, clip_scope="batch")
        assert {batch.sensitivity(relation) for relation in NEIGHBOURS} == {20.0}


def test_one_participation_costs_all_its_messages():
    z = release().noise_multiplier("replace-label")
    assert release().participation_mu("replace-label") == pytest.approx(1 / z)
    assert release(directions=9).participation_mu("replace-label") == pytest.approx(3 / z)
    both = release(directions=9, server_noise_multiplier=4.0)
    assert both.participation_mu("replace-label") == pytest.approx(math.hypot(3 / z, 2 / 4.0))
    assert both.participation_mu("zero-out") == pytest.approx(math.hypot(1.5 / z, 1 / 4.0))
    assert release(clip_rule="paper-one-sided").participation_mu("zero-out") == math.inf
    certain = release(whole_data_rounds=4, server_mu=0.3)
    assert certain.certain_mu("replace-label") == pytest.approx(math.hypot(2 / z, 0.3))
    assert release().certain_mu("replace-label") == 0.0


def test_compositions_hold_releases_about_the_same_records():
    one, other = release(), release(channel="embedding")
    both = Composition((one, other))
    assert parts_of(both) == (one, other)
    assert parts_of(one) == (one,)
    assert relevant_parts(both, "server") == (other,)
    assert relevant_parts(both, "client") == (one,)
    assert relevant_parts(one, "server") == (one,)  # nothing else stands between: the gap is named there
    with refused("at least one"):
        Composition(())
    with refused("dataset_size is 1000 in one release and 2000"):
        Composition((one, release(dataset_size=2000)))


def test_the_largest_count_still_passes():
    assert release(rounds=10**15).rounds == 10**15
    with refused("at most 1,000,000,000,000,000"):
        release(rounds=10**15 + 1)


def test_a_public_rate_stands_in_the_place_of_the_number_of_records():
    made = release(sampler="poisson", dataset_size=None, sample_rate=0.25, batch_size=64)
    assert (made.rate, made.records) == (0.25, 256)
    both = release(sampler="poisson", dataset_size=100, sample_rate=0.25, batch_size=640)
    assert (both.rate, both.records) == (0.25, 100)
    assert release(sampler="poisson", sample_rate=1.0, rounds=7).fixed_participations == 7
    for changes, says in (
        ({"dataset_size": None}, "dataset_size is missing"),
        ({"sampler": "uniform", "sample_rate": 0.1}, "sample_rate is 0.1 with sampler 'uniform'; leave it out"),
        ({"sampler": "poisson", "sample_rate": 1.01}, "sample_rate is 1.01"),
        ({"sampler": "poisson", "sample_rate": 0.0}, "sample_rate is 0.0"),
        ({"sampler": "poisson", "sample_rate": True}, "sample_rate is True"),
        ({"sampler": "poisson", "sample_rate": float("nan")}, "sample_rate is nan"),
    ):
        with refused(says):
            release(**changes)
