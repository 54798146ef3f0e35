"""What a worker can be asked between two batches: about its envs, its state, its speed; and what the user wants called
around its batches.

Runs in the worker's process, called by `collectx/worker/rollout_source.py`. Must not know how questions travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch.profiler import ProfilerActivity, profile, schedule

from collectx.env.base import Env
from collectx.env.gym import GymEnv
from collectx.rollout.loop import Rollout
from collectx.transport.base import Request
from collectx.user_objects import Hooks


class RequestHandler:
    """
    Args:
        worker: its index.
        group: the envs, as they were built.
        is_plain: whether `rollout` steps them without an env around them that has a state of its own.
        hooks: what is called around every batch.
        frames: of a slot, its first so many steps, over its memory, as a batch.
        weights: gives the newest weights of the policy by name, copied to the CPU.
    """

    def __init__(
        self,
        worker: int,
        group: Env,
        is_plain: bool,
        rollout: Rollout,
        hooks: Hooks,
        frames: Callable[[int, int], TensorDictBase],
        weights: Callable[[], dict[str, torch.Tensor]],
    ):
        self._worker = worker
        self._group = group
        self._rollout = rollout
        self._hooks = hooks
        self._frames = frames
        self.weights = weights
        self._profiling: _Profiling | None = None
        self._envs: Sequence[Any] = getattr(group, "user_envs", ())
        keeps = (hasattr(each, "state_dict") and hasattr(each, "load_state_dict") for each in self._envs)
        self._has_states = bool(self._envs) and all(keeps)
        # Only of these is all of the state in `state_dict`: TorchRL's have their transforms' alone.
        self._goes_on = self._has_states and is_plain and isinstance(group, GymEnv)

    def answer(self, request: Request) -> Any:
        """Calls the method of that name."""
        name, arguments = request
        return getattr(self, name)(*arguments)

    def before(self) -> None:
        """To be called before each batch."""
        if self._hooks.pre_collect_hook is not None:
            self._hooks.pre_collect_hook()

    def after(self, slot: int, steps: int) -> None:
        """To be called after each batch, which is in the first steps of `slot`."""
        if self._hooks.post_collect_hook is not None:
            self._hooks.post_collect_hook(self._frames(slot, steps))
        if self._profiling is not None and not self._profiling.step():
            self._profiling = None

    def getattr_env(self, attr: str) -> Any:
        """An attribute of the user's env; of several envs, a list of each one's."""
        values = [getattr(env, attr) for env in self._envs or [self._group]]
        return values[0] if len(values) == 1 else values

    def set_hook(self, name: str, hook: Callable | None) -> None:
        """Replaces one of the hooks."""
        self._hooks = self._hooks.with_one(name, hook)

    def profile(self, *arguments: Any) -> None:
        """See `_Profiling`."""
        self._profiling = _Profiling(self._worker, *arguments)

    def end_profile(self) -> None:
        """Ends it before its last batch."""
        profiling, self._profiling = self._profiling, None
        if profiling is not None:
            profiling.end()

    def restart(self, chosen: Sequence[bool]) -> None:
        """Begins new trajectories in the chosen envs of the group."""
        self._rollout.restart(np.array(chosen))

    def state(self) -> dict[str, Any]:
        """What `load` takes: tensors and plain data."""
        state: dict[str, Any] = {"rollout": self._rollout.state()}
        if self._has_states:
            state["env_state_dict"] = [env.state_dict() for env in self._envs]
        if self._goes_on:
            state["rng_state"] = torch.get_rng_state()
        return state

    def load(self, state: dict[str, Any]) -> bool:
        """Takes over a state.

        Returns:
            Whether the envs stand where they stood; otherwise they have to be reset.
        """
        if self._has_states and "env_state_dict" in state:
            for env, own in zip(self._envs, state["env_state_dict"], strict=True):
                env.load_state_dict(own)
        goes_on = self._goes_on and "rng_state" in state
        self._rollout.load(state["rollout"], goes_on)
        if goes_on:
            torch.set_rng_state(state["rng_state"])
        return goes_on


class _Profiling:
    """torch's profiler over some batches, the first of which only warm up."""

    def __init__(
        self,
        worker: int,
        num_batches: int,
        num_warmup: int,
        save_path: str,
        activities: Sequence[str],
        options: dict[str, Any],
        on_trace_ready: Callable | None,
    ):
        path = save_path.format(worker_idx=worker)
        chosen = [getattr(ProfilerActivity, name.upper()) for name in activities]
        self._left = num_batches
        self._profile = profile(
            activities=[each for each in chosen if each in torch.profiler.supported_activities()],
            schedule=schedule(wait=0, warmup=num_warmup, active=num_batches - num_warmup, repeat=1),
            on_trace_ready=on_trace_ready or (lambda done: done.export_chrome_trace(path)),
            **options,
        )
        self._profile.start()

    def step(self) -> bool:
        """After a batch; False after the last."""
        self._profile.step()
        self._left -= 1
        if self._left == 0:
            self.end()
        return self._left > 0

    def end(self) -> None:
        """Writes what was watched."""
        self._profile.stop()
