"""Hydra's other launchers and sweepers, as their users type them, and completion by real shells."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import textwrap
import time

import pytest
import yaml
from commands import collectx, environment, forked, result

from collectx.run import RunFolder

TINY = ["debug=tiny", "trainer=meter"]


@pytest.mark.parametrize(
    "launcher", ["basic", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("joblib", "submitit_local"))]
)
def test_points_run_by_a_launcher_of_hydra(tmp_path, launcher):
    done = collectx("run", "-m", f"hydra/launcher={launcher}", "seed=0,1", *TINY, cwd=tmp_path)
    text, _, folder = done.stdout.rstrip().rpartition("\nsweep folder: ")
    rows = [line.split()[:3] for line in text.splitlines() if line.startswith("seed=")]
    assert rows == [["seed=0", "completed", "128"], ["seed=1", "completed", "128"]]
    if launcher != "submitit_local":  # its points have logs of their own
        ended = re.findall(r"^\[(./2)\] (seed=.)  completed  128 frames ", text, re.MULTILINE)
        assert sorted(ended) == [("1/2", "seed=0"), ("2/2", "seed=1")]
    for name in "01":
        files = RunFolder(tmp_path / folder / name)
        assert (files.hydra / "overrides.yaml").exists()
        assert result(files.path)["status"] == "completed"
    assert forked("status", folder, cwd=tmp_path).stdout.count(" completed ") == 2


def test_a_sweep_prints_a_line_for_each_point_and_names_it_in_messages(tmp_path):
    make = "def make(fail=False):\n    if fail:\n        raise OSError('no such device')\n"
    (tmp_path / "own.py").write_text(f"import gymnasium\n\n{make}    return gymnasium.make('CartPole-v1')\n")
    env = ["env.entry_point=own:make", "env.id=null", "env.kwargs.fail=false,true"]
    done = forked("run", "-m", *env, *TINY, "launcher=inline", "hydra.sweep.dir=s", cwd=tmp_path, status=1)
    head, *points = done.stdout.partition("\n\n")[0].splitlines()
    assert head == "sweep: 2 runs"
    assert [line.split()[:4] for line in points] == [
        ["[1/2]", "env.kwargs.fail=False", "completed", "128"],
        ["[2/2]", "env.kwargs.fail=True", "failed", "0"],
    ]
    assert "collectx: env.kwargs.fail=True: OSError: no such device" in done.stderr


# Asks Hydra where the run is, and logs.
_ENV = """
import logging
import gymnasium
import hydra
from hydra.core.hydra_config import HydraConfig

class Env(gymnasium.Wrapper):
    def __init__(self, folder):
        super().__init__(gymnasium.make("CartPole-v1"))
        print("FOLDERS", hydra.utils.get_original_cwd(), HydraConfig.get().runtime.output_dir, folder, flush=True)
        logging.getLogger(__name__).debug("made")
"""


_ASKING = ["env=gym", "env.entry_point=hyenv:Env", "env.kwargs.folder=${hydra:runtime.output_dir}"]
_ASKING += ["hydra/job_logging=default", "hydra.verbose=true"]


@pytest.mark.parametrize("collector", ["multi_sync", "distributed_sync"])
def test_envs_of_workers_ask_hydra_and_log_as_the_command_says(tmp_path, collector):
    """Both points of a sweep share the fork server. A worker over a network has two processes of its own."""
    (tmp_path / "hyenv.py").write_text(_ENV)
    words = [f"collector={collector}", "hydra.sweep.dir=s"]
    words += ["collector.num_workers_per_collector=2"] * (collector == "distributed_sync")
    collectx("run", "-m", "seed=0,1", *TINY, *_ASKING, *words, cwd=tmp_path)
    for seed in (0, 1):
        run = tmp_path / "s" / f"seed={seed}"
        for worker in (0, 1):
            lines = RunFolder(run).worker_log(worker).read_text().splitlines()
            assert {line for line in lines if line.startswith("FOLDERS")} == {f"FOLDERS {tmp_path} {run} {run}"}
            assert any(line.endswith("[hyenv][DEBUG] - made") for line in lines)


_SCRIPT = """
import hydra
import hyenv

def make():
    return hyenv.Env("x")

@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    from collectx import MultiSyncCollector

    with MultiSyncCollector([make], frames_per_batch=8, total_frames=8) as collector:
        next(collector)

if __name__ == "__main__":
    main()
