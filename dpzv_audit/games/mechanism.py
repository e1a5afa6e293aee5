"""A mechanism of the user's own under audit: one small protocol, and `play`, which runs it within a time limit.

The mechanism is a function `run(world, rng)`, or an object with

    run(world, rng) -> score or view     one run; world is 0 ("out") or 1 ("in"), rng a numpy Generator

    run_batch(world, rng, n) -> answers  instead or as well: n runs at once, n scores or views
    score(view) -> float                 optional: turns a view into the attack's score
    claimed(delta) -> float              optional: the epsilon that is audited where the user names none

A run answers with a number, the attack's score; or with a view, a vector of numbers of one length. Views become scores
by `score`, or else by a score fitted on separate runs (see `games.scores`). All randomness must come from `rng`. The
worlds are what the neighbour relation says: the same data set but for one record. Where it is named, as
`pkg.mod:factory`, `pkg.mod` is imported and `factory()` returns it.

A mechanism may keep state between runs, such as a count of its calls. The order of worlds is therefore random: a fixed
order would let such a state tell the worlds apart, and a private mechanism would be refuted.
"""

import ast
import faulthandler
import importlib
import importlib.util
import os
import sysconfig
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import AuditError, InputError
from ..base.executor import in_own_process, in_worker
from ..base.files import PACKAGE_FOLDERS, python_files, read_plain, tree_digest
from ..base.inputs import Inputs, add_inputs, inputs_of
from ..base.loading import function_at, importable, name_of_import, short, words_of
from ..base.seeds import Purpose, stream
from ..base.signals import TooLong, can_ring, until
from ..statistics.settings import not_held
from .arrays import Arrays, Floats, joined_arrays
from .engine import MechanismFailed
from .scores import GameScores, GaussianGiven, scores_of

Streams = Callable[[int, int | None], np.random.Generator]
"""From (world, run) to the generator of that run; with None for the run, to that of all of them in batches.

In place of a world, `ORDER` gives the generator that draws the order of worlds.
"""
ORDER = 2
BATCH_RUNS = 16
"""Runs of one call of `run_batch`, at most. A chunk is several calls, so that their random order hides a call's number:
what a call leaves behind moves all its scores at once, and few calls could fall apart by chance."""

_GRACE_SECONDS = 5.0
"""How long after its limit a run that no signal reaches (in native code) takes its worker process down."""
_RIGHT = "use a number or a vector of numbers"


def mechanism_from(path: str, folder: Path | None = None) -> Any:
    """Import `pkg.mod` and return `factory()` for the path `pkg.mod:factory`; `InputError` where it is none.

    The module is looked for on the import path and in `folder`, by default the current one.
    """
    factory = function_at(path, "mechanism", "pkg.mod:factory or planted:NAME", folder)
    with importable(folder):
        try:
            made = factory()
        except (Exception, SystemExit) as error:
            raise InputError(f"mechanism {path}: {factory.__name__}() failed: {words_of(error)}") from error
    return check_mechanism(made, path)


def check_mechanism(made: Any, label: str) -> Any:
    """Return what is said to be a mechanism; `InputError` where nothing of it can be run."""
    if not any(map(callable, (made, getattr(made, "run", None), getattr(made, "run_batch", None)))):
        raise InputError(
            f"mechanism {label}: {type(made).__name__} has no method run(world, rng); give it one, or use a function"
        )
    return made


