"""Collectors in a process that was forked from the one that made them, and new ones that it makes."""

import gc
import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest
from library_collectors import make
from user_code.cartpoles import cartpole
from ways import GLOO_ASYNC, RAY_ASYNC, RPC_SYNC, SHARED, SINGLE, over

import collectx
from collectx import BaseCollector, MultiSyncCollector
from collectx.errors import LauncherError

OPTIONS = {"frames_per_batch": 8, "total_frames": 16}
# How the public methods that collect, publish, ask or end are called.
CALLS = {
    "async_shutdown": lambda c: c.async_shutdown(),
    "call": lambda c: c.call("render"),
    "get_attr": lambda c: c.get_attr("spec"),
    "set_attr": lambda c: c.set_attr("spec", None),
    "set_reset_options": lambda c: c.set_reset_options(None),
    "enable_profile": lambda c: c.enable_profile(),
    "get_distant_attr": lambda c: c.get_distant_attr("env.spec"),
    "get_policy_version": lambda c: c.get_policy_version(),
    "getattr_env": lambda c: c.getattr_env("spec"),
    "increment_version": lambda c: c.increment_version(),
    "load_state_dict": lambda c: c.load_state_dict({"policy_state_dict": {}, "frames": 0}),
    "next": lambda c: c.next(),
    "pause": lambda c: c.pause().__enter__(),
    "receive_weights": lambda c: c.receive_weights(),
    "reset": lambda c: c.reset(),
    "rollout": lambda c: c.rollout(),
    "set_post_collect_hook": lambda c: c.set_post_collect_hook(None),
    "set_seed": lambda c: c.set_seed(1),
    "shutdown": lambda c: c.shutdown(),
    "start": lambda c: c.start(),
    "state_dict": lambda c: c.state_dict(),
    "stats": lambda c: c.stats(),
    "update_policy_weights_": lambda c: c.update_policy_weights_(),
}
# Return what this process has, or call another method.
READS = {
    "disable_profile",
    "fake_tensordict",
    "fill",
    "frames_per_batch_worker",
    "get_model",
    "getattr_policy",
    "getattr_rb",
}
READS |= {"is_running", "iterator", "local_policy", "map_fn"}


@over([SINGLE, SHARED[0]], smoke=True)
def test_a_forked_process_and_its_parent_have_a_batch_each(way):
    """The workers write to its memory no more, while either of them uses it."""
    context = multiprocessing.get_context("fork")
    goes_on = context.Event()
    with make(way, [cartpole] * way.num_workers, frames_per_batch=64, total_frames=640) as collector:
        batch = next(iter(collector))
        copy = batch.clone()

        def look():
            assert goes_on.wait(30)
            assert (batch == copy).all()
            batch.apply_(lambda tensor: tensor.fill_(1))

        child = context.Process(target=look)
        child.start()
        ids = [each["collector", "traj_ids"].flatten().tolist() for each in collector]
        goes_on.set()
        child.join(30)
        assert child.exitcode == 0
        assert (batch == copy).all()
    assert len(ids) == 9


def mapping_of(tensor):
    """Returns the name of what is mapped where a tensor is."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, end = line.split()[0].partition("-")
        if int(first, 16) <= tensor.data_ptr() < int(end, 16):
            return line.partition("/")[2]
    raise AssertionError("it is not in memory")


@over([SHARED[0]], smoke=True)
def test_batches_are_lent_without_a_copy_after_any_number_of_forks(way):
    """A DataLoader in each batch forks so."""
    with make(way, frames_per_batch=64, total_frames=-1) as collector:
        for _ in range(8):
            batch = collector.next()
            assert "slab" in mapping_of(batch["observation"])
            copy = batch.clone()
            for _ in range(2):
                os.waitpid(forked(lambda batch=batch: batch.apply_(lambda tensor: tensor.fill_(1))), 0)
            collector.get_attr("gravity")  # the workers have filled what they were granted
            assert (batch == copy).all()
    os.waitpid(forked(batch.clear), 0)
    assert (batch == copy).all()


@over([SHARED[0]], smoke=True)
def test_a_batch_that_is_kept_after_a_fork_outlives_the_collector_and_keeps_only_its_own_memory(way):
    before = Path("/proc/self/maps").read_text().count("slab")
    with make(way, frames_per_batch=64, total_frames=-1) as collector:
        batch = collector.next()
        os.waitpid(forked(int), 0)
        copy = batch.clone()
    assert (batch == copy).all()
    del collector
    gc.collect()
    assert (batch == copy).all()
    del batch
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("slab") == before


# Of `RayCollector` alone.
OF_RAY = {
    "add_collectors": lambda c: c.add_collectors(cartpole),
    "stop": lambda c: c.stop(),
    "stop_remote_collectors": lambda c: c.stop_remote_collectors(),
}


def forked(function):
    """Forks a process that calls `function` and ends; returns its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons' of a fork beside threads
        child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return child


