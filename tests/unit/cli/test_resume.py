"""`collectx resume` and `resume=auto`: what is refused, what is complete already, and what a resume may change."""

import json
import os
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest
from composed_overrides import composed
from stand_in_slurm import write_result

import collectx.run
from collectx.checkpoints import Checkpoints
from collectx.cli import reproduce, resume, run
from collectx.cli.compose import Composer
from collectx.config.registry import marked
from collectx.jobs.status import write_job
from collectx.run import RunFolder
from collectx.run.after import foreign_code
from collectx.run.folder import saved_config, snapshot
from collectx.run.folder.layout import locked


@pytest.fixture
def old(stub, tmp_path):
    """`old(status, line)` makes the folder of a run, whose name is that of a point of a sweep, with a checkpoint."""

    def make(status="interrupted", line=""):
        stub.status = lambda cfg: status
        stub.execute(composed(f"trainer.digest=true {line}"), tmp_path / "seed=0,a=1", [])
        files = RunFolder(tmp_path / "seed=0,a=1")
        Checkpoints(files.checkpoints).write(2, {"frames": 1024, "batches": 2}, {"state.pt": {}})
        del stub.calls[:]
        return files

    return make


def test_a_run_is_resumed_in_its_folder_with_its_configuration(stub, old):
    files = old()
    assert resume.main([str(files.path), "collector.total_frames=1024000"]) == 130
    ((cfg, folder, _),) = stub.calls
    assert (cfg.run.resume, cfg.collector.total_frames, folder) == ("auto", 1024000, files.path)


def test_a_folder_in_place_of_auto_is_told_the_command(stub, old, capsys):
    assert run.main([f"resume={old().path}"]) == 2
    assert "must be never or auto. To continue the run in " in capsys.readouterr().err
    assert not stub.calls


@pytest.mark.ci
@pytest.mark.parametrize("before", ["", "logger=tensorboard"])
def test_a_resume_chooses_other_loggers(stub, old, before):
    assert resume.main([str(old(line=before).path), "run.max_batches=9", "logger=[csv]"]) == 130
    logger = stub.calls[-1][0].logger
    assert (logger.csv is not None, logger.tensorboard) == (True, None)


def test_a_run_that_is_running_or_queued_is_not_said_to_have_no_checkpoint(stub, old, queue, capsys):
    files = old()
    files.result.unlink()
    shutil.rmtree(files.checkpoints)
    files.meta.write_text(json.dumps({"format": 2, "id": "0", "host": socket.gethostname()}))
    with locked(files, replace=True):
        assert resume.main([str(files.path)]) == 2
    told = (
        f"running as process {os.getpid()} on {socket.gethostname()}. Wait until it ends, or stop it: collectx cancel "
    )
    assert f"{told}{files.path}" in (err := capsys.readouterr().err)
    assert "checkpoint" not in err
    files.jobs.mkdir()
    write_job(files, "7")
    queue.states = {"7": "PENDING"}
    assert resume.main([str(files.path)]) == 2
    assert f"{files.path} is queued as job 7. Wait until it ends" in capsys.readouterr().err
    queue.states = {"7": "CANCELLED"}
    assert resume.main([str(files.path)]) == 2
    assert "contains no checkpoint" in capsys.readouterr().err
    assert not stub.calls


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed=1", "seed (was 0, now 1) cannot change when you resume"),
        ("env.num_envs=4", "env.num_envs (was"),
        ("collector.num_workers=4", "collector.num_workers (was 2, now 4) cannot change"),
        ("collector.init_random_frames=2000", "collector.init_random_frames (was null, now 2000)"),
        ("trainer=impala", "trainer=impala (was ppo) cannot change when you resume"),
        ("trainer.gama=1", "Did you mean trainer.gamma?"),
        ("-m", "continues one run"),
        ("run.resume=never", "Leave out run.resume=never"),
        ("run.overwrite=true", "Leave out run.overwrite=true"),
        ("hydra.run.dir=elsewhere", "Leave out hydra.run.dir=elsewhere"),
    ],
)
def test_what_does_not_fit_the_saved_state_is_refused_before_anything_starts(stub, old, capsys, line, message):
    assert resume.main([str(old().path), line]) == 2
    assert message in capsys.readouterr().err
    assert not stub.calls


