"""Prints coverage and power of every estimator on mechanisms with known epsilon; run it as a script.

1,000 audits with 1,000 scores a side at 95%; `sequential` and `sequential-gaussian` look after every pair. Options:
the number of audits, then names of estimators. `joint` is held against its worst cases too: responses at epsilon 3 and
mechanisms that tell the world with chance 0.1.
"""

import sys

from dpzv_audit.statistics.coverage import (
    as_text,
    coverage_check,
    four_point_mechanism,
    response_mechanism,
)


def main():
    """Print each row when it is done, then the table; exit with 1 if one of them failed."""

    def show(row):
        print(as_text([row]).splitlines()[-1], flush=True)

    audits = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rows = coverage_check(audits=audits, estimators=sys.argv[2:] or None, progress=show)
    print(as_text(rows))
    if not sys.argv[2:] or "joint" in sys.argv[2:]:
        rows += coverage_check(audits=audits, estimators=["joint"], mechanisms=[response_mechanism(3.0)], progress=show)
        four_points = [four_point_mechanism(epsilon, 0.1) for epsilon in (1.0, 3.0)]
        rows += coverage_check(audits=audits, delta=0.1, estimators=["joint"], mechanisms=four_points, progress=show)
    if not all(row.passed for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