def in_a_fork(function):
    """Returns what `function` returns in a forked process, as plain data."""
    reading, writing = os.pipe()

    def write():
        try:
            result = function()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(result).encode())

    child = forked(write)
    os.close(writing)
    with os.fdopen(reading) as lines:
        text = lines.read()
    os.waitpid(child, 0)
    return json.loads(text)


def _errors(collector):
    """Returns the error that each method raises, by the method's name."""
    errors = {}
    for name, call in (CALLS | OF_RAY).items():
        try:
            call(collector)
        except Exception as error:  # AttributeError, where the class lacks the method
            errors[name] = f"{type(error).__name__}: {error}"
    with collector:  # leaving the block of the parent's collector does not end it
        pass
    return errors


@over((SINGLE, *SHARED, GLOO_ASYNC, RPC_SYNC, RAY_ASYNC), smoke=True)
def test_a_collector_cannot_be_used_in_a_forked_process_by_any_method(way):
    with make(way, **OPTIONS) as collector:
        assert next(collector).numel() == 8
        errors = in_a_fork(lambda: _errors(collector))
        called = CALLS | OF_RAY if way.place == "ray" else CALLS
        assert called.keys() - errors.keys() == set()
        expected = f"RuntimeError: this collector belongs to process {os.getpid()}, but was called in its fork "
        assert [name for name in called if not errors[name].startswith(expected)] == []
        assert next(collector).numel() == 8


@over((SHARED[0], GLOO_ASYNC), smoke=True)
def test_workers_end_at_once_while_a_forked_process_lives(way):
    with make(way, close_timeout_s=60.0, **OPTIONS) as collector:
        assert next(collector).numel() == 8
        child = forked(signal.pause)
        began = time.monotonic()
        try:
            collector.shutdown()
            assert time.monotonic() - began < 30.0
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


KILLED = """
import os, signal, gymnasium, psutil
from collectx import MultiSyncCollector

def make():
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.pid = os.getpid()
    return env

collector = MultiSyncCollector([make] * 2, frames_per_batch=8)
next(collector)
workers = collector.get_attr("pid")
child = os.fork()
if child == 0:
    signal.pause()
print(child, *[psutil.Process(worker).ppid() for worker in workers], *workers, flush=True)
signal.pause()
"""


def test_workers_end_with_a_script_that_is_killed_although_its_fork_lives(tmp_path):
    """The fork has inherited the pipe whose end tells the fork server that the script has ended."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        child, *others = map(int, process.stdout.readline().split())
        process.kill()
        process.wait()
        try:
            _, alive = psutil.wait_procs(
                [psutil.Process(pid) for pid in {*others} if psutil.pid_exists(pid)], timeout=30
            )
            assert not alive
            assert psutil.pid_exists(child)
        finally:
            os.kill(child, signal.SIGKILL)
    finally:
        process.kill()
        process.stdout.close()


def test_the_table_of_calls_has_every_public_method():
    classes = [each for each in vars(collectx.library.collectors).values() if inspect.isclass(each)]
    names = {
        name
        for each in classes
        if issubclass(each, BaseCollector)
        for name in dir(each)
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(each, name))
    }
    assert names == CALLS.keys() | READS | OF_RAY.keys()


def _collects(_=None):
    with MultiSyncCollector([cartpole] * 2, **OPTIONS) as collector:
        return [batch.numel() for batch in collector]


@pytest.mark.ci
def test_a_forked_process_makes_a_collector_after_its_parent_has_closed_its_own():
    assert _collects() == [8, 8]
    assert in_a_fork(_collects) == [8, 8]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(_collects, [0])) == [[8, 8]]


def test_a_worker_of_a_pool_is_told_what_to_do():
    refused = pytest.raises(LauncherError, match=r"daemonic.*with concurrent\.futures\.ProcessPoolExecutor")
    with multiprocessing.get_context("fork").Pool(1) as pool, refused:
        pool.map(_collects, [0])


BOTH_COLLECT = """
import os
import gymnasium
from collectx import DistributedCollector

def collector(total_frames):
    envs = [lambda: gymnasium.make("CartPole-v1")]
    return DistributedCollector(envs, frames_per_batch=8, total_frames=total_frames, launcher="mp")

with collector(400) as parents:
    next(parents)
    child = os.fork()
    if child == 0:
        try:
            with collector(24) as own:
                print([batch.numel() for batch in own], flush=True)
        finally:
            os._exit(0)
    next(parents)
    os.waitpid(child, 0)
    print([batch.numel() for batch in parents] == [8] * 48, flush=True)
"""


@pytest.mark.nightly
def test_a_process_with_a_collector_over_gloo_and_its_fork_both_collect(tmp_path):
    # In processes of its own: torch's errors about this end a process or let it hang.
    script = tmp_path / "both.py"
    script.write_text(BOTH_COLLECT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "[8, 8, 8]\nTrue\n"), done.stderr
