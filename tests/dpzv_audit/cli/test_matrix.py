"""The matrix command: cells that are run folders, dashes with reasons, failures that are seen, and resumption."""

from concurrent.futures import BrokenExecutor
from dataclasses import replace

import pytest

from dpzv_audit.base.findings import Control, Interval, OverTrainings
from dpzv_audit.cli import main
from dpzv_audit.cli.flags import CellFlags
from dpzv_audit.cli.matrix_cells import Cells, CellTask
from dpzv_audit.cli.options import DataFlags
from dpzv_audit.evidence.choosing import fresh_seed, pilot_seed
from dpzv_audit.evidence.matrix import matrix_result, measured_cell, negative_controls
from dpzv_audit.results import AttackResult, Cell, Utility

from ...helpers.places import read_json

SMALL = "matrix --methods dpzv,vafl --attacks label_direct --trials 2 --epochs 1 --quiet"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("matrix")
    assert main(f"{SMALL} --out {out}".split()) == 0
    (folder,) = out.iterdir()
    return folder


def test_every_cell_stands_in_the_result_with_a_run_of_its_own(finished):
    result = read_json(finished / "result.json")
    assert result["schema"] == "dpzv-audit/matrix/1"
    cells = {(c["method"], c["adversary"]): c for c in result["cells"]}
    by = ("client", "eavesdropper", "colluding-clients")
    assert set(cells) == {(m, a) for m in ("dpzv", "vafl") for a in by}
    assert "scalars, which colluding clients pool" in cells.pop(("dpzv", by[2]))["reason"]
    assert {c["state"] for c in cells.values()} == {"measured"}
    assert cells["vafl", "client"]["damage"] == 1.0
    assert cells["dpzv", "client"]["epsilon"] == 1.0
    assert cells["vafl", "client"]["epsilon"] is None
    for cell in cells.values():
        assert (finished / cell["run"]).is_file()
        assert (finished / cell["run"]).with_name("result.json").is_file()
        assert cell["controls_hold"]
    (check,) = result["self_checks"]
    assert check["holds"]
    assert check["value"] == 1.0
    assert result["noise"]["seed"] == 0
    assert result["noise"]["words"] in (finished / "report.html").read_text()


def test_the_report_links_every_cell_and_shows_the_worst_first(finished):
    page = (finished / "report.html").read_text()
    for cell in read_json(finished / "result.json")["cells"]:
        assert cell["state"] != "measured" or f'href="{cell["run"]}"' in page
    assert "figure-matrix" in page
    text = (finished / "report.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| label") and "[report]" in line]
    assert len(rows) == 5
    assert "vafl" in rows[0]
    assert (finished / "figure-matrix.svg").is_file()


def test_resuming_keeps_finished_cells_and_does_the_rest_to_the_same_bytes(finished, cli):
    """One cell was killed before it was finished and left a folder and a partial one behind."""
    before = (finished / "result.json").read_bytes()
    kept = {p: p.stat().st_mtime_ns for p in finished.glob("cells/*/cell.json")}
    gone = next(p for p in kept if "dpzv" in p.parent.name and "client" in p.parent.name)
    gone.unlink()
    partial = gone.parent.with_name(f".{gone.parent.name}-0123abcd.partial")
    partial.mkdir()
    assert cli(f"{SMALL} --out {finished.parent} --resume").code == 0
    assert (finished / "result.json").read_bytes() == before
    assert all(p.stat().st_mtime_ns == time for p, time in kept.items() if p != gone)
    assert gone.is_file()
    assert not partial.exists()
    assert len(list((finished / "cells").iterdir())) == len(kept)


def test_several_epsilons_are_columns_of_methods_that_claim_one(tmp_path, cli):
    found = cli.answer(f"{SMALL} --epsilons 0.5,10 --no-self-check --out {tmp_path}")["cells"]
    assert [(c["method"], c["epsilon"]) for c in found if c["adversary"] == "client"] == [
        ("dpzv", 0.5),
        ("dpzv", 10.0),
        ("vafl", None),
    ]
    assert {c["state"] for c in found if c["adversary"] != "colluding-clients"} == {"measured"}


