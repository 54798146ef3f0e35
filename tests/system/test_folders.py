"""A run folder that other processes read, change or fill with what a user does not expect."""

import json
import signal
import textwrap

import pytest
from commands import COUNTING, collectx, forked, result, start

COPYING = """
import shutil
from pathlib import Path

class Copying:
    def train(self, collection):
        for index, batch in enumerate(collection):
            if index == 0:
                shutil.copytree("run", "copy")
                Path("copied").touch()
"""


def test_a_trainer_that_copies_its_run_folder_stays_its_only_writer(tmp_path, wait_until):
    (tmp_path / "copying.py").write_text(COPYING)
    words = [*COUNTING[:2], "trainer=custom", "trainer.target=copying:Copying", "collector.total_frames=-1"]
    words += ["run.overwrite=true", "hydra.run.dir=run"]
    command = start("run", *words, cwd=tmp_path)
    copied = tmp_path / "copied"
    wait_until(lambda: copied.exists() or command.poll() is not None, 200, "the copy")
    second = forked("run", *words, cwd=tmp_path, status=2)
    assert f" (process {command.pid} on " in second.stderr
    assert " running " in forked("status", "run", cwd=tmp_path).stdout
    forked("cancel", "run", cwd=tmp_path)
    assert command.wait(200) == 130
    assert result(tmp_path / "run")["exit_reason"] == "interrupted by SIGTERM"


TINY = ["debug=tiny", "policy=random", "trainer=meter"]
HUGE = ["collector.frames_per_batch=1_000_000_000_000", "collector.total_frames=-1"]
RESETS = ["env=gym_vector", "env.id=CartPole-v1", "env.autoreset_mode=next_step"]


def test_what_is_refused_before_a_worker_starts_leaves_no_trace(tmp_path):
    for words in (
        ["env.exclude_keys=[x]"],
        ["policy=custom", "policy.target=nowhere:Policy"],
        ["-m", "env.wrappers=[Nope]", "env.info_keys=[[x]],[[y]]"],
        ["-m", "seed=range(0,0)"],
        ["-m", "env.id=CartPole-v1,CartPol-v1"],
        [*HUGE, "collector=multi_sync"],
        [*HUGE, "collector=distributed"],
    ):
        refused = forked("run", *TINY, *words, cwd=tmp_path, status=2)
        assert "nothing was started" in refused.stderr
        assert not [*tmp_path.iterdir()], words
    forked("run", *TINY, *RESETS, "hydra.run.dir=here", cwd=tmp_path)
    before = contents(tmp_path / "here")
    stops = "collector.preemptive_threshold=1"
    forked("run", *TINY, *RESETS, stops, "hydra.run.dir=here", "run.overwrite=true", cwd=tmp_path, status=2)
    forked("resume", "here", stops, "collector.total_frames=1280", cwd=tmp_path, status=2)
    assert contents(tmp_path / "here") == before


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and ".hydra" not in path.parts)
    return {path: path.read_bytes() for path in files if path.name != "lock"}


# As on WSL and CIFS, where chmod is refused or has no effect.
WITHOUT_PERMISSIONS = {
    "refused": """
        import os
        chmod, place = os.chmod, os.environ["PLACE"]
        def refuse(path, *args, **kwargs):
            if place in os.fspath(path):
                raise PermissionError(1, "Operation not permitted", str(path))
            chmod(path, *args, **kwargs)
        os.chmod = refuse
    """,
    "without effect": """
        import os
        stat, chmod, place = os.stat, os.chmod, os.environ["PLACE"]
        def wide(path, *args, **kwargs):
            found = stat(path, *args, **kwargs)
            if isinstance(path, (str, os.PathLike)) and place in os.fspath(path):
                values, others = found.__reduce__()[1]
                return os.stat_result((values[0] | 0o777, *values[1:]), others)
            return found
        os.stat, os.chmod = wide, lambda path, *args, **kwargs: place in os.fspath(path) or chmod(path, *args, **kwargs)
    """,
}


@pytest.mark.ci
@pytest.mark.parametrize("chmod", WITHOUT_PERMISSIONS)
def test_a_run_and_its_resume_on_a_file_system_without_permissions(tmp_path, monkeypatch, chmod):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT_PERMISSIONS[chmod]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("PLACE", str(tmp_path / "r"))
    words = ["run", *COUNTING, "debug=tiny", "run.resume=auto", "hydra.run.dir=r"]
    collectx(*words, cwd=tmp_path)
    more = [*words, "collector.total_frames=256"]
    if chmod == "without effect":
        refused = collectx(*more, cwd=tmp_path, status=2).stderr
        assert "because its file system has no permissions" in refused
        assert "chmod" not in refused
        more.append("run.trust=true")
    collectx(*more, cwd=tmp_path)
    assert result(tmp_path / "r")["frames"] == 256


@pytest.mark.ci
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_a_start_that_ends_early_leaves_the_run_that_it_would_replace(tmp_path, wait_until, signum):
    (tmp_path / "own.py").write_text("import time\ndef env():\n    time.sleep(1000)\n")
    words = ["debug=tiny", "trainer=meter", "policy=random", "hydra.run.dir=run"]
    forked("run", *words, "checkpoint.every_batches=1", cwd=tmp_path)
    lines, overrides = (tmp_path / "run" / name for name in ("metrics.jsonl", ".hydra/overrides.yaml"))
    before = lines.read_text(), overrides.read_text()
    command = start("run", *words, "run.overwrite=true", "env.id=null", "env.entry_point=own:env", cwd=tmp_path)
    log = tmp_path / "said.txt"
    wait_until(lambda: command.poll() is not None or "own:env" in log.read_text(), 60, "the slow env")
    command.send_signal(signum)
    assert command.wait(60) == (130 if signum == signal.SIGTERM else -signum)
    forked("eval", "run", "episodes=1", cwd=tmp_path)
    # A killed command cannot write the files again that Hydra has replaced.
    killed = signum == signal.SIGKILL
    assert (lines.read_text(), before[1] if killed else overrides.read_text()) == before
    assert result(tmp_path / "run")["status"] == "completed"
    forked("resume", "run", "collector.total_frames=256", cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] == 256


def test_a_run_that_ended_before_its_snapshot_says_so(tmp_path):
    (tmp_path / "run" / "snapshot").mkdir(parents=True)
    outcome = {"status": "interrupted", "exit_reason": "interrupted by SIGINT", "failures": []}
    (tmp_path / "run" / "result.json").write_text(json.dumps(outcome))
    for command in ("eval", "resume", "reproduce", "export"):
        done = forked(command, "run", *["format=onnx"] * (command == "export"), cwd=tmp_path, status=2)
        assert f"the run in '{tmp_path / 'run'}' ended before it began: interrupted by SIGINT." in done.stderr
    start_again = ["run", "debug=tiny", "trainer=meter", "policy=random", "hydra.run.dir=run"]
    failed = json.dumps(outcome | {"status": "failed"})
    (tmp_path / "run" / "result.json").write_text(failed)
    refused = forked(*start_again, cwd=tmp_path, status=2).stderr
    assert "already contains a run. Replace it (run.overwrite=true)" in refused
    (tmp_path / "run" / "result.json").write_text(json.dumps(outcome))
    forked(*start_again, cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"
    (tmp_path / "run" / "snapshot" / "config.yaml").unlink()
    (tmp_path / "run" / "result.json").write_text(json.dumps(outcome | {"batches": 7}))
    done = forked("resume", "run", cwd=tmp_path, status=2)
    assert f"'{tmp_path / 'run'}' is not a run folder: it does not contain snapshot/config.yaml" in done.stderr
