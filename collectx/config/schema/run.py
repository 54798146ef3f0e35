"""The complete configuration: the groups, the seed, and the options of the run itself and of its loggers."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from collectx.config.schema.collector import CollectorConfig, InferenceConfig
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.fields import Section, option, required, section
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.trainer import TrainerConfig


@dataclass(kw_only=True)
class RunOptions(Section):
    """Where a run writes, and when it ends. These defaults apply without a section `run`."""

    overwrite: bool = option(False, "`true`: replace an earlier run in the run folder. `false`: refuse to run there.")
    max_batches: int | None = option(
        None,
        """Maximum number of batches, after which the run ends as completed. Schedules that depend on
        collector.total_frames, such as the learning rate, stay as they are. `null`: no maximum.""",
        minimum=1,
    )
    max_minutes: float | None = option(
        None,
        """Maximum minutes, counted from the start of the command, across resumes. The run then completes its batch
        and ends as completed. In a sweep, each point has this time. `null`: no maximum.""",
        above=0,
        finite=True,
    )
    resume: str | None = option(
        None,
        """What to do if the run folder contains a run. never: see `overwrite`. auto: continue the run from its newest
        checkpoint, or start over if there is none; a completed run does not change. `null`: auto for the points of a
        sweep, never for a single run. resume=auto is short for run.resume=auto. `collectx resume RUN_DIR` continues
        a run with its saved configuration.""",
        choices=("never", "auto"),
    )
    max_log_bytes: int | None = option(
        10_000_000,
        """Maximum bytes of the log of each worker on this machine. In a longer log, repeated lines are folded, and the
        oldest lines removed. A log is looked at every second, and may be longer meanwhile. `null`: no maximum.""",
        minimum=10_000,
    )
    moved: bool = option(
        False,
        """`true`: a resumed run may find its data in another place: texts in env.kwargs, env.wrappers, env.dir and
        policy.kwargs may change. `false`: they are fixed. `collectx resume RUN_DIR env.kwargs.data=DIR --moved` is
        short for it.""",
    )
    trust: bool = option(
        False,
        """`true`: resume although other users may have written the checkpoints, whose env pickles execute code. For
        file systems without permissions. `collectx resume RUN_DIR --trust` is short for it.""",
    )


OF_EVALUATION = "eval/"
"""Begins the names of metrics that are results of evaluations."""


@dataclass(kw_only=True)
class CheckpointOptions(Section):
    """When checkpoints are written. These defaults apply without a section `checkpoint`."""

    every_batches: int | None = option(
        None, "Batches between checkpoints. `null`: do not save by batch count.", minimum=1
    )
    every_min: float | None = option(
        10.0,
        """Minutes between checkpoints. `null`: do not save by time. The run also saves a checkpoint at its end, and
        when a signal stops it. Checkpoints by time are postponed if they would take more than 1% of the time.""",
        above=0,
    )
    keep: int = option(2, "Number of checkpoints to keep. Older ones are deleted.", minimum=1)
    replay_buffer: bool = option(
        True,
        """`true`: checkpoints contain the trainer's replay buffers. `false`: they are small, but a resumed run begins
        with empty buffers.""",
    )
    keep_best: str | None = option(
        None,
        """Also keep the checkpoint with the highest value of this metric. `mean_return`, or an entry of env.metrics:
        its value in the batches. eval/mean_return, or eval/NAME: its value in the evaluations (eval.every_batches),
        each of which then writes a checkpoint. `collectx eval` and `collectx export` use these weights with
        weights=best. `null`: keep only the newest.""",
    )
    grace_s: float = option(
        20.0,
        """Maximum seconds after a signal (SIGINT, SIGTERM, SIGHUP) to finish the batch and save a checkpoint. A second
        signal ends the run at once.""",
        minimum=0,
    )


@dataclass(kw_only=True)
class EvalOptions(Section):
    """How episodes are evaluated, after a run or during it. These defaults apply without a section `eval`."""

    every_batches: int | None = option(
        None,
        """Batches between evaluations of the policy during a run, by a separate process in separate envs. If two are
        due while one is still running, the trainer waits. `null`: no evaluations during the run. `collectx eval
        RUN_DIR` evaluates a run that has ended.""",
        minimum=1,
    )
    env: dict[str, Any] = option(
        {},
        """Overrides of `env` for evaluations: {wrappers: []} leaves out wrappers for training, and {kwargs:
        {max_episode_steps: 1000}} changes one argument of the env. The spaces stay those of `env`.""",
    )
    episodes: int = option(10, "Complete episodes per evaluation.", minimum=1)
    max_frames_per_episode: int | None = option(
        100_000,
        """Maximum frames of an episode. If an episode is longer, the evaluation fails. To cut long episodes and count
        their returns so far, set collector.max_frames_per_traj instead. `null`: no maximum.""",
        minimum=1,
    )
    exploration_type: str = option(
        "deterministic",
        """How actions are chosen from the policy's distribution, in TorchRL's terms. random: sampled, as in training.
        mode, mean, median: this statistic. deterministic: the distribution's deterministic sample.""",
        choices=("random", "mode", "mean", "median", "deterministic"),
    )
    seed: int = option(
        1_000_000,
        "Seed of the evaluation's envs and actions. It does not depend on the `seed` of the run.",
        minimum=0,
        bits=61,
    )
    weights: str = option(
        "newest",
        """Whose weights `collectx eval` evaluates. newest: those of the end of the run. best: those of the checkpoint
        that checkpoint.keep_best kept.""",
        choices=("newest", "best"),
    )
    video: bool = option(
        False,
        """`true`: save a video of each episode: `collectx eval` in RUN_DIR/videos/, and evaluations during a run, after
        N frames, in its folder frames-N.""",
    )
    close_timeout_s: float = option(
        60.0, "Maximum seconds that the run waits at its end for its evaluations.", minimum=0
    )


