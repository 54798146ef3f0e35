"""`collectx reproduce`: from the snapshot, whatever the packaged defaults are; the verdict and the exit status."""

import importlib.util
import json
import os
import re
import socket
from contextlib import nullcontext

import pytest
from batch_lines import batch_line, write_lines
from composed_overrides import composed
from omegaconf import OmegaConf

from collectx.cli import reproduce, run
from collectx.run import RunFolder
from collectx.run.after import foreign_code
from collectx.run.folder import snapshot
from collectx.run.folder.batch_line import WorkerEntry
from collectx.run.resume import recorded_order

LINE = json.dumps(batch_line(digest="0").to_json())


@pytest.fixture
def old(stub, tmp_path):
    """`old(line)` makes the folder of a run of that configuration."""

    def make(line=""):
        stub.execute(composed(f"trainer.digest=true env=pendulum env.kwargs.g=1 {line}"), tmp_path / "old", [])
        return tmp_path / "old"

    return make


def test_the_same_configuration_runs_again_and_is_identical(stub, old, capsys):
    # A default that is packaged does not take the place of what the snapshot has.
    folder = old("collector.num_slots=7")
    assert reproduce.main(["old", "--config-dir", "."]) == 0
    (first, _, _), (second, other, argv) = stub.calls
    assert second == first
    assert second.collector.num_slots == 7
    assert other != folder
    assert argv == ["collectx", "reproduce", "old", "--config-dir", "."]
    assert "identical: all 3 batches are identical" in capsys.readouterr().out


@pytest.mark.ci
def test_key_and_group_overrides_in_the_folder_of_a_point_of_a_sweep(stub, old):
    old().rename("seed=3")
    line = ["launcher=inline", "env.kwargs.g=2", "trainer.gamma=0.6", "hydra.run.dir=new"]
    assert reproduce.main(["seed=3", *line]) == 0
    cfg, folder, _ = stub.calls[-1]
    assert (cfg.launcher.kind, cfg.env.id, cfg.env.kwargs) == ("inline", "Pendulum-v1", {"g": 2})
    assert (cfg.trainer.gamma, folder.name) == (0.6, "new")


@pytest.mark.parametrize(
    ("line", "typed", "added"),
    [
        ("", "seed=3", "trainer.digest=true"),
        ("", "seed=3 trainer.digest=false", ""),
        ("trainer=record trainer.dir=data", "", "trainer.digest=true trainer.dir=null"),
        ("launcher=slurm launcher.wait=false", "launcher.wait=false", "trainer.digest=true launcher.wait=true"),
        ("collector.total_frames=-1", "seed=3", "trainer.digest=true run.max_batches=3"),
        ("collector.total_frames=-1", "seed=3 run.max_batches=2", "trainer.digest=true"),
    ],
)
def test_what_a_reproduction_adds_to_the_typed_line(stub, old, monkeypatch, line, typed, added):
    stub.status = lambda cfg: "interrupted" if cfg.collector.total_frames < 0 else "completed"
    words = []
    old(line)
    monkeypatch.setattr(reproduce, "launch", lambda composer, arguments, *_: words.extend(arguments.words) or 3)
    assert reproduce.main(["old", *typed.split()]) == 3
    assert words == [*typed.split(), *added.split()]


def test_a_difference_names_the_first_batch(stub, old, capsys):
    old()
    stub.digests = ["0", "other", "2"]
    # The digest stays on when the trainer is replaced.
    assert reproduce.main(["old", "trainer=meter"]) == 1
    assert stub.calls[-1][0].trainer.digest is True
    out = capsys.readouterr().out
    assert "batch 1 is the first that differs" in out
    assert "note: you changed trainer.kind (was ppo, now meter); " in out
    assert "these other differences between the runs may explain the result:" in out
    assert re.search("torch threads of the trainer: 2 in this run, 1 in ", out)


def test_packages_with_another_version_are_named_and_others_counted(stub, old, capsys):
    stub.packages = {"torch": "1", "numpy": "2", "gone": "3"}
    old()
    stub.packages = {"torch": "2", "numpy": "2", "absl-py": "4", "babel": "5"}
    stub.digests = ["0", "other", "2"]
    assert reproduce.main(["old"]) == 1
    *_, torch, others = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  torch: 2 in this run, 1 in .*old", torch)
    assert others == "  packages that only one of the runs has: 3, see snapshot/meta.json"