def play(
    made: Any, label: str, first: int, last: int, *, streams: Streams, seconds: float
) -> tuple[Arrays, AuditError | None]:
    """Run pairs `first` to `last` (exclusive), each run within `seconds`; also return what ended them early, if so.

    Arrays: `in_scores`, `out_scores` (n,), or `in_features`, `out_features` (n, d) where it answers with views; of the
    pairs before a failure where there was one. That is an `InputError` for an answer of another kind, and
    `MechanismFailed` for a run that raised or took too long. Here means in this process; in a thread that no timer
    reaches there is no limit.
    """
    runner = _Runner(made, label, seconds)
    batched = callable(getattr(made, "run_batch", None))
    rows: tuple[list[Floats], list[Floats]] = ([], [])
    failure: AuditError | None = None
    shape: tuple[int, ...] | None = None
    try:
        for calls in (_in_batches if batched else _one_by_one)(first, last, streams):
            answers = []
            for world, rng, begin, end in calls:
                answer = (runner.batch if batched else runner.once)(world, rng, begin, end)
                shape = answer.shape[1:] if shape is None else shape
                if answer.shape[1:] != shape:
                    where = runner.runs(world, begin, end)
                    raise InputError(
                        f"{where} answered shape {answer.shape[1:]} after shape {shape}; always answer one shape"
                    )
                answers.append((world, answer))
            for world, answer in answers:
                rows[world].append(answer)
    except AuditError as error:
        failure = error
    if not rows[1]:
        return {}, failure
    out, inside = map(np.concatenate, rows)
    name = "scores" if out.ndim == 1 else "features"
    return {f"out_{name}": out, f"in_{name}": inside}, failure


Call = tuple[int, np.random.Generator, int, int]
"""A call of the mechanism: the world, its generator, and its runs from the first to the last (exclusive)."""


def _one_by_one(first: int, last: int, streams: Streams) -> Iterator[list[Call]]:
    """Yield the two runs of each pair; a fair coin says which world runs first."""
    for run in range(first, last):
        begins = int(streams(ORDER, run).integers(2))
        yield [(world, streams(world, run), run, run + 1) for world in (begins, 1 - begins)]


def _in_batches(first: int, last: int, streams: Streams) -> Iterator[list[Call]]:
    """Yield all batches of both worlds together, in a random order; each world's runs keep theirs."""
    rngs = [streams(world, None) for world in (0, 1)]
    spans = [(begin, min(begin + BATCH_RUNS, last)) for begin in range(first, last, BATCH_RUNS)]
    left = [iter(spans), iter(spans)]
    worlds = streams(ORDER, None).permutation(np.repeat([0, 1], len(spans))).tolist()
    yield [(world, rngs[world], *next(left[world])) for world in worlds]


@dataclass(frozen=True)
class _Runner:
    """A mechanism, what it is called, and what one run of it may take."""

    made: Any
    label: str
    seconds: float

    def runs(self, world: int, first: int, last: int) -> str:
        """Return what runs are called."""
        numbers = f"run {last}" if last - first == 1 else f"runs {first + 1} to {last}"
        return f"mechanism {self.label}: {numbers} of the world {('out', 'in')[world]!r}"

    def once(self, world: int, rng: np.random.Generator, first: int, last: int) -> Floats:
        """Return the answer of one run, a score (1,) or a view (1, d)."""
        run = getattr(self.made, "run", self.made)
        where = self.runs(world, first, last)
        value = _numbers(self._guarded(lambda: self._scored(run(world, rng)), where), where)
        if value.ndim > 1:
            raise InputError(f"{where} answered an array of shape {value.shape}; use a number or a vector")
        return value[None]

    def batch(self, world: int, rng: np.random.Generator, first: int, last: int) -> Floats:
        """Return the answers of runs at once, (n,) or (n, d)."""
        runs = last - first
        where = self.runs(world, first, last)
        answers = self._guarded(lambda: self.made.run_batch(world, rng, runs), where, runs=runs)
        right = f"use ({runs},) or ({runs}, d)"
        try:
            count = len(answers)
        except TypeError:
            answers = [answers]
            count = 1 if runs != 1 else -1
        if count != runs:
            shape = np.shape(answers) if isinstance(answers, np.ndarray) else (count,)
            raise InputError(f"{where} answered an array of shape {shape}; {right}")
        if callable(getattr(self.made, "score", None)):
            answers = [self._guarded(partial(self._scored, view), where) for view in answers]
        values = _numbers(answers, where)
        if values.ndim > 2:
            raise InputError(f"{where} answered an array of shape {values.shape}; {right}")
        return values

    def claimed(self, delta: float) -> float | None:
        """Return what the mechanism claims of itself; see `MechanismTrials.claimed`."""
        own = getattr(self.made, "claimed", None)
        if not callable(own):
            return None
        where = f"mechanism {self.label}: claimed({delta:g})"
        answer = self._guarded(partial(own, delta), where)
        value = _numbers(answer, where)
        if value.ndim or value <= 0:
            raise InputError(f"{where} answered {short(repr(answer))}; use an epsilon above 0")
        return float(value)

    def _scored(self, answer: Any) -> Any:
        score = getattr(self.made, "score", None)
        return score(answer) if callable(score) else answer

    def _guarded(self, call: Callable[[], Any], where: str, *, runs: int = 1) -> Any:
        """Call the user's code for so many runs; whatever it raises becomes one line, and so does taking too long."""
        try:
            with _time_limit(self.seconds * runs):
                return call()
        except TooLong:
            raise MechanismFailed(f"{where} took longer than ‹trial_seconds› {self.seconds:g} per run") from None
        except (Exception, SystemExit) as error:
            raise MechanismFailed(f"{where} raised {words_of(error)}") from None


