"""Three hundred inputs from somebody who means harm, or from a broken disk: each ends in one line, at once.

A place is where a command or a reader opens a file; what is planted there is a special file, or content of a kind that
breaks parsers. Whatever it is, the answer is one line and exit code 2 (3 where the disk refuses), within 20 seconds and
1 GB more of address space than the process has, and nothing but what was planted is in the folder afterwards. Evidence
that is kept between runs counts as absent where it is damaged: then one line in the log names it.
"""

import functools
import gzip
import hashlib
import io
import json
import os
import resource
import shlex
import signal
import socket
import stat
import struct
import time
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.inputs import ABSENT, Inputs
from dpzv_audit.base.npy import read_npz
from dpzv_audit.base.store import Store, checksummed, hold
from dpzv_audit.base.tracked import tracked_at
from dpzv_audit.claims.access import Access
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.file import load_claims
from dpzv_audit.claims.forms import form_of
from dpzv_audit.cli import main
from dpzv_audit.cli.matrix_cells import stored_cell
from dpzv_audit.data.text import _check_model
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.attacks import _read_result
from dpzv_audit.games.engine import ChunkStore
from dpzv_audit.reproduce.table import TableParts
from dpzv_audit.results import Cell
from dpzv_audit.runs import load_measured
from dpzv_audit.systems.trials import read_trial
from mechanisms import METHODS
from mechanisms.core.checkpoints import FileCheckpoints, NoiseKeyFile, run_key
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.methods.dpzv_run import DPZVRun

from ...helpers.places import read_json, sparse, toml_beside
from ...helpers.refusals import refused

SECONDS = 20
MEMORY = 1_000_000_000
CLAIM = '[[claim]]\nname = "c"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 1.0\n'
MESSAGE = {"round": 0, "sender": 0, "receiver": 1, "kind": "gradient", "tensor": "g", "ids": "i"}
MANIFEST = {
    "schema": "dpzv-audit/transcript/1",
    "records": 4,
    "clients": 1,
    "classes": 2,
    "files": ["t.safetensors"],
    "messages": [MESSAGE],
    "notes": [],
}


def attack(labels="labels.csv"):
    return f"attack --transcript run --labels {labels} --attack label_norm"


ACCOUNT = "account --batch-size 2 --dataset-size 4 --rounds 2 --clip 1 --sigma 1"


def long():
    """Eight megabytes of text, made where it is planted."""
    return "x" * 7_900_000


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TENSORS = safetensors(
    {
        "g": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
        "i": {"dtype": "I64", "shape": [4], "data_offsets": [32, 64]},
    },
    np.arange(8, dtype=np.float32).tobytes() + np.arange(4).tobytes(),
)