def test_no_rule_advises_another_value_of_an_option_that_is_fixed(stub, old, capsys):
    folder = str(old().path)
    assert resume.main([folder, "collector.num_workers=3"]) == 2
    said = capsys.readouterr().err
    assert "collector.num_workers (was 2, now 3) cannot change" in said
    assert "Use collector.frames_per_batch=" not in said
    # Other problems are told with it, or before.
    assert resume.main([folder, "collector.num_workers=3", "trainer.gama=1"]) == 2
    said = capsys.readouterr().err
    assert "trainer.gamma" in said
    assert "cannot change" in said
    assert resume.main([folder, "collector.num_workers=x"]) == 2
    assert "must be an integer" in capsys.readouterr().err
    assert not stub.calls


@pytest.mark.ci
def test_a_completed_run_is_left_as_it_is_unless_its_end_is_changed(stub, old, capsys):
    files = old("completed")
    words = ["trainer.digest=true", f"hydra.run.dir='{files.path}'", "resume=auto"]
    assert resume.main([str(files.path)]) == run.main(words) == 0
    assert capsys.readouterr().err.count("already complete") == 2
    assert not stub.calls
    assert not files.hydra.exists()
    assert resume.main([str(files.path), "run.max_batches=5"]) == run.main([*words, "run.max_batches=6"]) == 0
    assert [cfg.run.max_batches for cfg, *_ in stub.calls] == [5, 6]


def test_a_run_that_a_limit_ended_has_nothing_left_whatever_else_is_changed(stub, old, capsys):
    files = old("completed")
    write_result(files.path, "completed", "all frames delivered")
    before = files.result.read_bytes()
    for word in ("trainer.learning_rate=1e-4", "run.max_batches=9", "collector.worker_timeout_s=90"):
        assert resume.main([str(files.path), word]) == 0
        said = capsys.readouterr().err
        assert "already complete: all frames delivered. To train longer" in said
        assert re.sub("1e-4", "0.0001", f"collector.total_frames=N {word}\n") in said
    assert resume.main([str(files.path), "seed=9"]) == 2
    assert "seed (was 0, now 9) cannot change" in (said := capsys.readouterr().err)
    assert "Leave it out, or start a new run" in said
    assert (stub.calls, files.result.read_bytes()) == ([], before)
    assert resume.main([str(files.path), "collector.total_frames=1024000"]) == 0
    # A trainer that ended its run may go on with other options.
    write_result(files.path, "completed", "trainer.target_return=9 is reached")
    assert resume.main([str(files.path), "trainer.target_return=400"]) == 0
    assert len(stub.calls) == 2


def test_a_run_without_a_checkpoint_begins_anew_only_by_itself(stub, old, capsys):
    files = old("failed")
    Checkpoints(files.checkpoints).remove_after(0)
    assert resume.main([str(files.path)]) == 2
    assert "To start over, repeat what started it, with run.overwrite=true." in capsys.readouterr().err
    meta = json.loads(files.meta.read_text())
    typed = ["collectx", "run", "seed=7", "logger=[csv, wandb]", "resume=auto"]
    files.meta.write_text(json.dumps({**meta, "argv": typed, "cwd": os.getcwd()}))
    assert resume.main([str(files.path)]) == 2
    again = shlex.split(capsys.readouterr().err.partition(" To start over: ")[2])
    assert again == [*typed[:-1], f"hydra.run.dir='{files.path.name}'", "run.overwrite=true"]
    files.meta.write_text(json.dumps({**meta, "argv": [*typed, "-m"], "cwd": "/there"}))
    (files.path.parent / "multirun.yaml").touch()
    assert resume.main([str(files.path)]) == 2
    assert f"cd /there && collectx run seed=7 'logger=[csv, wandb]' -m hydra.sweep.dir={files.path.parent}\n" in (
        capsys.readouterr().err
    )
    assert run.main([f"hydra.run.dir='{files.path}'", "seed=7", "resume=auto"]) == 1
    assert stub.calls[0][0].seed == 7