@pytest.mark.ci
def test_the_strongest_of_an_adversary_is_measured_on_other_trainings(tmp_path, cli):
    both = "label_direct,label_scalar"
    size = "--trials 1 --epochs 2 --no-self-check"
    cells = cli.answer(f"matrix --methods dpzv --attacks {both} {size} --out {tmp_path}")["cells"]
    (folder,) = tmp_path.glob("matrix-*")
    heads = {c["adversary"]: c for c in cells if c["attack"] == "strongest"}
    assert heads["colluding-clients"]["chosen"] == "label_scalar"
    assert heads["colluding-clients"]["clients"] == [1, 2, 3, 4]
    for by, head in heads.items():
        (other,) = (c for c in cells if c["attack"] == head["chosen"] and c["adversary"] == by)
        assert head["clients"] == other["clients"]
        assert head["run"] != other["run"]
        assert head["success"] != other["success"]
        seed = read_json((folder / head["run"]).with_name("result.json"))["seed"]
        assert seed == fresh_seed(0)
        assert seed not in (0, pilot_seed(0))  # of the cell, and of the pilots that chose its client
        rivals = [
            c for c in cells if c["adversary"] == by and c["attack"] in both.split(",") and c["state"] == "measured"
        ]
        assert other == max(rivals, key=lambda c: (c["clear"], c["damage"]))


@pytest.mark.slow
def test_who_deviates_can_do_what_an_honest_client_does(tmp_path, cli):
    """The active attack finds less than gradients tell: the strongest of a malicious client is that of any client."""
    attacks = "label_direct,label_completion_active"
    size = "--trials 1 --epochs 1 --no-self-check"
    cells = cli.answer(f"matrix --methods vafl --attacks {attacks} {size} --out {tmp_path}")["cells"]
    heads = {c["adversary"]: c for c in cells if c["attack"] == "strongest"}
    assert heads["malicious-client"]["chosen"] == "label_direct"
    assert heads["malicious-client"]["success"] > 0.99
    assert heads["malicious-client"]["run"] == heads["client"]["run"]


def test_a_positive_control_that_the_data_do_not_allow_is_no_failure(tmp_path, cli):
    arguments = "matrix --methods vafl --attacks label_spectral --trials 1 --epochs 1"
    assert cli(f"{arguments} --quiet --out {tmp_path}").code == 0
    (folder,) = tmp_path.iterdir()
    (check,) = read_json(folder / "result.json")["self_checks"]
    assert check["holds"] is None
    assert "use data with 2" in check["what"]
    assert "FAILED" not in (folder / "report.html").read_text()


def test_what_does_not_apply_is_a_dash_and_what_fails_is_seen(tmp_path, cli):
    """Probes do not apply to vafl; to dpzv an epoch is too short for them, which is a failure and exit code 3."""
    arguments = SMALL.replace("label_direct", "label_probe")
    done = cli(f"{arguments} --no-self-check --json --out {tmp_path}")
    assert done.code == 3
    assert "1 of 2 cells and self-checks failed" in done.err
    cells = {c["method"]: c for c in done.json["cells"]}
    assert cells["vafl"]["state"] == "does not apply"
    assert "label_direct needs no probes" in cells["vafl"]["reason"]
    assert cells["dpzv"]["state"] == "failed"
    assert "fewer than the 10 probes of one record" in cells["dpzv"]["reason"]
    assert "damage" not in cells["vafl"]
    (folder,) = tmp_path.iterdir()
    page = (folder / "report.html").read_text()
    assert "Cells that failed" in page
    assert "Attacks that do not apply" in page


def test_a_matrix_of_which_every_cell_failed_says_so_in_its_report(tmp_path, cli):
    arguments = "matrix --methods dpzv --attacks label_probe --trials 1 --epochs 1 --quiet"
    done = cli(f"{arguments} --no-self-check --out {tmp_path}")
    assert done.code == 3
    assert "1 of 1 cells and self-checks failed" in done.err
    (folder,) = tmp_path.iterdir()
    assert "fewer than the 10 probes of one record" in (folder / "report.html").read_text()


