"""What worker processes see of the user's script."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

UNGUARDED = """
import gymnasium
from tensordict.nn import TensorDictModule
from torch import nn

from collectx import MultiSyncCollector

class TooFar(Exception):
    pass

class Bounded(gymnasium.Wrapper):
    def step(self, action):
        observation, *others = super().step(action)
        if observation[0] > 0.2:
            raise TooFar(observation[0])
        return observation, *others

def make():
    return Bounded(gymnasium.make("CartPole-v1"))

policy = TensorDictModule(lambda seen: (seen[..., 0] >= -1).long(), in_keys=["observation"], out_keys=["action"])
collector = MultiSyncCollector([make] * 2, policy, frames_per_batch=10, total_frames=1000)
print(collector.next().shape, flush=True)
try:
    list(collector)
except TooFar as error:
    print("too far")
"""


@pytest.mark.parametrize(
    "start_method", [None, *(pytest.param(method, marks=pytest.mark.nightly) for method in ("fork", "spawn"))]
)
def test_a_script_needs_no_guard(start_method, script):
    chosen = f"import multiprocessing\nmultiprocessing.set_start_method({start_method!r})\n"
    run = script(chosen * (start_method is not None) + UNGUARDED)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "torch.Size([2, 5])\ntoo far\n"
    # The error of the worker is raised, and not printed by the worker too.
    assert "Traceback" not in run.stderr


INTERRUPTED = """
import os, signal, time
import gymnasium
from collectx import MultiSyncCollector

MAIN = os.getpid()

class Levels(gymnasium.Wrapper):
    _level = 0
    level = property(lambda env: env._level)
    pid = property(lambda env: os.getpid())

    @level.setter
    def level(self, level):
        if level < 0:
            time.sleep(0.5)  # the trainer waits for the replies
            if level == -1:
                os.kill(MAIN, signal.SIGINT)
            time.sleep(0.5)
            raise ValueError(f"there is no level {level}")
        self._level = level

def make():
    return Levels(gymnasium.make("CartPole-v1"))

keywords = {"frames_per_batch": 20, "on_worker_failure": "restart"}
with MultiSyncCollector([make] * 2, **keywords) as collector:
    collector.set_attr("level", 3)
    try:
        collector.set_attr("level", [-1, -2])
    except KeyboardInterrupt:
        print("interrupted")
    print(collector.get_attr("level"))
    killed = collector.get_attr("pid")[0]
    os.kill(killed, signal.SIGKILL)
    while collector.get_attr("pid")[0] == killed:
        next(collector)
    print(next(collector).shape, collector.get_attr("level"))
"""


def test_a_setting_that_was_interrupted_and_then_refused_is_not_in_force(script):
    run = script(INTERRUPTED)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "interrupted\n(3, 3)\ntorch.Size([2, 10]) (3, 3)\n"


WARNS = """
import gymnasium
from collectx import MultiSyncCollector

def make():
    env = gymnasium.make("InvertedPendulum-v5")
    import mujoco
    env.reset()
    env.unwrapped.data.qvel[:] = float("nan")
    mujoco.mj_step(env.unwrapped.model, env.unwrapped.data)
    return env

with MultiSyncCollector([make] * 2, frames_per_batch=10) as collector:
    print(collector.next().shape, flush=True)
"""


@pytest.mark.nightly
def test_a_warning_of_mujoco_is_shown_once_for_all_processes(script, tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo's own handler writes a log to it
    run = script(WARNS)
    assert run.stdout == "torch.Size([2, 5])\n", run.stderr
    assert run.stderr.count("in QVEL") == run.stderr.count("MuJoCo warning (shown once): ") == 1, run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


GUARDED = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from collectx import MultiSyncCollector

gymnasium.register("Mine-v0", CartPoleEnv)

def main():
    print(MultiSyncCollector([lambda: gymnasium.make("Mine-v0")], frames_per_batch=10).next().shape, flush=True)
"""


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param('if __name__ == "__main__":\n    main()\n', marks=pytest.mark.nightly, id="if"),
        pytest.param('try:\n    if __name__ == "__main__":\n        main()\nfinally:\n    pass\n', id="within try"),
        pytest.param('__name__ == "__main__" and main()\n', marks=pytest.mark.nightly, id="and"),
    ],
)
def test_what_a_guarded_script_registers_is_known_in_the_workers(guard, script):
    run = script(GUARDED + guard)
    assert (run.returncode, run.stdout) == (0, "torch.Size([1, 10])\n"), run.stderr


@pytest.mark.nightly
def test_the_error_of_a_collector_outside_of_the_guard_says_so(script):
    run = script(GUARDED + 'if __name__ == "__main__":\n    pass\nmain()\n')
    assert run.returncode == 1
    assert 'a script that makes a collector outside of its `if __name__ == "__main__":`' in run.stderr


