"""What a collector tells about itself and its workers, and how its state is saved: the part of
`collectx.library.collectors.DataCollector` that collects nothing.

Called in the trainer's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase
from torch import nn

from collectx.collector.collector import Collector
from collectx.library.attributes import Attributes
from collectx.library.profiling import ProfileConfig
from collectx.transport.base import reset_with
from collectx.user_objects import Hooks
from collectx.worker.spec import env_seed


class Inspected(Attributes):
    """What is asked of the workers is answered between two of their batches: of an async one, after those that it has
    under way. Workers on other hosts (over torch.distributed) cannot be asked: `NotImplementedError`."""

    policy: Any
    _collector: Collector
    _hooks: Hooks
    _individual: set[int]
    _profiled: ProfileConfig | None = None
    _alone: Callable[[], AbstractContextManager[None]]
    _deliver: Callable[[Any], Any]
    update_policy_weights_: Callable[..., None]

    def _ask(self, name: str, *arguments: Any, own: dict[int, tuple] | None = None) -> dict[int, Any]:
        with self._alone():
            return self._collector.ask(name, *arguments, own=own)

    @property
    def policy_version(self) -> int:
        """The newest published version of the weights; 0 at first."""
        return self._collector.policy_version

    @property
    def worker_idx(self) -> int:
        """As the constructor was told.

        Raises:
            RuntimeError: it was not.
        """
        index = self._order.work.worker_idx
        if index is None:
            raise RuntimeError("this collector has no number: give worker_idx=... to the constructor")
        return index

    def get_policy_version(self) -> int:
        """`policy_version`."""
        return self.policy_version

    def getattr_env(self, attr: str) -> Any:
        """An attribute of the first worker's env, copied; where that has several envs, a list of each one's.

        Raises:
            AttributeError: there is none.
        """
        return self._ask("getattr_env", own={min(self._collector.workers): (attr,)}).popitem()[1]

    def getattr_policy(self, attr: str) -> Any:
        """An attribute of this process's policy."""
        return getattr(self.policy, attr)

    def getattr_rb(self, attr: str) -> Any:
        """An attribute of the replay buffer."""
        return getattr(self.replay_buffer, attr)

    @property
    def replay_buffer(self) -> Any:
        """The one that was given, or None."""
        return self._order.output.replay_buffer

    def get_model(self, model_id: str = "policy") -> Any:
        """This process's policy.

        Raises:
            AttributeError: another model.
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
        """What a method of this collector returns for each of the arguments, in turn.

        Raises:
            ValueError: there are not as many of one as of the other.
        """
        positional, named = list(list_of_args or ()), list(list_of_kwargs or ())
        if positional and named and len(positional) != len(named):
            raise ValueError(f"list_of_args has {len(positional)} entries, list_of_kwargs {len(named)}: one per call")
        count = len(positional) or len(named)
        calls = zip(positional or [()] * count, named or [{}] * count, strict=True)
        return [getattr(self, method_name)(*args, **kwargs) for args, kwargs in calls]

    def stats(self, workers: str = "aggregate", *, timeout: float | None = None) -> dict[str, int | float | bool]:
        """Counters, without asking anybody: `frames`, `batches`, `completed`, `requested_frames_per_batch`,
        `policy_version`, `workers`, `workers_alive`, and `total_frames` where there is an end.

        Args:
            workers: "aggregate"; "per_worker" for `worker_<index>/frames` alone; "both".
            timeout: is not looked at: nobody is waited for.

        Raises:
            ValueError: another word.
        """
        if workers not in ("aggregate", "per_worker", "both"):
            raise ValueError(f"workers={workers!r}: must be 'aggregate', 'per_worker' or 'both'")
        collector = self._collector
        each = {f"worker_{index}/frames": frames for index, frames in sorted(collector.frames_by_worker.items())}
        if workers == "per_worker":
            return dict(each)
        total = collector.total_frames
        found: dict[str, int | float | bool] = {
            "frames": collector.num_frames,
            "batches": collector.num_batches,
            "completed": 0 <= total <= collector.num_frames,
            "requested_frames_per_batch": self.requested_frames_per_batch,
            "policy_version": self.policy_version,
            "workers": self._cfg.collector.num_workers,
            "workers_alive": len(collector.workers),
        }
        if total >= 0:
            found["total_frames"] = total
        return found | (each if workers == "both" else {})

    def fake_tensordict(self) -> TensorDictBase:
        """A batch of zeros, as `next` would hand it over: the same keys, shapes, dtypes and names. Takes no step."""
        batch = self._collector.zeros()
        if self._cfg.collector.set_truncated:
            for name in ("truncated", "done"):
                batch["next", name][..., -1, :] = True
        return self._deliver(batch)

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called before every batch, where it is made. Set, it is replaced in all workers, from their next batch on;
        one that is started again has that of the constructor."""
        return self._hooks.pre_collect_hook

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._replace_hook("pre_collect_hook", hook)

    @property
    def post_collect_hook(self) -> Callable[[TensorDictBase], Any] | None:
        """Called with every batch, where it is made. Set as `pre_collect_hook` is."""
        return self._hooks.post_collect_hook

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        self._replace_hook("post_collect_hook", hook)

    def set_post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        """Sets `post_collect_hook`."""
        self.post_collect_hook = hook

    def _replace_hook(self, name: str, hook: Callable | None) -> None:
        self._ask("set_hook", name, hook)
        self._hooks = self._hooks.with_one(name, hook)

    def enable_profile(
        self,
        *,
        workers: Sequence[int] | None = None,
        num_rollouts: int = 3,
        warmup_rollouts: int = 1,
        save_path: str | Path | None = None,
        activities: Sequence[str] | None = None,
        record_shapes: bool = True,
        profile_memory: bool = False,
        with_stack: bool = True,
        with_flops: bool = False,
        on_trace_ready: Callable[[Any], Any] | None = None,
    ) -> None:
        """Lets torch's profiler watch the next batches of some workers, in their processes.

        Args:
            workers: their indices; None: the first.
            num_rollouts: batches, with those that only warm up.
            warmup_rollouts: batches that only warm up.
            save_path: where each worker writes its trace, with `{worker_idx}` in it for its index; None:
                `./collector_profile_{worker_idx}.json`.
            activities: of "cpu" and "cuda"; None: both.
            record_shapes, profile_memory, with_stack, with_flops: as `torch.profiler.profile` takes them.
            on_trace_ready: called with the profile in the worker, in place of writing it.

        Raises:
            ValueError: not one batch is left to be watched, or there is no such worker or activity.
        """
        chosen = [min(self._collector.workers)] if workers is None else list(workers)
        config = ProfileConfig(
            chosen,
            num_rollouts,
            warmup_rollouts,
            str(Path(save_path or "collector_profile_{worker_idx}.json").absolute()),
            ["cpu", "cuda"] if activities is None else list(activities),
            record_shapes,
            profile_memory,
            with_stack,
            with_flops,
            on_trace_ready,
        )
        if problems := config.problems(self._collector.workers):
            raise ValueError(" ".join(problems))
        self._ask("profile", own=dict.fromkeys(chosen, config.arguments))
        self._profiled = config

    @property
    def profile_config(self) -> ProfileConfig | None:
        """What `enable_profile` was told; None before it, and after `disable_profile`."""
        return self._profiled

    def disable_profile(self) -> None:
        """Ends what `enable_profile` has begun: what was watched until now is written, if more than the warming up was.
        Does nothing where nothing is watched."""
        profiled, self._profiled = self._profiled, None
        if profiled is not None:
            self._ask("end_profile", own=dict.fromkeys(profiled.workers, ()))

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes, copied: the policy's weights, counts of frames and batches, and, of each worker
        in a process of this machine, its trajectory ids, its individual weights, if it has such, and what its envs' own
        `state_dict` gives."""
        weights = self.policy.state_dict() if isinstance(self.policy, nn.Module) else {}
        state: dict[str, Any] = {
            "policy_state_dict": {name: value.clone() for name, value in weights.items()},
            "frames": self._collector.num_frames,
            "iter": self._collector.num_batches,
        }
        if self._collector.can_be_asked:
            state |= {f"worker{index}": own for index, own in self._ask("state").items()}
            asked = dict.fromkeys(self._individual.intersection(self._collector.workers), ())
            for index, individual in self._ask("weights", own=asked).items():
                state[f"worker{index}"]["policy_state_dict"] = individual
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Goes on where `state_dict()` was taken, in a collector made alike: takes the weights and publishes them,
        counts on, and gives the envs their state. Workers whose individual weights are not in it keep those that they
        have.

        Gymnasium envs that all have `state_dict` and `load_state_dict` go on in the midst of their episodes. All others
        (TorchRL's too, whose `state_dict` is that of their transforms) begin new episodes, with seeds that were not
        used before, so that nothing is repeated. Async workers first fill the slots that they were granted before.

        Raises:
            KeyError: the state is not of a collector.
        """
        if missing := sorted({"policy_state_dict", "frames"} - set(state_dict)):
            raise KeyError(f"the state lacks {', '.join(missing)}: give what state_dict() returned")
        workers = self._collector.workers
        if isinstance(self.policy, nn.Module):
            self.policy.load_state_dict(state_dict["policy_state_dict"], strict=strict)
            saved = {index: state_dict.get(f"worker{index}", {}).get("policy_state_dict") for index in workers}
            individual = {index: weights for index, weights in saved.items() if weights is not None}
            kept = self._individual - set(individual)
            if not kept and not individual:
                self.update_policy_weights_()
            else:
                # At once, so that no worker acts with weights that are not its own.
                shared = [index for index in workers if index not in kept and index not in individual]
                if by_worker := {**dict.fromkeys(shared), **individual}:
                    self.update_policy_weights_(by_worker)
                self._individual.difference_update(shared)
        states = {index: (state_dict[f"worker{index}"],) for index in workers if f"worker{index}" in state_dict}
        going_on = self._ask("load", own=states) if self._collector.can_be_asked else {}
        with self._alone():
            self._collector.count_from(state_dict["frames"], state_dict.get("iter", 0))
            anew = [index for index in workers if not going_on.get(index)]
            self._collector.order(reset_with(env_seed(self._cfg.seed, state_dict["frames"], 1), False), anew)
