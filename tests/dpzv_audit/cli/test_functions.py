"""The commands as Python functions: the command's result, no side effect, errors of one line that name keywords."""

import json
import os
import signal
import sys
import threading
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpzv_audit
from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.base.findings import to_jsonable
from dpzv_audit.cli.config import Key, spelled
from dpzv_audit.cli.functions import _in_words, _plain
from dpzv_audit.results import (
    AccountResult,
    AttackResult,
    AttacksResult,
    AuditResult,
    MatrixResult,
    PlantedResult,
    ScoresResult,
    TrainResult,
    VerifyResult,
)
from dpzv_audit.runs import json_text

from ...helpers.places import ROOT
from .test_config import COMMANDS

MECHANISM = """
class Mechanism:
    def run(self, world, rng):
        return world + rng.normal()

def factory():
    return Mechanism()
"""
CLAIMS = """
[[claim]]
name = "false"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 0.1
delta = 1e-5
"""
NUMBERS = {"batch_size": 64, "dataset_size": 1408, "rounds": 176, "clip": 10}
TINY = {"epochs": 1, "trials": 2}
CUSTOMERS = {
    "data": ROOT / "examples" / "customers.csv",
    "label": "churned",
    "columns": [["age", "region"], ["balance", "products"]],
    "categories": "region",
    "scales": {"age": 100, "balance": 10_000, "products": 10},
}


@pytest.fixture
def here(tmp_path, monkeypatch, own_cache):
    """A folder to work in, with files of scores, a claims file and a mechanism."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savetxt("in.csv", rng.normal(2.0, 1.0, 600))
    np.savetxt("out.csv", rng.normal(0.0, 1.0, 600))
    (tmp_path / "claims.toml").write_text(CLAIMS)
    (tmp_path / "noisy.py").write_text(MECHANISM)
    return tmp_path


def without_run(result):
    """A result as its file holds it."""
    return {key: value for key, value in result.to_json().items() if key != "run"}


WRITTEN = {
    "attack": (dpzv_audit.attack, AttackResult, {"method": "split", "data": "digits", **TINY}),
    "train": (dpzv_audit.train, TrainResult, {"method": "vafl", "epochs": 1, "set": {"momentum": 0.5}}),
    "train on a table": (dpzv_audit.train, TrainResult, {"method": "vafl", "no_controls": True, **CUSTOMERS, **TINY}),
    "audit method": (dpzv_audit.audit, AuditResult, {"method": "dpzv", "epochs": 1, "runs": 32, "epsilon": 2}),
    "audit defence": (
        dpzv_audit.audit,
        AuditResult,
        {"defence": "label-rr", "defence_set": {"epsilon": 1.0}, "runs": 64},
    ),
    "audit mechanism": (dpzv_audit.audit, AuditResult, {"mechanism": "noisy:factory", "epsilon": 1, "runs": 40}),
    "planted": (dpzv_audit.audit, PlantedResult, {"mechanism": "planted:noise-over-b", "runs": 2}),
    "hunt": (dpzv_audit.hunt, AuditResult, {"mechanism": "noisy:factory", "epsilon": 1, "runs": 40, "pilot": 20}),
    "verify": (dpzv_audit.verify, VerifyResult, {"claims": "claims.toml"}),
    "account": (dpzv_audit.account, AccountResult, {**NUMBERS, "sigma": 0.7, "fast": True}),
    "matrix": (
        dpzv_audit.matrix,
        MatrixResult,
        {"methods": ["split", "vafl"], "attacks": ["label_norm"], "epochs": 1, "trials": 2, "no_self_check": True},
    ),
    "attack all": (
        dpzv_audit.attack,
        AttacksResult,
        {"method": "split", "attack": "all", "adversary": "eavesdropper", **TINY},
    ),
}
"""By name, a function, the model of its result, and keywords; commands with a run folder."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_result_is_that_of_the_command_line_in_it(name, here, cli, capsys):
    function, model, keywords = WRITTEN[name]
    result = function(**keywords, out=here / "function")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert type(result) is model
    promised = get_type_hints(function)["return"]
    assert model in (get_args(promised) or (promised,))
    (file,) = (here / "function").glob("*/result.json")
    assert result.run == str(file.parent)
    assert json.loads(file.read_text()) == json.loads(json_text(without_run(result)))
    assert json.loads((file.parent / "environment.json").read_text())["command_line"][1] == name.split()[0].replace(
        "planted", "audit"
    )

    line = [word for word in result.command_line[1:] if word != "dpzv-audit"]
    done = cli("", *line, "--quiet", "--out", here / "command")
    assert done.code in (0, 1, 3), done.err
    (written,) = (here / "command").glob("*/result.json")
    assert written.read_bytes() == file.read_bytes()