DEEP = """
import sys, threading
from gymnasium.envs.classic_control import CartPoleEnv
from collectx import Collector, MultiSyncCollector

class Node:
    next = None

class Deep(CartPoleEnv):
    def __init__(self, limit):
        super().__init__()
        sys.setrecursionlimit(limit)
        for _ in range(20_000):
            node = Node()
            self.last, node.next = node, getattr(self, "last", None)

def reasons(kind, limit, results, made=lambda: None):
    with kind(lambda: Deep(limit), frames_per_batch=8) as collector:
        collector.next()
        made()
        results += [collector.state_dict()["worker0"]["rollout"].get("reason") for _ in range(4)]

results = []
reasons(lambda create, **keywords: MultiSyncCollector([create], **keywords), 10**6, results)
reasons(Collector, 10**6, results)
# A limit that a thread sets is every thread's: no env is made while another is saved.
made = threading.Barrier(3).wait
threads = [threading.Thread(target=reasons, args=(Collector, 1000, results, made)) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results == [None] * 20, sys.getrecursionlimit())
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="C functions have a recursion limit of their own")
def test_deep_objects_of_envs_are_saved_with_any_recursion_limit_and_in_several_threads(script):
    run = script(DEEP)
    assert (run.stdout, run.returncode) == ("True 1000\n", 0), run.stderr


@pytest.fixture
def script(tmp_path):
    """Runs a script, and returns what has become of it."""

    def run(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)

    return run


SURROUNDINGS = """
import json, os, resource, time

fields = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
masks = {name: int(fields[name], 16) >> signum - 1 & 1 for name, signum in (("SigIgn", 14), ("SigBlk", 28))}
limits = [resource.getrlimit(each) for each in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]
cores, mask = sorted(os.sched_getaffinity(0)), os.umask(0)
os.umask(mask)
variables = [os.environ.get(name) for name in ("LEVEL", "GONE")] + [time.tzname[0]]
found = json.dumps([variables, mask, limits, os.nice(0), cores, os.getcwd(), masks])
if __name__ == "__main__":
    print(found)
"""
INHERITS = """
import os, resource, signal, subprocess, sys

import gymnasium

from collectx import MultiSyncCollector, RandomPolicy

def make():
    import surroundings
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.found = surroundings.found
    return env

def compare():
    with MultiSyncCollector([make] * 2, RandomPolicy(), frames_per_batch=2) as collector:
        found = collector.getattr_env("unwrapped.found")
        started = subprocess.run([sys.executable, SURROUNDINGS], capture_output=True, text=True).stdout.strip()
        print(found == started, found, flush=True)

SURROUNDINGS = os.path.join(os.path.dirname(__file__), "surroundings.py")

if __name__ == "__main__":
    os.environ["GONE"] = "not yet"
    compare()
    del os.environ["GONE"]
    os.environ.update(LEVEL="2", TZ="Asia/Tokyo")
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(3)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    compare()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_inherit_what_any_process_inherits_that_is_started_at_that_moment(script, tmp_path, monkeypatch):
    """Workers inherit what their imports read, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "surroundings.py").write_text(SURROUNDINGS)
    run = script(INHERITS)
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first.startswith('True [[null, "not yet", '), run.stdout
    assert second.startswith('True [["2", null, "JST"], 23, [[0, 0], '), run.stdout
    assert second.endswith('/elsewhere", {"SigIgn": 1, "SigBlk": 1}]'), run.stdout


UNREADABLE = """
import threading

import gymnasium
from torch import nn

from collectx import AsyncBatchedCollector, DistributedCollector, MultiSyncCollector

class Failing:
    \"\"\"Can be pickled, but not unpickled.\"\"\"

    def __init__(self, function=None):
        self.function = function

    def __call__(self, *args, **keywords):
        return self.function(*args, **keywords)

    def __reduce__(self):
        return fail, ()

def fail():
    raise ImportError("the simulator is not installed here")

class FailingNet(nn.Linear):
    __reduce__ = Failing.__reduce__

    def forward(self, observation):
        return super().forward(observation).argmax(-1)

def make(version=1):
    return gymnasium.make("CartPole-v1")

def act(observation):
    return (observation[..., 0] >= 0).long()

def attempt(kind, create_env_fn=make, **keywords):
    try:
        with kind([create_env_fn] * 2, frames_per_batch=8, total_frames=8, **keywords) as collector:
            next(collector)
    except ImportError as error:
        assert "the simulator" in str(error)
        return "\\n".join(error.__notes__)

