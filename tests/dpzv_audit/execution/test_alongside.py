"""A job in a process of its own, while the caller goes on: its answer, its error, its end."""

import os
import time

import pytest

from dpzv_audit.errors import AuditError, InputError
from dpzv_audit.execution.executor import alongside


def who() -> int:
    return os.getpid()


def refuses() -> None:
    raise InputError("must be small", "size", 9)


def dies() -> None:
    os._exit(7)


def test_the_answer_comes_from_another_process():
    with alongside(who) as answer:
        assert answer() != os.getpid()


def test_what_the_job_raises_is_raised_where_its_answer_is_asked_for():
    with alongside(refuses) as answer, pytest.raises(InputError, match="must be small"):
        answer()


def test_a_process_that_dies_is_one_line():
    with alongside(dies) as answer, pytest.raises(AuditError, match="a process of this command died"):
        answer()


def test_who_leaves_the_block_does_not_wait_for_the_job():
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="mine"), alongside(time.sleep, 600):
        raise RuntimeError("mine")
    assert time.monotonic() - begun < 60
