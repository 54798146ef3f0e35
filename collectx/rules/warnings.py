"""Warnings about configurations that can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collectx.config.derived import expected_batches, num_processes_of, surplus_note
from collectx.config.registry import field_of
from collectx.config.schema.env import GymnasiumConfig
from collectx.config.schema.fields import default_of
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import PpoTrainerConfig
from collectx.place import place_of
from collectx.user_objects import named_call


def warnings_of(cfg: RunConfig) -> list[str]:
    """Returns notes on a valid configuration, such as combinations that are probably not intended."""
    collector, trainer = cfg.collector, cfg.trainer.kind
    notes = place_of(cfg).notes()
    if trainer == "ppo" and collector.schedule == "async":
        notes.append(
            f"with collector={collector.kind}, batches lag a few updates behind, and PPO corrects for that only in "
            "part. Use trainer=impala, which does so by V-trace, or collector=multi_sync, whose batches do not lag."
        )
    if trainer == "impala" and collector.schedule != "async":
        notes.append(
            f"with collector={collector.kind}, batches do not lag, so IMPALA's V-trace has nothing to correct. Use "
            "collector=multi_async, or trainer=ppo."
        )
    if isinstance(cfg.trainer, PpoTrainerConfig):
        size, batch = cfg.trainer.minibatch_size, collector.frames_per_batch
        if size > max(batch, default_of(field_of("trainer.minibatch_size"))):
            notes.append(
                f"trainer.minibatch_size={size} is more than collector.frames_per_batch={batch}, so each epoch has "
                "only one gradient step. For more, lower trainer.minibatch_size."
            )
    if collector.min_workers is not None and collector.on_worker_failure != "drop":
        notes.append(
            f"collector.min_workers={collector.min_workers} has no effect with collector.on_worker_failure="
            f"{collector.on_worker_failure}, because the run then needs all workers. To continue with fewer, add "
            "collector.on_worker_failure=drop."
        )
    restarts = collector.max_restarts
    if restarts != default_of(field_of("collector.max_restarts")) and collector.on_worker_failure != "restart":
        notes.append(
            f"collector.max_restarts={restarts} has no effect with collector.on_worker_failure="
            f"{collector.on_worker_failure}. To restart workers, add collector.on_worker_failure=restart."
        )
    if collector.max_policy_lag is not None and collector.schedule != "async":
        notes.append(
            f"collector.max_policy_lag={collector.max_policy_lag} has no effect with collector={collector.kind}, whose "
            "workers never run ahead of the trainer. It limits the lag of collector=multi_async."
        )
    frames, total = collector.init_random_frames, collector.total_frames
    if frames and not cfg.policy.is_random:
        if trainer in ("ppo", "impala"):
            notes.append(
                f"{trainer.upper()} cannot learn correctly from the random actions of "
                f"collector.init_random_frames={frames}, "
                "because their log-probability is stored as 0. Use collector.init_random_frames=null."
            )
        if 0 <= total <= frames:
            notes.append(
                f"collector.init_random_frames={frames} covers all of collector.total_frames={total}, so the policy "
                "never acts. Use fewer random frames, or more frames."
            )
    if cfg.eval.video and cfg.eval.every_batches is None:
        notes.append(
            "eval.video=true saves no video in this run, which is not evaluated. Add eval.every_batches=N, or evaluate "
            "the run afterwards: collectx eval RUN_DIR"
        )
    every, batches = cfg.eval.every_batches, expected_batches(cfg)
    if every is not None and batches is not None and every > batches:
        notes.append(
            f"this run is not evaluated, because eval.every_batches={every} is more than its number of batches "
            f"({batches}). Use a lower eval.every_batches, or evaluate the run afterwards: collectx eval RUN_DIR"
        )
    if cfg.eval.weights == "best" and cfg.checkpoint.keep_best is None:
        notes.append(
            "eval.weights=best has no effect, because this run keeps no best checkpoint. Add "
            "checkpoint.keep_best=mean_return."
        )
    if getattr(cfg.env, "kwargs", {}).get("render_mode") == "human":
        notes.append(
            "env.kwargs.render_mode=human shows every step on the screen, which slows the run down. Leave it out, and "
            "to see the policy: collectx eval RUN_DIR video=true"
        )
    notes += _shared_outputs(cfg)
    if surplus := surplus_note(total, collector.frames_per_batch, prefix="collector."):
        notes.append(surplus)
    return notes


# The arguments of RecordVideo and of Monitor that say where an env writes.
_OUTPUTS = ("video_folder", "filename")


def _is_shared(path: str, count: int, num_envs: int) -> bool:
    """Whether some of `count` envs, `num_envs` in each worker, make the same path of `path`."""
    if "{" not in path:
        return True
    from collectx.env.env_indices import EnvNumbers  # imports torch

    return len({EnvNumbers(index, index // num_envs).filled(path) for index in range(count)}) < count


def _shared_outputs(cfg: RunConfig) -> Iterator[str]:
    """Yields a warning if several envs, or processes of a worker, write to one path."""
    env = cfg.env
    count = num_processes_of(cfg.collector) * env.num_envs
    if not isinstance(env, GymnasiumConfig) or count == 1:
        return
    calls = [("env.kwargs", env.kwargs)]
    calls += [(f"env.wrappers[{i}]", named_call(item)[1]) for i, item in enumerate(env.wrappers)]
    for where, arguments in calls:
        for name in _OUTPUTS if isinstance(arguments, Mapping) else ():
            value = arguments.get(name)
            if not isinstance(value, str):
                continue
            if _is_shared(value, count, env.num_envs):
                yield (
                    f"all {count} envs write to {name}={value} ({where}), so they overwrite each other's files. Give "
                    f"each its own path, such as {name}={value}/{{env_index}}."
                )
            elif cfg.collector.on_worker_failure == "restart" and "restart_count" not in value:
                yield (
                    f"the env of a restarted worker overwrites its earlier files in {name}={value} ({where}). Give "
                    f"each process its own path, such as {name}={value}-{{restart_count}}."
                )