@dataclass(frozen=True)
class MechanismTrials:
    """Trials of the mechanism at `path` (see `engine.Trials`), each run within `seconds`; arrays as `play` has them.

    Run k of a world draws from a stream of its own. With `run_batch` so does every chunk, so that numbers depend on
    its size. `folder` is where the user's modules are looked for, by default the current one. What is
    `exactly_gaussian` is so on the user's word: a score that is fitted to its views is then linear. Of a mechanism with
    variants (`games.hunting`) it is the one called `variant`. The first `pilots` pairs are runs on which a score is
    chosen, for a claim at `delta`; the runs that are tested follow, and are the same however many pilots there are.
    """

    path: str
    seed: int
    seconds: float
    folder: Path | None = None
    exactly_gaussian: bool = False
    variant: str | None = None
    pilots: int = 0
    delta: float = 0.0

    @cached_property
    def mechanism(self) -> Any:
        """The mechanism, imported; `InputError` as `mechanism_from`."""
        made = mechanism_from(self.path, self.folder)
        return made if self.variant is None else check_mechanism(made.variants()[self.variant], self.path)

    def of_variant(self, name: str) -> "MechanismTrials":
        """Return the trials of a variant, itself where a mechanism has none."""
        has = callable(getattr(replace(self, variant=None).mechanism, "variants", None))
        return replace(self, variant=name if has else None)

    def claimed(self, delta: float) -> float | None:
        """Return the epsilon that the mechanism itself claims at a `delta`; None where it has no `claimed(delta)`.

        Raises:
            InputError: What it answers is no epsilon.
            MechanismFailed: It raised, or took too long.
        """
        with importable(self.folder):
            return _Runner(self.mechanism, self.path, self.seconds).claimed(delta)

    def facts(self) -> dict[str, object]:
        """See `Trials.facts`; what an edited mechanism answers is not put with what it answered before."""
        with importable(self.folder):
            code = code_of(self.path)
        facts = {"trials": "mechanism", "path": self.path, "code": code, "seed": self.seed, "pilots": self.pilots}
        return facts if self.variant is None else {**facts, "variant": self.variant}

    def __call__(self, first: int, last: int) -> Arrays:
        """Run pairs `first` to `last`; where the mechanism fails, those before the failure and what it was."""
        pieces: list[Arrays] = []
        failure: AuditError | None = None
        for begin, end, purpose in self._spans(first, last):
            arrays, failure = self.played(begin, end, _streams(self.seed, purpose, begin))
            pieces += [arrays] if arrays else []
            if failure is not None:
                break
        joined = _joined(pieces, f"mechanism {self.path}")
        if failure is not None:
            joined["failure"] = np.array(["input" if isinstance(failure, InputError) else "failed", failure.words])
        return joined

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int, Purpose]]:
        """Yield the pilots, then the tested runs, among pairs `first` to `last`, by their own numbers."""
        if first < self.pilots:
            yield first, min(last, self.pilots), Purpose.PILOT
        if last > self.pilots:
            yield max(first - self.pilots, 0), last - self.pilots, Purpose.SIMULATION

    def piloted(self, runs: int) -> tuple[Arrays, AuditError | None]:
        """Run so many pilots here, the first of those that choose a score in an audit; as `play` does."""
        return self.played(0, runs, _streams(self.seed, Purpose.PILOT, 0))

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`."""
        if self.exactly_gaussian:
            return replace(scores_of(arrays, kinds=("linear",)), given=GaussianGiven(vouched=True))
        return scores_of(arrays, pilots=self.pilots or None, delta=self.delta)

    def played(self, first: int, last: int, streams: Streams) -> tuple[Arrays, AuditError | None]:
        """Play pairs as `play` does; outside a main thread, which alone can be interrupted, in a process of its own."""
        if can_ring():
            with importable(self.folder):
                return play(self.mechanism, self.path, first, last, streams=streams, seconds=self.seconds)
        answer: tuple[Arrays, AuditError | None]
        read: Inputs
        try:
            # A copy, without the mechanism if that is there already.
            answer, read = in_own_process(replace(self)._played_apart, first, last, streams)
        except InputError as error:
            return {}, error
        except BrokenExecutor:
            return {}, MechanismFailed(
                f"mechanism {self.path}: runs {first + 1} to {last} took their process down, or one of them took "
                f"longer than ‹trial_seconds› {self.seconds:g} in native code"
            )
        add_inputs(self._home, read)
        return answer

    @property
    def _home(self) -> Path:
        return self.folder or Path.cwd()

    def _played_apart(self, first: int, last: int, streams: Streams) -> tuple[tuple[Arrays, AuditError | None], Inputs]:
        """Return what `played` does, and what the code read."""
        return self.played(first, last, streams), inputs_of(self._home)


def answer_shape(arrays: Arrays) -> tuple[int, ...]:
    """Return the shape of what one run answered: () for a number, (d,) for a view."""
    return (arrays["in_features"] if "in_features" in arrays else arrays["in_scores"]).shape[1:]


def _streams(seed: int, purpose: Purpose, first: int) -> Streams:
    """Return the generators of runs, of which a batch has the one of its `first`."""
    return lambda world, run: stream(seed, purpose, world, first if run is None else run)


def _joined(pieces: list[Arrays], where: str) -> Arrays:
    """Return the arrays of all pieces as one; `InputError` where pilots answered otherwise than tested runs."""
    if not pieces:
        return {}
    first, last = map(answer_shape, (pieces[0], pieces[-1]))
    if first != last:
        raise InputError(f"{where}: runs answered shape {last} after shape {first}; always answer one shape")
    return joined_arrays(pieces)


def _numbers(answer: Any, where: str) -> Floats:
    """Return `answer` as finite float64 numbers; `InputError` for anything else."""
    try:
        array = np.asarray(answer)
        if array.dtype.kind == "O" and all(value is not None for value in array.flat):
            array = array.astype(np.float64)  # numbers of a kind of their own, such as fractions
    except (TypeError, ValueError):
        raise InputError(f"{where} answered a ragged list; {_RIGHT}") from None
    if array.dtype.kind not in "biuf" or array.size == 0:
        shown = answer[0] if isinstance(answer, list) and answer else answer
        raise InputError(f"{where} answered {short(repr(shown))}; {_RIGHT}")
    if array.dtype.kind in "iu" and (lost := not_held(array)).size:
        raise InputError(f"{where} answered {array.flat[lost[0]]}, which no double holds: subtract a number from each")
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{where} answered {values[~np.isfinite(values)].flat[0]}; use finite numbers")
    return values


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the block after `seconds`; a worker that no signal gets through to (native code) ends."""
    with until(time.monotonic() + seconds, TooLong):
        if not in_worker():
            yield
            return
        with open(os.devnull, "w") as sink:
            faulthandler.dump_traceback_later(seconds + _GRACE_SECONDS, exit=True, file=sink)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()


_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_LARGEST_CODE = 16_000_000
"""Bytes of a Python file whose imports are read."""


def code_of(mechanism: str, outputs: Collection[Path] = (), field: str = "mechanism") -> str:
    """SHA-256 of all files, data too, of "package.module:factory" and of what it imports: what its answers depend on.

    Of a package its whole folder counts, of a lone module the folder that it lies in (see `base.files` for what
    is left out, `outputs` beside it). Imports are read from the files (nothing is run), those inside functions too,
    and those of what is imported in turn. Not seen are the standard library, installed packages, this tool, modules
    that are imported by a name which only a run computes, and data read from elsewhere. Modules are looked for as an
    import would: the caller sets up the import path. An error names the `field` that the path is of.

    Raises:
        InputError: There is no such module on the import path.
        Undigested: There are too many files, or one that cannot be read.
    """
    modules, _ = _own_modules(mechanism, field)
    folders = dict.fromkeys(folder for name in sorted(modules) for folder in _folders(modules[name]))
    return tree_digest(folders, outputs=outputs)


NATIVE_READERS = frozenset(
    {"av", "cv2", "duckdb", "h5py", "lmdb", "netCDF4", "polars", "pyarrow", "pyreadstat", "rasterio", "safetensors"}
    | {"soundfile", "tables", "tensorflow"}
)
"""Packages whose native code opens files by itself, which nothing tells of."""


def native_readers(mechanism: str, field: str = "mechanism") -> list[str]:
    """Return which of `NATIVE_READERS` the modules of "package.module:factory" import; arguments as `code_of`."""
    return sorted(NATIVE_READERS & _own_modules(mechanism, field)[1])


def _own_modules(mechanism: str, field: str) -> tuple[dict[str, ModuleSpec], set[str]]:
    """Return the top-level modules of the user's own that a path leads to, and the names of all that they import."""
    module = mechanism.partition(":")[0]
    first = name_of_import(module).partition(".")[0]
    spec = _spec(first)
    if spec is None:
        raise InputError(f"but there is no module {module.partition('.')[0]!r} on the import path", field, mechanism)
    modules = {first: spec}
    names: set[str] = set()
    waiting = [first]
    while waiting:
        imported = {name.partition(".")[0] for path in _code(modules[waiting.pop()]) for name in _names(path)}
        names |= imported
        # Code of the tool is no part of a mechanism that uses it.
        for name in sorted(imported - modules.keys() - PACKAGE_FOLDERS):
            spec = _spec(name)
            if spec is not None and not _installed(spec):
                modules[name] = spec
                waiting.append(name)
    return modules, names


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # __main__, or a module that took its description away
        return None


def _folders(spec: ModuleSpec) -> list[Path]:
    """Return the folders of a package, or the one that a module lies in; none of what is built in."""
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    # Of an installed module its own file: beside it lie all others that are installed.
    return [path if _installed(spec) else path.parent for path in _code(spec)]


def _code(spec: ModuleSpec) -> list[Path]:
    """Return the Python files of a package, or the one of a module."""
    if spec.submodule_search_locations:
        return [path for folder in _folders(spec) for path in python_files(folder)]
    if spec.origin is not None and Path(spec.origin).is_file():
        return [Path(spec.origin)]
    return []


def _installed(spec: ModuleSpec) -> bool:
    """Return whether a module is of the standard library or an installed package, and nowhere beside it too."""
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    homes = [Path(home).resolve() for home in spec.submodule_search_locations or [spec.origin or ""]]
    return all(not _LIBRARY_FOLDERS.isdisjoint(home.parts) or any(map(home.is_relative_to, standard)) for home in homes)


def _names(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports anywhere, those of its own package aside."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(read_plain(path, _LARGEST_CODE))
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError, InputError):  # its import says what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
