"""Every command of every page: taken by the command line, and run as `docs/blocks.py` says; what it prints is fresh."""

import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import typer

from dpzv_audit.claims.file import parse_claims
from dpzv_audit.cli import app

from .loaded import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = {str(page.relative_to(ROOT)): page for page in blocks.pages()}
RUN_NOW = [name for name, page in PAGES.items() if any(b.runs(slow=False) for b in blocks.blocks(page))]
LONG = {
    "docs/guide/statistics.md",
    "docs/guide/from-flower.md",
    "README.md",
    "docs/ci.md",
    "docs/printed/attacks/feature_hijacking.md",
    "docs/printed/attacks/feature_hijacking-published.md",
    "docs/printed/methods/fixed-features.md",
    "docs/results/method-figures.md",
    "docs/guide/attacks.md",
    "docs/guide/first-audit.md",
    "docs/guide/own-system.md",
    "docs/understand/verdicts.md",
    "docs/printed/guide/attacks.md",
    "docs/printed/guide/audits.md",
    "docs/printed/guide/ci.md",
    "docs/printed/guide/from-flower.md",
    "docs/printed/guide/own-system.md",
    "docs/printed/guide/first-audit.md",
    "docs/reference/index.md",
    "examples/trees/README.md",
}
"""Pages whose commands take longer than a few seconds also at their small size."""
REPEATED = {
    "docs/results/cost-of-soundness.md",
    "docs/results/matrix.md",
    "docs/results/rates.md",
    "docs/results/cascaded-table2-mnist.md",
    "docs/results/czofo-order.md",
    "docs/results/direct-mnist.md",
    "docs/results/dpzv-table1-mnist.md",
}
"""Pages whose commands run always elsewhere: `reproduce` and `matrix`, on other pages and in tests of these."""


def sized(name):
    """Return the parameter of a page by how long its commands take."""
    if name in REPEATED:
        return pytest.param(name, marks=pytest.mark.slow)
    return pytest.param(name, marks=pytest.mark.ci) if name in LONG else name


RUN_SLOW = [name for name, page in PAGES.items() if any(b.runs(slow=True) for b in blocks.blocks(page))]


def parsed(words):
    """Let the command line take `words` without running them."""
    command = typer.main.get_command(app)
    context = command.make_context("dpzv-audit", words.copy())
    name = words[0]
    context.command.get_command(context, name).make_context(name, words[1:], parent=context)


def in_sentences(text):
    """What follows `dpzv-audit` in the commands of a page that stand outside its blocks."""
    return blocks.arguments("\n".join(re.findall(r"(?<!`)`(dpzv-audit [^`]+)`(?!`)", blocks.FENCE.sub("", text))))


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_taken(name):
    text = PAGES[name].read_text()
    fenced = "\n".join(block.text for block in blocks.blocks(PAGES[name]))
    for words in in_sentences(text) + blocks.arguments(fenced):
        if words in (["--help"], ["--version"]):
            continue
        try:
            parsed(words)
        except (typer.Exit, SystemExit):
            pass  # --help of a command
        except Exception as error:
            raise AssertionError(f"{name}: dpzv-audit {' '.join(words)}: {error}") from error


@pytest.mark.parametrize("name", PAGES)
def test_commands_stand_in_fences(name):
    """An indented block has no language and no comment: nobody could run it."""
    outside = blocks.FENCE.sub("", PAGES[name].read_text())
    assert not re.findall(r"^(?: {4}|\t)(?:\$ )?(?:dpzv-audit|python|pytest) .*", outside, flags=re.MULTILINE)


SMALL = {
    "attack": "--epochs 1 --trials 2 --runs 64",
    "audit": "--runs 64",
    "audit method": "--runs 64 --epochs 1",
    "audit method dpzv": "--runs 64 --epochs 1",
    "matrix": "--methods vafl --epochs 1 --trials 1 --no-self-check",
    "reproduce": "--epochs 1 --trials 1 --records 500",
    "train": "--epochs 1 --no-controls",
}
WHOLE = sorted(
    {
        shlex.join(words)
        for page in PAGES.values()
        for words in in_sentences(page.read_text())
        # One word names a command, and capitals or dots stand for what the reader has.
        if len(words) > 1 and not any(word.isupper() or "..." in word for word in words)
    }
)


@pytest.mark.parametrize("command", WHOLE)
def test_commands_in_sentences_run_at_a_small_size(command, tmp_path, forked):
    if "--data-dir data" in command and "DPZV_AUDIT_DATA" not in os.environ:
        pytest.skip("needs DPZV_AUDIT_DATA")
    environment = blocks.prepare(tmp_path, start=forked)
    block = blocks.Block(page=ROOT / "README.md", line=0, language="sh", text=f"dpzv-audit {command}")
    shutil.copytree(ROOT / "examples", tmp_path, dirs_exist_ok=True)
    ran = blocks.run(
        block, tmp_path, environment, extra=SMALL.get(command, SMALL.get(command.split()[0], "")), limit=600
    )
    assert ran.code == 0, ran.text