def test_a_cell_on_which_workers_die_is_one_that_failed(tmp_path):
    cell = Cell(attack="label_direct", adversary="client", method="dpzv", noise=None, epsilon=1.0)
    task = CellTask(key=cell, data=DataFlags(), flags=CellFlags(epochs=1, seeds=1), folder=tmp_path)
    counts = []
    cells = Cells([task, task], counts.append)
    number = cells.take()
    cells.failed(number, BrokenExecutor(), deaths=3)
    assert cells.take() == 1 - number
    assert cells.take() is None
    assert counts == [1]
    with pytest.raises(ValueError, match="of another kind"):
        cells.failed(1 - number, ValueError("of another kind"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--methods dpzv,valf", "--methods is 'valf': did you mean 'vafl'"),
        ("--attacks label_drect", "--attacks is 'label_drect': did you mean 'label_direct'"),
        ("--methods ,", "--methods is ','; use names separated by commas, or all"),
        ("--epsilons one", "--epsilons is 'one'; use numbers separated by commas"),
        ("--protect gradients", "--protect is 'gradients': did you mean 'gradient'"),
        ("--epsilons 0", "--epsilons is '0'; use finite numbers above 0"),
        ("--dataset digit", "did you mean 'digits'"),
        ("--batch-size 5000", "--batch-size is 5000"),
        ("--defences label-r", "--defences is 'label-r': did you mean 'label-rr'"),
        (
            "--defences label-rr:epsilom=1",
            "--defences is 'label-rr:epsilom=1': its setting is 'epsilom': did you mean 'epsilon'",
        ),
        ("--defences ' , '", "use names separated by commas, or all"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(change, message, tmp_path, cli):
    assert message in cli.refusal(f"{SMALL} {change} --out {tmp_path}")
    assert not list(tmp_path.iterdir())


@pytest.mark.ci
def test_baselines_get_noise_on_the_channels_asked_for_at_every_epsilon(tmp_path, cli):
    """VAFL loses its labels without noise, and with noise on embeddings; noise on gradients at epsilon 1 hides them."""
    arguments = SMALL.replace("dpzv,vafl", "vafl,zoo-vfl")
    arguments += " --epsilons 1,1000 --protect gradient,embedding --no-self-check"
    result = cli.answer(f"{arguments} --out {tmp_path}")
    cells = {(c["method"], c["noise"], c["epsilon"]): c for c in result["cells"] if c["adversary"] == "client"}
    assert set(cells) == {
        (method, noise, epsilon)
        for method in ("vafl", "zoo-vfl")
        for noise, epsilon in [(None, None)] + [(n, e) for n in ("gradient", "embedding") for e in (1.0, 1000.0)]
    }
    assert cells["vafl", None, None]["success"] == 1.0
    assert cells["vafl", "embedding", 1000.0]["success"] == 1.0
    assert cells["vafl", "gradient", 1.0]["success"] < 0.2
    assert cells["zoo-vfl", "gradient", 1.0]["state"] == "does not apply"
    assert "no gradient travels here" in cells["zoo-vfl", "gradient", 1.0]["reason"]
    (folder,) = tmp_path.iterdir()
    assert "figure-label_direct-client" in (folder / "report.html").read_text()


REACH = {"trainings": 3, "least": 0.45, "most": 0.55, "over_low": None, "over_high": None}


def rate(value, by_low, by_high, **over):
    over_trainings = OverTrainings(**over) if over else None
    return Interval(value=value, low=by_low, high=by_high, n=100, over_trainings=over_trainings)


ACCURACY = Utility(test_accuracy=rate(0.9, 0.8, 0.95))


def test_damage_is_measured_from_the_best_that_needs_no_attack():
    def cell(p_value):
        shuffled = Control(**vars(rate(0.12, 0.1, 0.2)), what="", kind="negative", expected=0.1, p_value=p_value)
        result = AttackResult(
            success=rate(0.8, 0.7, 0.9),
            baselines={"majority": 0.1, "raw features": rate(0.6, 0.4, 0.75)},
            controls={"shuffled": shuffled},
            utility=ACCURACY,
        )
        return measured_cell(Cell(method="m"), result, "cells/x/report.html")

    found = cell(None)
    assert found.method == "m"
    assert found.damage == pytest.approx(0.5)
    assert (found.reference, found.reference_high) == (0.6, 0.75)
    assert found.controls_hold
    assert found.control == 0.12
    assert cell(0.06).controls_hold
    assert not cell(0.04).controls_hold


def test_a_cell_is_clear_in_all_its_trainings_or_over_further_ones():
    def cell(success, raw):
        baselines = {"majority": 0.1, "raw features": raw}
        return measured_cell(Cell(), AttackResult(success=success, baselines=baselines, utility=ACCURACY), "x")

    few = rate(0.8, 0.7, 0.9, count=3, least=0.5, most=0.95)
    assert cell(few, rate(0.3, 0.25, 0.35, count=3, least=0.2, most=0.45)).clear
    assert not cell(few, rate(0.3, 0.25, 0.35, count=3, least=0.2, most=0.55)).clear  # one training did as well
    assert not cell(few, rate(0.6, 0.5, 0.72, count=3, least=0.6, most=0.6)).clear  # by records it may be
    many = rate(0.8, 0.79, 0.81, count=9, least=0.1, most=1.0, low=0.5, high=0.95)
    found = cell(many, rate(0.3, 0.29, 0.31, count=9, least=0.2, most=0.9, low=0.2, high=0.49))
    assert found.clear
    assert (found.over_low, found.reference_high, found.trainings) == (0.5, 0.9, 9)
    assert not cell(many, rate(0.3, 0.29, 0.31, count=9, least=0.2, most=0.3, low=0.2, high=0.51)).clear
    all_of_nine = rate(1.0, 0.999, 1.0, count=9, least=1.0, most=1.0, low=0.6, high=1.0)
    assert cell(all_of_nine, rate(0.8, 0.79, 0.81, count=9, least=0.75, most=0.85, low=0.5, high=0.97)).clear


def sentence(cells, seeds):
    found = [Cell(**cell) for cell in cells]
    return matrix_result(found, (), dataset="d", seeds=seeds, seed=0, facts={}).sentence


def controls_of(cells):
    return negative_controls([Cell(**cell) for cell in cells])


def test_the_sentence_counts_failures():
    cell = {"attack": "a", "adversary": "client", "method": "m", "epsilon": None, "controls_hold": True}
    measured = {**cell, "state": "measured", "success": 0.5, "low": 0.4, "high": 0.6, "damage": 0.4}
    measured |= {"reference": 0.1, "clear": True, **REACH}
    text = sentence([measured, {**cell, "state": "failed", "reason": "x"}], 3)
    assert "1 cells measured, 0 do not apply, 1 FAILED" in text
    assert (
        "a by the client on m: 0.500 (0.400 to 0.600 across records; single trainings 0.450 to 0.550), baseline 0.100."
        in text
    )
    many = {**measured, "trainings": 9, "over_low": 0.3, "over_high": 0.7}
    assert "0.500 (mean of further trainings 0.300 to 0.700)" in sentence([many], 9)
    unsure = {**measured, "method": "n", "success": 1.0, "damage": 1.0, "clear": False}
    assert "The worst is a by the client on m" in sentence([unsure, measured], 3)
    assert "negative controls" not in text
    assert "The 1 negative controls passed together, p = 0.3." in sentence([{**measured, "control_p": 0.3}], 3)
    some = sentence([{**measured, "control_p": 0.3}, measured], 3)
    assert "The 1 of 2 negative controls with enough trainings for a test passed together, p = 0.3." in some
    off = sentence([{**measured, "control_p": 1e-6}], 3)
    assert "negative controls FAILED (worst: a by the client on m) together, p < 0.0001." in off


def test_the_sentence_says_what_few_trainings_allow_to_say():
    cell = {"attack": "a", "adversary": "client", "method": "m", "epsilon": None, "state": "measured"}
    clear = {**cell, "success": 0.5, "low": 0.4, "high": 0.6, "damage": 0.4, "reference": 0.3, "clear": True, **REACH}
    text = sentence([clear, {**clear, "clear": False}], 3)
    assert "In 1 cell the attack is above every baseline, in all 3 trainings and across their records. The" in text
    assert text.endswith("3 trainings per cell are too few to generalise; use --trials 8.")
    one = sentence([{**clear, "trainings": 1}], 1)
    assert one.endswith("One training per cell is too few to generalise; use --trials 8.")
    many = sentence([clear], 8)
    assert "in all 8 trainings and across their records or on average over trainings" in many
    assert "--trials" not in many


def test_negative_controls_are_one_test_of_all_together():
    cell = {"attack": "a", "adversary": "client", "method": "m", "epsilon": None}
    cells = [{**cell, "control_p": p} for p in (0.2, 2e-5, None, 0.9)] + [{**cell, "state": "does not apply"}]
    found = controls_of(cells)
    assert found.tests == 3
    assert found.together_p == pytest.approx(6e-5)
    assert not found.hold
    # What is rare alone is not among many: 1e-3 is for all of them.
    many = controls_of(cells[1:2] + [{**cell, "control_p": 0.5}] * 99)
    assert many.together_p == pytest.approx(2e-3)
    assert many.hold
    assert controls_of([{**cell, "control_p": None}]) is None


def test_a_matrix_whose_controls_are_off_fails(tmp_path, cli, monkeypatch):
    monkeypatch.setattr("dpzv_audit.evidence.matrix.FALSE_ALARM", 1.01)
    done = cli(f"{SMALL} --no-self-check --out {tmp_path}")
    assert done.code == 3
    assert "the negative controls are not at chance, p = " in done.err
    (folder,) = tmp_path.iterdir()
    assert "no number here can be trusted" in (folder / "report.html").read_text()


def test_self_check_prints_controls_and_fails_where_one_does(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = "attack --method vafl --self-check --trials 16 --epochs 1 --batch-size 64 --json"
    found = cli.answer(arguments)
    assert found["holds"]
    assert set(found["controls"]) == {"positive", "shuffled_labels"}
    assert not list(tmp_path.iterdir())

    from attacks.core import controls

    monkeypatch.setattr(controls.Control, "holds", property(lambda self: self.kind == "positive"))
    done = cli(arguments)
    assert done.code == 3
    assert "label_direct fails its own controls: shuffled labels" in done.err

    monkeypatch.setattr(controls.Control, "holds", property(lambda self: self.kind != "positive"))
    done = cli(arguments)
    assert done.code == 3
    assert done.json["failed"] == ["positive"]
    assert "label_direct fails its own controls: positive" in done.err

    line = cli.refusal("attack --method vafl --self-check --trials 2")
    assert "--trials is 2; use 16 or more with --self-check" in line


@pytest.mark.ci
def test_defences_stand_beside_a_run_without_each_at_every_epsilon_that_it_takes(tmp_path, cli):
    """label-rr takes the epsilons, unless its settings say one."""
    small = "matrix --methods split --attacks label_direct --trials 1 --epochs 1 --json"
    defences = "--defences label-rr,label-rr:epsilon=3 --epsilons 0.5,8"
    result = cli.answer(f"{small} --no-self-check {defences} --out {tmp_path}")
    cells = [c for c in result["cells"] if c["adversary"] == "client"]
    by = {(c.get("defence"), c["epsilon"]): c for c in cells}
    assert [*by] == [(None, None), ("label-rr", 0.5), ("label-rr", 8.0), ("label-rr:epsilon=3", None)]
    assert [c["upper"] for c in cells] == [None, 0.5, 8.0, 3.0]
    assert by[None, None]["success"] == 1.0
    assert by["label-rr", 0.5]["success"] < 0.3 < by["label-rr:epsilon=3", None]["success"] < 0.8
    assert cells[1]["bytes"] == cells[0]["bytes"] > 0
    assert 0 < cells[1]["frozen"] < 1
    assert "split + label-rr, ε 8" in (next(tmp_path.glob("matrix-*")) / "report.md").read_text()


def test_a_defence_that_does_not_fit_is_a_dash_with_the_reason(tmp_path, cli):
    """marvell is for two classes, and stands at gradients, of which DPZV sends none."""
    small = "matrix --methods split,dpzv --attacks label_direct --trials 1 --epochs 1"
    result = cli.answer(f"{small} --no-self-check --defences marvell --out {tmp_path}")
    cells = [c for c in result["cells"] if c.get("defence") and c["adversary"] == "client"]
    assert [(c["method"], c["state"]) for c in cells] == [("split", "does not apply"), ("dpzv", "does not apply")]
    assert "it is for 2 classes, and there are 10" in cells[0]["reason"]
    assert "stands at each gradient of a first-order round" in cells[1]["reason"]


@pytest.mark.ci
@pytest.mark.parametrize("which", ["all", "strongest"])
def test_a_self_check_of_many_attacks_fails_where_any_control_does(cli, monkeypatch, planted_positive, which):
    """Every attack that applies runs, at an even share of one false-alarm rate; the JSON names what failed."""
    from attacks import ATTACKS, AttackSpec
    from dpzv_audit.base.registry import Registry

    few = [ATTACKS[name] for name in ("label_direct", "label_spectral", "label_probe")]
    monkeypatch.setattr("attacks.ATTACKS", Registry(ATTACKS.group, AttackSpec, few))
    options = "--epochs 1 --batch-size 64 --trials 16 --set top_model=false"
    arguments = f"attack --method split --attack {which} --adversary client {options} --self-check --json"
    found = cli.answer(arguments)
    assert found["holds"]
    assert {one["attack"] for one in found["attacks"]} == {"label_direct"}
    assert "label_spectral (client)" in found["not_mounted"]
    assert found["false_alarm"] == 1e-3

    control = AttackSpec.positive_control(few[0], None)
    monkeypatch.setattr(AttackSpec, "positive_control", lambda spec, setting: replace(control, value=0.5))
    done = cli(arguments)
    assert done.code == 3
    assert done.json["attacks"][0]["failed"] == ["positive"]
    assert "label_direct by the client fails its own controls: positive" in done.err
