"""What `trainer=record` promises, over every format and every way to collect: what the format's own library reads is
what was collected, also after a crash, after a resume and of several runs."""

from __future__ import annotations

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch
from configurations import counting, gym, start, through_a_file
from dataset_readers import Episode, check_statistics, episodes, frames, split
from gymnasium import spaces
from ways import SINGLE, WAYS, case

from collectx import data, state
from collectx import env as envs
from collectx.config.registry import group_from_dict
from collectx.config.schema.env import DatasetEnvConfig
from collectx.data import folder
from collectx.env.base import StepArrays
from collectx.errors import ConfigError
from collectx.trainer.record import RecordTrainer

FORMATS = [*data.FORMATS]
over_formats = pytest.mark.parametrize("format", FORMATS)


class Batches:
    """A collection over batches, which it keeps."""

    def __init__(self, batches, path):
        self._batches, self.folder, self.run_id, self.taken = iter(batches), path, path.name, []

    def __iter__(self):
        return self

    def __next__(self):
        self.taken.append(next(self._batches).clone())
        return self.taken[-1]


def trainer(format, path, env=None, seed=0, **options):
    values = {"kind": "record", "format": format, "dir": str(path), "flush_every_frames": 30} | options
    cfg = group_from_dict("trainer", values)
    return RecordTrainer(cfg, None, envs.read_spec(env or counting(2)), seed, torch.device("cpu"))


def collect(num_batches=8, **knobs):
    with start("single", "inline", counting(2), frames_per_batch=24, total_frames=24 * num_batches, **knobs) as batches:
        return list(batches)


def collected(batches, partial=False) -> list[Episode]:
    """Returns the episodes in batches, by their trajectory ids."""
    rows = [row for batch in batches for row in batch.reshape(-1, batch.shape[-1])]
    ids = {each for row in rows for each in row["collector", "traj_ids"].tolist()}
    found = []
    for each in sorted(ids):
        pieces = [row[row["collector", "traj_ids"] == each] for row in rows]
        trajectory = torch.cat(pieces)
        if partial or trajectory["next", "done"][-1]:
            found += split(trajectory["collector", "traj_ids"].numpy(), frames(trajectory))
    return found


def facts(episodes, format):
    return sorted(each.facts(format != "lerobot") for each in episodes)


def check(path, format, batches, partial=False):
    found = episodes(path, format)
    assert len(found) > 2
    assert facts(found, format) == facts(collected(batches, partial), format)
    if format == "lerobot":
        check_statistics(path, found)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("way", "format"),
    [case(way, format) for way in WAYS for format in (FORMATS if way is SINGLE else ("memmap", "minari"))],
)
def test_the_formats_own_library_reads_what_was_collected(tmp_path, way, format):
    recorder = trainer(format, tmp_path / "set")
    with start(way.kind, way.place, counting(2), frames_per_batch=24, total_frames=240) as collector:
        batches = Batches(collector, tmp_path)
        recorder.train(batches)
    check(tmp_path / "set", format, batches.taken)
    assert {each.name for each in (tmp_path / "set").iterdir()} & {"_new"} == set()


@over_formats
def test_episodes_that_have_not_ended_are_recorded_on_request(tmp_path, format):
    batches = collect(3)
    trainer(format, tmp_path / "set", partial_episodes=True).train(Batches(batches, tmp_path))
    check(tmp_path / "set", format, batches, partial=True)
    assert len(collected(batches, partial=True)) > len(collected(batches))


@pytest.mark.parametrize("partial", [False, True])
def test_episodes_longer_than_a_flush_wait_in_files(tmp_path, partial):
    """Only until they are recorded; also of a run that is resumed within them."""
    env = counting(2, episode_length=100)
    with start("single", "inline", env, frames_per_batch=24, total_frames=720) as collector:
        batches = list(collector)
    first = trainer("memmap", tmp_path / "set", env, partial_episodes=partial)
    first.train(Batches(batches[:7], tmp_path))
    assert [*first.state_dict()["long_episodes"].values()] == [72, 72]
    second = trainer("memmap", tmp_path / "set", env, partial_episodes=partial)
    second.load_state_dict(through_a_file(first.state_dict()))
    second.train(Batches(batches[7:], tmp_path))
    check(tmp_path / "set", "memmap", batches, partial)


