"""`collectx run` up to the run layer, in this process: what it is handed, the exit status, and the points of sweeps."""

import sys
from typing import ClassVar

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from collectx import __version__
from collectx.cli import completion, main, run, status
from collectx.cli import eval as evaluation
from collectx.cli import list as listing
from collectx.cli.compose import Composer
from collectx.config.registry import GROUPS
from collectx.errors import ConfigError
from collectx.jobs import status as jobs_status
from collectx.run import RunFolder
from collectx.run.folder.result import exit_status

SWEEP = ["-m", "hydra.sweep.dir=sweep"]


def test_the_run_layer_gets_the_typed_configuration_folder_and_command_line(stub, tmp_path):
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "mine.yaml").write_text("defaults: [gym, _self_]\nid: mine:Mine-v0\n")
    line = ["--config-dir", "conf", "env=mine", "hydra.run.dir=here", "env.kwargs.g=1"]
    assert run.main(line) == 0
    ((cfg, folder, argv),) = stub.calls
    assert (cfg.env.id, cfg.env.kwargs) == ("mine:Mine-v0", {"g": 1})
    assert folder == tmp_path / "here"
    assert (folder / ".hydra" / "config.yaml").is_file()
    assert argv == ["collectx", "run", *line]


def test_what_was_composed_and_checked_is_what_runs(stub):
    """Hydra composes again for its own files, at another time."""
    assert run.main(["hydra.run.dir=${now:%f}", "logger.csv.file=${now:%f}"]) == 0
    ((cfg, folder, _),) = stub.calls
    assert cfg.logger.csv.file == folder.name


def test_a_file_as_an_override_is_answered_with_its_folder_and_name(stub, tmp_path, capsys):
    (tmp_path / "my" / "env").mkdir(parents=True)
    for name in ("my/primary.yaml", "my/env/maze.yaml"):
        (tmp_path / name).write_text("defaults: [config, _self_]\nseed: 1\n")
        assert run.main([name]) == 2
    err = capsys.readouterr().err
    assert "my/primary.yaml is a file, and collectx takes names. Write --config-dir my -cn primary\n" in err
    assert "my/env/maze.yaml is a file, and collectx takes names. Write --config-dir my env=maze\n" in err


@pytest.mark.parametrize("group", [*GROUPS, "logger", "experiment", "debug", "hydra/sweeper", "hydra/launcher"])
@pytest.mark.parametrize("more", [[], ["-m", "seed=0,1"]], ids=["run", "sweep"])
def test_a_choice_that_does_not_exist_is_one_error_in_each_group(stub, capsys, group, more):
    assert run.main([f"{group}=zebra", *more]) == 2
    err = capsys.readouterr().err
    assert f"Configuration error (nothing was started):\n  - {group}=zebra is unknown" in err
    assert err.count("  - ") == 1
    assert stub.calls == []


def test_run_folders_of_the_same_second_differ_and_advice_is_a_note(stub, capsys):
    stub.status = lambda cfg: "interrupted"
    assert run.main(["collector=multi_async"]) == run.main(["collector=multi_async"]) == 130
    assert len({folder for _, folder, _ in stub.calls}) == 2
    assert capsys.readouterr().err.startswith("note: with collector=multi_async, batches lag a few updates behind")


def test_an_interruption_then_a_failure_outweighs_what_completed():
    statuses = ["completed", "completed", "failed", "interrupted", "completed"]
    assert [exit_status(*statuses[:count]) for count in range(6)] == [0, 0, 0, 1, 130, 130]


def test_a_wrong_configuration_starts_nothing_and_leaves_nothing(stub, tmp_path, capsys):
    assert run.main(["colector=x", "seed=-1"]) == run.main(["seed=1,2"]) == 2
    err = capsys.readouterr().err
    words = [
        "2 configuration errors (nothing was started):\n",
        "  - colector is not an option. ",
        "  - seed=-1 must be ",
    ]
    assert [
        word for word in [*words, "seed=1,2 has several values. To sweep over them, add -m"] if word not in err
    ] == []
    assert (stub.calls, [*tmp_path.iterdir()]) == ([], [])


