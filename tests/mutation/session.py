"""One pytest session that collects once and tries each mutant in a fork, with the tests that run the changed lines."""

import contextlib
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import mutants as population
import patch
import pytest

Outcome = Literal["killed", "timeout", "survived", "not-covered", "not-applied"]
_KILLED, _NOT_APPLIED, _BROKEN = 1, 3, 4
_MEMORY = 12 * 2**30


@dataclass(frozen=True, kw_only=True)
class Target:
    """A module to mutate: its path from the root of the tree, and how many mutants (None: all of them)."""

    path: str
    sample: int | None
    seed: int
    only: frozenset[tuple[str, str, str, str]] | None = None
    """Keys of the mutants to try; None: any."""
    done: AbstractSet[tuple[tuple[str, str, str, str], int]] = frozenset()
    """Keys and lines of mutants that count as tried."""

    @property
    def name(self):
        """The module's dotted name."""
        return self.path.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True)
class Trace:
    """What one test did unmutated: the lines it ran of each target (by path), and its seconds of processor time."""

    lines: dict[str, list[int]]
    seconds: float


@dataclass(eq=False)
class Mutations:
    """A pytest plugin that replaces the running of tests by the trying of mutants."""

    targets: list[Target]
    traced: list[str]
    """Paths of the modules whose lines are traced, those of the targets among them; the cache is one for all."""
    deselect: list[str]
    cache: Path | None
    seconds: float
    """Processor time a mutant may take beyond three times that of its tests."""
    effort: float
    """Processor time of the tests that a mutant is tried with: the fastest, as many as fit."""
    report: Callable[[population.Mutant, Outcome], None]
    failures: int = field(default=0, init=False)

    def pytest_configure(self):
        """Have hypothesis try the same examples each time, and not shrink: a mutant's fate must not depend on luck."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items):
        """Leave out the slow tests."""
        names = tuple(self.deselect)
        items[:] = [item for item in items if not item.name.startswith(names)] if names else items

    def pytest_runtest_logreport(self, report):
        """Count failures, of set-up and tear-down too."""
        self.failures += report.failed

    def pytest_runtestloop(self, session):
        """Trace the tests unmutated, then try every mutant of every target."""
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        traces = self._traces(session.items)
        for target in self.targets:
            module = importlib.import_module(target.name)
            source = Path(target.path).read_text(encoding="utf-8")
            for mutant, outcome in self._outcomes(target, module, source, session.items, traces):
                self.report(mutant, outcome)
        return True

    def _outcomes(self, target, module, source, items, traces):
        tried = 0
        top_level = _import_lines(source)
        only = target.only
        functions = None if only is None else {where for path, where, _, _ in only if path == target.path}
        for place in population.shuffled(target.path, source, target.seed):
            if functions is not None and place.where not in functions:
                continue
            if tried == target.sample:
                return
            mutant = population.mutant(target.path, source, place)
            if mutant is None or (only is not None and mutant.key not in only):
                continue
            if (mutant.key, mutant.line) in target.done:
                tried += 1
                continue
            wanted = _span(source, mutant)
            tests = [
                item
                for item in items
                if (mutant.line in top_level and traces[item.nodeid].lines.get(target.path))
                or wanted.intersection(traces[item.nodeid].lines.get(target.path, ()))
            ]
            tests.sort(key=lambda item: traces[item.nodeid].seconds)
            tests = self._affordable(tests, traces)
            limit = 3.0 * sum(traces[item.nodeid].seconds for item in tests) + self.seconds
            outcome = self._outcome(module, source, mutant, tests, limit)
            if outcome != "not-applied":
                tried += 1
                yield mutant, outcome

    def _affordable(self, tests, traces):
        """Return as many of the tests, fastest first, as the effort allows; one at least."""
        spent, kept = 0.0, []
        for item in tests:
            spent += traces[item.nodeid].seconds
            if kept and spent > self.effort:
                break
            kept.append(item)
        return kept

    def _outcome(self, module, source, mutant, tests, limit):
        def attempt():
            try:
                patch.apply(module, source, mutant.source)
            except patch.NotApplied:
                return _NOT_APPLIED
            except BaseException:
                return _KILLED
            return _KILLED if self._run(tests) else 0

        status = _forked(attempt, limit)
        if os.WIFSIGNALED(status):
            return "timeout" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM) else "killed"
        code = os.WEXITSTATUS(status)
        if code == 0:
            return "survived" if tests else "not-covered"
        if code == _BROKEN:
            raise pytest.UsageError("the mutant's session broke, see above")
        return "not-applied" if code == _NOT_APPLIED else "killed"

    def _run(self, tests):
        """Return whether any test fails, stopping at the first."""
        self.failures = 0
        for item, following in zip_longest(tests, tests[1:]):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failures:
                return True
        return False

    def _traces(self, items):
        """Return each test's trace, by its id; those of unchanged files and targets come from the cache."""
        known = {}
        if self.cache is not None and self.cache.exists():
            known = json.loads(self.cache.read_text())
        state = _digest(self.traced)
        stamps = {item.nodeid: _digest([str(item.path)]) + state for item in items}
        missing = [item for item in items if known.get(item.nodeid, {}).get("stamp") != stamps[item.nodeid]]
        if missing:
            reader, writer = os.pipe()
            with os.fdopen(reader) as incoming, os.fdopen(writer, "w") as outgoing:
                paths = {str(Path(path).resolve()): path for path in self.traced}
                read = _draining(incoming)
                status = _forked(lambda: self._trace_all(missing, paths, outgoing), 3600.0)
                outgoing.close()
                text = read()
            if status != 0:
                raise pytest.UsageError("a test fails without any mutant: " + text.strip().split("\n")[-1])
            for line in text.splitlines():
                trace = json.loads(line)
                known[trace["test"]] = {"stamp": stamps[trace["test"]], **trace}
            if self.cache is not None:
                self.cache.write_text(json.dumps(known))
        return {item.nodeid: Trace(known[item.nodeid]["lines"], known[item.nodeid]["seconds"]) for item in items}

    def _trace_all(self, items, paths, out):
        for item, following in zip_longest(items, items[1:]):
            lines_by_path = {}
            start = time.process_time()
            with _tracing(paths, lines_by_path):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            trace = Trace({path: sorted(lines) for path, lines in lines_by_path.items()}, time.process_time() - start)
            print(json.dumps({"test": item.nodeid, **asdict(trace)}), file=out)
            if self.failures:
                print(item.nodeid, file=out, flush=True)
                return 1
        out.flush()
        return 0