@dataclass(kw_only=True)
class TensorBoardLoggerConfig(Section):
    dir: str | None = option(None, "Folder of the event files. `null`: `tensorboard` in the run folder.")


@dataclass(kw_only=True)
class CsvLoggerConfig(Section):
    file: str | None = option(None, "Path of the table. `null`: progress.csv in the run folder.")


@dataclass(kw_only=True)
class WandbLoggerConfig(Section):
    project: str | None = option(None, "Name of the project. `null`: the value of WANDB_PROJECT, or collectx.")
    entity: str | None = option(
        None, "User or team that owns the run. `null`: the default user or team of your account."
    )
    name: str | None = option(None, "Name of the run. `null`: the value of WANDB_NAME, or the name of the run folder.")
    group: str | None = option(
        None, "Name of a group of runs, such as the seeds of one experiment. `null`: the value of WANDB_RUN_GROUP."
    )
    tags: list[str] | None = option(None, "Labels of the run. `null`: those of WANDB_TAGS, such as a,b.")
    mode: str | None = option(
        None,
        "online, offline (files in the run folder, for `wandb sync`) or disabled. `null`: the value of WANDB_MODE.",
        choices=("online", "offline", "disabled"),
    )


@dataclass(kw_only=True)
class MlflowLoggerConfig(Section):
    tracking_uri: str | None = option(
        None,
        """Server or database, such as http://host:5000 or sqlite:///mlflow.db. `null`: the value of
        MLFLOW_TRACKING_URI, or MLflow's default.""",
    )
    experiment: str | None = option(
        None, "Name of the experiment. `null`: the value of MLFLOW_EXPERIMENT_NAME, or collectx."
    )
    name: str | None = option(
        None, "Name of the run. `null`: the value of MLFLOW_RUN_NAME, or the name of the run folder."
    )


@dataclass(kw_only=True)
class CustomLoggerConfig(Section):
    target: str = required(
        "`module:name` of the class or function that creates the logger, such as my_project.loggers:Slack."
    )
    kwargs: dict[str, Any] = option({}, "Keyword arguments of the target.")


@dataclass(kw_only=True)
class LoggerConfig(Section):
    """The loggers of a run. These defaults apply without a section `logger`; null: not used."""

    close_timeout_s: float = option(30.0, "Maximum seconds that the run waits at its end for its loggers.", minimum=0)
    tensorboard: TensorBoardLoggerConfig | None = None
    csv: CsvLoggerConfig | None = None
    wandb: WandbLoggerConfig | None = None
    mlflow: MlflowLoggerConfig | None = None
    custom: CustomLoggerConfig | None = None


