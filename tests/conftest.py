"""For every test: what it started is gone when it ends, and nothing of it is left in memory or in /dev/shm.

Also puts this folder on the import path, so that tests find `ways` and `configurations`, and worker processes
`user_code`, and selects the tests of a tier (`ways.py`).
"""

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import psutil
import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and no limits of time: neither luck nor a busy machine decides.
settings.register_profile(
    "collectx", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("collectx")

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)

from commands import kill_started  # noqa: E402
from expected import Expected  # noqa: E402
from ways import FOLDERS, TIERS, leave_samples, tier_of  # noqa: E402

# A shell's background jobs ignore Ctrl-C, and the processes that these tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tiers of the collected tests, if none of them belongs to the wanted tier.
_OTHER_TIERS = pytest.StashKey[list[str]]()
_SHM = Path("/dev/shm")
# How long a thread that was told to end may take.
_THREAD_S = 5.0
# The files that Python, torch, Ray, Open MPI, UCX and NCCL make there have names that begin with these; other programs
# have files there too. Not Python's semaphores (`sem.*`): an env's own processes make them, and multiprocessing's
# tracker removes those of a killed process late.
_SHM_NAMES = ("psm_", "pym-", "torch_", "plasma", "vader_segment", "sm_segment", "ucx_", "nccl-")
# What the workers of many tests import, in addition to the imports of every worker.
PRELOAD = [
    "collectx.worker.entry",
    "collectx.transport.network.link",
    "torch.distributed.rpc",
    "user_code.cartpoles",
    "user_code.faulty",
    "user_code.toyworker",
]


def pytest_addoption(parser):
    parser.addoption("--tier", default="test", choices=(*TIERS, "all"), help="which tests to run; see tests/ways.py")
    parser.addoption("--update-expected", action="store_true", help="write the results that tests/expected.py compares")


def pytest_ignore_collect(collection_path, config):
    """Does not import a folder all of whose tests are of later tiers, unless it is asked for."""
    tier, wanted = FOLDERS.get(collection_path.name, "test"), config.getoption("--tier")
    if collection_path.parent == Path(__file__).parent and wanted in TIERS[: TIERS.index(tier)]:
        asked = [Path(each.partition("::")[0]).resolve() for each in config.args]
        return not any(path.is_relative_to(collection_path) for path in asked) or None
    return None


def pytest_collection_modifyitems(config, items):
    for module in {item.module for item in items}:
        # Workers get what a test module defines by value and do not import the module, nor pytest with it.
        cloudpickle.register_pickle_by_value(module)
    leave_samples(items)
    wanted = config.getoption("--tier")
    if wanted != "all":
        tiers = [tier_of(item) for item in items]
        config.hook.pytest_deselected(items=[item for item, tier in zip(items, tiers, strict=True) if tier != wanted])
        items[:] = [item for item, tier in zip(items, tiers, strict=True) if tier == wanted]
        config.stash[_OTHER_TIERS] = [] if items else sorted(set(tiers), key=TIERS.index)


