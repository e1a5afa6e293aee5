"""Work in this process: each task is ended where its time is over, and all of it where that of a block around it is."""

import time

import pytest

from dpzv_audit.base.executor import Workers, carry_out
from dpzv_audit.base.signals import TimeIsUp, until

LONG = 60.0


class Naps:
    """Three tasks that sleep for so many seconds, each of which may last `limit` seconds."""

    def __init__(self, seconds, limit):
        self.seconds, self.limit = seconds, limit
        self.waiting, self.ended, self.given_up, self.began = [0, 1, 2], [], [], {}

    def take(self):
        if not self.waiting:
            return None
        self.began[self.waiting[0]] = time.monotonic()
        return self.waiting.pop(0)

    def arguments(self, task):
        return (self.seconds,)

    def ends(self, task):
        return self.began[task] + self.limit

    def done(self, task, result):
        self.ended.append(task)

    def give_up(self, task):
        self.given_up.append(task)

    def failed(self, task, error, *, deaths=0):
        raise error


def test_a_task_that_is_over_its_time_is_given_up_and_the_next_is_taken():
    naps = Naps(LONG, 0.05)
    carry_out(naps, Workers(), time.sleep)
    assert (naps.ended, naps.given_up) == ([], [0, 1, 2])


def test_no_task_is_blamed_for_the_time_of_a_block_around_it():
    naps = Naps(LONG, LONG)
    with pytest.raises(TimeIsUp), until(time.monotonic() + 0.05):
        carry_out(naps, Workers(), time.sleep)
    assert (naps.ended, naps.given_up, naps.waiting) == ([], [], [1, 2])
