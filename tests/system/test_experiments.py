"""Runs over worker processes: every packaged experiment, whole trajectories, and replay buffers that workers write to
themselves."""

from pathlib import Path

import pytest
from composed_overrides import composed
from tensordict import TensorDict

import collectx.conf
from collectx import ReplayBuffer
from collectx import trainer as trainers
from collectx.run import RunFolder, Status, execute

EXPERIMENTS = sorted(path.stem for path in (Path(collectx.conf.__file__).parent / "experiment").glob("*.yaml"))
FEW = "env=counting env.num_envs=2 policy=random trainer=meter collector.frames_per_batch=20 collector.total_frames=400"
# By default its batches are digested, where they come to the trainer.
CUSTOM = "trainer=custom trainer.target=a:B"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a configuration; its trainer, which `build` makes, and its result."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log where it runs

    def start(line, build=trainers.build):
        made = []
        monkeypatch.setattr(trainers, "build", lambda *arguments: made.append(build(*arguments)) or made[0])
        result = execute(composed(line), tmp_path, [])
        assert result.status is Status.COMPLETED, result.failures
        return made[0], result

    return start


# All of them are run by the matrix.
@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name != "cartpole_dqn")) for name in EXPERIMENTS],
)
def test_every_experiment_runs_two_batches(experiment, run, monkeypatch):
    if "dqn" in experiment:
        # Its workers write to the buffer themselves. The trainer would write what was delivered, as SAC does.
        monkeypatch.setattr(ReplayBuffer, "extend", None)
    learner, result = run(f"experiment={experiment} debug=tiny")
    assert (result.batches, result.frames) == (2, 128)
    assert not hasattr(learner, "shared_replay") or learner.shared_replay.buffer.write_count >= 100


@pytest.mark.nightly
def test_ppo_learns_from_whole_trajectories(run):
    shape = "collector.trajs_per_batch=20 collector.traj_format=cat launcher=inline"
    until = "collector.total_frames=81920 trainer.target_return=150"
    assert run(f"experiment=cartpole_ppo {shape} {until}")[1].mean_return >= 150


class Sharing:
    """A trainer with a replay buffer; it gets a record where the workers write there themselves."""

    def __init__(self, *arguments):
        self.shared_replay, self.delivered = ReplayBuffer(1000), []

    def train(self, collection):
        for batch in collection:
            self.delivered.append(isinstance(batch, TensorDict))
            if self.delivered[-1]:
                self.shared_replay.extend(batch)


@pytest.mark.parametrize(
    ("line", "are_delivered"),
    [
        ("collector=multi_async", False),
        ("collector=multi_async trainer.digest=true", True),
        ("collector=multi_async launcher=inline", True),
        ("collector=multi_sync", True),
        (f"collector=multi_async {CUSTOM}", False),
        (f"collector=multi_sync {CUSTOM}", True),
    ],
)
def test_async_workers_of_this_machine_write_to_the_buffer_of_the_trainer(run, tmp_path, line, are_delivered):
    sharing, result = run(f"{FEW} {line}", Sharing)
    assert sharing.delivered == [are_delivered] * 20
    assert (result.digest is not None) == (are_delivered and ("custom" in line or "digest=true" in line))
    assert sharing.shared_replay.write_count == 400
    lines = list(RunFolder(tmp_path).read_metrics())
    assert [line.frames for line in lines] == [*range(20, 401, 20)]
    assert sum(entry.totals.frames for entry in lines[0].workers) == 20