# The path of a value, such as `("env", "kwargs", "token")`, and its text in the configuration: `${oc.env:TOKEN}`.
Written: TypeAlias = tuple[tuple[Any, ...], str]


@dataclass(kw_only=True)
class RunConfig(Section):
    """The groups and sections of a run.

    Attributes:
        written: what a snapshot keeps as written in place of the value, see `collectx.config.interpolation`.
    """

    env: EnvConfig
    policy: PolicyConfig
    collector: CollectorConfig
    backend: BackendConfig
    launcher: LauncherConfig = field(metadata={"without_effect": True})
    devices: DevicesConfig
    trainer: TrainerConfig
    seed: int = option(
        0,
        "Seed of all random numbers, at least 0. Env i of the run is seeded with (seed, i), and the trainer with seed.",
        minimum=0,
        bits=61,
        kept=True,
    )
    run: RunOptions = section(RunOptions, without_effect=True)
    checkpoint: CheckpointOptions = section(CheckpointOptions, without_effect=True)
    inference: InferenceConfig = section(InferenceConfig)
    logger: LoggerConfig = section(LoggerConfig, without_effect=True)
    eval: EvalOptions = section(EvalOptions, without_effect=True)
    written: list[Written] = field(default_factory=list)


# The sections of a run that are not groups.
SECTIONS: dict[str, type] = {
    "run": RunOptions,
    "checkpoint": CheckpointOptions,
    "logger": LoggerConfig,
    "eval": EvalOptions,
}


OBJECTIVES = ("mean_return", "frames_per_s", "num_episodes", "frames", "batches", "wall_s", "start_s")
"""Entries of `result.json` by which runs are ranked."""


@dataclass(kw_only=True)
class SweepConfig(Section):
    """How a sweeper chooses and compares the points. Not part of a run's configuration, as it does not change the
    run."""

    objective: str | list[str] = option(
        "mean_return",
        """Entry of result.json that ranks the table of a sweep, and that a sweeper such as hydra/sweeper=optuna
        optimises: mean_return, frames_per_s, num_episodes, frames, batches, wall_s or start_s. The sweeper's key
        direction selects maximize or minimize. If the sweeper takes several directions, write a list; its first entry
        ranks the table. Entries of env.metrics are allowed too, and with eval.every_batches the last evaluation's:
        eval/mean_return.""",
    )
    rungs: list[int] | None = option(
        None,
        """Frames after which hydra/sweeper=halving compares the points, ascending, such as [100_000,300_000,900_000].
        The last one is the length of the points that are never stopped. Other sweepers have no rungs.""",
    )
    reduction: float = option(
        3.0, "At each rung, one point of this number goes on to the next rung; above 1.", above=1, finite=True
    )
    draws: int | None = option(
        None,
        """How many points hydra/sweeper=halving draws at random, also from intervals; each runs with all values of
        `seed`. `null`: every combination of the values.""",
        minimum=1,
    )
    seed: int = option(0, "Seed of sweep.draws.", minimum=0)


@dataclass(kw_only=True)
class TuneConfig(Section):
    """How `collectx tune` measures. Not part of a run's configuration."""

    minutes: float = option(5.0, "Approximate minutes of `collectx tune`.", above=0, finite=True)
    seconds: float = option(
        2.0, "Seconds of one measurement, after the warm-up; at least two batches.", above=0, finite=True
    )
    warmup_s: float = option(1.0, "Seconds after the first batch of a run before the measurement starts.", minimum=0)
    exact: bool | None = option(
        None,
        """`true`: search only settings that leave training unchanged: the rows and steps of batches and, with sync
        collectors, their lag. `false`: also search other rows and steps of the same frames_per_batch,
        collector.overlap and collector.num_slots. `null`: `false` with trainer=meter, otherwise `true`.""",
    )


# The sections that only a command reads.
COMMAND_SECTIONS: dict[str, type] = {"tune": TuneConfig, "sweep": SweepConfig}
