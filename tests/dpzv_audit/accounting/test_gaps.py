from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

from dpzv_audit.accounting import GAPS, Composition, gaps_of, upper_bounds
from dpzv_audit.accounting.accountants import gdp_exact, prv, rdp, tightest_sound
from dpzv_audit.accounting.gaps import ADVERSARY_NAMES, NO_NUMBER, treatment
from dpzv_audit.accounting.release import CHANNELS, NEIGHBOURS, SAMPLERS
from dpzv_audit.base.findings import ADVERSARIES, SERVERS

from ...helpers import releases
from ...helpers.places import toml_beside
from ...helpers.refusals import refused
from ...helpers.releases import every_row, row

TABLE = {cell: treatment(*cell) for cell in product(ADVERSARY_NAMES, NEIGHBOURS, SAMPLERS)}

release = partial(releases.release, batch_size=64, rounds=300, sampler="shuffled")


def test_table_has_every_cell_with_a_reason():
    assert set(TABLE) == {(a, n, s) for a in ADVERSARIES for n in NEIGHBOURS for s in SAMPLERS}
    assert all(cell.reason for cell in TABLE.values())
    assert tuple(ADVERSARIES) == ADVERSARY_NAMES


def test_table_as_specified():
    for (adversary, relation, sampler), cell in TABLE.items():
        if adversary in SERVERS:
            assert cell.treatment == "no bound"
        elif relation == "add-remove":
            assert cell.treatment == "undefined"
            public = treatment(adversary, relation, sampler, public_rate=True)
            secret = adversary in ("eavesdropper", "release") and sampler == "poisson"
            assert public.treatment == ("secret-ids" if secret else "undefined")
        elif adversary in ("eavesdropper", "release"):
            assert cell.treatment == "secret-ids"
        else:
            assert cell.treatment == "known-ids"


def test_a_bound_against_who_lacks_one_label_is_that_against_a_client():
    """A client that knows the batches is held to know the other labels already: every participation counts for both."""
    for channel in CHANNELS:
        for relation in NEIGHBOURS:
            for sampler in SAMPLERS:
                one = treatment("all-but-one", relation, sampler, channel=channel)
                assert one == treatment("client", relation, sampler, channel=channel)
    made = release()
    ours, theirs = (every_row(made, adversaries=[a]) for a in ("all-but-one", "client"))
    assert [replace(b, adversary="client") for b in ours] == theirs


def test_public_ids_make_the_eavesdropper_a_client():
    for relation in NEIGHBOURS:
        for sampler in SAMPLERS:
            public = treatment("eavesdropper", relation, sampler, ids="public")
            assert public == treatment("client", relation, sampler)
            assert treatment("release", relation, sampler, ids="public") == TABLE["release", relation, sampler]


CASES = toml_beside(__file__, "gaps.toml")


@pytest.mark.parametrize(
    ("view", "changes", "gaps"), [(view, *case) for view, cases in CASES.items() for case in cases]
)
def test_gaps_of(view, changes, gaps):
    assert gaps_of(release(**changes), *view.split()) == tuple(gaps)
    assert set(gaps) <= set(GAPS)


def test_a_composition_rests_on_the_gaps_of_all_it_shows():
    both = Composition((release(batch_coupling=True), release(server_update="sgd")))
    assert gaps_of(both, "client", "replace-label") == ("batch-coupling", "server-state")
    protected = Composition((release(server_update="sgd"), release(channel="embedding")))
    assert gaps_of(protected, "server", "replace-record") == ()
    assert gaps_of(protected, "client", "replace-label") == ("server-state",)
    # the scalars that move a joint-zo server are accounted for beside its gradients
    assert gaps_of(Composition((release(), release(channel="gradient"))), "client", "replace-label") == ()


def test_every_gap_occurs():
    """Each name in `GAPS` is the answer to some release, or an accountant's own."""
    own = {"known-ids", "clt", "no-accountant"}
    made = [
        release(server_update="sgd", clip_rule="paper-one-sided", batch_coupling=True, data_dependent_side=True),
        release(
            own_rounds_only=True,
            client_update="first-order",
            sampler="poisson",
            sample_rate=0.1,
            seeded_noise=True,
            noise="float",
            secret_batches=True,
            seeded_batches=True,
        ),
        release(channel="zo-gradient"),
    ]
    found = {g for m in made for a in ADVERSARY_NAMES for n in NEIGHBOURS for g in gaps_of(m, a, n)}
    assert found | own | {"other-trials"} == set(GAPS)  # a search's, which is no release's


def test_every_gap_is_explained_in_one_sentence():
    assert set(GAPS) >= NO_NUMBER
    for text in GAPS.values():
        assert 20 < len(text) < 250
        assert ". " not in text


