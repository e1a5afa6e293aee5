"""Federations that the tool cannot attack yet end as not tested, or in one line that says why; none is green unseen."""

import shutil
import sys

import pytest

CLAIMS = """
[[claim]]
name = "attack"
system = "{0}:train"
kind = "attack"
attack = "strongest"
success_at_most = 0.9

[[claim]]
name = "epsilon"
system = "{0}:train"
epsilon = 2.0
"""

VERIFY = "verify claims.toml --trust-code --no-cache"


@pytest.fixture
def folder_of(cases, tmp_path, monkeypatch, own_cache):
    """Copy a folder of the cases, and go there; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)

    def copied(*parts):
        folder = tmp_path / parts[-1]
        shutil.copytree(cases.joinpath(*parts), folder)
        monkeypatch.chdir(folder)
        return folder

    yield copied
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("case", "module", "words"),
    [
        ("meangrad", "meangrad", "give one for each row, or use kind 'batch-gradient' for one gradient of the batch"),
        ("boost", "boost", "of kind instances-0, instances-1, instances-2; if they say who shares a node of a tree"),
    ],
)
def test_what_cannot_be_audited_yet_is_one_true_line(folder_of, cli, case, module, words):
    (folder_of("systems", case) / "claims.toml").write_text(CLAIMS.format(module))
    done = cli(f"{VERIFY} --json --quiet --max-trials 8")
    *_, line = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert line.startswith("dpzv-audit: error: claims.toml:")
    assert words in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "module"),
    [
        ("rawup", "rawup"),
        ("poisson", "poisson"),
        ("earlystop", "early"),
        ("dropout", "dropout"),
        ("ushape", "ushape"),
        ("ushape", "ushape1"),
        ("secagg", "secagg"),
        ("regbin", "regbin"),
        ("regress", "regress"),
        ("35-fate869-regression", "linr"),
        ("boost", "boost"),
    ],
)
def test_what_is_audited_in_part_is_never_supported(folder_of, cli, case, module):
    folder = folder_of("systems", case)
    text = CLAIMS.format(module)
    (folder / "claims.toml").write_text(text[text.index("[[claim]]", 10) :] if case == "boost" else text)
    result = cli.answer(f"{VERIFY} --max-trials 12", code=1)
    found = {entry["name"]: entry["judged"] for entry in result["claims"]}
    assert found["epsilon"]["word"] in ("refuted", "not-tested", "overclaimed")
    if case == "boost":
        assert found["epsilon"]["reason"] == "unread-messages"
        return
    # What clients learn about labels may be little, with features in clear at the server: that is said beside it.
    assert found["attack"]["word"] in ("refuted", "not-tested", *(["held"] if case == "rawup" else []))
    assert "no attack looked at what the server learns about features" in found["attack"]["not_tested"]


@pytest.mark.ci
def test_trees_that_name_their_groups_are_attacked(folder_of, cli):
    """The record of who shares a node, which is of no known kind in the case, under the kind that attacks read."""
    folder = folder_of("systems", "boost")
    code = (folder / "boost.py").read_text()
    kind = 'f"instances-{lvl}"'
    assert code.count(kind) == 1
    (folder / "boost.py").write_text(code.replace(kind, '"groups"'))
    attacked = cli.answer("attack --system boost:train --attack label_groups --trials 8")
    assert attacked["success"]["value"] > 0.9
    assert max(b if isinstance(b, float) else b["value"] for b in attacked["baselines"].values()) < 0.85
    epsilon = CLAIMS.format("boost").replace("epsilon = 2.0", "epsilon = 0.5")
    (folder / "claims.toml").write_text(epsilon[epsilon.index("[[claim]]", 10) :])
    (entry,) = cli.answer(VERIFY, code=1)["claims"]
    assert entry["judged"]["word"] == "refuted"


@pytest.mark.slow
def test_a_scalar_without_ids_is_read_as_one_of_its_batch(folder_of, cli):
    folder = folder_of("gate", "f6_scalar_without_ids")
    (folder / "scalar1.toml").rename(folder / "claims.toml")
    (entry,) = cli.answer(VERIFY, code=1)["claims"]
    assert entry["judged"]["word"] == "refuted"


ONE_SHOT = """
[[claim]]
name = "one upload"
system = "rawup:oneshot"
kind = "attack"
attack = "strongest"
success_at_most = 0.3
{0}
"""


@pytest.mark.ci
def test_one_upload_tells_clients_nothing_and_the_server_all_features(folder_of, cli):
    folder = folder_of("systems", "rawup")
    (folder / "claims.toml").write_text(ONE_SHOT.format(""))
    done = cli(f"{VERIFY} --json --quiet --max-trials 8")
    *_, line = done.err.splitlines()
    assert done.code == 2
    assert "its server sends a client no answer about records" in line
    assert line.endswith('A claim about the features that its server learns has adversary = "server"')
    (folder / "claims.toml").write_text(ONE_SHOT.format('adversary = "server"'))
    (entry,) = cli.answer(f"{VERIFY} --max-trials 12", code=1)["claims"]
    assert entry["judged"]["word"] == "refuted"
    assert not [words for words in entry["judged"]["not_tested"] if "features" in words]
