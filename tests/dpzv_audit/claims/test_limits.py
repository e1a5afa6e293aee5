"""Sizes that a claims file names: too large ones are refused at once, and legal ones planned within a budget."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dpzv_audit.base import limits
from dpzv_audit.base.signals import TimeIsUp, until
from dpzv_audit.base.toml import LARGEST_FILE
from dpzv_audit.claims.file import MOST_CLAIMS
from dpzv_audit.claims.gate import Gate
from dpzv_audit.data import load_csv
from mechanisms.core.config import check_sizes
from mechanisms.core.context import Deployment
from mechanisms.core.scalars import plan_run
from mechanisms.methods.czofo import CZOFOConfig
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.gates import gate_on
from ...helpers.places import toml_beside
from ...helpers.refusals import refused

HUGE = 10**12
METHOD = '[[claim]]\nname = "c"\nmethod = "dpzv-sound"\nepsilon = 1.0\n'
REFUSED = {
    "epochs of all claims": (
        f"[defaults]\nconfig = {{ epochs = {HUGE} }}\n" + METHOD,
        "[defaults]: config holds epochs",
    ),
    "an integer of 4,000 digits": (
        METHOD + f"config = {{ epochs = 1{'0' * 4000} }}",
        "epochs is a whole number of 13,288 bits; use 64 at most",
    ),
    "probabilities": (
        METHOD + f"config = {{ activation = 'random', activation_probabilities = [{'1.0, ' * 2000}] }}",
        "config holds activation_probabilities of 2,000 entries; use at most 1,000",
    ),
    "a word of 7 MB": (METHOD + f"config = {{ sampler = '{'x' * 7_000_000}' }}", "config holds sampler of 7,000,000"),
    "settings": (
        METHOD + "[claim.config]\n" + "".join(f"a{n} = 1\n" for n in range(5000)),
        "config holds 5,000 settings; use at most 100",
    ),
    "claims": (METHOD * 30_000, f"use at most {MOST_CLAIMS:,}"),
    "queries": (
        '[[claim]]\nname = "c"\nkind = "attack"\nmethod = "vafl"\nattack = "label_direct"\nsuccess_at_most = 0.5\n'
        f"queries = {HUGE}",
        f"queries is {HUGE}; use at most 10000",
    ),
}
SWITCHES = {
    "alpha": "[defaults]\nalpha = true\n" + METHOD,
    "epsilon": METHOD.replace("1.0", "true"),
    "queries": '[[claim]]\nname = "c"\nkind = "attack"\nmethod = "vafl"\nattack = "label_direct"\n'
    "success_at_most = 0.5\nqueries = true",
    "success_at_most": '[[claim]]\nname = "c"\nkind = "attack"\nmethod = "vafl"\nattack = "label_direct"\n'
    "success_at_most = true",
}
BEHIND = toml_beside(__file__, "sizes.toml")
REFUSED |= {what: (METHOD + text, says) for what, (text, says) in BEHIND["refused"].items()}
SWITCHES |= {key: METHOD + text for key, text in BEHIND["switches"].items()}
LEGAL = BEHIND["legal"]


@pytest.fixture
def short_of_memory():
    """500 MB of address space more than the process has: what a size names is not allocated on the way to a refusal."""
    had = next(int(row.split()[1]) for row in Path("/proc/self/status").read_text().splitlines() if "VmSize" in row)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1024 * had + 500_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("flag", ["--check", "--no-cache"])
def test_too_large_is_refused_at_once(tmp_path, monkeypatch, cli, short_of_memory, what, flag):
    text, says = REFUSED[what]
    monkeypatch.chdir(tmp_path)
    Path("claims.toml").write_text(text)
    started = time.process_time()
    line = cli.refusal(f"verify claims.toml {flag}")
    assert time.process_time() - started < 5.0
    assert line.startswith("dpzv-audit: error: claims.toml")
    assert says in line
    assert len(line) < 700
    assert not Path("dpzv-runs").exists()


@pytest.mark.parametrize("key", SWITCHES)
def test_a_switch_is_no_number_in_a_claims_file(tmp_path, key):
    with refused(rf"claims\.toml:\d+: .*{key} is (True|False)[;:] "):
        gate_on(tmp_path, SWITCHES[key]).check()


def many(one, count=MOST_CLAIMS):
    """Claims that differ in what can differ, as many as are allowed and fit into a file."""
    found, size = [], 0
    for number in range(count):
        found.append(one(number))
        size += len(found[-1])
        if size > LARGEST_FILE:
            return "".join(found[:-1])
    return "".join(found)


SIZED = METHOD.replace('"c"', '"c{n}"').replace("1.0", "1.{n}")
ATTACK = '[[claim]]\nname = "c{n}"\nkind = "attack"\nattack = "{attack}"\nmethod = "vafl"\nsuccess_at_most = 0.{m}\n'
ONE = "epsilon = 1.0\n"
FILES = '"./t.csv", ' * 10
LARGEST = {
    "a string": (lambda: f'a = "{"x" * 7_990_000}"', 2),
    "escapes": (lambda: 'a = "' + "\\u00e9" * 1_330_000 + '"', 2),
    "an array": (lambda: "a = [" + "1," * 3_990_000 + "]", 2),
    "keys": (lambda: many(lambda n: f"a{n} = 1\n", 10**6), 2),
    "tables": (lambda: "[[claim]]\n" * 790_000, 2),
    "dotted keys": (lambda: many(lambda n: f"a{n}{'.b' * 50} = 1\n", 10**6), 2),
    "lines": (lambda: METHOD + "\n" * 7_900_000, 2),
    "a comment": (lambda: METHOD + "records = 60000\n#" + "x" * 7_900_000, 0),
    "claims on a size": (
        lambda: many(lambda n: SIZED.format(n=n) + f"records = 60000\nconfig = {{ epochs = {1 + n % 50} }}\n"),
        0,
    ),
    "claims on a table": (
        lambda: many(lambda n: SIZED.format(n=n) + f'csv = "t.csv"\nlabel = "y"\nscales = {{ a = {n + 1}.5 }}\n'),
        0,
    ),
    "attacks": (lambda: many(lambda n: ATTACK.format(n=n, m=n + 1, attack="label_direct")), 0),
    "strongest attacks": (lambda: many(lambda n: ATTACK.format(n=n, m=n + 1, attack="strongest")), 0),
    "scores": (
        lambda: many(lambda n: f'[[claim]]\nname = "c{n}"\nscores = {{ in = "t.csv", out = "t.csv" }}\n{ONE}'),
        0,
    ),
    "files": (lambda: many(lambda n: f'[[claim]]\nname = "c{n}"\nmechanism = "a:b"\n{ONE}depends = [{FILES}]\n'), 0),
}
MEASURED = """
import resource, sys
from dpzv_audit.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss, which a process inherits from the one that started it.
most = [row.split()[1] for row in open("/proc/self/status") if "VmHWM" in row]
print(used.ru_utime + used.ru_stime, *most, file=sys.stderr)
sys.exit(code)
"""


def measured_check(folder, code):
    """Check the claims of a folder in a process of its own; within 500 MB; return its processor seconds."""
    command = [sys.executable, "-c", MEASURED, "verify", "claims.toml", "--check"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    seconds, kilobytes = map(float, done.stderr.splitlines()[-1].split())
    assert kilobytes < 500_000
    return seconds


@pytest.mark.parametrize("key", ["epochs", "clients", "records"])
def test_a_fresh_process_refuses_in_seconds_and_500_mb(tmp_path, key):
    where = "[claim.config]\nepochs" if key == "epochs" else key
    (tmp_path / "claims.toml").write_text(f"{METHOD}{where} = {HUGE}\n")
    assert measured_check(tmp_path, code=2) < 5.0


@pytest.mark.parametrize(
    "what",
    [
        name
        if name in ("a string", "an array")
        else pytest.param(name, marks=pytest.mark.ci if name in ("files", "attacks") else pytest.mark.slow)
        for name in LARGEST
    ],
)
def test_a_check_of_any_file_takes_ten_seconds_and_500_mb_at_most(tmp_path, what):
    """Processor seconds and memory of a process of its own; a table of 2,000 columns lies beside the file."""
    text, code = LARGEST[what]
    (tmp_path / "claims.toml").write_text(text())
    assert (tmp_path / "claims.toml").stat().st_size <= LARGEST_FILE
    columns = ["a", *(f"c{n}" for n in range(2000)), "y"]
    rows = [",".join([*["1"] * (len(columns) - 1), str(row % 2)]) for row in range(100)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    assert measured_check(tmp_path, code) < 10.0


@pytest.mark.parametrize("what", LEGAL)
def test_a_check_of_the_largest_sizes_plans_nothing(tmp_path, short_of_memory, what):
    started = time.process_time()
    gate_on(tmp_path, METHOD + LEGAL[what]).check()
    assert time.process_time() - started < 5.0


TABLE = 'csv = "t.csv"\nlabel = "y"\n'


def test_a_check_counts_records_and_loads_none(tmp_path, monkeypatch):
    from dpzv_audit.claims import data as claimed_data
    from dpzv_audit.claims import method as method_claims

    def loads(*given, **how):
        raise AssertionError("a check loads data")

    monkeypatch.setattr(claimed_data, "load", loads)
    monkeypatch.setattr(claimed_data.CsvTable, "load", loads)
    rows = [f"{row},{row % 3},{row % 2}\n" for row in range(200)]
    (tmp_path / "t.csv").write_text("a,b,y\n" + "".join(rows))
    counted = []
    monkeypatch.setattr(method_claims, "_setting", lambda claim, access, **sizes: counted.append(sizes))
    text = METHOD + METHOD.replace('"c"', '"d"') + TABLE + METHOD.replace('"c"', '"e"') + TABLE + 'test_csv = "t.csv"\n'
    gate_on(tmp_path, text).check()
    whole = {"records": 200, "clients": 2}
    assert counted == [{"records": 1408, "clients": 4}, {"records": 128, "clients": 2}, whole]
    monkeypatch.undo()
    assert load_csv(tmp_path / "t.csv", label="y").train.labels.shape == (128,), "as many as are loaded"


def test_a_check_tells_what_the_first_line_of_a_table_shows(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,y\n1,2,0\n1,2\n")
    for keys, says in (
        ('label = "z"', "label is 'z'; use one of a, b, y of "),
        ('label = "y"\nscales = { c = 2.0 }', "scales is 'c'"),
        ('label = "y"\nclients = 9', "clients is 9; use at most the 2 columns"),
        ('label = "y"', "line 3 has 2 columns; use 3"),
    ):
        with refused(says):
            gate_on(tmp_path, METHOD + f'csv = "t.csv"\n{keys}\n').check()


def test_a_check_finds_what_does_not_fit_the_data(tmp_path):
    with refused(r"claims.toml:5: .*config\.batch_size is 5000; use at most the 1408 training reco"):
        gate_on(tmp_path, METHOD + "config = { batch_size = 5000 }").check()
    with refused("compute_times has 2 entries; use one for each of the 4 clients"):
        gate_on(tmp_path, METHOD + "config = { compute_times = [1.0, 2.0] }").check()
    with refused("calibration is 'sound' with sampler 'poisson'"):
        gate_on(tmp_path, METHOD + "config = { sampler = 'poisson' }").check()
    with refused("method is 'dpz': did you mean"):
        gate_on(tmp_path, METHOD.replace("dpzv-sound", "dpz")).check()
    gate_on(tmp_path, '[[claim]]\nname = "c"\nmechanism = "nowhere.at:all"\nepsilon = 1.0').check()  # needs no code


def test_products_of_legal_sizes_are_refused():
    wide = {"embedding": 4096, "batch_size": 64}
    check_sizes(DPZVConfig(**wide), records=10_000, clients=20)
    with refused(r"embedding 4096 of 60,000 records at 20 clients makes 4,915,200,000 numbers"):
        check_sizes(DPZVConfig(**wide), records=60_000, clients=20)
    with refused("directions 10000 for batch_size 64 and embedding 65536 makes 41,943,040,000"):
        check_sizes(CZOFOConfig(directions=10_000, embedding=65_536, hidden=1), records=1000, clients=1)


def test_rounds_by_client_are_counted_once_for_all_clients():
    config = DPZVConfig(epochs=1000, batch_size=64)
    started = time.process_time()
    made = plan_run(config, Deployment(records=64_000, clients=limits.MOST_CLIENTS))
    assert time.process_time() - started < 5.0, "1,000 passes over 1,000,000 rounds take 15 s"
    assert made.rounds_by_client == (1000,) * 1000


def test_a_budget_bounds_planning(tmp_path, monkeypatch):
    from dpzv_audit.base import signals
    from dpzv_audit.claims import gate
    from dpzv_audit.claims.forms import MethodForm

    monkeypatch.setattr(gate, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(MethodForm, "subject", lambda *given: time.sleep(60.0))
    made = gate_on(tmp_path, METHOD + METHOD.replace('"c"', '"d"').replace("1.0", "2.0"), max_minutes=1e-6)
    started = time.monotonic()
    runs = made.prepare()
    made.gather(runs)
    assert time.monotonic() - started < 20.0
    assert [run.evidence().missing for run in runs] == ["the budget of 1e-06 minutes ended before it was planned"] * 2
    assert len({run.evidence_key for run in runs}) == 2
    assert [run.evidence().p_value for run in runs] == [1.0, 1.0]
    assert signals.GRACE_SECONDS == 60.0


@pytest.mark.parametrize("what", ["theory", "draw"])
def test_a_budget_bounds_theory_and_each_block(tmp_path, monkeypatch, what):
    from dataclasses import replace

    from dpzv_audit.claims import gate
    from dpzv_audit.claims.forms import MethodForm

    monkeypatch.setattr(gate, "GRACE_SECONDS", 0.2)
    subject_of = MethodForm.subject

    def slow(*given):
        made, sleep = subject_of(*given), lambda *given: time.sleep(60.0)
        if what == "theory":
            return replace(made, theory=sleep)
        return replace(made, pools={name: replace(pool, draw=sleep) for name, pool in made.pools.items()})

    monkeypatch.setattr(MethodForm, "subject", slow)
    made = gate_on(tmp_path, METHOD + "records = 1000", max_minutes=0.05)
    started = time.monotonic()
    (run,) = made.prepare()
    made.gather([run])
    assert time.monotonic() - started < 30.0
    ended = "ended before anything was proved" if what == "theory" else "ended in the simulated transcripts"
    assert run.evidence().missing == f"the budget of 0.05 minutes {ended}"


def test_a_block_ends_at_its_deadline_and_the_timer_is_given_back():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *given: rung.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.6)
        started = time.monotonic()
        with pytest.raises(TimeIsUp), until(started + 0.1):
            time.sleep(60.0)
        assert time.monotonic() - started < 0.5
        assert rung == []
        time.sleep(0.8)
        assert len(rung) == 1, "somebody else's timer goes on"
        with until(time.monotonic() + 60.0), until(None):
            pass
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_thread_is_left_to_its_end():
    ended = []

    def work():
        with until(time.monotonic() - 1.0):
            ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]


DATA = METHOD.replace('"dpzv-sound"', '"dpzv-sound"\ndataset = "mnist"')
DIGITS = DATA.replace('"mnist"', '"digits"')


@pytest.fixture
def around(tmp_path):
    """A claims folder `inner`, and outside it a folder with data and a model."""
    inner = tmp_path / "inner"
    inner.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train-images-idx3-ubyte").write_bytes(b"secret")
    (outside / "config.json").write_text("{}")
    (inner / "link").symlink_to(outside)
    (inner / "circle").symlink_to(inner / "circle")
    (inner / "model").mkdir()
    (inner / "model" / "config.json").symlink_to(outside / "config.json")
    (inner / "data").mkdir()
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (inner / "data" / f"{part}-ubyte").symlink_to(outside / "train-images-idx3-ubyte")
    return inner


@pytest.mark.parametrize("given", ["../outside", "/etc", "link", "link/../..", "data/../../outside"])
@pytest.mark.parametrize("key", ["data_dir", "transformer"])
@pytest.mark.parametrize("check", [True, False])
def test_folders_lie_below_the_claims_file(around, key, given, check):
    line = f'{DATA}data_dir = "{given}"' if key == "data_dir" else f'{DIGITS}config = {{ transformer = "{given}" }}'
    made = gate_on(around, line)
    with refused(f"claims.toml:.*{key} is .*lies elsewhere; use one below .*root DIR"):
        made.check() if check else made.prepare()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'{DATA}data_dir = "circle"', "data_dir is 'circle', which cannot be followed"),
        (f'{DATA}data_dir = "absent"', "data_dir is 'absent', which is nothing; use a folder below"),
        (
            f'{DATA}data_dir = "claims.toml"',
            "data_dir is 'claims.toml', which is a regular file; use a folder below",
        ),
        (f'{DATA}data_dir = "data"', "leads to .*; use one below"),
        (f'{DIGITS}config = {{ transformer = "model" }}', "whose config.json lies elsewhere"),
    ],
)
def test_what_lies_in_a_folder_lies_below_the_claims_file_too(around, text, says):
    (around / "claims.toml").write_text("")
    for act in (Gate.check, Gate.prepare):
        with refused(says):
            act(gate_on(around, text))


def test_a_model_on_a_hub_needs_trust_to_be_fetched_and_none_to_be_named(around):
    made = gate_on(around, DIGITS + 'config = { transformer = "some/model" }')
    made.check()
    with refused("a name on a hub, which is fetched, needs trust_code"):
        made.prepare()


def test_the_root_may_be_moved_by_the_user_alone(around, tmp_path):
    made = gate_on(around, DATA + 'data_dir = "../outside"', root=tmp_path)
    with refused("no such file"):  # it was looked into, and lacks the rest of the data
        made.check()


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device", "a folder"])
def test_what_is_no_regular_file_is_refused_without_being_opened(tmp_path, kind):
    path, listening = tmp_path / "in.csv", socket.socket(socket.AF_UNIX)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        listening.bind(os.path.relpath(path))
    elif kind == "a folder":
        path.mkdir()
    given = "dev/zero" if kind == "a device" else "in.csv"
    root = Path("/") if kind == "a device" else tmp_path
    text = f'[[claim]]\nname = "c"\nscores = {{ in = "{given}", out = "{given}" }}\nepsilon = 1.0'
    made = gate_on(root, text, root=root)
    for act in (made.check, made.prepare):
        with refused(f"scores.in is '{given}', which is {kind}; use a regular file"):
            act()
    listening.close()
