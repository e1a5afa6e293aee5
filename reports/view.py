"""The page of all runs in a folder, in files: rows of a list, the details of each run, and what draws them.

Of a run folder `result.json` alone is read, at most `MOST_BYTES` of it, and no link is followed. Words, verdicts and
rounded numbers are made here by what makes reports; the page's script (`templates/view.js`) arranges them. All that
comes of a run reaches it as JSON inside a string, in files of their own: `runs.js` has the list, `runs/ID.js` a run.
"""

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.base.files import json_in, read_plain
from dpzv_audit.results import (
    AccountResult,
    AttackResult,
    AttacksResult,
    Cell,
    ClaimResult,
    MatrixResult,
    Privacy,
    Reported,
    RunResult,
    ScoresResult,
    Tradeoff,
    VerifyResult,
    read,
)
from dpzv_audit.runs import RESULT_FILE

from . import risk
from .answer import answer_of, largest_certified
from .content import environment
from .head import LABELS, head_of, share, short_metric, strongest, successes
from .matrix import attack_of, worst_first
from .measured import command_of, settings_of, sound_bound
from .text import MISSING, as_claimed, attacker, clean, lower_bound, number, percent, to_json, upper_bound
from .verdicts import meaning_of

MOST_BYTES = 20_000_000
"""Bytes of a result that is read; larger ones are named with this limit."""
MOST_TEXT = 1_000
"""Characters of a text that is shown."""
MOST_NUMBERS = 2_000
"""Numbers of a run that can be compared."""
_NOT_LISTED = ("tradeoff", "curves", "reconstructions", "measures", "utility", "by_runs", "wealth", "published")
"""Large parts of results on which no row of the list depends: they need not be read again for each."""
_COMMANDS = {"attacks": "attack all", "planted": "audit planted"}
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-")
_COMMIT = re.compile(r"(?<![0-9A-Za-z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}(?![0-9A-Za-z])")
_NO_NUMBERS = frozenset(
    {
        *("schema", "method", "dataset", "seed", "config", "data", "compute", "versions", "command_line", "run"),
        *("published", "noise", "tradeoff", "curves", "reconstructions", "by_runs", "wealth", "figures", "release"),
        *("attack_setting", "judged", "cells", "rows", "scores_digest", "evidence_key", "history"),
    }
)
"""Keys of results that hold settings, curves and tables; what is left of a result are numbers to compare."""
_NAMES = ("name", "accountant", "estimator", "attack", "method", "adversary", "neighbours", "what")
"""Keys that tell the parts of a list from each other."""
Json = Mapping[str, object]


@dataclass(frozen=True)
class File:
    """A file of the page: its media type and its bytes."""

    kind: str
    content: bytes


@dataclass(frozen=True)
class RunFile:
    """The result of a run: its `place` below the folder that is shown, and its path."""

    place: str
    path: Path

    @property
    def key(self) -> str:
        """The name under which the page asks for the run."""
        return hashlib.sha256(os.fsencode(self.place)).hexdigest()[:16]

    def load(self, without: Collection[str] = ()) -> tuple[Reported, dict[str, object]]:
        """Return the result but for some parts, and what of it no model has a place for; errors as `results.read`."""
        try:
            value = json_in(read_plain(self.path, MOST_BYTES, links=False))
        except OSError as error:
            raise InputError(f": cannot be read ({error.strerror})", RESULT_FILE) from error
        except ValueError as error:
            raise InputError(f": is not JSON ({error})", RESULT_FILE) from error
        if not isinstance(value, dict):
            raise InputError(f": holds a JSON {type(value).__name__}, not a result", RESULT_FILE)
        return read({key: part for key, part in value.items() if key not in without})

    def row(self) -> Json:
        """Return what the list says of the run."""
        return row_of(self.load(_NOT_LISTED)[0])

    def details(self) -> Json:
        """Return what the page shows of the run alone."""
        return details_of(*self.load())

    def facts(self) -> dict[str, object]:
        """Return what the path says: the folder, the date in its name, and the commit in the name of one above it."""
        folders = self.place.split("/")
        stamp = next(filter(None, map(_STAMP.match, reversed(folders))), None)
        commit = next(filter(None, map(_COMMIT.search, reversed(folders[:-1]))), None)
        date = "" if stamp is None else "{}-{}-{} {}:{}:{}".format(*stamp.groups())
        return {"id": self.key, "folder": self.place, "date": date, "commit": commit[0][:12] if commit else ""}


def runs_in(folder: Path) -> Iterator[RunFile]:
    """Yield the results in and below `folder`, by name; not those that a run keeps within its own folder.

    Links and hidden folders are left out, and folders that cannot be listed.
    """
    waiting = [(folder, "")]
    while waiting:
        place, name = waiting.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name == RESULT_FILE for entry in entries):
            yield RunFile(name or place.resolve().name, place / RESULT_FILE)
            continue
        inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        waiting += [(place / each, f"{name}/{each}".lstrip("/")) for each in reversed(inner) if each[0] != "."]


