"""Coverage-guided fuzzing of the readers, for as long as one likes: needs atheris, which is no dependency.

    pip install atheris
    python tests/fuzz/guided.py READER [libFuzzer options, such as -max_total_time=600 or a corpus folder]

READER is one of the names below. It ends at the first file that gives anything but a result or one line.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dpzv_audit", "reports"]):
    from dpzv_audit.base.errors import InputError
    from dpzv_audit.base.npy import read_npz
    from dpzv_audit.claims.file import load_claims
    from dpzv_audit.claims.ledger import open_ledger
    from dpzv_audit.data.files import TarLimits, read_tar_members
    from dpzv_audit.data.images import IdxFile, read_idx
    from dpzv_audit.data.mfeat import read_mat5
    from dpzv_audit.data.table import load_csv
    from dpzv_audit.results import read
    from dpzv_audit.runs import load_run
    from dpzv_audit.statistics.scores import load_scores
    from reports.content import report_content
    from reports.render import to_html

LIMITS = TarLimits(members=5, member_bytes=4096, total_bytes=1 << 16)
IDX = IdxFile(name="i", shape=(3, 2, 2), md5="")


def _arrays(path):
    try:
        read_npz(path, {"a": 12})
    except (ValueError, OSError) as error:
        raise InputError(error) from error


READERS = {
    "claims": ("claims.toml", load_claims),
    "ledger": ("ledger", lambda path: open_ledger(path, 1e-3)),
    "scores-csv": ("scores.csv", load_scores),
    "scores-jsonl": ("scores.jsonl", load_scores),
    "scores-npy": ("scores.npy", load_scores),
    "scores-npz": ("scores.npz", load_scores),
    "table": ("table.csv", lambda path: load_csv(path, label="y", categories=["c"])),
    "tar": ("a.tar.gz", lambda path: list(read_tar_members(path, lambda name: True, LIMITS))),
    "idx": ("i", lambda path: read_idx(path, IDX)),
    "matlab": ("m.mat", lambda path: read_mat5(path, ("X", "Y"), 1 << 16)),
    "npz": ("a.npz", _arrays),
    "result": ("result.json", lambda path: to_html(report_content(*read(load_run(path))))),
}


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in READERS:
        sys.exit(f"READER is {name!r}, must be one of {', '.join(READERS)}")
    file, read = READERS[name]
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
        path = Path(folder) / file

        def once(content):
            path.write_bytes(content)
            try:
                read(path)
            except InputError as error:
                message = str(error)
                if not message.isprintable() or len(message) > 3000 or re.search("object at 0x", message):
                    raise AssertionError(f"no line for people: {message!r}") from error

        atheris.Setup([sys.argv[0], *sys.argv[2:]], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
