"""The gate: what it runs, what it trusts, what it keeps, and where it stops."""

import gc
import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit import verify_claim
from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.claims import cache as cache_module
from dpzv_audit.claims import gate as gate_module
from dpzv_audit.claims.access import Access
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.file import one_claim
from dpzv_audit.claims.forms import form_of
from dpzv_audit.claims.mechanism import RUNS_A_BLOCK
from dpzv_audit.claims.result import shown_path
from dpzv_audit.data import DATASETS, DataSpec, Partition
from dpzv_audit.evidence.gathering import (
    FIT_PAIRS,
    one_stage,
    split_of,
    two_stages,
)
from dpzv_audit.evidence.verdict import AttackEvidence, Evidence, Theory
from dpzv_audit.statistics.panel import CUT_SHARE, holm
from dpzv_audit.statistics.success import success_p_value

from ...helpers.gates import gate_on, gathered
from ...helpers.refusals import refused
from ...helpers.scores import gaussian

SCORES = """
[[claim]]
name = "false"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 0.5

[[claim]]
name = "true"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 4.5
"""


def gathered_on(folder, text, **options):
    return gathered(gate_on(folder, text, **options))


def verdicts(runs, alpha=1e-3):
    return holm([run.evidence().p_value for run in runs], alpha)


def test_score_files_refute_what_is_false_alone(claims_folder):
    runs = gathered_on(claims_folder, SCORES)
    assert verdicts(runs) == (True, False)
    evidence = runs[0].evidence()
    assert 0.5 < evidence.epsilon_lower(1e-3) < 4.4 < evidence.ceiling(1e-3)
    assert [look.weight for look in evidence.looks] == [1.0]


def test_a_gaussian_promise_is_used_and_checked(claims_folder):
    text = SCORES.replace('name = "false"', 'name = "false"\nexactly_gaussian = true').replace("0.5", "2.5")
    run = gathered_on(claims_folder, text)[0]
    assert [look.weight for look in run.evidence().looks] == [0.5, 0.5]
    assert run.evidence().given(1e-3) == "given Gaussian noise"
    assert verdicts([run]) == (True,)
    rng = np.random.default_rng(1)
    np.savetxt(claims_folder / "in.csv", rng.laplace(1.0, 1.0, 4000))
    np.savetxt(claims_folder / "out.csv", rng.laplace(0.0, 1.0, 4000))
    run = gathered_on(claims_folder, text)[0]
    assert [look.weight for look in run.evidence().looks] == [0.5, 0.0]
    assert "contradict" in run.evidence().looks[1].assumes


@pytest.mark.parametrize(
    "given", ["../secret.csv", "/etc/passwd", "a/../../secret.csv", "link.csv", "../inner-secret/in.csv"]
)
def test_score_files_lie_below_the_claims_file(claims_folder, given):
    inner = claims_folder / "inner"
    inner.mkdir()
    (claims_folder / "secret.csv").write_text("1\n2\n")
    (claims_folder / "inner-secret").mkdir()  # whose name only begins as that of the root
    (claims_folder / "inner-secret" / "in.csv").write_text("1\n2\n")
    (inner / "a").mkdir()
    (inner / "link.csv").symlink_to(claims_folder / "secret.csv")
    (inner / "out.csv").write_text("1\n2\n")
    text = SCORES.replace('in = "in.csv"', f'in = "{given}"')
    with refused(r"claims\.toml:4: claim 'false': scores.in is .* use one below"):
        gate_on(inner, text).prepare()
    if given != "/etc/passwd":
        gate_on(inner, text, root=claims_folder).prepare()