"""


def test_envs_of_workers_of_a_script_ask_hydra_and_log_as_its_command_says(tmp_path):
    """Its workers are no forks of the script's process."""
    (tmp_path / "hyenv.py").write_text(_ENV)
    (tmp_path / "script.py").write_text(_SCRIPT)
    words = [sys.executable, "script.py", "hydra.run.dir=run", "hydra.verbose=hyenv"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    lines = done.stdout.splitlines()
    assert lines.count(f"FOLDERS {tmp_path} {tmp_path / 'run'} x") >= 2, done.stderr
    assert sum(line.endswith("[hyenv][DEBUG] - made") for line in lines) >= 2


def test_envs_of_ray_ask_hydra_and_log_as_the_command_says(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "hyenv.py").write_text(_ENV)
    ray = ["collector=ray", "collector.sync=true", "launcher=ray", "hydra.run.dir=run"]
    ray += ["launcher.ray_init_config={num_cpus: 2, log_to_driver: true}"]
    done = collectx("run", *TINY, *_ASKING, *ray, cwd=tmp_path)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "WorkerActor" in line]
    run = tmp_path / "run"
    assert any(line.endswith(f"FOLDERS {tmp_path} {run} {run}") for line in said)
    assert any("[hyenv][DEBUG] - made" in line for line in said)


def test_a_run_that_is_resumed_repeated_or_evaluated_is_in_the_same_working_directory(tmp_path):
    env = (
        "import os, gymnasium\ndef make():\n    print('HERE', os.getcwd())\n    return gymnasium.make('CartPole-v1')\n"
    )
    (tmp_path / "here.py").write_text(env)

    def folders(*words):
        lines = collectx(*words, cwd=tmp_path).stdout.splitlines()
        return {line.removeprefix("HERE ") for line in lines if line.startswith("HERE ")}

    words = ["env=gym", "env.entry_point=here:make", "collector=single", "hydra.run.dir=run"]
    run, again = str(tmp_path / "run"), str(tmp_path / "again")
    assert run in folders("run", *TINY, *words, "hydra.job.chdir=true", "checkpoint.every_batches=1")
    assert folders("resume", "run", "collector.total_frames=256") == {run}
    assert folders("reproduce", "run", "hydra.run.dir=again") == {again}
    assert folders("eval", "run", "episodes=1") == {run}
    meta = RunFolder(run).read_meta()
    assert (meta["cwd"], meta["chdir"]) == (str(tmp_path), True)


def test_an_env_that_asks_hydra_where_there_is_none_is_told_what_to_do(tmp_path):
    (tmp_path / "hyenv.py").write_text(_ENV)
    script = "import collectx, hyenv; collectx.Collector(lambda: hyenv.Env('x'), frames_per_batch=1)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "Hydra started neither this process nor its trainer, as in a script without @hydra.main." in done.stderr


def test_resolvers_of_the_working_directory_are_known_to_every_command(tmp_path):
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "resolvers.py").write_text(
        "from omegaconf import OmegaConf\nOmegaConf.register_new_resolver('double', lambda number: 2 * number)\n"
    )
    collectx("run", "-m", *TINY, "policy=random", "seed=${double:2},${double:3}", "hydra.sweep.dir=s", cwd=tmp_path)
    runs = sorted((tmp_path / "s").glob("*/snapshot"))
    assert [yaml.safe_load((run / "config.yaml").read_text())["seed"] for run in runs] == [4, 6]
    # The values are saved.
    shutil.rmtree(tmp_path / "hydra_plugins")
    forked("reproduce", str(runs[1].parent), cwd=tmp_path)


@pytest.mark.parametrize("collector", [pytest.param("multi_sync", marks=pytest.mark.nightly), "distributed_sync"])
def test_the_workers_of_each_point_have_its_environment_variables(tmp_path, collector):
    """Workers that are collectors pass the variables on to their own workers."""
    (tmp_path / "levels.py").write_text(
        textwrap.dedent("""
            import os
            from gymnasium.envs.classic_control import CartPoleEnv
            from gymnasium.wrappers import TransformReward

            LEVEL = float(os.environ["LEVEL"])

            def make():
                return TransformReward(CartPoleEnv(), lambda reward: LEVEL)
        """)
    )
    words = ["env=gym", "env.entry_point=levels:make", *TINY, "policy=random", "collector.max_frames_per_traj=1"]
    words += [f"collector={collector}", "seed=1,2", "+hydra.job.env_set.LEVEL='${hydra.job.num}'", "hydra.sweep.dir=s"]
    if collector == "distributed_sync":
        words += ["collector.num_workers=1", "collector.num_workers_per_collector=2"]
    forked("run", "-m", *words, cwd=tmp_path)
    assert [result(tmp_path / "s" / f"seed={level}")["mean_return"] for level in (1, 2)] == [0, 1]


