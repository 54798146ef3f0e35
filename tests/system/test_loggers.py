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
