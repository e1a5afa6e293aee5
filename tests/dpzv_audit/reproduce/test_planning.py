"""Rows are checked before any is trained, and the time that they take follows from a few rounds of each."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.rounding import duration
from dpzv_audit.data import load
from dpzv_audit.reproduce import TABLES, Setting, TableParts, with_rows
from dpzv_audit.reproduce.planning import Plan, RowClock, checked, expected, in_words
from dpzv_audit.reproduce.table import TableRow, Work, pace
from mechanisms.core.federation import Federation

from ...helpers.refusals import refused


@dataclass(frozen=True, kw_only=True)
class Planted(TableRow):
    """A row whose rehearsal gives a known answer."""

    work: Work = field(default_factory=lambda: Work(1.0))
    error: InputError | None = None
    key: str = ""

    def check(self, setting):
        if self.error is not None:
            raise self.error
        return self.key or self.label

    def rehearse(self, setting):
        return self.work


def planned(*rows):
    return Plan(rows=rows, keys=[row.key or row.label for row in rows], skipped={})


SETTING = Setting(load=lambda keywords: pytest.fail("data"), epochs=1, seeds=1)


def test_controls_that_rows_share_count_once_and_rows_alike_are_rehearsed_once():
    shared = {"control": 5.0}
    rows = (
        Planted(label="a", work=Work(1.0, shared), key="k"),
        Planted(label="b", work=Work(100.0), key="k"),  # alike: the first one's time
        Planted(label="c", work=Work(3.0, {**shared, "other": 2.0})),
    )
    assert expected(planned(*rows), SETTING) == [6.0, 1.0, 5.0]


def test_rows_for_which_there_is_no_patience_count_as_the_mean_of_the_others():
    times = iter([0.0, 1.0, 2.0, 30.0, 40.0])
    rows = [Planted(label=label, work=Work(seconds)) for label, seconds in {"a": 2.0, "b": 4.0, "c": 99.0}.items()]
    assert expected(planned(*rows), SETTING, clock=lambda: next(times)) == [2.0, 4.0, 3.0]


def test_what_is_expected_is_said_in_words():
    plan = planned(Planted(label="a"), Planted(label="b"))
    assert in_words(plan, [30.0, 90.0]) == "2 rows, about 2 min"
    assert in_words(plan, [0.0, 90.0]) == "2 rows, 1 of them kept from before, about 90 s"
    attacked = with_rows(TABLES["cascaded-table1"], ["curious client, VAFL"])
    assert in_words(Plan(rows=attacked.items, keys=["k"], skipped={}), [7.0]) == (
        "1 row, about 7 s, and the attacks on what was trained"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "about 1 s"), (40.4, "about 40 s"), (99.0, "about 99 s"), (100.0, "about 2 min"), (7300.0, "about 2 h")],
)
def test_a_duration_is_said_in_the_unit_that_fits(seconds, words):
    assert duration(seconds) == words


def test_the_clock_goes_on_at_the_pace_of_the_rows_that_are_done():
    now = SimpleNamespace(time=100.0)
    clock = RowClock([10.0, 20.0, 30.0], clock=lambda: now.time)
    clock.begin(0)
    assert clock.left() == 60.0
    now.time += 4.0
    assert clock.left() == 56.0
    now.time += 16.0  # the row took twice as long as was expected
    clock.begin(1)
    assert clock.left() == 100.0
    now.time += 100.0  # longer than expected: the row is nearly done, the next is left
    assert clock.left() == 60.0
    now.time += 20.0
    clock.begin(2)
    assert clock.left() == 140.0  # 140 s where 30 were expected of the first two
    first = RowClock([0.0, 10.0], clock=lambda: now.time)  # the first row was kept
    first.begin(0)
    first.begin(1)
    assert first.left() == 10.0


def test_a_call_that_is_timed_alone_is_made_once():
    calls = []
    assert pace(lambda: calls.append(1), most=1) >= 0.0
    assert len(calls) == 1
    pace(lambda: calls.append(1), most=5)
    assert len(calls) == 1 + 5


def test_rows_that_do_not_fit_the_clients_are_skipped_and_other_errors_raised():
    cut = InputError("must divide 8", "clients", 6)
    table = replace(TABLES["czofo-table4"], items=(Planted(label="a", error=cut), Planted(label="b")))
    plan = checked(table, SETTING)
    assert ([row.label for row in plan.rows], plan.skipped) == (["b"], {"a": str(cut)})
    with refused("a: clients is 6"):
        checked(replace(table, items=table.items[:1]), SETTING)
    with refused("batch_size is 3"):
        checked(replace(table, items=(Planted(label="c", error=InputError("too small", "batch_size", 3)),)), SETTING)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("czofo-table4", "q = 10"),
        ("cascaded-table1", "curious client, VAFL"),
        ("czofo-table2", "q = 10"),
        ("cost-of-soundness", "sound"),
        ("labels-digits", "private control: frozen clients, epsilon 1"),
        ("labels-digits", "split, label-rr, epsilon 1"),
        pytest.param("dpzv-figure4-memory", "DPZV, in place", marks=pytest.mark.ci),
    ],
)
def test_every_kind_of_row_is_checked_and_rehearsed_without_being_trained(name, row, monkeypatch):
    steps = []
    trained = Federation.begin
    monkeypatch.setattr(Federation, "begin", lambda self, number: steps.append(number) or trained(self, number))
    data = load("digits", clients=4)
    table = with_rows(TABLES[name], [row])
    setting = Setting(load=lambda keywords: data, epochs=table.epochs or 1, seeds=1)
    plan = checked(table, setting)
    seconds = expected(plan, setting)
    assert len(seconds) == len(plan.rows)
    assert all(0.0 < value < 1e5 for value in seconds)
    assert len(steps) <= 12 * len(plan.rows)  # of thousands


def test_a_part_that_is_not_kept_is_not_computed_to_find_out(small_table, digits, tmp_path):
    setting = Setting(load=digits, epochs=1, seeds=1, kept=TableParts(tmp_path, resume=True))
    assert not any(setting.kept.holds(row, setting) for row in small_table.items)
    assert list(tmp_path.iterdir()) == []
    first, second = small_table.items
    first.run(replace(setting, kept=TableParts(tmp_path)))
    assert [setting.kept.holds(row, setting) for row in (first, second)] == [True, False]
    assert not TableParts(tmp_path).holds(first, setting)  # without --resume it starts anew
