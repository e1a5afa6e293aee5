"""The ledger: one error rate over all runs, verdicts kept where nothing changed, nothing lost."""

import pytest

from dpzv_audit.claims.ledger import Entry, Ledger, append_entry, ledger_lock, read_ledger, refuted_over_time
from dpzv_audit.errors import InputError


def test_levels_of_all_runs_sum_to_at_most_alpha():
    ledger = Ledger(0.01)
    for run in range(400):
        refuted, entry = refuted_over_time(ledger, [f"key{run}"], [1.0])
        assert refuted == (False,)
        ledger = Ledger(0.01, (*ledger.entries, entry))
    assert ledger.spent() < 0.01
    assert ledger.spent() == pytest.approx(0.01 * 400 / 401)


def test_unchanged_evidence_keeps_its_verdict_and_spends_nothing():
    first, entry = refuted_over_time(Ledger(0.01), ["a", "b"], [1e-9, 1.0])
    assert first == (True, False)
    ledger = Ledger(0.01, (entry,))
    # The p-value plays no further part, and the claim that is new is tested alone, at the second level.
    second, later = refuted_over_time(ledger, ["a", "b", "c"], [1.0, 1e-9, 0.0016])
    assert second == (True, False, True)
    assert later.refuted == {"c": True}
    assert refuted_over_time(ledger, ["a", "b"], [1.0, 1.0])[1].refuted == {}


def test_a_ledger_file_reads_back(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = read_ledger(path, 0.01)
    with ledger_lock(path):
        append_entry(
            path, ledger, Entry(0.005, {"a": True}, {"a": {"sequential test on runs": 0.3, "full test on runs": 0.6}})
        )
        ledger = read_ledger(path, 0.01)
        append_entry(path, ledger, Entry(ledger.next_level(), {"b": False}))
    again = read_ledger(path, 0.01)
    assert again.entries[0].split == {"a": {"sequential test on runs": 0.3, "full test on runs": 0.6}}
    assert again.entries[1].split == {}, "a ledger from before the split was written down"
    assert again.known() == {"a": True, "b": False}
    assert [entry.level for entry in again.entries] == pytest.approx([0.005, 0.01 / 6])
    with pytest.raises(InputError, match=r"alpha is 0\.02"):
        read_ledger(path, 0.02)


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "x"}', '{"schema": "dpzv-audit/ledger/1", "alpha": 1e-3}\n{}'])
def test_what_is_no_ledger_is_refused(tmp_path, text):
    path = tmp_path / "ledger.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="is no ledger"):
        read_ledger(path, 1e-3)


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_ledger(tmp_path, 1e-3)
