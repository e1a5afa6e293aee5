"""Claims on a training of the user's own: an attack on it, what it states that it releases, and its data."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

from dpzv_audit import verify_claim
from dpzv_audit.claims.access import Access
from dpzv_audit.claims.file import one_claim
from dpzv_audit.claims.forms import form_of
from dpzv_audit.data import load_csv
from dpzv_audit.games.system import play
from dpzv_audit.systems.run import TrialJob

from ...helpers import trainings
from ...helpers.gates import gate_of
from ...helpers.places import toml_beside
from ...helpers.refusals import refused

MODULE = '''
"""A training that sends each record's gradient at once, under noise of a standard deviation of `noise`."""
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent.parent
(HERE / "imported").write_text("yes")


def data():
    rng = np.random.default_rng(0)
    labels = (np.arange(90) %% 3 == 0).astype(int)
    return {"features": [rng.normal(size=(90, 2)) + labels[:, None] for _ in (1, 2)], "labels": labels}


def train(task, record, seed, noise=0.0):
    rng = np.random.default_rng(seed)
    ids = np.arange(task.records)
    rows = (0.4 + 0.1 * rng.random() - task.labels)[:, None] * [1.0, -1.0]
    record.sent(0, 1, 0, "embeddings", task.features[0], ids)
    record.sent(0, 0, 1, "gradient", on_grid(rows) + on_grid(noise * rng.normal(size=rows.shape)), ids)


def on_grid(values):
    return np.trunc(values * 1024) / 1024


def noisy(task, record, seed):
    from %(name)s_later import NOISE

    train(task, record, seed, NOISE)


def broken(task, record, seed):
    raise RuntimeError("no such\\nlayer")