def test_integers_may_be_written_as_floats(stub):
    assert run.main(["collector.total_frames=1e6", "collector.frames_per_batch=1600.", "seed=2.0"]) == 0
    ((cfg, *_),) = stub.calls
    assert (cfg.collector.total_frames, cfg.collector.frames_per_batch, cfg.seed) == (1_000_000, 1600, 2)


@pytest.mark.parametrize("word", ["hydra.run.dir=", "hydra.run.dir=''", "hydra.run.dir=null", "hydra.sweep.dir="])
def test_an_empty_folder_is_refused(stub, tmp_path, capsys, word):
    assert run.main([word, *(["-m"] if "sweep" in word else [])]) == 2
    assert f"  - {word} has no value" in capsys.readouterr().err
    assert (stub.calls, [*tmp_path.iterdir()]) == ([], [])


@pytest.mark.ci
def test_a_folder_that_has_a_run_in_it_is_refused_and_left_as_it_is(stub, tmp_path, capsys):
    assert run.main(["hydra.run.dir=here"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert run.main(["hydra.run.dir=here", "seed=1"]) == 2
    assert "run.overwrite=true" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert run.main(["hydra.run.dir=here", "seed=1", "run.overwrite=true"]) == 0
    assert [cfg.seed for cfg, _, _ in stub.calls] == [0, 1]


def test_what_only_the_run_finds_wrong_is_a_configuration_error(stub, capsys):
    def refuse(cfg):
        raise ConfigError("env.id=X: no such env.")

    stub.status = refuse
    assert run.main([]) == 2
    assert capsys.readouterr().err.endswith("  - env.id=X: no such env.\n")


def test_cfg_explains_without_running(stub, capsys):
    assert run.main(["--cfg", "job", "env=envpool"]) == 0
    assert "id: ???" in capsys.readouterr().out
    assert stub.calls == []


@pytest.mark.ci
def test_every_point_has_a_folder_named_by_what_varies(stub, tmp_path, capsys):
    assert run.main([*SWEEP, "env=cartpole,pendulum", "trainer.gamma=0.9"]) == 0
    assert [(cfg.env.id, folder) for cfg, folder, _ in stub.calls] == [
        ("CartPole-v1", tmp_path / "sweep" / "env=cartpole"),
        ("Pendulum-v1", tmp_path / "sweep" / "env=pendulum"),
    ]
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["point", "status", "frames", "frames/s", "return", "wall_s"]
    assert table[1].split() == ["env=cartpole", "completed", "512", "1,000", "-", "0.5"]
    assert table[-1] == "sweep folder: sweep"


def test_the_points_of_a_sweep_whose_folder_is_not_chosen_have_one_folder(stub, capsys):
    assert run.main(["-m", "seed=0,1"]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert [line.split()[:2] for line in table[1:3]] == [["seed=0", "completed"], ["seed=1", "completed"]]
    assert status.main([table[-1].removeprefix("sweep folder: ")]) == 0
    assert capsys.readouterr().out.count("  completed") == 2


def test_a_sweep_without_several_values_is_noted(stub, capsys):
    assert run.main([*SWEEP]) == 0
    note = "note: no option has several values, so this is a sweep of one run."
    assert note in "".join(capsys.readouterr())
    assert run.main([*SWEEP, "seed=0,1"]) == 0
    assert note not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("eval.episodes=10", "this run is not evaluated, so eval.episodes=10 has no effect yet."),
        ("eval.episodes=10 eval.every_batches=1", None),
        ("eval.video=true eval.episodes=2", "eval.video=true saves no video in this run"),
        ("-m seed=1,1,2", "seed=1,1,2 contains a value twice, but each point runs once."),
        ("-m seed=1,2", None),
        ("-m seed=1,2 eval.seed=5", "this run is not evaluated, so eval.seed=5 has no effect yet."),
        ("-m eval.seed=5 eval.every_batches=null,1", None),
        ("sweep.rungs=[1,2] sweep.draws=3", "sweep.rungs=[1,2] sweep.draws=3 has no effect on a single run. To sweep,"),
        ("-m seed=1,2 sweep.reduction=3", None),
        ("tune.minutes=3", "tune.minutes=3 has no effect on a run."),
        ("collector.max_restarts=3", "collector.max_restarts=3 has no effect with collector.on_worker_failure=raise."),
        ("collector.max_restarts=3 collector.on_worker_failure=restart", None),
    ],
)
def test_a_note_says_what_probably_was_meant_otherwise(stub, capsys, words, note):
    assert run.main([*words.split(), "collector.total_frames=1024", "collector.frames_per_batch=64"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines(keepends=True) if line.startswith("note: ")]
    assert said == [] if note is None else [line[6 : 6 + len(note)] for line in said] == [note]
    assert len(stub.calls) == (2 if "-m" in words else 1)


@pytest.mark.ci
def test_a_second_start_runs_only_what_is_missing(stub, capsys):
    stub.status = lambda cfg: "failed" if cfg.seed == 0 else "completed"
    assert run.main([*SWEEP, "seed=0,1"]) == 1
    assert [cfg.seed for cfg, _, _ in stub.calls] == [0, 1]  # a failed point stops no other
    out = capsys.readouterr().out
    assert (out.count("  failed"), out.count("  completed")) == (1, 1)
    stub.calls.clear()
    stub.status = lambda cfg: "interrupted"
    assert run.main([*SWEEP, "seed=choice(1,0,2)"]) == 130
    assert [cfg.seed for cfg, _, _ in stub.calls] == [0]
    out, err = capsys.readouterr()
    assert out.count("not started") == 1
    command = "collectx run -m 'seed=choice(1,0,2)' hydra.sweep.dir=sweep"
    assert f"collectx: to go on with the sweep and its stopped point: {command}\n" in err
    assert status.main(["sweep"]) == 0
    listed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:4])
    assert listed == {"seed=0": "interrupted", "seed=1": "completed", "seed=2": "not"}