def test_unknown_names():
    for names in [
        ("clint", "zero-out", "poisson"),
        ("client", "zero", "poisson"),
        ("client", "zero-out", "x"),
    ]:
        with refused("use one of"):
            treatment(*names)


def delta_where_lengths_are_seen(epsilon, *, batch, records, rounds, noise):
    """delta(epsilon) of one label, all others at +C, where each round shows how many records its batch has.

    In units of C/B: given b of D records, the sum without noise is b, but b - 2 where the record, if at -C, is among
    them (probability b/D). The loss of b and the noise of a round on a grid, then composed.
    """
    step, most = 0.01, 2000
    x = np.linspace(-14.0 * noise - 2.0, 14.0 * noise, 2001)
    law = np.zeros(2 * most + 1)
    for size, chance in enumerate(binom.pmf(np.arange(records + 1), records, batch / records)):
        rate = size / records
        density = (1.0 - rate) * norm.pdf(x, 0.0, noise) + rate * norm.pdf(x, -2.0, noise)
        loss = np.log((1.0 - rate) + rate * np.exp((-2.0 * x - 2.0) / noise**2))
        # Rounded down: the delta found is too low, never too high.
        np.add.at(law, np.floor(loss / step).astype(int) + most, chance * density * (x[1] - x[0]))
    total = law
    for _ in range(rounds - 1):
        total = fftconvolve(total, law)
    losses = step * (np.arange(len(total)) - most * rounds)
    return float(np.sum(np.maximum(total, 0.0) * np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - losses)))))


def test_lengths_that_are_seen_break_the_amplified_bound():
    """The refutation is by quadrature of the very game; the bound for known ids, which lengths follow from, holds."""
    made = release(batch_size=8, dataset_size=40, rounds=20, clip=1.0, sigma=2.0 / 8, sampler="poisson")
    ask = ("eavesdropper", "replace-label", 1e-3)
    amplified, known = prv(made, *ask), gdp_exact(made, *ask)
    game = {"batch": 8, "records": 40, "rounds": 20, "noise": 2.0}
    assert delta_where_lengths_are_seen(amplified.epsilon.upper, **game) > 1.2e-3
    assert delta_where_lengths_are_seen(known.epsilon.upper, **game) < 1e-3
    assert (amplified.sound, amplified.gap) == (False, "batch-size")
    assert known.sound
    assert rdp(made, *ask).epsilon.upper > known.epsilon.upper
    assert prv(replace(made, padded=True), *ask).sound
    assert prv(made, "release", "replace-label", 1e-3).sound


@pytest.mark.parametrize(
    ("sampler", "relation"),
    [(s, r) for s in ("poisson", "uniform") for r in NEIGHBOURS if s == "poisson" or r.startswith("replace")],
)
def test_an_amplified_bound_is_not_sound_where_hidden_batches_reach_further(sampler, relation):
    """The number stays beside the gap; what sampling with known ids costs is sound as before, where there is such."""
    rate = {"sample_rate": 0.064} if relation == "add-remove" else {}
    clean = release(sampler=sampler, rounds=50, padded=True, **rate)
    reached = replace(clean, secret_batches=True)
    ask = {"delta": 1e-5, "adversaries": ["release", "eavesdropper"], "neighbours": [relation]}
    before, after = (upper_bounds(made, **ask) for made in (clean, reached))
    for old, new in zip(before, after, strict=True):
        if new.accountant == "prv":
            assert (old.sound, new.sound, new.gap) == (True, False, "secret-batches")
            assert new.epsilon == old.epsilon
        elif new.accountant in ("gdp-exact", "rdp", "advanced-composition") and relation != "add-remove":
            known = replace(clean, ids="public")
            at_known = upper_bounds(known, **{**ask, "adversaries": ["client"]}, accountants=[new.accountant])
            assert new.sound
            assert new.epsilon == at_known[0].epsilon
        else:
            assert not new.sound
    # Where every record is in every batch nothing is hidden.
    whole = release(sampler=sampler, rounds=50, batch_size=1000, secret_batches=True)
    if relation != "add-remove":
        assert prv(whole, "release", relation, 1e-5).sound == (sampler == "poisson" or relation.startswith("replace"))


@pytest.mark.parametrize("relation", ["replace-label", "replace-record", "zero-out", "add-remove"])
def test_no_amplified_bound_is_sound_for_who_sees_lengths(relation):
    for adversary, padded, sound in (
        ("eavesdropper", False, False),
        ("eavesdropper", True, True),
        ("release", False, True),
    ):
        made = release(
            batch_size=8, sample_rate=8 / 400, rounds=20, clip=1.0, sigma=0.3, sampler="poisson", padded=padded
        )
        found = prv(made, adversary, relation, 1e-5)
        assert found.sound == sound
        assert found.gap == (None if sound else "batch-size")
        best = tightest_sound(row(made, adversary, relation))
        assert (best is not None and best.accountant == "prv") == sound