def test_many_differences_are_counted(stub, old, capsys, monkeypatch):
    old()
    stub.digests = ["0", "other", "2"]
    for count, more in ((12, None), (14, "and 2 more: see snapshot/meta.json")):
        monkeypatch.setattr(
            reproduce.snapshot, "differences", lambda *runs, count=count: [f"{i}." for i in range(count)]
        )
        assert reproduce.main(["old", "trainer=meter"]) == 1
        out = capsys.readouterr().out
        assert more in out if more else "more: see" not in out


@pytest.mark.ci
def test_a_difference_after_the_loss_of_a_worker_says_so(stub, old, capsys):
    with open(old() / "events.jsonl", "a") as file:
        file.write('{"event":"worker_restarted","worker":1}\n')
    stub.digests = ["0", "other", "2"]
    assert reproduce.main(["old"]) == 1
    assert "lost worker 1, and batches after a loss cannot be repeated" in capsys.readouterr().out


@pytest.mark.ci
def test_a_run_without_digest_runs_again_and_says_so(stub, old, capsys):
    old("trainer.digest=false")
    assert reproduce.main(["old"]) == 0
    assert len(stub.calls) == 2
    assert "recorded no batch digests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "status"),
    [("interrupted", "completed"), ("failed", "completed"), ("failed", "failed"), (None, "completed")],
)
def test_a_run_that_was_cut_is_compared_up_to_its_end(stub, old, capsys, ended, status):
    stub.status = lambda cfg: ended or "failed"
    folder = old("collector.total_frames=-1")
    if ended is None:
        (folder / "result.json").unlink()
    stub.status = lambda cfg: status
    assert reproduce.main(["old"]) == 0
    assert stub.calls[-1][0].run.max_batches == 3
    assert "identical up to its end: all 3 batches" in capsys.readouterr().out


def test_a_run_without_a_batch_is_refused_and_one_that_goes_on_grows_meanwhile(stub, old, capsys):
    folder = old("collector.total_frames=-1")
    (folder / "result.json").unlink()
    lines = (folder / "metrics.jsonl").read_text()

    def grow(cfg):
        (folder / "metrics.jsonl").write_text(lines * 2)
        return "completed"

    stub.status = grow
    assert reproduce.main(["old"]) == 0
    assert "identical up to its end: all 3 batches" in capsys.readouterr().out
    (folder / "metrics.jsonl").write_text("")
    assert reproduce.main(["old"]) == 2
    assert "delivered no batch, so there is nothing to repeat" in capsys.readouterr().err
    assert len(stub.calls) == 2


def test_what_a_launcher_executes_is_shown():
    words = "launcher=submitit_delayed launcher.setup=[a] launcher.srun={b:1} launcher.trainer.container=/c"
    shown = {key for key, *_ in foreign_code.references(composed(f"{words} launcher.worker.sbatch={{d:1}}"))}
    ray = {key for key, *_ in foreign_code.references(composed("launcher=ray launcher.ray_init_config={address:e}"))}
    assert shown >= {"launcher.setup", "launcher.srun", "launcher.trainer.container", "launcher.worker.sbatch"}
    assert "launcher.ray_init_config" in ray


def test_a_failed_reproduction_is_not_compared(stub, old, capsys):
    old()
    stub.status = lambda cfg: "failed"
    assert reproduce.main(["old"]) == 1
    assert "identical" not in capsys.readouterr().out


@pytest.mark.ci
def test_a_run_that_began_with_some_workers_waits_for_all(stub, old, capsys):
    """The log does not record which workers were ready for which batch."""
    old("collector.min_workers=1 collector.on_worker_failure=drop")
    stub.digests = ["0", "other", "2"]
    assert reproduce.main(["old"]) == 1
    assert stub.calls[-1][0].collector.min_workers is None
    assert "the frames of the workers that are ready" in capsys.readouterr().out


def test_an_async_run_is_delivered_in_its_order_or_the_reason_why_not_is_said(stub, old, capsys):
    folder = old("collector=multi_async")
    stub.digests = ["0", "other", "2"]
    for event in ("worker_failed", "worker_restarted"):  # the first one ended the run
        (folder / "events.jsonl").write_text(json.dumps({"time": 1.0, "event": event, "worker": 1}) + "\n")
        assert reproduce.main(["old"]) == 1
        is_lost = event == "worker_restarted"
        assert stub.calls[-1][0].collector.order_of == (None if is_lost else str(folder))
        assert ("lost a worker, and did not record" in capsys.readouterr().out) == is_lost


