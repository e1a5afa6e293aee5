"""The ledger: one error rate over all runs, refutations that stay, a file of which nothing is lost unnoticed."""

import errno
import json
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import zeta

from dpzv_audit.base.errors import AuditError
from dpzv_audit.claims.ledger import (
    EXPONENT,
    LARGEST_DECISION,
    SUM_OF_POWERS,
    Decision,
    Entry,
    Ledger,
    LedgerMemory,
    Refutation,
    append_entry,
    check_room,
    ledger_lock,
    level_of,
    open_ledger,
    refuted_over_time,
)
from dpzv_audit.evidence.gathering import Success, scores_digest
from dpzv_audit.games.scores import GameScores, GaussianGiven

from ...helpers.refusals import refused


def look(claim, p_value=1.0, scores="", *, general_p_value=None, tested=True, split=None):
    evidence = SimpleNamespace(
        scores=scores or f"scores of {claim}",
        p_value=p_value,
        general_p_value=p_value if general_p_value is None else general_p_value,
        tested=tested,
        split=split or {},
    )
    return SimpleNamespace(name=f"the claim {claim}", digest=lambda: claim), evidence


def enter(path, book, *looks, memory=None):
    """The ledger with one entry more, that of some looks."""
    return append_entry(path, book, refuted_over_time(book, looks)[2], memory or LedgerMemory())


def test_levels_of_all_runs_sum_to_at_most_alpha():
    ledger = Ledger(0.01)
    for run in range(400):
        refuted, _, entry = refuted_over_time(ledger, [look(f"key{run}", 1.0)])
        assert refuted == (False,)
        ledger = Ledger(0.01, (*ledger.entries, entry))
    # What is left for all further runs lies between the integrals of 1 / k^1.4 around it.
    rest = [0.01 * k ** (1 - EXPONENT) / (EXPONENT - 1) / SUM_OF_POWERS for k in (401, 400)]
    assert rest[0] < 0.01 - sum(entry.level for entry in ledger.entries) < rest[1]
    assert zeta(EXPONENT) <= SUM_OF_POWERS < zeta(EXPONENT) * (1 + 1e-7)


@pytest.mark.parametrize(("run", "times"), [(100, 5.0), (1000, 20.0)])
def test_late_looks_keep_more_than_they_did(run, times):
    assert level_of(run, 1e-3) > times * 1e-3 / (run * (run + 1))


def test_the_same_scores_decide_nothing_anew_and_spend_nothing():
    first, _, entry = refuted_over_time(Ledger(0.01), [look("a", 1e-9), look("b")])
    assert first == (True, False)
    ledger = Ledger(0.01, (entry,))
    # A new claim is tested alone, at the second level; the p-value of known scores plays no further part.
    second, earlier, later = refuted_over_time(ledger, [look("a"), look("b", 1e-9), look("c", 0.0012)])
    assert (second, earlier) == ((True, False, True), (ledger.refuted()["a"], None, None))
    assert set(later.decisions) == {"c"}
    assert refuted_over_time(ledger, [look("a"), look("b")])[2].decisions == {}


def test_other_scores_of_a_claim_are_another_look_and_a_refutation_stays():
    ledger = Ledger(0.01)
    seen = []
    for scores, p_value in (("first", 1.0), ("second", 1e-9), ("third", 1.0), ("first", 1.0), ("second", 1.0)):
        refuted, earlier, entry = refuted_over_time(ledger, [look("a", p_value, scores)])
        seen.append((refuted[0], earlier[0] and earlier[0].entry, len(entry.decisions)))
        if entry.decisions:
            ledger = Ledger(0.01, (*ledger.entries, entry))
    assert seen == [(False, None, 1), (True, None, 1), (True, 2, 0), (True, 2, 0), (True, 2, 0)]


@pytest.mark.parametrize(("general", "given"), [(None, ""), (1e-9, ""), (0.5, "given Gaussian noise")])
def test_a_refutation_keeps_what_it_takes_as_given(tmp_path, general, given):
    path = tmp_path / "ledger.jsonl"
    enter(path, Ledger(0.01, name="n"), look("a", 1e-9, general_p_value=general), look("b"))
    book = open_ledger(path, 0.01)
    assert (book.refuted()["a"].p_value, book.refuted()["a"].given) == (1e-9, given)
    _, earlier, _ = refuted_over_time(book, [look("a", 1.0, "others")])
    assert earlier == (book.refuted()["a"],)


