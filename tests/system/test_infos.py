"""Entries of `info` as a user types them: kept in the batch, and their means."""

from __future__ import annotations

import csv
import json

import pytest
from commands import collectx, evaluations, forked, result

pytestmark = pytest.mark.ci

ENV = '''
import os, gymnasium, numpy as np

class Arm(gymnasium.Env):
    """Succeeds in each second episode of seven steps; writes a line for each step."""
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.t, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        with open(f"steps-{os.getpid()}", "a") as file:
            file.write(f"{id(self)}\\n")
        end = self.t == 7
        info = {"height": [0.5, 1.5], "force": {"x": float(self.t)}, "holds": end and self.episodes % 2 == 0}
        return np.zeros(2, np.float32), 1.0, end, False, info | ({"is_success": self.episodes % 2 == 0} if end else {})

def arms(num_envs, mode):
    return gymnasium.vector.SyncVectorEnv([Arm] * num_envs, autoreset_mode=mode)

gymnasium.register("Arm-v0", Arm)
'''
ARM = ("debug=tiny", "trainer=meter", "env=gym", "env.id=arm:Arm-v0", "hydra.run.dir=run")


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "arm.py").write_text(ENV)
    return tmp_path


def test_only_an_env_of_the_trainer_is_stepped_to_learn_infos(arm):
    done = collectx("run", *ARM, "collector=multi_sync", "env.info_keys=[height,is_success]", cwd=arm)
    declared = "env.info_keys=[{height: [float64, 2]}, {is_success: bool}]"
    assert f"To avoid this, declare the shapes: '{declared}'" in done.stdout + done.stderr
    counts = sorted(len(path.read_text().split()) for path in arm.glob("steps-*"))
    assert counts == [7, 64, 64]  # 128 frames of two workers, and one episode
    done = collectx("run", *ARM, "collector=multi_sync", declared, "run.overwrite=true", cwd=arm)
    assert "declare" not in done.stdout + done.stderr
    counts = sorted(len(path.read_text().split()) for path in arm.glob("steps-*"))
    assert counts == [7, 64, 64, 64, 64]


# `holds` is in every info, as in the success of Gymnasium-Robotics, Meta-World and ManiSkill.
METRICS = "env.metrics=[is_success,holds,force.x,step_mean/force.x,height,nothing]"
WAYS = {
    "inline": ["collector=single"],
    "one env": ["collector=single", "env.num_envs=1"],
    "shared memory": ["collector=multi_sync"],
    "inference server": ["collector=multi_sync", "inference=server", "policy=mlp"],
    "gloo": ["collector=distributed_sync"],
    "async envs": ["collector=single", "env=gym_vector", "env.vectorization_mode=async"],
    "next step": ["collector=single", "env=gym_vector", "env.autoreset_mode=next_step"],
    "same step": ["collector=single", "env=gym_vector", "env.autoreset_mode=same_step"],
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
def test_the_means_of_infos_are_scalars_of_the_run(arm, way):
    run = collectx if way == "async envs" else forked  # its processes import the main module
    done = run("run", *ARM, "collector.total_frames=448", *WAYS[way], METRICS, "logger.csv={}", cwd=arm)
    assert (
        "episodes returned it in its info. Check the spelling. For the mean over all steps, use step_mean/nothing."
        in done.stdout + done.stderr
    )
    lines = [json.loads(line) for line in (arm / "run/metrics.jsonl").read_text().splitlines()]
    scalars = lines[-1]["scalars"]
    assert scalars["height"] == 1.0
    assert scalars["force.x"] == 7
    assert scalars["step_mean/force.x"] == pytest.approx(4, abs=0.3)
    assert scalars["holds"] == scalars["is_success"]
    assert scalars["is_success"] == pytest.approx(0.5, abs=0.06)
    assert "is_success 0." in done.stdout + done.stderr
    assert result(arm / "run")["is_success"] == pytest.approx(scalars["is_success"], rel=1e-6)


def test_eval_takes_the_means_of_the_episodes_that_it_counts(arm):
    forked("run", *ARM, "env.num_envs=2", "env.metrics=[is_success,holds,step_mean/holds,height]", cwd=arm)
    done = forked("eval", "run", "episodes=3", cwd=arm)
    # The first episodes of both envs fail, the second one of the first succeeds.
    assert "is_success 0.333333" in done.stdout.splitlines()
    metrics = evaluations(arm / "run")[-1]["metrics"]
    success = pytest.approx(1 / 3)
    assert metrics == {"is_success": success, "holds": success, "step_mean/holds": pytest.approx(1 / 21), "height": 1.0}
    # An episode that collectx cuts counts with its last frame.
    forked("eval", "run", "episodes=3", "collector.max_frames_per_traj=5", cwd=arm)
    assert evaluations(arm / "run")[-1]["metrics"]["holds"] == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_eval_counts_the_same_episodes_where_one_call_makes_the_envs(arm, mode):
    env = ["env=gym_vector", "env.entry_point=arm:arms", "env.num_envs=2", f"env.kwargs.mode={mode}"]
    forked("run", *ARM, *env, "env.id=null", "env.metrics=[is_success,holds,force.x]", cwd=arm)
    forked("eval", "run", "episodes=3", cwd=arm)
    metrics = evaluations(arm / "run")[-1]["metrics"]
    assert metrics == {"is_success": pytest.approx(1 / 3), "holds": pytest.approx(1 / 3), "force.x": 7.0}


def test_evaluations_during_the_run_have_means(arm):
    words = ["eval.every_batches=1", "eval.episodes=3", "env.num_envs=2", "env.metrics=[is_success]", "logger=csv"]
    done = forked("run", *ARM, *words, cwd=arm)
    events = [json.loads(line) for line in (arm / "run/events.jsonl").read_text().splitlines()]
    found = [each["metrics"]["is_success"] for each in events if each["event"] == "evaluated"]
    assert found[0] == pytest.approx(1 / 3)
    assert ", is_success 0.3333" in done.stdout + done.stderr
    with open(arm / "run/progress.csv") as file:
        logged = [row["eval/is_success"] for row in csv.DictReader(file) if row["eval/is_success"]]
    assert float(logged[0]) == pytest.approx(1 / 3)


def test_a_sweep_is_ranked_by_a_mean(arm):
    words = ["-m", "env.num_envs=1,2", "env.metrics=[is_success]", "sweep.objective=is_success", "hydra.sweep.dir=all"]
    forked("run", *[word for word in ARM if "run.dir" not in word], *words, cwd=arm)
    done = forked("report", "all", "objective=is_success", cwd=arm)
    assert "report" in done.stdout
    done = forked("run", *ARM, "sweep.objective=is_success", cwd=arm, status=2)
    assert "sweep.objective=is_success is unknown. Valid values: mean_return," in done.stdout + done.stderr