def test_the_files_of_lerobot_are_numbered_from_zero(tmp_path):
    """One for each flush; also of a run that is resumed."""
    batches = collect(8)
    first = trainer("lerobot", tmp_path / "set")
    first.train(Batches(batches[:4], tmp_path))
    second = trainer("lerobot", tmp_path / "set")
    second.load_state_dict(through_a_file(first.state_dict()))
    second.train(Batches(batches[4:], tmp_path))
    check(tmp_path / "set", "lerobot", batches)
    for part in ("data", "meta/episodes"):
        files = sorted(
            path.relative_to(tmp_path / "set" / part) for path in (tmp_path / "set" / part).rglob("*.parquet")
        )
        assert [str(file) for file in files] == [f"chunk-000/file-{number:03d}.parquet" for number in range(len(files))]
        assert len(files) > 2


@pytest.mark.sample(1)
@over_formats
@pytest.mark.parametrize("partial", [False, True])
def test_a_run_that_is_resumed_has_every_episode_once(tmp_path, format, partial):
    batches, size = collect(10), 6
    first = trainer(format, tmp_path / "set", partial_episodes=partial)
    states = []

    def until_killed():
        for number, batch in enumerate(batches[:8]):
            if number == size:
                states.append(through_a_file(first.state_dict()))
            yield batch

    first.train(Batches(until_killed(), tmp_path))
    second = trainer(format, tmp_path / "set", partial_episodes=partial)
    second.load_state_dict(states[0])
    # In another place: the folder of a run may be moved.
    second.train(Batches(batches[size:], tmp_path / "moved"))
    check(tmp_path / "set", format, batches, partial)
    # A run that is complete goes on.
    third = trainer(format, tmp_path / "set", partial_episodes=partial)
    third.load_state_dict(through_a_file(second.state_dict()))
    more = collect(12)
    third.train(Batches(more[10:], tmp_path / "moved"))
    check(tmp_path / "set", format, more, partial)


@pytest.mark.sample(2)
@over_formats
def test_several_runs_record_to_one_data_set_and_each_can_be_repeated(tmp_path, format):
    one, two, three = collect(4), collect(5), collect(6, seed=3)
    trainer(format, tmp_path / "set").train(Batches(one, tmp_path / "a"))
    trainer(format, tmp_path / "set", seed=3).train(Batches(three, tmp_path / "b"))
    assert facts(episodes(tmp_path / "set", format), format) == facts([*collected(one), *collected(three)], format)
    assert sorted(run.seed for run in folder.runs_of(tmp_path / "set")) == [0, 3]
    # The last run begins anew in its folder.
    trainer(format, tmp_path / "set").train(Batches(two, tmp_path / "b"))
    assert facts(episodes(tmp_path / "set", format), format) == facts([*collected(one), *collected(two)], format)


@pytest.mark.ci
@over_formats
def test_a_process_that_dies_within_a_flush_leaves_whole_flushes(tmp_path, format, monkeypatch):
    """It dies at each of the renames in turn, and is resumed."""
    batches, path, copy = collect(5), tmp_path / "set", tmp_path / "copy"
    recorder = trainer(format, path)
    recorder.train(Batches(batches[:3], tmp_path))
    saved = through_a_file(recorder.state_dict()) | {"dir": str(copy)}
    before, move, moves = facts(episodes(path, format), format), folder.Writer.move, []

    def dies(self, source, target):
        if len(moves) == limit:
            raise KeyboardInterrupt
        moves.append(target)
        move(self, source, target)

    def resumed():
        again = trainer(format, copy)
        again.load_state_dict(saved)
        again.train(Batches(batches[3:], tmp_path))

    limit, is_whole = 0, False
    while not is_whole:
        moves.clear()
        shutil.copytree(path, copy)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(folder.Writer, "move", dies)
            resumed()
            is_whole = True
        found = facts(episodes(copy, format), format)
        assert set(before) <= set(found) <= set(facts(collected(batches), format)), limit
        assert len(found) == len(set(found)), limit
        resumed()
        check(copy, format, batches)
        shutil.rmtree(copy)
        limit += 1
    assert limit > 1


