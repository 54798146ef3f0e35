"""Where files cannot be written, subcommands say so, and name the option that chooses another place."""

import threading
from types import SimpleNamespace

import pytest

from collectx.cli import export, main, tune


@pytest.fixture
def blocked(tmp_path, monkeypatch):
    """A file in place of a folder: not even root can write below it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("")


def test_tune_says_it_before_it_measures(blocked, capsys, within):
    assert tune.main(["--output", "notes/experiment/a.yaml"]) == 2
    assert "Choose another file: --output FILE" in capsys.readouterr().err
    within(tune, "os", access=lambda path, mode: False)
    assert tune.main([]) == 2
    assert "cannot write 'conf/experiment/tuned.yaml': " in capsys.readouterr().err.replace("\n", " ")


def test_export_names_the_option(blocked, capsys, monkeypatch):
    def fails(run_dir, output, weights):
        output.mkdir(parents=True)

    monkeypatch.setattr(export, "foreign_code", SimpleNamespace(check=lambda *arguments: None))
    monkeypatch.setattr(export.saved_config, "run_config", lambda files: None)
    monkeypatch.setattr(export, "import_module", lambda name: SimpleNamespace(state_dict=fails))
    assert export.main(["run", "format=state_dict", "output=notes/export"]) == 2
    assert "Choose another path with output=PATH" in capsys.readouterr().err.replace("\n", " ")


def test_a_command_in_a_deleted_folder_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(SystemExit) as ended:
        main.main(["list"])
    assert (ended.value.code, capsys.readouterr().err) == (
        2,
        "collectx: the working directory no longer exists. Change to another one with cd.\n",
    )


def test_files_that_hide_modules_of_python_or_packages_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("random.py", "torch.py", "env.py", "test.py", "wandb/run.py", "numpy/__init__.py", "queue/data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(SystemExit):
        main.main(["list"])
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == ["numpy", "random.py", "torch.py"]
    assert notes[1].startswith("note: random.py in this folder hides the module random of Python or of a package.")
    assert notes[1].endswith("If the command fails, rename random.py.")


def test_a_command_does_not_limit_threads_that_joblib_ends(monkeypatch):
    def limits(module):
        ended = threading.Event()
        thread = type("Thread", (threading.Thread,), {"__module__": module})(target=ended.wait)
        thread.start()
        main._limit_exit(0)
        timers = [each for each in threading.enumerate() if each.name == "collectx-exit"]
        for timer in timers:
            timer.cancel()
            timer.join()
        ended.set()
        thread.join()
        return bool(timers)

    monkeypatch.setattr(main.atexit, "register", lambda function: None)
    assert [limits(module) for module in ("mine", "joblib.externals.loky.process_executor")] == [True, False]
