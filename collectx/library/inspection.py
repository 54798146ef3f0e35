"""Queries to the workers, hooks, resets and profiling of a collector.

Base class of the collectors in `collectx.library.collectors`. Runs in the trainer's process.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tensordict import TensorDictBase

from collectx.library.parse import signature_of
from collectx.library.profiling import ProfileConfig
from collectx.library.stateful import StatefulCollector
from collectx.transport.base import RESET, encode_reset
from collectx.worker.requests import resolve
from collectx.worker.spec import env_seed


class InspectableCollector(StatefulCollector):
    """Workers answer queries between two of their batches; an async worker completes its granted batches first. Workers
    on other hosts (over torch.distributed) cannot be queried: `NotImplementedError`."""

    _profile_config: ProfileConfig | None = None

    def getattr_env(self, attr: str) -> Any:
        """Returns a copy of an attribute of the first worker's env; a list if that worker has several envs.

        Args:
            attr: its name, or a path such as `transform[0].shape`.

        Raises:
            AttributeError: the env has no such attribute.
        """
        return self._ask("getattr_env", per_worker={min(self._collector.workers): (attr,)}).popitem()[1]

    def get_distant_attr(self, attr: str) -> Any:
        """Returns, for each worker, a copy of what a path that begins with `env.` names in its env, or its index for
        `worker_idx`, in a list. Without workers, returns what a path names in this collector.

        Raises:
            AttributeError: it does not exist; or there are workers and the path does not begin with `env.`.
        """
        if self._keywords.kind == "single":
            return resolve(self, attr)
        if attr == "worker_idx":
            return self._collector.workers
        place, _, path = attr.partition(".")
        if place != "env":
            raise AttributeError(f"{attr!r}: workers are no collectors: give worker_idx or a path within env, as env.x")
        return [value for _, value in sorted(self._ask("getattr_env", path).items())]

    def getattr_policy(self, attr: str) -> Any:
        """Returns an attribute of `collector.policy`."""
        return getattr(self.policy, attr)

    def getattr_rb(self, attr: str) -> Any:
        """Returns an attribute of the replay buffer."""
        return getattr(self.replay_buffer, attr)

    def get_model(self, model_id: str = "policy") -> Any:
        """Returns `collector.policy`.

        Raises:
            AttributeError: `model_id` is not "policy".
        """
        if model_id != "policy":
            raise AttributeError(f"model_id={model_id!r}: the only model here is 'policy'")
        return self.policy

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[tuple] | None = None,
        list_of_kwargs: Sequence[dict] | None = None,
    ) -> list[Any]:
        """Calls a method of this collector once per entry of the lists; returns the results.

        Raises:
            ValueError: the two lists have different lengths.
        """
        positional, named = list(list_of_args or ()), list(list_of_kwargs or ())
        if positional and named and len(positional) != len(named):
            raise ValueError(f"list_of_args has {len(positional)} entries, list_of_kwargs {len(named)}: one per call")
        count = len(positional) or len(named)
        calls = zip(positional or [()] * count, named or [{}] * count, strict=True)
        return [getattr(self, method_name)(*args, **kwargs) for args, kwargs in calls]

    def stats(self, workers: str = "aggregate", *, timeout: float | None = None) -> dict[str, int | float | bool]:
        """Returns counters of this process, without a query to workers.

        - `workers`, `workers_alive`
        - `frames`, `batches`, `completed`, `requested_frames_per_batch`, `policy_version`, and `total_frames` unless it
          is -1; `worker_frames`, the sum over the workers
        - of each worker `worker_<index>/frames`, `.../batches` and `.../requested_frames_per_batch`, of its parts of
          the batches that were delivered

        Args:
            workers: "aggregate": the first and the second; "per_worker": the first and the third; "both": all.
            timeout: ignored (accepted for TorchRL compatibility), as the call does not block.

        Raises:
            ValueError: another value of `workers`.
        """
        if workers not in ("aggregate", "per_worker", "both"):
            raise ValueError(f"workers={workers!r}: must be 'aggregate', 'per_worker' or 'both'")
        collector = self._collector
        counters: dict[str, int | float | bool] = {
            "workers": self._cfg.collector.num_workers,
            "workers_alive": len(collector.workers),
        }
        if workers != "per_worker":
            total = collector.total_frames
            counters |= {
                "frames": collector.num_frames,
                "worker_frames": sum(collector.frames_by_worker.values()),
                "batches": collector.num_batches,
                "completed": 0 <= total <= collector.num_frames,
                "requested_frames_per_batch": self.requested_frames_per_batch,
                "policy_version": self.policy_version,
            } | ({"total_frames": total} if total >= 0 else {})
        if workers != "aggregate":
            for index in sorted({*collector.workers, *collector.frames_by_worker}):
                frames = collector.frames_by_worker[index]
                part = self.frames_per_batch_worker(worker_idx=index)
                counters[f"worker_{index}/frames"] = frames
                counters[f"worker_{index}/batches"] = -(-frames // part)
                counters[f"worker_{index}/requested_frames_per_batch"] = part
        return counters

    def fake_tensordict(self) -> TensorDictBase:
        """Returns a batch of zeros with the keys, shapes, dtypes and names that `next` returns. Steps no env."""
        return self._delivery.zeros([each.steps for each in self._overrides])

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called in the worker before every batch. Assigning replaces it in all workers from their next batch; a
        restarted worker has the hook of the constructor."""
        return self._hooks.pre_collect_hook

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._replace_hook("pre_collect_hook", hook)

    @property
    def post_collect_hook(self) -> Callable[[TensorDictBase], Any] | None:
        """Called in the worker with every batch. Assigning replaces it as for `pre_collect_hook`."""
        return self._hooks.post_collect_hook

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        self._replace_hook("post_collect_hook", hook)

    def set_post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        """Sets `post_collect_hook`."""
        self.post_collect_hook = hook

    def _replace_hook(self, name: str, hook: Callable | None) -> None:
        if name == "post_collect_hook" and self._keywords.kind == "single":
            with self._exclusive():
                self._delivery.post_collect_hook = hook
        else:
            self._ask("set_hook", name, hook)
        self._hooks = replace(self._hooks, **{name: hook})

    def reset(self, reset_idx: Sequence[bool] | None = None) -> None:
        """Resets envs before the next batch that a worker begins. An async collector delivers up to `num_slots` earlier
        batches of each worker first.

        Args:
            reset_idx: for each worker, whether to reset its envs; None: all.

        Raises:
            ValueError: the length is not the number of workers, or only some are selected and batches consist of whole
                trajectories.
        """
        workers = None
        if reset_idx is not None:
            self._check_selection("reset_idx", reset_idx, self.num_workers, "workers")
            workers = [worker for worker, is_selected in enumerate(reset_idx) if is_selected]
        self._reset(RESET, workers)

    def _reset(self, reset: int, workers: Sequence[int] | None = None) -> None:
        """Requests a reset of workers; None: all, and drops the trajectories that have not ended."""
        with self._exclusive():
            self._collector.request_reset(reset, workers)
            if workers is None:
                self._delivery.forget()

    def _check_selection(self, name: str, selection: Sequence[bool], count: int, what: str) -> None:
        """Raises ValueError unless `selection` says for each of `count` whether it is to be reset."""
        if len(selection) != count:
            raise ValueError(f"{name}={list(selection)}: one entry for each of {count} {what}, or None for all")
        if self.trajs_per_batch is not None:
            raise ValueError(f"{name}={list(selection)} with trajs_per_batch={self.trajs_per_batch}: reset all or none")

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds envs and random actions as the constructor does, and resets the envs as `reset` does.

        Args:
            seed: at least 0, below 2**61.
            static_seed: True: every env gets `seed`. False: every env gets another seed, derived from `seed`.

        Returns:
            A seed for the next call: `seed` if `static_seed`, otherwise another.
        """
        if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**61:
            raise ValueError(f"seed={seed!r}: must be at least 0, below 2**61 and a whole number")
        self._reset(encode_reset(seed, static_seed))
        return seed if static_seed else env_seed(seed, 0)

    @signature_of(ProfileConfig)
    def enable_profile(self, *arguments: Any, **options: Any) -> None:
        """Profiles the next batches of some workers, in their processes, with `torch.profiler`.

        Raises:
            ValueError: no batch is left to record, or a worker or activity does not exist.
        """
        config = ProfileConfig(*arguments, **options).complete(min(self._collector.workers))
        if problems := config.problems(self._collector.workers):
            raise ValueError(" ".join(problems))
        self._ask("profile", per_worker=dict.fromkeys(config.workers or (), config.arguments))
        self._profile_config = config

    @property
    def profile_config(self) -> ProfileConfig | None:
        """The configuration of the last `enable_profile`; None before it, and after `disable_profile`."""
        return self._profile_config

    def disable_profile(self) -> None:
        """Ends profiling; writes the trace of what was recorded, unless only the warm-up was. Does nothing if no
        profiling was enabled."""
        config, self._profile_config = self._profile_config, None
        if config is not None:
            self._ask("end_profile", per_worker=dict.fromkeys(config.workers or (), ()))