@pytest.mark.parametrize("format", ["minari", "lerobot"])
def test_a_format_with_numbered_episodes_takes_one_run_at_a_time(tmp_path, format):
    batches = collect(4)

    def meanwhile():
        yield batches[0]
        with pytest.raises(
            ConfigError, match=f"another run is recording to it, and trainer.format={format} allows only one at a"
        ):
            trainer(format, tmp_path / "set").train(Batches(batches, tmp_path / "other"))
        yield from batches[1:]

    first = trainer(format, tmp_path / "set")
    first.train(Batches(meanwhile(), tmp_path / "one"))
    trainer(format, tmp_path / "set").train(Batches(batches, tmp_path / "two"))
    before = facts(episodes(tmp_path / "set", format), format)
    for saved in (None, first.state_dict()):
        again = trainer(format, tmp_path / "set")
        if saved is not None:
            again.load_state_dict(saved)
        with pytest.raises(ConfigError, match=r"later episodes, of .*two, follow those of .*one, so these cannot"):
            again.train(Batches(batches, tmp_path / "one"))
    assert facts(episodes(tmp_path / "set", format), format) == before


@pytest.mark.parametrize("format", ["memmap", "parquet"])
def test_several_runs_record_to_one_data_set_at_the_same_time(tmp_path, format):
    batches = collect(4)

    def meanwhile():
        yield batches[0]
        trainer(format, tmp_path / "set").train(Batches(batches, tmp_path / "other"))
        yield from batches[1:]

    trainer(format, tmp_path / "set").train(Batches(meanwhile(), tmp_path / "one"))
    assert facts(episodes(tmp_path / "set", format), format) == facts(collected(batches) * 2, format)


@pytest.mark.sample(2)
@pytest.mark.parametrize("source", ["memmap", "parquet"])
@over_formats
def test_export_converts_every_episode(tmp_path, source, format):
    batches = collect(6)
    trainer(source, tmp_path / "set").train(Batches(batches, tmp_path))
    count = data.export(tmp_path / "set", tmp_path / "new", format, fps=10, task="count")
    assert count == len(collected(batches))
    assert data.export(tmp_path / "set", tmp_path / "new", format) == count  # replaces the first one
    check(tmp_path / "new", format, batches)


@pytest.mark.parametrize("format", ["memmap", "parquet"])
def test_load_gives_the_frames_of_whole_episodes_in_recorded_order(tmp_path, format):
    batches = collect(6)
    recorder = trainer(format, tmp_path / "data")
    recorder.train(Batches(batches, tmp_path))
    loaded = data.load(tmp_path)
    assert set(loaded.keys(True, True)) == {*batches[0].keys(True, True), ("collector", "episode")}
    for name in batches[0].keys(True, True):
        assert loaded[name].dtype == batches[0][name].dtype
        assert loaded[name].shape[1:] == batches[0][name].shape[batches[0].ndim :]
    lengths = torch.unique_consecutive(loaded["collector", "episode"], return_counts=True)[1]
    assert [len(each.reward) for each in episodes(tmp_path / "data", format)] == lengths.tolist()
    loaded["observation"].zero_()  # owned by the caller
    assert data.load(tmp_path)["observation"].any()


SPACES = {
    "box": spaces.Box(-1, np.arange(1, 7, dtype=np.float64).reshape(2, 3), dtype=np.float64),
    "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "discrete": spaces.Discrete(4, start=-2),
    "multi": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(3),
}