class Pages:
    """The files of the page on the runs in `folder`, by name; `drawing` returns the script that draws curves."""

    def __init__(self, folder: Path, drawing: Callable[[], str]) -> None:
        self.folder = folder
        self._drawing = drawing
        self._nonce = secrets.token_urlsafe(16)
        self._runs: dict[str, RunFile] = {}
        self.rows: list[Json] = []
        self.unreadable: list[Json] = []

    def look(self) -> None:
        """Read all results anew: a row for each run, and for each result that cannot be shown why."""
        self._runs = {run.key: run for run in runs_in(self.folder)}
        shown = [{**run.facts(), **_guarded(run.row)} for run in self._runs.values()]
        self.rows = [row for row in shown if "unreadable" not in row]
        self.unreadable = [row for row in shown if "unreadable" in row]

    def get(self, name: str) -> File | None:
        """Return the file of that name; None where there is none. A run is known once the list was asked for."""
        if name in ("", "index.html"):
            page = environment().get_template("view.html").render(nonce=self._nonce)
            return File("text/html; charset=utf-8", page.encode())
        if name == "view.js":
            return _script((Path(__file__).parent / "templates" / "view.js").read_text("utf-8"))
        if name == "plotly.js":
            return _script(self._drawing())
        if name == "runs.js":
            self.look()
            value = {"folder": str(self.folder), "runs": self.rows, "unreadable": self.unreadable}
            return self._taken("runs", value)
        run = self._runs.get(name.removeprefix("runs/").removesuffix(".js"))
        if run is None or name != f"runs/{run.key}.js":
            return None
        return self._taken(run.key, {**run.facts(), **_guarded(run.details)})

    def names(self) -> Iterator[str]:
        """Yield the names of all files, in an order in which they can be asked for."""
        yield from ("index.html", "view.js", "plotly.js", "runs.js")
        yield from (f"runs/{key}.js" for key in self._runs)

    def _taken(self, key: str, value: object) -> File:
        # A string of JSON: as an object of JavaScript a key `__proto__` would not be one.
        return _script(f"dpzvTake({to_json(key)}, {to_json(json.dumps(_safe(value), allow_nan=False))});\n")


def _script(text: str) -> File:
    return File("text/javascript; charset=utf-8", text.encode())


def _guarded(make: Callable[[], Json]) -> Json:
    """Return what `make` returns, or why a result cannot be shown: one file must not hide the others."""
    try:
        return make()
    except AuditError as error:
        return {"unreadable": error.said(lambda path: RESULT_FILE, str)}
    except Exception as error:  # of a file that somebody else wrote
        return {"unreadable": f"cannot be shown ({type(error).__name__}: {error})"}


def _safe(value: object) -> object:
    """Return a value as the page may show it: texts cleaned and cut, numbers that JavaScript has."""
    match value:
        case str():
            text = clean(value[:MOST_TEXT])
            return text if len(value) <= MOST_TEXT else f"{text}…"
        case float() if not math.isfinite(value):
            return number(value)
        case bool() | int() | float() | None:
            return value
        case Mapping():
            return {clean(str(key)[:MOST_TEXT]): _safe(part) for key, part in value.items()}
        case list() | tuple():
            return [_safe(part) for part in value]
    return clean(value)


def row_of(result: Reported) -> dict[str, object]:
    """Return what the list says of a run, with the verdict as every page has it."""
    judgement = head_of(result)
    schema = result.SCHEMA.split("/")[1]
    privacy = _privacy(result)
    epsilon = _epsilons(privacy)
    if isinstance(result, AttacksResult) and result.coin_game is not None:
        _, certified = largest_certified(result, result.coin_game)
        epsilon["measured"] = certified or result.coin_game.epsilon_lower
    elif isinstance(result, VerifyResult):
        gravest = result.verdict
        claim = next((claim for claim in result.claims if claim.judged is gravest), None)
        epsilon = {} if claim is None or claim.form == "attack" else _epsilons(_of_claim(claim))
    claimed, measured, proven = (epsilon.get(name) for name in ("claimed", "measured", "proven"))
    return {
        "version": _text(getattr(result, "versions", {}).get("dpzv-audit")),
        "command": _COMMANDS.get(schema, schema.replace("-", " ")),
        "system": _system(result),
        "data": getattr(result, "dataset", ""),
        "attacker": _attacker(result),
        "word": judgement.word,
        "about": judgement.about,
        "alarming": judgement.alarming,
        "claimed": [claimed, "" if claimed is None else f"ε ≤ {as_claimed(claimed)}"],
        "measured": [measured, "" if measured is None else f"≥ {lower_bound(measured, claimed)}"],
        "proven": [proven, "" if proven is None else f"≤ {upper_bound(proven, claimed)}"],
        **_success(result),
        "points": _points(result),
    }


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _privacy(result: Reported) -> Privacy:
    return result.privacy if isinstance(result, RunResult | ScoresResult | AccountResult) else Privacy()


