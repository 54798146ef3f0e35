"""The arithmetic of `collectx plan`, compared with what is allocated and submitted. Real runs are in tests/system."""

import json
from pathlib import Path

import pytest
import torch
from composed_overrides import composed

from collectx import collector, env, policy, trainer
from collectx import plan as planning
from collectx.cli import plan as command
from collectx.cli import run
from collectx.jobs.status import NamedRun
from collectx.plan import lines, plan
from collectx.run import cores
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
    batch = collector.slot_spec_of(cfg, policy.build(cfg.policy, spec, cfg.seed), spec)
    slab = Slab(batch, shared=False)
    assert memory["shared_memory_bytes"] == slab.region(0).untyped_storage().nbytes()
    slots = {slab.region_of(worker, slot) for worker in range(2) for slot in range(batch.num_slots)}
    region_nbytes = slab.region(1).data_ptr() - slab.region(0).data_ptr()
    assert memory["slots_bytes"] == len(slots) * region_nbytes
    assert memory["batches_kept_by_the_trainer_bytes"] == batch.num_spare * region_nbytes > 0
    assert memory["weights_of_the_policy_bytes"] == batch.weights_nbytes > 0
    assert memory["weights_of_trainer_and_workers_bytes"] == 3 * batch.weights_nbytes


WHOLE = [
    "trainer=meter launcher.num_threads=2",
    "collector=multi_async trainer=impala run.max_batches=3 collector.num_workers=3",
    "collector.overlap=1 trainer=meter logger=[csv,tensorboard]",
    "trainer=meter collector.zero_copy=true collector=distributed_sync",
    "policy=q_mlp trainer=dqn trainer.buffer_frames=500 launcher=inline collector=multi_async",
    "collector=single checkpoint.every_min=0.5 checkpoint.every_batches=3 policy=random trainer=meter",
    "trainer=meter checkpoint.every_min=null checkpoint.keep=1 inference=server",
    f"{NESTED} trainer=meter collector.total_frames=-1 collector.num_workers=3",
    "launcher=slurm launcher.cpus_per_task=2 trainer=meter launcher.time=30",
    "launcher=submitit_delayed collector=multi_async trainer=impala launcher.trainer.gpus=1",
    "collector=ray launcher=ray trainer=meter collector.sync=true",
]


@pytest.fixture
def eight_cores(monkeypatch):
    """Lets plans be for eight cores, where a step of an env takes a quarter of a second, the policy's an eighth, and
    learning a thousandth for each frame."""
    monkeypatch.setattr(cores, "num_cores", lambda: 8)
    monkeypatch.setattr(cores, "trainer_threads", lambda cfg: 5)
    monkeypatch.setattr(planning, "step_s", lambda group: 0.25)
    monkeypatch.setattr(planning, "_acting_s", lambda cfg, module, spec: 0.125)
    rehearsed = planning._rehearsed
    monkeypatch.setattr(planning, "_rehearsed", lambda *words: (rehearsed(*words)[0], rehearsed(*words)[1] and 0.001))


