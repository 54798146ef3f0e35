"""The installed command: what it imports, completion by a real bash, runs, sweeps, failures."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMMAND, COUNTING, RAY, collectx, environment, forked, needs_ray, result
from composed_overrides import composed

from collectx import __version__
from collectx.cli.main import SUBCOMMANDS, help_text
from collectx.run import RunFolder
from collectx.run.folder import snapshot
from collectx.run.resume import recorded_order

TESTS = Path(__file__).parents[1]
TOTAL = "collector.total_frames=2048"


def test_version_help_and_an_unknown_subcommand(tmp_path):
    assert collectx("--version", cwd=tmp_path).stdout == f"collectx {__version__}\n"
    assert "Did you mean collectx run?" in collectx("rnu", cwd=tmp_path, status=2).stderr
    assert all(f"  {name} " in help_text() for name in SUBCOMMANDS)


HEAVY = {"torch", "gymnasium", "numpy", "tensordict", "rich"}


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("main(['--version'])", HEAVY),
        ("main(['list'])", HEAVY),
        ("main(['docs'])", HEAVY),
        # Gymnasium may know an env of this name.
        ("main(['run', 'env=nothing'])", HEAVY - {"gymnasium", "numpy"}),
        ("main(['-sc', 'query=bash'])", HEAVY),
        ("import collectx.run.execution", HEAVY - {"numpy", "rich"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement, heavy, tmp_path):
    code = (
        f"import sys\nfrom collectx.cli.main import main\ntry: {statement}\nexcept SystemExit: pass\n"
        f"heavy = {heavy!r} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    environ = environment(COMP_LINE="collectx run env=")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COMPLETIONS = {
    "collectx r": {"run", "reproduce", "resume", "report"},
    "collectx run env=cart": {"env=cartpole"},
    "collectx p": {"plan"},
    "collectx plan collector.num_workers_": {"collector.num_workers_per_collector="},
    "collectx plan --js": {"--json"},
    "collectx tune tune.min": {"tune.minutes="},
    "collectx tune --out": {"--output"},
    "collectx doctor --j": {"--json"},
    "collectx docs does": {"does-not-learn"},
    "collectx run -m trainer=": {
        f"trainer={name}" for name in ("custom", "dqn", "impala", "meter", "ppo", "record", "sac")
    },
    "collectx run --config-dir conf seed=1 env=mi": {"env=mine", "env=minigrid"},
    "collectx run launcher=": {
        f"launcher={name}" for name in ("inline", "local", "ray", "slurm", "submitit", "submitit_delayed")
    },
    "collectx run -m --conf": {"--config-dir", "--config-name"},
    "collectx run collector.num_workers_": {"collector.num_workers_per_collector="},
}
# What bash does on <TAB>: calls the function registered for the command, with these variables.
TAB = """
    eval "$(collectx -sc install=bash)"
    function=$(complete -p collectx | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    while read -r COMP_LINE; do
        COMP_POINT=${#COMP_LINE}; words=($COMP_LINE); COMP_CWORD=$((${#words[@]} - 1)); COMPREPLY=()
        $function; echo "${COMPREPLY[@]}"
    done
"""


def test_completion_by_bash(tmp_path):
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "mine.yaml").write_text("kind: counting\n")
    options = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", TAB], input="\n".join([*COMPLETIONS, ""]), **options)
    assert [{*line.split()} for line in done.stdout.splitlines()] == [*COMPLETIONS.values()], done.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Has a run of PPO with local workers in the folder `run`."""
    folder = tmp_path_factory.mktemp("saved")
    collectx("run", "trainer.digest=true", TOTAL, "hydra.run.dir=run", cwd=folder)
    ended = result(folder / "run")
    assert (ended["status"], ended["frames"], ended["batches"]) == ("completed", 2048, 4)
    return folder


@pytest.mark.xdist_group("saved")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(["launcher=inline"], id="inline", marks=pytest.mark.nightly),
        pytest.param(["collector=rpc", "collector.sync=true", TOTAL], id="rpc", marks=pytest.mark.nightly),
        pytest.param([*RAY, "collector.sync=true", TOTAL], id="ray", marks=[pytest.mark.nightly, needs_ray]),
    ],
)
def test_a_run_is_reproduced_with_workers_elsewhere(saved, tmp_path, place):
    again = forked("reproduce", str(saved / "run"), *place, "hydra.run.dir=again", cwd=tmp_path)
    assert "identical: all 4 batches are identical" in again.stdout
    # torch's and Ray's own warnings, as of agents that end, do not reach the user.
    logs = "".join(log.read_text() for log in (tmp_path / "again" / "logs").glob("worker-*.log"))
    assert not re.search(r"\[W|tensorpipe", again.stdout + again.stderr + logs)


