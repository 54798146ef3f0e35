"""Loggers: what they write is read back with the readers of their tools."""

import csv
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from composed_overrides import composed

from collectx import loggers
from collectx.loggers import CsvLogger, MlflowLogger, TensorBoardLogger, WandbLogger
from collectx.run import RunFolder
from collectx.run.folder.saved_config import flat
from collectx.run.logger_threads import LoggerThreads, factories

CONFIG = {"env.id": "CartPole-v1", "seed": 3, "sizes": [64, 64], "none": None}
NAME = "episode/mean_return"


def tensorboard(folder, step=None):
    return TensorBoardLogger(folder, CONFIG, step)


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    assert (
        "_hparams_/session_start_info" in events.summary_metadata or "config/text_summary" in events.Tags()["tensors"]
    )
    return [(event.step, event.value) for event in events.Scalars(NAME)]


def table(folder, step=None):
    return CsvLogger(folder / "progress.csv", step)


def read_table(folder):
    with open(folder / "progress.csv") as file:
        return [(int(row["step"]), float(row[NAME])) for row in csv.DictReader(file) if row[NAME]]


def in_mlflow(folder, step=None):
    return MlflowLogger("tests", "one", f"sqlite:///{folder}/mlflow.db", CONFIG, run_id="abc")


def read_mlflow(folder):
    import mlflow  # takes seconds

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["env.id"] == "CartPole-v1"
    return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, NAME)]


KINDS = {"tensorboard": (tensorboard, read_tensorboard), "csv": (table, read_table), "mlflow": (in_mlflow, read_mlflow)}


# The imports of mlflow and tensorboard take seconds, and warn.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "csv" else pytest.mark.ci) for kind in KINDS])
def test_a_resumed_run_has_every_step_once(kind, tmp_path):
    make, read = KINDS[kind]
    logger = make(tmp_path)
    for step in (10, 20, 30):
        logger.log(
            {NAME: step / 10, "collector/policy_version": 1.0} | ({"train/loss": 0.5} if step > 10 else {}), step
        )
    logger.close()
    assert read(tmp_path) == [(10, 1.0), (20, 2.0), (30, 3.0)]
    logger = make(tmp_path, 20)  # from a checkpoint before the last step
    for step in (30, 40):
        logger.log({NAME: step / 10, "collector/policy_version": 1.0, "train/new": 1.0}, step)
    logger.close()
    assert read(tmp_path) == [(10, 1.0), (20, 2.0), (30, 3.0), (40, 4.0)]


def test_a_table_gets_its_folder_and_a_column_for_each_new_scalar(tmp_path):
    file = tmp_path / "new" / "folder" / "progress.csv"
    logger = CsvLogger(file)
    logger.log({"a": 1.0}, 1)
    logger.log({"b": 2.0, "a": 3.0}, 2)
    assert file.read_text() == "step,a,b\n1,1.0,\n2,3.0,2.0\n"  # each row at once
    logger.log({"b": 4.0}, 3)
    logger.close()
    with open(file, "a") as opened:
        opened.write("1")  # the begin of a line with a greater step
    resumed = CsvLogger(file, 1)
    resumed.close()
    assert file.read_text() == "step,a,b\n1,1.0,\n"
    CsvLogger(file).close()
    assert file.read_text() == "step\n"
    assert [path.name for path in file.parent.iterdir()] == ["progress.csv"]


class StandIn(SimpleNamespace):
    """The part of mlflow that the logger calls, which takes seconds to import."""

    def __init__(self, *runs):
        super().__init__(logged=[], params=[], ended=[], asked=[])
        self.runs = [SimpleNamespace(info=SimpleNamespace(run_id=run)) for run in runs]
        self.history = [SimpleNamespace(step=20), SimpleNamespace(step=30), SimpleNamespace(step=10)] if runs else []
        self.entities = SimpleNamespace(Metric=lambda *fields: fields, Param=lambda *fields: fields)

    def MlflowClient(self, uri):
        self.asked.append(uri)
        return self

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="1") if name == "Default" else None

    def create_experiment(self, name):
        return f"new {name}"

    def create_run(self, experiment, tags, run_name):
        self.created = experiment, tags, run_name
        return SimpleNamespace(info=SimpleNamespace(run_id="new"))

    def search_runs(self, experiments, query):
        self.asked.append((experiments, query))
        return self.runs

    def update_run(self, run, status):
        self.asked.append((run, status))

    def get_metric_history(self, run, name):
        self.asked.append((run, name))
        return self.history

    def log_batch(self, run, metrics=(), params=()):
        assert len(params) <= 100  # MLflow's own limit
        self.logged += [(run, step) for name, value, time_ms, step in metrics]
        assert all(each[:3] == (NAME, 1.0, 12_345) for each in metrics)
        self.params += params

    def set_terminated(self, run, status):
        self.ended.append((run, status))


