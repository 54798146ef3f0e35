"""Every example runs as its user types it: with few frames in ci, with all of its defaults in the nightly tier."""

import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from commands import collectx, environment, forked, result
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
# Frames of a short run, and the return, or rate of success in %, that a whole run with the default seed exceeds.
SCRIPTS = {
    "ppo_from_scratch": (4096, 400),
    "sac_replay_buffer": (1200, -300),
    "impala_cluster": (4096, 200),
    "recurrent": (4096, 150),
    "multi_agent": (4096, 60),
    "her_post_traj": (2560, 95),
    "offline_from_recorded": (4096, 250),
}
# Of each example that is a run of the command: the folder of the run, and the mean return at which the test ends it.
# Each of three seeds reached it.
RUNS = {
    "minigrid_ppo": ("minigrid", 0.8),
    "dict_ppo": ("rover", 0.6),
    "sac_pixels": ("pixels", -3),
    "pettingzoo_ppo": ("agents", -20),
    "offline_minari": ("clone", -300),
}


def run(words, cwd, timeout_s=250, **variables):
    """Runs a command without error and without a warning; returns what it printed."""
    done = subprocess.run(
        words, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def outcome(name, cwd, *flags, timeout_s=250):
    """Frames and mean return, or rate of success in %, of the last line that an example prints."""
    printed = run([sys.executable, str(EXAMPLES / f"{name}.py"), *flags], cwd, timeout_s)
    last = re.fullmatch(
        r"(\d+) frames, (?:mean return|success) of the last \d+ episodes: (\S+)( %)?", printed.splitlines()[-1]
    )
    assert last, printed
    return int(last[1]), float(last[2])


IN_CI = ("ppo_from_scratch", "sac_replay_buffer")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in IN_CI)) for name in SCRIPTS]
)
def test_a_script_runs(name, tmp_path):
    frames, mean = outcome(name, tmp_path, "--frames", str(SCRIPTS[name][0]), "--workers", "2", "--seed", "1")
    assert frames == SCRIPTS[name][0]
    assert math.isfinite(mean)


@pytest.mark.nightly
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_learns(name, tmp_path):
    assert outcome(name, tmp_path, timeout_s=1200)[1] > SCRIPTS[name][1]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_learns_as_typed_and_can_be_evaluated(name, tmp_path):
    commands, (folder, bound) = f"collectx run experiment={name} hydra.run.dir=minigrid\n", RUNS[name]
    if (script := EXAMPLES / f"{name}.py").is_file():
        shutil.copy(script, tmp_path)
        shutil.copytree(EXAMPLES / "conf", tmp_path / "conf")
        commands = re.search(r"(?:^    .+\n)+", script.read_text(), re.MULTILINE)[0]
    # The trainer of the clone has no such option.
    end = "" if "trainer=custom" in commands else f" trainer.target_return={bound}"
    run(["bash", "-ec", commands.rstrip() + end], tmp_path, timeout_s=1500)
    assert result(tmp_path / folder)["mean_return"] >= bound
    collectx("eval", folder, "episodes=2", cwd=tmp_path)


@pytest.mark.nightly
def test_a_sweep_runs_from_its_file_and_has_a_report(tmp_path):
    words = ["--config-dir", str(EXAMPLES / "conf"), "experiment=cartpole_sweep", "debug=tiny", "seed=0"]
    collectx("run", *words, cwd=tmp_path)
    assert {path.name for path in (tmp_path / "rates").glob("*rate=*")} == {
        f"trainer.learning_rate={rate}" for rate in ("0.0003", "0.001", "0.003")
    }
    collectx("report", "rates", cwd=tmp_path)
    assert (tmp_path / "rates" / "report" / "index.html").is_file()


@pytest.mark.nightly
def test_offline_learning_records_with_the_command_of_its_docstring(tmp_path):
    command, _, script = (EXAMPLES / "offline_from_recorded.py").read_text().split("\n\n")[1].rpartition("\n")
    run([*shlex.split(command.replace("\\\n", "")), "collector.total_frames=2048"], tmp_path)
    assert outcome("offline_from_recorded", tmp_path, *shlex.split(script)[2:], "--epochs", "1")[0] == 2048


