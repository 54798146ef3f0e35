"""However the trainer's process ends, its workers end with it. Each test is a trainer in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from collecting import counting, start

TESTS = Path(__file__).parents[2]


class Trainer:
    """A small script with a collector named `collector`, in a process group of its own."""

    def __init__(self, tmp_path, body, env="counting(2)", before="pass"):
        script = tmp_path / "trainer.py"
        script.write_text(
            # Workers, and the processes of their envs, import this script and need nothing of it.
            "if __name__ == '__main__':\n"
            f"    {before}\n"
            "    from collecting import *\n    import sys, time\n"
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
        """Waits for the whole family to end; returns the trainer's exit status and stderr."""
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


@pytest.mark.ci
@pytest.mark.parametrize(
    "env",
    ["faulty('hang', at_step=300)", "gym_vector(2, vectorization='async')"],
    ids=["hung", "with_processes"],
)
def test_a_killed_trainer_takes_its_workers_along(trainer, env):
    running = trainer("time.sleep(1000)", env=env)
    assert len(running.family) >= 3
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL


@pytest.mark.ci
def test_ctrl_c_on_the_whole_group_leaves_nothing(trainer):
    running = trainer("with collector:\n    for batch in collector:\n        pass")
    os.killpg(running.process.pid, signal.SIGINT)
    status, error = running.end()
    assert status == -signal.SIGINT
    assert error.count("Traceback") == 1, error
    assert error.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.ci
def test_a_forgotten_collector_ends_with_the_program(trainer):
    assert trainer("sys.exit(5)").end() == (5, "")


@pytest.mark.ci
def test_a_forgotten_collector_ends_with_a_program_that_fails(trainer):
    status, error = trainer("raise ZeroDivisionError('the user has a bug')").end()
    assert status == 1
    assert error.rstrip().endswith("ZeroDivisionError: the user has a bug")


@pytest.mark.ci
def test_a_collector_without_references_ends_its_workers(trainer):
    body = """
        pids = worker_pids(collector)
        del collector
        import psutil
        sys.exit(7 if any(psutil.pid_exists(pid) for pid in pids) else 0)
    """
    assert trainer(body).end() == (0, "")


@pytest.mark.parametrize("kind", ["distributed", "rpc"])
def test_workers_that_have_not_joined_end_without_a_word(kind):
    """With status 1 they would have told why they did not find a trainer."""
    with start(kind, "local", counting(1)) as collector:
        handles = list(collector.handles().values())
    assert len(handles) == 2
    assert {handle.exitcode for handle in handles} <= {0, -signal.SIGTERM}


@pytest.mark.ci
def test_a_forgotten_collector_ends_where_something_else_is_to_be_done_at_the_end(trainer):
    # The first `weakref.finalize` of a process says when those of all are called at its end.
    before = "import tempfile; folder = tempfile.TemporaryDirectory()"
    assert trainer("sys.exit(5)", before=before).end() == (5, "")


@pytest.mark.ci
def test_a_process_forked_off_the_trainer_ends_no_workers(trainer):
    body = """
        import os, warnings
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


@pytest.mark.ci
def test_an_impatient_ctrl_c_while_a_hung_worker_is_waited_for_leaves_nothing(trainer, tmp_path):
    claim = str(tmp_path / "hangs")
    body = f"""
        import os, signal, threading
        while not os.path.exists({claim!r}):
            time.sleep(0.01)
        try:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            collector.close()
        except KeyboardInterrupt:
            sys.exit(6)
    """
    assert trainer(body, env=f"faulty('hang', at_step=15, claim={claim!r})").end() == (6, "")