@pytest.mark.parametrize(
    ("runs", "experiment", "created", "logged"),
    [
        ((), None, ("1", {"collectx": "abc"}, "one"), [("new", 0), ("new", 1), ("new", 30), ("new", 31)]),
        ((), "mine", ("new mine", {"collectx": "abc"}, "one"), [("new", 0), ("new", 1), ("new", 30), ("new", 31)]),
        (("old",), None, None, [("old", 31)]),
    ],
)
def test_mlflow_gets_every_step_that_it_does_not_have(monkeypatch, within, runs, experiment, created, logged):
    within(loggers, "time", time=lambda: 12.3456)
    client = StandIn(*runs)
    monkeypatch.setitem(sys.modules, "mlflow", client)
    monkeypatch.setitem(sys.modules, "mlflow.entities", client.entities)
    config = {f"option.{number}": number for number in range(250)}
    logger = MlflowLogger(experiment, "one", config=config, run_id="abc")
    for step in (0, 1, 30, 31):
        logger.log({NAME: 1.0}, step)
    logger.status = "interrupted"
    logger.close()
    assert (client.logged, client.ended, getattr(client, "created", None)) == (
        logged,
        [(logged[0][0], "KILLED")],
        created,
    )
    asked = [None, (["new mine" if experiment else "1"], "tags.collectx = 'abc'")]
    assert client.asked == asked + [("old", "RUNNING"), ("old", "collector/policy_version")] * bool(runs)
    assert client.params == ([] if runs else [(f"option.{number}", str(number)) for number in range(250)])


@pytest.mark.parametrize(("summary", "logged"), [({}, [0, 1, 30, 31]), ({"frames": 30}, [31])])
def test_wandb_gets_every_step_that_it_does_not_have(monkeypatch, summary, logged):
    calls = []

    class Run(SimpleNamespace):
        def __getattr__(self, name):
            return lambda *arguments, **keywords: calls.append((name, arguments, keywords))

    def init(**keywords):
        calls.append(("init", (), keywords))
        return Run(summary=summary)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **keywords: keywords))
    logger = WandbLogger("folder", CONFIG, "abc", project="mine")
    for step in (0, 1, 30, 31):
        logger.log({NAME: 1.0}, step)
    logger.close()
    settings = {"console": "off", "silent": True}
    assert calls == [
        (
            "init",
            (),
            {
                "dir": "folder",
                "config": CONFIG,
                "id": "abc",
                "resume": "allow",
                "settings": settings,
                "project": "mine",
            },
        ),
        ("define_metric", ("frames",), {}),
        ("define_metric", ("*",), {"step_metric": "frames"}),
        *[("log", ({"frames": step, NAME: 1.0},), {}) for step in logged],
        ("finish", (), {"exit_code": 0}),
    ]


def test_mlflow_gets_no_name_that_it_refuses(monkeypatch):
    client, said = StandIn(), []
    monkeypatch.setitem(sys.modules, "mlflow", client)
    monkeypatch.setitem(sys.modules, "mlflow.entities", client.entities)
    names = {"a@b": "a_b", "a_b": "a_b-", "/a//b/..": "a/b", "..": "_", "ä b:c-d.e": "ä b:c-d.e"}
    logger = MlflowLogger(None, "one", config={}, say=said.append)
    for name, taken in names.items():
        assert logger._name(name).startswith(taken)
        assert logger._name(name) == logger._name(name)
    assert len({*map(logger._name, names)}) == len(names)
    assert len(said) == 4


class Recorder:
    def __init__(self, fails_at=None, holds=None):
        self.lines, self.closed, self._fails_at, self._holds = [], False, fails_at, holds

    def log(self, scalars, step):
        if self._holds is not None:
            self._holds.wait(60)
        if step == self._fails_at:
            raise OSError("no space")
        self.lines.append((step, scalars))

    def close(self):
        self.closed = True


def events_of(made):
    return lambda name, **fields: made.append((name, fields))


