"""Memory that a test allows what it runs."""

import tracemalloc
from contextlib import contextmanager


@contextmanager
def memory_below(most):
    """What the block allocates of Python's memory stays below so many bytes at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most