@pytest.mark.ci
def test_checkpoints_of_another_user_are_read_on_request_only(stub, old, capsys, within):
    files = old()
    within(foreign_code, "os", geteuid=lambda: os.getuid() + 1)
    assert run.main([f"hydra.run.dir='{files.path}'", "resume=auto"]) == resume.main([str(files.path)]) == 2
    point = ["-m", f"hydra.sweep.dir={files.path.parent}", f"hydra.sweep.subdir='{files.path.name}'"]
    assert run.main(["trainer.digest=true", *point]) == 2
    assert capsys.readouterr().err.count("--trust") == 3
    assert not stub.calls
    assert resume.main([str(files.path), "--trust"]) == 130


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "mode"),
    [("", 0o020), ("000000002", 0o002), ("000000002/state.pt", 0o020), ("000000002/manifest.json", 0o002)],
)
def test_checkpoints_that_others_can_write_to_are_read_on_request_only(stub, old, capsys, name, mode):
    files = old()
    path = files.checkpoints / name
    path.chmod(path.stat().st_mode | mode)
    assert run.main([f"hydra.run.dir='{files.path}'", "resume=auto"]) == resume.main([str(files.path)]) == 2
    assert f"other users can write to {path}" in (err := capsys.readouterr().err)
    chmod = f"changed a file: chmod -R go-w {files.checkpoints}, or add run.trust=true (collectx resume {files.path} "
    assert err.count(f"{chmod}--trust)\n") == 2
    assert not stub.calls
    assert resume.main([str(files.path), "--trust"]) == 130


@pytest.mark.ci
def test_checkpoints_that_others_could_write_to_are_read_when_they_no_longer_can(stub, old):
    files = old()
    files.checkpoints.chmod(0o775)
    assert resume.main([str(files.path)]) == 2
    files.checkpoints.chmod(0o755)
    assert resume.main([str(files.path)]) == 130


@pytest.mark.ci
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to other users")
def test_a_file_of_another_user_in_a_checkpoint_is_read_on_request_only(stub, old, capsys):
    files = old()
    os.chown(files.checkpoints / "000000002" / "state.pt", 12345, -1)
    assert resume.main([str(files.path)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert resume.main([str(files.path), "--trust"]) == 130


@pytest.mark.ci
def test_a_run_is_reproduced_up_to_where_a_resume_changed_it(stub, old, capsys):
    files = old()
    before = files.config.read_text()
    saved_config.write_snapshot(composed("trainer.digest=true checkpoint.keep=5"), files, [], 1)
    saved_config.write_snapshot(composed("trainer.digest=true trainer.gamma=0.5"), files, [], 2)
    assert (files.config.read_text(), [batches for batches, _ in files.configs]) == (before, [0, 1, 2])
    stub.status, stub.digests, stub.workers = (lambda cfg: "completed"), ["0", "1"], [0, 1]
    assert reproduce.main([str(files.path), "hydra.run.dir=new"]) == 0
    cfg = stub.calls[0][0]
    assert (cfg.checkpoint.keep, cfg.trainer.gamma, cfg.run.max_batches) == (5, composed().trainer.gamma, 2)
    assert f"resumed after 2 batches with trainer.gamma=0.5 (was {cfg.trainer.gamma}), " in capsys.readouterr().err
    # One that applied after the checkpoint is replaced, and the newest one is resumed.
    saved_config.write_snapshot(composed("trainer.digest=true trainer.gamma=0.25"), files, [], 1)
    assert [batches for batches, _ in files.configs] == [0, 1]
    assert [batches for batches, _ in files.parts(files.meta)] == [0, 1]
    assert files.read_meta()["seeds"] == {"seed": 0}
    assert resume.main([str(files.path)]) == 0
    assert stub.calls[-1][0].trainer.gamma == 0.25


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("collector.total_frames=9999 trainer.anneal=false run.max_batches=3 checkpoint.keep=5", (9999, 3)),
        ("collector.total_frames=9999", (192000, 1)),
    ],
)
def test_a_run_is_reproduced_beyond_changes_that_have_no_effect(stub, old, capsys, line, expected):
    """More frames change how a trainer anneals its learning rate."""
    words = [word for word in line.split() if "anneal" in word]
    stub.execute(composed(" ".join(["trainer.digest=true", *words])), old().path, [])
    files, stub.calls[:] = RunFolder(stub.calls[0][1]), []
    saved_config.write_snapshot(composed(f"trainer.digest=true {line}"), files, [], 1)
    stub.status = lambda cfg: "completed"
    reproduce.main([str(files.path), "hydra.run.dir=new"])
    cfg = stub.calls[0][0]
    assert (cfg.collector.total_frames, cfg.run.max_batches) == expected
    is_cut = "after 1 batch with collector.total_frames=9999 (was " in capsys.readouterr().err
    assert is_cut == (expected[1] == 1)


