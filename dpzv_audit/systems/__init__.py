"""A training of the user's own: what it is given, and the recorder that stands where its messages travel."""

from .record import Recorder
from .task import Task

__all__ = ["Recorder", "Task"]