PASSED = [
    (MultiSyncCollector, {"create_env_fn": Failing(make)}),
    (MultiSyncCollector, {"policy": FailingNet(4, 2)}),
    (MultiSyncCollector, {"init_fn": Failing(print)}),
    (MultiSyncCollector, {"post_collect_hook": Failing(print)}),
    (AsyncBatchedCollector, {"policy_factory": Failing(lambda: act)}),
    (DistributedCollector, {"launcher": "mp", "collector_class": Failing(MultiSyncCollector)}),
]
for kind, keywords in PASSED:
    notes = attempt(kind, **keywords)
    assert f"while the worker unpickled {[*keywords][-1]}" in notes, (keywords, notes)
    assert "raised in worker " in notes or "raised in inference server" in notes, notes

with MultiSyncCollector([make] * 2, frames_per_batch=8) as collector:
    collector.post_collect_hook = before = lambda batch: batch.set("seen", batch["action"])
    for hook in (Failing(print), lambda batch, lock=threading.Lock(): None):
        try:
            collector.post_collect_hook = hook
        except (ImportError, ValueError) as error:
            print(type(error).__name__, str(error).split()[0])
        assert collector.post_collect_hook is before
        assert collector.getattr_env("spec.id") == "CartPole-v1"
        assert "seen" in next(collector).keys()
"""


def test_what_a_worker_cannot_unpickle_is_its_error_and_a_request_leaves_it_alive(script):
    run = script(UNREADABLE)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("ImportError the\nConfigError post_collect_hook=")
    assert "Traceback" not in run.stderr


LEVELS = """
import os
import socket

import gymnasium
import numpy
import pytest

from collectx import Collector, DistributedCollector, MultiSyncCollector, ReplayBuffer

class Level(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)
    level, names = 0, {"easy": (0, 1), "seen": numpy.zeros(2)}

    def set_level(self, level):
        self.level = level
        return level

    def reset(self, **keywords):
        return numpy.full(1, int(os.environ.get("LEVEL", self.level)), "float32"), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}

def levels(batch):
    return batch["next", "observation"].unique().tolist()

buffer = ReplayBuffer(100)
with MultiSyncCollector([Level] * 2, frames_per_batch=8, replay_buffer=buffer) as collector:
    next(collector)
    for ask, path in ((collector.getattr_env, "set_level"), (collector.get_distant_attr, "env.unwrapped")):
        with pytest.raises(TypeError, match="To call methods or change the env, use call") as caught:
            ask(path)
        print(str(caught.value).split(",")[0])
    for path in ("level", "names", "names['seen']", "action_space", "metadata", "spec"):
        collector.getattr_env(path)
    assert collector.get_distant_attr("replay_buffer.write_count") == [8, 8]
    with pytest.raises(ValueError, match=r"pass list_of_args=\\[\\(\\)\\]"):
        collector.map_fn("get_policy_version")
    with pytest.raises(ValueError, match="list_of_args of .* has 1 entry, but there are 2 workers"):
        collector.map_fn("env.set_level", [(3,)])
    with pytest.raises(ValueError, match="list_of_args of .* has 0 entries"):
        collector.map_fn("env.close", [])
    collector.pre_collect_hook = lambda: os.environ.update(LEVEL="3")
    assert collector.fill(16) and levels(buffer[16:24]) == [3]
with Collector(Level, frames_per_batch=4) as collector:
    assert collector.map_fn("get_policy_version") == [0]
    assert collector.getattr_env("set_level")(2) == 2 and collector.map_fn("env.set_level", [(4,)]) == [4]
    assert levels(next(collector)) == [4]
with socket.create_server(("127.0.0.1", 0)) as free:
    port = str(free.getsockname()[1])
with DistributedCollector([Level], frames_per_batch=4, launcher="mp", tcp_port=port) as collector:
    assert next(collector).shape == (4,)
with pytest.raises(ValueError, match="tcp_port.*must be a port number"):
    DistributedCollector([Level], frames_per_batch=4, launcher="mp", tcp_port="first")
"""


@pytest.mark.difference(
    "`map_fn` of a collector with workers",
    "`getattr_env`, `get_distant_attr` of a worker's method, or of an object that is not plain data",
)
def test_only_data_leaves_a_worker_and_a_hook_changes_its_envs(script):
    run = script(LEVELS)
    assert run.returncode == 0, run.stderr
    refused = {"set_level": "a method", "unwrapped": "an object of type Level"}
    assert run.stdout == "".join(f"{name!r} is {what} in the worker's env\n" for name, what in refused.items())


DOTS = """
import gymnasium
import numpy
import pytest
from gymnasium.spaces import Box, Dict

from collectx import MultiSyncCollector
from collectx.errors import ConfigError

