import copy
import functools
import json
import math
import operator
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpzv_audit.results import read
from reports.content import report_content
from reports.render import to_html, to_markdown, write_report

from ..helpers.refusals import refused

NAMES = ("attack", "train", "audit", "audit-scores", "planted", "account", "reproduce")
HOSTILE = (
    '<script>alert("1")</script> \'"> <img src=x onerror=y> | \\| `code` **b** [l](http://e.x) $x$ '
    "\x1b\u202e\ud800 {{ 7*7 }}"
)
VOID = {"meta", "br", "img", "link", "input", "hr", "col"}


class Page(HTMLParser):
    """Reads a page: checks that elements close in order, collects text, tags, ids and references."""

    def __init__(self, source):
        super().__init__()
        self.open = []
        self.tags = []
        self.ids = []
        self.references = []
        self.attributes = set()
        self.words = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action", "data", "srcset"):
                self.references.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


CLAIM = "ε ≤ 1 (δ = 1e-05, one label changed) against one curious client"


def render_html(result):
    return to_html(report_content(*read(result)))


def render_markdown(result):
    return to_markdown(report_content(*read(result)))


def plain(page):
    """A page with every space an ordinary one."""
    return page.replace("\u00a0", " ")


def both(result):
    """Return the words of the page and the Markdown, from one drawing of the figures."""
    content = report_content(*read(result))
    return Page(to_html(content)).text, to_markdown(content)


DRAWN = (("tradeoff",), ("utility", "history"), ("figures",), ("rows", "", "accuracy"), ("rows", "", "paper_accuracy"))
"""Parts that figures draw, or cells hold as text."""
FILES = {"table.md", "result.json", "environment.json"}
"""What a page may link to: files of its own folder."""


def numbers_in(value, path=()):
    """Return every number of a result but those of curves and training history, which tables thin out."""
    if isinstance(value, bool) or path in DRAWN:
        return [value["confidence"]] if path == ("tradeoff",) and value else []
    if isinstance(value, dict):
        return [x for k, v in value.items() for x in numbers_in(v, (*path, k))]
    if isinstance(value, list):
        return [x for v in value for x in numbers_in(v, (*path, ""))]
    return [value] if isinstance(value, int | float) else []


def printed(text):
    """Return the numbers a reader sees in `text`, a percentage as a proportion."""
    found = re.findall(r"(?<![\w.])-?[\d,]*\.?\d+(?:e-?\d+)?%?", text.replace("\\", ""))
    return [float(x.rstrip("%").replace(",", "")) / (100 if x.endswith("%") else 1) for x in found]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_printed(name, results):
    result = results[name]
    expected = numbers_in(result)
    assert len(expected) > 10
    for drawn in both(result):
        shown = printed(drawn)
        for number in expected:
            size = max(abs(number), 1e-9)
            unit = 1e-3 if 0.01 <= size < 1.0 else 10.0 ** (math.floor(math.log10(size)) - 2)  # of the third digit
            assert any(abs(number - s) <= 1.0001 * unit for s in shown), number


@pytest.mark.parametrize("name", NAMES)
def test_the_page_stands_alone(name, results):
    source = render_html(results[name])
    page = Page(source)
    assert "script" not in page.tags
    assert not {"link", "iframe", "object", "embed", "img", "form"} & set(page.tags)
    anchors = {reference for reference in page.references if reference not in FILES}
    assert all(reference.startswith("#") for reference in anchors)
    assert {r[1:] for r in anchors} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not any(attribute.startswith("on") for attribute in page.attributes)
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", source)
    assert not re.search(r"https?://|@import|url\((?!#)", without_names)
    assert len(source.encode()) < 400_000
    assert page.tags.count("h1") == 1


@pytest.mark.parametrize("name", NAMES)
def test_rendering_is_deterministic_and_leaves_the_result_alone(name, results):
    result = results[name]
    before = json.dumps(result)
    assert render_html(result) == render_html(result)
    assert render_markdown(result) == render_markdown(result)
    assert json.dumps(result) == before


def test_verdicts_use_their_own_words(results):
    html, markdown = render_html(results["attack"]), render_markdown(results["attack"])
    assert f'<strong class="word alarming"><a href="#word-refuted">refuted</a>: {CLAIM}</strong>' in plain(html)
    assert (
        '<div id="word-refuted"><dt>refuted</dt><dd>The claim is false. If a claim is true, an audit at 95% confidence'
        in html
    )
    assert f"**Refuted: {CLAIM}.** The claim is false. If a claim is true, an audit at 95% confidence" in markdown
    assert "| measured | ε ≥ 2.13, 95% confidence (audit) |" in markdown
    html, markdown = render_html(results["audit"]), render_markdown(results["audit"])
    assert f'<strong class="word"><a href="#word-inconclusive">inconclusive</a>: {CLAIM}</strong>' in plain(html)
    assert "It was tested and not refuted; no theorem proves it." in markdown
    assert "passed" not in html + markdown


def test_a_verdict_that_does_not_exist_is_not_shown_as_one(results):
    results["audit"]["privacy"]["verdict"] = "passed"
    html, markdown = render_html(results["audit"]), render_markdown(results["audit"])
    assert f'<strong class="word"><a href="#word-not-judged">not judged</a>: {CLAIM}</strong>' in plain(html)
    assert "passed" not in markdown.partition("##")[0]
    assert "Everything else" in html
    assert "Everything else" in markdown


def test_an_upper_bound_that_rests_on_a_gap_says_so(results):
    result = results["attack"]
    result["privacy"] |= {"upper": None, "gap": "server-state"}
    for drawn in both(result):
        assert "no sound bound (gap server-state: " in drawn
    result["privacy"] |= {"upper": 0.98}
    assert "rests on a proof gap: server-state" in render_markdown(result)