def test_results_without_a_run_folder_are_what_the_command_prints(here, cli):
    scores = dpzv_audit.audit(scores=("in.csv", here / "out.csv"), epsilon=0.1)
    assert isinstance(scores, ScoresResult)
    assert scores.run is None
    assert json.loads(json_text(scores)) == cli.answer(f"audit scores in.csv {here}/out.csv --epsilon 0.1")
    accounted = dpzv_audit.account("dpzv-sound", epochs=2, fast=True)
    assert accounted.run is None
    printed = cli.answer("account --method dpzv-sound --epochs 2 --fast")
    assert json.loads(json.dumps(to_jsonable(accounted.bounds))) == printed["bounds"]
    answer = dpzv_audit.calibrate(**NUMBERS, epsilon=1)
    assert (
        answer.value
        == cli.answer("calibrate --batch-size 64 --dataset-size 1408 --rounds 176 --clip 10 --epsilon 1")[
            "calibration"
        ]["value"]
    )


def test_a_training_of_the_user_s_own_is_audited(here, monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "system")
    result = dpzv_audit.audit(system="our_vfl:train", trials=1, fit_trials=1, out=here)
    assert result.method == "system:our_vfl:train"


def test_options_may_come_from_a_file(here):
    (here / "options.toml").write_text("epochs = 1\nno-controls = true\n")
    result = dpzv_audit.train("vafl", config=here / "options.toml")
    other = dpzv_audit.train("vafl", epochs=1, no_controls=True)
    assert other.command_line == ["dpzv-audit", "train", "--method=vafl", "--epochs=1", "--no-controls"]
    assert without_run(result) == without_run(other) | {"command_line": result.command_line}


def test_a_value_that_looks_like_a_flag_is_a_value(here, capsys):
    """A file of options may give trust_code, and --schema prints."""
    (here / "evil.toml").write_text('claims = "claims.toml"\ntrust-code = true\n')
    for claims in ("--config=evil.toml", "--schema", "--help"):
        with pytest.raises(InputError, match=r"(?i)no such|cannot be read"):
            dpzv_audit.verify(claims)
    with pytest.raises(InputError):
        dpzv_audit.train("vafl", label="--config=evil.toml")
    assert capsys.readouterr().out == ""


def test_code_that_changed_since_its_import_is_refused(here):
    (here / "changing.py").write_text("def made():\n    return None\n")
    for text in ("def made():\n    return 1\n", "def made():\n    return 2\n"):
        with pytest.raises(InputError) as refused:
            dpzv_audit.audit(mechanism="changing:made", runs=2)
        (here / "changing.py").write_text(text)
    assert "has changed since it was imported; restart Python" in str(refused.value)


def test_a_failed_gate_is_a_result(here):
    result = dpzv_audit.verify("claims.toml")
    assert result.failed
    assert [claim.verdict for claim in result.claims] == ["refuted"]
    assert dpzv_audit.audit(scores=("in.csv", "out.csv"), epsilon=0.1, fail_on="refuted").claim.verdict == "refuted"


def of_process():
    """What a function must leave as it was."""
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)]
    streams = (sys.stdout, sys.stderr, sys.stdout.errors)
    return (
        signals,
        streams,
        sys.excepthook,
        threading.excepthook,
        dict(os.environ),
        torch.get_num_threads(),
        sys.path[:],
    )


