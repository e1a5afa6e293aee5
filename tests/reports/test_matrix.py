"""The matrix's section: what is left out of the heat map, links that stay inside the folder, and grouped reasons."""

from dpzv_audit.results import Cell, MatrixResult, read
from reports.content import report_content
from reports.document import Picture, Table
from reports.matrix import ROOMY, defended, on_front, pareto
from reports.matrix import heat_map as drawn
from reports.render import to_html, to_markdown

CELL = {"attack": "a", "adversary": "client", "method": "m", "epsilon": None}
MEASURED = {
    **CELL,
    "state": "measured",
    "metric": "labels found",
    "success": 0.6,
    "low": 0.5,
    "high": 0.7,
    "trainings": 3,
    "least": 0.55,
    "most": 0.65,
    "over_low": None,
    "over_high": None,
    "reference": 0.1,
    "clear": True,
    "damage": 0.56,
    "control": 0.111,
    "certified": 1.25,
    "controls_hold": True,
    "accuracy": 0.9,
    "run": "cells/a-m/report.html",
}
IDLE = [
    {**CELL, "attack": "b", "method": m, "state": "does not apply", "reason": f"b does not apply to {m}: no mail"}
    for m in ("m", "n")
]
OTHER = {**CELL, "method": "n", "state": "failed", "reason": "no luck"}


def heat_map(cells):
    return drawn([Cell(**cell) for cell in cells])


def blocks_of(cells):
    report = report_content(MatrixResult(cells=[Cell(**cell) for cell in cells]))
    section, *_ = report.sections
    return [*filter(None, [report.deciding]), *section.blocks, *section.folded]


def tables(cells):
    found = [block for block in blocks_of(cells) if isinstance(block, Table)]
    return {table.caption: [tuple(row.values()) for row in table.rows] for table in found}


def test_an_attack_that_applies_to_no_method_is_named_once_and_not_drawn():
    known = [MEASURED, OTHER, *IDLE]
    drawing = heat_map(known)
    assert ">a, client<" in drawing
    assert ">b, client<" not in drawing
    (picture,) = (block for block in blocks_of(known) if isinstance(block, Picture))
    assert "Left out, since they apply to no method on this data set: b, client." in picture.caption
    assert tables(known)["Attacks that do not apply"] == [("b, client", "all", "no mail")]
    assert tables(known)["Cells that failed"] == [("a, client", "n", "no luck")]


def test_numbers_lead_to_their_runs_and_nowhere_else():
    assert 'xlink:href="cells/a-m/report.html"' in heat_map([MEASURED])
    for path in ("javascript:alert(1)", "https://example.org/x", "/etc/passwd", "../x", "cells/../../x", "", None):
        result, other = read({"schema": "dpzv-audit/matrix/1", "cells": [{**MEASURED, "run": path}]})
        assert other == ({} if path is None else {"cells": {"0": {"run": path}}})
        assert isinstance(result, MatrixResult)
        assert "xlink:href" not in drawn(result.cells)
        page = to_html(report_content(result))
        assert '<td role="cell" class="link blank" data-label="run">' in page
        assert "<a href" not in page.split('id="matrix"')[1]


def test_a_map_with_links_is_no_image_to_who_cannot_see_it():
    assert ' role="group" aria-label="Advantage of attacks' in heat_map([MEASURED])
    assert ' role="img" aria-label="Advantage of attacks' in heat_map([{**MEASURED, "run": None}])


def test_the_page_has_every_number_of_a_cell():
    page = to_markdown(report_content(MatrixResult(dataset="d", cells=[Cell(**MEASURED)])))
    (row,) = (line for line in page.splitlines() if line.startswith("| a, client | m |"))
    assert row.startswith("| a, client | m | – | 0.560 | 0.600 (0.500 to 0.700); 3 trainings, 0.550 to 0.650 | 0.100 |")
    many = {**MEASURED, "trainings": 9, "over_low": 0.4, "over_high": 0.8}
    known = tables([many])["Cells by advantage, those above every baseline first"]
    assert known[0][4:9] == (
        "0.600 (0.500 to 0.700); 9 trainings: 0.400 to 0.800",
        "0.100",
        "0.111",
        "1.25",
        "0.900",
    )


