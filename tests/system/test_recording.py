"""`trainer=record`, `collectx export` and `env=dataset` as commands, also where the command is killed."""

import shutil
import signal
from collections import Counter

import pytest
from commands import collectx, forked, result, start
from dataset_readers import episodes

from collectx import data
from collectx.cli import export, run
from collectx.run import RunFolder

FORMATS = [*data.FORMATS]
LENGTH = 10
RECORD = ["env=counting", "policy=random", "trainer=record", "trainer.flush_every_frames=500", "trainer.dir=set"]
RUN = [*RECORD, "collector.frames_per_batch=256", "checkpoint.every_batches=9", "hydra.run.dir=run"]


def counts(path, format):
    """How often each episode of each env is in a data set; every one is complete."""
    found = Counter()
    for each in episodes(path, format):
        env, episode = each.observation[0, :2].tolist()
        length = LENGTH + env % 3
        assert each.observation[:, 2].tolist() == [*range(length)]
        assert each.reward.tolist() == [*range(1, length + 1)]
        assert each.terminated.tolist() == [False] * (length - 1) + [True]
        found[env, episode] += 1
    return found


def is_without_gaps(found):
    """Whether each env has its episodes from the first to the last, once."""
    last = dict(sorted(found))
    return set(found.values()) == {1} and len(found) == sum(episode + 1 for episode in last.values())