def test_nothing_of_the_process_is_changed(here, monkeypatch):
    pytest.importorskip("sklearn")  # its import sets two environment variables
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = of_process()
        result = dpzv_audit.train("vafl", epochs=1, no_controls=True)
        with pytest.raises(InputError):
            dpzv_audit.train("vafl", epochs=0)
        assert of_process() == before
    finally:
        torch.set_num_threads(threads)
    assert result.compute["threads"] == 1  # as the command computes


def test_functions_wait_for_each_other_in_threads(here):
    results = {}

    def work(seed):
        results[seed] = dpzv_audit.train("vafl", epochs=1, no_controls=True, seed=seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = dpzv_audit.train("vafl", epochs=1, no_controls=True, seed=1)
    assert without_run(results[1]) == without_run(alone)
    assert len({result.run for result in results.values()}) == 3


def test_progress_goes_to_stderr_where_it_is_asked_for(here, capfd, monkeypatch):
    monkeypatch.setattr("dpzv_audit.cli.heartbeat.EVERY_SECONDS", 0.01)
    dpzv_audit.train("vafl", epochs=2, no_controls=True)
    assert capfd.readouterr() == ("", "")
    dpzv_audit.train("vafl", epochs=2, no_controls=True, quiet=False)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "dpzv-audit: 0:00:0" in printed.err


REFUSALS = [
    (dpzv_audit.attack, {"epslion": 1}, "attack() takes no keyword 'epslion': did you mean epsilon?"),
    (dpzv_audit.attack, {"qqq": 1}, "attack() takes no keyword 'qqq': dpzv-audit attack --help lists its options"),
    (dpzv_audit.attack, {"json": True}, "attack() takes no keyword 'json': dpzv-audit attack --help"),
    (dpzv_audit.attack, {"self_check": True}, "self_check asks for something that is no result; run dpzv-audit attack"),
    (dpzv_audit.verify, {"claims": "a.toml", "check": True}, "run dpzv-audit verify --check"),
    (dpzv_audit.train, {"method": "dpvz"}, "method is 'dpvz': did you mean 'dpzv'?"),
    (dpzv_audit.train, {"data": "digts"}, "data is 'digts': did you mean 'digits'?"),
    (dpzv_audit.train, {"data": "gone.csv"}, "label COLUMN is missing: data needs the column to predict"),
    (dpzv_audit.train, {"data": "a.csv", "csv": "b.csv"}, "data and csv are one keyword, give one of them"),
    (dpzv_audit.train, {"data": "digits", "label": "y"}, "label goes with csv FILE, not with data set digits"),
    (dpzv_audit.train, {"data": 3}, "data is 3; use text"),
    (dpzv_audit.train, {"epochs": "many"}, "epochs is 'many'; use a whole number"),
    (dpzv_audit.train, {"epochs": 2.5}, "epochs is 2.5; use a whole number"),
    (dpzv_audit.train, {"epochs": True}, "epochs is True; use a whole number"),
    (dpzv_audit.train, {"epochs": 0}, "epochs is 0; use a whole number of at least 1"),
    (dpzv_audit.train, {"no_controls": "yes"}, "no_controls is 'yes'; use True or False"),
    (dpzv_audit.train, {"confidence": float("nan")}, "confidence is nan; use a number strictly between 0 and 1"),
    (dpzv_audit.train, {"delta": 2.0}, "delta is 2.0; use less than 1"),
    (dpzv_audit.train, {"set": 3}, "set is 3; use a dictionary, or text such as 'KEY=VALUE', or a list of such"),
    (dpzv_audit.train, {"set": {"momentun": 1}}, "set is 'momentun': did you mean 'momentum'?"),
    (dpzv_audit.train, {"set": {"momentum": {1, 2}}}, "momentum is {1, 2}; use a number, text"),
    (dpzv_audit.train, {"out": object()}, "out is <object object at"),
    (dpzv_audit.train, {"csv": "a\0b.csv"}, "csv holds a NUL character"),
    (dpzv_audit.attack, {"attack": "all", "runs": 4}, "runs goes with one attack, not with attack all"),
    (
        dpzv_audit.audit,
        {"method": "dpzv", "system": "a:b"},
        "audit() takes one of method, system, mechanism, scores, not",
    ),
    (dpzv_audit.audit, {"scores": ["in.csv"]}, "takes 2 values"),
    (dpzv_audit.audit, {"mechanism": "planted:non"}, "planted:NAME is 'non'"),
    (dpzv_audit.verify, {"claims": "gone.toml"}, "claims file gone.toml: cannot be read"),
    (dpzv_audit.account, {"sigma": 1.0}, "is missing"),
]


@pytest.mark.parametrize(("function", "keywords", "words"), REFUSALS)
def test_what_is_wrong_is_one_line_that_names_the_keyword(function, keywords, words, here, capfd):
    with pytest.raises(InputError) as refused:
        function(**keywords)
    message = str(refused.value)
    assert words in message
    assert "\n" not in message
    assert "--" not in message.partition("dpzv-audit")[0]
    assert capfd.readouterr().out == ""
    assert not (here / "dpzv-runs").exists()


def test_what_failed_keeps_its_kind(here):
    (here / "broken.py").write_text("def factory():\n    raise RuntimeError('no')\n")
    (here / "ends.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(AuditError):
        dpzv_audit.audit(mechanism="broken:factory", epsilon=1)
    with pytest.raises(AuditError):
        dpzv_audit.audit(mechanism="ends:factory", epsilon=1)


def test_an_interrupt_is_one(here, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpzv_audit.evidence.training.train_result", interrupted)
    with pytest.raises(KeyboardInterrupt, match="no epoch was finished"):
        dpzv_audit.train("vafl", epochs=1)


def value_of(parameter):
    """A value of Python that an option takes, and what its command line says."""
    kinds = {"integer": (np.int64(3), "3"), "float": (np.float64(0.5), "0.5"), "boolean": (np.bool_(True), None)}
    return kinds.get(parameter.type.name, ("a b", "a b"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command_is_a_keyword(name):
    command, _ = COMMANDS[name]
    for parameter in command.params:
        value, word = value_of(parameter)
        if "," in (parameter.metavar or "") or parameter.nargs != 1:
            continue
        (given,) = spelled(parameter, Key("x", _in_words(parameter, _plain(value))))
        expected = [parameter.opts[0]] if parameter.param_type_name == "option" else []
        assert given[1] == [*expected, *([] if word is None else [word])]


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=4))
def test_numbers_reach_a_command_as_they_are(values):
    command, _ = COMMANDS["matrix"]
    (epsilons,) = (parameter for parameter in command.params if parameter.name == "epsilons")
    ((_, (_, word)),) = spelled(epsilons, Key("epsilons", _in_words(epsilons, _plain(np.array(values)))))
    assert [float(number) for number in word.split(",")] == values
    command, _ = COMMANDS["train"]
    (sigma,) = (parameter for parameter in command.params if parameter.name == "sigma")
    ((_, (_, word)),) = spelled(sigma, Key("sigma", _in_words(sigma, _plain(values[0]))))
    assert float(word) == values[0]


def test_lists_and_dictionaries_of_options_are_spelled_as_flags_are():
    command, _ = COMMANDS["train"]
    options = {parameter.name: parameter for parameter in command.params}

    def words(name, value):
        return [
            w for _, pair in spelled(options[name], Key(name, _in_words(options[name], _plain(value)))) for w in pair
        ]

    assert words("columns", [["age", "region"], "balance"]) == ["--columns", "age,region", "--columns", "balance"]
    assert words("scales", {"age": 100, "balance": 0.5}) == ["--scales", "age=100,balance=0.5"]
    assert words("classes", ["no", "yes"]) == ["--classes", "no,yes"]
    assert words("defence", ["marvell", "max-norm"]) == ["--defence", "marvell", "--defence", "max-norm"]
    assert words("settings", {"top_model": False, "rate": 0.1}) == ["--set", "top_model=false", "--set", "rate=0.1"]