def test_a_ledger_that_kept_no_p_values_is_read_and_gone_on_with(tmp_path):
    path = tmp_path / "ledger.jsonl"
    old = Entry(level_of(1, 0.01), {"a": Decision(scores="s", refuted=True, name="the claim a", split={})})
    append_entry(path, Ledger(0.01, name="n"), old)
    assert not {"p_value", "given"} & set(json.loads(path.read_text().splitlines()[1])["decisions"]["a"])
    book = open_ledger(path, 0.01)
    refuted, (by,), _ = refuted_over_time(book, [look("a")])
    assert (refuted, by.entry, by.scores, by.p_value, by.given) == ((True,), 1, "s", None, None)
    enter(path, book, look("b", 1e-9))
    assert [by.p_value for by in open_ledger(path, 0.01).refuted().values()] == [1e-9, None]


@pytest.mark.parametrize("p_value", [2.0, True, "1e-9", float("nan")])
def test_what_is_no_p_value_is_refused(kept, p_value):
    path, _ = kept
    path.write_text(edited(path.read_text(), lambda rows: rows[2]["decisions"]["b"].update(p_value=p_value)))
    with refused("is no ledger"):
        open_ledger(path, 0.01)


def test_what_has_no_scores_is_not_charged():
    refuted, _, entry = refuted_over_time(Ledger(0.01), [look("a", 1.0, tested=False), look("b", 0.003)])
    assert (refuted, set(entry.decisions)) == ((False, True), {"b"})


def test_digests_of_scores_tell_every_score_and_its_place():
    scores = np.arange(4.0)
    pools = {"runs": [GameScores(scores, scores)]}
    others = [
        {"runs": [GameScores(scores, scores[::-1])]},
        {"runs": [GameScores(scores[:3], scores)]},
        {"runs": [GameScores(scores, scores), GameScores(scores, scores)]},
        {"other": [GameScores(scores, scores)]},
        {"runs": [GameScores(scores, scores, given=GaussianGiven())]},
        {"runs": [Success(rates=(0.5,), baselines={}, controls={})]},
        {},
    ]
    assert len({scores_digest(found) for found in (pools, *others)}) == 1 + len(others)


SPLIT = {"sequential test on runs": 0.3, "full test on runs": 0.6}


@pytest.fixture
def kept(tmp_path):
    """A ledger of three entries at ledger.jsonl, and the memory of it."""
    path, memory = tmp_path / "ledger.jsonl", LedgerMemory(tmp_path / "cache")
    for claim, p_value in (("a", 1.0), ("b", 1e-9), ("c", 1.0)):
        with ledger_lock(path):
            enter(path, open_ledger(path, 0.01, memory), look(claim, p_value, split=SPLIT), memory=memory)
    return path, memory


def test_a_ledger_file_reads_back(kept):
    path, memory = kept
    book = open_ledger(path, 0.01, memory)
    assert [set(entry.decisions) for entry in book.entries] == [{"a"}, {"b"}, {"c"}]
    assert [entry.level for entry in book.entries] == [level_of(k, 0.01) for k in (1, 2, 3)]
    (refutation,) = book.refuted().values()
    assert refutation == Refutation(entry=2, level=level_of(2, 0.01), scores="scores of b", p_value=1e-9, given="")
    assert set(book.refuted()) == {"b"}
    assert [book.decided_in(claim, look(claim)[1], None) for claim in "abcd"] == [1, 2, 3, None]
    assert book.entries[1].decisions["b"].split == SPLIT
    assert "the claim b" in path.read_text(), "people can read it"
    with refused(r"alpha is 0\.02"):
        open_ledger(path, 0.02, memory)


