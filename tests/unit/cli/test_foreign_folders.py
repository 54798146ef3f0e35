"""Folders that another user may have written: what they contain does not act on the terminal or on processes."""

import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from composed_overrides import composed

from collectx.cli import cancel, eval, export, logs, report, reproduce, resume, run, status, watch
from collectx.jobs import cancel as jobs_cancel
from collectx.run import RunFolder
from collectx.run.folder import snapshot
from collectx.run.folder.files import write_json
from collectx.run.folder.layout import locked

_SEQUENCE = "\x1b]0;title\x07\x1b[2J\x9b31m\x08\r\udcff"


@pytest.fixture
def hostile(tmp_path):
    """The folder of a failed run whose name, reason, events and logs contain escape sequences."""
    files = RunFolder(tmp_path / f"sweep{_SEQUENCE}" / f"seed={_SEQUENCE}")
    files.begin()
    snapshot.write(composed("trainer=meter collector.on_worker_failure=restart"), files, [])
    failure = {"type": f"Error{_SEQUENCE}", "message": _SEQUENCE}
    numbers = {"frames": 1, "batches": 1, "wall_s": 1.0, "start_s": 1.0, "frames_per_s": 1.0, "num_episodes": 0}
    result = {"status": "failed", "exit_reason": f"reason{_SEQUENCE}", "failures": [failure], **numbers}
    write_json(files.result, result | {"mean_return": None, "digest": None})
    for role in ("trainer", "worker-0"):
        files.log(role).write_text(f"line{_SEQUENCE[:-1]}\n\tTraceback (most recent call last)\n")
    return files


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", [status.main, logs.main, cancel.main, watch.main])
@pytest.mark.parametrize("is_sweep", [False, True])
def test_no_escape_sequence_of_a_folder_is_printed(hostile, capsys, command, is_sweep):
    folder = hostile.path.parent if is_sweep else hostile.path
    command([str(folder)])
    printed = "".join(capsys.readouterr())
    assert r"\x1b]0;title\x07\x1b[2J\x9b31m\x08\x0d" in printed
    assert not [char for char in printed if (char < " " and char not in "\n\t") or "\x7f" <= char <= "\x9f"]
    printed.encode()


@pytest.mark.parametrize("main", [status.main, cancel.main, logs.main, watch.main])
def test_an_empty_name_is_no_folder(hostile, monkeypatch, capsys, main):
    monkeypatch.chdir(hostile.path)
    assert main([""]) == 2
    assert "the folder name is empty" in capsys.readouterr().err


LONG = "x" * 300


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        *((main, [LONG], "there is no folder 'x") for main in (status.main, cancel.main, logs.main, watch.main)),
        *((main, [LONG], "there is no folder '") for main in (report.main, eval.main, resume.main, reproduce.main)),
        (resume.main, [f"logger.wandb.name={LONG}"], "which run?"),
        (export.main, [LONG, "format=lerobot"], "there is no folder 'x"),
        (export.main, ["format=lerobot", f"task={LONG}"], "which run?"),
        (run.main, [f"resume={LONG}"], "run.resume="),
    ],
)
def test_a_word_may_be_longer_than_a_file_name(tmp_path, monkeypatch, capsys, main, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_this_user_cannot_read_is_skipped(capsys):
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        files = RunFolder(Path(root, "readable"))
        files.begin()
        snapshot.write(composed("trainer=meter"), files, [])
        Path(root, "private").mkdir(mode=0o700)
        os.seteuid(65534)
        try:
            assert status.main([root]) == 0
        finally:
            os.seteuid(0)
    assert "readable" in (said := capsys.readouterr().out)
    assert "private" not in said


@pytest.fixture
def signals(monkeypatch):
    """The signals that `collectx cancel` sends, in place of sending them."""
    sent = []
    monkeypatch.setattr(jobs_cancel, "os", SimpleNamespace(kill=lambda *signal: sent.append(signal), getuid=os.getuid))
    monkeypatch.setattr(jobs_cancel, "_wait", lambda runs, is_now: True)
    return sent


@pytest.mark.sample(2)
@pytest.mark.parametrize("pid", ["0", "1", "-1", "-4", "of the test's parent", "of the holder"])
def test_only_the_process_that_holds_the_lock_is_signalled(hostile, signals, capsys, pid):
    hostile.result.unlink()
    pids = {"of the test's parent": os.getppid(), "of the holder": os.getpid()}
    with locked(hostile, replace=True):
        hostile.lock.write_text(f"process {pids.get(pid, pid)} on {socket.gethostname()}\n")
        done = cancel.main([str(hostile.path)])
    expected, err = [os.getpid()] if pid == "of the holder" else [], capsys.readouterr().err
    assert ([each for each, _ in signals], done) == (expected, 0 if expected else 2), err
    told = "because its process is not visible here, or"
    assert (told in err, "Use collectx cancel on" in err) == (not expected, False)


def test_a_process_of_another_user_is_not_signalled(hostile, signals, within, capsys):
    hostile.result.unlink()
    within(jobs_cancel, "os", getuid=lambda: os.getuid() + 1)
    with locked(hostile, replace=True):
        assert cancel.main([str(hostile.path)]) == 2
    assert not signals
    assert "Cancel it as that user" in capsys.readouterr().err
