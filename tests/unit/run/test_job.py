"""`execute` on real envs and collectors in this process. Over worker processes: tests/system."""

import importlib.metadata
import json
import os
import re
import signal
import time
from contextlib import nullcontext
from dataclasses import replace

import configurations
import numpy as np
import pytest
import torch
from composed_overrides import composed
from configurations import custom, faulty, gym
from gymnasium import spaces
from omegaconf import OmegaConf
from torch import nn
from user_code.faulty import FAULTS, Wordless

from collectx import trainer as trainers
from collectx.checkpoints import Checkpoints
from collectx.config.interpolation import as_written
from collectx.config.schema.run import RunOptions
from collectx.errors import ConfigError, SpaceError
from collectx.fork_server import start
from collectx.run import RunFolder, Status, cores, execute, execution
from collectx.run.folder.layout import locked
from collectx.run.folder.result import exit_status


def read(folder):
    files = RunFolder(folder)
    return files, files.read_result(), list(files.read_metrics())


def test_a_completed_run(cfg, tmp_path, train_with, capsys):
    train_with()
    result = execute(cfg, tmp_path / "run", ["run", "seed=3"])
    files, saved, lines = read(tmp_path / "run")
    assert result.status is Status.COMPLETED
    assert (saved["status"], saved["frames"], saved["batches"], saved["failures"]) == ("completed", 100, 5, [])
    assert saved["exit_reason"] == "all frames delivered"
    assert 0 < saved["start_s"] < saved["wall_s"]
    assert saved["frames_per_s"] > 0
    assert len(saved["digest"]) == 37
    assert [line.frames for line in lines] == [line.scalars["frames"] for line in lines] == [20, 40, 60, 80, 100]
    assert saved["num_episodes"] == sum(line.episodes or 0 for line in lines) > 0
    assert torch.load(files.final_checkpoint)["batches"] == 5
    assert OmegaConf.to_container(OmegaConf.load(files.config)) == as_written(cfg)
    meta = json.loads(files.meta.read_text())
    assert (meta["argv"], meta["seeds"], meta["num_cpus"]) == (["run", "seed=3"], {"seed": 3}, cores.num_cores())
    assert meta["numerics"]["torch threads of the trainer"] == torch.get_num_threads()
    assert meta["packages"].items() >= {(name, importlib.metadata.version(name)) for name in ("torch", "hydra-core")}
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == f"run folder: {tmp_path / 'run'}"
    assert "completed" in out
    assert not err


def facts_of(files, said):
    """All that a run leaves, without what differs from one run to the next."""
    ended = files.read_result()
    times = [ended.pop(name) for name in ("wall_s", "start_s", "frames_per_s", "checkpoint_s")]
    assert all(each is None or each >= 0 for each in times)
    ended["digest"] = len(ended["digest"])
    events = [event | {"time": 0, "seconds": 0} for event in files.read_events()]
    lines = []
    for line in (each.to_json() for each in files.read_metrics()):
        assert len(line.pop("digest")) == ended["digest"]
        assert min(line.pop(name) or 0 for name in ("time", "frames_per_s", "waited_s")) >= 0
        # Once a second, they are complete.
        parts = [{name: part[name] for name in ("worker", "policy_version")} for part in line["workers"]]
        lines.append(line | {"workers": parts})
    paths = sorted(str(path.relative_to(files.path)) for path in files.path.rglob("*") if path.is_file())
    texts = [text for text in said.replace(str(files.path), "FOLDER").splitlines() if "raised in" not in text]
    return {"files": paths, "result": ended, "events": events, "lines": lines, "said": texts}


def one_after_another(collection):
    for batch in collection:
        collection.log(first=int(batch["observation"].reshape(-1)[2]), frames=collection.frames)
        collection.publish(nn.Identity())


def fails_later(collection):
    next(iter(collection))
    collection.log(loss=0.5)
    next(iter(collection))
    raise ValueError("no more")