@pytest.mark.parametrize("launcher", ["collectx", pytest.param("basic", marks=pytest.mark.nightly)])
def test_the_folders_of_points_may_be_several_levels_below_that_of_the_sweep(tmp_path, launcher):
    words = [
        "-m",
        f"hydra/launcher={launcher}",
        "hydra.sweep.dir=s",
        "hydra.sweep.subdir=by/n/${collector.num_workers}",
    ]
    words += [*TINY, "launcher=inline", "collector.num_workers=1,2"]
    done = forked("run", *words, cwd=tmp_path)
    assert sorted(line.split()[:2] for line in done.stdout.splitlines()[-3:-1]) == [
        ["collector.num_workers=1", "completed"],
        ["collector.num_workers=2", "completed"],
    ]
    if launcher == "collectx":
        assert "2 already done" in forked("run", *words, cwd=tmp_path).stdout
        refused = forked("run", *words, "run.resume=never", cwd=tmp_path, status=2).stderr
        assert refused.count("already contains a run") == 2


def test_a_point_that_fails_ends_a_sweep_as_its_launcher_wants_it(tmp_path):
    (tmp_path / "broken.py").write_text("def make(**keywords):\n    raise OSError('no such device')\n")
    words = ["env=gym", "env.entry_point=broken:make", "env.id=null", *TINY, "hydra.sweep.dir=s"]
    done = forked("run", "-m", "hydra/launcher=basic", "seed=0,1", *words, cwd=tmp_path, status=1)
    assert "no such device" in done.stderr
    assert "failed" in done.stdout


@pytest.mark.parametrize("launcher", ["basic", pytest.param("submitit_local", marks=pytest.mark.nightly)])
def test_another_point_in_the_folder_of_a_run_is_refused_and_its_result_is_not_that_of_the_run(tmp_path, launcher):
    words = ["-m", f"hydra/launcher={launcher}", *TINY, "launcher=inline", "hydra.sweep.dir=s"]
    forked("run", *words, "seed=0,1", cwd=tmp_path)
    done = forked("run", *words, "seed=7,0", cwd=tmp_path, status=1)
    assert "seed (was 0, now 7) cannot change" in done.stderr
    assert "seed=" not in done.stdout
    assert sorted(line.split()[:2] for line in done.stdout.splitlines()[-3:-1]) == [
        ["0", "completed"],
        ["1", "completed"],
    ]


@pytest.mark.parametrize("launcher", ["collectx", pytest.param("basic", marks=pytest.mark.nightly)])
def test_optuna_maximises_the_objective(tmp_path, launcher):
    space = [
        "hydra/sweeper=optuna",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.n_jobs=1",
    ]
    words = [*space, f"hydra/launcher={launcher}", "sweep.objective=frames", "collector.total_frames=choice(128,192)"]
    forked("run", "-m", *words, *TINY, "launcher=inline", "hydra.sweep.dir=s", cwd=tmp_path)
    best = (tmp_path / "s" / "optimization_results.yaml").read_text()
    frames = [result(path.parent)["frames"] for path in (tmp_path / "s").glob("*/result.json")]
    assert f"best_value: {float(max(frames))}" in best


@pytest.mark.nightly
def test_optuna_has_several_objectives(tmp_path):
    optuna = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "collector.total_frames=choice(128,192)"]
    words = [*optuna, *TINY, "launcher=inline", "hydra.sweep.dir=s"]
    both = "hydra.sweeper.direction=[maximize,minimize]"
    refused = forked("run", *words, both, cwd=tmp_path, status=2)
    assert "sweep.objective has 1 entry (mean_return), but hydra.sweeper.direction" in refused.stderr
    assert not (tmp_path / "s").exists()
    forked("run", *words, both, "sweep.objective=[frames,wall_s]", cwd=tmp_path)
    solutions = yaml.safe_load((tmp_path / "s" / "optimization_results.yaml").read_text())["solutions"]
    results = [result(path.parent) for path in (tmp_path / "s").glob("*/result.json")]
    assert solutions
    assert all(each["values"] in [[found["frames"], found["wall_s"]] for found in results] for each in solutions)
    # No episode ends within a batch of this size.
    endless = ["env=counting", "env.episode_length=100000", "policy=random", "hydra.sweep.dir=none"]
    failed = forked("run", *words[:-1], *endless, cwd=tmp_path, status=1)
    assert "the result has no mean_return" in failed.stderr
    assert "To continue without it, set hydra.sweeper.max_failure_rate=1" in failed.stderr


