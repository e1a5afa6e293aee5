"""A training of the user's own: its task, and the recorder that stands where its messages travel.

`System.play` in `system.py` plays it, the first time and again; `rehearsal.py` calls it before an attack, and `run.py`
for each replica of a stack, whose messages `replay.py` sends. `transcript.py` reads and writes transcripts, and
`recorded.py` makes a method of one.
"""

from .record import Recorder
from .task import Task

__all__ = ["Recorder", "Task"]