def test_a_logger_that_fails_gets_no_more_lines_and_others_go_on():
    good, bad, events = Recorder(), Recorder(fails_at=2), []

    def impossible():
        raise ImportError("not installed")

    threads = LoggerThreads({"good": lambda: good, "bad": lambda: bad, "none": impossible}, events_of(events))
    for frames in (1, 2, 3):
        threads({"frames": frames, "mean_return": None, "version": 0, "scalars": {"loss": 0.5}, "workers": []})
    threads.close()
    threads.close()
    assert [step for step, _ in good.lines] == [1, 2, 3]
    assert good.lines[0][1] == {"collector/policy_version": 0, "train/loss": 0.5}
    assert ([step for step, _ in bad.lines], bad.closed, good.closed) == ([1], True, True)
    assert sorted(fields["logger"] + ": " + fields["message"] for _, fields in events) == [
        "bad: OSError: no space",
        "none: ImportError: not installed",
    ]


def test_a_logger_that_hangs_takes_no_time_of_the_run_and_no_memory_without_end(monkeypatch):
    monkeypatch.setattr("collectx.run.logger_threads._MAX_LINES", 100)
    release, events = threading.Event(), []
    hanging = Recorder(holds=release)
    threads = LoggerThreads({"hanging": lambda: hanging}, events_of(events), close_timeout_s=0.1)
    began_s = time.monotonic()
    for frames in range(1000):
        threads({"frames": frames})
    threads.close()
    assert time.monotonic() - began_s < 10
    assert [name for name, _ in events] == ["logger_slow", "logger_failed"]
    assert "logger.close_timeout_s" in events[1][1]["message"]
    release.set()


def test_hyperparameters_have_the_paths_of_options():
    assert flat({"env": {"id": "a", "kwargs": {}}, "seed": 1}) == {"env.id": "a", "env.kwargs": {}, "seed": 1}


def test_a_run_is_called_as_its_folder_and_keeps_its_id_in_wandb_and_mlflow(tmp_path):
    cfg, files = (
        composed("logger=[tensorboard,csv,wandb,mlflow] logger.wandb.mode=offline logger.mlflow.name=mine seed=5"),
        RunFolder(tmp_path / "a"),
    )
    files.begin()
    made = factories(cfg, files, 7)
    again = factories(cfg, files, None)
    assert [*made] == ["tensorboard", "csv", "wandb", "mlflow"]
    assert made["wandb"].keywords["run_id"] == again["mlflow"].keywords["run_id"] == files.logger_id.read_text()
    assert len(files.logger_id.read_text()) == 16
    assert (made["wandb"].keywords["name"], made["mlflow"].keywords["name"]) == ("a", "mine")
    assert (made["csv"].args, made["csv"].keywords["step"]) == ((files.progress,), 7)
    assert (made["tensorboard"].args, made["tensorboard"].keywords["config"]["seed"]) == ((files.tensorboard,), 5)
    assert factories(composed(""), files, None) == {}


@pytest.mark.parametrize("step", [None, 20])
def test_tensorboard_gets_one_event_for_a_step_and_hyperparameters_at_the_end(monkeypatch, step):
    calls = []

    class Summary(dict):
        def __init__(self, value):
            super().__init__(value)

        Value = staticmethod(lambda tag, simple_value: (tag, simple_value))

    def note(name):
        return lambda *arguments, **keywords: calls.append((name, *arguments, *keywords.items()))

    writer = SimpleNamespace(
        add_text=note("text"), close=note("close"), file_writer=SimpleNamespace(add_summary=note("event"))
    )
    modules = {
        "tensorboard.compat.proto.summary_pb2": SimpleNamespace(Summary=Summary),
        "torch.utils.tensorboard": SimpleNamespace(SummaryWriter=lambda *a, **k: note("open")(*a, **k) or writer),
        "torch.utils.tensorboard.summary": SimpleNamespace(hparams=lambda *pair: pair),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    logger = TensorBoardLogger("folder", {"a": 1, "b": [2]}, step)
    logger.log({"loss": 0.5}, 30)
    logger.log({NAME: 7.0, "loss": 0.25}, 40)
    logger.close()
    opened, *more = calls
    assert opened == ("open", "folder", ("purge_step", None if step is None else 21), ("max_queue", 1000))
    text = ("text", "config", "| option | value |\n|---|---|\n| a | 1 |\n| b | [2] |")
    events = [("event", {"loss": 0.5}, 30), ("event", {NAME: 7.0, "loss": 0.25}, 40)]
    hparams = [("event", {"a": 1, "b": "[2]"}), ("event", {NAME: 7.0}), ("close",)]
    assert more == [*([text] if step is None else []), *events, *hparams]
    calls.clear()
    logger = TensorBoardLogger("folder")
    logger.log({"loss": 0.5}, 30)
    logger.close()
    assert [name for name, *_ in calls] == ["open", "event", "close"]