def _epsilons(privacy: Privacy) -> dict[str, float | None]:
    return {"claimed": privacy.claimed, "measured": privacy.empirical_lower, "proven": privacy.upper}


def _of_claim(claim: ClaimResult) -> Privacy:
    """Return a claim of a file about an epsilon as the section that other results have."""
    delta, adversary, neighbours = (claim.claim.get(key) for key in ("delta", "adversary", "neighbours"))
    return Privacy(
        claimed=claim.claimed,
        upper=claim.upper,
        empirical_lower=claim.epsilon_lower,
        delta=delta if isinstance(delta, int | float) else None,
        adversary=adversary if isinstance(adversary, str) else claim.judged.adversary,
        neighbours=neighbours if isinstance(neighbours, str) else claim.judged.neighbours,
        given=claim.judged.given,
        bounds=claim.bounds,
    )


def _system(result: Reported) -> str:
    """Return the system that a run is about, with its defences."""
    match result:
        case VerifyResult():
            return result.claims_file.rpartition("/")[2]
        case MatrixResult():
            return f"{len({cell.method for cell in result.cells})} methods"
        case ScoresResult():
            return "scores"
    method = getattr(result, "method", "") or getattr(result, "table", "") or "a release"
    defences = getattr(result, "config", {}).get("defences")
    names = [each["name"] for each in defences or () if isinstance(each, Mapping) and "name" in each]
    return " + ".join(map(str, (method, *names)))


def _cells(result: Reported) -> list[Cell]:
    match result:
        case AttacksResult():
            return worst_first(result.attacks)
        case MatrixResult():
            return worst_first(result.cells)
    return []


def _attacker(result: Reported) -> str:
    if isinstance(result, AttackResult):  # named by the attack whose success stands beside it
        best = strongest(successes(result))
        shown = result if best is None else best
        return f"{attacker(shown.adversary)}: {shown.attack}"
    if cells := _cells(result):
        return f"{attacker(cells[0].adversary)}: {attack_of(cells[0])}"
    if isinstance(result, VerifyResult):
        found = {claim.judged.adversary for claim in result.claims if claim.judged.adversary}
        return attacker(found.pop()) if len(found) == 1 else f"{len(found)} kinds" if found else ""
    name = _privacy(result).adversary
    return attacker(name) if name else ""


def _success(result: Reported) -> dict[str, object]:
    """Return the largest success of an attack and its baseline, each as a number and in words."""
    success = baseline = None
    metric = LABELS
    if isinstance(result, AttackResult) and (best := strongest(successes(result))) is not None:
        success, baseline, metric = best.value, best.reference, best.metric
    elif cells := _cells(result):
        success, baseline, metric = cells[0].success, cells[0].reference, clean(cells[0].metric or LABELS)
    elif isinstance(result, VerifyResult) and (verdict := result.verdict) is not None and verdict.measured is not None:
        success = verdict.measured.value if verdict.measured.quantity == "success" else None
    texts = ["" if value is None else share(value, metric) for value in (success, baseline)]
    return {
        "success": [success, texts[0]],
        "baseline": [baseline, texts[1]],
        "metric": short_metric(metric) if success is not None and metric != LABELS else "",
    }


def _points(result: Reported) -> list[Json]:
    """Return the epsilons of a run as points of a diagram over runs: one for each system or claim."""
    if isinstance(result, VerifyResult):
        return [
            {"line": claim.name, "word": claim.verdict.replace("-", " "), **_epsilons(_of_claim(claim))}
            for claim in result.claims
            if claim.form != "attack"
        ]
    privacy = _privacy(result)
    epsilons = _epsilons(privacy)
    if all(value is None for value in epsilons.values()):
        return []
    data = getattr(result, "dataset", "")
    line = f"{_system(result)}{f' on {data}' if data else ''}"
    line += f", {attacker(privacy.adversary)}" if privacy.adversary else ""
    return [{"line": line, "word": privacy.verdict or "", **epsilons}]


