"""Options of the group `env`: the envs of each worker."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from collectx.config.schema.fields import Section, like, option, required


@dataclass(kw_only=True)
class EnvConfig(Section):
    # Whether each env of a worker is made and stepped by calls of its own.
    are_separate: ClassVar[bool] = False

    kind: str = required("The kind of env.")
    num_envs: int = option(8, "Envs per worker.", minimum=1)


@dataclass(kw_only=True)
class GymnasiumConfig(EnvConfig):
    """Options of `gym` and `gym_vector`."""

    id: str | None = option(
        None,
        """A registered id such as CartPole-v1, or `module:Id-v0` to import the module that registers it. `null`: use
        entry_point.""",
    )
    entry_point: str | None = option(None, "`module:Class` or `module:function` that creates one env. `null`: use id.")
    kwargs: dict[str, Any] = option(
        {},
        """Keyword arguments of the env: env.kwargs.sutton_barto_reward=true. Strings here and in wrappers may contain
        `{env_index}`, the env's number over all workers, `{worker_index}` and `{restart_count}`:
        `{port: "{env_index + 5001}"}`.""",
        movable=True,
    )
    wrappers: list[Any] = option(
        [],
        """Wrappers, innermost first: the import path of a class, or a mapping of that path (_target_) and keyword
        arguments.""",
        movable=True,
    )
    reset_options: dict[str, Any] = option(
        {},
        """The `options` passed to every reset(), such as {level: 3}. Trainers change them with
        collection.set_reset_options. {}: none are passed.""",
    )
    info_keys: list[str | dict[str, Any]] = option(
        [],
        """Entries of info to keep in the batch (numbers, arrays, or dicts of these), such as [episode]. The batch keys
        are ("info", name) and ("next", "info", name). In frames without the entry, the value is zero and ("info",
        "_name") is False. To learn shapes and dtypes, the trainer steps a separate env for up to one episode. This is
        not needed if you declare them: [{speed: float32}, {position: [float32, 3]}, {episode: {r: float32, l:
        int32}}].""",
    )
    metrics: list[str] = option(
        [],
        """Entries of info whose means become metrics of the run: [is_success, episode.l], where a dot enters a dict.
        The value at the end of an episode counts, and each mean is over the newest batches that together contain at
        least 100 such episodes. step_mean/NAME is the mean over all steps instead. Metrics appear in metrics.jsonl,
        the display, the loggers, the report and result.json, and can be the sweep.objective.""",
        kept=True,
    )
    exclude_keys: list[str] = option(
        [], "Parts of a Dict or Tuple observation to leave out of the batch, such as text: [mission, inner.text]."
    )


@dataclass(kw_only=True)
class GymEnvConfig(GymnasiumConfig):
    are_separate = True


@dataclass(kw_only=True)
class GymVectorEnvConfig(GymnasiumConfig):
    num_envs: int = like(EnvConfig, "num_envs", "Envs per worker: the size of its vector env.")
    id: str | None = like(GymnasiumConfig, "id", "A registered env id. `null`: use entry_point.")
    entry_point: str | None = like(
        GymnasiumConfig,
        "entry_point",
        "`module:Class` or `module:function` that creates one vector env. `null`: use id.",
    )
    wrappers: list[Any] = like(
        GymnasiumConfig,
        "wrappers",
        "Wrappers of each single env, as for env=gym. Requires an id, and vectorization_mode sync or async.",
    )
    vectorization_mode: str = option(
        "sync",
        """How the envs are vectorized: vector_entry_point (a batched implementation of the env), sync (in the worker
        process) or async (one process per env).""",
        choices=("vector_entry_point", "sync", "async"),
    )
    context: str | None = option(
        None,
        """How vectorization_mode=async starts processes: forkserver, spawn or fork, as in multiprocessing. fork is the
        fastest, but may hang if a library of the env has started threads. `null`: forkserver if available, otherwise
        spawn.""",
        choices=("forkserver", "spawn", "fork"),
    )
    autoreset_mode: str | None = option(
        None,
        """When the vector env resets its envs: next_step, same_step or disabled. Batches are the same with each.
        `null`: disabled if the env supports it, otherwise the mode of the env.""",
        choices=("next_step", "same_step", "disabled"),
    )

    @property
    def is_batched(self) -> bool:
        """Whether one call makes all envs of a worker; otherwise each env is made by its own call."""
        return self.id is None or self.vectorization_mode == "vector_entry_point"


@dataclass(kw_only=True)
class EnvPoolEnvConfig(EnvConfig):
    num_envs: int = like(EnvConfig, "num_envs", default=64)
    id: str = required("An EnvPool task such as CartPole-v1 or Pong-v5.")
    kwargs: dict[str, Any] = option({}, "Keyword arguments of envpool.make.", movable=True)
    num_threads: int = option(1, "Threads in each worker's pool. 0: one per core.", minimum=0, bits=31)
    exclude_keys: list[str] = option(
        [], "Parts of a Dict observation to leave out of the batch, such as text: [mission, inner.text]."
    )


@dataclass(kw_only=True)
class TorchrlEnvConfig(EnvConfig):
    num_envs: int = like(EnvConfig, "num_envs", "Envs per worker; for a batched env, its batch size.")
    target: str = required("`module:function` that creates one env, or a batched env such as a SerialEnv.")
    kwargs: dict[str, Any] = option({}, "Keyword arguments of the function: env.kwargs.id=CartPole-v1.", movable=True)
    reset_options: dict[str, Any] = like(
        GymnasiumConfig,
        "reset_options",
        """The `options` passed to every reset() of a Gymnasium env, such as {level: 3}. Trainers change them with
        collection.set_reset_options. {}: none are passed.""",
    )
    exclude_keys: list[str] = option(
        [], "Keys of the observation and state specs to leave out of the batch, such as text: [mission, inner.text]."
    )


@dataclass(kw_only=True)
class DatasetEnvConfig(EnvConfig):
    num_envs: int = like(
        EnvConfig,
        "num_envs",
        """Envs per worker. Env i of the run starts with episode i of the data set and continues in recorded order, then
        from the first episode again.""",
        default=1,
    )
    dir: str = required(
        """Folder of a data set in memmap or parquet format, or of a run that recorded one. Each worker reads it into
        memory.""",
        movable=True,
    )


@dataclass(kw_only=True)
class CountingEnvConfig(EnvConfig):
    are_separate = True

    episode_length: int = option(
        10,
        "Frames in an episode of env 0. Other envs add up to two, so that episodes do not end together.",
        minimum=1,
    )
    observation_size: int = option(
        3, "Size of an observation, at least 3. The elements after the first three are computed from those.", minimum=3
    )
    step_s: float = option(
        0.0, "Simulated cost: processor seconds that a worker spends per step of all its envs.", minimum=0, finite=True
    )