@pytest.mark.parametrize("format", ["memmap", "parquet", "minari"])
def test_nested_spaces_are_held(tmp_path, format):
    nested = spaces.Dict(SPACES | {"inner": spaces.Dict({"arm": spaces.Box(-1, 1, (2,))})})
    env = gym(2, entry_point="user_code.spaceenv:SpaceEnv", observation_space=nested, action_space=nested, length=5)
    with start("single", "inline", env, frames_per_batch=20, total_frames=60) as collector:
        batches = list(collector)
    trainer(format, tmp_path / "data", env).train(Batches(batches, tmp_path))
    (run,) = folder.runs_of(tmp_path / "data")
    assert run.observation_space == envs.read_spec(env).observation_space
    assert run.action_space == nested
    expected = torch.cat([row for batch in batches for row in batch]).reshape(-1)
    if format == "minari":
        import minari

        found = list(minari.MinariDataset(tmp_path / "data" / "data"))
        assert len(found) == 12
        pixels = np.concatenate([each.observations["image"][:-1] for each in found])
        arms = np.concatenate([each.actions["inner"]["arm"] for each in found])
        assert np.array_equal(np.sort(pixels, 0), np.sort(expected["image"].numpy(), 0))
        assert np.array_equal(np.sort(arms, 0), np.sort(expected["action", "inner", "arm"].numpy(), 0))
        return
    loaded = data.load(tmp_path)
    order = [torch.argsort(each["next", "reward"].flatten()) for each in (loaded, expected)]
    for name in expected.keys(True, True):
        assert torch.equal(loaded[name][order[0]], expected[name][order[1]]), name


def test_what_a_format_cannot_hold_is_refused_before_a_worker_starts(tmp_path):
    kinds = {"entry_point": "user_code.spaceenv:SpaceEnv", "length": 5, "action_space": spaces.Discrete(2)}
    image = gym(1, observation_space=spaces.Dict(SPACES), **kinds)
    with pytest.raises(
        ConfigError, match=r"format=lerobot cannot be used: it only stores vectors, but box has shape \[2, 3\]"
    ):
        trainer("lerobot", tmp_path / "set", image)
    unequal = spaces.Dict({"two": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])})
    with pytest.raises(ConfigError, match=r"format=minari cannot be used: it cannot store Tuple.*env.exclude_keys"):
        trainer("minari", tmp_path / "set", gym(1, observation_space=unequal, **kinds))


@over_formats
def test_arrays_without_numbers_are_held_or_refused(tmp_path, format):
    space = spaces.Dict({"nothing": spaces.Box(0, 1, (0,)), "binary": spaces.MultiBinary(3)})
    kinds = {"entry_point": "user_code.spaceenv:SpaceEnv", "length": 5, "action_space": spaces.Discrete(2)}
    env = gym(2, observation_space=space, **kinds)
    if format != "memmap":
        refusal = rf"format={format} cannot be used: it cannot store nothing, whose shape \[0\] has no numbers"
        with pytest.raises(ConfigError, match=refusal):
            trainer(format, tmp_path / "data", env)
        return
    with start("single", "inline", env, frames_per_batch=20, total_frames=20) as collector:
        trainer(format, tmp_path / "data", env).train(Batches(list(collector), tmp_path))
    assert data.load(tmp_path)["nothing"].shape == (20, 0)


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    batches = collect(2)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="contains files that do not belong to a data set"):
        trainer("memmap", tmp_path / "own").train(Batches(batches, tmp_path))
    trainer("memmap", tmp_path / "set").train(Batches(batches, tmp_path / "a"))
    with pytest.raises(ConfigError, match=r"uses trainer.format=memmap, not parquet"):
        trainer("parquet", tmp_path / "set").train(Batches(batches, tmp_path / "b"))
    other = [batch.exclude("action") for batch in batches]
    with pytest.raises(ConfigError, match=r"action is missing in this run, and \[\] torch.int64 in .*a. Choose"):
        trainer("memmap", tmp_path / "set").train(Batches(other, tmp_path / "b"))
    # The same run folder begins anew, with another format.
    trainer("parquet", tmp_path / "set").train(Batches(batches, tmp_path / "a"))
    check(tmp_path / "set", "parquet", batches)
    (tmp_path / "lost").mkdir()
    recorder = trainer("memmap", tmp_path / "lost")
    recorder.load_state_dict({"run": "x", "position": 3} | EMPTY)
    with pytest.raises(
        ConfigError, match="3 episodes were recorded before the checkpoint, but the data set only contains 0"
    ):
        recorder.train(Batches(batches, tmp_path))


