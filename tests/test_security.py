"""What the shipped code may never do, found in its syntax; each exception stands here with its reason."""

import ast

import pytest

from .helpers.shipped import MODULES, ROOT, tree_of

FORBIDDEN_MODULES = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "yaml", "pandas"),
    *("subprocess", "pty", "ctypes", "code", "codeop", "runpy", "socket", "socketserver", "xmlrpc", "multiprocessing"),
    *("urllib.request", "http", "requests", "httpx", "ftplib", "smtplib", "telnetlib", "webbrowser", "importlib"),
    *("tarfile", "zipfile", "gzip", "joblib", "xml.sax", "xml.dom", "tempfile", "shutil"),
}
FORBIDDEN_CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "input",
        "breakpoint",
        "os.system",
        "os.popen",
        "os.fork",
        "os.startfile",
    ),
    *("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromregex", "numpy.memmap", "torch.load", "torch.save"),
    *("torch.hub.load", "torch.jit.load", "os.startfile", "importlib.import_module", "tempfile.mktemp"),
    *("xml.etree.ElementTree.parse", "xml.etree.ElementTree.fromstring", "markupsafe.Markup"),
}
FORBIDDEN_METHODS = {"extract", "extractall", "from_pretrained", "urlopen", "loadmat", "load_module", "exec_module"}
FORBIDDEN_WORDS = {
    "allow_pickle": False,
    "weights_only": True,
    "trust_remote_code": False,
    "autoescape": True,
    "shell": False,
    "use_safetensors": True,
}
"""Keywords and the only value that they may be given."""

ALLOWED = {
    ("dpzv_audit/__init__.py", "import importlib"): "loads public names when first used, from a fixed table",
    ("dpzv_audit/__init__.py", "importlib.import_module"): "loads public names when first used, from a fixed table",
    ("dpzv_audit/cli/commands.py", "import importlib"): "loads a command, from a fixed table",
    ("dpzv_audit/cli/commands.py", "importlib.import_module"): "loads a command, from a fixed table",
    ("dpzv_audit/cli/listing.py", "import importlib"): "loads a registry, from a fixed table",
    ("dpzv_audit/cli/listing.py", "importlib.import_module"): "loads a registry, from a fixed table",
    ("dpzv_audit/runs.py", "import importlib"): "reads installed versions",
    ("dpzv_audit/claims/cache.py", "import importlib"): "reads installed versions",
    ("dpzv_audit/base/inputs.py", "import importlib"): "the source of a module by its bytecode's path; imports nothing",
    ("mechanisms/presets.py", "import importlib"): "reads the package's own table",
    (
        "dpzv_audit/games/mechanism.py",
        "import importlib",
    ): "--mechanism pkg.mod:name, named by the user",
    ("dpzv_audit/base/loading.py", "import importlib"): "pkg.mod:name, which the user names",
    ("dpzv_audit/base/loading.py", "importlib.import_module"): "pkg.mod:name, which the user names",
    ("dpzv_audit/systems/record.py", "import tempfile"): "what was recorded past a stated memory",
    ("dpzv_audit/cli/trials.py", "import shutil"): "removes the trainings of a finished command",
    ("dpzv_audit/cli/matrix.py", "import shutil"): "removes the trainings of a finished matrix",
    ("dpzv_audit/data/files.py", "import tarfile"): "reads members into memory, bounded; extracts nothing",
    ("dpzv_audit/data/files.py", "import gzip"): "reads members into memory, bounded; extracts nothing",
    ("dpzv_audit/data/files.py", ".extractfile"): "a member as a stream; nothing is put on the disk",
    (
        "dpzv_audit/base/registry.py",
        "import importlib",
    ): "entry points of installed packages, and where their files lie",
    ("dpzv_audit/reproduce/kept.py", "import subprocess"): "asks git for the commit of this code's own checkout",
    (
        "dpzv_audit/reproduce/memory.py",
        "import tempfile",
    ): "a model of random numbers, for the reader of pre-trained ones",
    ("dpzv_audit/reproduce/memory.py", "import importlib"): "whether transformers is installed",
    ("dpzv_audit/testing/methods.py", "import tempfile"): "a folder for the checkpoint of a tested method",
    ("dpzv_audit/reproduce/pretrained.py", "import importlib"): "where an installed package carries MiniLM",
    ("dpzv_audit/reproduce/__init__.py", "import importlib"): "reads the package's own tables",
    ("dpzv_audit/data/spec.py", "import importlib"): "the version of the package that embeds a data set",
    (
        "dpzv_audit/base/executor.py",
        "import multiprocessing",
    ): "lets a Dask worker have a loky process of its own",
    ("dpzv_audit/base/npy.py", "import zipfile"): "reads arrays, bounded; extracts nothing",
    ("dpzv_audit/games/engine.py", "import shutil"): "removes the folder of a finished audit",
    ("dpzv_audit/cli/matrix_cells.py", "import shutil"): "removes a cell that is to be made again",
    (
        "dpzv_audit/base/store.py",
        "import shutil",
    ): "removes temporary folders that killed processes left, by their lock",
    ("dpzv_audit/data/download.py", "import tempfile"): "writes a file beside the one that it replaces",
    ("dpzv_audit/data/download.py", "import urllib.request"): "--download: https alone, digests checked, sizes bounded",
    ("dpzv_audit/data/download.py", "import http"): "the exceptions of --download",
    (
        "dpzv_audit/data/text.py",
        ".from_pretrained",
    ): "a transformer that the user names; no code of it",
    ("dpzv_audit/base/store.py", "import socket"): "the name of this host, in a lock file",
    (
        "dpzv_audit/base/executor.py",
        "import cloudpickle",
    ): "the job, from this process to the workers of its cluster",
    ("dpzv_audit/base/executor.py", "import joblib"): "loky: worker processes that this one starts itself",
    ("dpzv_audit/results.py", "import pandas"): "a data frame of the rows of a result; reads nothing",
    ("dpzv_audit/cli/view.py", "import http"): "view: listens on 127.0.0.1 alone, GET alone, below a secret path",
    ("dpzv_audit/cli/view.py", "import webbrowser"): "view: opens its own address, where a terminal is",
    ("reports/content.py", "import markupsafe"): "marks drawings made here, whose texts are escaped, as drawn",
}