@pytest.fixture
def custom(old, tmp_path, monkeypatch):
    """The folder of a run with a trainer of the user, the module of that trainer, and `resumed(batches)`, which writes
    what a resume writes there."""
    monkeypatch.syspath_prepend(tmp_path)
    line = "trainer=custom trainer.target=learner:Learner"
    module = tmp_path / "learner.py"
    module.write_text("# as in the start\n")
    files, cfg = old(line=line), composed(f"trainer.digest=true {line}")
    snapshot.write_meta(cfg, files, ["collectx", "run"])
    return files, module, lambda batches: saved_config.write_snapshot(cfg, files, ["collectx", "resume"], batches)


_CHANGED = "note: the source of trainer.target=learner:Learner has changed since the run.\n"


@pytest.mark.ci
def test_a_resume_keeps_what_describes_the_start_and_tells_of_edited_sources(custom, monkeypatch, capsys):
    files, module, resumed = custom
    monkeypatch.setattr(Composer, "run", lambda *_: None)
    monkeypatch.setattr(snapshot, "_diff", lambda folder: b"patch")
    before = files.meta.read_bytes()

    def is_told():
        assert resume.main([str(files.path)]) == 0
        return _CHANGED in capsys.readouterr().err

    assert not is_told()
    module.write_text("# edited\n")
    assert is_told()
    for batches in (1, 3, 2):  # the last one begins from an earlier checkpoint
        resumed(batches)
    assert not is_told()
    assert files.meta.read_bytes() == before
    assert files.read_meta()["argv"] == ["collectx", "resume"]
    assert [batches for batches, _ in files.parts(files.meta)] == [0, 1, 2]
    assert [path.name for _, path in files.parts(files.patch)][1:] == ["git-000000001.patch", "git-000000002.patch"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("batches", "restores", "expected"),
    [(1, False, ""), (1, True, " from batch 1 on"), (3, True, None)],
    ids=["start", "resume", "nothing-after-the-resume"],
)
def test_reproduce_compares_the_sources_of_all_parts_that_it_repeats(
    stub, custom, monkeypatch, capsys, batches, restores, expected
):
    files, module, resumed = custom
    start = module.read_text()
    module.write_text("# edited\n")
    resumed(batches)
    if restores:
        module.write_text(start)
    stub.status, stub.digests = (lambda cfg: "completed"), ["0", "other", "2"]
    execute = stub.execute

    def executed(cfg, folder, argv, *others):
        result = execute(cfg, folder, argv, *others)
        snapshot.write_meta(cfg, RunFolder(folder), argv)
        return result

    monkeypatch.setattr(collectx.run, "execute", executed)
    assert reproduce.main([str(files.path), "hydra.run.dir=new"]) == 1
    out, err = capsys.readouterr()
    assert (_CHANGED in err) == (expected is not None)
    ((name, now),) = snapshot.digests(composed("trainer=custom trainer.target=learner:Learner")).items()
    lines = [line for line in out.splitlines() if f"source of {name}: {now} in this run, " in line]
    assert [line.endswith(f" in {files.path}{expected}") for line in lines] == [True] * (expected is not None)


def test_a_run_is_reproduced_up_to_where_envs_began_new_episodes(old):
    files = old()
    with open(files.events, "w") as file:
        for batches, reasons in ((1, {}), (2, {"0": "it is EnvPool"}), (3, {"0": "it is EnvPool"})):
            file.write(json.dumps({"event": "resumed", "batches": batches, "new_episodes": reasons}) + "\n")
    assert saved_config.repeatable_config(files)[1].batches == 2


PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "resume.md").read_text()


def test_the_page_names_the_options_that_do_not_affect_batches():
    text = PAGE[PAGE.index("These options do not affect batches") : PAGE.index("## Data that moved")]
    names = [name for group in ("", "collector") for name in marked(group, "without_effect")]
    others = ["collector", "total_frames", "trainer.anneal"]
    assert sorted(re.findall(r"`([\w.]+)`", text)) == sorted([*names, *others])


def test_the_page_names_every_option_that_a_resume_may_not_change():
    text = PAGE
    fixed = text[text.index("| fixed options |") : text.index("The [configuration reference]")]
    names = {name for group in ("collector", "trainer", "inference") for name in marked(group, "kept")}
    assert [name for name in names if f"`{name}`" not in fixed and f".{name}`" not in fixed] == []