@pytest.mark.usefixtures("eight_cores")
def test_whole_plans(expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = []
    for line in WHOLE:
        whole = plan([NamedRun("run", Path("run"), composed(f"{SMALL} {line}"))])
        files, memory = (whole["runs"][0][name] for name in ("files", "memory"))
        assert files.pop("folder") == str(tmp_path / "run")
        described = (
            "total_bytes",
            "frame_bytes",
            "weights_of_the_policy_bytes",
            "shared_memory_bytes",
        )
        assert memory["total_bytes"] == sum(each for name, each in memory.items() if name not in described)
        text += [f"=== {line}", *lines(whole)]
    expected("plans", "\n".join(text))
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("eight_cores")
def test_whole_plans_of_sweeps(expected):
    """The last of the three points never ends."""
    points = ["collector.num_workers=1", "collector.num_workers=4", "collector.total_frames=-1 env.num_envs=4"]
    text = []
    for line, num_parallel in (
        ("", 1),
        ("", 2),
        ("", None),
        ("launcher=slurm launcher.max_parallel=2", 1),
        ("launcher=slurm", 1),
    ):
        runs = [NamedRun(each, Path("sweep/0"), composed(f"{SMALL} trainer=meter {line} {each}")) for each in points]
        text += [f"=== {line or 'local'}, {num_parallel} at a time", *lines(plan(runs, num_parallel))]
        text += ["without the last", *map(str, plan(runs[:2], num_parallel)["totals"].items())]
    expected("plans of sweeps", "\n".join(text))


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
    """Two workers of an async run deliver batches at the same time."""
    for schedule, steps, workers in (("multi_sync", 16, 1), ("multi_async", 32, 2)):
        time = planned(f"env.step_s=0.02 collector={schedule} trainer=meter", tmp_path)["time"]
        assert 0.019 < time["each_step_of_a_worker_s"] < 1.0
        assert time["envs_in_a_batch_s"] == pytest.approx(steps * time["each_step_of_a_worker_s"])
        acting_s = time["envs_in_a_batch_s"] + time["policy_in_a_batch_s"]
        assert time["learning_from_a_batch_s"] is None
        assert time["all_batches_s"] == pytest.approx(4 * acting_s / workers)


@pytest.mark.parametrize("trainer", ["ppo", "impala", "dqn policy=q_mlp", "sac env=halfcheetah policy=squashed_mlp"])
def test_what_dominates_is_named_first(trainer, tmp_path):
    """Learning with a wide network takes longer than env steps that take no time."""
    wide = "policy.hidden_sizes=[512,512]"
    one = planned(f"trainer={trainer} {wide}", tmp_path)
    assert one["time"]["learning_from_a_batch_s"] > one["time"]["envs_in_a_batch_s"]
    assert "each batch: learning " in one["cost"]["time"]


def test_workers_that_share_cores_take_longer_and_need_memory_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("collectx.run.cores.num_cores", lambda: 2)
    line = "env.step_s=0.02 env.num_envs=1 collector=multi_async trainer=meter collector.num_workers="
    few, many = (planned(f"{line}{number}", tmp_path) for number in (2, 8))
    assert many["time"]["all_batches_s"] == pytest.approx(few["time"]["all_batches_s"], rel=0.5)
    python = "python_and_torch_bytes"
    assert many["memory"][python] - few["memory"][python] == 6 * 20 * 10**6


@pytest.mark.parametrize(
    ("line", "each"),
    [
        ("launcher=slurm", 200),
        ("launcher=submitit", 200),
        ("launcher=submitit_delayed", 200),
        ("launcher=ray", 200),
        ("collector=distributed_sync", 20),
        ("launcher=slurm collector.num_workers_per_collector=3 collector.frames_per_batch=96", 200 + 100 + 3 * 20),
    ],
)
def test_a_worker_that_no_fork_server_starts_has_python_and_torch_of_its_own(tmp_path, line, each):
    few, many = (planned(f"{line} trainer=meter collector.num_workers={n}", tmp_path)["memory"] for n in (2, 8))
    python = "python_and_torch_bytes"
    assert many[python] - few[python] == 6 * each * 10**6


@pytest.mark.parametrize("kind", ["single", "multi_sync"])
def test_the_evaluator_is_a_process_with_weights_of_its_own_and_two_that_wait(kind, tmp_path):
    line = f"collector={kind} trainer=ppo eval.every_batches"
    one, without = planned(f"{line}=2", tmp_path), planned(f"{line}=null", tmp_path)
    # With a fork server and its tracker, if no worker needs them.
    assert one["processes"]["total"] - without["processes"]["total"] == (3 if kind == "single" else 1)
    assert one["cores"]["threads_together"] == without["cores"]["threads_together"] + 1
    nbytes = one["memory"]["weights_of_the_policy_bytes"]
    weights, without_weights = (
        each["memory"]["total_bytes"] - each["memory"]["python_and_torch_bytes"] for each in (one, without)
    )
    assert weights - without_weights == 3 * nbytes > 0


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
    assert "  frames             512" in lines
    assert "  processes at once  5" in lines
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
    assert "cannot start on this machine: launcher=slurm" in said.err
    assert "#SBATCH --ntasks=3" in said.out
    assert command.main(["-m", "hydra/sweeper=optuna", "trainer.gamma=interval(0.9,1)"]) == 2
    assert "Plan a single point, without -m" in capsys.readouterr().err


def test_what_a_run_would_refuse_once_it_has_made_an_env(capsys):
    words = ["experiment=cartpole_ppo", "env=torchrl", "env.target=user_code.torchrlenvs:differences", "policy=mlp"]
    assert command.main(words) == 2
    assert "trainer=ppo needs the next observation, but NextObservationDelta deletes it" in capsys.readouterr().err


def test_numbers_have_units_and_what_is_zero_is_left_out():
    sizes = {"a_bytes": 999, "b_bytes": 1000, "c_bytes": 1_500_000, "d_bytes": 2 * 10**9, "e_bytes": 0}
    times = {"f_s": 0.0125, "g_s": 1.0, "h_s": 5400.0, "i_s": None, "m_s": 1741.0, "j": 12345, "k_k": "text"}
    planned = {"runs": [{"name": "run", "section": sizes | times}], "slurm": [["#SBATCH --time=1"]], "totals": {}}
    expected = [
        "a  999 bytes",
        "b  1 kB",
        "c  1.5 MB",
        "d  2 GB",
        "f  12.5 ms",
        "g  1 s",
        "h  1.5 h",
        "i  unknown",
        "m  29 min",
    ]
    expected = [f"  {line[0]}  {line[1:]}" for line in expected] + ["  j    12,345", "  k k  text"]
    assert [*lines(planned)] == ["section", *expected, "slurm", "  #SBATCH --time=1"]


def test_a_terminal_breaks_long_values_between_words_below_each_other():
    values = {"cores": "3 threads share 2 cores of this machine", "to": "/a/folder/longer/than/the/terminal"}
    planned = {"runs": [{"name": "run", "cost": values}], "slurm": [], "totals": {}}
    text = "\n".join(lines(planned, 34)).split("\n")
    broken = ["cost", "  cores  3 threads share 2 cores", "         of this machine"]
    assert text == [*broken, "  to     /a/folder/longer/than/the/terminal"]


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
    ("times", "step", "num_steps"),
    [
        ((5.0, 0.125), 0.0625, 3),
        ((5.0, 1.0), 0.5, 3),
        ((5.0, 0.0), 0.0, 201),
        ((5.0, 3.0, 0.125), 0.0625, 3),
    ],
)
def test_envs_are_stepped_for_a_moment_without_the_first_step_and_a_disturbed_one(monkeypatch, times, step, num_steps):
    now = [0.0]
    monkeypatch.setattr(planning, "perf_counter", lambda: now[0])
    group = Steps(now, *times)
    monkeypatch.setattr(planning, "first_observations", lambda group, seeds: {"observation": torch.zeros(2, 3)})
    assert planning.step_s(group) == pytest.approx(step)
    assert group.num_steps == num_steps
