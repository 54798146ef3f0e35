"""A run that is interrupted and continued, in this process: as `collectx resume` does it, and as a job that SLURM
requeues; and checkpoints with files of something else. Over processes: tests/contract/test_resume_contract.py,
tests/system/test_resume.py, tests/slurm."""

import json
import shutil
import signal
from dataclasses import replace

import configurations
import pytest
import torch
from composed_overrides import composed
from omegaconf import OmegaConf
from user_code.drawing import DrawingTrainer, ForgetfulTrainer

from collectx import policy
from collectx.checkpoints import Checkpoints, _describe
from collectx.cli import reproduce, resume, run, watch
from collectx.config.schema.run import RunOptions
from collectx.jobs import entry
from collectx.jobs.worker_jobs import JobSpec
from collectx.run import RunFolder, Status, execute
from collectx.run.resume import ResumePoint, check_ends

_LINE = (
    "env=cartpole env.num_envs=2 policy=mlp policy.hidden_sizes=[8] trainer=custom trainer.digest=true "
    "trainer.target=user_code.drawing:DrawingTrainer collector.frames_per_batch=32 collector.total_frames=192"
)
_INLINE, _JOB = f"{_LINE} launcher=inline", f"{_LINE} collector=single launcher=slurm launcher.requeue=false"
_STOPPED = "trainer.kwargs.stop_at=3"


