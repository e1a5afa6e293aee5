"""Direct label inference as a table: numbers on digits, and a sentence that follows from the rows either way."""

import copy
import re

import pytest

from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown, with_rows
from dpzv_audit.reproduce.attacks import EXACT, SCALARS, AttackRow, verdicts
from mechanisms import METHODS

from .conftest import drawn_figure

ROWS = (
    "first order, curious client, split learning",
    "first order, eavesdropper, VAFL",
    "zeroth order, curious client, ZOO-VFL",
    "zeroth order, curious client, VFL-Cascaded",
    "zeroth order, eavesdropper, ZOO-VFL",
)


@pytest.fixture(scope="module")
def table():
    return with_rows(TABLES["cascaded-table1"], ROWS)


@pytest.fixture(scope="module")
def result(table, digits):
    return reproduce(table, Setting(load=digits, epochs=1, seeds=3))


def test_gradients_lose_every_label_and_scalars_hardly_any(result):
    by_label = {row.label: row for row in result.rows}
    for label in ROWS[:2]:
        assert by_label[label].success.value == 1.0
        assert by_label[label].answers == EXACT
    # Every label of a whole pass of whole batches is guessed once, in each trial.
    assert {row.success.n for row in result.rows} == {3 * 1408}
    # 4,224 guesses at chance lie within 0.02 of it but once in 60,000 runs.
    assert by_label[ROWS[4]].success.value == pytest.approx(0.1, abs=0.02)
    assert 0.09 < by_label[ROWS[2]].success.value < 0.16


def test_a_server_that_only_sums_makes_cascaded_and_zoo_vfl_one_method(result):
    by_label = {row.label: row for row in result.rows}
    assert by_label[ROWS[2]].by_trial == by_label[ROWS[3]].by_trial


def test_a_page_has_baselines_and_the_control_in_every_row(result, table):
    text = to_markdown(table, result)
    assert "1 of the paper's 1 epochs, 3 seeds" in text
    for row in result.to_json()["rows"]:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {row['label']} |")]
        shuffled = row["controls"]["shuffled_labels"]
        for number in (row["success"]["low"], *row["baselines"].values(), shuffled["low"], shuffled["high"]):
            assert f"{number:.4f}" in line
    assert "gradients give every label away to any observer, in 2 rows" in text
    assert re.search(
        r"the eavesdropper of scalars finds 0\.\d+ to 0\.\d+ of the labels where class freq.*in [01] of 1", text
    )
    assert "; these are too few seeds to generalise, at a false-alarm rate of 0.001" in text
    assert "the negative control is at chance in all 5 rows" in text


def changed(rows, label, change):
    """Return `rows` after a `change` of the JSON of `label`."""
    found = [copy.deepcopy(row.to_json()) for row in rows]
    change(next(row for row in found if row["label"] == label))
    return [AttackRow(**row) for row in found]


def with_success(rows, label, rates):
    """`rows` in which `label` found these shares by trial, of 100,000 records each."""

    def change(row):
        row["success"] |= {"value": sum(rates) / len(rates), "n": 100_000 * len(rates)}
        row["by_trial"]["success"] = rates

    return changed(rows, label, change)


def with_control(rows, label, p_value):
    """`rows` in which the negative control of `label` has a `p_value`."""
    return changed(rows, label, lambda row: row["controls"]["shuffled_labels"].update(p_value=p_value))


