"""`collectx tune` around its search, with rates by a function. The search: tests/unit/test_tune.py."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from batch_lines import batch_line, write_lines
from composed_overrides import composed

from collectx import tune
from collectx.cli import tune as command
from collectx.run import cores

LINE = ["env=counting", "policy=random", "trainer=meter", "launcher.num_threads=1"]


@pytest.fixture
def measured(monkeypatch, within, tmp_path):
    """`measured(rate)`: the rate of a point is `rate(values)`. The words of the runs, and the folder of each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cores, "num_cores", lambda: 2)

    def use(rate, load=0.0):
        made = []

        class Measure:
            limit_s = 101.0

            def __init__(self, cfg, words, options, folder):
                assert folder.is_dir()
                made.append((words, folder, options))

            __call__ = staticmethod(rate)

        monkeypatch.setattr(tune, "RunMeasure", Measure)
        within(command, "os", getloadavg=lambda: (load, 0.0, 0.0))
        return made

    return use


def test_the_fastest_point_is_an_experiment_with_what_was_typed(measured, capsys, tmp_path):
    made = measured(lambda values: 1000.0 * values.get("collector.num_workers", 2), load=2.5)
    (tmp_path / "mine" / "env").mkdir(parents=True)
    (tmp_path / "mine" / "env" / "count.yaml").write_text("kind: counting\nnum_envs: 4\nepisode_length: 7\n")
    (tmp_path / "mine" / "experiment").mkdir()
    (tmp_path / "mine" / "experiment" / "fast.yaml").write_text("# Written by collectx tune: before\n")
    words = ["experiment=throughput", "env=count", "env.num_envs=4", "collector.num_slots=2", "launcher.num_threads=1"]
    words += ["trainer.digest=true", "inference=local", "run.max_batches=3", "tune.seconds=7"]
    flags = ["--config-dir", "mine", "--output", "mine/experiment/fast.yaml"]
    assert command.main([*words, *flags]) == 0
    said = capsys.readouterr()
    assert "other programs are using this machine (load 2.5)" in said.err
    first, *_, last = said.out.splitlines()
    assert first == "searching collector.num_workers: 3 points, about 5 minutes"
    kept = [line.split() for line in said.out.splitlines() if "(chosen)" in line or "(your settings" in line]
    assert [line[:3] for line in kept] == [
        ["collector.num_workers=2", "kept", "(your"],
        ["collector.num_workers=4", "kept", "(chosen)"],
    ]
    assert [line[-2] for line in kept] == ["2,000", "4,000"]
    assert "2.00 times as fast as your settings (95% CI 2.00 to 2.00), measured alternately" in said.out
    assert "this changes training: more or fewer batches are in flight" in said.out
    first_words = ["collectx", "run", "experiment=fast", "--config-dir", "mine"]
    again = shlex.split(last.partition("run it: ")[2])
    assert again == [*first_words, "run.max_batches=3"]
    text = (tmp_path / "mine" / "experiment" / "fast.yaml").read_text()
    assert text.startswith("# @package _global_\n# Written by collectx tune: collector.num_workers=4 was 2.00 times")
    assert [
        line for line in ("- throughput\n", "- override /env: count\n", "num_workers: 4\n") if line not in text
    ] == []
    assert "\ntune:" not in text
    ((typed, folder, options),) = made
    assert [word.removeprefix("++") for word in typed] == ["--config-dir", "mine", *words[:-1]]
    assert options.seconds == 7.0
    assert not folder.exists()
    (tmp_path / "mine" / "experiment" / "fast.yaml").write_text("seed: 1\n")
    assert command.main([*words, *flags]) == 2
    assert "tune did not write it" in capsys.readouterr().err


def unmeasured(values):
    raise tune.Failed("no memory")


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (lambda values: 1000.0, "keeping your settings"),
        (
            lambda values: 2000.0 - 100 * abs(2 - values["collector.num_workers"]),
            "keeping your settings, the fastest of 3 points",
        ),
        (lambda values: 1000.0 if values["collector.num_workers"] == 2 else unmeasured(values), "the fastest of"),
    ],
    ids=["equal", "slower", "failed"],
)
def test_your_settings_are_kept_unless_another_point_is_faster(measured, capsys, rate, words):
    measured(rate)
    given = [*LINE, "env.num_envs=8", "inference=local", "collector.overlap=0"]
    assert command.main(given) == 0
    said = capsys.readouterr()
    assert words in said.out
    assert "experiment=tuned contains your own settings" in said.out
    assert "other programs" not in said.err
    text = Path("conf", "experiment", "tuned.yaml").read_text()
    assert "num_workers: 2\n" in text