def check_equal(*folders):
    """Asserts that two completed runs have equal digests, logged values and last states."""
    files = [RunFolder(folder) for folder in folders]
    one, other = ([(each.batch, each.digest, each.scalars) for each in it.read_metrics()] for it in files)
    assert one == other
    assert len(one) > 3
    one, other = (it.read_result()["digest"] for it in files)
    assert one == other
    torch.testing.assert_close(*(torch.load(it.final_checkpoint) for it in files), rtol=0, atol=0)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(restarts)` runs the only task of a job of SLURM that it has started again so often; returns its status."""
    files = RunFolder(tmp_path / "run")
    cfg = composed(_JOB)
    JobSpec(replace(cfg, trainer=replace(cfg.trainer, kwargs={"stop_at": 3})), ("collectx", "run")).write(files)
    (files.jobs / "log_begin").write_text("0")

    def start(restarts):
        environment = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": str(restarts)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return entry.main([str(files.path)])

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    yield start
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_trainer_without_a_state_continues_with_the_published_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ForgetfulTrainer, "began", [])
    folder, words = tmp_path / "run", _INLINE.replace("DrawingTrainer", "ForgetfulTrainer").split()
    assert run.main([*words, _STOPPED, f"hydra.run.dir={folder}"]) == 130
    published = torch.load(RunFolder(folder).policy)
    capsys.readouterr()
    assert resume.main([str(folder), "trainer.kwargs.stop_at=0"]) == 0
    said = capsys.readouterr().out
    assert "; ForgetfulTrainer has no state_dict, so only the policy's published weights continue" in said
    first, second = ForgetfulTrainer.began
    torch.testing.assert_close(second, published, rtol=0, atol=0)
    assert not all(torch.equal(first[name], second[name]) for name in first)


def test_a_resume_that_does_not_begin_says_how_to_continue_only_what_is_incomplete(tmp_path, monkeypatch, capsys):
    folder, advice = tmp_path / "run", "to continue from the newest checkpoint: collectx resume"
    assert run.main([*_INLINE.split(), _STOPPED, f"hydra.run.dir={folder}"]) == 130
    capsys.readouterr()
    assert watch.main([str(folder)]) == 130
    assert f"{advice} {folder}" in capsys.readouterr().err
    for is_complete in (False, True):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(DrawingTrainer, "__init__", lambda self, policy, stop_at: 1 / 0)
            assert resume.main([str(folder), "trainer.kwargs.stop_at=0", "collector.total_frames=224"]) == 1
        said = capsys.readouterr().err
        assert f"the earlier run in {folder} stays, because the new one did not begin" in said
        assert (advice in said) == (not is_complete)
        assert resume.main([str(folder), "trainer.kwargs.stop_at=0"]) == 0


def test_an_edited_configuration_is_refused(tmp_path, capsys):
    files = RunFolder(tmp_path / "run")
    words = [*_INLINE.split(), f"hydra.run.dir={files.path}"]
    assert run.main([*words, _STOPPED]) == 130
    for total, name in (("224", "config.yaml"), ("256", "config-000000003.yaml")):
        written = files.newest_config.read_text()
        assert files.newest_config.name == name
        files.newest_config.write_text(written.replace("total_frames: ", "total_frames: 9"))
        for command, again in ((resume.main, [str(files.path)]), (run.main, [*words, "run.resume=auto"])):
            capsys.readouterr()
            assert command(again) == 2
            assert f"{name} was edited, so it no longer says what was run. Undo" in capsys.readouterr().err
        files.newest_config.write_text(written)
        assert resume.main([str(files.path), f"collector.total_frames={total}", "trainer.kwargs.stop_at=0"]) == 0


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (lambda self, state: state["opt"], "(KeyError: 'opt')"),
        (
            lambda self, state: torch.nn.Linear(4, 9).load_state_dict({"weight": torch.ones(9, 5)}),
            "(size mismatch for ",
        ),
        (lambda self, state: torch.nn.Linear(4, 9).load_state_dict({}), '(Missing key(s) in state_dict: "weight", "bi'),
    ],
)
def test_a_trainer_whose_code_has_changed_is_told_in_one_line(tmp_path, monkeypatch, capsys, load, why):
    folder = tmp_path / "run"
    assert run.main([*_INLINE.split(), _STOPPED, f"hydra.run.dir={folder}"]) == 130
    monkeypatch.setattr(DrawingTrainer, "load_state_dict", load)
    capsys.readouterr()
    assert resume.main([str(folder)]) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "cannot continue" in line)
    assert f"DrawingTrainer does not accept its saved state {why}" in said
    assert said.endswith("). Restore the code of the run, or mend load_state_dict.")
    assert "\t" not in said


def test_a_policy_whose_code_has_changed_is_told(tmp_path, monkeypatch, capsys):
    folder, words = tmp_path / "run", _INLINE.replace("DrawingTrainer", "ForgetfulTrainer").split()
    assert run.main([*words, _STOPPED, f"hydra.run.dir={folder}"]) == 130
    monkeypatch.setattr(policy, "build", lambda cfg, spec, seed: torch.nn.Linear(4, 3))
    assert resume.main([str(folder)]) == 2
    assert "the policy have another size than the saved ones. Restore the code of the" in capsys.readouterr().err


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("line", "batches"), [("", 3), ("collector.trajs_per_batch=2 collector.traj_format=cat", 4)], ids=["", "cat"]
)
def test_an_interrupted_run_is_resumed_as_if_it_had_not_been(tmp_path, line, batches):
    folder = tmp_path / "run"
    assert run.main([*_INLINE.split(), *line.split(), _STOPPED, f"hydra.run.dir={folder}"]) == 130
    assert resume.main([str(folder), "checkpoint.keep=3"]) == 0
    files = RunFolder(folder)
    assert files.read_meta()["argv"] == ["collectx", "resume", str(folder), "checkpoint.keep=3"]
    assert "numerics" in files.read_meta()
    assert files.read_meta(files.meta)["argv"][1] == "run"
    kept = [OmegaConf.load(path).checkpoint.keep for _, path in files.configs]
    assert (kept, files.configs[-1][0]) == ([2, 3], batches)
    execute(composed(f"{_INLINE} {line}"), tmp_path / "uncut", [])
    check_equal(folder, tmp_path / "uncut")


@pytest.mark.ci
def test_batches_that_are_full_at_the_end_of_an_async_run_are_delivered_when_it_is_resumed(tmp_path):
    line = "env=counting policy=random trainer=meter collector=multi_async collector.num_workers=2 launcher=inline"
    for batches in (3, 6):
        assert execute(composed(f"{line} run.resume=auto run.max_batches={batches}"), tmp_path, []).batches == batches
    files = RunFolder(tmp_path)
    (resumed,) = (event for event in files.read_events() if event["event"] == "resumed")
    assert resumed["new_episodes"] == {}
    state = torch.load(files.checkpoints / "000000006" / "state.pt", weights_only=True)["collector"]
    assert (len(state["undelivered"]), [*state["workers"]]) == (4, [0, 1])


@pytest.mark.ci
def test_a_requeued_job_resumes_its_run(tmp_path, job):
    assert job(restarts=0) == 130
    assert RunFolder(tmp_path / "run").read_result()["batches"] == 3
    assert job(restarts=1) == 0
    execute(composed(_JOB.replace("slurm launcher.requeue=false", "inline")), tmp_path / "uncut", [])
    check_equal(tmp_path / "run", tmp_path / "uncut")


# --- resume point ---


@pytest.fixture
def ended(cfg, folder):
    """The folder of a run of 5 batches, with checkpoints of 4 and of 5."""
    for batches in (4, 5):
        run = RunOptions(resume="auto", max_batches=batches)
        assert execute(replace(cfg, run=run), folder.path, []).status is Status.COMPLETED
    return folder


def _falls_back(cfg, ended):
    """Whether the run continues from the older checkpoint, and names the newer one."""
    point = ResumePoint(ended, cfg)
    return point.batches == 4 and len(point.damaged) == 1 and str(ended.checkpoints / "000000005") in point.damaged[0]


def test_a_state_of_the_wrong_content_falls_back_to_the_checkpoint_before(cfg, ended):
    newest, state_file = ended.checkpoints / "000000005", ended.checkpoints / "000000005" / "state.pt"
    manifest = json.loads((newest / "manifest.json").read_text())
    state = torch.load(state_file, weights_only=True)
    statistics = state["statistics"]
    without = {name: value for name, value in state.items() if name != "statistics"}
    others = [{"sums": statistics["sums"] | {"batches": 4}}, {"sums": None}, {}, []]
    for content in [[], None, {}, torch.zeros(3), without, *(state | {"statistics": each} for each in others)]:
        torch.save(content, state_file)
        files = manifest["files"] | {"state.pt": _describe(state_file)}
        (newest / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
        assert _falls_back(cfg, ended), content


@pytest.mark.ci
def test_a_manifest_of_the_wrong_content_falls_back_to_the_checkpoint_before(cfg, ended):
    path = ended.checkpoints / "000000005" / "manifest.json"
    manifest = json.loads(path.read_text())
    names = [name for name in manifest if name not in ("policy_version", "score")]  # for readers alone
    wrong = [manifest | {name: value} for name in names for value in (None, "x", [])]
    needed = [name for name in names if name != "num_learners"]  # not in checkpoints of earlier versions
    wrong += [{name: manifest[name] for name in manifest if name != left_out} for left_out in needed]
    for content in [*wrong, manifest | {"frames": -1}, [], None, 3, {}]:
        path.write_text(json.dumps(content))
        assert _falls_back(cfg, ended), content
        Checkpoints(ended.checkpoints).newest(lambda newest: check_ends(newest, cfg), names=())  # as the command does


def test_files_of_other_checkpoints_fall_back_to_the_checkpoint_before(cfg, ended):
    older, newest = ended.checkpoints / "000000004", ended.checkpoints / "000000005"
    for name in ("manifest.json", "state.pt"):
        before = (newest / name).read_bytes()
        shutil.copy(older / name, newest / name)
        assert _falls_back(cfg, ended), name
        (newest / name).write_bytes(before)
    assert ResumePoint(ended, cfg).batches == 5


@pytest.mark.parametrize("name", ["manifest.json", "state.pt"])
def test_the_command_says_that_no_checkpoint_is_left(cfg, ended, capsys, name):
    for path in ended.checkpoints.glob(f"0*/{name}"):
        path.write_text("")
    assert resume.main([str(ended.path), "collector.total_frames=120"]) == 2
    said = capsys.readouterr().err
    assert (
        f"no checkpoint in {ended.checkpoints} can be used. Restore the damaged files from a copy, or repeat the "
        in said
    )
    assert f"000000005/{name} is damaged: it " in said


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", ["run.max_batches=3", "collector.total_frames=80"])
def test_an_end_before_what_is_done_is_refused_by_the_command(cfg, ended, capsys, option):
    before = {path: path.stat().st_mtime_ns for path in ended.checkpoints.iterdir()}
    assert resume.main([str(ended.path), option]) == 2
    number, what = (5, "batches") if "max" in option else (100, "frames")
    found = f"{ended.checkpoints}/000000005 already contains {number} {what}. Choose more than {number}."
    assert f"{option} is too small: the checkpoint {found}" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in ended.checkpoints.iterdir()} == before


@pytest.mark.sample(1)
@pytest.mark.parametrize("total_frames", [81, 99])
def test_an_end_within_the_last_batch_is_none_before_what_is_done(cfg, ended, capsys, total_frames):
    """A run of 81 frames delivers 5 batches of 20, and may fail after its last checkpoint."""
    result = json.loads(ended.result.read_text())
    ended.result.write_text(json.dumps(result | {"status": Status.FAILED}))
    assert resume.main([str(ended.path), f"collector.total_frames={total_frames}"]) == 0
    assert ended.read_result()["frames"] == 100
    assert ended.is_completed


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["metrics", "events"])
@pytest.mark.parametrize("kind", ["single", "multi_async"])
def test_a_damaged_line_that_is_not_needed_does_not_prevent_a_resume(folder, kind, name):
    size = {"num_workers": 1, "frames_per_batch": 20, "total_frames": 100, "device": "cpu"}
    cfg = configurations.config(kind, "inline", **size)
    assert execute(replace(cfg, run=RunOptions(max_batches=4)), folder.path, []).status is Status.COMPLETED
    # As a power loss may leave it: lines after the checkpoint, and events, are not synced.
    with open(getattr(folder, name), "ab") as file:
        file.write(b"\0\0\0\n")
    assert resume.main([str(folder.path), "run.max_batches=5"]) == 0
    result = folder.read_result()
    assert (result["status"], result["batches"]) == (Status.COMPLETED, 5)
    assert [line.batch for line in folder.read_metrics()] == [*range(5)]


@pytest.mark.parametrize("damage", [lambda text: text[:-30], lambda text: text.replace(b'"batch":4', b'"batch":5')])
def test_a_damaged_line_falls_back_to_the_checkpoint_before_it(cfg, ended, capsys, damage):
    ended.metrics.write_bytes(damage(ended.metrics.read_bytes()))
    assert resume.main([str(ended.path), "collector.total_frames=120"]) == 0
    said = capsys.readouterr()
    assert "The run continues from an earlier checkpoint." in said.err
    assert (
        f"but the checkpoint {ended.checkpoints}/000000005 counts 5" in said.err
        or "line 5 belongs to batch 5" in said.err
    )
    assert [line.batch for line in ended.read_metrics()] == [*range(5)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("command", "line"), [(resume.main, 0), (resume.main, 3), (reproduce.main, 2)])
def test_missing_lines_are_noticed_by_the_command(cfg, ended, capsys, monkeypatch, tmp_path, command, line):
    monkeypatch.chdir(tmp_path)
    lines = ended.metrics.read_bytes().splitlines(keepends=True)
    # More batches than the checkpoint has.
    lines.append(lines[-1].replace(b'"batch":4', b'"batch":5'))
    del lines[line]
    ended.metrics.write_bytes(b"".join(lines))
    assert command([str(ended.path)] + ["collector.total_frames=120"] * (command is resume.main)) == 2
    said = capsys.readouterr().err
    assert f"{ended.metrics}: line {line + 1} belongs to batch {line + 1}, not {line}: lines are missing" in said