@pytest.mark.parametrize(("names", "is_lost"), [
    ("checkpoint.4 loss resumed.4", False),
    ("checkpoint.4 loss checkpoint.8 resumed.4", False),
    ("checkpoint.4 loss checkpoint.8 resumed.8", True),
    ("loss checkpoint.4 resumed.4", True),
    ("checkpoint.4 loss resumed.4 loss", True),
    ("loss resumed.4", True),
])  # fmt: skip
def test_a_loss_counts_only_if_its_batches_were_kept(old, names, is_lost):
    folder = old("collector=multi_async")
    lines = []
    for name, _, batches in (each.partition(".") for each in names.split()):
        event = "worker_restarted" if name == "loss" else name
        lines.append(json.dumps({"event": event} | ({"batches": int(batches)} if batches else {})))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="lost a worker") if is_lost else nullcontext():
        assert recorded_order(folder)


def test_a_snapshot_without_an_option_of_a_newer_version_is_read(stub, old, capsys):
    config = old() / "snapshot" / "config.yaml"
    content = OmegaConf.load(config)
    content.logger = {"csv": {}}
    OmegaConf.save(content, config)
    reproduce.main(["old", "logger=[]"])
    assert stub.calls[-1][0].logger.close_timeout_s == 30.0
    assert "KeyError" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "typed", "reason"),
    [
        ("collector=multi_async", ["seed=3"], None),
        ("collector=multi_async", ["+collector.num_slots=3"], "you overrode options of the collector"),
        ("collector=multi_async", ["~collector.x"], "you overrode options of the collector"),
        ("collector=multi_async collector.refresh=step", [], "the weights change within a batch"),
        ("collector=multi_async collector.min_workers=1", [], None),
        ("collector=multi_sync", ["collector.num_slots=3"], ""),
        ("collector=multi_sync collector.refresh=step", [], ""),
        ("collector=multi_sync collector.min_workers=1", [], "with collector.min_workers, a batch contains"),
        ("collector=multi_sync collector.preemptive_threshold=0.5", [], "a batch ends when enough workers are ready"),
    ],
)
def test_why_batches_may_differ(tmp_path, line, typed, reason):
    files = RunFolder(tmp_path)
    files.begin()
    write_lines(files.metrics, [batch_line(digest="0", workers=[WorkerEntry(0, 0)])])
    said = reproduce._order_problem(files, composed(f"trainer=meter {line}"), typed)
    assert said == reason or (reason and reason in said)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("collector=multi_async inference=server", True),
        ("collector=multi_sync inference=server inference.order=ready", True),
        ("collector=multi_sync inference=server", False),
        ("collector=multi_async", False),
    ],
)
def test_a_run_whose_policy_calls_depend_on_timing_is_repeated_with_a_note(stub, old, capsys, line, is_told):
    folder = old(line)
    stub.digests = ["0", "other", "2"]
    assert reproduce.main(["old"]) == 1
    told = capsys.readouterr()
    reason = "with inference=server and inference.order=ready, each policy call serves the envs that wait"
    assert (f"note: the batches may differ from those in {folder}: {reason}" in told.err) == is_told
    assert (f"which was not repeated: {reason}" in told.out) == is_told
    is_ordered = stub.calls[-1][0].collector.order_of is not None
    assert is_ordered == ("multi_async" in line and not is_told)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["collector=multi_async", "collector.order_of=old"], "that run had at least 4 workers, but"),
        (["collector.order_of=old"], "the batches of collector=multi_sync always come in the same order"),
        (["collector=multi_async", "collector.order_of=nowhere"], "contains no delivered batch"),
        (["collector=multi_async", "inference=server", "collector.order_of=old"], "serves the envs that wait"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(stub, old, capsys, line, message):
    stub.workers = [0, 3, 1]
    old()
    assert run.main(line) == 2
    assert message in capsys.readouterr().err


@pytest.mark.ci
def test_code_that_a_folder_names_is_shown_and_that_of_another_user_is_trusted_on_request_only(
    stub, old, capsys, within
):
    folder = old("env.entry_point=types:SimpleNamespace env.id=null")
    with open(folder / "snapshot" / "config.yaml", "a") as file:
        file.write("hydra: {run: {dir: elsewhere}}\n")
    within(foreign_code, "os", geteuid=lambda: os.getuid() + 1)
    assert reproduce.main(["old"]) == 2
    err = capsys.readouterr().err
    assert f"env.entry_point=types:SimpleNamespace is imported from {importlib.util.find_spec('types').origin}\n" in err
    assert "--trust" in err
    assert len(stub.calls) == 1
    assert reproduce.main(["old", "--trust"]) == 0
    assert "types:SimpleNamespace" in capsys.readouterr().err
    # Where it goes is not the folder's to say.
    assert stub.calls[-1][1].parts[-3] == "outputs"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("snapshot/config.yaml", "env: {", "cannot be read"),
        ("snapshot/config.yaml", "", "is damaged: it contains no configuration"),
        ("metrics.jsonl", f"{LINE}\n\0\n", "is damaged: line 2 is not JSON"),
        (
            "metrics.jsonl",
            json.dumps(json.loads(LINE) | {"workers": [[]]}) + "\n",
            "is damaged: line 1 does not describe a batch",
        ),
        ("events.jsonl", "[]\n", "is damaged: line 1 is not a JSON object"),
        ("result.json", '{"status": 3}', "is damaged: its status is 3"),
    ],
)
def test_a_damaged_folder_is_one_message_before_anything_starts(stub, old, capsys, name, text, message):
    path = old("collector=multi_async") / name
    path.write_text(text)
    assert reproduce.main(["old"]) == 2
    assert capsys.readouterr().err.splitlines()[1].startswith(f"  - {path} {message}")
    assert len(stub.calls) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere"], "there is no folder "),
        ([], "which run?"),
        (["old", "nowhere"], "name one run folder, not 2 (old, nowhere)."),
        (["old", "-m"], "collectx run -m"),
        (["old", "hydra.run.dir=old", "run.overwrite=true"], "is the folder of the run to reproduce"),
        (["old", "trainer.gama=1"], "Did you mean trainer.gamma?"),
        (["old", "env=cartpol"], "Did you mean env=cartpole?"),
    ],
)
def test_wrong_usage(stub, old, capsys, argv, message):
    old()
    assert reproduce.main(argv) == 2
    assert message in capsys.readouterr().err
    assert len(stub.calls) == 1


