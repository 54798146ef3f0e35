"""What worker processes see of the user's script."""

import subprocess
import sys

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


@pytest.mark.parametrize("start_method", ["fork", "spawn", None])
def test_a_script_needs_no_guard(start_method, script):
    chosen = f"import multiprocessing\nmultiprocessing.set_start_method({start_method!r})\n"
    run = script(chosen * (start_method is not None) + UNGUARDED)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "torch.Size([2, 5])\ntoo far\n"
    # The error of the worker is raised, and not printed by the worker too.
    assert "Traceback" not in run.stderr


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


def test_a_warning_of_mujoco_is_shown_once_for_all_processes(script, tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo's own handler writes a log to it
    run = script(WARNS)
    assert run.stdout == "torch.Size([2, 5])\n", run.stderr
    assert run.stderr.count("in QVEL") == run.stderr.count("WARNING of MuJoCo, shown once: ") == 1, run.stderr
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
        'if __name__ == "__main__":\n    main()\n',
        'try:\n    if __name__ == "__main__":\n        main()\nfinally:\n    pass\n',
        '__name__ == "__main__" and main()\n',
    ],
    ids=["if", "within try", "and"],
)
def test_what_a_guarded_script_registers_is_known_in_the_workers(guard, script):
    run = script(GUARDED + guard)
    assert (run.returncode, run.stdout) == (0, "torch.Size([1, 10])\n"), run.stderr


def test_the_error_of_a_collector_outside_of_the_guard_says_so(script):
    run = script(GUARDED + 'if __name__ == "__main__":\n    pass\nmain()\n')
    assert run.returncode == 1
    assert 'or a script that makes a collector outside of its `if __name__ == "__main__":`' in run.stderr


@pytest.fixture
def script(tmp_path):
    """Runs a script, and returns what has become of it."""

    def run(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)

    return run
