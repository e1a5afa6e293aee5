"""One line of the benchmarks' table: what was measured, beside what, their ratio, and what was promised of it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of ratios.

    `ours` and `beside` are what was measured, in words with units, and `ratio` one over the other, None where there
    is none and `ours` says why; `promised` is what the ratio must be at most, or with `at_least` at least, None where
    nothing was promised.
    """

    what: str
    ours: str
    beside: str
    ratio: float | None
    promised: float | None = None
    at_least: bool = False

    @property
    def missed_by(self):
        """How many times further off than promised; 1 or less where the promise is kept, None without one."""
        if self.promised is None or self.ratio is None:
            return None
        return self.promised / self.ratio if self.at_least else self.ratio / self.promised


def milliseconds(value):
    """`value` seconds as words."""
    return f"{1e3 * value:.3g} ms"