@pytest.mark.ci
def test_a_changed_configuration_is_another_point_in_another_folder(stub):
    for gamma in ("0.9", "0.5"):
        assert run.main([*SWEEP, f"trainer.gamma={gamma}"]) == 0  # without a sweep, one point
    # Nor is a run replaced whose configuration cannot be read.
    RunFolder("sweep/0").config.write_text("{")
    assert run.main([*SWEEP, "trainer.gamma=0.9"]) == 0
    assert [folder.name for _, folder, _ in stub.calls] == ["0", "0_2", "0_3"]


def test_every_point_is_checked_before_the_first_starts(stub, capsys):
    assert run.main([*SWEEP, "collector.num_workers=1,3", "trainer.gama=1"]) == 2
    err = capsys.readouterr().err
    assert stub.calls == []
    assert err.count("trainer.gama") == 1
    assert err.rstrip().endswith("Affected point: collector.num_workers=3")


def test_a_broken_pipe_is_no_good_end_of_a_command_that_acts(monkeypatch):
    """It is that of an env or a trainer: the output of such a command outlives its reader."""

    def gone(*arguments):
        raise BrokenPipeError

    monkeypatch.setattr(evaluation, "main", gone)
    monkeypatch.setattr(listing, "main", gone)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert main._status(["list"]) == 0
    with pytest.raises(BrokenPipeError):
        main._status(["eval"])


def test_an_error_without_a_text_is_named(stub, monkeypatch, capsys):
    def fail(*arguments):
        raise PermissionError

    monkeypatch.setattr(Composer, "run", fail)
    assert run.main([]) == 2
    assert ": PermissionError. Choose another folder with" in capsys.readouterr().err