def npy(shape, descr="'<f8'", data=b"\0" * 64, order="False", version=b"\x01\x00"):
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def npz(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name twice
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def commanded(name, line):
    """A place in a command: the file `name`, and what opens it."""

    def run(folder):
        return main(shlex.split(line))

    return name, run


def read_by(name, reader):
    """A place in a reader of files that the tool keeps: it raises an error of one line, or takes them for absent."""

    def run(folder):
        try:
            answer = reader(folder / name)
        except AuditError as error:
            print(f"dpzv-audit: error: {error}", file=run.told)
            return error.exit_code
        assert not answer, answer
        return None

    return name, run


def fresh_run():
    config = METHODS["dpzv"].configure(batch_size=4, epochs=1, embedding=2, hidden=2)
    parts = [Records(features=(np.ones((n, 2), np.float32),) * 2, labels=np.arange(n) % 2) for n in (8, 4)]
    data = VerticalDataset("ones", *parts, 2, "blocks", {})
    data = TrainingData.of(data, dtype=torch.float32, device="cpu")
    return DPZVRun(data, config, RunContext(seed=1, replicas=(0,)))


def part_of(path):
    return TableParts(path.parent, resume=True).part({}, lambda _: {})


PART = f"parts/{run_key({})}.json"
PLACES = {
    "claims": commanded("claims.toml", "verify claims.toml --no-cache"),
    "checked claims": commanded("claims.toml", "verify claims.toml --check"),
    "config": commanded("c.toml", "train --config c.toml"),
    "result": commanded("run/result.json", "report run"),
    "measured": read_by("run/measured.json", lambda path: load_measured(path.parent)),
    "ledger": commanded("book", "verify claims.toml --no-cache --ledger book"),
    "csv scores": commanded("in.csv", "audit scores in.csv out.csv"),
    "jsonl scores": commanded("in.jsonl", "audit scores in.jsonl out.csv"),
    "npy scores": commanded("in.npy", "audit scores in.npy out.csv"),
    "npz scores": commanded("in.npz", "audit scores in.npz out.csv"),
    "scores of a claim": commanded("in.csv", "verify claims.toml --no-cache"),
    "schedule": commanded("s.npy", f"{ACCOUNT} --schedule s.npy"),
    "manifest": commanded("run/manifest.json", attack()),
    "tensors": commanded("run/t.safetensors", attack()),
    "labels": commanded("labels.csv", attack()),
    "npy labels": commanded("labels.npy", attack("labels.npy")),
    "table": commanded("t.csv", "train --csv t.csv --label y"),
    "index": read_by(".git/index", lambda path: tracked_at(path.parent.parent / "book")),
    "evidence": read_by("ab/ab12/evidence.json", lambda path: Cache(path.parents[2]).evidence("ab12")),
    "cell": read_by("cell.json", lambda path: stored_cell(path, Cell())),
    "part": read_by(PART, part_of),
    "noise key": read_by("k.noise-key", lambda path: NoiseKeyFile(path, resume=True).key_from(1, "cpu")),
    "checkpoint": read_by(
        "k.safetensors", lambda path: FileCheckpoints(path.parent, "k", resume=True).load(fresh_run())
    ),
    "attacks": read_by("a.json", lambda path: Store(path.parent).load(path.name, _read_result, again="again")),
    "trial": read_by("t.safetensors", lambda path: Store(path.parent).load(path.name, read_trial, again="again")),
    "chunk": read_by("000000000-000000004.npz", lambda path: ChunkStore(path.parent, resume=True).load()),
    "arrays": read_by(
        "a.npz", lambda path: Store(path.parent).load(path.name, functools.partial(read_npz), again="again")
    ),
}
KEPT = {"attacks", "evidence", "cell", "trial", "chunk", "arrays"}
"""Counts as absent, and is named in the log, where it is damaged."""
MAY_BE_ABSENT = {"ledger", "measured", "index", "part", *KEPT}


def fifo(path):
    os.mkfifo(path)


def sock(path):
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has to be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL = {
    "fifo": fifo,
    "socket": sock,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "kernel": lambda path: path.symlink_to("/proc/self/environ"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": lambda path: path.mkdir(),
    "sparse": sparse,
    "gone": lambda path: path.symlink_to("nowhere"),
}


def checked(value):
    """A value with its digest, as the tool keeps it."""
    return b'{"sha256": "' + hashlib.sha256(value).hexdigest().encode() + b'", "value": ' + value + b"}"


JSON = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep value": b'{"schema": "dpzv-audit/audit/1", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of 5,000 digits": b'{"schema": ' + b"9" * 5000 + b"}",
    "nan": b'{"schema": "dpzv-audit/audit/1", "a": NaN}',
    "a key of 8 MB": lambda: f'{{"schema": "dpzv-audit/transcript/1", "{long()}": 1}}',
    "a value of 8 MB": lambda: f'{{"schema": "{long()}"}}',
    "escapes of 8 MB": lambda: b'{"schema": "' + b"\\ud83d\\ude00" * 660_000 + b'"}',
    "a text of 8 MB": lambda: f'{{"schema": "dpzv-audit/audit/1", "sentence": "{long()}"}}',
    "a surrogate": b'{"schema": "\\ud800"}',
    "many objects": lambda: b"[" + b"{}," * 30_000_000 + b"{}]",
    "utf-16": '{"schema": 1}'.encode("utf-16"),
    "a cut character": b'{"schema": "\xc3',
    "nothing": b"",
    "nul": b"\0" * 1000,
    "null": b"null",
    "checked, deep": lambda: checked(b"[" * 100_000),
    "checked, many objects": lambda: checked(b"[" + b"{}," * 10_000_000 + b"{}]"),
    "checked, a list": lambda: checked(b'["\\u0000"]'),
}
TOML = {
    "deep": "a = " + "[" * 100_000,
    "deep tables": "a = " + "{a = " * 3000,
    **{
        f"a {name} number": f"{{top}} = {sign}{'f' if sign == '0x' else '1'}{'0' * 20_000}\n"
        for name, sign in (("hexadecimal", "0x"), ("binary", "0b"), ("octal", "0o"))
    },
    "a hexadecimal number in a list": "{top} = [1, [0x" + "f" * 10_000 + "]]\n",
    "a hexadecimal number in a table": "[other]\n{top}.a.b = 0x" + "f" * 10_000 + "\n",
    "65 bits": "{top} = 9223372036854775808\n",
    "a decimal number": "{top} = " + "9" * 10_000 + "\n",
    "a key of 8 MB": lambda: f"{long()} = 1\n",
    "a name of 8 MB": lambda: f'{{top}} = "{long()}"\n',
    "an escaped name of 8 MB": lambda: '{top} = "' + "\\U0001f600" * 790_000 + '"\n',
    "a name of 2 million stars": lambda: '{top} = "' + "\U0001f600" * 1_900_000 + '"\n',
    "a NUL": '{top} = "a\\u0000b"\n',
    "latin": '{top} = "\xe9"\n'.encode("latin-1"),
    "dotted": lambda: "a" + ".a" * 3_000_000 + " = 1",
    "dates": "{top} = 2024-13-45\n",
    "twice": "{top} = 1\n{top} = 2\n",
    "a setting of 8 MB": lambda: f"[set]\n{long()} = 1\n",
}
SHAPES = {
    name: npy(shape)
    for name, shape in {
        "true": "(True,)",
        "true of two": "(True, 2)",
        "a float": "(1.0,)",
        "an infinite float": "(1e999,)",
        "text": "('a',)",
        "none": "None",
        "a list": "[1]",
        "nested": "((1,),)",
        "negative": "(-1,)",
        "2^63": "(9223372036854775808,)",
        "nothing by 10^30": "(0, 1000000000000000000000000000000)",
        "nothing by nothing": "(0, 0, 0)",
        "hexadecimal": f"(0x{'f' * 5000},)",
        "a hundred sides": f"({'1, ' * 100})",
        "a sum": "(1 + 1,)",
        "a call": "(print(1),)",
        "deep": "(" * 200 + ")" * 200,
        "complex": "(1j,)",
        "bytes": "(b'1',)",
    }.items()
} | {
    f"of {name}": npy("(1,)", descr)
    for name, descr in {
        "objects": "'|O'",
        "text of none": "'<U0'",
        "text": "'<U8'",
        "dates": "'<M8[ns]'",
        "bytes": "'|V8'",
        "complex": "'<c16'",
        "records": "[('a', '<f8')]",
        "nested": "('<f8', (2,))",
        "no type": "None",
        "a number": "7",
        "a long type": f"'{'x' * 5000}'",
        "an unknown type": "'<q9'",
    }.items()
} | {
    "order": npy("(1,)", order="'x'"),
    "version 9": npy("(1,)", version=b"\x09\x00"),
    "a header too long": b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + b"{" * 1000,
    "cut": npy("(8,)")[:70],
}  # fmt: skip


def index_of(entries, version=4):
    return b"DIRC" + struct.pack(">II", version, entries)


def entry(name, flags=None, removed=b"\0"):
    flags = min(len(name), 0xFFF) if flags is None else flags
    return b"\0" * 60 + struct.pack(">H", flags) + removed + name + b"\0"


INDEXES = {
    "a number without end": lambda: index_of(1) + b"\0" * 60 + b"\0\1" + b"\xff" * 5_000_000 + b"\0" * 20,
    "names that repeat": lambda: (
        index_of(70_001) + entry(b"a" * 60_000) + entry(b"b", flags=0xFFF) * 70_000 + b"\0" * 20
    ),
    "four billion entries": index_of(0xFFFFFFFF) + b"\0" * 100,
    "no index": b"hello",
    "cut": b"DIRC\0\0\0\2\0\0\0\1",
    "shares itself": index_of(0, 2) + b"link" + struct.pack(">I", 20) + b"\xaa" * 20 + b"\0" * 20,
}
MEMBERS = {
    "no archive": b"PK",
    "a member twice": npz(("a.npy", npy("(4,)")), ("a.npy", npy("(4,)"))),
    "a path": npz(("../../a.npy", npy("(True,)"))),
    "a NUL": npz(("a\0b.npy", npy("(True,)"))),
    "many members": lambda: npz(*[(f"{n:x}", b"") for n in range(90_000)]),
    "a pickle": npz(("a.npy", npy("(1,)", "'|O'"))),
    "encrypted": npz(("a.npy", npy("(4,)"))).replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"),
    "of a shape": npz(("a.npy", npy("(True,)"))),
}
HEADERS = {
    "a header without end": struct.pack("<Q", (1 << 63) - 1) + b"{}",
    "deep": safetensors(b"[" * 100_000),
    "a name of 8 MB": lambda: safetensors(f'{{"{long()}": 1}}'.encode()),
    "offsets": safetensors({"g": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 62]}}),
    "a shape": safetensors({"g": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"\0" * 4),
    "2^64": safetensors({"g": {"dtype": "F32", "shape": [1 << 63, 2], "data_offsets": [0, 0]}}),
    "no type": safetensors({"g": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "nothing": b"",
}
FACTS = {
    "no facts": {},
    "deep facts": {"trial": "[" * 100_000},
    "facts of nothing": {"trial": "null"},
    "facts of a list": {"trial": '{"models": [], "messages": [], "notes": [], "answers": 0}'},
    "answers without end": {"trial": '{"models": {}, "messages": [], "notes": [], "answers": 1e999}'},
    "an odd shape": {"trial": '{"models": {"1": [["a", 5]]}, "messages": [], "notes": [], "answers": 0}'},
}
STATES = {
    "no facts": {"sha256": "0" * 64},
    "facts of nothing": {"facts": "null", "sha256": "0" * 64},
    "deep facts": {"facts": "[" * 100_000, "sha256": "0" * 64},
    "no digest": {"facts": "{}"},
    **{
        name: {"facts": facts, "sha256": hashlib.sha256(facts.encode()).hexdigest()}
        for name, facts in {
            "a list": "[]",
            "a null": "null",
            "empty": "{}",
            "deep, with its digest": "[" * 9000,
        }.items()
    },
}
MANIFESTS = {
    "a NUL": {"files": ["t.safetensors\0"]},
    "a NUL in the middle": {"files": ["t\0.safetensors"]},
    "a surrogate": {"files": ["\ud800.safetensors"]},
    "a long name": {"files": ["t" * 900]},
    "a path": {"files": ["../t.safetensors"]},
    "itself": {"files": ["."]},
    "above": {"files": [".."]},
    "nothing": {"files": [""]},
    "a file twice": {"files": ["t.safetensors"] * 1000},
    "many files": lambda: {"files": ["t.safetensors"] * 200_000},
    "a name of 8 MB": lambda: {"files": [long()]},
    **{
        f"a {key} of 8 MB": functools.partial(lambda key: {"messages": [{**MESSAGE, key: long()}]}, key)
        for key in ("tensor", "ids", "kind", "other")
    },
    "a round of 10^300": {"messages": [{**MESSAGE, "round": 10**300}]},
    "records of 10^300": {"records": 10**300},
    "classes of 10^12": {"classes": 10**12},
    "clients of 10^12": {"clients": 10**12},
    "wrong messages": lambda: {"messages": [{}] * 500_000},
    "one tensor in every message": lambda: {"messages": [{**MESSAGE, "receiver": 2}] * 100_000},
    "true": {"records": True},
    "a tensor that is not there": {"messages": [{**MESSAGE, "tensor": "\0"}]},
    "a note of nothing": {"notes": [{"party": 1, "name": "\0", "tensor": "nothing"}]},
    "another schema": {"schema": "dpzv-audit/transcript/1\0"},
}
LINES = {
    "a line of 8 MB": long,
    "quotes without end": b'"' + b"\n" * 100_000,
    "nul": b"1\n\0\n",
    "utf-16": "1\n2\n".encode("utf-16"),
    "hexadecimal": b"0x" + b"f" * 10_000 + b"\n",
    "digits": b"9" * 10_000 + b"\n",
    "deep": b"[" * 100_000 + b"\n",
    "nan": b"nan\n1\n",
    "a bomb": gzip.compress(b"1\n" * 1000),
    "nothing": b"",
    "a carriage": b"1\r2\rx\r",
}


def cases():
    """Every (id, place, what is planted); content by its place."""
    for place in PLACES:
        for name, plant in SPECIAL.items():
            if name != "gone" or place not in MAY_BE_ABSENT:
                yield f"{place}: {name}", place, plant
    contents = {
        **dict.fromkeys(("result", "manifest", "ledger", "evidence", "part"), JSON),
        **{key: {name: JSON[name] for name in ("deep", "many objects")} for key in ("cell", "noise key", "measured")},
        "claims": {name: functools.partial(_filled, text, "name") for name, text in TOML.items()},
        "config": {name: functools.partial(_filled, text, "out") for name, text in TOML.items()},
        "npy scores": SHAPES,
        "schedule": {name: SHAPES[name] for name in list(SHAPES)[:12]},
        "npy labels": {name: SHAPES[name] for name in list(SHAPES)[:12]},
        "index": INDEXES,
        "npz scores": MEMBERS,
        "chunk": MEMBERS,
        "tensors": HEADERS,
        "checkpoint": HEADERS | {name: safetensors({"__metadata__": facts}) for name, facts in STATES.items()},
        "attacks": {name: JSON[name] for name in ("checked, deep", "checked, a list", "nan")},
        "trial": HEADERS | {name: safetensors({"__metadata__": facts}) for name, facts in FACTS.items()},
        "manifest": JSON | {name: functools.partial(_manifest, keys) for name, keys in MANIFESTS.items()},
        "csv scores": LINES,
        "jsonl scores": LINES,
        "labels": LINES,
    }
    for place, by_name in contents.items():
        for name, content in by_name.items():
            yield f"{place}: {name}", place, functools.partial(_write, content)


def _manifest(keys):
    return json.dumps(MANIFEST | (keys() if callable(keys) else keys))


def _filled(text, key):
    text = text() if callable(text) else text
    if isinstance(text, bytes):
        text = text.replace(b"{top}", key.encode())
        return b"[[claim]]\n" + text if key == "name" else text
    text = text.replace("{top}", key)
    return text if not text.startswith(key) or key != "name" else f"[[claim]]\n{text}"


def _write(content, path):
    content = content() if callable(content) else content
    path.write_bytes(content.encode() if isinstance(content, str) else content)


CASES = list(cases())
ALWAYS = 12
"""One in so many runs always, the whole in the step of longer tests."""


@contextmanager
def limits():
    """An alarm, and `MEMORY` more address space than the process has."""

    def late(number, frame):
        raise TimeoutError(f"took more than {SECONDS} s")

    had = next(int(row.split()[1]) for row in Path("/proc/self/status").read_text().splitlines() if "VmSize" in row)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (1024 * had + MEMORY, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def tree(folder):
    """What lies in a folder, with the content of its small files."""
    return {
        path: path.read_bytes() if _is_small(os.lstat(path)) else os.lstat(path).st_mode
        for path in sorted(folder.rglob("*"))
    }


def _is_small(status):
    return stat.S_ISREG(status.st_mode) and status.st_size < 10_000


@pytest.fixture(scope="module")
def valid():
    """The files of a good place: a command that finds them as they are reads them."""
    numbers = "".join(f"{n / 7:.4f}\n" for n in range(40)).encode()
    return {
        "claims.toml": CLAIM.encode(),
        "in.csv": numbers,
        "out.csv": numbers[8:],
        "run/manifest.json": json.dumps(MANIFEST).encode(),
        "run/t.safetensors": TENSORS,
        "labels.csv": b"label\n0\n1\n0\n1\n",
        "t.csv": b"x,y\n1,0\n2,1\n",
        "parts/x": b"",
        "ab/ab12/x": b"",
        ".git/x": b"",
        "x": checksummed({}).encode(),
    }


@pytest.fixture
def folder(tmp_path, monkeypatch, valid):
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    here = tmp_path / "here"
    for name, content in valid.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)
    monkeypatch.chdir(here)
    return here


def check(folder, run, place, capsys, caplog, codes=(2, 3)):
    """Run a command on what is planted in `folder`: one line, a documented code, nothing left."""
    before = tree(folder)
    told = io.StringIO()
    run.told = told
    started = time.monotonic()
    with limits():
        code = run(folder)
    assert time.monotonic() - started < SECONDS
    printed = capsys.readouterr()
    lines = (printed.err + told.getvalue()).splitlines()
    if code is None:
        assert place in MAY_BE_ABSENT
        assert place not in KEPT or len(caplog.messages) == 1, caplog.messages
        lines = caplog.messages
    else:
        assert code in codes, lines
        assert len(lines) == 1, lines
        assert lines[0].startswith("dpzv-audit: error: ")
        assert printed.out == ""
    for line in lines:
        assert line.isprintable()
        assert len(line) < 2600
        assert "fault of the tool" not in line
        assert "memory ran out" not in line
    assert tree(folder) == before
    return SimpleNamespace(code=code, line=lines[0] if lines else "")


@pytest.mark.parametrize(
    ("place", "plant"),
    [
        pytest.param(place, plant, id=name, marks=() if number % ALWAYS == 0 else (pytest.mark.ci,))
        for number, (name, place, plant) in enumerate(CASES)
    ],
)
def test_a_hostile_file_is_one_line(folder, place, plant, capsys, caplog):
    name, run = PLACES[place]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    plant(path)
    found = check(folder, run, place, capsys, caplog)
    if place not in {"index", "part", *KEPT}:
        assert found.code == 2
    if found.line:
        assert path.name in found.line or f" {path.parent.name}" in found.line


def _few(names):
    """Mark all but a few for the step of longer tests."""
    return [name if n % 4 == 0 else pytest.param(name, marks=pytest.mark.ci) for n, name in enumerate(names)]


VERIFY = "verify claims.toml --no-cache"
OUTPUTS = {
    "out of a long part": (f"{VERIFY} --out {'x' * 300}", "which cannot be followed"),
    "trials without end": (f"attack --trials 1{'0' * 300}", "at least 1, at most 1,000,000,000"),
    "runs without end": (f"audit mechanism noise:f --runs {'9' * 4000}", "a whole number of at least 1"),
    **toml_beside(__file__, "hostile_paths.toml"),
}


@pytest.mark.parametrize("what", _few(OUTPUTS))
def test_a_hostile_path_is_one_line(folder, what, capsys, caplog, monkeypatch):
    arguments, says = OUTPUTS[what]
    arguments = arguments.replace("LONG_NAME", "x" * 250).replace("TOO_LONG", "x" * 5000)
    (folder / "loop").symlink_to("loop")
    (folder / "link").symlink_to("out.csv")
    (folder / "round.py").symlink_to("round.py")
    (folder / "noise.py").write_bytes(b"\0\xff")
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.py")
    if "summary" in what:
        named = {"the": "summary", "folder": "run", "nowhere": "nowhere/x", "FIFO": "fifo"}
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", next(path for word, path in named.items() if word in what.split()))
    _, run = commanded("", arguments)
    assert says in check(folder, run, "path", capsys, caplog, codes=(2,)).line


def test_names_that_are_no_text_stand_in_every_report(folder, monkeypatch):
    """A claims file in a folder whose name is no UTF-8, and one whose own name is none."""
    place = os.fsdecode(bytes(folder) + b"/\xff\xfe")
    os.mkdir(place)
    for name in ("claims.toml", "in.csv", "out.csv"):
        (folder / name).rename(Path(place, name))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", f"{folder}/summary.md")
    for claims in (Path(place, "claims.toml"), Path(os.fsdecode(b"\xff.toml"))):
        monkeypatch.chdir(place if claims.parent == Path() else folder)
        if claims.parent == Path():
            Path("claims.toml").rename(claims)
        named = ("--junit", f"{folder}/j.xml", "--sarif", f"{folder}/s.sarif", "--out", f"{folder}/runs")
        assert main(["verify", str(claims), "--no-cache", "--quiet", *named]) in (0, 1)
        (result,) = read_json(folder / "s.sarif")["runs"][0]["results"]
        assert "%FF" in result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert b"testsuite" in (folder / "j.xml").read_bytes()
        for path in (folder / "runs").iterdir():
            assert main(["report", str(path), "--format", "html", "--format", "sarif"]) == 0


@pytest.mark.parametrize("name", ["manifest.json", "t.safetensors"])
def test_a_file_of_a_transcript_is_no_link(folder, name, capsys, caplog):
    """Not even one to the file that would be right: who looks after the folder does not see what it leads to."""
    (folder / "run" / name).rename(folder / "elsewhere")
    (folder / "run" / name).symlink_to(folder / "elsewhere")
    _, run = PLACES["manifest"]
    found = check(folder, run, "manifest", capsys, caplog, codes=(2,))
    assert f"run/{name}: is a link; use a regular file" in found.line


LOCKS = {"fifo": fifo, "zero": SPECIAL["zero"], "loop": SPECIAL["loop"], "folder": SPECIAL["folder"]}


@pytest.mark.parametrize("kind", LOCKS)
def test_a_lock_is_a_file_of_its_own(folder, kind):
    LOCKS[kind](folder / "x.lock")
    before = tree(folder)
    with (
        limits(),
        refused(r"the work cannot be locked by .*x\.lock", AuditError),
        hold(folder / "x.lock", "the work"),
    ):
        pass
    assert tree(folder) == before


def test_what_a_link_in_the_place_of_a_key_or_a_lock_leads_to_is_not_written_to(folder):
    (folder / "k.noise-key").symlink_to("in.csv")
    (folder / "x.lock").symlink_to("in.csv")
    before = (folder / "in.csv").read_bytes()
    NoiseKeyFile(folder / "k.noise-key", resume=False).begin("cpu", checkpoint=folder / "k.safetensors")
    assert not (folder / "k.noise-key").is_symlink()
    with refused("cannot be locked", AuditError), hold(folder / "x.lock", "the work"):
        pass
    assert (folder / "in.csv").read_bytes() == before


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_what_is_no_key_is_no_obstacle_to_a_new_run(folder, kind):
    SPECIAL[kind](folder / "k.noise-key")
    keys = NoiseKeyFile(folder / "k.noise-key", resume=False)
    with limits():
        if kind == "folder":
            with pytest.raises(OSError, match="Is a directory"):
                keys.begin("cpu", checkpoint=folder / "k.safetensors")
        else:
            assert len(keys.begin("cpu", checkpoint=folder / "k.safetensors")) == 32


MODELS = {
    "a FIFO": lambda path: os.mkfifo(path / "config.json"),
    "a device": lambda path: (path / "config.json").symlink_to("/dev/zero"),
    "a large file": lambda path: sparse(path / "config.json"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_hostile_model_is_one_line(folder, kind):
    (folder / "model").mkdir()
    MODELS[kind](folder / "model")
    with limits(), refused(r"transformer is 'model', whose config\.json is "):
        _check_model(Path("model"), "model")


def test_scores_are_confined_when_they_are_opened(folder, tmp_path):
    """A link takes the place of a score file after the claims file was checked, and before the scores are read."""
    (tmp_path / "secret.csv").write_text("3.0\n" * 40)
    (placed,) = load_claims(Path("claims.toml")).claims
    access = Access.of(Path("claims.toml"))
    subject = form_of(placed.claim).subject(access, 0, None)
    (folder / "in.csv").unlink()
    (folder / "in.csv").symlink_to(tmp_path / "secret.csv")
    with refused(r"in\.csv: leads to .*secret\.csv; use one below"):
        subject.pools["scores"].draw(0)


@pytest.mark.parametrize("value", ["[" * 100_000, "{" + '"a":{' * 20_000, "9" * 5000, "-" * 100_000, "1e" + "9" * 5000])
def test_a_setting_that_breaks_parsers_is_one_line(folder, value, capsys, caplog):
    _, run = commanded("", f"train --set 'embedding={value}'")
    check(folder, run, "path", capsys, caplog, codes=(2,))


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "loop"])
def test_what_evidence_names_and_no_file_can_be_called_is_absent(folder, name):
    """Evidence in a cache says which files its code had read: those that cannot be there do not hold."""
    (folder / "loop").symlink_to("loop")
    for kind in ("files", "folders"):
        assert not Inputs(**{kind: {name: "a digest"}}).hold(folder)
        assert Inputs(**{kind: {name: ABSENT}}).hold(folder)


def test_there_are_three_hundred():
    assert len({name for name, _, _ in CASES}) == len(CASES) >= 300 - len(OUTPUTS)
