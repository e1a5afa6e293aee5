"""What the server of a system of the user's own learns of features: by what was recorded, and a few known records."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks import attack_named
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from attacks.feature.inversion import SPEC
from attacks.feature.mount import BOTH, LABEL, RAW, UNTRAINED
from dpzv_audit.base.errors import InputError
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.choosing import possible, worst_client
from dpzv_audit.evidence.games import features_unread
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System

from ...helpers.refusals import refused

OTHERS = "from the other clients' embeddings and the label"
ATTRIBUTE, LINKAGE = map(attack_named, ("attribute_inference", "record_linkage"))


def numbers(records=240):
    """Two clients' independent numbers and labels that the first of each tells; client 1's second number is a coin."""
    generator = np.random.default_rng(3)

    def part(count):
        first, second = generator.standard_normal((2, count, 3)).astype(np.float32)
        first[:, 1] = generator.integers(2, size=count)
        return Records((first, second), (first[:, 0] + second[:, 0] > 0).astype(np.int64))

    return VerticalDataset("numbers", part(records), part(40), 2, "random blocks", {})


def system(upload, *, down=True, epochs=1, widths=(3,), least=40, uneven=(1, 2), senders=(1, 2)):
    """Return a system whose `senders` send `upload(block, ids)`; gradients, if any, drown in noise.

    Rows of those that are `uneven` have one width of `widths` after the other.
    """

    def training(task, record, seed):
        torch.manual_seed(seed)
        blocks, y = task.torch()
        batches = [ids for _ in range(epochs) for ids in torch.randperm(len(y)).split(least)]
        for number, ids in enumerate(batches):
            signs = 2.0 * y[ids, None] - 1.0
            for client in senders:
                rows = upload(blocks[client - 1], ids)
                rows = rows[:, : widths[number % len(widths)]] if client in uneven else rows
                record.sent(number, client, 0, "embeddings", rows, ids)
                if down:
                    record.sent(number, 0, client, "gradient", signs + 9.0 * torch.randn(len(ids), 3), ids)

    return System("own", training)


def raw(block, ids):
    return block[ids]


def constant(block, ids):
    return torch.ones(len(ids), 3)


def noise(block, ids):
    return torch.randn(len(ids), 3)


def setting(of, own=None, pilot=False):
    data = numbers()
    method, config = prepared(of, data, 0)
    return AttackSetting(
        method=method,
        config=config,
        dataset=data,
        adversary="server",
        trials=2,
        options={"target": 1, "permutations": 3, "known_records": 80, **(own or {})},
        with_positive=False,
        pilot=pilot,
    )


@pytest.mark.parametrize("down", [True, False])
def test_raw_rows_are_found_whether_or_not_anything_is_sent_down(down):
    outcome = SPEC.mount(setting(system(raw, down=down)))
    assert outcome.success.value > 0.98
    assert outcome.baselines[OTHERS].value < 0.75
    assert outcome.controls["other_records"].holds
    assert outcome.measures[RAW].value > 0.98
    assert UNTRAINED not in outcome.measures


@pytest.mark.parametrize("upload", [constant, noise])
def test_embeddings_that_owe_nothing_to_features_tell_nothing(upload):
    """Of 480 unknown numbers a correlation has a deviation of 0.05: four of them, and a p-value of 1e-4 at least."""
    outcome = SPEC.mount(setting(system(upload)))
    assert outcome.success.value < 0.2
    assert outcome.controls["other_records"].p_value > 1e-4


def test_batches_that_differ_in_size_are_read():
    """Of 240 records batches of 100 leave one of 40; ids of padding are no records."""
    assert SPEC.mount(setting(system(raw, epochs=2, least=100), pilot=True)).success.value > 0.98


@pytest.mark.parametrize(
    ("of", "own", "words"),
    [
        (system(raw, widths=(3, 2)), {}, "client 1 sends embeddings of 2 and 3 numbers"),
        (system(raw), {"knows_model": True}, "knows_model needs the client's model at each upload"),
    ],
)
def test_what_cannot_be_read_is_one_line(of, own, words):
    with refused(words, DoesNotApply):
        SPEC.mount(setting(of, own=own))


@pytest.mark.parametrize("down", [True, False])
def test_an_attribute_is_found_in_raw_rows_and_its_coins_certify_an_epsilon(down):
    """A coin is the only column of two values, so nobody has to name it; client 2 and the label know nothing of it."""
    outcome = ATTRIBUTE.mount(setting(system(raw, down=down)))
    assert outcome.metric == "AUC of column 2"
    assert outcome.success.value > 0.99
    assert outcome.baselines[BOTH].value < 0.75
    assert outcome.controls["other_records"].holds
    assert outcome.measures[RAW].value > 0.99
    assert UNTRAINED not in outcome.measures
    assert outcome.game.neighbours == "replace-record"
    assert outcome.game.on_one.min() > outcome.game.on_zero.max()


@pytest.mark.parametrize("down", [True, False])
def test_raw_rows_name_their_records(down):
    outcome = LINKAGE.mount(setting(system(raw, down=down)))
    assert outcome.success.value > 0.9
    assert outcome.baselines[BOTH].value < 0.15
    assert outcome.controls["other_records"].holds
    assert UNTRAINED not in outcome.measures


def test_noise_in_the_place_of_embeddings_tells_no_attribute_and_no_record():
    """An AUC of 120 unknown coins has a deviation of 0.053: four of them. Of 120 candidates each training links one."""
    of = setting(system(noise))
    attribute = ATTRIBUTE.mount(of)
    assert abs(attribute.success.value - 0.5) < 0.2
    assert attribute.controls["other_records"].p_value > 1e-4
    assert min(attribute.game.on_one.max(), attribute.game.on_zero.max()) > max(
        attribute.game.on_one.min(), attribute.game.on_zero.min()
    )
    linkage = LINKAGE.mount(of)
    assert linkage.success.value < 0.05
    assert linkage.controls["other_records"].p_value > 1e-4


@pytest.mark.parametrize("spec", [ATTRIBUTE, LINKAGE])
@pytest.mark.parametrize("of", [system(raw, senders=(1,)), system(raw, widths=(3, 2), uneven=(2,))])
def test_clients_whose_uploads_cannot_be_read_stand_not_beside(spec, of):
    outcome = spec.mount(setting(of, pilot=True))
    assert outcome.success.value > 0.9
    assert BOTH not in outcome.baselines
    assert LABEL in outcome.baselines


def test_the_client_whose_uploads_tell_most_is_attacked():
    """Client 1 sends noise and client 2 raw rows."""
    of = setting(system(lambda block, ids: block[ids] * (block[:, 1].unique().numel() > 2)))
    open_ = {key: value for key, value in of.options.items() if key != "target"}
    for spec in (SPEC, ATTRIBUTE, LINKAGE):
        worst, tried = worst_client(spec, replace(of, options=open_))
        assert [pilot.target for pilot in tried] == [1, 2]
        assert worst.options["target"] == 2
    assert len(possible(ATTRIBUTE, replace(of, options={"attribute": 2}))) == 1


def test_what_no_attack_on_features_reads_is_said():
    of = setting(system(raw, widths=(3, 2), uneven=(2,)))
    why = "client 2 sends embeddings of 2 and 3 numbers; let one kind of message have one width"
    assert features_unread(of, {1}) == (f"no attack on features applies: {why}",)
    assert features_unread(of, {2}) == ("features of client 1",)
    assert [alone.options["target"] for alone in possible(SPEC, replace(of, options={}))] == [1]


def test_clients_do_not_read_what_a_system_passes_on():
    of = replace(setting(system(raw)), adversary="colluding-clients", clients=(2,))
    for spec in (ATTRIBUTE, LINKAGE):
        with refused("embeddings that a system passes on to clients are not read", DoesNotApply):
            spec.mount(of)


def test_a_party_without_features_is_passed_over():
    """A cloud in the middle sends embeddings and holds nothing; of one that holds token ids a reason is given too."""
    of = setting(system(raw))
    train, test = (
        replace(part, features=(np.zeros((len(part), 0), np.float32), part.features[1]))
        for part in (of.dataset.train, of.dataset.test)
    )
    empty = replace(of, dataset=replace(of.dataset, train=train, test=test))
    for spec in (SPEC, ATTRIBUTE, LINKAGE):
        assert spec.needs.unmet(empty) == "client 1 holds no features"
        open_ = {key: value for key, value in empty.options.items() if key != "target"}
        assert [alone.options["target"] for alone in possible(spec, replace(empty, options=open_))] == [2]
    assert features_unread(empty, {2}) == ()
    tokens = tuple(replace(part, features=(part.labels[:, None], part.features[1])) for part in (train, test))
    held = replace(of, dataset=replace(of.dataset, train=tokens[0], test=tokens[1], vocabulary=2))
    assert "token ids" in ATTRIBUTE.needs.unmet(held)


def test_tables_are_read_and_so_are_uploads_of_many_numbers():
    """A rehearsal keeps four million numbers of embeddings: of the others widths are known too."""

    def table(task, record, seed):
        blocks, _ = task.torch()
        for client, block in enumerate(blocks, 1):
            record.sent(0, client, 0, "table", block)

    assert SPEC.mount(setting(System("own", table), pilot=True)).success.value > 0.98
    wide = system(lambda block, ids: torch.ones(len(ids), 1 << 13) * block[ids, :1], widths=(1 << 13,), epochs=2)
    method, _ = prepared(wide, numbers(), 0)
    assert method.capabilities.widths == {1: (1 << 13,), 2: (1 << 13,)}


def test_uploads_that_nothing_moves_are_refused():
    """Nothing is sent down, and neither labels nor features move what is sent up."""
    with refused("it ignores task.labels", InputError):
        prepared(system(constant, down=False), numbers(), 0)
