"""Steps of claims on lanes of workers that go away, join late, or are still at work when time is up."""

from concurrent.futures import Future

import pytest

from dpzv_audit.base import executor
from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.executor import Workers
from dpzv_audit.claims import gate as gate_module
from dpzv_audit.evidence.gathering import THEORY

from ...helpers.gates import gate_on, gathered
from ...helpers.refusals import refused

CLAIMS = """
[[claim]]
name = "one"
mechanism = "planted:sound"
epsilon = 0.9

[[claim]]
name = "other"
mechanism = "planted:noise-over-b"
epsilon = 1.0
"""


class Cluster:
    """Lanes in this process; the first `gone` tasks end cancelled, as Dask's do where their worker went away."""

    def __init__(self, job, gone):
        self.job, self.gone, self.lanes, self.tasks = job, gone, [self], 0

    def opened(self, known):
        return self.lanes[known:]

    def submit(self, *arguments):
        future = Future()
        self.tasks += 1
        if self.gone:
            self.gone -= 1
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_result(self.job(*arguments))
        return future

    def renew(self):
        pass

    def close(self):
        pass


def evidence_on(folder, workers=None, minutes=None):
    gate = gate_on(folder, CLAIMS, workers=workers or Workers(), max_minutes=minutes)
    return [run.evidence() for run in gathered(gate)]


@pytest.fixture
def on_cluster(tmp_path, monkeypatch):
    def verified(made, **options):
        monkeypatch.setattr(executor, "lanes_of", lambda workers, job: made(job))
        return evidence_on(tmp_path, Workers(kind="dask", scheduler="tcp://here"), **options)

    return verified


@pytest.mark.slow
def test_a_task_whose_worker_went_away_is_done_again(on_cluster, tmp_path):
    assert on_cluster(lambda job: Cluster(job, gone=2)) == evidence_on(tmp_path)


def test_a_task_whose_workers_always_go_away_is_named(on_cluster):
    with refused(r"claims\.toml:4: claim 'one': a worker died 3 times on it", AuditError):
        on_cluster(lambda job: Cluster(job, gone=1000))


def test_a_worker_that_joins_takes_part(on_cluster, tmp_path):
    late = []

    class Growing(Cluster):
        """A second lane opens with the third task of the first."""

        def submit(self, *arguments):
            if self.tasks == 2:
                late.append(Cluster(self.job, gone=0))
                self.lanes.append(late[0])
            return super().submit(*arguments)

    assert on_cluster(lambda job: Growing(job, gone=0)) == evidence_on(tmp_path)
    assert late[0].tasks > 0


def test_what_is_under_way_when_time_is_up_is_cancelled(on_cluster, monkeypatch):
    """Its slot is wanted for what is still to be done: a worker of a cluster is not ended as one of this machine is."""
    blocks = []

    class Busy(Cluster):
        """Does no block in time."""

        def submit(self, *arguments):
            if arguments[3] == (THEORY, 0):
                return super().submit(*arguments)
            blocks.append(Future())
            return blocks[-1]

    monkeypatch.setattr(gate_module._Schedule, "ends", lambda self, task: 0.0 if blocks and self._drawn(task) else None)
    evidence = on_cluster(lambda job: Busy(job, gone=0), minutes=10.0)
    assert all(one.missing.startswith("the budget of 10 minutes ended in the ") for one in evidence)
    assert blocks
    assert all(block.cancelled() for block in blocks)
