"""However the trainer's process ends, its workers end with it, and the processes of their envs with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from collecting import counting, gym_vector, start, worker_pids
from ways import GLOO_ASYNC, RPC_ASYNC, over

from collectx.errors import WorkerDied

TESTS = Path(__file__).parents[1]


class Trainer:
    """A small script with a collector named `collector`, in a process group of its own."""

    def __init__(self, tmp_path, body, env="counting(2)", before="pass"):
        script = tmp_path / "trainer.py"
        script.write_text(
            # Workers, and the processes of their envs, import this script and need nothing of it.
            "if __name__ == '__main__':\n"
            f"    {before}\n"
            "    from collecting import *\n    import os, signal, sys, time\n"
            f"    collector = start('multi_async', 'local', {env}, total_frames=-1)\n"
            "    next(collector)\n"
            "    print('collecting', flush=True)\n" + textwrap.indent(textwrap.dedent(body), "    ")
        )
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        )
        assert self.process.stdout.readline() == "collecting\n", self.process.stderr.read()
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def end(self):
        """Waits for the whole family to end; the trainer's exit status and stderr."""
        _, error = self.process.communicate(timeout=200)
        _, alive = psutil.wait_procs(self.family, timeout=60)
        for each in alive:
            each.kill()
        assert not alive, f"left running: {alive}"
        return self.process.returncode, error


@pytest.fixture
def trainer(tmp_path):
    made = []

    def trainer(*args, **kwargs):
        made.append(Trainer(tmp_path, *args, **kwargs))
        return made[-1]

    yield trainer
    for each in made:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize(
    "env",
    ["faulty('sleeps', at_step=300)", "gym_vector(2, vectorization='async')"],
    ids=["hung", "with_processes"],
)
def test_a_killed_trainer_takes_its_workers_along(trainer, env):
    running = trainer("time.sleep(1000)", env=env)
    assert len(running.family) >= 3
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL


def test_ctrl_c_on_the_whole_group_leaves_nothing(trainer):
    running = trainer("with collector:\n    for batch in collector:\n        pass")
    os.killpg(running.process.pid, signal.SIGINT)
    status, error = running.end()
    assert status == -signal.SIGINT
    assert error.count("Traceback") == 1, error
    assert error.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    ("before", "body", "status", "last_line"),
    [
        ("pass", "sys.exit(5)", 5, ""),
        ("pass", "raise ZeroDivisionError('a bug')", 1, "ZeroDivisionError: a bug"),
        # The first `weakref.finalize` of a process decides when all of them are called at its end.
        ("import tempfile; folder = tempfile.TemporaryDirectory()", "sys.exit(5)", 5, ""),
        (
            "pass",
            "pids = worker_pids(collector)\n"
            "del collector\n"
            "import psutil\n"
            "sys.exit(7 if any(psutil.pid_exists(pid) for pid in pids) else 0)",
            0,
            "",
        ),
    ],
    ids=["program_ends", "program_fails", "other_finalizers", "no_references"],
)
def test_a_collector_that_nobody_closes_ends(trainer, before, body, status, last_line):
    found, error = trainer(body, before=before).end()
    assert (found, error.strip().rpartition("\n")[2]) == (status, last_line)


def test_a_process_forked_off_the_trainer_ends_no_workers(trainer):
    body = """
        import warnings
        warnings.simplefilter("ignore")  # newer Pythons' of a fork beside threads
        child = os.fork()
        if child == 0:
            del collector
            os._exit(0)
        os.waitpid(child, 0)
        for _ in range(3):
            next(collector)
        collector.close()
    """
    assert trainer(body).end() == (0, "")


def test_a_second_ctrl_c_while_a_hung_worker_is_waited_for_leaves_nothing(trainer, tmp_path):
    sign = str(tmp_path / "hangs")
    body = f"""
        import threading
        while not os.path.exists({sign!r}):
            time.sleep(0.01)
        try:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            collector.close()
        except KeyboardInterrupt:
            sys.exit(6)
    """
    assert trainer(body, env=f"faulty('sleeps', at_step=15, sign={sign!r})").end() == (6, "")


@over([GLOO_ASYNC, RPC_ASYNC])
def test_workers_that_have_not_joined_end_in_silence(way):
    """With status 1 they would have said why they did not find a trainer."""
    with start(way.kind, way.place, counting(1)) as collector:
        handles = list(collector.handles().values())
    assert len(handles) == 2
    assert {handle.exitcode for handle in handles} <= {0, -signal.SIGTERM}


def test_busy_workers_stop_between_two_steps():
    """Within a batch that takes 5 s."""
    with start("multi_async", "local", counting(step_s=0.05), frames_per_batch=100, total_frames=-1) as collector:
        pids, handles = worker_pids(collector), list(collector.handles().values())
    assert [handle.exitcode for handle in handles] == [0, 0]
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_processes_of_an_env_end_with_its_worker(is_killed, wait_until):
    env = gym_vector(2, vectorization="async")
    with start("multi_sync", "local", env, frames_per_batch=40, total_frames=400) as collector:
        assert next(collector).shape == (2, 2, 10)
        pids = worker_pids(collector)
        children = [child for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        assert len(children) >= 4  # two envs in each worker, and what multiprocessing starts for them
        if is_killed:
            os.kill(pids[0], signal.SIGKILL)
            with pytest.raises(WorkerDied, match="worker 0"):
                list(collector)
        else:
            list(collector)
    wait_until(lambda: not any(child.is_running() for child in children), what=f"the envs' processes end: {children}")
