"""What a command says where nobody sees its bars: a line every half minute, and never where it would be in the way."""

import io
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dpzv_audit.cli import heartbeat
from dpzv_audit.cli.heartbeat import EVERY_SECONDS, Heartbeat, time_left, under_way
from dpzv_audit.cli.output import Output, showing_rehearsals
from dpzv_audit.cli.verify import live_status
from dpzv_audit.systems.rehearsal import rehearse
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task

from ...helpers.places import ROOT
from ...helpers.trainings import send

SCORES = ROOT / "examples" / "scores"


@pytest.fixture(autouse=True)
def _as_users_have_it(no_command_runs, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_SECONDS", EVERY_SECONDS)


class Clock:
    """Time that passes only where somebody waits: `beats` times half a minute, then all is over."""

    def __init__(self, beats, meanwhile=lambda: None):
        self.now, self.beats, self.meanwhile = 1000.0, beats, meanwhile

    def wait(self, seconds):
        self.now += seconds
        self.beats -= 1
        self.meanwhile()
        return self.beats < 0


def said(clock):
    stream = io.StringIO()
    Heartbeat(stream, clock.wait, lambda: clock.now).run()
    return stream.getvalue().splitlines()


def test_a_line_every_half_minute_says_what_is_under_way():
    assert EVERY_SECONDS == 30.0
    assert said(Clock(2)) == ["dpzv-audit: 0:00:30: at work", "dpzv-audit: 0:01:00: at work"]
    with Output().progress() as reporter:
        training = reporter("train dpzv", 1400)
        training(700)
        assert said(Clock(1)) == ["dpzv-audit: 0:00:30: train dpzv: 700 of 1,400"]
        training(1400)
        reporter("audit", 4000)(1024, note="epsilon >= 0.3 so far")
        assert said(Clock(1)) == ["dpzv-audit: 0:00:30: audit: 1,024 of 4,000, epsilon >= 0.3 so far"]
    with live_status(Output(), ["first", "[bold]::error x"]) as status:
        status(0, None)
        status(1, "300 of 500 trials")
        (line,) = said(Clock(1))
        assert line == "dpzv-audit: 0:00:30: claims: 1 of 2 done; [bold]: :error x: 300 of 500 trials"
    assert said(Clock(1)) == ["dpzv-audit: 0:00:30: at work"]


def test_a_rehearsal_says_which_training_it_is_at():
    told = []

    def train(task, record, seed):
        told.append(under_way())
        for round_ in range(8):  # so many that ids are checked late as well
            send(task, record, (0.5 - task.labels)[:, None] * np.ones(2), number=round_)

    labels = np.arange(40) % 2
    features = (np.ones((40, 2), np.float32),) * 2
    task = Task(features=features, labels=labels, test_features=features, test_labels=labels, classes=2)
    with showing_rehearsals(quiet=False):
        rehearse(System("slow", train), task, 0)
    assert told == [f"rehearsal of the system, trainings: {done} of {max(4, done + 1)}" for done in range(len(told))]
    assert len(told) >= 4
    assert under_way() == "at work"


@pytest.mark.parametrize(("completed", "words"), [(0, ""), (3, "about 3 min"), (6, "about 50 s"), (11, "evaluating")])
def test_a_stage_takes_as_long_as_its_pace_says(completed, words):
    """After 60 s of 11 steps."""
    stage = SimpleNamespace(elapsed=60.0, completed=completed, total=11, finished=completed == 11, fields={})
    assert time_left(stage) == words


def test_hours_are_counted_and_a_reader_who_has_gone_is_no_error():
    assert said(Clock(121))[-1] == "dpzv-audit: 1:00:30: at work"
    gone = io.StringIO()
    gone.close()
    Heartbeat(gone, Clock(3).wait).run()


class AtOnce:
    """A thread whose work is done when it starts: half a minute passes at once."""

    def __init__(self, target, name, daemon):
        assert daemon  # it must not keep a process that ends
        target.__self__.wait.__self__.beats = 1
        self.start, self.join = target, lambda: None


@pytest.mark.parametrize(
    ("flags", "terminal", "lines"),
    [("", False, 1), ("--json", False, 1), ("--quiet", False, 0), ("", True, 0)],
)
def test_commands_beat_on_stderr_where_that_is_no_terminal(flags, terminal, lines, monkeypatch, cli):
    class Event(Clock):
        def __init__(self):
            super().__init__(1)

        def set(self):
            pass

    monkeypatch.setattr(heartbeat, "threading", SimpleNamespace(Thread=AtOnce, Event=Event))
    monkeypatch.setattr(heartbeat, "shows_bars", lambda stream: terminal)
    printed = cli(f"audit scores {SCORES}/in.csv {SCORES}/out.csv --estimator gaussian {flags}")
    assert printed.code == 0
    assert printed.err.count("dpzv-audit: 0:00:") == lines
    assert "at work" not in printed.out


def test_colour_that_is_forced_makes_no_terminal_of_a_pipe(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not heartbeat.shows_bars(io.StringIO())
    assert not heartbeat.shows_bars(None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert heartbeat.shows_bars(sys.stderr)
    monkeypatch.setenv("TERM", "dumb")
    assert not heartbeat.shows_bars(sys.stderr)


def test_the_thread_ends_where_the_process_may_be_forked_and_beats_again_afterwards(monkeypatch):
    def beats():
        return [thread.name for thread in threading.enumerate()].count("heartbeat")

    monkeypatch.setattr(heartbeat, "shows_bars", lambda stream: False)
    with heartbeat.beating(quiet=False):
        assert beats() == 1
        with heartbeat.paused():
            assert beats() == 0
        assert beats() == 1
    assert beats() == 0
    with heartbeat.paused():
        pass
    assert beats() == 0
