"""However the trainer's process ends, its workers end with it, and the processes of their envs with them."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from configurations import counting, gym_vector, start, worker_pids
from ways import GLOO_ASYNC, RPC_ASYNC, over

from collectx.errors import WorkerDied

TESTS = Path(__file__).parents[1]
# Workers, and the processes of their envs, import the script and need nothing of it.
SCRIPT = """
if __name__ == "__main__":
    {before}
    import os, signal, sys, threading, time, warnings
    from configurations import *
    collector = start("multi_async", "local", {env}, total_frames=-1)
    next(collector)
    print("collecting", flush=True)
    sys.stdin.readline()
{body}
"""
ENDLESS = """
    with collector:
        list(collector)
"""
FORKS = """
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
NO_REFERENCES = """
    pids = worker_pids(collector)
    del collector
    sys.exit(7 if any(os.path.exists(f"/proc/{pid}") for pid in pids) else 0)
"""
IMPATIENT = """
    while not os.path.exists("hangs"):
        time.sleep(0.01)
    try:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        collector.close()
    except KeyboardInterrupt:
        sys.exit(6)
"""
HUNG = {"env": "faulty('sleeps', at_step=15, sign='hangs')"}
# The first `weakref.finalize` of a process decides when all of them are called at its end.
FINALIZER = {"before": "import tempfile; folder = tempfile.TemporaryDirectory()"}
# As in `collectx run`, the fork server is running when the trainer makes its own env.
PROCESSES = {
    "before": "from collectx.fork_server import start; start.warm_up()",
    "env": "gym_vector(2, vectorization='async')",
}


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("body", "parts", "number", "status", "last_line"),
    [
        pytest.param(ENDLESS, HUNG, signal.SIGKILL, -signal.SIGKILL, None, id="killed-hung_env"),
        pytest.param(
            ENDLESS,
            PROCESSES,
            signal.SIGKILL,
            -signal.SIGKILL,
            None,
            id="killed-env_with_processes",
            marks=pytest.mark.nightly,
        ),
        pytest.param(ENDLESS, {}, signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt", id="ctrl_c"),
        pytest.param(
            IMPATIENT, HUNG, None, 6, "", id="ctrl_c_while_a_hung_worker_is_waited_for", marks=pytest.mark.nightly
        ),
        pytest.param("    sys.exit(5)", {}, None, 5, "", id="program_ends", marks=NIGHTLY),
        pytest.param(
            "    raise ValueError('a bug')",
            {},
            None,
            1,
            "ValueError: a bug",
            id="program_fails",
            marks=pytest.mark.nightly,
        ),
        pytest.param("    sys.exit(5)", FINALIZER, None, 5, "", id="other_finalizers", marks=NIGHTLY),
        pytest.param(NO_REFERENCES, {}, None, 0, "", id="no_references", marks=NIGHTLY),
        # The fork ends no workers.
        pytest.param(FORKS, {}, None, 0, "", id="forks", marks=NIGHTLY),
    ],
)
def test_nothing_is_left_of_a_trainer(tmp_path, body, parts, number, status, last_line):
    parts = {"before": "", "env": "counting(2)", "body": body} | parts
    Path(tmp_path, "trainer.py").write_text(SCRIPT.format(**parts))
    # Short enough for a socket's path.
    temporary = Path(tempfile.mkdtemp())
    trainer = subprocess.Popen(
        [sys.executable, "trainer.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path)), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        stdin=subprocess.PIPE,
    )
    family = []
    try:
        assert trainer.stdout.readline() == "collecting\n", trainer.stderr.read()
        family = psutil.Process(trainer.pid).children(recursive=True)
        assert len(family) >= 3
        print(file=trainer.stdin, flush=True)
        if number is not None:
            # A terminal's Ctrl-C is for the whole group.
            (os.killpg if number == signal.SIGINT else os.kill)(trainer.pid, number)
        _, error = trainer.communicate(timeout=200)
        _, left = psutil.wait_procs(family, timeout=60)
        assert left == []
        assert list(temporary.rglob("*")) == []
        temporary.rmdir()
    finally:
        for process in (trainer, *filter(psutil.Process.is_running, family)):
            process.kill()
        trainer.communicate()
    assert trainer.returncode == status, error
    if last_line is not None:
        assert error.rstrip().rpartition("\n")[2] == last_line
        assert error.count("Traceback") <= 1


@over([GLOO_ASYNC, RPC_ASYNC])
def test_workers_that_have_not_joined_end_in_silence(way):
    """If they had ended with status 1, they would have said why they found no trainer."""
    with start(way.kind, way.place, counting(1)) as collector:
        first, second = collector.handles().values()
    assert {first.exitcode, second.exitcode} <= {0, -signal.SIGKILL}


def test_the_processes_of_an_env_end_with_its_worker(wait_until):
    """The test kills one worker and closes another."""
    with start("multi_sync", "local", gym_vector(2, vectorization="async"), frames_per_batch=40) as collector:
        next(collector)
        pids = worker_pids(collector)
        children = [child for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        assert len(children) >= 4  # two envs in each worker, and what multiprocessing starts for them
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="worker 0"):
            list(collector)
    wait_until(lambda: not any(child.is_running() for child in children), what=f"the envs' processes end: {children}")
