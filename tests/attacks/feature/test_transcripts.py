"""What the server learns of features in one recorded training: by its messages, and a few known records."""

import numpy as np
import pytest

from attacks import attack_named
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from attacks.feature.mount import RAW
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.evidence.choosing import possible
from dpzv_audit.evidence.games import FEATURES, features_unread
from dpzv_audit.evidence.training import attack_result
from dpzv_audit.systems import Recorder
from dpzv_audit.systems.features import ClientFeatures
from dpzv_audit.systems.recorded import labelled, method_of_transcript
from dpzv_audit.systems.transcript import load

from ...helpers.refusals import refused

SPECS = tuple(map(attack_named, ("feature_inversion", "attribute_inference", "record_linkage")))
RECORDS = 240


def setting(tmp_path, upload, featured=(1, 2), **own):
    """A recorded training whose two clients send `upload(block, ids, generator)` once, and nothing comes back."""
    generator = np.random.default_rng(5)
    blocks = generator.standard_normal((2, RECORDS, 3)).astype(np.float32)
    blocks[0, :, 1] = generator.integers(2, size=RECORDS)
    labels = (blocks[0, :, 0] + blocks[1, :, 0] > 0).astype(np.int64)
    record = Recorder(records=RECORDS, clients=2)
    for number, ids in enumerate(np.split(generator.permutation(RECORDS), 6)):
        for client, block in enumerate(blocks, 1):
            record.sent(number, client, 0, "embeddings", upload(block, ids, generator), ids)
    record.save(tmp_path / "run", classes=2)
    transcript = load(tmp_path / "run")
    np.save(tmp_path / "labels.npy", labels)
    features = {}
    for client in featured:
        np.save(tmp_path / f"{client}.npy", blocks[client - 1])
        features[client] = ClientFeatures.read(tmp_path / f"{client}.npy", RECORDS)
    method = method_of_transcript(transcript, features)
    return AttackSetting(
        method=method,
        config=method.configure(),
        dataset=labelled(transcript, labels, tmp_path / "labels.npy", features),
        adversary="server",
        trials=1,
        options={"permutations": 3, "known_records": 80, **own},
        with_positive=False,
    )


def rows(block, ids, generator):
    return block[ids] @ np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 1.0], [0.5, 0.0, 1.0]])


def noise(block, ids, generator):
    return generator.standard_normal((len(ids), 3))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_is_sent_up_is_found_and_what_is_not_is_not(tmp_path, spec):
    """A false alarm at 1e-4 in each test. The largest that chance gives is four deviations, 0.06 each."""
    outcome = spec.mount(setting(tmp_path / "told", rows, target=1))
    assert outcome.success.value > 0.95
    control = outcome.controls["permuted_records"]
    assert (control.kind, control.holds) == ("permutation", True)
    assert control.p_value <= 1e-4
    assert abs(control.value - outcome.chance) < 0.1
    assert control.low <= control.value <= control.high
    assert outcome.game is None
    assert "cannot be repeated" in outcome.no_game
    if spec.name != "record_linkage":
        assert outcome.measures[RAW].value > 0.99
    nothing = spec.mount(setting(tmp_path / "noise", noise, target=1))
    assert nothing.success.value < outcome.chance + 0.25
    assert nothing.controls["permuted_records"].p_value > 1e-4


def test_features_that_nobody_gave_are_named(tmp_path):
    of = setting(tmp_path, rows, featured=())
    words = "no attack looked at what the server learns about the features of client"
    assert features_unread(of, ()) == (f"{words}s 1, 2; --features M=FILE gives those of client M",)
    for spec in SPECS:
        with refused("a transcript holds no features of client 1; features 1=FILE gives them", DoesNotApply):
            spec.mount(possible(spec, of)[0])
    one = setting(tmp_path / "one", rows, featured=(2,))
    assert [alone.options["target"] for alone in possible(SPECS[0], one)] == [2]
    assert features_unread(one, (2,)) == (f"{words} 1; --features M=FILE gives those of client M",)
    silent = setting(tmp_path / "none", lambda block, ids, generator: np.ones((len(ids), 1)), featured=())
    assert features_unread(silent, ()) != (FEATURES,)


def test_all_clients_whose_features_are_given_are_attacked_at_one_error_rate(tmp_path):
    """Client 1's uploads hold a number that client 2's do not."""

    def upload(block, ids, generator):
        return block[ids] if len(np.unique(block[:, 1])) > 2 else noise(block, ids, generator)

    result = attack_result(SPECS[2], setting(tmp_path, upload), AuditPlan(runs=0))
    assert result.attack_setting["target"] == 2
    assert result.success.value > 0.9
    assert result.success.confidence == pytest.approx(0.975)
    assert "the server (on client 2 of 2) reaches" in result.sentence