RUNS = {
    "complete": (None, {}),
    "with a limit": (one_after_another, {"run": RunOptions(max_batches=3)}),
    "failing": (fails_later, {}),
    "with a reason": (lambda collection: f"enough after {next(iter(collection)).numel()} frames", {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_all_that_a_run_leaves(cfg, tmp_path, monkeypatch, train_with, capsys, expected, name):
    monkeypatch.chdir(tmp_path)
    train, sections = RUNS[name]
    train_with(train)
    checkpoint = replace(cfg.checkpoint, every_batches=2, keep=9)
    execute(replace(cfg, **sections, checkpoint=checkpoint), tmp_path / "run", ["run", "a=b"])
    expected(f"run-{name.replace(' ', '-')}", facts_of(RunFolder(tmp_path / "run"), capsys.readouterr().err))


@pytest.mark.parametrize("max_batches", [None, 2])
def test_a_trainer_that_calls_next_may_leave_the_end_of_the_batches_to_the_run(cfg, tmp_path, train_with, max_batches):
    def train(collection):
        while True:
            next(collection)

    train_with(train)
    result = execute(replace(cfg, run=replace(cfg.run, max_batches=max_batches)), tmp_path / "run", [])
    files, saved, _ = read(tmp_path / "run")
    assert (result.status, saved["batches"]) == (Status.COMPLETED, max_batches or 5)
    assert files.final_checkpoint.exists()


def test_a_stop_iteration_of_the_trainer_itself_is_its_failure(cfg, tmp_path, train_with):
    train_with(lambda collection: next(iter([])))
    assert execute(cfg, tmp_path, []).status is Status.FAILED


def test_times_are_parts_of_the_time_that_passed(cfg, tmp_path):
    began_s = time.monotonic()
    execute(replace(cfg, checkpoint=replace(cfg.checkpoint, every_min=0.0)), tmp_path, [])
    passed_s = time.monotonic() - began_s
    files, saved, lines = read(tmp_path)
    spent_s = [entry.totals.spent_s for line in lines for entry in line.workers if entry.totals is not None]
    times = [line.waited_s for line in lines], *zip(*spent_s, strict=True)
    assert all(value >= 0 for values in times for value in values)
    assert all(sum(values) <= passed_s for values in times)
    assert 0 < sum(sum(values) for values in times[1:]) <= passed_s
    written = [event["seconds"] for event in files.read_events() if event["event"] == "checkpoint"]
    assert 0 < sum(written) <= saved["checkpoint_s"] + 0.01
    assert saved["checkpoint_s"] <= passed_s
    assert saved["wall_s"] - passed_s <= saved["start_s"] + 0.01 <= saved["wall_s"] + 0.01  # from the process's start


def test_the_screen_tells_the_trainers_share_and_the_return_that_may_end_the_run(cfg, tmp_path, train_with, capsys):
    train_with()
    execute(replace(cfg, trainer=composed("trainer=ppo trainer.target_return=475").trainer), tmp_path, [])
    out = capsys.readouterr().out
    assert re.search(r"\(100%\) .*\n.* \| trainer: learn \d+%", out)


def test_a_custom_policy_is_called_with_observations_of_the_env_alone(cfg, tmp_path, train_with):
    train_with()
    cfg = replace(cfg, env=gym(2), policy=custom("user_code.cartpoles:towards"))
    assert execute(cfg, tmp_path, []).status == Status.COMPLETED


@pytest.mark.parametrize(
    ("env", "action", "options", "told"),
    [
        ("pendulum", 5.0, {}, "If the env needs its bounds, add env.wrappers=[ClipAction]."),
        (
            "pendulum",
            5.0,
            {"init_random_frames": 40},
            "values from 5 to 5, outside of the space Box(-2.0,",
        ),
        ("pendulum", 5.0, {"init_random_frames": 100}, None),
        ("pendulum env.wrappers=[ClipAction]", 5.0, {}, None),
        ("pendulum env.wrappers=[FlattenObservation]", 5.0, {}, "bounds, add ClipAction to env.wrappers."),
        ("counting", 2, {}, "outside of the space Discrete(2). Correct the policy, or clip them there."),
        ("counting", 1, {}, None),
    ],
)
def test_the_first_actions_of_a_users_policy_outside_of_their_space_are_told(
    cfg, tmp_path, train_with, monkeypatch, env, action, options, told
):
    train_with()
    shape = (2, 1) if isinstance(action, float) else (2,)
    monkeypatch.setattr("user_code.cartpoles.towards", lambda observation: torch.full(shape, action))
    env = replace(composed(f"env={env}").env, num_envs=2)
    changed = {"env": env, "policy": custom("user_code.cartpoles:towards")}
    execute(replace(cfg, **changed, collector=replace(cfg.collector, **options)), tmp_path, [])
    texts = [event["message"] for event in RunFolder(tmp_path).read_events() if event["event"] == "actions_outside"]
    assert len(texts) == (told is not None)
    assert (told or "") in "".join(texts)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        ([-1, -1, 0], [1, 1, 0], "the observation in the first batch has values from -"),
        ([2, 2, 2], [3, 3, 3], "the first observation of the env has values from 0 to"),
        ([-9, -9, 0], [9, 9, 9], None),
    ],
)
def test_observations_outside_of_their_space_are_told_once(cfg, tmp_path, monkeypatch, low, high, told):
    """Of a walk that starts in [-1, 1), and observes the number of its steps."""
    space = spaces.Box(np.float32(low), np.float32(high))
    monkeypatch.setattr("user_code.walk.Walk.observation_space", space)
    execute(replace(cfg, env=gym(2, entry_point="user_code.walk:Walk"), policy=configurations.mlp()), tmp_path, [])
    events = RunFolder(tmp_path).read_events()
    texts = [event["message"] for event in events if event["event"] == "observations_outside"]
    assert len(texts) == (told is not None)
    assert "".join(texts).startswith(told or "")


def test_an_error_is_reported_before_the_envs_are_closed(cfg, tmp_path, monkeypatch, capsys, wait_until):
    seen, printed = [], []

    def look():
        seen.append(RunFolder(tmp_path).read_result())
        wait_until(lambda: printed.append("".join(capsys.readouterr())) or not seen[-1] or "BrokenLever" in printed[-1])

    monkeypatch.setattr(execution, "_CLOSE_S", 0.01)
    monkeypatch.setitem(FAULTS, "looks", look)
    execute(replace(cfg, env=faulty("raises", at_close="looks")), tmp_path, [])
    assert (seen[-1]["status"], seen[-1]["failures"][0]["type"]) == ("failed", "user_code.faulty.BrokenLever")


def test_a_run_ends_with_the_batch_by_which_it_has_all_frames(cfg, tmp_path, train_with):
    train_with()
    result = execute(replace(cfg, collector=replace(cfg.collector, total_frames=50)), tmp_path, [])
    assert (result.frames, result.exit_reason) == (60, "all frames delivered")


def test_a_trainer_may_end_the_run_and_say_why(cfg, tmp_path, train_with, capsys):
    train_with(next)
    result = execute(cfg, tmp_path / "run", [])
    assert (result.status, result.frames_per_s) == (Status.COMPLETED, None)
    assert result.exit_reason == "the trainer ended the run after 20 frames"
    assert "collectx: the trainer ended the run after 20 frames\n" in capsys.readouterr().err
    train_with(lambda collection: f"enough after {next(collection).numel()}")
    assert execute(cfg, tmp_path / "run2", []).exit_reason == "enough after 20"
    train_with(lambda collection: None)
    train_with(lambda collection: "nothing to learn")
    assert execute(cfg, tmp_path / "run3", []).status is Status.COMPLETED


def test_a_trainer_that_takes_no_batch_has_failed(cfg, tmp_path, train_with, capsys):
    train_with(lambda collection: None)
    result = execute(cfg, tmp_path, [])
    assert (result.status, exit_status(result.status)) == (Status.FAILED, 1)
    assert "collectx: train() returned without a batch. To get batches, write" in capsys.readouterr().err


def test_a_trainer_that_raises(cfg, tmp_path, train_with, capsys):
    announced = RunFolder(tmp_path).secret, RunFolder(tmp_path).rendezvous

    def raising(collection):
        next(collection)
        for path in announced:
            path.touch()
        raise LookupError("no such luck")

    execute(cfg, tmp_path, [])  # its result and lines are replaced
    train_with(raising)
    result = execute(replace(cfg, run=RunOptions(overwrite=True)), tmp_path, [])
    files, saved, lines = read(tmp_path)
    assert result.status is Status.FAILED
    assert saved["failures"] == [{"type": "LookupError", "message": "no such luck"}]
    assert saved["exit_reason"] == "LookupError: no such luck"
    assert (saved["frames"], len(lines)) == (20, 1)
    assert "Traceback" in files.log("trainer").read_text()
    out, err = capsys.readouterr()
    assert [text for text in (saved["exit_reason"], "in raising", str(files.log("trainer"))) if text not in err] == []
    assert "failed" in out
    assert not any(path.exists() for path in announced)


@pytest.mark.parametrize(
    ("train", "note"),
    [
        (lambda collection: next(collection)["reward"], 'as in TorchRL: batch["next", "reward"]'),
        (lambda collection: collection.policy, "policy is an argument of your trainer's constructor"),
    ],
)
def test_what_a_trainer_looks_for_in_the_wrong_place_is_told(cfg, tmp_path, train_with, capsys, train, note):
    train_with(train)
    assert execute(cfg, tmp_path, []).status is Status.FAILED
    assert note in capsys.readouterr().err


def stop(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError


@pytest.mark.parametrize("failure", [lambda *arguments: 1 / 0, stop], ids=["an error", "a signal"])
def test_a_start_that_fails_before_the_workers_leaves_the_earlier_run(cfg, tmp_path, monkeypatch, capsys, failure):
    execute(cfg, tmp_path, [])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(trainers, "build", failure)
    result = execute(replace(cfg, run=RunOptions(overwrite=True)), tmp_path, [])
    assert result.status is (Status.INTERRUPTED if failure is stop else Status.FAILED)
    assert f"the earlier run in {tmp_path} stays, because the new one did not begin" in capsys.readouterr().err
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    log = RunFolder(tmp_path).log("trainer")
    assert ("ZeroDivisionError" in after.pop(log, b"").decode()) == (failure is not stop)
    before.pop(log, None)
    assert after == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_start_that_is_refused_leaves_the_earlier_run(cfg, tmp_path, monkeypatch, overwrite):
    def refuse(*arguments):
        raise ConfigError("trainer.kind=meter: no such luck")

    execute(cfg, tmp_path, [])
    before = read(tmp_path)[1:]
    saved = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(trainers, "build", refuse)
    changed = RunOptions(overwrite=True) if overwrite else RunOptions(resume="auto")
    longer = replace(cfg.collector, total_frames=200)
    with pytest.raises(ConfigError, match="no such luck"):
        execute(replace(cfg, run=changed, collector=longer), tmp_path, [])
    assert read(tmp_path)[1:] == before
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == saved


@pytest.mark.parametrize(
    ("place", "evaluates", "expected"),
    [("local", False, ["preload", "warm_up"]), ("inline", True, ["warm_up"]), ("inline", False, [])],
)
def test_the_fork_server_starts_before_all_else(cfg, tmp_path, monkeypatch, place, evaluates, expected):
    calls = []

    def refuse(*arguments):
        raise ConfigError("no such luck")

    monkeypatch.setattr(start, "preload", lambda: calls.append("preload"))
    monkeypatch.setattr(start, "warm_up", lambda: calls.append("warm_up"))
    monkeypatch.setattr(execution.snapshot, "write", refuse)
    made = configurations.config("multi_sync" if place == "local" else "single", place)
    made = replace(made, eval=replace(made.eval, every_batches=1 if evaluates else None))
    assert execute(made, tmp_path, []).status is Status.FAILED
    assert calls == expected


def test_an_error_that_cannot_be_written_as_it_is(cfg, tmp_path, train_with):
    def raising(collection):
        try:
            raise Wordless
        except Wordless as error:
            raise ValueError("\ud800" * 10**6) from error

    train_with(raising)
    assert execute(cfg, tmp_path, []).exit_reason.startswith("ValueError: \\ud800")
    files, saved, _ = read(tmp_path)
    assert saved["failures"][0]["message"].count("(990000 characters left out)") == 1
    assert max(path.stat().st_size for path in (files.result, files.log("trainer"))) < 10**7


def test_a_run_ends_after_so_many_batches_as_it_would_have_gone_on(cfg, tmp_path):
    execute(cfg, tmp_path / "whole", [])
    result = execute(replace(cfg, run=RunOptions(max_batches=3)), tmp_path / "part", [])
    assert (result.status, result.frames) == (Status.COMPLETED, 60)
    assert result.exit_reason == "3 batches delivered (run.max_batches=3)"
    whole, part = ([line.digest for line in read(tmp_path / name)[2]] for name in ("whole", "part"))
    assert part == whole[:3]


def test_the_order_of_a_recorded_run_is_followed_also_by_a_resumed_run(cfg, tmp_path):
    def start(name, **knobs):
        size = {"num_workers": 2, "frames_per_batch": 10, "total_frames": 100, "device": "cpu"}
        made = configurations.config("multi_async", "inline", cfg.env, seed=3, **size | knobs)
        return replace(made, trainer=cfg.trainer), tmp_path / name

    def digests(name):
        return [line.digest for line in read(tmp_path / name)[2]]

    made, folder = start("recorded")
    execute(made, folder, [])
    made, folder = start("repeated", order_of=str(tmp_path / "recorded"))
    assert execute(replace(made, run=RunOptions(max_batches=3)), folder, []).status is Status.COMPLETED
    assert digests("repeated") == digests("recorded")[:3]
    assert execute(replace(made, run=RunOptions(resume="auto")), folder, []).status is Status.COMPLETED
    assert digests("repeated") == digests("recorded")


def test_losses_that_a_run_survives_are_among_its_failures(cfg, tmp_path):
    env, collector = configurations.faulty("raises", 50), replace(cfg.collector, on_worker_failure="restart")
    assert execute(replace(cfg, env=env, collector=collector), tmp_path, []).status is Status.COMPLETED
    assert read(tmp_path)[1]["failures"] == [{"type": "BrokenLever", "message": "('left', 3)", "worker": 0}] * 2


@pytest.mark.parametrize(
    ("error", "type_", "message"),
    [
        (OSError(28, "No space left"), "OSError", "{checkpoints}: No space left"),
        (KeyError("step"), "KeyError", "KeyError: 'step'"),
        (
            TypeError("cannot pickle 'module' object"),
            "TypeError",
            "TypeError: cannot pickle 'module' object. Return only tensors and plain data from "
            "{trainer}.state_dict(), whose result checkpoints contain.",
        ),
    ],
)
def test_a_checkpoint_that_could_not_be_written_is_among_the_failures_once(
    cfg, tmp_path, monkeypatch, error, type_, message
):
    def write(*arguments):
        raise error

    monkeypatch.setattr(Checkpoints, "write", write)
    options = replace(cfg.checkpoint, every_batches=1)
    assert execute(replace(cfg, checkpoint=options), tmp_path, []).status is Status.COMPLETED
    files, saved, _ = read(tmp_path)
    message = message.format(checkpoints=files.checkpoints, trainer="MeterTrainer")
    assert saved["failures"] == [{"type": type_, "message": f"no checkpoint could be written: {message}"}]
    failed = [event for event in files.read_events() if event["event"] == "checkpoint_failed"]
    assert [(event["type"], event["message"]) for event in failed] == [(type_, message)] * 6


@pytest.mark.parametrize(
    ("overwrite", "is_held", "message"),
    [(False, False, "run.overwrite=true"), (True, True, r"another run is using .*\(process \d+ on ")],
)
def test_a_run_that_is_there_is_kept(cfg, tmp_path, overwrite, is_held, message):
    execute(cfg, tmp_path, [])
    before = read(tmp_path)[1:]
    held = locked(RunFolder(tmp_path), replace=True) if is_held else nullcontext()
    with held, pytest.raises(ConfigError, match=message):
        execute(replace(cfg, seed=4, run=RunOptions(overwrite=overwrite)), tmp_path, [])
    assert read(tmp_path)[1:] == before


@pytest.mark.parametrize("error", [ConfigError("one", "two"), SpaceError("a space of words"), None])
def test_a_configuration_that_only_the_parts_can_refuse(cfg, tmp_path, monkeypatch, error):
    def refuse(*arguments):
        raise error

    if error is None:
        cfg = replace(cfg, devices=replace(cfg.devices, device="cuda:99"))
    else:
        monkeypatch.setattr(trainers, "build", refuse)
    with pytest.raises(ConfigError, match=str(error or "cuda:99")):
        execute(cfg, tmp_path / "run", [])
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts(cfg, tmp_path, train_with, number, capsys):
    def train(collection):
        for _ in collection:
            if collection.frames == 60:
                os.kill(os.getpid(), number)

    train_with(train)
    result = execute(replace(cfg, collector=replace(cfg.collector, total_frames=-1)), tmp_path, [])
    files, saved, lines = read(tmp_path)
    assert result.status is Status.INTERRUPTED
    assert saved["exit_reason"] == f"interrupted by {number.name}"
    ends = [event["reason"] for event in files.read_events() if event["event"] == "interrupted"]
    assert ends == [saved["exit_reason"]]
    assert f"to continue from the newest checkpoint: collectx resume {tmp_path}\n" in capsys.readouterr().err
    assert (saved["frames"], saved["batches"], len(lines), saved["failures"]) == (60, 3, 3, [])
    assert files.final_checkpoint.exists()


@pytest.mark.parametrize("within", [True, False], ids=["within a batch", "between batches"])
def test_a_trainer_that_a_second_signal_interrupts_within_a_batch_is_not_saved(cfg, tmp_path, train_with, within):
    def interrupt():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    def train(collection):
        next(collection)
        if within:
            interrupt()
        collection._core.transport.receive = interrupt
        next(collection)

    train_with(train)
    result = execute(cfg, tmp_path, [])
    files, saved, lines = read(tmp_path)
    assert (result.status, saved["batches"], len(lines)) == (Status.INTERRUPTED, 1, 1)
    assert files.final_checkpoint.exists() == bool(Checkpoints(files.checkpoints).all()) == (not within)
    assert ("not_saved" in [event["event"] for event in files.read_events()]) == within


# Launcher, quota of the control group, environment, and the threads that the trainer of one worker has on four cores.
@pytest.mark.parametrize(
    ("launcher", "groups", "environment", "expected"),
    [
        ("local", {}, {}, 3),
        ("local", {"cpu.max": "max 100000"}, {"SLURM_CPUS_PER_TASK": "3"}, 2),
        ("local", {"job/cpu.max": "max 100000", "cpu.max": "250000 100000"}, {}, 1),
        ("local", {"job/task/cpu.max": "50000 100000"}, {}, 1),
        ("local", {"cpu,cpuacct/job/cpu.cfs_quota_us": "300000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, {}, 2),
        ("local", {}, {"OMP_NUM_THREADS": "4"}, None),
        ("slurm", {}, {}, 4),
        ("slurm", {}, {"SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "4"}, 2),
        ("slurm", {}, {"SLURM_CPUS_ON_NODE": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}, 2),
        ("slurm", {}, {"SLURM_CPUS_ON_NODE": "3", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": "2"}, 3),
        ("submitit", {}, {"SLURM_CPUS_ON_NODE": "2"}, 2),
    ],
)
def test_the_trainers_threads(cfg, tmp_path, monkeypatch, within, launcher, groups, environment, expected):
    taken = []
    for name in ("OMP_NUM_THREADS", *(name for name in os.environ if name.startswith("SLURM_"))):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name, content in {**groups, "cgroup": "0::/job/task\n5:cpu,cpuacct:/job\n3:cpuset:/job\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(cores, "_CGROUP_FILE", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_CGROUP_ROOT", tmp_path)
    within(cores, "os", sched_getaffinity=lambda pid: range(4))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    cores.limit_threads(replace(cfg, launcher=replace(cfg.launcher, kind=launcher)))
    assert taken == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("place", "num_workers", "expected"),
    [("local", 2, None), ("local", 6, "7 processes share 2 usable cores (affinity): fewer"), ("slurm", 6, None)],
)
def test_too_many_workers_for_the_cores_of_this_machine_are_noted(
    cfg, monkeypatch, within, place, num_workers, expected
):
    monkeypatch.setattr(cores, "_quotas", lambda: [])
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    within(cores, "os", sched_getaffinity=lambda pid: range(2))
    noted = cores.note(configurations.config("multi_sync", place, num_workers=num_workers))
    assert noted is None if expected is None else noted.startswith(expected)


@pytest.mark.parametrize("names", [["episode.l"], ["episode.l", "nothing"]], ids=str)
def test_metrics_that_no_frame_has_are_named(cfg, tmp_path, names):
    env = replace(gym(entry_point="user_code.cartpoles:with_statistics"), metrics=names)
    execute(replace(cfg, env=env, collector=replace(cfg.collector, total_frames=200)), tmp_path, [])
    missing = [event["names"] for event in RunFolder(tmp_path).read_events() if event["event"] == "metrics_missing"]
    assert missing == [["nothing"]] * ("nothing" in names)