def test_bold_is_what_is_clear():
    unsure = {**MEASURED, "reference_high": 0.55, "clear": False}
    assert "700" in heat_map([{**MEASURED, "reference_high": 0.2}])
    assert "700" not in heat_map([unsure])
    assert tables([unsure])["Cells by advantage, those above every baseline first"][0][5] == "0.100 (to 0.550)"


def test_noise_that_no_method_has_a_channel_for_is_named_once_and_not_drawn():
    noised = {**CELL, "method": "n", "noise": "gradient", "state": "does not apply"}
    noised = [
        {**noised, "epsilon": e, "reason": "gradient noise does not apply to n: no gradient travels"}
        for e in (1.0, 10.0)
    ]
    known = [MEASURED, OTHER, *noised]
    drawing = heat_map(known)
    assert ">n<" in drawing
    assert "gradient noise" not in drawing
    (picture,) = (block for block in blocks_of(known) if isinstance(block, Picture))
    assert "Left out, since no attack here applies to them: n + gradient noise." in picture.caption
    assert tables(known)["Attacks that do not apply"] == [
        ("a, client", "n + gradient noise, ε 1; n + gradient noise, ε 10", "no gradient travels"),
    ]


def test_more_methods_than_have_room_are_rows():
    def upright(methods):
        cells = [{**MEASURED, "method": f"m{i:02}", "attack": a} for i in range(methods) for a in "ab"]
        drawing = heat_map(cells)
        return drawing.index(">m00<") < drawing.index(">a, client<")

    assert upright(ROOMY)
    assert not upright(ROOMY + 1)


def of_defences():
    """Cells of one method without a defence and under two, one of which is at two strengths."""
    rows = [(None, None, 1.0, 0.95), ("d", 1.0, 0.3, 0.9), ("d", 4.0, 0.6, 0.93), ("e", None, 0.7, 0.8)]
    head = {"attack": "strongest", "chosen": "a", "frozen": 0.5, "upper": 1.0, "bytes": 2_500_000}
    return [
        Cell(**{**MEASURED, **head, "defence": defence, "epsilon": epsilon, "damage": damage, "accuracy": accuracy})
        for defence, epsilon, damage, accuracy in rows
    ]


def test_defences_stand_by_accuracy_and_by_what_the_strongest_attack_finds():
    cells = of_defences()
    names = [(row.name, row.epsilon) for row in defended(cells)]
    assert names == [("m", None), ("m + d", 1), ("m + d", 4), ("m + e", None)]
    section, *_ = report_content(MatrixResult(cells=cells)).sections
    (table,) = (block for block in section.blocks if isinstance(block, Table) and block.caption.startswith("Defences"))
    row = table.rows[1]
    assert row["method"] == "m + d, ε 1"
    assert (row["accuracy"], row["frozen clients"], row["advantage"]) == ("0.900", "0.500", "0.300")
    assert row["strongest attack"] == "a, client: 0.600"
    assert row["MB"] == "2.5"
    assert [block for block in section.blocks if isinstance(block, Picture) and block.name == "figure-defences"]


def test_the_worst_adversary_but_the_server_decides_about_a_defence():
    first, *_ = of_defences()[1:]
    others = [
        first.model_copy(update={"adversary": by, "damage": damage, "attack": "strongest"})
        for by, damage in (("malicious-client", 0.8), ("server", 1.0))
    ]
    (row,) = defended([first, *others])
    assert (row.worst.adversary, row.worst.damage) == ("malicious-client", 0.8)


def test_without_defences_there_is_no_figure_of_them():
    assert pareto([Cell(**MEASURED)]) == ""
    assert "0.930 at advantage 0.600" in pareto(of_defences())


def test_the_front_is_of_points_that_no_other_beats_in_both():
    points = [(0.5, 0.9), (0.2, 0.7), (0.6, 0.85), (0.2, 0.6), (1.0, 0.95)]
    assert on_front(points) == [(0.2, 0.7), (0.5, 0.9), (1.0, 0.95)]
