"""The arithmetic of `collectx plan`, compared with what is allocated and submitted. Real runs are in tests/system."""

import json

import pytest
import torch
from composed_overrides import composed

from collectx import collector, env, policy, trainer
from collectx import plan as planning
from collectx.cli import plan as command
from collectx.cli import run
from collectx.jobs.status import NamedRun
from collectx.plan import lines, plan
from collectx.transport.slab import Slab

SMALL = "env=counting env.num_envs=2 collector.frames_per_batch=64 collector.total_frames=200"
NESTED = "collector=distributed collector.num_workers_per_collector=2"


def planned(line, tmp_path):
    return plan([NamedRun("run", tmp_path, composed(f"{SMALL} {line}"))])["runs"][0]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "line", ["collector=multi_sync", "collector=multi_async", "collector=multi_sync collector.overlap=1"]
)
def test_shared_memory_is_what_a_slab_maps(line, tmp_path):
    memory = planned(f"{line} trainer=meter", tmp_path)["memory"]
    cfg = composed(f"{SMALL} {line} trainer=meter")
    spec = env.read_spec(cfg.env)
    batch = collector.batch_of(cfg, policy.build(cfg.policy, spec, cfg.seed), spec)
    slab = Slab(batch, shared=False)
    assert memory["mapped_shared_memory_bytes"] == slab.region(0).untyped_storage().nbytes()
    slots = {slab.region_of(worker, slot) for worker in range(2) for slot in range(batch.num_slots)}
    region_nbytes = slab.region(1).data_ptr() - slab.region(0).data_ptr()
    assert memory["slots_bytes"] == len(slots) * region_nbytes
    assert memory["leased_batches_bytes"] == batch.num_spare * region_nbytes > 0
    assert memory["weights_of_the_policy_bytes"] == batch.weights_nbytes > 0
    assert memory["weights_of_trainer_and_workers_bytes"] == 3 * batch.weights_nbytes


@pytest.mark.sample(1)
@pytest.mark.parametrize("alpha", ["0.6", "null"])
def test_the_replay_buffer(alpha, tmp_path):
    line = f"policy=q_mlp trainer=dqn trainer.buffer_frames=500 trainer.priority_alpha={alpha}"
    nbytes = planned(line, tmp_path)["memory"]["replay_buffer_bytes"]
    cfg = composed(f"{SMALL} {line}")
    spec = env.read_spec(cfg.env)
    learner = trainer.build(cfg.trainer, policy.build(cfg.policy, spec, 0), spec, 0, torch.device("cpu"))
    # What its batches are laid out for: an observation of 3 floats before and after, action, return, discount.
    assert 500 * (2 * 12 + 8 + 4 + 4) < nbytes < learner.replay_buffers["replay"].nbytes + 500 * 80
    assert "replay_buffer_bytes" not in json.dumps(planned("trainer=meter", tmp_path)["traffic"])


def test_how_long_the_envs_take(tmp_path):
    """Of an async run, two workers deliver batches at the same time."""
    for schedule, steps, workers in (("multi_sync", 16, 1), ("multi_async", 32, 2)):
        time = planned(f"env.step_s=0.02 collector={schedule} trainer=meter", tmp_path)["time"]
        assert 0.019 < time["step_of_a_worker_s"] < 1.0
        assert time["part_of_a_worker_s"] == pytest.approx(steps * time["step_of_a_worker_s"])
        assert time["all_batches_s"] == pytest.approx(4 * time["part_of_a_worker_s"] / workers)


def test_batches_traffic_and_files(tmp_path):
    one = planned("collector=distributed_sync trainer=meter", tmp_path)
    traffic = one["traffic"]
    assert (traffic["batches"], traffic["frames"], traffic["backend"]) == (4, 256, "gloo")
    assert traffic["rows_and_steps_of_a_part"] == "2 x 16"
    assert (
        traffic["network_to_the_trainer_per_batch_bytes"]
        == traffic["batch_bytes"]
        > 64 * one["memory"]["frame_bytes"] / 2
    )
    assert one["memory"]["batch_of_the_trainer_bytes"] == traffic["batch_bytes"]
    weights = one["memory"]["weights_of_the_policy_bytes"]
    assert traffic["network_to_the_workers_per_version_bytes"] == 2 * weights
    assert one["files"]["metrics.jsonl"] == "4 lines"
    assert "loggers" not in one["files"]
    assert not any(tmp_path.iterdir())
    endless = planned("collector.total_frames=-1 trainer=meter logger=[csv,tensorboard]", tmp_path)
    assert endless["files"]["loggers"] == "tensorboard, csv"
    assert endless["traffic"]["frames"] is None
    assert endless["traffic"]["network_to_the_trainer_per_batch_bytes"] == 0


@pytest.mark.sample(4)
@pytest.mark.parametrize(("line", "expected"), [
    ("collector=single", {"trainer": 1, "total": 1}),
    ("launcher=inline", {"trainer": 1, "total": 1}),
    ("", {"trainer": 1, "workers": 2, "fork_server_and_tracker": 2, "total": 5}),
    ("inference=server", {"workers": 2, "inference_server": 1, "total": 6}),
    (NESTED, {"workers": 2, "processes_in_workers": 4, "total": 9}),
    ("launcher=slurm collector.num_workers=4", {"workers": 4, "fork_server_and_tracker": 0, "total": 5}),
])  # fmt: skip
def test_the_number_of_processes(line, expected, tmp_path):
    processes = planned(f"{line} trainer=meter", tmp_path)["processes"]
    assert {name: processes[name] for name in expected} == expected