OPTIONAL = (
    ("privacy", "upper"),
    ("privacy", "empirical_lower"),
    ("privacy", "claimed"),
    ("privacy", "bounds"),
    ("privacy", "estimators"),
    ("privacy", "verdict"),
    ("tradeoff",),
    ("privacy",),
    ("success",),
    ("controls",),
    ("baselines",),
    ("utility",),
    ("bytes",),
    ("data",),
)


@pytest.mark.parametrize("drop", OPTIONAL)
def test_parts_may_be_missing(drop, results):
    place = results["attack"] if len(drop) == 1 else results["attack"][drop[0]]
    del place[drop[-1]]
    page, markdown = both(results["attack"])
    assert "None" not in page
    assert "None" not in markdown


def test_parts_may_be_null(results):
    result = results["attack"]
    for size in (2, 1):
        for drop in (drop for drop in OPTIONAL if len(drop) == size):
            (result if size == 1 else result[drop[0]])[drop[-1]] = None
        page, markdown = both(result)
        assert "None" not in page
        assert "None" not in markdown


def spoil(value):
    """Return `value` with hostile text in the place of every key and string but the ones a result needs."""
    if isinstance(value, dict):
        return {k: spoil(v) for k, v in value.items()}
    if isinstance(value, list):
        return [spoil(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


def test_hostile_text_is_inert_everywhere(results):
    for result in results.values():
        hostile = spoil(result) | {"schema": result["schema"]}
        for key in ("config", "controls", "baselines", "versions", "more"):
            hostile[key] = {HOSTILE: 0.5}
        source = render_html(hostile)
        page = Page(source)
        assert not {"script", "img", "b"} & set(page.tags)
        assert not any(attribute.startswith("on") for attribute in page.attributes)
        assert all(reference.startswith("#") or reference in FILES for reference in page.references)
        assert "\x1b" not in source
        assert "\u202e" not in source
        assert "{{ 7*7 }}" in page.text
        source.encode("utf-8")
        markdown = render_markdown(hostile)
        markdown.encode("utf-8")
        outside = re.sub(r"```(?:json|sh)\n.*?\n```", "", markdown, flags=re.DOTALL)
        assert "<" not in outside
        assert "://" not in outside
        assert "\x1b" not in markdown
        tables = re.findall(r"(?:^\|.*\|$\n?)+", outside, flags=re.MULTILINE)
        assert tables
        for table in tables:
            bars = [re.sub(r"\\.", "", line).count("|") for line in table.splitlines()]
            assert len(set(bars)) == 1


def test_unknown_keys_are_kept_as_json(results):
    result = results["attack"]
    result["surprise"] = {"deep": [1, {"text": "</code><b>"}]}
    result["privacy"]["new"] = 0.777
    for drawn in (render_html(result), render_markdown(result)):
        assert "Everything else" in drawn
        assert "surprise" in drawn
        assert "0.777" in drawn
        assert "\\u003c/code\\u003e" in drawn
    assert "Everything else" not in render_html(results["train"])


def test_deeply_nested_extras_do_not_break_the_report(results):
    deep = 1
    for _ in range(20_000):
        deep = [deep]
    assert "nested too deeply" in render_html(results["train"] | {"deep": deep})


@pytest.mark.parametrize("schema", [None, 7, "dpzv-audit/attack/99", "<b>\x1b"])
def test_an_unknown_schema_is_one_line(schema):
    with refused("use one of dpzv-audit/attack/1") as caught:
        render_html({"schema": schema})
    assert "\x1b" not in str(caught.value)


ODD = st.sampled_from([None, True, -1, 10**400, float("nan"), float("inf"), 1e308, "x", [], {}, [1], {"a": {}}, [[{}]]])


def _places(value, path=()):
    """Return the path of every value in a result, of the first two in a list."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [
        place
        for key, item in list(inner)[: 2 if isinstance(value, list) else None]
        for place in [(*path, key), *_places(item, (*path, key))]
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(NAMES),
    changes=st.lists(st.tuples(st.integers(0, 10**6), ODD), min_size=1, max_size=3),
)
@pytest.mark.ci
def test_any_value_in_any_place_renders(name, changes, results):
    result = copy.deepcopy(results[name])
    for index, odd in changes:
        places = [place for place in _places(result) if place != ("schema",)]
        path = places[index % len(places)]
        functools.reduce(operator.getitem, path[:-1], result)[path[-1]] = copy.deepcopy(odd)
    page, markdown = both(result)
    assert page
    assert markdown


def test_write_report_writes_page_markdown_and_figures(run_folder):
    before = (run_folder / "result.json").read_bytes()
    files = write_report(run_folder)
    names = {"report.html", "report.md", "figure-success.svg", "figure-tradeoff.svg", "figure-epsilon.svg"}
    assert {file.name for file in files} == names
    assert {file.name for file in run_folder.iterdir()} == names | {"result.json"}
    assert (run_folder / "result.json").read_bytes() == before
    for name in re.findall(r"\]\(([^)]+)\)", (run_folder / "report.md").read_text("utf-8")):
        assert (run_folder / name).is_file()
    first = {file: file.read_bytes() for file in files}
    write_report(run_folder)
    assert {file: file.read_bytes() for file in files} == first


def test_write_report_leaves_nothing_half_written(run_folder, monkeypatch):
    (run_folder / "report.html").write_text("old", encoding="utf-8")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(run_folder)
    assert {file.name for file in run_folder.iterdir()} == {"result.json", "report.html"}
    assert (run_folder / "report.html").read_text("utf-8") == "old"


def test_importing_reports_loads_no_matplotlib():
    import subprocess
    import sys

    code = "import sys, reports.render; sys.exit(bool({'matplotlib', 'torch', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
