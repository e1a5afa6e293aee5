"""Runs a chunk of a mechanism in a process of its own, where its thread (a Dask worker's) could not be interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from dpzv_audit.auditing.storage import Arrays, npz_bytes, read_npz
from dpzv_audit.errors import InputError

_ANSWER = "answer.npz"


def in_own_process(path: str, seed: int, seconds: float, first: int, last: int) -> Arrays:
    """Return what `mechanism.MechanismTrials(path, seed, seconds)` answers in a main thread for `first` to `last`.

    A process that ends without an answer (a run hung in native code, or memory ran out) is the mechanism's failure.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [path, str(seed), repr(seconds), str(first), str(last), folder]
        # What this process can import that one can too, whatever a cluster has put on the path.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
        command = [sys.executable, "-m", "dpzv_audit.auditing.own_process", *arguments]
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        answer = Path(folder, _ANSWER)
        if answer.is_file():
            return read_npz(answer)
    words = (
        f"--mechanism {path}: runs {first + 1} to {last} took their process down (exit code {code}), or one of them "
        f"took longer than --trial-seconds {seconds:g} in native code"
    )
    return {"failure": np.array(["failed", words])}


def main(arguments: list[str]) -> None:
    """Run the chunk that the arguments of `in_own_process` say, and leave its arrays in their folder."""
    from dpzv_audit.auditing.mechanism import MechanismTrials

    path, seed, seconds, first, last, folder = arguments
    try:
        arrays = MechanismTrials(path, int(seed), float(seconds))(int(first), int(last))
    except InputError as error:
        arrays = {"failure": np.array(["input", str(error)])}
    whole = Path(folder, f"{_ANSWER}.partial")
    whole.write_bytes(npz_bytes(arrays))
    whole.replace(whole.with_name(_ANSWER))


if __name__ == "__main__":
    main(sys.argv[1:])
