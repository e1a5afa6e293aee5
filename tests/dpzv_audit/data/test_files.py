"""How much memory there is, as the system says it, or where it says nothing; and what a folder of a model holds."""

import pytest

from dpzv_audit.data import files


def test_memory_is_what_the_kernel_says(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       100 kB\nMemFree:        10 kB\nMemAvailable:   40 kB\n")
    assert files._kernel_available(path) == 40 * 1024


@pytest.mark.parametrize("text", ["", "MemAvailable:\n", "MemAvailable: much kB\n", "\xff"])
def test_a_kernel_that_does_not_say(tmp_path, text):
    path = tmp_path / "meminfo"
    path.write_text(text, encoding="latin-1")
    assert files._kernel_available(path) is None
    assert files._kernel_available(tmp_path / "absent") is None


@pytest.mark.parametrize(("most", "left"), [("1000\n", 400), ("500\n", 0), ("max\n", None)])
def test_memory_is_what_a_control_group_leaves(tmp_path, most, left):
    (tmp_path / "memory.max").write_text(most)
    (tmp_path / "memory.current").write_text("600\n")
    assert files._group_available(tmp_path) == left
    (tmp_path / "memory.stat").write_text("anon 300\nfile 290\ninactive_file 100\nactive_file 50\nslab 10\n")
    assert files._group_available(tmp_path) == (None if left is None else int(most) - 600 + 150)
    (tmp_path / "memory.stat").write_text("inactive_file\n")
    assert files._group_available(tmp_path) == left


@pytest.mark.parametrize(
    ("kernel", "group", "found"), [(5, None, 5), (None, 3, 3), (5, 3, 3), (3, 5, 3), (None, None, None)]
)
def test_the_least_counts(monkeypatch, kernel, group, found):
    monkeypatch.setattr(files, "_kernel_available", lambda _: kernel)
    monkeypatch.setattr(files, "_group_available", lambda _: group)
    assert files.memory_available() == found


def test_a_model_is_known_by_what_its_folder_holds(tmp_path):
    assert files.model_digest(None) is None
    assert files.model_digest("hub/name") == "hub/name"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = files.model_digest(str(tmp_path))
    assert files.model_digest(str(tmp_path)) == before
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert files.model_digest(str(tmp_path)) != before


@pytest.mark.parametrize(("free", "of"), [(8_000_000_000, ", of 8.0 GB that are free"), (None, "")])
def test_much_memory_is_said_once_before_it_is_taken(monkeypatch, caplog, free, of):
    monkeypatch.setattr(files, "memory_available", lambda: free)
    files.check_memory(files.MUCH_MEMORY, "a gigabyte")
    for trainings in (64, 64, 8):
        files.check_memory(25_000_000 * trainings, f"models of {trainings} trainings, free {free}")
    assert caplog.messages == [f"models of 64 trainings, free {free}: 1.6 GB of memory{of}"]
