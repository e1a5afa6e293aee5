"""Tells a command how far work is that it does not call itself."""

from collections.abc import Callable
from contextvars import ContextVar

REHEARSING: ContextVar[Callable[[int, int], None]] = ContextVar("REHEARSING", default=lambda done, total: None)
"""Hears how many trainings of a system's rehearsal are done, of how many, before and after each."""