class Dotted(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **parts):
        names = {"observation.state": Box(0, 1, (2,)), "observation.left": Box(0, 1, (3,))}
        self.observation_space = Dict(parts or names)

    def reset(self, **keywords):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.reset()[0], 1.0, True, False, {}

gymnasium.register("Dotted-v0", Dotted)

def hook(batch):
    batch["x", "y"] = batch["next", "reward"]
    batch["x.y"] = 2 * batch["next", "reward"]

def ambiguous():
    return Dotted(**{"a": Dict({"b": Box(0, 1), "c": Box(0, 1)}), "a.b": Box(0, 1)})

if __name__ == "__main__":
    with MultiSyncCollector([Dotted] * 2, frames_per_batch=8, post_collect_hook=hook) as collector:
        batch = next(collector)
        assert batch["x", "y"].unique().tolist() == [1] and batch["x.y"].unique().tolist() == [2]
    with MultiSyncCollector([Dotted], frames_per_batch=8, track_traj_ids=False) as collector:
        assert [*next(collector)["collector"].keys()] == ["policy_version"]
    with MultiSyncCollector([ambiguous], frames_per_batch=8, exclude_keys=["a.c"]) as collector:
        assert {"a", "a.b"} < {*next(collector).keys()}
    with pytest.raises(ConfigError, match="exclude_keys cannot contain 'a.b', which names both .*. Exclude"):
        MultiSyncCollector([ambiguous], frames_per_batch=8, exclude_keys=["a.b"])
"""


def test_names_with_dots_are_names(script):
    run = script(DOTS)
    assert run.returncode == 0, run.stderr


@pytest.mark.nightly
def test_recorded_names_with_dots_are_names(tmp_path):
    (tmp_path / "dotted.py").write_text(DOTS)
    options = ["env.id=dotted:Dotted-v0", "policy=random", "collector.total_frames=200", "collector=single"]
    recording = ["trainer=record", "trainer.format=lerobot", "hydra.run.dir=run"]
    command = [Path(sys.executable).parent / "collectx", "run", *options, *recording]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (info,) = tmp_path.glob("**/meta/info.json")
    features = json.loads(info.read_text())["features"]
    assert {name for name in features if "observation" in name} == {"observation.state", "observation.left"}


ONE_THREAD = """
import asyncio, sqlite3, time
import gymnasium
import numpy as np
from collectx import Collector, ReplayBuffer

class Stored(gymnasium.Env):
    \"\"\"SQLite refuses a connection of another thread.\"\"\"

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.connection = sqlite3.connect(":memory:")

    def reset(self, *, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, False, True, {}

    def observe(self):
        self.connection.execute("select 1")
        return np.zeros(1, np.float32)

    def close(self):
        self.connection.close()
        print("closed\\n", end="", flush=True)  # in one piece, as two threads may print at a time

async def collect():
    collector = Collector(Stored, frames_per_batch=4, total_frames=40)
    async for batch in collector:
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(4)))
    collector.shutdown()
    async for batch in Collector(Stored, frames_per_batch=4, total_frames=8):
        pass

asyncio.run(collect())
for total_frames in (40, -1):
    collector = Collector(Stored, frames_per_batch=4, total_frames=total_frames, replay_buffer=ReplayBuffer(100))
    collector.start()
    while collector.replay_buffer.write_count < 40:
        time.sleep(0.01)
    collector.shutdown()
    collector.shutdown()
    assert not collector.is_running()
"""


LEFT_OPEN = (
    ONE_THREAD.partition("async def collect")[0]
    + """
def collects(collector):
    collector.start()
    while collector.replay_buffer.write_count < 40:
        time.sleep(0.01)

async def iterates(collector):
    async for batch in collector:
        return

endless = Collector(Stored, frames_per_batch=4, total_frames=-1, replay_buffer=ReplayBuffer(100))
complete = Collector(Stored, frames_per_batch=4, total_frames=40, replay_buffer=ReplayBuffer(100))
iterated = Collector(Stored, frames_per_batch=4, total_frames=40)
collects(endless)
collects(complete)
asyncio.run(iterates(iterated))
raise ValueError("the end")
"""
)


def test_a_script_that_does_not_shut_its_collectors_down_ends(script):
    run = script(LEFT_OPEN)
    assert (run.returncode, run.stdout) == (1, "closed\n" * 6)
    assert run.stderr.endswith("ValueError: the end\n")


def test_the_thread_that_steps_an_env_closes_it(script):
    run = script(ONE_THREAD)
    assert (run.returncode, run.stderr) == (0, "")
    # Each collector makes one to read its spaces.
    assert run.stdout == "closed\n" * 8
