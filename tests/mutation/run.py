"""Mutation testing of the accounting and the estimators: which small changes of the code would no test notice?

    python tests/mutation/run.py --module dpzv_audit/accounting/accountants.py --sample 25 --seed 0
    python tests/mutation/run.py --group estimators --sample 25 --results estimators.jsonl
    python tests/mutation/run.py --table accounting.jsonl estimators.jsonl

Needs cosmic-ray (its operators make the mutants). See README.md beside this file.
"""

import argparse
import json
import os
import sys
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
Key = tuple[str, str, str, str]


def register(path):
    """Return what is known of mutants that survived once: `verdict`, and `why` or the `test` that kills it now."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []) if path.exists() else []
    return {(e["module"], e["where"], e["before"], e["after"]): e for e in entries}


def key(row):
    """Return what the mutant of a line of results is known by."""
    return row["module"], row["where"], row["before"], row["after"]


def load_results(paths):
    """Return the newest line of results about each mutant."""
    rows = (json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return {(key(row), row["line"]): row for row in rows}


def table(rows, known):
    """Return the Markdown table of results, a line a module."""
    counts = {}
    for row in rows:
        count = counts.setdefault(row["module"], Counter())
        verdict = known.get(key(row), {}).get("verdict", "")
        alive = row["outcome"] in ("survived", "not-covered")
        count["tried"] += 1
        count[(verdict or "open") if alive else "killed"] += 1
        count["new"] += not alive and verdict == "test"
    lines = [
        "| module | mutants tried | killed | of these by tests written for it | equivalent | cost or wording | open |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    total = Counter()
    for count in counts.values():
        total.update(count)
    for name, count in [*sorted(counts.items()), ("all", total)]:
        missed = count["open"] + count["test"]
        numbers = (count["tried"], count["killed"], count["new"], count["equivalent"], count["cost"], missed)
        lines.append(f"| {name.removeprefix('dpzv_audit/')} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines)


def arguments(argv):
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--module", action="append", default=[], help="path of a module to mutate; may be repeated")
    parser.add_argument("--group", help="a group of targets.toml, all of its modules")
    parser.add_argument("--tests", nargs="*", help="tests to try; those of the module's group unless given")
    parser.add_argument("--sample", type=int, help="mutants a module; all unless given")
    parser.add_argument("--seed", type=int, default=0, help="draws the sample (0)")
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time beyond thrice the tests' own (20)")
    parser.add_argument(
        "--effort", type=float, default=60.0, help="processor time of tests a mutant, fastest first (60)"
    )
    parser.add_argument(
        "--results", type=Path, help="append a line of JSON for each mutant; those in it are not redone"
    )
    parser.add_argument("--retry", type=Path, help="try again what survived in these results")
    parser.add_argument("--cache", type=Path, help="keep there which test runs which lines")
    parser.add_argument("--targets", type=Path, default=HERE / "targets.toml")
    parser.add_argument("--survivors", type=Path, default=HERE / "survivors.toml")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these results, run nothing")
    return parser.parse_args(argv)


def main(argv=None):
    """Try mutants and print those that nobody explained; 1 where there are any."""
    args = arguments(argv)
    known = register(args.survivors)
    if args.table:
        print(table(list(load_results(args.table).values()), known))
        return 0

    import pytest

    sys.path.insert(0, str(HERE))
    sys.path.insert(0, os.getcwd())
    from session import Mutations, Target

    groups = tomllib.loads(args.targets.read_text(encoding="utf-8"))["group"]
    paths = {f"{group['modules']}/{name}.py": group for group in groups for name in group["names"]}
    again = None
    wanted = list(args.module)
    if args.group:
        wanted += [path for path, group in paths.items() if group["name"] == args.group]
    if args.retry:
        alive = [r for r in load_results([args.retry]).values() if r["outcome"] in ("survived", "not-covered")]
        again = frozenset(map(key, alive))
        wanted = wanted or sorted({row["module"] for row in alive})
    if not wanted:
        print("nothing to mutate: give --module or --group", file=sys.stderr)
        return 2
    used = [group for group in groups if any(paths.get(path) is group for path in wanted)]
    tests = args.tests or list(dict.fromkeys(test for group in used for test in group["tests"]))

    done = set(load_results([args.results])) if args.results and args.results.exists() else set()
    rows = []

    def report(mutant, outcome):
        row = {name: getattr(mutant, name) for name in ("module", "where", "line", "before", "after")}
        rows.append({**row, "outcome": outcome})
        if args.results:
            with args.results.open("a", encoding="utf-8") as file:
                print(json.dumps(rows[-1]), file=file)
        entry = known.get(key(row), {})
        if outcome in ("survived", "not-covered") and entry.get("verdict") not in ("equivalent", "cost"):
            print(f"{outcome}: {row['module']}:{row['line']} in {row['where'] or 'the module'}")
            print(f"    - {row['before']}\n    + {row['after']}", flush=True)

    plugin = Mutations(
        targets=[
            Target(path=path, sample=args.sample, seed=args.seed, only=again, done=done if again is None else set())
            for path in dict.fromkeys(wanted)
        ],
        traced=list(dict.fromkeys([*(p for g in used for p in paths if paths[p] is g), *wanted])),
        deselect=[name for group in used for name in group["deselect"]],
        cache=args.cache,
        seconds=args.seconds,
        effort=args.effort,
        report=report,
    )
    plain = ["-q", "-s", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cov", "-p", "no:hypothesispytest"]
    code = pytest.main([*plain, *tests], plugins=[plugin])
    if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    print(table(rows, known))
    verdicts = [known.get(key(row), {}).get("verdict") for row in rows if row["outcome"] in ("survived", "not-covered")]
    return 1 if any(verdict not in ("equivalent", "cost") for verdict in verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
