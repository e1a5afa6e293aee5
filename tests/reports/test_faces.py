"""A verdict says the same on every face: terminal, HTML, Markdown, JSON, JUnit, SARIF, summary, pytest and Python."""

import html
import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from dpzv_audit.base.findings import Void
from dpzv_audit.base.rounding import down, up
from dpzv_audit.claims.api import ClaimVerdict
from dpzv_audit.cli.output import _show, print_table
from dpzv_audit.cli.verify import verdict_table
from dpzv_audit.evidence.sentences import said
from dpzv_audit.evidence.verdict import GIVEN_GAUSSIAN, STATED, VERDICTS, decide, fails, on_privacy, why_powerless
from dpzv_audit.results import ClaimResult, GateOptions, Measured, Privacy, Proven, Verdict, VerifyResult, read
from reports.answer import answer_of
from reports.ci import to_junit, to_sarif, to_summary
from reports.content import report_content
from reports.display import Display
from reports.figures import epsilon_figure
from reports.render import to_html, to_markdown
from reports.verdicts import lines_of, measured_of, proven_of, words_of

from .conftest import RESULTS

CLAIMS = 500
A_FILE = 25
WORDS = ("sampler", "messages", "canary", "noise", "pilot", "budget", "labels", "gradient")
PICTURE = epsilon_figure(1.0, 0.5, 2.0)
"""One picture for all claims: drawing takes longer than all else, and numbers are compared in words."""
VOIDS = (
    Void(reason="failed-control", words="the positive control failed"),
    Void(reason="failed-control", words="the negative control is off chance", refutations=True),
    Void(reason="unread-messages", words="no score reads messages of kind table"),
)


def texts(rng, most):
    return [f"{' '.join(rng.choice(WORDS, 4))} {rng.integers(1000)}" for _ in range(rng.integers(most + 1))]


def random_claim(rng, place):
    """A claim with random facts, judged as the tool judges: word and reason by `decide`, sentences by the templates."""
    attack = bool(rng.integers(2))
    stated = bool(rng.integers(2))
    theory = not attack and bool(rng.integers(2))
    upper = float(rng.exponential(2.0)) if theory and rng.integers(2) else None
    rates = [float(rate) for rate in rng.random(rng.integers(3))] if attack else []
    success = float(np.mean(rates)) if rates else None
    claimed = float(np.round(rng.random() if attack else rng.exponential(1.0) + 0.01, 3))
    lower = float(rng.exponential(1.0)) if not attack and rng.integers(3) else None
    if rng.integers(2):  # bounds that differ from the claim in late digits alone
        upper, lower = (None if bound is None else claimed * (1.0 + rng.normal(0.0, 1e-4)) for bound in (upper, lower))
    tested = bool(rates) or lower is not None
    measured_value = success if attack else lower
    refuted = tested and measured_value > claimed
    voids = [VOIDS[i] for i in np.flatnonzero(rng.random(len(VOIDS)) < 0.1)]
    limit = min(1.0, success + 0.1) if success is not None and rng.integers(2) else None
    word, reason = decide(
        refuted=refuted,
        theory=theory,
        upper=upper,
        claimed=None if attack else claimed,
        voids=voids,
        held=limit is not None and limit <= claimed and not voids,
        powerless=why_powerless(tested=tested, could_refute=bool(rng.integers(2))),
    )
    assumption = GIVEN_GAUSSIAN if word == "refuted" and not attack and rng.integers(2) else ""
    measured = None
    if measured_value is not None:
        kind = "success" if attack else "epsilon"
        measured = Measured(quantity=kind, value=measured_value, confidence=0.999, limit=limit)
    judged = Verdict(
        claim=f"success of label_norm at most {100 * claimed:g}%" if attack else f"epsilon at most {claimed:g}",
        claimed=claimed,
        adversary="client",
        word=word,
        reason=reason,
        why="",
        given=assumption,
        measured=measured,
        proven=None if upper is None else Proven(value=upper, rests_on=STATED if stated else ""),
        not_tested=texts(rng, 2),
        warnings=texts(rng, 2),
    )
    entry = ClaimResult.model_validate(
        {
            "name": f"claim {place}",
            "form": "attack" if attack else "system",
            "source": None,
            "line": place + 1,
            "claim": {"attack": "label_norm", "success_at_most": claimed, "adversary": "client"}
            if attack
            else {"epsilon": claimed, "adversary": "client"},
            "verdict": word,
            "judged": judged,
            "p_value": 0.5,
            "adjusted_p_value": 1.0,
            "level": 1e-3,
            "epsilon_lower": lower,
            "ceiling": 5.0,
            "given": assumption,
            "upper": upper,
            "accountant": "",
            "gap": "server-state" if theory and upper is None else "",
            "explanations": {},
            "bounds": [],
            "looks": [],
            "attack": {"mounted": "label_norm", "success": success} if rates else {},
            "rates": rates,
            "tradeoff": None,
            "trials": 8,
            "missing": "",
            "unaudited": "",
            "facts": {},
            "evidence_key": "k",
            "scores_digest": "d",
            "refuted_by": None,
            "sentence": "",
            "fails": fails(word, audited=True),
        }
    )
    why = said("claim", entry, upper is not None and upper <= claimed, voids)
    return entry.model_copy(update={"judged": judged.model_copy(update={"why": why}), "sentence": why})