def edited(text, change):
    rows = [json.loads(line) for line in text.splitlines()]
    change(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


def by_rows(change):
    return lambda text: edited(text, change)


LOST = {
    "emptied": (lambda text: "", "is empty, which no ledger ever is"),
    "blank": (lambda text: " \n\n", "is empty, which no ledger ever is"),
    "its last line cut": (lambda text: "".join(text.splitlines(True)[:-1]), "holds 2 entries, but was left with 3"),
    "a line within cut": (by_rows(lambda rows: rows.pop(2)), "holds 2 entries, but was left with 3"),
    "its head alone left": (lambda text: text.splitlines(True)[0], "holds 0 entries, but was left with 3"),
    "reordered": (
        by_rows(lambda rows: rows.insert(1, rows.pop(2))),
        "was edited or reordered: line 2 does not follow from those above it",
    ),
    "a refutation taken back": (
        by_rows(lambda rows: rows[2]["decisions"]["b"].update(refuted=False)),
        "was edited or reordered: line 4 does not follow from those above it",
    ),
    "the last decision edited": (
        by_rows(lambda rows: rows[3]["decisions"]["c"].update(scores="x")),
        "was edited: its last line is not the one that it was left with",
    ),
    "a level edited": (by_rows(lambda rows: rows[1].update(level=1e-9)), "line 3 does not follow"),
    "its error rate edited": (by_rows(lambda rows: rows[0].update(alpha=0.01001)), "line 2 does not"),
    "shortened with its count": (
        by_rows(lambda rows: (rows.pop(), rows[0].update(entries=2))),
        "was edited: its last line is not",
    ),
    "its schema left out": (by_rows(lambda rows: rows[0].pop("schema")), "is no ledger"),
    "a line of text": (lambda text: text + "x\n", "is no ledger"),
    "another version": (
        lambda text: '{"schema": "dpzv-audit/ledger/1", "alpha": 0.01}\n{"level": 0.005, "refuted": {"k": true}}\n',
        "was written by an earlier version, which did not say which claims it refuted; move it away and give new_led",
    ),
}


@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize("remembered", [True, False])
def test_what_was_lost_or_edited_is_refused_whatever_the_cache_knows(kept, what, remembered):
    path, memory = kept
    change, says = LOST[what]
    path.write_text(change(path.read_text()))
    with refused(says) as caught:
        open_ledger(path, 0.01001 if "error rate" in what else 0.01, memory if remembered else LedgerMemory())
    assert str(caught.value).startswith(f"ledger {path}: ")
    assert any(cure in str(caught.value) for cure in ("put back", "new_ledger", "use a file that ledger wrote"))


def test_a_ledger_put_back_to_an_earlier_state_is_refused_by_the_memory(kept, tmp_path):
    path, memory = kept
    shutil.copy(path, tmp_path / "older")
    with ledger_lock(path):
        book = open_ledger(path, 0.01, memory)
        enter(path, book, look("d"), memory=memory)
    shutil.copy(path, tmp_path / "newer")
    shutil.copy(tmp_path / "older", path)
    with refused("holds 3 entries, but held 4 when it was last used; put back the file"):
        open_ledger(path, 0.01, memory)
    assert open_ledger(path, 0.01).entries, "which nothing but the memory can tell"
    moved = tmp_path / "moved.jsonl"
    shutil.copy(path, moved)
    with refused("but held 4"):
        open_ledger(moved, 0.01, memory)
    # The same number of entries, others: as after a merge of two branches.
    for p_value in (0.5, 0.6):
        shutil.copy(tmp_path / "older", path)
        book = open_ledger(path, 0.01)
        for claim in ("e", "f"):
            book = enter(path, book, look(claim, p_value))
        with refused("another history of the ledger"):
            open_ledger(path, 0.01, memory)
    shutil.copy(tmp_path / "newer", path)
    assert len(open_ledger(path, 0.01, memory).entries) == 4


def test_a_ledger_that_is_gone_is_begun_anew_by_hand_alone(kept, tmp_path):
    path, memory = kept
    first = open_ledger(path, 0.01, memory).name
    path.rename(tmp_path / "away")
    with refused("is gone, but held 3 entries when it was last used: put it back, or"):
        open_ledger(path, 0.01, memory)
    book = open_ledger(path, 0.01, memory, new=True)
    assert (book.entries, book.name != first) == ((), True)
    enter(path, book, look("a"), memory=memory)
    assert len(open_ledger(path, 0.01, memory).entries) == 1
    # The old one in place of the new one is as wrong.
    (tmp_path / "away").replace(path)
    with refused("is not the ledger of 1 entry that was last used here"):
        open_ledger(path, 0.01, memory)
    assert open_ledger(path, 0.01, memory, new=True).name == first


def test_a_memory_that_keeps_nothing_is_asked_all_the_same(kept, tmp_path):
    path, _ = kept
    asked = LedgerMemory(tmp_path / "cache", keeps=False)
    before = sorted((file, file.read_bytes()) for file in (tmp_path / "cache").rglob("*.json"))
    book = open_ledger(path, 0.01, asked)
    enter(path, book, look("d"), memory=asked)
    assert sorted((file, file.read_bytes()) for file in (tmp_path / "cache").rglob("*.json")) == before
    path.unlink()
    with refused("is gone"):
        open_ledger(path, 0.01, asked)


def test_a_lock_keeps_others_out_until_it_is_let_go(tmp_path):
    """Two runs that read the ledger at once would both spend the same level: the second waits."""
    path, memory = tmp_path / "ledger.jsonl", LedgerMemory(tmp_path / "cache")
    inside, done = threading.Event(), []

    def entered(claim, wait):
        with ledger_lock(path):
            book = open_ledger(path, 0.01, memory)
            inside.set()
            time.sleep(wait)
            enter(path, book, look(claim), memory=memory)
            done.append(claim)

    first = threading.Thread(target=entered, args=("slow", 0.5))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=entered, args=("quick", 0.0))
    second.start()
    for thread in (first, second):
        thread.join(30)
    assert done == ["slow", "quick"]
    assert [set(entry.decisions) for entry in open_ledger(path, 0.01, memory).entries] == [{"slow"}, {"quick"}]