def test_a_result_shows_paths_that_do_not_depend_on_where_a_checkout_lies(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert shown_path(str(tmp_path / "here" / "a" / "claims.toml")) == "a/claims.toml"
    assert shown_path(f"{tmp_path}/here-too/claims.toml") == "claims.toml"
    assert shown_path("../claims.toml") == "../claims.toml"


def test_an_absent_score_file_is_named(claims_folder):
    (claims_folder / "out.csv").unlink()
    with refused(r"scores\.out is 'out\.csv', which is nothing; use a regular file"):
        gate_on(claims_folder, SCORES).prepare()


def test_unchanged_claims_come_from_the_cache_and_changed_ones_do_not(claims_folder, monkeypatch):
    kept = claims_folder / "cache"

    def cached(text=SCORES, **options):
        return [run.cached for run in gathered_on(claims_folder, text, cache=kept, **options)]

    assert cached() == [False, False]
    first = [run.evidence() for run in gathered_on(claims_folder, SCORES)]
    assert cached() == [True, True]
    again = gathered_on(claims_folder, SCORES, cache=kept)
    assert [run.evidence() for run in again] == first
    assert cached("# moved down\n" + SCORES.replace('"true"', '"renamed"')) == [True, True]
    assert cached(SCORES.replace("4.5", "4.6")) == [True, False]
    assert cached(seed=1) == [False, False]
    with (claims_folder / "in.csv").open("a") as file:
        file.write("0.5\n")
    assert cached() == [False, False]
    monkeypatch.setattr(gate_module, "code_digest", lambda: "other code")
    assert cached() == [False, False]
    assert cached() == [True, True]


def test_an_edit_of_what_a_mechanism_imports_is_audited_again(mechanism_folder):
    folder, name = mechanism_folder
    (folder / f"{name}_noise.py").write_text("SCALE = 0.0\n")
    (folder / f"{name}_own.py").write_text(
        f"from {name}_noise import SCALE\n\ndef build():\n    return lambda world, rng: rng.normal(world, SCALE)\n"
    )

    def verified():
        for module in (f"{name}_own", f"{name}_noise"):
            sys.modules.pop(module, None)  # as in another process
        (run,) = gathered_on(folder, mechanism_claim(f"{name}_own"), trust_code=True, cache=folder / "cache")
        return run.cached, verdicts([run])

    assert verified() == (False, (True,))
    assert verified() == (True, (True,))
    (folder / f"{name}_noise.py").write_text("SCALE = 10.0\n")
    assert verified() == (False, (False,))
    assert verified() == (True, (False,))


MECHANISM_OF_A_FILE = """
import json, pathlib
SIGMA = json.loads((pathlib.Path(__file__).parent / {path!r}).read_text())["sigma"]

def build():
    return lambda world, rng: rng.normal(world, SIGMA)
"""


@pytest.mark.parametrize(
    ("path", "depends"), [("noise.json", False), ("../noise.json", True), ("../noise.json", False)]
)
def test_a_mechanism_is_audited_again_where_a_file_of_data_changes(mechanism_folder, path, depends):
    folder, name = mechanism_folder
    (folder / f"{name}_own").mkdir()
    (folder / f"{name}_own" / "__init__.py").write_text(MECHANISM_OF_A_FILE.format(path=path))
    data = folder / f"{name}_own" / path
    text = mechanism_claim(f"{name}_own") + ('depends = ["noise.json"]\n' if depends else "")

    def verified(sigma):
        data.write_text(f'{{"sigma": {sigma}}}')
        sys.modules.pop(f"{name}_own", None)  # as in another process
        (run,) = gathered_on(folder, text, trust_code=True, cache=folder / "cache")
        return run.cached, verdicts([run])

    assert verified(6) == (False, (False,))
    assert verified(6) == (True, (False,))
    # What lies outside the package is seen when it is opened; `depends` tells of it before.
    assert verified(0.2) == (False, (True,))


def test_what_a_mechanism_depends_on_lies_below_the_root_and_is_there(mechanism_folder):
    folder, name = mechanism_folder
    for given, says in (("../x", "use one below"), ("gone.json", "which is nothing; use a regular file or")):
        text = mechanism_claim(name) + f'depends = ["{given}"]\n'
        with refused(rf"claims\.toml:5: claim 'ours': depends is '{given}'.*{says}"):
            gate_on(folder, text, trust_code=True).prepare()


def test_evidence_on_files_of_which_no_digest_can_be_made_is_not_kept_and_says_so(mechanism_folder, monkeypatch):
    folder, name = mechanism_folder
    monkeypatch.setattr("dpzv_audit.base.files.MOST_FILES", 1)
    (folder / name / "noise.json").write_text("{}")
    for _ in range(2):
        (run,) = gathered_on(folder, mechanism_claim(name), trust_code=True, cache=folder / "cache", resume=True)
        assert not run.cached
        assert run.unkept == f"{folder / name} holds more than 1 files"
        assert verdicts([run]) == (True,)
    assert not list(folder.glob("cache/**/*.json"))


@pytest.mark.parametrize("how", ["done", "cut off", "interrupted"])
@pytest.mark.parametrize("edited", [True, False])
def test_evidence_on_files_that_changed_meanwhile_is_not_kept(mechanism_folder, monkeypatch, how, edited):
    folder, name = mechanism_folder
    most = 1600 if how == "cut off" else None
    text = mechanism_claim(name, epsilon=30.0)
    gate = gate_on(folder, text, trust_code=True, cache=folder / "cache", max_trials=most)
    runs = gate.prepare()
    if edited:
        (folder / name / "noise.json").write_text("{}")  # by an editor, while the audit runs
    if how == "interrupted":
        monkeypatch.setattr(sys, "stop_mechanism_at", 1600, raising=False)
        with pytest.raises(KeyboardInterrupt):
            gate.gather(runs)
    else:
        gate.gather(runs)
    assert runs[0].unkept == ("files that it depends on changed while it was audited" if edited else "")
    assert bool(list(folder.glob("cache/**/*.json"))) is not edited


def test_a_claim_that_says_nothing_of_later_keys_keeps_its_digest():
    keys = {"name": "c", "mechanism": "a.b:c", "epsilon": 1.0}
    plain = one_claim(keys)
    assert plain.digest() == "cab50d2866d133e08613e77bf6d7b935644288894874fc8c510372ebbd393671"
    assert one_claim({**keys, "depends": []}).digest() == plain.digest()
    assert one_claim({**keys, "depends": ["x"]}).digest() != plain.digest()


def test_every_data_set_has_a_digest_of_its_own_files(tmp_path, monkeypatch):
    monkeypatch.setenv("DPZV_AUDIT_DATA", str(tmp_path))
    for name, spec in DATASETS.items():
        before = spec.digest(None)
        (tmp_path / "one more").write_text(name)
        assert (spec.digest(None) == before) == bool(spec.package)
    with refused("dataset is 'mnits': did you mean 'mnist'"):
        DATASETS.named("mnits", "dataset")


def test_an_unknown_attack_is_one_line_without_a_check_before(tmp_path):
    text = '[[claim]]\nname = "c"\nkind = "attack"\nmethod = "vafl"\nattack = "label-direct"\nsuccess_at_most = 0.5\n'
    with refused("toml:5: claim 'c': attack is 'label-direct': did you mean 'label_direct'"):
        gate_on(tmp_path, text).prepare()


def test_a_claim_on_a_data_set_of_one_s_own_is_audited_again_where_its_file_changes(tmp_path, monkeypatch):
    numbers = tmp_path / "numbers.npy"

    ours = DataSpec(
        name="ours",
        summary="Numbers of ours",
        reader=lambda request: DATASETS["digits"].load(clients=2),
        partitions={"columns": Partition(clients=2, takes="2")},
        files=lambda data_dir: (numbers,),
    )
    monkeypatch.setitem(DATASETS._built_in, "ours", ours)
    keys = 'kind = "attack"\nmethod = "vafl"\nattack = "label_direct"\nsuccess_at_most = 0.9\ndataset = "ours"\n'
    gate = gate_on(tmp_path, f'[[claim]]\nname = "c"\n{keys}', cache=tmp_path / "cache")

    def key(content):
        numbers.write_bytes(content)
        return gate.prepare()[0].key

    first = key(b"1")
    gate.cache.keep(first, Evidence(p_value=1.0, theory=Theory()))
    assert gate.prepare()[0].cached
    assert key(b"2") != first
    assert not gate.prepare()[0].cached
    assert key(b"1") == first


def test_the_files_of_a_transformer_count_as_data(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    keys = {"name": "c", "method": "dpzv", "epsilon": 1.0, "config": {"transformer": f"{tmp_path}/model"}}
    access = Access.of(tmp_path / "claims.toml")
    before = form_of(one_claim(keys).claim).key(access)
    assert form_of(one_claim(keys).claim).key(access) == before
    (tmp_path / "model" / "model.safetensors").write_bytes(b"others")
    assert form_of(one_claim(keys).claim).key(access) != before
    del keys["config"]
    assert form_of(one_claim(keys).claim).key(access) != before


def test_the_version_of_transformers_is_part_of_the_code(monkeypatch):
    before = cache_module.code_digest.__wrapped__()
    assert before == cache_module.code_digest()
    version_of = cache_module.version_of
    monkeypatch.setattr(cache_module, "version_of", lambda name: "0" if name == "transformers" else version_of(name))
    assert cache_module.code_digest.__wrapped__() != before


def test_a_damaged_cache_counts_as_empty(claims_folder):
    kept = claims_folder / "cache"
    runs = gathered_on(claims_folder, SCORES, cache=kept)
    for number, path in enumerate(sorted(kept.rglob("evidence.json"))):
        path.write_text("{" if number else '{"p_value": 1}')
    again = gathered_on(claims_folder, SCORES, cache=kept)
    assert [run.cached for run in again] == [False, False]
    assert [run.evidence() for run in again] == [run.evidence() for run in runs]


def mechanism_claim(name, factory="build", epsilon=1.0):
    return f'[[claim]]\nname = "ours"\nmechanism = "{name}:{factory}"\nepsilon = {epsilon}\n'


def test_no_code_is_imported_without_trust(mechanism_folder):
    folder, name = mechanism_folder
    with refused("trust_code"):
        gate_on(folder, mechanism_claim(name)).prepare()
    assert not (folder / "imported").exists()
    assert name not in sys.modules


def test_a_trusted_mechanism_is_audited_from_beside_the_file(mechanism_folder):
    folder, name = mechanism_folder
    path = list(sys.path)
    (run,) = gathered_on(folder, mechanism_claim(name), trust_code=True)
    assert sys.path == path
    assert verdicts([run]) == (True,)
    assert [look.stage for look in run.evidence().looks] == ["sequential, runs"], "the sequential test decides"
    assert run.evidence().trials == 2 * RUNS_A_BLOCK, "and stops as soon as it has"


@pytest.mark.parametrize(
    ("factory", "error", "says"),
    [
        ("absent", InputError, "no callable absent"),
        ("number", InputError, "no callable number"),
        ("broken", AuditError, "ValueError: no such luck"),
        ("wrong", AuditError, "answered 'nothing'; use a number or a vector of numbers"),
    ],
)
def test_what_is_wrong_with_a_mechanism_is_one_line(mechanism_folder, factory, error, says):
    folder, name = mechanism_folder
    with refused(says, error) as caught:
        gathered_on(folder, mechanism_claim(name, factory), trust_code=True)
    assert "claims.toml:3: claim 'ours': " in str(caught.value)


def test_an_absent_module_is_an_input_error(tmp_path):
    with refused("no module 'nowhere_at_all'"):
        gate_on(tmp_path, mechanism_claim("nowhere_at_all.deep"), trust_code=True).prepare()


def test_a_budget_of_trials_is_kept_and_named(mechanism_folder):
    folder, name = mechanism_folder
    kept = folder / "cache"
    (run,) = gathered_on(
        folder,
        mechanism_claim(name, epsilon=30.0),
        trust_code=True,
        cache=kept,
        max_trials=1600,
    )
    assert run.evidence().trials == 1500
    assert run.evidence().missing == "the limit of 1600 trials ended the full test on runs"
    assert [look.weight for look in run.evidence().looks] == [CUT_SHARE], "it spends what was kept back for it"
    assert not list(kept.rglob("evidence.json"))


def test_a_budget_without_a_training_leaves_the_simulated_transcripts(tmp_path):
    text = '[[claim]]\nname = "c"\nmethod = "dpzv-sound"\nepsilon = 1.0\nconfig = { epochs = 1 }'
    (run,) = gathered_on(tmp_path, text, max_trials=1)
    assert run.evidence().missing == "the limit of 1 trials ended the sequential test on trainings"
    found = run.evidence()
    assert {look.stage for look in found.looks} == {"sequential, simulated transcripts", "simulated transcripts"}
    assert found.tradeoff is not None
    assert found.trials == 0


def test_claims_on_one_data_set_share_it(tmp_path):
    from dpzv_audit.claims import data as claimed_data

    text = "".join(f'[[claim]]\nname = "{k}"\nmethod = "dpzv-sound"\nepsilon = {k}.5\n' for k in range(3))
    gc.collect()
    before = len(claimed_data._alive)
    runs = gate_on(tmp_path, text.replace('"dpzv-sound"', '"dpzv-sound"\nclients = 8')).prepare()
    assert len(claimed_data._alive) == before + 1
    assert all(run.gathering is not None for run in runs)
    del runs
    gc.collect()
    assert len(claimed_data._alive) == before, "and nobody keeps it after them"


def test_no_time_leaves_theory_and_an_answer(mechanism_folder):
    folder, name = mechanism_folder
    (run,) = gathered_on(folder, mechanism_claim(name), trust_code=True, max_minutes=1e-9)
    assert run.evidence().missing.startswith("the budget of 1e-09 minutes ended")
    assert run.evidence().p_value == 1.0


def test_an_interrupted_run_goes_on_to_the_same_evidence(mechanism_folder, monkeypatch):
    folder, name = mechanism_folder
    text, kept = mechanism_claim(name, epsilon=5.0), folder / "cache"
    (whole,) = gathered_on(folder, text, trust_code=True)
    module = sys.modules[name]
    module.Mechanism.runs = 0
    pilots = 2 * FIT_PAIRS
    monkeypatch.setattr(sys, "stop_mechanism_at", pilots + 1700, raising=False)
    gate = gate_on(folder, text, trust_code=True, cache=kept)
    runs = gate.prepare()
    with pytest.raises(KeyboardInterrupt):
        gate.gather(runs)
    assert runs[0].evidence().missing == "interrupted in the full test on runs"
    assert [look.stage for look in runs[0].evidence().looks] == ["sequential, runs"]
    monkeypatch.delattr(sys, "stop_mechanism_at")
    module.Mechanism.runs = 0
    (resumed,) = gathered_on(folder, text, trust_code=True, cache=kept, resume=True)
    ended = 1700 // (2 * RUNS_A_BLOCK)
    tested = module.Mechanism.runs - pilots
    assert tested == 2 * RUNS_A_BLOCK * (18 - ended), "the blocks before the interrupt are not run again"
    assert resumed.evidence() == whole.evidence()


def test_tests_of_one_claim_plan_to_spend_at_most_one_alpha():
    plans = [two_stages("a", first=1, rest=2), one_stage("a", blocks=1)]
    plans.append((*one_stage("a", blocks=2, share=0.4), *two_stages("b", first=1, rest=2, share=0.5)))
    for stages in plans:
        assert sum(split_of(stages).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("claim", ["", "records = 1000\n", 'sampler = "poisson"', 'adversary = "eavesdropper"\n'])
def test_the_plan_of_every_method_claim_spends_at_most_one_alpha(tmp_path, claim):
    config = f"config = {{ epochs = 2, {claim if claim.startswith('sampler') else ''} }}\n"
    more = "" if claim.startswith("sampler") else claim
    text = f'[[claim]]\nname = "c"\nmethod = "dpzv"\nepsilon = 1.0\n{more}{config.replace(",  }", " }")}'
    (run,) = gate_on(tmp_path, text).prepare()
    split = split_of(run.gathering.subject.stages)
    assert "sequential test on simulated transcripts" in split
    assert sum(split.values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_true_claims_are_seldom_refuted_with_every_look_taken():
    # Randomised response at its exact epsilon, 25 gates at alpha 0.2 with two looks. False alarm: 1e-5.
    truth = np.exp(1.0) / (1.0 + np.exp(1.0))

    def mechanism(world, rng):
        return float(world if rng.random() < truth else 1 - world)

    refuted = sum(
        verify_claim(mechanism=mechanism, epsilon=1.0, delta=1e-9, alpha=0.2, seed=seed, max_trials=1500).verdict
        == "refuted"
        for seed in range(25)
    )
    assert refuted <= binom.isf(1e-5, 25, 0.2)


def test_verify_claim_from_python():
    rng = np.random.default_rng(2)
    scores = gaussian(rng, 3.0, 2000)
    found = verify_claim(scores=scores, epsilon=1.0, name="ours")
    assert found.verdict == "refuted"
    assert str(found).startswith(
        "REFUTED: ours: epsilon at most 1 (delta 1e-05)\nThe audit measures epsilon of at least "
    )
    assert found.fails()
    assert verify_claim(scores=scores, epsilon=30.0).verdict == "not-tested"
    with refused(r"unknown key 'epsilonn': did you mean 'epsilon'\?"):
        verify_claim(scores=scores, epsilonn=1.0)
    with refused("use a pair"):
        verify_claim(scores=[1.0, 2.0, 3.0], epsilon=1.0)
    with refused(r"scores\[1\] is ragged"):
        verify_claim(scores=([1.0, 2.0], [[1.0], [1.0, 2.0]]), epsilon=1.0)
    with refused(r"scores\[0\]: row 2"):
        verify_claim(scores=([1.0, np.nan], [1.0, 2.0]), epsilon=1.0)
    with refused(r"has the keys .*; use one of them"):
        verify_claim(scores=scores, mechanism=lambda world, rng: 0.0, epsilon=1.0)


def test_workers_elsewhere_find_what_lies_beside_the_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Access.of(Path("claims.toml"), root=None, trust_code=False, device="cpu").folder == tmp_path


PACKAGES = ("attacks", "dpzv_audit", "mechanisms", "reports")


@pytest.mark.parametrize("package", PACKAGES)
def test_an_edit_of_any_code_of_the_tool_changes_the_code_digest(tmp_path, monkeypatch, package):
    for name in PACKAGES:
        for module in ("__init__.py", "inner/deep.py"):
            (tmp_path / name / module).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / module).write_text("a = 1\n")
    monkeypatch.setattr(cache_module, "ROOT", tmp_path)
    digest = cache_module.code_digest.__wrapped__
    seen = {digest()}
    (tmp_path / package / "inner" / "deep.py").write_text("a = 2\n")
    seen.add(digest())
    (tmp_path / package / "table.toml").write_text("a = 2\n")
    seen.add(digest())
    (tmp_path / package / "__pycache__").mkdir()
    (tmp_path / package / "__pycache__" / "deep.pyc").write_text("")
    assert digest() in seen
    assert len(seen) == 3


def test_the_code_digest_is_that_of_the_code_that_runs():
    assert {path.name for path in cache_module.ROOT.iterdir()} >= set(PACKAGES)
    assert (cache_module.ROOT / "dpzv_audit" / "claims" / "cache.py").samefile(cache_module.__file__)


def test_the_version_of_every_installed_package_and_of_python_is_part_of_the_code(tmp_path, monkeypatch):
    digest = cache_module.code_digest.__wrapped__
    seen = [digest()]
    for version in ("1.0", "1.1"):
        about = tmp_path / f"what_a_mechanism_imports-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: what-a-mechanism-imports\nVersion: {version}\n")
        if version == "1.0":
            monkeypatch.syspath_prepend(tmp_path)
        else:
            (tmp_path / "what_a_mechanism_imports-1.0.dist-info" / "METADATA").unlink()
            (tmp_path / "what_a_mechanism_imports-1.0.dist-info").rmdir()
        seen.append(digest())
    monkeypatch.setattr(cache_module.platform, "python_version", lambda: "3.0")
    seen.append(digest())
    assert len(set(seen)) == 4


@pytest.mark.parametrize("group", ["methods", "attacks", "defences", "datasets", "anything"])
def test_an_edit_of_a_plug_in_of_any_kind_is_audited_again(tmp_path, monkeypatch, group):
    from dpzv_audit.base import registry

    source = tmp_path / "plugged_in_here" / "__init__.py"
    source.parent.mkdir()
    source.write_text("import plugged_in_helper\nTHING = 1\n")
    helper = tmp_path / "plugged_in_helper.py"
    helper.write_text("NOISE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = importlib.metadata.EntryPoint("thing", "plugged_in_here:THING", f"dpzv_audit.{group}")
    monkeypatch.setattr(registry, "plug_ins", lambda: (point,))
    monkeypatch.setattr("dpzv_audit.claims.cache.plug_ins", lambda: (point,))
    text = '[[claim]]\nname = "c"\nmethod = "dpzv-sound"\nrecords = 1000\nepsilon = 1.0\n'

    def key():
        return gate_on(tmp_path, text).prepare()[0].key

    seen = [key(), key()]
    source.write_text("import plugged_in_helper\nTHING = 2\n")
    seen.append(key())
    helper.write_text("NOISE = 2\n")
    seen.append(key())
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3
    monkeypatch.setattr("dpzv_audit.claims.cache.plug_ins", lambda: ())
    assert key() not in seen


CHANGES = {
    "seed": lambda gate: replace(gate, seed=1),
    "max_trials": lambda gate: replace(gate, max_trials=5000),
    "device": lambda gate: replace(gate, access=replace(gate.access, device="cuda")),
    "alpha": lambda gate: replace(gate, file=replace(gate.file, alpha=1e-4)),
    "claims": lambda gate: replace(gate, file=replace(gate.file, claims=gate.file.claims * 2000)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_key_changes_with_all_that_decides_the_evidence(claims_folder, what):
    gate = gate_on(claims_folder, SCORES)
    changed = CHANGES[what](gate)
    placed = gate.file.claims[0]
    assert gate._key(placed, "data") == gate_on(claims_folder, SCORES)._key(placed, "data")
    assert gate._key(placed, "data") != changed._key(placed, "data")
    assert gate._key(placed, "data") != gate._key(placed, "other data")
    assert gate._key(placed, "data") != gate._key(gate.file.claims[1], "data")


@pytest.mark.parametrize("forged", ["p_value", "look", "both"])
def test_a_p_value_in_the_cache_that_is_not_that_of_its_tests_is_audited_again(claims_folder, caplog, forged):
    kept = claims_folder / "cache"
    (run, _) = gathered_on(claims_folder, SCORES, cache=kept)
    true = run.evidence()
    look = replace(true.looks[0], p_value=1.0)
    forgeries = {
        "p_value": replace(true, p_value=1.0),
        "look": replace(true, looks=(look,)),
        "both": replace(true, p_value=1.0, looks=(look,)),
    }
    Cache(kept).keep(run.key, forgeries[forged])
    again, _ = gathered_on(claims_folder, SCORES, cache=kept)
    assert (again.cached, again.evidence()) == (False, true)
    assert "its p-value in the cache is not that of its tests; it is audited again" in caplog.text
    assert gathered_on(claims_folder, SCORES, cache=kept)[0].cached


def test_a_success_in_the_cache_that_its_trainings_did_not_have_is_audited_again(tmp_path):
    text = '[[claim]]\nname = "c"\nkind = "attack"\nmethod = "vafl"\nattack = "label_direct"\nsuccess_at_most = 0.5\n'
    gate = gate_on(tmp_path, text, cache=tmp_path / "cache")
    (run,) = gate.prepare()
    rates = (0.9, 0.8, 0.95) * 10
    p_value = success_p_value(rates, 0.5, least=gate.question(run).least_success)
    true = Evidence(p_value=p_value, attack=AttackEvidence(rates=rates))
    gate.cache.keep(run.key, true)
    assert gate.prepare()[0].found == true
    gate.cache.keep(run.key, replace(true, p_value=1.0))
    assert not gate.prepare()[0].cached
