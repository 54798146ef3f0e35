"""Every policy and trainer keeps to the legal actions, as typed. The env raises an error at an illegal action."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import collectx, environment, forked, result

TESTS = Path(__file__).parents[1]
MASKED = ["env=gym", "env.entry_point=worlds.masked:MaskedEnv"]
VECTOR = ["env=gym_vector", "env.id=worlds.masked:Masked-v0", "env.vectorization_mode=sync"]
INFO = ["env.kwargs={where: info}"]
TORCHRL = ["env=torchrl", "env.target=user_code.torchrlenvs:Players"]
CHOICES = "env.kwargs={nvec: [3, 2, 4]}"
IMAGE = "env.kwargs={image: true}"
SMALL = ["policy.channels=[4]", "policy.kernel_sizes=[8]", "policy.strides=[4]", "policy.hidden_size=8"]
RANDOM, DQN = ["policy=random", "trainer=meter"], ["trainer=dqn", "trainer.warmup_frames=64"]
SYNC, ASYNC = "collector=multi_sync", "collector=multi_async"
COMMANDS = {
    "random": [*MASKED, *RANDOM, CHOICES],
    "random-next_step": [*VECTOR, *RANDOM, "env.autoreset_mode=next_step", *INFO],
    "random-gloo": [*VECTOR, *RANDOM, *INFO, "collector=distributed_sync"],
    "random-players": [*TORCHRL, *RANDOM],
    "random-players-one_hot": [*TORCHRL, *RANDOM, "env.kwargs={one_hot: true}"],
    "random-one_hot": ["env=torchrl", "env.target=user_code.torchrlenvs:OneHotMasked", *RANDOM],
    "ppo": [*MASKED, "policy=mlp", "trainer=ppo", SYNC],
    "ppo-choices-server": [*MASKED, "policy=mlp", "trainer=ppo", CHOICES, SYNC, "inference=server"],
    "ppo-next_step": [*VECTOR, "policy=mlp", "trainer=ppo", "env.autoreset_mode=next_step"],
    "ppo-image": [*MASKED, "policy=cnn", "trainer=ppo", IMAGE, *SMALL],
    "impala-info": [*MASKED, "policy=mlp", "trainer=impala", *INFO, ASYNC],
    "dqn-info": [*MASKED, "policy=q_mlp", *DQN, *INFO, ASYNC],
    "dqn-image": [*MASKED, "policy=q_cnn", *DQN, IMAGE, *SMALL, "collector.init_random_frames=64"],
}


@pytest.fixture(autouse=True)
def imports(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def run(words, cwd, status=0):
    options = ["debug=tiny", "env.num_envs=2", "collector.total_frames=256", "hydra.run.dir=run"]
    return collectx("run", *words, *options, cwd=cwd, status=status)


@pytest.mark.sample(2)
@pytest.mark.ci
@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_takes_no_illegal_action(tmp_path, name):
    run(COMMANDS[name], tmp_path)
    assert result(tmp_path / "run")["frames"] >= 256


@pytest.mark.difference("random actions of a Gymnasium env with an `action_mask`")
@pytest.mark.ci
def test_a_trained_policy_takes_no_illegal_action(tmp_path):
    run(COMMANDS["ppo"], tmp_path)
    forked("eval", "run", "episodes=4", cwd=tmp_path)
    forked("resume", "run", "collector.total_frames=384", cwd=tmp_path)
    forked("export", "run", "format=torchscript", cwd=tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


SCRIPT = """
from functools import partial

import torch
from collectx import Collector, MultiSyncCollector, RandomPolicy, load_policy
from gymnasium.vector import SyncVectorEnv
from tensordict.nn import TensorDictModule
from worlds.masked import MaskedEnv

if __name__ == "__main__":
    env, exported = MaskedEnv(), torch.jit.load("run/export/policy.ts")
    policy, (seen, _), is_over = load_policy("run", trust=True), env.reset(seed=0), False
    while not is_over:
        action = policy(seen)
        row = [torch.as_tensor(seen[name])[None] for name in ("action_mask", "observation")]
        assert exported(*row)[0].item() == action
        seen, _, is_over, _, _ = env.step(action)
    with Collector(MaskedEnv, RandomPolicy(), frames_per_batch=20, total_frames=40) as collector:
        for batch in collector:
            assert batch["action_mask"].gather(-1, batch["action"][:, None] - 2).all()
    frames, make = {"frames_per_batch": 20, "total_frames": 40}, partial(MaskedEnv, where="info")
    first = TensorDictModule(lambda mask: mask.argmax(-1) + 2, [("info", "action_mask")], ["action"])
    for collector in (
        Collector(make(), RandomPolicy(), **frames),
        MultiSyncCollector([make] * 2, RandomPolicy(), **frames),
        Collector(SyncVectorEnv([make] * 2), RandomPolicy(), **frames),
        Collector(make, first, init_random_frames=20, **frames),
    ):
        with collector:
            for batch in collector:
                assert batch["info", "action_mask"].gather(-1, batch["action"][..., None] - 2).all()
"""


@pytest.mark.ci
def test_an_env_that_allows_no_action_and_one_with_another_mask_say_so(tmp_path):
    done = run([*MASKED, "policy=mlp", "trainer=ppo", "env.kwargs={closed_at: 4}"], tmp_path, status=1)
    what = "in step 4 of the batch, the mask 'action_mask' of env 0 (of 2) allows no action. Return a mask with a"
    assert what in done.stderr
    wrong = [*MASKED, *RANDOM, *INFO, "env.info_keys=[{action_mask: [int8, 4]}]"]
    done = forked("run", *wrong, cwd=tmp_path, status=2)
    assert "the action mask 'info.action_mask' has shape [4], but" in done.stderr


@pytest.mark.ci
def test_what_is_not_supported_says_so(tmp_path):
    done = run([*TORCHRL, "policy=mlp", "trainer=ppo"], tmp_path, status=2)
    assert "not the Dict of a group of agents (players.action)" in done.stderr
    joint = [*MASKED, *RANDOM, "env.kwargs={nvec: [3, 3], joint: true, where: info}"]
    done = forked("run", *joint, cwd=tmp_path, status=2)
    assert "the action mask 'info.action_mask' has shape [3, 3], but" in done.stderr
    assert "To mask all combinations, use a single Discrete(9) as the action space" in done.stderr


@pytest.mark.ci
def test_a_mask_in_infos_holds_for_all_commands_and_can_be_left_out(tmp_path):
    run([*MASKED, "policy=mlp", "trainer=ppo", *INFO, "eval.every_batches=1"], tmp_path)
    events = (tmp_path / "run/events.jsonl").read_text()
    assert '"evaluated"' in events
    assert "evaluation_failed" not in events
    forked("eval", "run", "episodes=4", cwd=tmp_path)
    forked("plan", *MASKED, *RANDOM, *INFO, cwd=tmp_path)
    (tmp_path / "run").rename(tmp_path / "first")
    done = run([*MASKED, *RANDOM, *INFO, "env.exclude_keys=[action_mask]"], tmp_path, status=1)
    assert "IllegalAction" in done.stderr