@pytest.mark.ci
def test_changed_sources_of_user_code_are_named(stub, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "mine" / "envs"
    package.mkdir(parents=True)
    env, helper, trainer = package / "one.py", package / "helper.py", tmp_path / "learner.py"
    for path in (tmp_path / "mine" / "__init__.py", package / "__init__.py", env, helper, trainer):
        path.write_text("raise AssertionError('imported')\n")
    words = "env=gym env.id=null env.entry_point=mine.envs.one:make trainer=custom trainer.target=learner:Learner"
    words += " env.wrappers=[mine.envs:wrap,gymnasium.wrappers.TimeLimit] policy=custom policy.target=none:n"
    cfg = composed(words)
    stub.execute(cfg, tmp_path / "old", [])
    snapshot.write_meta(cfg, RunFolder(tmp_path / "old"), [])

    def changed():
        reproduce.main(["old"])
        lines = capsys.readouterr().err.splitlines()
        return sorted(line.split()[4].partition("=")[0] for line in lines if line.endswith(" changed since the run."))

    assert changed() == []
    trainer.write_text("# changed\n")
    assert changed() == ["trainer.target"]
    helper.write_text("# changed\n")
    assert changed() == ["env.wrappers[0]", "trainer.target"]
    env.write_text("# changed\n")
    assert changed() == ["env.entry_point", "env.wrappers[0]", "trainer.target"]


@pytest.mark.ci
def test_one_line_tells_which_files_a_run_of_another_machine_imports(stub, old, capsys, tmp_path, monkeypatch):
    for name in ("some_env", "some_policy"):
        (tmp_path / f"{name}.py").write_text("make = None")
    monkeypatch.syspath_prepend(tmp_path)
    files = RunFolder(old("env.entry_point=some_env:make env.id=null policy=custom policy.target=some_policy:make"))
    for host, is_said in ((socket.gethostname(), False), ("elsewhere", True)):
        files.meta.write_text(json.dumps(files.read_meta() | {"format": 2, "id": "0", "host": host}))
        reproduce.main(["old"])
        note = "note: env.entry_point=some_env:make is imported from some_env.py; policy.target=some_policy:make is"
        assert (f"{note} imported from some_policy.py\n" in capsys.readouterr().err) == is_said


@pytest.mark.ci
def test_a_module_of_the_folder_in_which_the_run_began_is_missed_with_that_folder(stub, old, capsys):
    files = RunFolder(old("env.entry_point=not_here.envs:make env.id=null"))
    for cwd, advice in (
        ("/proj", ". The run began in /proj: start from there, or add it to PYTHONPATH."),
        (os.getcwd(), ""),
    ):
        files.meta.write_text(json.dumps({"format": 2, "id": "0", "cwd": cwd}))
        reproduce.main(["old"])
        missing = "note: env.entry_point=not_here.envs:make names the package 'not_here', which is not installed here"
        assert missing + advice in capsys.readouterr().err.splitlines()
