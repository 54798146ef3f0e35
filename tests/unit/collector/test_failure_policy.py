"""Which losses of workers end a run, and which begin a new life."""

import pytest

from collectx.collector.failure_policy import FailurePolicy
from collectx.errors import JobEnded, WorkerDied


@pytest.mark.parametrize(("mode", "num_failures"), [("raise", 0), ("restart", 1)])
def test_a_worker_whose_job_slurm_has_ended_is_no_failure_for_so_many_times(mode, num_failures):
    started = []
    policy = FailurePolicy(mode, 1, 2, lambda *life: started.append(life), {}, max_requeues=2)
    for _ in range(2):
        policy.begin()
    ended = JobEnded("at its time limit")
    assert [policy.replace(1, ended, 1) for _ in range(2)] == [1, 2]
    assert policy.replace(0, ended, 1) == 1
    # From now on it is a failure like others, whose restarts are counted apart.
    assert [policy.replace(1, ended, 1) for _ in range(num_failures)] == [3] * num_failures
    with pytest.raises(JobEnded) as caught:
        policy.replace(1, ended, 1)
    assert "launcher.max_requeues=2" in "".join(caught.value.__notes__)
    with pytest.raises(WorkerDied):
        policy.replace(0, WorkerDied("killed"), 1)
    assert started[2:5] == [(1, 1), (1, 2), (0, 1)]