APPLICATION = {
    "conf/config.yaml": """
        defaults: [_self_, env: cartpole]
        hydra: {searchpath: ['pkg://collectx.conf']}
        """,
    "app.py": """
        import hydra

        @hydra.main(version_base="1.3", config_path="conf", config_name="config")
        def main(cfg):
            print(cfg.env.id, cfg.env.num_envs)

        main()
        """,
}


def test_another_application_takes_the_packaged_choices(tmp_path):
    (tmp_path / "conf").mkdir()
    for name, text in APPLICATION.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "app.py", "-m", "env=cartpole,pendulum", "env.num_envs=3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert re.findall(r"^\S+-v1 3$", done.stdout, re.MULTILINE) == ["CartPole-v1 3", "Pendulum-v1 3"]


LAUNCHER = """
from hydra.core.utils import run_job
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

class Backwards(Launcher):
    def setup(self, *, hydra_context, task_function, config):
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides, initial_job_idx):
        jobs = []
        for number, words in reversed([*enumerate(job_overrides, initial_job_idx)]):
            cfg = self.context.config_loader.load_sweep_config(self.config, list(words))
            with open_dict(cfg):
                cfg.hydra.job.id, cfg.hydra.job.num = str(number), number
            jobs.insert(0, run_job(self.task, cfg, "hydra.sweep.dir", "hydra.sweep.subdir", hydra_context=self.context))
            print("point", number, jobs[0].return_value)
        return jobs
"""


def test_a_launcher_of_the_user_gets_the_points(tmp_path):
    for name, text in {
        "hydra_plugins/mine/__init__.py": LAUNCHER,
        "my_conf/hydra/launcher/mine.yaml": "_target_: hydra_plugins.mine.Backwards\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    words = ["hydra/launcher=mine", "sweep.objective=frames", "seed=0,1", *TINY, "launcher=inline"]
    done = forked("run", "--config-dir", "my_conf", "-m", *words, cwd=tmp_path)
    assert re.findall(r"^point \d .*$", done.stdout, re.MULTILINE) == ["point 1 128.0", "point 0 128.0"]


def test_a_module_of_python_is_the_command(tmp_path):
    words = [shutil.which("python", path=environment()["PATH"]), "-m", "collectx", "--version"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == forked("--version", cwd=tmp_path).stdout


# How a user of the shell turns completion on.
SHELLS = {
    "bash": ("bash --norc -i", 'eval "$(collectx -sc install=bash)"'),
    "zsh": (
        "zsh -f -i",
        'autoload -Uz compinit bashcompinit; compinit -u; bashcompinit; eval "$(collectx -sc install=bash)"',
    ),
    "fish": ("fish --no-config -i", "collectx -sc install=fish | source"),
}


class Terminal:
    """A shell in a pseudo-terminal."""

    def __init__(self, command: str, **environ: str):
        self.text = ""
        self._pid, self._end = pty.fork()
        if not self._pid:
            words = command.split()
            os.execvpe(words[0], words, environ)

    def type(self, text: str, until: str) -> None:
        """Types `text`, and waits until the terminal shows `until` after it."""
        begin = len(self.text)
        os.write(self._end, text.encode())
        deadline = time.monotonic() + 60
        while until not in self.text[begin:]:
            assert time.monotonic() < deadline, self.text
            if select.select([self._end], [], [], 0.1)[0]:
                self.text += os.read(self._end, 65536).decode(errors="replace")

    def close(self) -> None:
        os.close(self._end)
        os.waitpid(self._pid, 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_choices_and_keys(tmp_path, shell):
    if shutil.which(shell) is None:
        if os.geteuid():
            pytest.skip(f"{shell} is not installed, and only root can install it")
        install = f"apt-get -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends {shell}"
        subprocess.run(["bash", "-c", f"{install} || (apt-get update && {install})"], check=True, capture_output=True)
    command, setup = SHELLS[shell]
    terminal = Terminal(command, **environment(HOME=str(tmp_path), TERM="xterm", PS1="$ "))
    try:
        terminal.type(f"{setup}; echo re''ady\n", "ready")
        terminal.type("collectx run env=cart\t", "env=cartpole")
        terminal.type(" trainer=meter trainer.dig\t", "trainer.digest=")
    finally:
        terminal.close()