def pytest_terminal_summary(terminalreporter, config):
    if others := config.stash.get(_OTHER_TIERS, []):
        tiers = " or ".join(f"--tier={tier}" for tier in (*others, "all"))
        terminalreporter.write_line(f"none of these tests is of the tier {config.getoption('--tier')}: add {tiers}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Prints how a test process of xdist died: after -11 or -6 it crashed, after -9 something killed it."""
    if error:
        status = node.gateway._io.popen.wait(timeout=10)
        print(f"\n[{node.gateway.id}] exit status {status}", file=sys.stderr)


@pytest.fixture(scope="session", autouse=True)
def fork_server():
    """Workers of tests are forked from a process that has imported what they need."""
    from collectx.fork_server import (
        start,  # not at the top: the process that only distributes tests has no use for torch
    )

    start.PRELOAD += PRELOAD
    with pytest.MonkeyPatch.context() as patch:
        # The server of Python 3.11 preloads with the path of its environment only.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        start.warm_up()
    # Keeps the garbage collector from visiting everything that was imported: a collection then takes milliseconds.
    gc.freeze()


def _threads() -> set[threading.Thread]:
    """The threads that collectx has started in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("collectx-")}


def _shared_descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{name}")
            if "collectx-slab" in file or "collectx-replay" in file:
                found.add(name)
        except OSError:
            pass
    return found


def _shared_files() -> set[str]:
    names = set()
    for name in os.listdir(_SHM) if _SHM.is_dir() else ():
        if name.startswith(_SHM_NAMES):
            with contextlib.suppress(FileNotFoundError):
                if (_SHM / name).stat().st_uid == os.getuid():
                    names.add(name)
    return names


def _held_by_others() -> set[str]:
    """Returns the names in /dev/shm that processes other than this one and its descendants have open or mapped."""
    here = psutil.Process()
    mine = {here.pid, *(child.pid for child in here.children(recursive=True))}
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in mine:
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            held = [os.readlink(each) for each in (process / "fd").iterdir()]
            maps = (process / "maps").read_text().splitlines()
            held += [line.split(maxsplit=5)[5] for line in maps if " /dev/shm/" in line]
            names |= {each.removeprefix("/dev/shm/") for each in held if each.startswith("/dev/shm/")}
    return names


def _left_in_shm(before: set[str]) -> set[str]:
    """Returns what is new in /dev/shm, without the files that other programs have open."""
    new = _shared_files() - before
    return new - _held_by_others() if new else new


def _wait_until(condition, timeout_s: float = 100.0, what: str = "condition") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)


@pytest.fixture
def fork_server_pid():
    """`fork_server_pid()` is the process from which workers are forked; multiprocessing does not tell it."""
    return lambda: multiprocessing.forkserver._forkserver._forkserver_pid


@pytest.fixture
def wait_until():
    """`wait_until(condition, timeout_s, what)` polls until the condition holds, or fails."""
    return _wait_until


@pytest.fixture
def within(monkeypatch):
    """`within(module, "time", sleep=f)`: in `module` alone, `time.sleep` is f. Other modules and their threads keep the
    real one."""

    def replace(module: ModuleType, name: str, **attributes: object) -> None:
        replaced = SimpleNamespace(**(vars(getattr(module, name)) | attributes))
        monkeypatch.setattr(module, name, replaced)

    return replace


@pytest.fixture
def expected(request):
    """`expected(NAME, RESULT)`: `tests/expected.py`."""
    return Expected(request.path.parent / "expected", request.config.getoption("--update-expected"))


@pytest.fixture
def hangups():
    """SIGHUP is not ignored in the test and in the processes that it starts, even if `nohup` runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def torchs_seed_and_threads():
    """Seeds torch's generator, from which collectors without a seed draw theirs. Resets the number of torch's threads,
    which runs and TorchRL's ParallelEnv change; several of them wait for one another on a busy machine."""
    import torch

    # `torch.manual_seed` takes milliseconds without a GPU: it keeps the stack of each call for when one is used.
    torch.default_generator.manual_seed(0)
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fails a test that leaves a worker process, a thread, a descriptor of shared memory or a file in /dev/shm."""
    files, slabs, threads = _shared_files(), _shared_descriptors(), _threads()
    yield
    kill_started()
    # Importing torchrl sets "spawn", with which each process of an AsyncVectorEnv takes seconds to start.
    multiprocessing.set_start_method(None, force=True)
    workers = [child for child in multiprocessing.active_children() if child.name.startswith("collectx-")]
    for child in workers:
        child.kill()
        child.join(10)
    for thread in _threads() - threads:
        thread.join(_THREAD_S)
    if _shared_descriptors() - slabs:
        gc.collect()  # a failure's traceback keeps a collector alive in a cycle
    left = _shared_descriptors() - slabs
    assert not _threads() - threads, f"threads left: {_threads() - threads}"
    assert not workers, f"worker processes left: {workers}"
    assert not left, f"descriptors of shared memory left open: {sorted(left)}"
    # An env's processes remove theirs when they end, a moment after the collector is closed.
    if left := _left_in_shm(files):
        _wait_until(lambda: not _left_in_shm(files), 30, f"files left in /dev/shm: {left}")