def file_of(claims):
    return VerifyResult(
        claims_file="claims.toml",
        alpha=1e-3,
        level=1e-3,
        seed=0,
        summary={word: sum(claim.verdict == word for claim in claims) for word in VERDICTS},
        sentence="",
        interrupted=False,
        missing=[],
        failed=any(claim.fails for claim in claims),
        options=GateOptions(strict=False),
        claims=claims,
    )


def plain(text):
    """Text as a reader sees it: no markup, no escapes, one line."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", text)).replace("\\", "")
    return " ".join(text.replace("\u00a0", " ").split())


def spelt(text):
    """The same with signs in letters, in lower case, and no space before a mark."""
    text = plain(text)
    for sign, words in {"ε": "epsilon", "δ": "delta", "≤": "<=", "≥": ">="}.items():
        text = text.replace(sign, words)
    return re.sub(r" ([,.:;])", r"\1", text).lower()


def on_terminal(claims):
    stream = io.StringIO()
    print_table(Console(file=stream, width=400), verdict_table(claims))
    rows = stream.getvalue().splitlines()
    lines_by_claim = {}
    for claim in claims:
        (row,) = (line for line in rows if f"{claim.name} " in line)
        lines_by_claim[claim.name] = f"{row} {' '.join(lines_of(claim.judged))}"
    return lines_by_claim


def section(page, claim):
    """The part of an HTML page about a claim, by its heading."""
    start = page.index(f">{claim.name}</h2>")
    return page[start : page.index("</section>", start)]


@pytest.mark.parametrize("number", range(CLAIMS // A_FILE))
def test_all_faces_agree_on_word_numbers_and_warnings(number):
    rng = np.random.default_rng([36, number])
    claims = [random_claim(rng, place) for place in range(A_FILE)]
    result = file_of(claims)
    report = report_content(result, drawings=lambda key, draw: PICTURE)
    page, markdown = to_html(report), to_markdown(report)
    cases = {case.get("name"): case for case in ElementTree.fromstring(to_junit(result)).iter("testcase")}
    sarif = {
        item["partialFingerprints"]["claimName/v1"]: item for item in json.loads(to_sarif(result))["runs"][0]["results"]
    }
    summary = to_summary(result)
    stored = {item["name"]: item for item in json.loads(json.dumps(result.to_json()))["claims"]}
    terminal = on_terminal(claims)
    for claim in claims:
        judged = claim.judged
        entry = ClaimVerdict(
            name=claim.name,
            verdict=claim.verdict,
            sentence="",
            p_value=0.5,
            epsilon_lower=None,
            upper=None,
            entry=claim,
        )
        said_below = markdown[markdown.index(f"\n## {claim.name}\n") :]
        junit = cases[claim.name]
        faces = {
            "terminal": terminal[claim.name],
            "html": section(page, claim),
            "markdown": said_below[: said_below.find("\n## ", 4)],
            "junit": " ".join([junit[0].get("message") or "", junit[0].text or ""]),
            "sarif": sarif[claim.name]["message"]["text"],
            "pytest": str(entry),
            "notebook": file_of([claim])._repr_html_(),
        }
        numbers = []
        if judged.measured is not None:
            value = judged.measured.value
            numbers.append(
                f"{100 * value:.1f}%" if judged.measured.quantity == "success" else down(value, beside=claim.claimed)
            )
            assert numbers[-1] in (measured_of(judged) or "")
        if judged.proven is not None:
            numbers.append(up(judged.proven.value, beside=claim.claimed))
            assert numbers[-1] in (proven_of(judged) or "")
        for face, text in faces.items():
            text = plain(text)
            assert words_of(judged).lower() in text.lower(), (face, text)
            for expected in (*judged.not_tested, *judged.warnings, *numbers):
                assert expected in text, (face, expected, text)
            if claim.form != "attack" and judged.measured is not None:
                lower = [float(shown) for shown in re.findall(r"epsilon of at least (\d+(?:\.\d+)?)", text)]
                assert {shown > claim.claimed for shown in lower} <= {judged.measured.value > claim.claimed}
        alone = file_of([claim])
        assert alone.verdict == result.verdicts[claim.name] == judged
        line = repr(alone)
        assert len(line) < 300
        assert all(shown in line for shown in (words_of(judged), *numbers)), line
        (frame,) = Display(alone).rows()
        assert (frame["claim"], frame["verdict"], frame["given"]) == (claim.name, judged.word, judged.given)
        for shown in ("measured", "proven"):
            number = getattr(judged, shown)
            np.testing.assert_equal(frame[shown], np.nan if number is None else number.value)
        assert frame["not_tested"].split("; ") == (judged.not_tested or [""])
        assert frame["warnings"].split("; ") == (list(dict.fromkeys(judged.warnings)) or [""])
        row = next(line for line in summary.splitlines() if line.startswith(f"| {claim.name} |"))
        assert f"| {words_of(judged)} |" in row
        for shown in (measured_of(judged), proven_of(judged)):
            assert shown is None or shown in plain(row)
        if judged.not_tested or judged.warnings:
            noted = plain(next(line for line in summary.splitlines() if line.startswith(f"- **{claim.name}**")))
            assert all(text in noted for text in (*judged.not_tested, *judged.warnings))
        assert Verdict.model_validate(stored[claim.name]["judged"]) == judged
        assert stored[claim.name]["verdict"] == judged.word
        assert sarif[claim.name]["ruleId"] == f"claim-{judged.word}"


@pytest.mark.parametrize("name", [*RESULTS, "many", "one"])
def test_the_head_of_a_page_has_what_the_terminal_prints(name):
    claims = [random_claim(np.random.default_rng([5, place]), place) for place in range(1 if name == "one" else 30)]
    result = read(RESULTS[name])[0] if name in RESULTS else file_of(claims)
    answer = answer_of(result)
    judgement = answer.judgement
    stream = io.StringIO()
    _show(Console(file=stream, width=4000), answer)
    report = report_content(result, drawings=lambda key, draw: PICTURE)
    page, markdown = to_html(report), to_markdown(report)
    faces = {
        "terminal": html.escape(stream.getvalue()),
        "html": page.partition("<main>")[0],
        "summary": to_html(report, summary=True),
        "markdown": markdown.partition("\n## ")[0],
        "notebook": result._repr_html_(),
    }
    # The terminal names the attacker in the subject alone.
    claim, _, whom = judgement.about.rpartition(" against ")
    about = claim if claim and f"Attacker: {whom}." in answer.subject else judgement.about
    texts = [answer.subject, judgement.word, about, *judgement.notes[: answer.printed_notes]]
    texts += [answer.why, *answer.facts.values(), answer.caption, answer.more, answer.checks]
    texts += [str(cell) for row in answer.rows for cell in row.values() if cell]
    texts += [judgement.step.words.rstrip("."), judgement.step.command] if judgement.step else []
    for face, shown in faces.items():
        shown = spelt(shown)
        for text in texts:
            assert spelt(html.escape(text)) in shown, (face, text)


def test_a_claim_of_a_result_has_the_word_of_what_was_judged():
    claim = random_claim(np.random.default_rng(1), 0)
    other = next(word for word in VERDICTS if word != claim.verdict)
    with pytest.raises(ValueError, match=f"verdict {other} is not {claim.verdict}"):
        ClaimResult.model_validate({**claim.to_json(), "verdict": other})


@pytest.mark.parametrize(
    ("privacy", "theory", "word"),
    [
        ({"empirical_lower": 1.1, "upper": 0.5}, True, "refuted"),
        ({"empirical_lower": 1.0, "upper": 1.0}, True, "supported"),
        ({"empirical_lower": 0.5}, True, "overclaimed"),
        ({"empirical_lower": None}, True, "overclaimed"),
        ({"empirical_lower": None}, False, "not-tested"),
    ],
)
def test_an_audit_is_judged_by_its_numbers(privacy, theory, word):
    found = on_privacy(Privacy(claimed=1.0, delta=1e-5, adversary="client", **privacy), theory=theory)
    assert found.verdict == found.judged.word == word


def test_nothing_is_judged_where_nothing_is_claimed():
    assert on_privacy(Privacy(empirical_lower=1.0), theory=True).judged is None