def details_of(result: Reported, other: Json) -> dict[str, object]:
    """Return everything that the page shows of one run; `other` are keys of its file that no model knows."""
    answer = answer_of(result)
    judgement = answer.judgement
    step = judgement.step
    head = {
        "kind": result.KIND,
        "subject": answer.subject,
        "meaning": meaning_of(judgement.word),
        "why": answer.why,
        "notes": judgement.notes,
        "facts": answer.facts,
        "caption": answer.caption,
        "rows": [{key: MISSING if value == "" else number(value) for key, value in row.items()} for row in answer.rows],
        "more": [text for text in (answer.more, answer.checks and f"Checks: {answer.checks}") if text],
        "next": None if step is None else {"words": step.words, "command": step.command},
    }
    settings = {
        f"{caption}: {key}": value
        for caption, table in settings_of(result).items()
        for key, value in table.items()
        if key not in ("run", "schema")
    }
    numbers = {name: _both(value) for name, value in islice(_numbers(result.to_json(), ""), MOST_NUMBERS)}
    return {
        **row_of(result),
        "head": head,
        "settings": settings,
        "numbers": numbers,
        "curves": _curves(result),
        "risks": _risks(result),
        "unknown": sorted(other),
        "again": command_of(result) if getattr(result, "command_line", None) else "",
    }


def _numbers(value: object, name: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a part of a result with the words that lead to them."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if key not in _NO_NUMBERS:
                yield from _numbers(part, f"{name}, {_words(key)}" if name else _words(key))
    elif isinstance(value, list):
        for place, part in enumerate(value, start=1):
            if isinstance(part, Mapping):
                said = [str(part[key]) for key in _NAMES if isinstance(part.get(key), str)]
                yield from _numbers(part, f"{name}, {' '.join(said) or place}")


def _words(key: object) -> str:
    return str(key).replace("_", " ").replace("-", " ")


def _both(value: float) -> list[object]:
    """Return a number as it is shown, and all its digits, by which two are told apart."""
    return [number(value), repr(value)]


def _curves(result: Reported) -> list[Json]:
    """Return the trade-off curves of a run as false negative rates over false positive rates `alpha`."""
    match result:
        case RunResult(tradeoff=Tradeoff() as tradeoff):
            found = [_of_tradeoff("", tradeoff)]
        case VerifyResult():
            found = [_of_tradeoff(claim.name, claim.tradeoff) for claim in result.claims if claim.tradeoff is not None]
        case AccountResult() if "alpha" in result.figures.tradeoff:
            alpha = result.figures.tradeoff["alpha"]
            lines = {name: curve for name, curve in result.figures.tradeoff.items() if len(curve) == len(alpha)}
            del lines["alpha"]
            found = [{"name": "", "alpha": alpha, "lines": lines, "note": ""}]
        case _:
            found = []
    if isinstance(result, AttackResult):
        across, up = "false positive rate", "true positive rate"
        for name, rows in result.curves.items():
            points = [(row.get(across), row.get(up)) for row in rows]
            known = [(x, y) for x, y in points if isinstance(x, int | float) and isinstance(y, int | float)]
            if len(known) > 1:
                lines = {"the attack": [1.0 - y for _, y in known]}
                found.append({"name": name, "alpha": [x for x, _ in known], "lines": lines, "note": ""})
    return [curves for curves in found if curves["lines"]]


def _of_tradeoff(name: str, tradeoff: Tradeoff) -> dict[str, object]:
    low, high = tradeoff.empirical_low, tradeoff.empirical_high
    names = {"recomputed": "proven"}
    shown: dict[str, object] = {
        "name": name,
        "alpha": tradeoff.alpha,
        "lines": {names.get(key, key): curve for key, curve in tradeoff.curves.items()},
        "note": tradeoff.note or "",
    }
    if low and high:
        confidence = "" if tradeoff.confidence is None else f"{percent(tradeoff.confidence)} "
        shown["band"] = {"name": f"{confidence}band", "low": low, "high": high}
    return shown


def _risks(result: Reported) -> list[Json]:
    """Return the curves that bound the best attacker, for the sliders: as claimed, as proven, as measured."""
    sections: list[tuple[str, Privacy, Tradeoff | None]] = []
    if isinstance(result, VerifyResult):
        claims = [claim for claim in result.claims if claim.form in ("method", "system", "mechanism", "scores")]
        sections = [(claim.name, _of_claim(claim), claim.tradeoff) for claim in claims]
    elif isinstance(result, RunResult | ScoresResult | AccountResult):
        sections = [("", _privacy(result), getattr(result, "tradeoff", None))]
    found: list[Json] = []
    for name, privacy, tradeoff in sections:
        least, basis = risk.at_least(privacy, tradeoff)
        most = {"claimed": risk.by_claim(privacy), "proven": risk.at_most(sound_bound(privacy))}
        curves = {key: each.curve for key, each in {"measured": least, **most}.items() if each is not None}
        if curves:
            case = risk.CASES.get(privacy.neighbours or "", "between two neighbouring data sets")
            found.append({"name": name, "case": case, "curves": curves, "basis": basis})
    return found
