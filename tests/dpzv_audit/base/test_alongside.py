"""A job in a process of its own, while the caller goes on: its answer, its error, its end."""

import os
import time

import pytest

from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.executor import alongside

from ...helpers.refusals import refused


def test_the_answer_comes_from_another_process():
    with alongside(os.getpid) as answer:
        assert answer() != os.getpid()


def test_what_the_job_raises_is_raised_where_its_answer_is_asked_for():
    with alongside(int, "nine") as answer, pytest.raises(ValueError, match="nine"):
        answer()


def test_a_process_that_dies_is_one_line():
    with alongside(os._exit, 7) as answer, refused("a process of this command died", AuditError):
        answer()


def test_who_leaves_the_block_does_not_wait_for_the_job():
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="mine"), alongside(time.sleep, 600):
        raise RuntimeError("mine")
    assert time.monotonic() - begun < 60