# Processes of tens of seconds; the contract suite kills the writer of every format at every rename.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "format"),
    [
        *(("multi_sync", format) for format in FORMATS),
        ("multi_async", "minari"),
        ("distributed", "memmap"),
    ],
)
def test_a_run_that_is_killed_reads_back_and_is_resumed_without_gaps_or_doubles(tmp_path, wait_until, kind, format):
    # Slow enough to be killed within.
    words = [*RUN, f"trainer.format={format}", f"collector={kind}", "collector.total_frames=8192", "env.step_s=0.01"]
    files = RunFolder(tmp_path / "run")
    command = start("run", *words, cwd=tmp_path)
    batches = lambda: len(list(files.read_metrics()))  # noqa: E731
    wait_until(lambda: command.poll() is not None or batches() >= 14, 200, "batches")
    command.send_signal(signal.SIGKILL)
    assert command.wait(200) == -signal.SIGKILL, (tmp_path / "said.txt").read_text()
    killed = counts(tmp_path / "set", format)
    frames = sum(LENGTH + env % 3 for env, _ in killed)
    # All but what is not flushed yet, and the unfinished episodes.
    assert frames >= 14 * 256 - 500 - 2 * 256 - 16 * (LENGTH + 2)
    assert set(killed.values()) == {1}
    collectx("resume", "run", "env.step_s=0.01", cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"
    found = counts(tmp_path / "set", format)
    assert is_without_gaps(found)
    assert sum(LENGTH + env % 3 for env, _ in found) > 8192 - 16 * (LENGTH + 2)
    if kind == "multi_sync":
        forked("run", *words, "env.step_s=0", "hydra.run.dir=uncut", "trainer.dir=other", cwd=tmp_path)
        assert counts(tmp_path / "other", format) == found


@pytest.mark.nightly
def test_a_sweep_records_to_one_data_set_which_is_exported_and_replayed(tmp_path):
    words = ["trainer=record", "trainer.dir=set", "collector.total_frames=2048", "hydra.sweep.dir=sweep"]
    forked("run", *words, "-m", "seed=0,1", cwd=tmp_path)
    recorded = episodes(tmp_path / "set", "memmap")
    assert len({each.facts() for each in recorded}) == len(recorded) > 20
    for format in FORMATS:
        done = forked("export", "set", f"format={format}", f"output={format}", cwd=tmp_path)
        assert done.stdout == f"added {len(recorded)} episodes to {format}\n"
        assert len(episodes(tmp_path / format, format)) == len(recorded)
    done = forked("export", "sweep/seed=0", "sweep/seed=1", "format=memmap", "output=again", cwd=tmp_path)
    assert len(episodes(tmp_path / "again", "memmap")) == len(recorded)  # both runs have recorded to it
    frames = sum(len(each.reward) for each in recorded)
    size = ["collector=single", "collector.frames_per_batch=1", f"collector.total_frames={frames}", "env.num_envs=1"]
    words = ["env=dataset", "env.dir=set", "policy=mlp", "trainer=record", *size, "hydra.run.dir=replay"]
    forked("run", *words, cwd=tmp_path)
    replayed = episodes(tmp_path / "replay" / "data", "memmap")
    for one, other in zip(recorded, replayed, strict=True):
        for name in ("observation", "reward", "terminated", "truncated", "last"):
            assert (getattr(one, name) == getattr(other, name)).all()
    done = forked("reproduce", "replay", cwd=tmp_path)
    assert "completed" in done.stdout
    assert len(episodes(tmp_path / "replay" / "data", "memmap")) == len(recorded)


def test_a_run_only_removes_episodes_of_the_run_that_it_replaces(tmp_path):
    """Runs share a data set. A deleted run folder leaves its episodes; a copied one may not replace the others'."""

    def record(*words, folder="run", status=0):
        argv = ["run", *RECORD, "launcher=inline", "collector.total_frames=1024", f"hydra.run.dir={folder}", *words]
        return forked(*argv, cwd=tmp_path, status=status)

    def seeds():
        return [run.seed for run in data.runs_of(tmp_path / "set")]

    collectx("run", *RECORD, "launcher=inline", "collector.total_frames=1024", "hydra.run.dir=run", cwd=tmp_path)
    first = len(episodes(tmp_path / "set", "memmap"))
    shutil.rmtree(tmp_path / "run")
    record("seed=1")
    both = len(episodes(tmp_path / "set", "memmap"))
    assert seeds() == [0, 1]
    assert both > first
    record("seed=2", "run.overwrite=true")
    assert seeds() == [0, 2]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    done = forked("resume", "copy", "collector.total_frames=2048", cwd=tmp_path, status=1)
    assert f"copy is a copy of {tmp_path / 'run'}, whose episodes in set it would replace." in done.stderr
    assert len(episodes(tmp_path / "set", "memmap")) == both
    # A folder that was moved is no copy.
    shutil.rmtree(tmp_path / "copy")
    (tmp_path / "run").rename(tmp_path / "moved")
    forked("resume", "moved", "collector.total_frames=2048", cwd=tmp_path)
    assert seeds() == [0, 2]
    assert len(episodes(tmp_path / "set", "memmap")) > both


def test_ppo_trains_on_a_replayed_data_set_and_is_resumed(tmp_path):
    forked("run", "trainer=record", "launcher=inline", "collector.total_frames=1024", "hydra.run.dir=run", cwd=tmp_path)
    words = ["env=dataset", "env.dir=run", "env.num_envs=4", "collector.total_frames=1024", "hydra.run.dir=ppo"]
    forked("run", *words, cwd=tmp_path)
    forked("resume", "ppo", "collector.total_frames=2048", cwd=tmp_path)
    ended = result(tmp_path / "ppo")
    assert (ended["status"], ended["frames"]) == ("completed", 2048)
    assert "envs_not_saved" not in (tmp_path / "ppo" / "events.jsonl").read_text()


def test_wrong_words_are_refused(tmp_path, monkeypatch, capsys):
    forked("run", "trainer=meter", "collector.total_frames=512", "hydra.run.dir=run", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["run", "format=memmap"], "run contains no episodes, because it ran with trainer=meter. Only trainer=record"),
        (
            ["run", "format=hdf5"],
            "format=hdf5 is unknown. Valid names: state_dict, torchscript, onnx, memmap, parquet, minari, lerobot",
        ),
        (["run", "forma=memmap"], "forma is not an option. Did you mean format?"),
        (["nowhere", "format=memmap"], "there is no folder 'nowhere'"),
        (["format=memmap"], "export: which run?"),
        (
            ["run", "run", "format=memmap"],
            "you named several folders. Add output=FOLDER, the folder into which to merge them",
        ),
        (["run", "format=lerobot", "fps=0"], "fps=0 must be a whole number of at least 1"),
        ([".", "format=memmap"], "contains no data set"),
    ):
        assert export.main(words) == 2
        assert message in capsys.readouterr().err
    for option, message in (
        ("collector.trajs_per_batch=2", "and joins their frames itself. Use collector.trajs_per_batch=null"),
        (
            "collector.reset_at_each_iter=true",
            "this option cuts them at the end of each batch. Use collector.reset_at_each_iter=false",
        ),
        (
            "collector.compact_obs=true",
            "this option leaves out the last observation of each. Use collector.compact_obs=false",
        ),
        ("trainer.format=hdf5", "memmap"),
    ):
        assert run.main(["trainer=record", option]) == 2
        assert message in capsys.readouterr().err