'''
COUNTED = """

def counted(task, record, seed):
    import zlib

    with (HERE / "counted").open("a") as log:
        print(seed, zlib.crc32(b"".join(map(np.ndarray.tobytes, (*task.features, task.labels)))), file=log)
    train(task, record, seed, noise=30.0)
"""
RELEASE = trainings.RELEASE | {"sigma": 8.0, "noise": "grid"}


def inline(table):
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + " }"


def claim(name, **keys):
    shown = {key: inline(value) if isinstance(value, dict) else json.dumps(value) for key, value in keys.items()}
    return "\n".join([f'[[claim]]\nname = "{name}"', *(f"{key} = {value}" for key, value in shown.items()), ""])


def attacked(name, system, **keys):
    usual = {"attack": "label_direction", "success_at_most": 0.6}
    return claim(name, system=system, kind="attack", **usual | keys)


@pytest.fixture
def folder(tmp_path, monkeypatch, own_cache):
    """A folder with a module of a name of its own, so that no test sees the import of another."""
    name = f"vfl_{tmp_path.name.replace('-', '_')}"
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / f"{name}.py").write_text(MODULE % {"name": name})
    (tmp_path / "claims" / f"{name}_later.py").write_text("NOISE = 30.0\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "claims", name
    for module in (name, f"{name}_later"):
        sys.modules.pop(module, None)


@pytest.fixture
def verified(folder, cli):
    """Verify claims with `--trust-code` and some flags; return the exit code, the entries by name, and the rest."""

    def verify(text, flags=""):
        (folder[0] / "claims.toml").write_text(text)
        done = cli(f"verify claims/claims.toml --trust-code --json {flags}")
        assert done.out, done.err
        result = done.json
        return done.code, {entry["name"]: entry for entry in result["claims"]}, result

    return verify


@pytest.fixture
def refusal(folder, cli):
    """The line with which a claims file is refused."""

    def refuse(text, flags="--trust-code", code=2):
        (folder[0] / "claims.toml").write_text(text)
        return cli.refusal(f"verify claims/claims.toml {flags}", code=code)

    return refuse


def test_an_attack_refutes_a_system_that_leaks_and_no_other(verified, folder):
    name = folder[1]
    text = attacked("clear", f"{name}:train") + attacked("noisy", f"{name}:noisy")
    code, found, result = verified(text, "--max-trials 40")
    assert code == 1
    clear, noisy = found["clear"], found["noisy"]
    assert (clear["verdict"], noisy["verdict"]) == ("refuted", "inconclusive")
    assert (clear["form"], clear["attack"]["success"]) == ("attack", 1.0)
    assert 0.4 < noisy["attack"]["success"] < 0.6
    assert set(clear["attack"]["controls"]) == {"shuffled_labels", "positive"}
    assert clear["facts"]["system"] == f"{name}:train"
    assert clear["trials"] == 16, "15 suffice for a limit of 0.6, 16 where the file has two claims"
    assert result["out_of_reach"] == {}
    assert verified(text, "--max-trials 40")[2]["cached"] == ["clear", "noisy"]


@pytest.mark.ci
def test_attacks_of_one_claim_share_their_trainings(folder):
    """But in the rehearsal, which trains with one seed."""
    here, name = folder
    with (here / f"{name}.py").open("a") as module:
        module.write(COUNTED)
    keys = {"name": "c", "system": f"{name}:counted", "kind": "attack", "attack": "strongest", "success_at_most": 0.9}
    access = Access.of(here / "claims.toml", root=here.parent, trust_code=True)
    subject = form_of(one_claim(keys).claim).subject(access, 7, None)
    pools = [pool for words, pool in subject.pools.items() if words.startswith(("label_norm", "label_direction"))]
    assert len(pools) == 2
    for pool in pools:
        pool.draw(1)
    inputs = [line.split() for line in (here.parent / "counted").read_text().splitlines()]
    (rehearsed, _), *_ = inputs
    attacks = [tuple(line) for line in inputs if line[0] != rehearsed]
    # On the labels, on coins, and on coins with some labels given.
    assert len(attacks) == len(set(attacks)) <= 3


@pytest.fixture
def counted(verified, monkeypatch):
    """Verify claims: the entries by name, and the seed and the labels of each training but those of rehearsals."""
    made = []
    played = TrialJob.played

    def noted(job, request):
        made.append((request.seed, request.labels.tobytes()))
        return played(job, request)

    monkeypatch.setattr(TrialJob, "played", noted)

    def verify(text, flags=""):
        made.clear()
        return verified(text, flags)[1], list(made)

    return verify


def test_claims_of_one_file_on_one_system_share_their_trainings(folder, counted):
    system = f"{folder[1]}:noisy"
    claims = {
        "direction": attacked("direction", system),
        "lower": attacked("lower", system, success_at_most=0.55),
        "norm": attacked("norm", system, attack="label_norm"),
        "ours": claim("ours", system=system, epsilon=2.0),
        "colluding": claim("colluding", system=system, epsilon=8.0, adversary="colluding-clients"),
    }
    flags = "--no-cache --max-trials 6"
    together, made = counted("".join(claims.values()), flags)
    assert len(made) == len(set(made)), "no training is made twice"
    alone = {name: counted(text, flags) for name, text in claims.items()}
    assert set(made) == {training for _, trainings in alone.values() for training in trainings}
    assert len(made) < 0.6 * sum(len(trainings) for _, trainings in alone.values())
    for name, entry in together.items():
        assert entry["scores_digest"] == alone[name][0][name]["scores_digest"]
    repaired, others = counted(attacked("direction", system, revision=2), flags)
    assert set(others).isdisjoint(made), "another revision has trainings of its own"
    assert repaired["direction"]["scores_digest"] != together["direction"]["scores_digest"]


def test_a_claim_that_is_written_after_a_look_has_trainings_of_its_own(folder, counted):
    """Its author may have seen what others found on theirs, on which the error rate of a ledger would not hold."""
    system = f"{folder[1]}:noisy"
    flags = "--max-trials 6 --ledger ledger.jsonl --alpha 0.02"
    known = attacked("direction", system)
    added = attacked("norm", system, attack="label_norm")
    first, made = counted(known, flags)
    _, shared = counted(added, "--max-trials 6 --no-cache --alpha 0.02")
    assert set(shared) & set(made)
    both, later = counted(known + added, flags)
    assert both["direction"]["scores_digest"] == first["direction"]["scores_digest"]
    assert set(later) > set(made)
    assert len(later) == len(set(later)) == len(made) + len(shared)
    assert counted(known + added, flags)[1] == [], "nothing is verified again"
    anew, again = counted(known + added, f"{flags} --no-cache")
    assert set(again) == set(later)
    assert all(anew[name]["scores_digest"] == entry["scores_digest"] for name, entry in both.items())


@pytest.mark.ci
def test_theory_speaks_through_a_release_that_the_claim_or_the_module_states(verified, folder):
    here, name = folder
    of = {"system": f"{name}:noisy", "epsilon": 2.0}
    code, found, _ = verified(claim("given", **of, release=RELEASE) + claim("silent", **of))
    assert code == 1
    assert (found["given"]["verdict"], found["silent"]["verdict"]) == ("supported", "overclaimed")
    assert found["given"]["upper"] < 2.0
    assert found["silent"]["gap"] == "no-release"
    assert "no-release: the system states no release" in found["silent"]["sentence"]
    for entry in found.values():
        assert (entry["form"], entry["trials"], entry["unaudited"]) == ("system", 16, "")
        assert entry["epsilon_lower"] < 1.0 < entry["ceiling"]
    with (here / f"{name}.py").open("a") as module:
        module.write(f"\nrelease = {RELEASE!r}\n")
    sys.modules.pop(name)
    loud = {**RELEASE, "sigma": 0.5}
    code, found, result = verified(claim("given", **of, release=loud) + claim("silent", **of))
    assert result["cached"] == []
    assert (found["given"]["verdict"], found["silent"]["verdict"]) == ("overclaimed", "supported"), "the claim's counts"


@pytest.mark.ci
def test_the_game_refutes_what_is_not_so_private_whatever_is_stated(verified, folder):
    """Without noise: no release is stated, or one that is not kept; and a claim about records, which have labels."""
    system = f"{folder[1]}:train"
    text = claim("silent", system=system, epsilon=2.0) + claim("wrong", system=system, epsilon=2.0, release=RELEASE)
    text += claim("records", system=system, epsilon=2.0, neighbours="replace-record", adversary="all-but-one")
    text += claim("others", system=system, epsilon=2.0, release=RELEASE, neighbours="zero-out")
    text += claim("server", system=system, epsilon=2.0, adversary="server")
    text += claim("bold", system=system, epsilon=8.0)
    code, found, result = verified(text)
    assert code == 1
    for name in ("silent", "wrong", "records"):
        entry = found[name]
        assert (entry["verdict"], entry["unaudited"], entry["tradeoff"]) == ("refuted", "", None)
        assert entry["trials"] < 16, "it stops as soon as the bets have decided"
        (look,) = entry["looks"]
        assert (look["estimator"], look["weight"], look["n_in"] + look["n_out"]) == ("one-run", 1, 58 * entry["trials"])
    assert found["wrong"]["upper"] < 2.0
    assert "Either the code differs from its configuration" in found["wrong"]["sentence"]
    assert found["records"]["facts"]["game"]["adversary"] == "colluding-clients"
    assert found["others"]["verdict"] == "not-tested", "its rehearsal contradicts what is stated"
    assert found["others"]["unaudited"].endswith("replaces labels, which says nothing of zero-out")
    assert found["server"]["unaudited"].endswith("is played by clients, not by the server")
    most = str(result["out_of_reach"]["bold"])
    assert list(result["out_of_reach"]) == ["bold"]
    assert re.fullmatch(r"928 coins can certify at most [34]\.\d+ of the claimed 8", most)
    assert found["bold"]["verdict"] == "overclaimed"
    cut = verified(claim("silent", system=system, epsilon=2.0), "--max-trials 2")
    assert list(cut[2]["out_of_reach"]) == ["silent"]
    assert cut[1]["silent"]["looks"][0]["weight"] == 1


def test_a_game_that_is_interrupted_goes_on_with_the_same_trainings(folder, verified, cli, monkeypatch):
    text = claim("ours", system=f"{folder[1]}:train", epsilon=2.0)
    whole = verified(text, "--no-cache")[1]["ours"]
    done = []

    def interrupted(*arguments, first, **options):
        if done == [0, 1]:
            done.append(first)
            raise KeyboardInterrupt
        done.append(first)
        return play(*arguments, first=first, **options)

    monkeypatch.setattr("dpzv_audit.claims.system.play", interrupted)
    (folder[0] / "claims.toml").write_text(text)
    assert cli("verify claims/claims.toml --trust-code --quiet").code == 130
    assert verified(text, "--resume")[1]["ours"]["scores_digest"] == whole["scores_digest"]
    assert done == [0, 1, 2, *range(2, whole["trials"])]


def test_who_sees_too_few_labels_plays_no_game(folder):
    def batch(task, record, seed):
        rows = np.random.default_rng(seed).normal(size=(8, 2)) - task.labels[:8, None]
        record.sent(0, 1, 0, "embeddings", rows, range(8))

    entry = verify_claim(system=batch, data=arrays(), epsilon=2.0).entry
    assert entry.unaudited.startswith(
        "too few labels to guess: messages that the client sees are about 8 of 48 records"
    )
    assert not entry.looks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sigma": None}, "release does not say sigma; state channel, clip, clip_scope"),
        ({"noize": 1.0}, "release: TypeError"),
        ({"sampler": "round-robin"}, "release: sampler is 'round-robin'"),
        ({"batch_size": 91}, "release: batch_size is 91; use a number in [1, dataset_size = "),
        ({"delta": 1e-5}, "release holds delta; give it in the claim's own key delta"),
    ],
)
def test_a_wrong_release_is_one_line_at_its_key(folder, refusal, change, words):
    release = {key: value for key, value in {**RELEASE, **change}.items() if value is not None}
    text = claim("ours", system=f"{folder[1]}:noisy", epsilon=1.0, release=release)
    said = refusal(text)
    assert said.startswith("dpzv-audit: error: claims/claims.toml:5: claim 'ours': ")
    assert words in said
    if "batch_size" not in change:
        assert refusal(text, "--check") == said, "found without trust, too"
    assert "noize" not in change or "noize" in said


@pytest.mark.parametrize(
    ("keys", "words", "code"),
    toml_beside(__file__, "system_mistakes.toml")["mistakes"],
)
def test_what_is_wrong_is_one_line(folder, refusal, keys, words, code):
    here, name = folder
    (here.parent / "t.csv").write_text("a,b,y\n1,2,0\n")
    (here / "t.csv").write_text("a,b,y\n" + "1,2,0\n3,4,1\n" * 10)
    (here / "link.csv").symlink_to(here.parent / "t.csv")
    plain = {"system": f"{name}:train", "kind": "attack", "attack": "label_direction", "success_at_most": 0.6}
    text = claim("c", **{**plain, **keys}).replace("NAME", name)
    assert words.replace("NAME", name) in refusal(text, code=code)


def test_nothing_is_imported_without_trust_nor_by_a_check(folder, refusal, cli):
    here, name = folder
    said = refusal(attacked("ours", f"{name}:train"), "")
    assert f"system is '{name}:train', code that verify would import and run: give --trust-code to allow it" in said
    done = cli("verify claims/claims.toml --check")
    assert done.code == 0
    assert done.out.startswith("claims/claims.toml: 1 claim, valid\n")
    assert not (here.parent / "imported").exists()


TABLE = "age,region,income,default\n" + "".join(
    f"{20 + i % 40},{'north' if i % 3 else 'south'},{i % 7},{'yes' if i % 4 == 0 else 'no'}\n" for i in range(120)
)


def test_a_table_of_one_s_own_is_what_is_trained_on(folder):
    here, name = folder
    (here / "customers.csv").write_text(TABLE)
    table = {
        "csv": "customers.csv",
        "label": "default",
        "columns": [["age"], ["region", "income"]],
        "categories": ["region"],
        "scales": {"age": 100.0, "income": 7.0},
        "classes": ["no", "yes"],
    }
    (here / "claims.toml").write_text(
        attacked("ours", f"{name}:train", **table)
        + claim("theirs", method="vafl", kind="attack", attack="label_norm", success_at_most=0.9, **table)
        + claim("noised", method="dpzv-sound", epsilon=1.0, clients=2, **{**table, "columns": []})
    )
    gate = gate_of(here / "claims.toml", trust_code=True, max_trials=2)
    gate.check()
    ours, theirs, noised = gate.prepare()
    options = {"categories": ["region"], "scales": table["scales"], "classes": ["no", "yes"]}
    data = load_csv(here / "customers.csv", label="default", groups=table["columns"], **options)
    for run in (ours, theirs):
        assert run.gathering.subject.facts["data"] == {"digests": data.digests, "partition": data.partition}
    assert noised.gathering.subject.facts["records"] == len(data.train)
    first = gate.file.claims[0]
    assert "scales" not in first.lines or first.claim.scales == table["scales"]


def test_a_table_whose_label_is_a_number_is_attacked_and_claimed_about(folder, verified, cli):
    """Each record's gradient tells its amount: a rank correlation of 1, and coins between two amounts."""
    here, name = folder
    amounts = "".join(f"{i % 40},{i % 7},{0.01 * (i * 37 % 200)}\n" for i in range(200))
    (here / "claims.csv").write_text(f"age,region,amount\n{amounts}")
    table = {"csv": "claims.csv", "label": "amount", "task": "regression"}
    code, entries, _ = verified(attacked("amounts", f"{name}:train", **table), "--max-trials 40")
    assert (code, entries["amounts"]["verdict"]) == (1, "refuted"), entries["amounts"]
    sys.path.insert(0, str(here))
    try:
        options = f"--csv {here / 'claims.csv'} --label amount --task regression"
        done = cli(f"attack --system {name}:train {options} --attack label_direction --trials 2 --json")
    finally:
        sys.path.remove(str(here))
    assert done.json["metric"] == "rank correlation with the target"
    assert done.json["success"]["value"] > 0.99


def test_a_method_learns_no_numbers(folder):
    here, _ = folder
    keys = {"csv": "claims.csv", "label": "amount", "task": "regression"}
    (here / "claims.toml").write_text(claim("noised", method="dpzv-sound", epsilon=1.0, **keys))
    with refused("task is regression, and methods learn classes; use a system for a number"):
        gate_of(here / "claims.toml")


def test_evidence_is_of_the_code_and_of_the_table(folder):
    here, name = folder
    (here.parent / "customers.csv").write_text(TABLE)
    keys = {"kind": "attack", "attack": "label_direction", "success_at_most": 0.6, "label": "default"}
    ours = one_claim({"name": "c", "system": f"{name}:train", "csv": "customers.csv", **keys}).claim
    access = Access.of(here / "claims.toml", root=here.parent, trust_code=True)
    with refused("which is nothing; use a regular file below"):
        form_of(ours).key(access)
    ours = one_claim({"name": "c", "system": f"{name}:train", "csv": "../customers.csv", **keys}).claim
    before = form_of(ours).key(access)
    assert form_of(ours).key(access) == before
    (here.parent / "customers.csv").write_text(TABLE + "44,north,3,no\n")
    of_data = form_of(ours).key(access)
    (here / f"{name}_later.py").write_text("NOISE = 3.0\n")
    assert len({before, of_data, form_of(ours).key(access)}) == 3
    with refused(f"system is '{name}:train', code that verify would import"):
        form_of(ours).key(Access.of(here / "claims.toml", root=here.parent))


def test_a_claim_without_a_table_keeps_the_digest_that_it_had():
    keys = {"name": "c", "method": "dpzv", "epsilon": 1.0}
    assert one_claim(keys).digest() == DIGEST
    assert one_claim({**keys, "csv": "t.csv", "label": "y"}).digest() != DIGEST


DIGEST = "b2ff81257d60a70ae673b47b51b8fe75d996bdc17937de86b7d364fdbc786208"


@pytest.mark.ci
def test_workers_import_the_system_and_find_the_same(folder, verified):
    name = folder[1]
    text = attacked("clear", f"{name}:train") + attacked("noisy", f"{name}:noisy")
    text += claim("played", system=f"{name}:train", epsilon=0.5)
    first, second = (verified(text, f"--no-cache --max-trials 6 --jobs {jobs}")[1] for jobs in (1, 2))
    for name, entry in first.items():
        assert {key for key, value in entry.items() if value != second[name][key]} == set()
        if name != "played":
            assert (entry["trials"], len(entry["rates"])) == (6, 6)
    assert first["played"]["verdict"] == "refuted"


def leaky(task, record, seed):
    """Send the labels, as a gradient."""
    rows = (0.5 - task.labels + 0.01 * np.random.default_rng(seed).random())[:, None] * np.ones(2)
    trainings.send(task, record, rows)


def arrays():
    return {"features": [np.random.default_rng(1).normal(size=(60, 2))] * 2, "labels": np.arange(60) % 3 == 0}


@pytest.mark.ci
def test_a_function_and_arrays_are_verified_from_python(folder):
    found = verify_claim(system=leaky, data=arrays(), attack="label_direction", success_at_most=0.6, name="ours")
    assert (found.verdict, found.entry.form, found.fails()) == ("refuted", "attack", True)
    found = verify_claim(system=leaky, data=arrays(), epsilon=2.0, release={**RELEASE, "batch_size": 48})
    assert (found.verdict, found.upper < 2.0, found.entry.audited) == ("refuted", True, True)
    by_name = verify_claim(system=f"{folder[1]}:noisy", folder=folder[0], epsilon=2.0, release=RELEASE)
    assert by_name.verdict == "supported"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data": {"labels": [0, 1]}}, "data gives labels; return a dictionary of features, labels"),
        ({"data": arrays(), "csv": "t.csv", "label": "y"}, "data goes with system alone, and with neither csv nor"),
        ({"system": None, "method": "vafl", "data": arrays()}, "data goes with system alone"),
        ({"attack": None}, "unknown key 'success_at_most'"),
    ],
)
def test_what_is_wrong_from_python_is_one_line(keys, words):
    given = {"system": leaky, "attack": "label_direction", "success_at_most": 0.6, **keys}
    with refused(words):
        verify_claim(**{key: value for key, value in given.items() if value is not None or key == "system"})


def test_a_claim_about_coins_is_refuted_by_the_coins_of_few_trainings(verified, folder):
    """Gradients without noise tell every label; 58 coins of 16 trainings refute a chance of 0.8 for each."""
    name = folder[1]
    text = claim("clear", system=f"{name}:train", coin_success_at_most=0.8)
    text += claim("noisy", system=f"{name}:noisy", coin_success_at_most=0.8)
    code, found, result = verified(text)
    assert code == 1
    clear, noisy = found["clear"], found["noisy"]
    assert (clear["form"], clear["verdict"], noisy["verdict"]) == ("coins", "refuted", "inconclusive")
    assert clear["judged"]["claim"] == "each coin guessed right with a chance of at most 80%"
    assert clear["epsilon_lower"] > np.log(4.0) > noisy["epsilon_lower"]
    assert "of guessing one coin, given all others, is then at least 8" in clear["sentence"]
    assert "The claim does not limit a mean over trainings." in noisy["sentence"]
    assert (clear["upper"], clear["gap"]) == (None, "")
    assert result["out_of_reach"] == {}


def test_a_claim_about_coins_is_between_a_half_and_1_and_has_no_delta():
    keys = {"name": "c", "system": "a:b"}
    assert one_claim({**keys, "coin_success_at_most": 0.9}).claim.epsilon == pytest.approx(np.log(9.0))
    for wrong in ({"coin_success_at_most": 0.5}, {"coin_success_at_most": 1.0}):
        with refused("coin_success_at_most is"):
            one_claim({**keys, **wrong})
    for more in ({"delta": 1e-5}, {"epsilon": 1.0}, {"success_at_most": 0.5}):
        with refused("unknown key"):
            one_claim({**keys, "coin_success_at_most": 0.9, **more})


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "most"), [("0.9", 73), ("0.95", 149)])
def test_a_limit_that_every_training_exceeds_is_refuted_by_the_planned_trainings(
    cases, tmp_path, monkeypatch, cli, limit, most
):
    """Each training gives every label away; one client or the other, whichever the pilot chose."""
    shutil.copytree(cases / "systems" / "unrefutable", tmp_path / "claims")
    monkeypatch.chdir(tmp_path / "claims")
    path = tmp_path / "claims" / "claims.toml"
    path.write_text(path.read_text().replace("success_at_most = 0.9", f"success_at_most = {limit}"))
    (claim,) = cli.answer("verify claims.toml --trust-code --no-cache", code=1)["claims"]
    sys.modules.pop("our_vfl", None)
    assert (claim["verdict"], claim["attack"]["success"]) == ("refuted", 1.0)
    assert claim["p_value"] <= 1e-3
    assert claim["trials"] <= most
