"""A result in Python: a short line, the head of its page, the figure that decides, a data frame, and the verdict."""

import copy
import functools
import io
import operator
import pickle
import re
import sys

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dpzv_audit.base.errors import InputError
from dpzv_audit.results import AttackResult, AttacksResult, Cell, MatrixResult, TrainResult, VerifyResult, read
from reports.display import LONGEST, Display
from reports.verdicts import words_of

from .conftest import RESULTS
from .test_faces import file_of, random_claim
from .test_matrix import MEASURED
from .test_render import HOSTILE, ODD, Page, _places

CELLS = [Cell(**MEASURED), Cell(**{**MEASURED, "attack": "b", "success": 0.2, "clear": False})]
MANY = {
    "attacks": AttacksResult(method="m", dataset="d", attacks=CELLS),
    "matrix": MatrixResult(dataset="d", cells=CELLS),
    "verify": file_of([random_claim(np.random.default_rng(7), place) for place in range(3)]),
}
STORED = RESULTS | {name: MANY[name].to_json() for name in ("attacks", "matrix")}
LINES = {
    "attack": (
        "<AttackResult dpzv on digits: refuted: ε ≤ 1 (δ = 1e-05, one label changed) against one curious client; "
        "measured: ε ≥ 2.13, 95% confidence (audit); proven: ε ≤ 5.82>"
    ),
    "train": ("<TrainResult vafl on digits: no claim: vafl promises no ε; proven: no sound bound (gap server-state)>"),
    "audit": (
        "<AuditResult dpzv-sound on digits: inconclusive: ε ≤ 1 (δ = 1e-05, one label changed) against one "
        "curious client; measured: ε ≥ 0.412, 95% confidence; proven: no theorem covers it>"
    ),
}


@pytest.fixture
def made(results):
    """A result of each kind, as a model."""
    return {name: read(result)[0] for name, result in results.items()} | MANY


@pytest.mark.parametrize("name", LINES)
def test_a_line_says_what_was_claimed_measured_and_proven(name, made):
    assert repr(made[name]) == str(made[name]) == f"{made[name]}" == LINES[name]
    console = Console(file=io.StringIO(), width=1000)
    console.print(made[name])
    assert console.file.getvalue() == f"{LINES[name]}\n"


def test_the_line_of_each_kind_has_its_subject_and_word(made):
    lines = {name: repr(result) for name, result in made.items()}
    for name, words in {
        "audit-scores": "<ScoresResult Scores of a system: 2,000 with the canary, 2,000 without it: refuted",
        "planted": "as expected: 4 of 4 planted mechanisms",
        "account": "<AccountResult",
        "attacks": "<AttacksResult m on d: leaks: 1 of 2 attacks",
        "matrix": "data set d: leaks: 1 of 2 attacks",
        "verify": "<VerifyResult claims.toml: 3 claims: failed; claim ",
    }.items():
        assert words in lines[name]
    assert "refuted" in repr(made["attack"]).partition(":")[2]


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(STORED)),
    changes=st.lists(st.tuples(st.integers(0, 10**6), ODD | st.text() | st.just("LONG")), min_size=1, max_size=6),
)
def test_whatever_a_file_holds_the_line_is_short_and_the_head_is_whole(name, changes):
    result = copy.deepcopy(STORED[name])
    for index, odd in changes:
        places = [place for place in _places(result) if place != ("schema",)]
        path = places[index % len(places)]
        value = "long " * 1000 if odd == "LONG" else copy.deepcopy(odd)
        functools.reduce(operator.getitem, path[:-1], result)[path[-1]] = value
    model, _ = read(result)
    line = repr(model)
    assert len(line) <= LONGEST < 300
    assert line.isprintable()
    assert line.startswith(f"<{type(model).__name__} ")
    assert line.endswith(">")
    Page(model._repr_html_())
    assert all(isinstance(row, dict) for row in Display(model).rows())


def test_a_line_never_cuts_the_verdict_or_its_numbers(results):
    result = results["attack"]
    for key in ("method", "dataset", "adversary"):
        result[key] = "long " * 100
    result["privacy"]["adversary"] = "long " * 100
    line = repr(read(result)[0])
    assert len(line) <= LONGEST
    for words in (": refuted", "measured: ε ≥ 2.13", "proven: ε ≤ 5.82"):
        assert words in line


def test_the_head_is_that_of_the_page_and_nothing_else_of_it(made):
    for name, result in made.items():
        html = result._repr_html_()
        page = Page(html)
        assert "header" in page.tags, name
        assert {"script", "section", "nav", "svg", "body", "details"}.isdisjoint(page.tags)
        assert all(reference.startswith("https://") for reference in page.references)  # a notebook has no page to go to
        assert not any(attribute.startswith("on") for attribute in page.attributes)
        verdict = result.verdict
        if verdict is not None and not isinstance(result, AttackResult):
            assert words_of(verdict) in page.text
    text = " ".join(Page(made["attack"]._repr_html_()).text.split())
    for words in ("dpzv on digits: refuted", "refuted: ε ≤ 1", "What to do next.", "dpzv-audit calibrate"):
        assert words in text


def test_the_style_of_a_head_is_for_it_alone(made):
    (style,) = re.findall(r"<style>(.*?)</style>", made["attack"]._repr_html_(), re.DOTALL)
    depth, outside = 0, ""
    for character in re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL):
        depth += (character == "{") - (character == "}")
        outside += character if depth == 0 else ""
        assert depth >= 0
    assert outside.replace("}", "").split() == [".dpzv-audit"]
    assert ":root" not in style
    assert not re.search(r"(?<!\w)body", style)
    assert ".records tbody {" in style


