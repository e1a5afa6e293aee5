"""An interrupted table goes on where it stopped: finished parts are read back, a row goes on from its last epoch."""

import pytest

from dpzv_audit.reproduce import Setting, TableParts, reproduce

from ...helpers.refusals import refused


def test_a_part_is_computed_once_and_read_back_only_to_resume(tmp_path):
    calls = []

    def compute(checkpoints):
        calls.append(checkpoints)
        return {"value": len(calls)}

    kept = TableParts(tmp_path)
    assert kept.part({"a": 1}, compute) == kept.part({"a": 1}, compute) == {"value": 1}
    assert kept.part({"a": 2}, compute) == {"value": 2}
    assert TableParts(tmp_path, resume=True).part({"a": 1}, compute) == {"value": 1}
    assert TableParts(tmp_path).part({"a": 1}, compute) == {"value": 3}  # without --resume it starts anew
    assert TableParts(tmp_path, resume=True).part({"a": 1}, compute) == {"value": 3}
    assert len(calls) == 3


def test_parts_are_removed_when_the_table_is_done_and_others_stay(tmp_path):
    kept, other = TableParts(tmp_path / "parts"), TableParts(tmp_path / "parts")
    kept.part({"a": 1}, lambda _: {})
    other.part({"a": 2}, lambda _: {})
    kept.remove()
    assert len(list((tmp_path / "parts").iterdir())) == 1
    other.remove()
    assert not (tmp_path / "parts").exists()


def test_an_empty_part_is_not_computed_again(tmp_path):
    TableParts(tmp_path).part({"a": 1}, lambda _: {})
    TableParts(tmp_path, resume=True).part({"a": 1}, lambda _: pytest.fail("computed again"))


def test_a_damaged_part_is_one_line(tmp_path):
    TableParts(tmp_path).part({"a": 1}, lambda _: {"value": 1})
    (file,) = tmp_path.iterdir()
    file.write_text('{"value": ')
    with refused(r"is damaged: .*; remove it, or start without resume"):
        TableParts(tmp_path, resume=True).part({"a": 1}, lambda _: {})


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = TableParts()
    assert kept.part({"a": 1}, lambda checkpoints: {"none": checkpoints is None}) == {"none": True}
    kept.remove()
    assert list(tmp_path.iterdir()) == []


class Interrupting:
    """Progress that interrupts the stage of one row after so many epochs, and counts the epochs of every stage."""

    def __init__(self, label, epochs):
        self.label, self.epochs = label, epochs
        self.seen = {}

    def __call__(self, name, total):
        def done(count):
            self.seen[name] = self.seen.get(name, 0) + 1
            if name == self.label and self.seen[name] == self.epochs:
                raise KeyboardInterrupt

        return done


def test_an_interrupted_table_ends_as_an_uninterrupted_one(small_table, digits, tmp_path):
    whole = reproduce(small_table, Setting(load=digits, epochs=2, seeds=2))
    folder = tmp_path / "unfinished"
    with pytest.raises(KeyboardInterrupt):
        reproduce(
            small_table,
            Setting(load=digits, epochs=2, seeds=2, kept=TableParts(folder), stage=Interrupting("q = 10", 3)),
        )
    assert list(folder.glob("*.safetensors"))
    again = Interrupting("", 0)
    kept = TableParts(folder, resume=True)
    assert reproduce(small_table, Setting(load=digits, epochs=2, seeds=2, kept=kept, stage=again)) == whole
    assert "first order (VAFL)" not in again.seen  # a finished row does not train again
    assert again.seen["q = 10"] == 1  # the third of four epochs was saved before the interrupt
    kept.remove()
    assert not folder.exists()


def test_parts_of_other_seeds_are_other_parts(small_table, digits, tmp_path):
    folder = tmp_path / "unfinished"
    reproduce(small_table, Setting(load=digits, epochs=1, seeds=1, kept=TableParts(folder)))
    again = Interrupting("", 0)
    reproduce(
        small_table, Setting(load=digits, epochs=1, seeds=1, seed=1, kept=TableParts(folder, resume=True), stage=again)
    )
    assert again.seen["q = 10"] == 2