def test_an_async_run_is_reproduced_in_its_order(tmp_path):
    size = ["collector.frames_per_batch=128", "collector.total_frames=1024", "env.num_envs=2"]
    learning = ["collector=multi_async", "trainer=impala", "trainer.digest=true"]
    forked("run", *learning, *size, "hydra.run.dir=run", cwd=tmp_path)
    again = collectx("reproduce", "run", "hydra.run.dir=again", cwd=tmp_path)
    assert "identical: all 8 batches" in again.stdout
    assert recorded_order(tmp_path / "again") == recorded_order(tmp_path / "run")


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("raises", "user_code.faulty.BrokenLever", ["BrokenLever: ('left', 3)", "faulty.py", "raise error"]),
        pytest.param("killed", "WorkerDied", ["WorkerDied"], marks=pytest.mark.nightly),
    ],
)
def test_a_worker_that_fails_is_named_with_its_log_and_its_traceback(tmp_path, monkeypatch, fault, kind, words):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    env = ["env=gym", "env.num_envs=1", "env.entry_point=user_code.faulty:FaultyEnv", "env.kwargs.at_step=100"]
    size = ["collector.frames_per_batch=64", "collector.total_frames=-1", "hydra.run.dir=run"]
    err = forked("run", *COUNTING[1:], *env, f"env.kwargs.fault={fault}", *size, cwd=tmp_path, status=1).stderr
    ended, files = result(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert (ended["status"], ended["frames"]) == ("failed", 192)
    (failure,) = ended["failures"]
    assert failure["type"] == kind
    assert f"worker {failure['worker']}" in err
    assert str(files.log(f"worker-{failure['worker']}")) in err
    assert [word for word in words if word not in err or word not in files.log("trainer").read_text()] == []
    assert "no checkpoint was saved, so this run cannot be resumed" in err


THREADED = "[{_target_: user_code.processes.ThreadedEnv, start_method: %s}]"


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(["env.vectorization_mode=async", f"env.wrappers={THREADED % 'forkserver'}"], id="async"),
        pytest.param(
            ["env.vectorization_mode=async", "env.context=spawn", f"env.wrappers={THREADED % 'spawn'}"],
            id="spawn",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ["env.vectorization_mode=async", "env.context=fork", f"env.wrappers={THREADED % 'fork'}"],
            id="fork",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ["env=gym", "env.id=null", "env.entry_point=user_code.processes:make_with_processes"],
            id="its_own",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_env_with_processes_of_its_own(tmp_path, monkeypatch, env):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    size = ["env.num_envs=2", "collector.frames_per_batch=64", "collector.total_frames=128", "hydra.run.dir=run"]
    in_time = ["collector.start_timeout_s=100", "collector.worker_timeout_s=60"]
    collectx("run", "env=gym_vector", "env.id=CartPole-v1", *COUNTING[1:], *env, *size, *in_time, cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] == 128


LOADER = """
from gymnasium.envs.classic_control import CartPoleEnv

class Loading(CartPoleEnv):
    def step(self, action):
        raise RuntimeError("DataLoader worker 3 was killed")
"""


def test_a_worker_of_another_library_is_not_taken_for_ours(tmp_path):
    (tmp_path / "loading.py").write_text(LOADER)
    env = ["env.id=null", "env.entry_point=loading:Loading", "collector=single", "hydra.run.dir=run"]
    forked("run", "policy=random", "trainer=meter", *env, cwd=tmp_path, status=1)
    (failure,) = result(tmp_path / "run")["failures"]
    assert (failure["message"], failure["worker"]) == ("DataLoader worker 3 was killed", 0)


def test_the_state_of_a_git_checkout(tmp_path):
    assert snapshot.git_state(tmp_path / "missing") is None
    (tmp_path / "file").write_text("1")
    commands = "git init; git add file; git -c user.name=n -c user.email=e@example.org commit -m one"
    for command in commands.split("; "):
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    state = snapshot.git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    (tmp_path / "file").write_text("2")
    assert snapshot.git_state(tmp_path)["dirty"]


def test_uncommitted_changes_are_in_the_snapshot_as_a_patch(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words], check=True)

    monkeypatch.chdir(tmp_path)
    file, files, cfg = tmp_path / "file", RunFolder(tmp_path / "run"), composed("env=counting")
    git("init", "-q")
    file.write_text("before\n")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    digests = []
    for content in ("before\n", "after\n", "\n" * 1_000_000, "again\n"):
        files.begin()
        file.write_text(content)
        snapshot.write(cfg, files, [])
        digests.append(json.loads(files.meta.read_text())["git"]["cwd"].get("diff"))
        # Not without changes, and not of a megabyte.
        assert files.patch.exists() == (content in ("after\n", "again\n"))
    assert digests[0] is None
    assert len(set(digests)) == 4
    git("checkout", "-q", "file")
    git("apply", str(files.patch))
    assert file.read_text() == "again\n"


def test_processes_that_are_too_many_or_not_collectxs_own_are_named(tmp_path):
    words = ["run", *COUNTING, "debug=tiny", "collector.num_workers=4", "collector.frames_per_batch=64"]
    one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), COMMAND]
    how = {"env": environment(), "capture_output": True, "text": True}
    done = subprocess.run([*one_core, *words], cwd=tmp_path, **how)
    assert done.returncode == 0, done.stderr
    assert "note: 5 processes share 1 usable core (affinity): fewer workers may be as fast" in done.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "collectx", "run"]
    done = subprocess.run(torchrun, cwd=tmp_path / "outputs", **how)
    assert "torchrun runs 2 copies of this command, but collectx starts its own processes" in done.stderr
    assert not (tmp_path / "outputs" / "outputs").exists()