def test_what_a_result_holds_is_text_in_its_head(results):
    result = results["attack"]
    result |= {"method": HOSTILE, "dataset": HOSTILE, "sentence": HOSTILE, "attack": HOSTILE}
    model, _ = read(result)
    page = Page(model._repr_html_())
    assert {"script", "img"}.isdisjoint(page.tags)
    assert '<script>alert("1")' in page.text
    assert repr(model).isprintable()


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_a_plot_is_the_figure_that_decides(made):
    before = dict.copy(matplotlib.rcParams)
    for name, words in {
        "attack": ("the claim", "ε ≤ 1", "ε ≥ 2.13", "ε ≤ 5.82"),
        "audit": ("ε ≤ 1", "ε ≥ 0.412"),
        "audit-scores": ("ε ≤ 1", "ε ≥ 2.13"),
        "train": ("test accuracy", "epoch", "frozen-clients 0.861"),
        "account": ("ε ≤ 1", "ε ≤ 5.82"),
        "planted": ("noise-over-b", "the claim"),
        "attacks": ("0.56",),
        "matrix": ("a, client", ".56"),
        "verify": (),
    }.items():
        figure = made[name].plot()
        assert isinstance(figure, matplotlib.figure.Figure)
        assert all(each in texts(figure) for each in words), (name, texts(figure))
        assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    assert dict.copy(matplotlib.rcParams) == before  # the user's backend, too, is yet to be chosen
    assert sys.modules.get("matplotlib.pyplot") is None or matplotlib.pyplot.get_fignums() == []
    pickle.loads(pickle.dumps(made["attack"].plot()))


def test_an_attack_without_a_claim_plots_its_success_beside_its_baselines(results):
    result = results["attack"]
    result["privacy"] = {}
    drawn = texts(read(result)[0].plot())
    for words in ("label_direct", "0.121  [0.104, 0.139]", "baseline: majority", "control: shuffled labels"):
        assert words in drawn


def test_where_nothing_can_be_drawn_an_error_says_so_in_one_line():
    for empty in (TrainResult(), AttacksResult(), MatrixResult()):
        with pytest.raises(InputError, match=rf"^this {type(empty).__name__} has no numbers to draw[^\n]*$"):
            empty.plot()


def test_the_verdict_is_the_one_that_was_judged(made, results):
    assert made["attack"].verdict is made["attack"].privacy.judged
    assert made["audit-scores"].verdict is made["audit-scores"].claim.judged
    assert made["train"].verdict is made["planted"].verdict is made["attacks"].verdict is None
    result = results["attack"]
    result["privacy"]["verdict"] = "supported"  # the file contradicts itself
    assert read(result)[0].verdict is None


def test_the_verdict_on_a_file_is_the_gravest():
    rng = np.random.default_rng(3)
    claims = [random_claim(rng, place) for place in range(40)]
    assert {claim.verdict for claim in claims} >= {"refuted", "supported"}
    result = file_of(claims)
    assert result.verdict.word == "refuted"
    assert list(result.verdicts.values()) == [claim.judged for claim in claims]
    supported = [claim for claim in claims if claim.verdict == "supported"]
    assert file_of(supported).verdict.word == "supported"
    assert VerifyResult.model_validate({**dict(file_of(claims)), "claims": []}).verdict is None


ROWS = {"attack": 1, "train": 1, "audit": 1, "audit-scores": 2, "planted": 4, "attacks": 2, "matrix": 2, "verify": 3}


def test_rows_have_the_numbers_of_the_result(made):
    rows = {name: Display(result).rows() for name, result in made.items()}
    assert {name: len(rows[name]) for name in ROWS} == ROWS
    (attack,) = rows["attack"]
    shown = ("method", "attack", "success", "success_low", "baseline", "claimed", "verdict", "measured", "proven")
    assert [attack[key] for key in shown] == [
        *("dpzv", "label_direct", 0.1207, 0.1042, 0.1044, 1.0, "refuted", 2.1374, made["attack"].privacy.upper)
    ]
    assert rows["account"][0]["epsilon"] == made["account"].bounds[0].epsilon.upper
    assert rows["attacks"][0]["success"] == 0.6
    (unclaimed,) = rows["train"]
    assert (unclaimed["accuracy"], unclaimed["verdict"]) == (0.9126, None)
    assert np.isnan([unclaimed[key] for key in ("measured", "proven", "claimed", "delta")]).all()


def test_frames_are_of_these_rows(made):
    pandas = pytest.importorskip("pandas", reason="needs pandas, of the extra [test]")
    for name, result in made.items():
        frame = result.to_frame()
        assert isinstance(frame, pandas.DataFrame)
        assert len(frame) == len(Display(result).rows()), name
    together = pandas.concat([made[name].to_frame() for name in ("attack", "train", "audit")])
    assert list(together["claimed"]) == pytest.approx([1.0, np.nan, 1.0], nan_ok=True)


def test_without_pandas_one_line_says_how_to_get_it(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    words = r"^to_frame\(\) needs pandas, which is not installed: pip install pandas$"
    with pytest.raises(ModuleNotFoundError, match=words):
        made["attack"].to_frame()
