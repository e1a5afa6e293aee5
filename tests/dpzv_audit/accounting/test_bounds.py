"""What amplification by sampling is given: which rounds hide, and what counts in full."""

import math
from functools import partial

import pytest

from dpzv_audit.accounting.bounds import AccountantQuery, Refusal, fixed_participations
from dpzv_audit.accounting.release import Composition

from ...helpers import releases

release = partial(releases.release, batch_size=20, rounds=300, clip=2.0, sigma=0.3, server_update="frozen")


def sampled_view(release, adversary, neighbours):
    return AccountantQuery(release, adversary, neighbours, 1e-5).sampled


@pytest.mark.parametrize("count", [1, 4, 9])
def test_what_is_not_sampled_counts_in_full(count):
    # c = C/B = 0.1: z = 3 where a record comes or goes, 1.5 where it is replaced.
    shuffled = release(sampler="shuffled", participations=count)
    for parts in ((release(), shuffled), (shuffled, release())):
        for relation, z, kinds in (("zero-out", 3.0, ("remove", "add")), ("replace-record", 1.5, ("replace",))):
            view = sampled_view(Composition(parts), "release", relation)
            assert math.hypot(*view.certain) == pytest.approx(math.sqrt(count) / z, rel=1e-14)
            assert tuple(view.directions) == kinds
            # The noise of what is sampled is against ONE contribution, also where the record has two.
            for kind, rounds in view.directions.items():
                assert [(pair.kind, pair.rate, rounds) for pair, rounds in rounds] == [(kind, 0.02, 300)]
                assert rounds[0].pair.noise == pytest.approx(3.0, rel=1e-14)


def test_what_happens_whatever_the_batches_counts_in_every_part():
    parts = Composition((release(server_mu=0.3), release(whole_data_rounds=16)))
    view = sampled_view(parts, "release", "zero-out")
    assert math.hypot(*view.certain) == pytest.approx(math.hypot(0.3, 4.0 / 3.0), rel=1e-14)
    assert len(view.rounds) == 2


def test_what_no_sampling_amplifies_is_refused():
    assert isinstance(sampled_view(release(sampler="uniform", batch_size=1000), "release", "zero-out"), Refusal)
    for changes, words in (
        ({"sampler": "uniform"}, "uniform sampler"),
        ({"participation_cap": 299}, "participation cap"),
        ({"clip_rule": "paper-one-sided"}, "finite sensitivity"),
    ):
        refused = sampled_view(Composition((release(), release(**changes))), "release", "zero-out")
        assert isinstance(refused, Refusal)
        assert words in refused.reason
    assert "malicious" in sampled_view(release(), "malicious-client", "zero-out").reason
    # A cap that nothing can reach changes nothing.
    assert sampled_view(release(participation_cap=300), "release", "zero-out").rounds[0].rounds == 300


def test_a_malicious_client_takes_part_as_often_as_the_cap_allows():
    capped = release(sampler="shuffled", participations=5, participation_cap=40)
    assert fixed_participations(capped, "malicious-client") == 40
    assert fixed_participations(capped, "client") == 5
    assert fixed_participations(release(participation_cap=400), "malicious-client") == 300
    assert fixed_participations(release(), "malicious-client") is None
    asked = AccountantQuery(capped, "malicious-client", "replace-record", 1e-5)
    (counted,) = asked.counted
    assert (counted.fixed, counted.rounds, counted.rate, counted.cap) == (40, 300, 0.02, 40)
    assert counted.mu == pytest.approx(1.0 / 1.5, rel=1e-14)
    assert asked.certain == (0.0,)
