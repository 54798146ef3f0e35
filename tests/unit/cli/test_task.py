"""What a job of a sweep returns to Hydra's sweeper."""

import os
import signal
import weakref
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from collectx.cli.task import PointFailed, Task, objective, objectives
from collectx.process import handling
from collectx.run import RunFolder
from collectx.run.folder.files import write_json


@pytest.mark.parametrize(
    ("named", "expected"),
    [("frames", ["frames"]), (["frames", "mean_return"], ["frames", "mean_return"]), (None, ["None"])],
)
def test_the_objectives_are_a_name_or_a_list(named, expected):
    assert objectives(OmegaConf.create({"sweep": {"objective": named}})) == expected


def sweeper(kind, **more):
    return SimpleNamespace(sweeper=OmegaConf.create({"_target_": kind} | more))


BASIC, SEARCHING = sweeper("hydra.basic_sweeper.BasicSweeper"), sweeper("optuna.OptunaSweeper", max_failure_rate=0.0)


@pytest.mark.parametrize(
    ("result", "keys", "hydra", "expected"),
    [
        ({"status": "completed", "frames": 12}, ["frames"], BASIC, 12.0),
        ({"status": "completed", "frames": 12, "wall_s": 3.5}, ["wall_s", "frames"], SEARCHING, [3.5, 12.0]),
        ({"status": "completed", "frames": 12, "mean_return": None}, ["frames", "mean_return"], BASIC, None),
        (
            {"status": "completed"},
            ["mean_return"],
            SEARCHING,
            "no episode ended. .* set hydra.sweeper.max_failure_rate=1",
        ),
        ({"status": "completed"}, ["loss"], SEARCHING, "the result has no loss, which sweep.objective needs:"),
        ({"status": "failed", "exit_reason": "no memory"}, ["frames"], BASIC, r"^a: failed: no memory\.$"),
        (None, ["frames"], SEARCHING, "a: failed: the run wrote no result. To continue without it"),
    ],
)
def test_the_objective_of_a_point_is_in_its_result(tmp_path, result, keys, hydra, expected):
    files = RunFolder(tmp_path)
    if result is not None:
        write_json(files.result, result)
    if isinstance(expected, str):
        with pytest.raises(PointFailed, match=expected):
            objective(files, "a", keys, hydra)
    else:
        assert objective(files, "a", keys, hydra) == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_within_a_finalizer_still_interrupts_the_sweep():
    """Python ignores the KeyboardInterrupt there."""
    task, thing = Task([]), {"anything"}
    finalizer = weakref.finalize(thing, os.kill, os.getpid(), signal.SIGINT)
    finalizer.atexit = False
    with handling({signal.SIGINT: task.interrupt}):
        del thing
    assert task.is_interrupted
