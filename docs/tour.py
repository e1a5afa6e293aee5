"""Runs every command of the README in a fresh folder and writes what it prints back beside it; draws its picture.

    python docs/tour.py            about three minutes; COLUMNS, seeds and versions are those of the README

Console blocks hold commands after `$ ` (continued after `> `) and their output; a python block is followed by a text
block with its output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
MARK = "@@@ end of output @@@"


def environment(folder: Path) -> dict[str, str]:
    """The commands of the environment that runs this file, in a terminal of 100 columns; nothing cached."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "100", "DPZV_AUDIT_CACHE": str(folder / "cache")}


def shown(text: str) -> str:
    """Return output as it is shown: without the blanks that pad lines and the empty lines around it."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def commands(block: str) -> list[str]:
    """Return the commands of a console block; a continued one has several lines."""
    found: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif line == ">" or line.startswith("> "):
            found[-1] += "\n" + line[2:]
    return found


def console(block: str, folder: Path) -> str:
    """Return a console block with fresh output; its commands share one shell."""
    wanted = commands(block)
    script = "\n".join(f"{command}\ncode=$?; echo '{MARK}'; (exit $code)" for command in wanted)
    done = subprocess.run(
        ["bash", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment(folder),
    )
    parts: list[str] = []
    for command, output in zip(wanted, done.stdout.split(MARK + "\n"), strict=False):
        parts.append("$ " + command.replace("\n", "\n> ").replace("> \n", ">\n"))
        if shown(output):
            parts.append(shown(output))
    return "\n".join(parts) + "\n"


def python(code: str, folder: Path) -> str:
    """Return what a python block prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    return shown(done.stdout) + "\n"


def refreshed(text: str, folder: Path) -> str:
    """Return the README `text` with the output of every command in it made anew in `folder`."""
    text = re.sub(r"(?<=```console\n)(.*?)(?=```\n)", lambda found: console(found[1], folder), text, flags=re.DOTALL)
    return re.sub(
        r"```python\n(.*?)```\n\n```text\n.*?```\n",
        lambda found: f"```python\n{found[1]}```\n\n```text\n{python(found[1], folder)}```\n",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Refresh the README and its picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        README.write_text(refreshed(README.read_text(encoding="utf-8"), folder), encoding="utf-8")
        (run,) = folder.glob("dpzv-runs/*-attack-dpzv-digits-label_direct-seed0")
        subprocess.run([sys.executable, HERE / "images/draw.py", run, HERE / "images/claim.svg"], check=True)


if __name__ == "__main__":
    main()