def test_an_example_without_its_package_says_what_to_install():
    words = [sys.executable, "-c", "import sys; sys.modules['mpe2'] = None; import pettingzoo_ppo"]
    done = subprocess.run(words, env=environment(PYTHONPATH=str(EXAMPLES)), capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].endswith("Install it: pip install mpe2")


@pytest.mark.nightly
def test_without_hindsight_bits_are_not_flipped_to_the_goal(tmp_path):
    assert outcome("her_post_traj", tmp_path, "--no-her")[1] < 10


@pytest.mark.parametrize("name", ["quickstart", pytest.param("sweep_report", marks=pytest.mark.nightly)])
def test_a_notebook_has_the_outputs_of_its_execution(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", environment()["PATH"])
    # Importing EnvPool sets it, in a test before this one: the kernel would then draw without showing anything.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", 4)
    committed = kinds(notebook)
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert kinds(notebook) == committed
    assert {"image/png", "stdout"} <= set().union(*committed) <= {"image/png", "stdout", "text/plain"}


def kinds(notebook):
    """Returns what each code cell shows: names of streams and types of data."""
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [{kind for each in cell for kind in each.get("data", [each.get("name")])} for cell in outputs]


@pytest.mark.nightly
def test_the_trainer_of_the_impala_example_is_one_of_collectx_run(tmp_path):
    command = re.search(r"collectx run (?:.*\\\n)*.*", (EXAMPLES / "impala_cluster.py").read_text())[0]
    words = [word for word in shlex.split(command.replace("\\\n", "")) if not word.startswith("launcher")]
    changes = ["collector.num_workers=1", "collector.total_frames=2048", f"hydra.run.dir={tmp_path}"]
    run([*words, *changes], tmp_path, PYTHONPATH=str(EXAMPLES))
    assert result(tmp_path)["frames"] == 2048


@pytest.mark.ci
def test_a_new_project_runs_as_its_readme_says(tmp_path):
    said = collectx("init", "mine", cwd=tmp_path).stdout
    project = tmp_path / "mine"
    _, _, command = said.strip().splitlines()
    (block,) = re.findall(r"```sh\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    assert command.strip() == block.splitlines()[0]
    *commands, test = map(shlex.split, block.splitlines())
    for _, *words in commands:
        forked(*words, "collector.total_frames=1600", cwd=project)
    run([*test, "-p", "no:cacheprovider"], project)
    # The package is called as its folder, and the policy respects the exploration type.
    (folder, *_) = sorted((project / "outputs").glob("*/*"))
    assert "target: mine.policy:make_policy" in (folder / "snapshot" / "config.yaml").read_text()
    assert "samples" not in forked("eval", str(folder), "episodes=2", cwd=project).stderr
    assert forked("export", str(folder), "format=onnx", cwd=project).stdout.strip().endswith("policy.onnx")
    refused = collectx("init", "mine", cwd=tmp_path, status=2).stderr
    assert "init: mine exists and is not an empty folder. Name a new one: collectx init DIR" in refused
    (tmp_path / "file").touch()
    assert "file exists and is not an empty folder" in forked("init", "file", cwd=tmp_path, status=2).stderr
    assert "init: name one folder. Usage: collectx init DIR" in forked("init", cwd=tmp_path, status=2).stderr
    for name, package in (("empty", "empty"), ("torch", "docking"), ("my-env", "docking"), ("class", "docking")):
        (tmp_path / name).mkdir()
        forked("init", name, cwd=tmp_path)
        assert (tmp_path / name / package / "env.py").is_file()
        assert (tmp_path / name / "conf" / "experiment" / "docking.yaml").is_file()


def test_the_list_of_the_examples_has_all_of_them():
    listed = set(re.findall(r"^\| \[`([^`]+)`\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    files = {path.name for pattern in ("*.py", "*.ipynb") for path in EXAMPLES.glob(pattern)}
    assert listed == files | {"custom_trainer_project/", "minigrid_ppo.yaml", "cartpole_sweep.yaml"}