def test_an_entry_is_on_the_disk_before_anybody_hears_of_it(kept, monkeypatch):
    path, memory = kept
    held = []
    monkeypatch.setattr(
        "dpzv_audit.base.store.os.fsync", lambda handle: held.append(path.exists() and path.read_bytes())
    )
    book = open_ledger(path, 0.01, memory)
    before = path.read_bytes()
    enter(path, book, look("d"))
    after = path.read_bytes()
    start = len(before.splitlines(keepends=True)[0])
    assert held == [before[:start] + after[start:], after], "the entry first, and then the first line"
    path.unlink()
    held.clear()
    enter(path, Ledger(0.01, name="n"), look("d"))
    assert held == [False, path.read_bytes()], "the file, and the folder that names it"


def test_what_a_kill_left_of_a_first_entry_is_removed_by_the_next(tmp_path):
    path = tmp_path / "ledger[1].jsonl"
    (tmp_path / ".ledger[1].jsonl.0123abcd.partial").write_text("{")
    (tmp_path / ".ledger.jsonl.0123abcd.partial").write_text("another's")
    enter(path, Ledger(0.01, name="n"), look("a"))
    assert {file.name for file in tmp_path.iterdir()} == {path.name, ".ledger.jsonl.0123abcd.partial"}


def test_a_ledger_grows_by_appending(kept, monkeypatch):
    path, memory = kept
    monkeypatch.setattr("dpzv_audit.claims.ledger.write_atomically", None)  # writes a file as a whole
    for claim in "defghijk":
        before, file = path.read_bytes(), path.stat().st_ino
        book = open_ledger(path, 0.01, memory)
        longer = enter(path, book, look(claim), memory=memory)
        after = path.read_bytes()
        start = before.index(b"\n") + 1
        assert (after[start : len(before)], path.stat().st_ino) == (before[start:], file)
        assert longer == open_ledger(path, 0.01, memory)
    assert len(longer.entries) == 11


