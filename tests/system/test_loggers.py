"""Loggers of a real run, as its user asks for them."""

import csv
import json
import subprocess
import time

import pytest
from commands import COMMAND, environment, forked, result
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

RUN = ["collector.total_frames=4096", "hydra.run.dir=run"]
HANGS = (
    "import time\nclass Hangs:\n    def log(self, scalars, step):\n        time.sleep(1e6)\n    def close(self): ...\n"
)


def steps(folder):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars("collector/policy_version")]


@pytest.mark.ci
def test_loggers_have_every_batch_once_also_after_a_resume(tmp_path, wait_until):
    loggers = ["logger=[tensorboard,csv,wandb,mlflow]", "logger.wandb.mode=offline"]
    forked("run", *RUN, "launcher=inline", *loggers, cwd=tmp_path)
    folder = tmp_path / "run"
    expected = [*range(512, 4097, 512)]
    assert steps(folder) == expected
    # wandb names its folders by the second.
    second = int(time.time())
    wait_until(lambda: int(time.time()) > second, 5.0, "the next second")
    forked("resume", "run", "collector.total_frames=5120", cwd=tmp_path)
    expected = [*range(512, 5121, 512)]
    assert steps(folder) == expected
    with open(folder / "progress.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == expected
    ids = {path.name.rpartition("-")[2] for path in (folder / "wandb").glob("offline-run-*")}
    assert ids == {(folder / "logger_id").read_text()}
    records = [path.read_bytes() for path in (folder / "wandb").glob("offline-run-*/*.wandb")]
    assert len(records) == 2
    assert all(b"episode/mean_return" in record for record in records)
    assert (tmp_path / "mlflow.db").exists()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert not [event for event in events if event["event"].startswith("logger")]
    returns = ["mean_return" in json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert returns[returns.index(True) :].count(False) == 0


@pytest.mark.ci
def test_a_logger_that_hangs_is_an_event_of_a_completed_run(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert environment()["PYTHONPATH"] == str(tmp_path)
    options = ["logger=custom", "logger.custom.target=own:Hangs", "logger.close_timeout_s=1"]
    done = forked("run", *RUN, *options, cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"
    assert (
        "custom logging stopped: it did not end within 1 s (logger.close_timeout_s). The run continues." in done.stdout
    )


def test_wandb_without_a_key_is_said_before_the_run(tmp_path):
    variables = {
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "",
        "WANDB_CONFIG_DIR": str(tmp_path),
        "NETRC": str(tmp_path / "no"),
    }
    command = [COMMAND, "run", *RUN, "logger=wandb"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(**variables), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    remedy = "Run `wandb login`, set WANDB_API_KEY, or use logger.wandb.mode=offline."
    assert f"logger=wandb cannot be used: wandb has no API key. {remedy}" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_wrong_logger_is_a_problem_of_the_configuration(tmp_path):
    words = ["logger=[csv,tensorbord]", "logger.wandb.mod=online", "logger.custom.target=nothing.there:Here"]
    done = forked("run", *RUN, *words, cwd=tmp_path, status=2)
    assert "logger=tensorbord is unknown. Did you mean logger=tensorboard?" in done.stderr
    assert "logger.wandb.mod is not an option. Did you mean logger.wandb.mode?" in done.stderr
    assert not (tmp_path / "run").exists()


NAMING = """
class Trainer:
    def __init__(self, policy, fails=False):
        self.fails = fails
        self.names = {"reward/mean@1": 1.5, "loss[0]": 3, "a/../b": 6, "x" * 251: 4, "x" * 252: 5}
    def train(self, collection):
        for batch in collection:
            collection.log(**self.names, after=2.0)
            if self.fails and collection.frames > 64:
                raise ValueError("mine")
"""


def in_mlflow(folder, experiment):
    """The runs of an experiment in MLflow, by their names."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in runs}


@pytest.mark.filterwarnings("ignore:.*noload")  # of MLflow's own use of SQLAlchemy
def test_mlflow_gets_all_scalars_and_the_status_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "naming.py").write_text(NAMING)
    run = ["debug=tiny", "trainer=custom", "trainer.target=naming:Trainer", "logger=mlflow"]
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    done = forked("run", *run, "hydra.run.dir=good", cwd=tmp_path)
    note = "MLflow does not take the name 'train/reward/mean@1', so it is logged as 'train/reward/mean_1'."
    assert note in done.stdout
    assert "stopped" not in done.stdout
    forked("run", *run, "trainer.kwargs.fails=true", "hydra.run.dir=bad", cwd=tmp_path, status=1)
    monkeypatch.setenv("MLFLOW_RUN_NAME", "night")
    forked("run", *run, "hydra.run.dir=other", "logger.mlflow.experiment=set", cwd=tmp_path)
    good, bad = (in_mlflow(tmp_path, "mine")[name] for name in ("good", "bad"))
    assert (good.info.status, bad.info.status) == ("FINISHED", "FAILED")
    metrics = good.data.metrics
    assert {metrics[f"train/{name}"] for name in ("reward/mean_1", "loss_0_", "a/b", "after")} == {1.5, 3.0, 6.0, 2.0}
    assert {value for name, value in metrics.items() if name.startswith("train/xxx")} == {4.0, 5.0}
    assert metrics["episode/mean_return"]
    assert good.data.params["policy.hidden_sizes"] == "[64, 64]"
    assert [*in_mlflow(tmp_path, "set")] == ["night"]


@pytest.mark.parametrize("sets", [False, True])
def test_wandb_follows_its_variables_where_options_do_not_say_it(tmp_path, monkeypatch, sets):
    variables = {"PROJECT": "Apple", "NAME": "Birch", "TAGS": "Cedar,Elm", "RUN_GROUP": "Fir", "MODE": "offline"}
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    options = ["project=Grape", "name=Hazel", "tags=[Iris]", "group=Jute"] if sets else []
    run = ["debug=tiny", "trainer=meter", "logger=wandb", "hydra.run.dir=run"]
    forked("run", *run, *[f"logger.wandb.{each}" for each in options], cwd=tmp_path)
    (record,) = (path.read_bytes() for path in tmp_path.glob("run/wandb/offline-run-*/*.wandb"))
    of_options = [b"Grape", b"Hazel", b"Iris", b"Jute"]
    # The options are part of the configuration, which is in the record too.
    assert [name in record for name in (b"Apple", b"Birch", b"Cedar", b"Elm", b"Fir")] == [not sets] * 5
    assert [name in record for name in of_options] == [sets] * 4
    assert b"collectx\x12" not in record


def test_what_another_run_or_the_user_wrote_is_not_replaced(tmp_path):
    run, table = ["debug=tiny", "trainer=meter"], tmp_path / "all.csv"
    shared = ["logger.csv.file=all.csv", "logger.tensorboard.dir=tb"]
    sweep = ["-m", *run, "seed=0,1", "hydra.sweep.dir=sweep"]
    refused = forked("run", *sweep, *shared, cwd=tmp_path, status=2).stderr
    assert "logger.csv.file=all.csv cannot be used by 2 points, because each would replace or mix" in refused
    assert "'logger.tensorboard.dir=tb-${hydra:job.num}'" in refused
    each = ["logger.csv.file=all-${hydra:job.num}.csv", "logger.tensorboard.dir=${seed}"]
    forked("run", *sweep, *each, cwd=tmp_path)
    assert [(tmp_path / name).exists() for name in ("all-0.csv", "all-1.csv", "0", "1")] == [True] * 4
    table.write_text("mine\n")
    message = "logger.csv.file=all.csv was written by another run or program."
    assert message in forked("run", *run, shared[0], "hydra.run.dir=one", cwd=tmp_path, status=2).stderr
    assert table.read_text() == "mine\n"
    assert not (tmp_path / "one").exists()
    # Its own table continues with the run.
    forked("run", *run, shared[0], "hydra.run.dir=one", "run.overwrite=true", cwd=tmp_path)
    forked("resume", "one", "collector.total_frames=192", cwd=tmp_path)
    with open(table) as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["64", "128", "192"]
    # What repeats it has another.
    forked("reproduce", "one", "hydra.run.dir=again", cwd=tmp_path)
    assert (tmp_path / "again/progress.csv").exists()
    refused = forked("resume", "again", shared[0], "collector.total_frames=256", cwd=tmp_path, status=2)
    assert message in refused.stderr