def test_a_run_in_which_no_episode_ended_says_so(tmp_path):
    done = forked("run", "env=pendulum", "debug=tiny", "trainer=meter", cwd=tmp_path)
    text = "no episode ended in 128 frames, so this run has no return. Raise collector.total_frames"
    assert text in done.stdout + done.stderr


def test_a_run_whose_episodes_all_have_one_step_says_so(tmp_path):
    words = ("run", "env=counting", "env.num_envs=1", "env.episode_length=1", "debug=tiny", "trainer=meter")
    done = forked(*words, "collector=single", cwd=tmp_path)
    assert "every episode ended after its first step, as in a bandit" in done.stdout + done.stderr
    done = forked(*words, "collector=multi_sync", cwd=tmp_path)  # the episodes of the second env have two steps
    assert "every episode" not in done.stdout + done.stderr


def test_the_mission_of_minigrid_is_left_out_by_the_override_that_the_refusal_names(tmp_path):
    pytest.importorskip("minigrid", reason="needs the dev extra")
    words = ["run", "env=gym", "env.id=minigrid:MiniGrid-Empty-5x5-v0", "debug=tiny"]
    refused = forked(*words, cwd=tmp_path, status=2).stderr
    assert "'mission' cannot be stored as a tensor" in refused
    override = re.search(r"env\.exclude_keys=\[mission\]", refused)
    assert override is not None, refused
    forked(*words, override[0], cwd=tmp_path)