def test_a_kill_at_any_byte_of_an_append_leaves_the_ledger_before_it_or_after_it(kept):
    path, memory = kept
    book = open_ledger(path, 0.01, memory)
    before = path.read_bytes()
    enter(path, book, look("d"))
    after = path.read_bytes()
    start = after.index(b"\n") + 1
    for end in range(len(before), len(after) + 1):
        path.write_bytes(before[:start] + after[start:end])
        book = open_ledger(path, 0.01, memory)
        assert len(book.entries) == 3 + (end == len(after)), "what has its end was decided"
        enter(path, book, look("e"))
        found = open_ledger(path, 0.01, memory)
        assert [set(entry.decisions) for entry in found.entries[3:]] == [{"d"}, {"e"}][end < len(after) :]
        assert json.loads(path.read_text().splitlines()[0])["entries"] == len(found.entries)


@pytest.mark.parametrize("change", [lambda text: re.sub(rb" +\n", b"\n", text, count=1), lambda text: text[:-1]])
def test_a_file_that_cannot_grow_is_written_anew_once(kept, monkeypatch, change):
    """As earlier versions wrote it, with a narrow first line, and one that lost its last line end."""
    path, memory = kept
    path.write_bytes(change(path.read_bytes()))
    for claim in "de":
        book = open_ledger(path, 0.01, memory)
        enter(path, book, look(claim))
        monkeypatch.setattr("dpzv_audit.claims.ledger.write_atomically", None)
    assert [set(entry.decisions) for entry in open_ledger(path, 0.01, memory).entries] == [{c} for c in "abcde"]


def test_a_full_ledger_says_so_and_stays_as_it_is(kept, monkeypatch):
    path, memory = kept
    book = open_ledger(path, 0.01, memory)
    before = path.read_bytes()
    monkeypatch.setattr("dpzv_audit.claims.ledger.LARGEST_LEDGER", len(before) + 6000)
    check_room(path, book, 1)
    with refused("move it away and give new_ledger") as caught:
        check_room(path, book, 2)
    full = f"is full: 3 entries fill {len(before):,} of {len(before) + 6000:,} bytes"
    assert str(caught.value).startswith(f"ledger {path}: {full}")
    with refused("is full"):
        enter(path, book, look("d"), look("e"))
    assert path.read_bytes() == before
    monkeypatch.setattr("dpzv_audit.claims.ledger.LARGEST_LEDGER", len(before) - 1)
    with refused(r"is larger than .* bytes, which no ledger is; move it away and give new_ledger"):
        open_ledger(path, 0.01, memory)


def test_the_largest_decision_has_room(kept):
    path, memory = kept
    book = open_ledger(path, 0.01, memory)
    claim = SimpleNamespace(name="\U0001f600" * 200, digest=lambda: "f" * 64)
    split = {f"sequential test on {'simulated transcripts' * 2} {n}": 1 / 3 for n in range(6)}
    evidence = look("c", 2.2250738585072014e-308, "f" * 64, general_p_value=0.5, split=split)[1]
    size = path.stat().st_size
    append_entry(path, book, refuted_over_time(book, [(claim, evidence)], "f" * 64)[2])
    assert path.stat().st_size - size < LARGEST_DECISION


def test_a_disk_that_refuses_leaves_the_ledger_as_it_was(kept, monkeypatch):
    path, memory = kept
    before = path.read_bytes()
    book = open_ledger(path, 0.01, memory)
    entry = refuted_over_time(book, [look("d")])[2]

    def refuses(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dpzv_audit.claims.ledger.os.fsync", refuses)
        with refused(r"cannot be written \(No space left", AuditError):
            append_entry(path, book, entry)
    assert path.read_bytes() == before
    assert len(append_entry(path, book, entry).entries) == 4


def test_what_was_spent_on_claims_is_that_of_the_looks_at_them(kept):
    book = open_ledger(kept[0], 0.01)
    assert book.spent_on(["a", "x"]) == level_of(1, 0.01)
    assert book.spent_on("abc") == pytest.approx(sum(level_of(k, 0.01) for k in (1, 2, 3)))
    assert book.spent_on([]) == 0.0


@pytest.mark.parametrize(
    ("claims", "made", "resume", "number"),
    [("abc", "m", True, 1), ("abc", "m", False, 2), ("ac", "m", True, 2), ("abc", "n", True, 2)],
)
def test_a_run_that_goes_on_is_planned_as_the_look_that_it_was(claims, made, resume, number):
    *_, entry = refuted_over_time(Ledger(0.01), [look("a"), look("b")], "m")
    assert Ledger(0.01, (entry,)).look_of(claims, made, resume=resume) == number
    assert Ledger(0.01).look_of(claims, made, resume=resume) == 1


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "x"}', '{"schema": "dpzv-audit/ledger/2", "alpha": 1e-3}\n{}'])
def test_what_is_no_ledger_is_refused(tmp_path, text):
    path = tmp_path / "ledger.jsonl"
    path.write_text(text)
    with refused("is no ledger"):
        open_ledger(path, 1e-3)


