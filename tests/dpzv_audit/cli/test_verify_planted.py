"""What a pull request may bring to turn a gate green, kept evidence or a ledger, is red or refused."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest

from dpzv_audit import verify_claim
from dpzv_audit.base.rounding import p_equals
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.ledger import Ledger, append_entry, level_of, open_ledger
from dpzv_audit.evidence.verdict import Evidence

from ...helpers.scores import score_files

CLAIM = '[[claim]]\nname = "ours"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 0.5\n'


@pytest.fixture
def folder(tmp_path, monkeypatch, own_cache):
    """A repository of git's with a claim that its scores refute, and a cache beside the repository."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "repository"
    root.mkdir()
    score_files(root, 1000)
    (root / "claims.toml").write_text(CLAIM)
    subprocess.run(["git", "init", "-q", root], check=True)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def verified(cli):
    """Verifies the claims: exit code, words on stdout, lines on stderr."""

    def run(flags):
        done = cli(f"verify claims.toml {flags}")
        return done.code, " ".join(done.out.split()), done.err

    return run


def test_evidence_that_git_tracks_is_refused_and_ignored_evidence_is_not(folder, cli, verified, monkeypatch):
    code, *_ = verified("--cache kept")
    assert code == 1
    assert (folder / "kept" / ".gitignore").read_text() == "*\n", "what the tool keeps no commit takes by accident"
    assert verified("--cache kept")[1].count("From the cache: 1 of") == 1
    (path,) = (folder / "kept").rglob("evidence.json")
    Cache(folder / "kept").keep(path.parent.name, Evidence(p_value=1.0))
    subprocess.run(["git", "add", "-f", "kept"], check=True)
    for arguments, named in (("--cache kept", "--cache is 'kept'"), ("", "DPZV_AUDIT_CACHE is ")):
        monkeypatch.setenv("DPZV_AUDIT_CACHE", f"{folder}/kept")
        error = cli.refusal(f"verify claims.toml {arguments}")
        assert named in error
        assert "where git tracks " in error
        assert "use a folder outside it, or one that git ignores" in error
    (folder / "link").symlink_to(folder / "kept")
    assert verified("--cache link")[0] == 2
    assert verified("--no-cache")[0] == 1


def test_a_ledger_that_git_tracks_is_refused(folder, cli, verified):
    assert verified("--ledger ledger.jsonl")[0] == 1
    subprocess.run(["git", "add", "ledger.jsonl"], check=True)
    assert "--ledger ledger.jsonl: git tracks " in cli.refusal("verify claims.toml --ledger ledger.jsonl")
    (folder / "ledger.jsonl").unlink()
    assert verified("--ledger ledger.jsonl")[0] == 2, "git tracks it all the same"


FORGERIES = {
    "not refuted, p = 1": {"p_value": 1.0, "refuted": False},
    "not refuted, p kept": {"refuted": False},
    "of unknown making": {"p_value": 1.0, "refuted": False, "made": None},
    "of another version": {"p_value": 1.0, "refuted": False, "made": "0" * 64},
    "without a p-value": {"p_value": None, "refuted": False},
    "of another test": {"p_value": 1.0, "refuted": False, "split": {"full test on scores": 0.5}},
}


@pytest.mark.parametrize("what", FORGERIES)
def test_an_entry_that_was_edited_with_its_hashes_decides_nothing(folder, verified, what):
    """Whoever writes it knows the digest of the scores, which follow from the claim, and the hashes."""
    assert verified("--ledger ledger.jsonl")[0] == 1
    (entry,) = open_ledger(folder / "ledger.jsonl", 1e-3).entries
    ((claim, decision),) = entry.decisions.items()
    forged = replace(entry, decisions={claim: replace(decision, **FORGERIES[what])})
    (folder / "ledger.jsonl").unlink()
    append_entry(folder / "ledger.jsonl", Ledger(1e-3, name="forged"), forged)
    code, out, error = verified("--ledger ledger.jsonl --cache fresh")
    assert code in (1, 2)
    assert "neither refutes" not in out
    if code == 2:
        assert error.count("\n") == 1
        assert error.startswith("dpzv-audit: error: --ledger ledger.jsonl: entry 1 ")
    assert (code == 1) == (what in ("of unknown making", "of another version", "without a p-value"))


def test_scores_that_the_ledger_judged_among_others_are_not_said_to_refute_nothing(folder, verified):
    """A p-value between its share of an early look and the level of a later one: judged once, and said so."""
    null = np.random.default_rng(3).normal(0.0, 1.0, 1000)
    np.savetxt(folder / "null.csv", null)
    other = CLAIM.replace('"in.csv"', '"null.csv"')
    others = [other.replace("ours", f"other {n}").replace("0.5", f"{0.5 + n / 100}") for n in range(7)]
    inside, outside = (np.loadtxt(folder / f"{side}.csv") for side in ("in", "out"))
    low, high = 0.5, 3.0
    while True:  # until p lies above an eighth of the first level, and below all of the second
        epsilon = (low + high) / 2.0
        p = verify_claim(scores=(inside, outside), epsilon=epsilon).p_value
        if level_of(1, 1e-3) / 8 < p < level_of(2, 1e-3):
            break
        low, high = (epsilon, high) if p < 1e-4 else (low, epsilon)
    ours = CLAIM.replace("0.5", f"{epsilon}")
    (folder / "claims.toml").write_text(ours + "".join(others))
    assert verified("--ledger ledger.jsonl --allow not-tested")[0] == 0
    (folder / "claims.toml").write_text(ours)
    code, out, _ = verified("--ledger ledger.jsonl --allow not-tested")
    assert (code, f"({p_equals(p)})" in out) == (0, True)
    assert "neither refutes" not in out
    assert "The ledger has judged these scores before" in out