EMPTY = {"episodes": {"unfinished": {}, "ended": [], "dropped": []}}


@pytest.mark.parametrize(("root", "name"), [("sets", "random-v3"), (".", "sets/random-v3")])
def test_minari_finds_and_lists_a_data_set_by_its_id(tmp_path, monkeypatch, root, name):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / root))
    trainer("minari", tmp_path / "sets" / "random-v3").train(Batches(collect(3), tmp_path))
    found = minari.load_dataset(name)
    assert (found.id, found.total_episodes) == (name, len(collected(collect(3))))
    assert [*minari.list_local_datasets()] == [name]
    metadata = json.loads((tmp_path / "sets" / "random-v3" / "data" / "metadata.json").read_text())
    assert metadata["total_steps"] == sum(len(each.rewards) for each in found)


@pytest.mark.parametrize("format", ["memmap", "parquet"])
def test_an_env_replays_the_episodes_in_recorded_order(tmp_path, format):
    batches = collect(6)
    trainer(format, tmp_path / "data", partial_episodes=True).train(Batches(batches, tmp_path))
    recorded = episodes(tmp_path / "data", format)
    cfg = DatasetEnvConfig(kind="dataset", num_envs=2, dir=str(tmp_path))
    spec = envs.read_spec(cfg)
    assert spec.observation_space == envs.read_spec(counting(2)).observation_space
    env = envs.build(cfg, first_index=3)
    observation, reward = np.zeros((2, 5), np.int64), np.zeros(2, np.float32)
    ends = [np.zeros(2, bool) for _ in range(3)]
    out = StepArrays([observation], reward, *ends)
    env.reset(None, [observation])
    places = [(3, 0), (4, 0)]
    for step in range(200):
        if step == 100:
            env = state.loads(state.dumps(env, "env"), env, "env")
        for row, (number, frame) in enumerate(places):
            assert np.array_equal(observation[row], recorded[number].observation[frame])
        ends[0][:] = ends[1][:] = False
        any_ended = env.step([np.zeros(2, np.int64)], out)
        for row, (number, frame) in enumerate(places):
            episode, is_last = recorded[number], frame + 1 == len(recorded[number].reward)
            expected = episode.last if is_last else episode.observation[frame + 1]
            assert np.array_equal(observation[row], expected)
            assert reward[row] == episode.reward[frame]
            assert ends[0][row] == episode.terminated[frame]
            # One that was recorded before its end is truncated there.
            assert ends[1][row] == (is_last and not episode.terminated[frame])
            places[row] = ((number + is_last) % len(recorded), 0 if is_last else frame + 1)
        ended = ends[0] | ends[1]
        assert any_ended == ended.any()
        env.reset_some(ended, [observation])
    assert not recorded[-1].terminated[-1]
    with pytest.raises(ConfigError, match=r"contains no data set. Name a data set folder, or the folder of a run with"):
        envs.read_spec(DatasetEnvConfig(kind="dataset", num_envs=1, dir=str(tmp_path / "nowhere")))
    trainer("minari", tmp_path / "other").train(Batches(batches, tmp_path))
    with pytest.raises(
        ConfigError, match=r"uses format=minari, but collectx only reads .*\. Read it with minari.MinariDataset"
    ):
        data.load(tmp_path / "other")