def test_a_folder_or_a_device_is_no_ledger(tmp_path):
    with refused("is a folder"):
        open_ledger(tmp_path, 1e-3)
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    with refused("is a device; use a regular file, or absent"):
        open_ledger(device, 1e-3)


FORGED = {
    "another p-value": (
        {"p_value": 1.0, "refuted": False},
        "entry 1 says p = 1 of 'the claim a', but its scores give p = 1e-9",
    ),
    "another split": ({"split": {"full test on runs": 1.0}}, "or another test"),
    "nothing given": ({"given": ""}, "or another test"),
}


@pytest.mark.parametrize("what", FORGED)
def test_an_entry_that_is_not_what_was_measured_is_refused(what):
    measured = [look("a", 1e-9, general_p_value=0.5, split=SPLIT)]
    *_, entry = refuted_over_time(Ledger(0.01), measured, "made")
    assert entry.decisions["a"].refuted
    change, says = FORGED[what]
    forged = Entry(entry.level, {"a": replace(entry.decisions["a"], **change)})
    ledger = Ledger(0.01, (forged,))
    ledger.check()
    with refused(says) as caught:
        refuted_over_time(ledger, measured, "made")
    assert "put back the file that was last used, or move it away and give new_ledger" in str(caught.value)
    # What other code, another seed or other limits made is no forgery, and decides nothing.
    refuted, _, new = refuted_over_time(ledger, measured, "made by another version")
    assert refuted == (True,)
    assert bool(new.decisions) is not forged.decisions["a"].refuted
    assert refuted_over_time(Ledger(0.01, (entry,)), measured, "made")[2].decisions == {}


def test_scores_that_give_what_an_entry_says_are_decided_whatever_made_it():
    measured = [look("a", 0.5, split=SPLIT)]
    *_, entry = refuted_over_time(Ledger(0.01), measured, "made")
    assert refuted_over_time(Ledger(0.01, (entry,)), measured, "later")[2].decisions == {}
    without = Entry(entry.level, {"a": replace(entry.decisions["a"], p_value=None, made=None, given=None)})
    assert set(refuted_over_time(Ledger(0.01, (without,)), measured, "later")[2].decisions) == {"a"}, (
        "nothing to compare"
    )


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda entry: replace(entry, level=entry.level / 1e6), "entry 2 was judged at .*e-09, but look 2 has 0.0012"),
        (
            lambda entry: replace(entry, decisions={"b": replace(entry.decisions["b"], refuted=False)}),
            "entry 2 says that 'the claim b' was not refuted, but not its p-value of 1e-9",
        ),
        (
            lambda entry: replace(entry, decisions={"b": replace(entry.decisions["b"], p_value=0.5)}),
            "entry 2 says that 'the claim b' was refuted, but not its p-value of 0.5",
        ),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused_though_its_hashes_fit(kept, tmp_path, change, says, remembered):
    path, memory = kept
    book = open_ledger(path, 0.01)
    path.unlink()
    forged = Ledger(0.01, name=book.name)
    for number, entry in enumerate(book.entries, start=1):
        forged = append_entry(path, forged, change(entry) if number == 2 else entry)
    with refused(says if not remembered else "ledger"):
        open_ledger(path, 0.01, memory if remembered else LedgerMemory()).check()


def test_a_ledger_that_git_tracks_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    enter(path, Ledger(0.01, name="n"), look("a"))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert open_ledger(path, 0.01).entries, "a file that git does not track may lie in a repository"
    subprocess.run(["git", "-C", tmp_path, "add", "ledger.jsonl"], check=True)
    with refused(r"git tracks .*ledger\.jsonl: a change of the repository could write decisions"):
        open_ledger(path, 0.01)