def test_the_cores_of_each_place(tmp_path):
    local = planned("trainer=meter launcher.num_threads=2", tmp_path)["cores"]
    assert local["torch_threads_of_each_worker"] == 2
    assert local["threads_together"] == local["torch_threads_of_the_trainer"] + 4
    inline = planned("trainer=meter launcher=inline", tmp_path)["cores"]
    assert "torch_threads_of_each_worker" not in inline
    assert inline["threads_together"] == inline["torch_threads_of_the_trainer"]
    ray = planned("trainer=meter collector=ray launcher=ray", tmp_path)["cores"]
    assert ray["cores_of_each_worker"] == "launcher.remote_configs"


def test_the_processes_of_an_async_vector_env(tmp_path):
    line = "env=gym_vector env.id=CartPole-v1 env.vectorization_mode=async env.num_envs=2 trainer=meter"
    (one,) = plan([NamedRun("run", tmp_path, composed(line))])["runs"]
    assert one["processes"]["env_processes"] == 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [
    ["launcher=slurm", "launcher.time=30", "launcher.cpus_per_task=2"],
    ["launcher=slurm", "-m", "seed=0,4", "hydra.sweep.dir=sweep"],
    ["launcher=submitit_delayed", "launcher.trainer.gpus=1"],
])  # fmt: skip
def test_what_slurm_is_asked_for_is_what_a_run_asks(words, queue, capsys):
    words = [*words, "hydra.run.dir=run", "policy=mlp"]
    assert command.main([*words, "--json"]) == 0
    scripts = json.loads(capsys.readouterr().out)["slurm"]
    assert queue.scripts == []
    assert run.main(words) == 0
    asked = [[line for line in text.splitlines() if line.startswith("#SBATCH")] for text in queue.scripts]
    assert scripts == asked


def test_workers_that_are_jobs_are_one_array(queue, capsys):
    assert command.main(["launcher=submitit", "collector.num_workers=4", "launcher.mem=4G"]) == 0
    out = capsys.readouterr().out
    assert "  #SBATCH --array=0-3\n" in out
    assert "  #SBATCH --mem=4G\n" in out


def test_a_sweep_has_a_line_for_each_point_and_totals(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*SMALL.split(), "trainer=meter", "-m", "collector.num_workers=1,2"]
    assert command.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines[:2]] == [
        "collector.num_workers=1: 4 processes",
        "collector.num_workers=2: 5 processes",
    ]
    assert "  frames               512" in lines
    assert "  at a time processes  5" in lines
    assert not any(tmp_path.iterdir())


def test_wrong_configurations_and_machines_without_slurm(capsys, within):
    assert command.main(["collector.num_worker=3"]) == 2
    assert "Did you mean collector.num_workers?" in capsys.readouterr().err
    assert command.main(["env.id=Nothing-v0"]) == 2
    assert "Nothing-v0" in capsys.readouterr().err
    from collectx.place.slurm import commands

    within(commands, "shutil", which=lambda name: None)
    assert command.main(["launcher=slurm"]) == 0
    said = capsys.readouterr()
    assert "not on this machine: launcher=slurm" in said.err
    assert "#SBATCH --ntasks=3" in said.out
    assert command.main(["-m", "hydra/sweeper=optuna", "trainer.gamma=interval(0.9,1)"]) == 2
    assert "Plan one of them, without -m" in capsys.readouterr().err


def test_numbers_have_units_and_what_is_zero_is_left_out():
    sizes = {"a_bytes": 999, "b_bytes": 1000, "c_bytes": 1_500_000, "d_bytes": 2 * 10**9, "e_bytes": 0}
    times = {"f_s": 0.0125, "g_s": 1.0, "h_s": 5400.0, "i_s": None, "j": 12345, "k_k": "text"}
    planned = {"runs": [{"name": "run", "section": sizes | times}], "slurm": [["#SBATCH --time=1"]], "totals": {}}
    expected = ["a  999 bytes", "b  1 kB", "c  1.5 MB", "d  2 GB", "f  12.5 ms", "g  1 s", "h  1.5 h", "i  unknown"]
    expected = [f"  {line[0]}  {line[1:]}" for line in expected] + ["  j    12,345", "  k k  text"]
    assert [*lines(planned)] == ["section", *expected, "slurm", "  #SBATCH --time=1"]


class Steps:
    """Envs whose steps take as long as `times` say."""

    def __init__(self, now, *times):
        self.spec = env.read_spec(composed("env=counting env.num_envs=2").env)
        self.now, self.times, self.num_steps = now, times, 0

    def reset(self, *arguments):
        pass

    reset_some = reset

    def step(self, action, out):
        self.now[0] += self.times[min(self.num_steps, len(self.times) - 1)]
        self.num_steps += 1
        return True


@pytest.mark.parametrize(
    ("times", "step", "num_steps"), [((5.0, 0.125), 0.0625, 3), ((5.0, 1.0), 0.5, 2), ((5.0, 0.0), 0.0, 201)]
)
def test_envs_are_stepped_for_a_moment_and_their_first_step_does_not_count(monkeypatch, times, step, num_steps):
    now = [0.0]
    monkeypatch.setattr(planning, "perf_counter", lambda: now[0])
    group = Steps(now, *times)
    monkeypatch.setattr(planning, "first_observations", lambda group, seeds: {"observation": torch.zeros(2, 3)})
    assert planning.step_s(group) == pytest.approx(step)
    assert group.num_steps == num_steps