def plain(text):
    """`text` without what differs from run to run (time, memory, dates) and without the widths of tables."""
    text = re.sub(r"\d{8}-\d{6}", "DATE", text)
    text = re.sub(r"[\d.,]+ (s|ms|min|h|MB|GB)\b", r"# \1", text)
    return re.sub(r"[ ─━]+", " ", text)


NUMBER = re.compile(r"\d+\.\d+")


def same_output(printed, shown):
    """Return whether two outputs agree; a decimal may differ by one in its last digit, as other processors round."""
    if NUMBER.sub("#", plain(printed)) != NUMBER.sub("#", plain(shown)):
        return False
    pairs = zip(NUMBER.findall(plain(printed)), NUMBER.findall(plain(shown)), strict=True)
    return all(abs(float(a) - float(b)) < 1.5 * 10.0 ** -len(b.partition(".")[2]) for a, b in pairs)


def go_through(page, folder, *, slow, start=()):
    """Run the blocks of a page in order in one folder, as a reader would, and compare what they print."""
    wanted = [block for block in blocks.blocks(page) if block.runs(slow=slow)]
    if not any(block.can_run for block in wanted):
        pytest.skip("needs DPZV_AUDIT_DATA, or a library that is not installed")
    environment = blocks.prepare(folder, checkout=any(block.checkout for block in wanted), start=start)
    for block in wanted:
        if not block.can_run:
            continue
        extra = block.extra if block.only_small or not slow else ""
        ran = blocks.run(block, folder, environment, extra=extra, limit=1200 if slow else 600)
        assert "Traceback" not in ran.text, f"{block.where}\n{ran.text}"
        if extra and not block.only_small:  # of fewer runs a claim may be refuted, or not
            assert ran.code in (0, 1), f"{block.where}\n{ran.text}"
        elif block.language == "console" and not extra:
            assert same_output(ran.text, block.text), f"{block.where} is stale: python docs/tour.py {page}"
        else:
            assert ran.code == block.code, f"{block.where}\n{ran.text}"
            if block.printed is not None and not extra:
                assert same_output(ran.text, block.printed), f"{block.where} is stale: python docs/tour.py {page}"


@pytest.mark.parametrize("name", [*map(sized, RUN_NOW)])
def test_commands_run_as_printed_or_at_a_small_size(name, tmp_path, forked):
    go_through(PAGES[name], tmp_path, slow=False, start=forked)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_SLOW)
def test_commands_run_as_printed(name, tmp_path):
    go_through(PAGES[name], tmp_path, slow=True)


@pytest.mark.parametrize("name", PAGES)
def test_code_in_pages_is_code(name, tmp_path):
    for block in blocks.blocks(PAGES[name]):
        if block.language == "python":
            compile(block.text, block.where, "exec")
        elif block.language == "toml":
            if "[[claim]]" in block.text:
                assert parse_claims(block.text, tmp_path / "claims.toml").claims
            tomllib.loads(block.text)


@pytest.mark.parametrize("name", PAGES)
def test_what_runs_elsewhere_says_where(name):
    for block in blocks.blocks(PAGES[name]):
        if block.when == "elsewhere":
            file = block.why.split()[0]
            known = name in (ROOT / file).read_text() or file in block.text
            assert known, f"{block.where}: {file} knows nothing of {name}"


def test_pages_that_take_long_are_pages():
    assert set(RUN_NOW) >= LONG


def test_a_comment_that_nobody_knows_is_refused(tmp_path):
    page = tmp_path / "page.md"
    for wrong in ("sometimes", "elsewhere", "now, because", "exit 1", "small", "slow with --epochs 1"):
        page.write_text(f"<!-- run: {wrong} -->\n```sh\ndpzv-audit list methods\n```\n")
        with pytest.raises(ValueError, match=rf"page\.md:2: <!-- run: {wrong} --> is none"):
            blocks.blocks(page)


def test_a_number_may_differ_by_one_in_its_last_digit_and_no_more():
    assert same_output("at 0.503 of 1.20", "at 0.504 of 1.20")
    assert not same_output("at 0.503 of 1.20", "at 0.505 of 1.20")
    assert not same_output("at 0.503 of 1.20", "at 0.503 of 1.30")
    assert not same_output("at 0.503 of 12", "at 0.503 of 13")


def test_a_page_with_a_stale_output_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    for name in ("examples", "docs/images", "benchmarks"):
        (tmp_path / name).mkdir(parents=True)
    page = tmp_path / "page.md"
    page.write_text("<!-- run: now -->\n```console\n$ echo 3 s and 4\n2 s and 4\n```\n")
    (tmp_path / "one").mkdir()
    go_through(page, tmp_path / "one", slow=False)
    page.write_text(page.read_text().replace("and 4\n```", "and 5\n```"))
    (tmp_path / "two").mkdir()
    with pytest.raises(AssertionError, match=r"page\.md:2 is stale"):
        go_through(page, tmp_path / "two", slow=False)


def test_arguments_are_those_that_a_shell_would_pass():
    text = "x=1; /bin/dpzv-audit audit scores 'a b.csv' \\\n> out.csv --epsilon 1 && echo no  # dpzv-audit\n"
    text += "dpzv-audit list methods | head"
    assert blocks.arguments(text) == [
        ["audit", "scores", "a b.csv", "out.csv", "--epsilon", "1"],
        ["list", "methods"],
    ]