@pytest.mark.ci
def test_a_folder_whose_job_has_not_ended_is_refused(queue, stub, capsys):
    words, files = ["hydra.run.dir=here", "run.overwrite=true"], RunFolder("here")
    files.jobs.mkdir(parents=True)
    jobs_status.write_job(files, "7")
    queue.states = {"7": "PENDING"}
    assert run.main(words) == 2
    assert "/here has not ended. Cancel it with `scancel 7`, or choose another folder" in capsys.readouterr().err
    queue.error = "Unable to contact slurm controller"
    assert run.main(words) == 2
    assert "/here has not ended, as far as this host knows (" in capsys.readouterr().err
    queue.error, queue.states = "", {"7": "CANCELLED"}
    assert run.main(words) == 0
    assert jobs_status.read_job(files) is None  # it tells nothing of the new run


@pytest.mark.parametrize(("command", "offered"), [("reproduce", "--trust\n"), ("run", "\n")])
def test_the_flags_of_a_subcommand_are_completed(monkeypatch, capsys, command, offered):
    monkeypatch.setenv("COMP_LINE", f"collectx {command} --tr")
    assert completion.main(["query=bash"], main.SUBCOMMANDS) == 0
    assert capsys.readouterr().out == offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("collectx re", {"report", "reproduce", "resume"}),
        ("collectx schema ", {*GROUPS}),
        ("collectx list ", {*GROUPS, "debug", "experiment", "logger"}),
        ("collectx docs re", {"recording", "recurrent", "reproduce", "reproducibility", "resume", "reference/slurm"}),
        ("collectx status outp", set()),
        ("collectx run inference=", {"inference=local", "inference=server"}),
        ("collectx run inference=server env=a,b inference.m", {"inference.max_batch=", "inference.min_batch="}),
        ("collectx run --config-dir nowhere inference=l", {"inference=local"}),
    ],
)
def test_words_are_completed(monkeypatch, capsys, line, offered):
    monkeypatch.setenv("COMP_LINE", line)
    assert completion.main(["query=bash"], main.SUBCOMMANDS) == 0
    assert {*capsys.readouterr().out.split()} == offered


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([], 2, "collectx SUBCOMMAND --help"),
        (["--help"], 0, "collectx SUBCOMMAND --help"),
        (["--version"], 0, f"collectx {__version__}"),
        (["rum"], 2, "collectx: there is no subcommand 'rum'. Did you mean collectx run?"),
        (["-m", "run"], 2, "collectx: unknown flag -m. Write flags after the subcommand: collectx run -m"),
    ],
)
def test_what_the_command_says_without_a_subcommand(capsys, words, status, text):
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == status
    assert text in "".join(capsys.readouterr())


class Halves(Sweeper):
    """A third-party sweeper: tries 0.5 and 0.25 for intervals, and remembers what the points returned."""

    answers: ClassVar[list[float]] = []

    def setup(self, *, hydra_context, task_function, config):
        context = {"hydra_context": hydra_context, "task_function": task_function, "config": config}
        self.launcher = Plugins.instance().instantiate_launcher(**context)

    def sweep(self, arguments):
        for index, value in enumerate((0.5, 0.25)):
            (job,) = self.launcher.launch([[each.replace("interval(0,1)", str(value)) for each in arguments]], index)
            self.answers.append(job.return_value)


@pytest.fixture
def halves(monkeypatch):
    """The words that choose it."""
    monkeypatch.setitem(Plugins.instance().class_name_to_class, "hydra_plugins.halves.Halves", Halves)
    ConfigStore.instance().store("halves", {"_target_": "hydra_plugins.halves.Halves"}, "hydra/sweeper")
    yield [*SWEEP, "hydra/sweeper=halves", "trainer.gamma=interval(0,1)"]
    del ConfigStore.instance().repo["hydra"]["sweeper"]["halves.yaml"]