def _draining(incoming):
    """Read in a thread, lest the child waits for room in the pipe; return how to get the text."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(incoming.read)

    def text():
        output = future.result()
        pool.shutdown()
        return str(output)

    return text


def _forked(work, seconds):
    """Run `work` in a fork without output, within `seconds` of processor time; return the wait status."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = _BROKEN
    loud = os.dup(2)
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(3600)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 6))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = work()
    except BaseException:
        with os.fdopen(loud, "w") as errors:
            traceback.print_exc(file=errors)
    finally:
        os._exit(code)


@contextlib.contextmanager
def _tracing(paths, lines_by_path):
    """Collect in `found` the lines that run of the files in `paths` (absolute to short)."""

    def local(frame, event, _):
        if event == "line":
            lines_by_path[paths[frame.f_code.co_filename]].add(frame.f_lineno)
        return local

    def start(frame, event, _):
        name = paths.get(frame.f_code.co_filename)
        if name is None:
            return None
        lines_by_path.setdefault(name, set()).add(frame.f_lineno)
        return local

    sys.settrace(start)
    try:
        yield
    finally:
        sys.settrace(None)


def _digest(paths):
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def _import_lines(source):
    """Return the lines of `source` outside all functions, which run when the module loads."""
    import ast

    inside = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            inside.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return set(range(1, source.count("\n") + 2)) - inside


def _span(source, mutant):
    """Return the lines of the smallest statement around the mutant: a trace may name any of them."""
    import ast

    best = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            span = range(node.lineno, max(end, node.lineno) + 1)
            if mutant.line in span and (best is None or len(span) < len(best)):
                best = span
    return set(best or [mutant.line])