def test_it_says_how_long_a_batch_of_a_slow_env_takes(measured, capsys):
    measured(lambda values: 1.0)
    words = ["env.num_envs=1", "env.step_s=0.05", "collector.frames_per_batch=512", "collector.num_workers=2"]
    assert command.main([*LINE, *words]) == 0
    second = capsys.readouterr().out.splitlines()[1]
    seconds = re.fullmatch(
        r"a batch takes about (.*) s with your settings\. .* waits up to 101 s for two batches", second
    )
    assert 12 < float(seconds[1]) < 60


def test_batches_that_take_too_long_are_refused_before_anything_is_measured(measured, capsys):
    measured(lambda values: pytest.fail("measured"))
    words = ["env.num_envs=1", "env.step_s=0.2", "collector.frames_per_batch=512", "collector.num_workers=2"]
    assert command.main([*LINE, *words]) == 2
    expected = r"would take 2\d\d s, but its limit is 101 s\. Lower collector\.frames_per_batch, or .*\.seconds=\d+\."
    assert re.search(expected, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "here.yaml"], "Write it to DIR/experiment/NAME.yaml"),
        (["--output", "other/experiment/here.yaml", "--config-dir", "."], "Write it to ./experiment/NAME.yaml"),
        (["--output", "file/experiment/here.yaml"], "cannot write "),
        (["--output", "folder.yaml/experiment/folder.yaml"], "tune did not write it"),
        (["launcher=slurm"], "launcher=slurm"),
        ([], "your settings cannot be measured: no memory"),
    ],
)
def test_a_refusal_writes_nothing(measured, capsys, tmp_path, words, said):
    measured(unmeasured)
    (tmp_path / "file").touch()
    folder = tmp_path / "folder.yaml" / "experiment" / "folder.yaml"
    folder.mkdir(parents=True)
    assert command.main([*LINE, "env.num_envs=8", *words]) == 2
    assert said in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.yaml"}
    assert not [*folder.iterdir()]


class Process:
    """A run: `at(now_s)` is called at each look."""

    pid = 123456

    def __init__(self, ends_s, now, is_deaf):
        self.ends_s, self.now, self.is_deaf, self.signals, self.waits = ends_s, now, is_deaf, [], []
        self.returncode = 3

    def poll(self):
        return self.returncode if self.now[0] >= self.ends_s else None

    def send_signal(self, number):
        self.signals.append(number)

    def wait(self, timeout_s=None):
        self.waits.append(timeout_s)
        if timeout_s is not None and self.is_deaf:
            raise tune.subprocess.TimeoutExpired("run", timeout_s)


@pytest.mark.parametrize(
    ("ends_s", "frames_per_s", "said", "result"),
    [
        (1000.0, 100, "", 100.0),
        (1.0, 0, "collectx: failed\n  the last line \n", "the last line"),
        (1.0, 0, "", "the run ended with status 3"),
        (1000.0, 0, "", "fewer than two batches in 144 s. Raise tune.seconds, or lower collector.frames_per_batch."),
    ],
)
@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_run_is_measured_and_ended(within, tmp_path, ends_s, frames_per_s, said, result, is_deaf):
    now, killed, made, batches = [0.0], [], [], itertools.count()
    cfg = composed("trainer=ppo collector.start_timeout_s=100")
    measure = tune.RunMeasure(
        cfg, ["seed=3"], tune.TuneConfig(minutes=5.0, seconds=2.0, warmup_s=4.0, exact=None), tmp_path
    )

    def start(command, stdout, **options):
        process = Process(ends_s, now, is_deaf)
        made.append((command, process, options))
        stdout.write(said.encode())
        (tmp_path / "0").mkdir()
        return process

    def sleep(seconds):
        now[0] += seconds
        if frames_per_s and now[0] > 1:
            line = batch_line(next(batches), time=now[0], frames=int(frames_per_s * 2 * now[0]))
            write_lines(tmp_path / "0" / "metrics.jsonl", [line], "a")
            now[0] += 0.45

    within(tune, "time", monotonic=lambda: now[0], sleep=sleep)
    within(tune, "subprocess", Popen=start)
    within(tune, "os", killpg=lambda *arguments: killed.append(arguments))
    if isinstance(result, float):
        assert measure({"env.num_envs": 16}) == pytest.approx(2 * result, rel=0.02)
        assert 7 <= now[0] < 8
    else:
        with pytest.raises(tune.Failed, match=f"^{result}$"):
            measure({"env.num_envs": 16})
    ((command, process, options),) = made
    assert options["start_new_session"]
    assert {"seed=3", "env.num_envs=16", "trainer.target_return=null", f"hydra.run.dir={tmp_path}/0"} < {*command}
    # It is asked first, and its group is killed in any case.
    is_over = now[0] >= ends_s
    assert process.signals == ([] if is_over else [tune.signal.SIGINT])
    assert process.waits == ([None] if is_over else [10.0, None])
    assert killed == [(process.pid, tune.signal.SIGKILL)]
