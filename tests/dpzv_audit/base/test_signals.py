"""Signals that end a command: one interrupt for all that come together, exit codes of a shell, handlers put back."""

import os
import signal
import threading
import time

import pytest

from dpzv_audit.base import signals
from dpzv_audit.base.signals import SIGNALS, exit_code, stoppable


@pytest.fixture(autouse=True)
def _started_by_hand():
    """No signal is ignored from the start, as SIGHUP is where nohup runs the tests."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_an_interrupt_and_its_handler_is_put_back(number):
    before = {n: signal.getsignal(n) for n in SIGNALS}
    with stoppable() as came:
        with pytest.raises(KeyboardInterrupt):
            raised_at_once(number)
        assert came == [number]
    assert {n: signal.getsignal(n) for n in SIGNALS} == before
    assert exit_code(130, came) == 128 + number


def test_signals_that_come_together_interrupt_once_and_a_later_one_again(monkeypatch):
    """What cleans up after the first is not cut off by the one that a scheduler sends beside it."""
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    with stoppable() as came:
        with pytest.raises(KeyboardInterrupt):
            raised_at_once(signal.SIGTERM)
        raised_at_once(signal.SIGHUP)
        now += 60.0
        with pytest.raises(KeyboardInterrupt):
            raised_at_once(signal.SIGTERM)
    assert came == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]
    assert exit_code(130, came) == 143


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable() as came:
            raised_at_once(signal.SIGHUP)
        assert came == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_nothing_is_touched():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def elsewhere():
        with stoppable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_a_command_that_ended_by_itself_keeps_its_code(code):
    assert exit_code(code, [signal.SIGTERM]) == code
    assert exit_code(130, []) == 130


def raised_at_once(number):
    """Send this process a signal and give the interpreter the time to hear of it."""
    os.kill(os.getpid(), number)
    time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, *SIGNALS])
def test_a_signal_that_comes_while_torch_is_imported_waits_until_it_has_been(number):
    """An exception that C++ code of torch's import lets through would abort the process with a page of its own."""
    done = []

    def import_and_wait():
        source = "import os\nos.kill(os.getpid(), number)\ndone.append('imported')"
        exec(compile(source, "torch/__init__.py", "exec"), {"__name__": "torch.some", "number": number, "done": done})
        assert done == ["imported"]
        time.sleep(10.0)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
    try:
        with stoppable(), pytest.raises(KeyboardInterrupt):
            import_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["imported"]