@pytest.mark.ci
def test_a_third_party_sweeper_learns_the_objective_of_each_point(stub, halves, capsys):
    stub.mean_return = lambda cfg: None if cfg.seed == 2 else 1 / cfg.trainer.gamma
    stub.status = lambda cfg: "failed" if cfg.seed == 1 else "completed"
    for words in (["collector.num_workers=1"], ["collector.num_workers=1", "sweep.objective=frames"]):
        assert run.main([*halves, *words]) == 0  # the second time from the results
    assert Halves.answers == [2.0, 4.0, 512.0, 512.0]
    assert [folder.name for _, folder, _ in stub.calls] == ["trainer.gamma=0.5", "trainer.gamma=0.25"]
    # A point without an objective ends the sweep with one message, as this sweeper wants it.
    for words, part in {
        "seed=1": "trainer.gamma=0.5: failed",
        "seed=2": "the result has no mean_return, which sweep.objective needs: no episode ended",
    }.items():
        assert run.main([*halves, words]) == 1
        assert part in capsys.readouterr().err
    assert run.main([*halves, "sweep.objective=return"]) == 2
    assert "Did you mean mean_return?" in capsys.readouterr().err


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("words", "names", "part"),
    [
        (["-m", "env=glob([cart*,pend*])"], ["env=cartpole", "env=pendulum"], ""),
        (["-m", "launcher=glob(*,exclude=[s*,ray])"], ["launcher=inline", "launcher=local"], ""),
        (["env=glob(cart*)"], ["run"], ""),
        (["-m", "env=glob(x*)"], [], "env=glob(x*) matches no choice. Valid names: cartpole, counting"),
        (["-m", "seed=glob(*)"], [], "there is no group 'seed'"),
        (
            ["-m", "trainer.gamma=interval(0,1)"],
            [],
            "trainer.gamma=interval(0,1) is an interval, which Hydra's basic sweep",
        ),
        (["-m", "hydra/sweeper=nope"], [], "nope"),
        (["hydra.run.dir=file/run"], [], "cannot create the run folder "),
        (["-m", "hydra.sweep.dir=file", "seed=1,2"], [], "cannot create the run folder "),
        (["hydra.run.dir=${nowhere}"], [], "nowhere"),
    ],
)
def test_globs_intervals_and_folders_are_points_or_one_message(stub, tmp_path, capsys, words, names, part):
    (tmp_path / "file").touch()
    assert run.main(["hydra.sweep.dir=sweep", "hydra.run.dir=run", *words]) == (2 if part else 0)
    assert [folder.name for _, folder, _ in stub.calls] == names
    assert part in capsys.readouterr().err


@pytest.mark.ci
def test_an_experiments_keys_are_left_out_with_a_note_in_runs_and_points(stub, capsys):
    by_mode = ["hydra.mode=MULTIRUN", "hydra.sweep.dir=sweep2", "hydra.run.dir=run", "trainer=meter", "seed=1,2"]
    for words in (["trainer=meter"], [*SWEEP, "trainer=meter,ppo"], by_mode):
        assert run.main(["experiment=cartpole_ppo", *words]) == 0
        note = (
            "note: trainer=meter has no option trainer.target_return, so the value from experiment=cartpole_ppo will be"
        )
        assert capsys.readouterr().err.count(note) == 1
    assert [(cfg.trainer.kind, getattr(cfg.trainer, "target_return", None)) for cfg, _, _ in stub.calls] == [
        *(("meter", None), ("meter", None), ("ppo", 475.0), ("meter", None), ("meter", None))
    ]


@pytest.mark.ci
def test_an_experiments_keys_are_left_out_where_a_third_party_sweeper_draws(stub, halves, capsys):
    words = [word.replace("trainer.gamma", "collector.preemptive_threshold") for word in halves]
    assert run.main(["experiment=cartpole_ppo", "trainer=meter", "sweep.objective=frames", *words]) == 0
    assert "has no option trainer.target_return" in capsys.readouterr().err
    assert [cfg.trainer.kind for cfg, _, _ in stub.calls] == ["meter", "meter"]
