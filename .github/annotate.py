"""Shows what failed as annotations of a GitHub workflow: one at the line of each claim that fails.

    python annotate.py EXIT_CODE CLAIMS.SARIF ERRORS.TXT

Reads the SARIF file that `dpzv-audit verify` wrote and, where it ended before any verdict, what it said on stderr.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_PLACED = re.compile(r"dpzv-audit: error: (?P<file>[^:]+):(?P<line>\d+): (?P<message>.+)")


def command(level: str, message: str, **properties: object) -> str:
    """Return the workflow command that annotates, everything escaped that the runner would take for its own."""
    told = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in properties.items())
    return f"::{level} {told}::{_escaped(message)}"


def _escaped(text: str, further: str = "") -> str:
    for character in f"%\r\n{further}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def of_claims(sarif: dict[str, object]) -> Iterator[str]:
    """Yield the annotations of the claims that fail (errors) or are allowed to be overclaimed (warnings)."""
    for run in sarif["runs"]:
        for result in run["results"]:
            if result["level"] in ("error", "warning"):
                place = result["locations"][0]["physicalLocation"]
                file = unquote(place["artifactLocation"]["uri"].removeprefix("file://"))
                title = f"privacy claim {result['properties']['verdict']}"
                line = place["region"]["startLine"]
                yield command(result["level"], result["message"]["text"], file=file, line=line, title=title)


def of_errors(code: int, errors: str) -> str:
    """Return the annotation of a run without verdicts: its last line on stderr, at the place that this names."""
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "it said nothing on stderr")
    title = f"dpzv-audit verify ended with exit code {code}"
    placed = _PLACED.fullmatch(last)
    if placed is None:
        return command("error", last, title=title)
    return command("error", placed["message"], file=placed["file"], line=placed["line"], title=title)


def main(code: int, sarif: Path, errors: Path) -> None:
    """Print the annotations."""
    if sarif.exists():
        for line in of_claims(json.loads(sarif.read_text(encoding="utf-8"))):
            print(line)
    if code not in (0, 1):
        print(of_errors(code, errors.read_text(encoding="utf-8", errors="replace")))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