def names_of(tree):
    """What each name of a module stands for, by its imports: `np` is `numpy`, `system` is `os.system`."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def dangers(tree):
    """Every forbidden import, call, method or keyword in a module, by what it is."""
    names = names_of(tree)
    forbidden = set()
    for node in ast.walk(tree):
        for module in imported(node):
            parts = module.split(".")
            prefixes = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
            forbidden |= {f"import {name}" for name in prefixes & (FORBIDDEN_MODULES | {"markupsafe"})}
            forbidden |= {module for name in {module} & FORBIDDEN_CALLS if name != "markupsafe.Markup"}
        if isinstance(node, ast.Name | ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            full = f"{names.get(first, first)}{'.' if rest else ''}{rest}"
            if full in FORBIDDEN_CALLS and full != "markupsafe.Markup":
                forbidden.add(full)
        if isinstance(node, ast.Attribute) and (node.attr in FORBIDDEN_METHODS or node.attr == "extractfile"):
            forbidden.add(f".{node.attr}")
        if isinstance(node, ast.keyword) and node.arg in FORBIDDEN_WORDS:
            right = FORBIDDEN_WORDS[node.arg]
            if not (isinstance(node.value, ast.Constant) and node.value.value is right):
                forbidden.add(f"{node.arg} is not {right}")
    return forbidden


def test_the_shipped_code_does_nothing_dangerous_but_what_is_allowed_here():
    found = {(name, danger) for name in MODULES for danger in dangers(tree_of(name))}
    assert found - set(ALLOWED) == set()
    assert set(ALLOWED) - found == set()  # what is no longer done is no longer allowed


PLANTED = {
    "import pickle": "import pickle",
    "from pickle import loads": "import pickle",
    "import numpy as np\nnp.load(p)": "numpy.load",
    "from numpy import load\nload(p)": "numpy.load",
    "import numpy\nread = numpy.load": "numpy.load",
    "import torch\ntorch.load(p)": "torch.load",
    "f(p, allow_pickle=True)": "allow_pickle is not False",
    "f(p, allow_pickle=flag)": "allow_pickle is not False",
    "f(p, weights_only=False)": "weights_only is not True",
    "f(p, trust_remote_code=True)": "trust_remote_code is not False",
    "Environment(autoescape=False)": "autoescape is not True",
    "eval(text)": "eval",
    "list(map(exec, texts))": "exec",
    "import os\nos.system(text)": "os.system",
    "from os import system as s\ns(text)": "os.system",
    "import subprocess": "import subprocess",
    "def f():\n    from subprocess import run": "import subprocess",
    "import yaml\nyaml.load(text)": "import yaml",
    "archive.extractall(folder)": ".extractall",
    "import urllib.request": "import urllib.request",
    "from urllib import request": "import urllib.request",
    "__import__(name)": "__import__",
    "import xml.etree.ElementTree as E\nE.fromstring(text)": "xml.etree.ElementTree.fromstring",
}


@pytest.mark.parametrize("source", PLANTED)
def test_each_danger_is_found(source):
    assert PLANTED[source] in dangers(ast.parse(source))


def test_harmless_code_is_not_taken_for_it():
    harmless = "import os, re\nre.compile(x)\nos.path.join(a, b)\nmodel.eval()\nf(allow_pickle=False)"
    assert dangers(ast.parse(harmless)) == set()


def test_templates_escape_everything_but_drawings():
    folder = ROOT / "reports" / "templates"
    templates = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.html")}
    assert set(templates) == {"report.html", "view.html"}
    for name, text in templates.items():
        assert "|safe" not in text.replace(" ", "")
        assert "autoescape" not in text
        assert text.count("markup(") == text.count("markup(block.svg)") <= 1
        assert "default-src 'none'" in text
        # Reports have no script; the local page of all runs has files of its own.
        assert (
            text.count("<script") == text.count('<script nonce="{{ nonce }}" src=') == (2 if name == "view.html" else 0)
        )
    script = (folder / "view.js").read_text(encoding="utf-8")
    assert not [
        word for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(") if word in script
    ]