def test_the_sentence_follows_the_rows_either_way(result):
    rows = result.rows
    leaky = verdicts(with_success(rows, ROWS[4], [0.2, 0.201, 0.199] * 8))
    assert "the eavesdropper of scalars is above what class frequencies give (0.1" in leaky
    assert ") in 1 of 1 rows (0.200 to 0.200)" in leaky
    below = verdicts(with_success(rows, ROWS[4], [0.05, 0.0501, 0.0499] * 100))
    assert f"is below it in 1 of 1 rows ({ROWS[4]})" in below
    both = with_success(with_success(rows, ROWS[2], [0.2, 0.201, 0.199] * 8), ROWS[3], [0.1003, 0.1, 0.1005] * 8)
    few = verdicts(with_success(rows, ROWS[4], [0.2, 0.201, 0.199]))
    assert "finds 0.200 to 0.200 of the labels where class frequencies give 0.1" in few
    assert "more in every one of 3 seeds in 1 of 1 rows; these are too few seeds to generalise" in few
    mixed = verdicts(with_success(rows, ROWS[4], [0.2, 0.05, 0.11]))
    assert "more in every one of 3 seeds in 0 of 1 rows; these are too few" in mixed
    assert f" in 1 of 2 rows (0.200 to 0.200) and does not differ from it clearly in {ROWS[3]}" in verdicts(both)
    lost = verdicts(with_success(rows, ROWS[0], [0.9, 0.91, 0.92]))
    assert f"gradients give 0.9100 of the labels or more ({ROWS[0]}) away" in lost
    broken = with_control(rows, ROWS[1], 1e-4)
    assert f"the negative control is NOT at chance in {ROWS[1]}" in verdicts(broken)
    lucky = with_control(rows, ROWS[1], 1e-3)  # of five rows one is so by luck
    assert "the negative control is at chance in all 5 rows" in verdicts(lucky)


def test_the_figure_has_a_line_a_method_and_a_mark_an_adversary(result, table):
    drawn = drawn_figure(table, result)
    assert drawn.startswith("<svg")
    assert "ZOO-VFL: curious client 0.1" in drawn
    assert "curious client</text>" in drawn
    assert "eavesdropper</text>" in drawn


def test_every_method_is_attacked_by_both_adversaries_and_labelled_by_what_travels_down():
    table = TABLES["direct-mnist"]
    # dp-zo has no client whom a server would answer.
    answering = {name for name, method in METHODS.items() if method.downlink != "none"} - {"dp-zo"}
    assert {item.method for item in table.items} == answering
    for line in {item.tags["line"] for item in table.items}:
        assert sorted(item.adversary for item in table.items if item.tags["line"] == line) == ["client", "eavesdropper"]
    for item in table.items:
        scalars = METHODS[item.method].downlink != "gradient"
        assert (item.tags["answers"] == SCALARS) == scalars


@pytest.mark.data
@pytest.mark.parametrize("real", ["mnist"], indirect=True)
def test_real_digits_lose_their_labels_through_gradients_alone(real, cli, tmp_path):
    """The command on 1,280 records of MNIST: the same facts as on all of them, each false with chance 1e-4 or less."""
    wanted = (
        "split learning, curious client",
        "VAFL, curious client",
        "VAFL, noise on embeddings, epsilon 1, double precision, curious client",
        "ZOO-VFL, eavesdropper",
        "DPZV, epsilon 1, eavesdropper",
    )
    rows = [word for label in wanted for word in ("--row", label)]
    sizes = f"--records 1280 --trials 2 --data-dir {real} --out {tmp_path}"
    result = cli.answer(f"reproduce direct-mnist {sizes}", *rows)
    found = {row["label"]: row for row in result["rows"]}
    assert set(found) == set(wanted)
    assert result["records"] == 1280
    assert found[wanted[0]]["success"]["value"] == found[wanted[1]]["success"]["value"] == 1.0
    assert found[wanted[2]]["success"]["value"] > 0.99
    assert found[wanted[2]]["noise_std"] > 1.0
    for label in wanted[3:]:
        # 2,560 guesses at 0.1: more than 0.025 from it once in 40,000 runs.
        assert found[label]["success"]["value"] == pytest.approx(found[label]["baselines"]["prior"], abs=0.025)
        assert found[label]["notes"] == ["a sample: 1,280 of 60,000 training records"]
    assert "1 of the protocol's 1 epochs on 1,280 records, 2 seeds" in next(tmp_path.rglob("table.md")).read_text()


def test_a_judgement_is_over_trainings_however_many_records_they_have(result):
    text = verdicts(with_success(result.rows, ROWS[4], [0.1, 0.12, 0.11, 0.09, 0.13]))
    assert "these are too few seeds to generalise" in text
