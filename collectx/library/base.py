"""`BaseCollector`, the base class of the library's collectors: iteration, weights, state, life cycle.

    arguments --parse--> keywords --> RunConfig --rules--> overrides per worker --start_collector--> batches

`batch_converter` then converts the batches to the requested form.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import numbers
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import POLICY_VERSION
from collectx.collector.batch_info import workers_write
from collectx.collector.collector import CollectorCore
from collectx.collector.compose import start_collector
from collectx.collector.saved_state import num_workers_in, of_state_dict, to_state_dict
from collectx.config.derived import surplus_note
from collectx.config.problem import counted, naming, opt
from collectx.env.base import EnvSpec
from collectx.env.infos import may_return_mask, undeclared
from collectx.env.user_env import copied, is_env
from collectx.errors import ConfigError
from collectx.library.attributes import ReadableCollector
from collectx.library.background import Background, StepThread
from collectx.library.batch_converter import AllDelivered, BatchConverter
from collectx.library.configuration import fit_frames, parse, takes_keywords, to_config
from collectx.library.keyword_fields import names_of
from collectx.library.keywords import BY_CLASS, Keywords, WorkerKeywords
from collectx.library.overrides import lift_shared, overrides_of_workers, trainers_policy
from collectx.library.rules import check_arguments, check_keys
from collectx.library.slurm import open_launcher
from collectx.library.values import within
from collectx.library.weights import (
    WeightPublisher,
    WeightsLike,
    WeightUpdaterBase,
    as_state_dict,
    weights_by_model,
    weights_by_worker,
)
from collectx.place import place_of
from collectx.policy.random import RandomPolicy
from collectx.process import limited, open_closed, unbind_threads
from collectx.transport.base import Reset
from collectx.user_objects import Hooks, UserEnvConfig
from collectx.worker.profiling import ProfileConfig
from collectx.worker.requests import load_into, resolve
from collectx.worker.spec import env_seed

# `shutdown` kills the workers at most this many times, until the background thread ends.
_MOST_KILLS = 5
# What `next` returns after the last batch.
_END: Any = object()
_NEEDS_BUFFER = "needs a replay buffer. Create the collector with replay_buffer=ReplayBuffer(100_000)."


class BaseCollector(ReadableCollector):
    """Base class of all collectors, for `isinstance`; construct one of its subclasses.

    Iterate over a collector to get batches until `total_frames` are delivered. A batch is a TensorDict of
    `frames_per_batch` frames, whose last dimension is time: `observation`, `action`, `("next", "reward")`,
    `("next", "done")` and others (`collectx docs concepts`, "A batch"). You may keep and change a batch, because
    its memory is only used again when its last tensor is gone, unless `zero_copy` or `return_same_td` is True.

    Use a collector from one thread, and only in the process that made it. The end of a `with` block stops its workers.

    The constructor blocks, for up to `start_timeout_s`, until the worker processes of this machine have made their envs
    and policies. SLURM jobs and Ray actors start in the background; the first batch waits for them.

    Raises:
        ConfigError: the constructor's arguments are wrong. The message lists all problems; nothing was started.
        TypeError: the constructor does not take a keyword.
        Exception: an env or a policy raised this in a worker; from the constructor or from `next`.
    """

    # Whether `next` was called after the last batch.
    _has_ended = False
    # The batch that a cancelled `async for` was waiting for. It belongs to no event loop, as the task's may be closed.
    _ahead: concurrent.futures.Future[Any] | None = None

    def __init__(self, *arguments: Any, **keywords: Any):
        raise TypeError(
            "BaseCollector is the base class of all collectors. Create one of them, such as Collector or "
            "MultiSyncCollector."
        )

    def _open(self, keywords_class: type[Keywords], arguments: tuple, passed: dict[str, Any]) -> None:
        open_closed()
        unbind_threads(lambda text: warnings.warn(text, stacklevel=_level_of_user()))
        if torch.get_default_device().type == "meta":
            raise ConfigError(
                "torch.get_default_device() is meta, whose tensors have no values. Create the collector with another "
                "default, such as torch.set_default_device('cpu')."
            )
        self._configure(keywords_class, arguments, passed)
        with naming(self._names):
            with self._limited_start():
                self._spec = self._read_spec()
            self._frames_per_batch = fit_frames(self._keywords, self._cfg, self._overrides, self._spec)
            self._warn_of_lengths()
            core = self._start_core(self._make_policy())
        keywords, collector = self._keywords, self._cfg.collector
        self._hooks, self._thread = keywords.hooks, StepThread()
        self._background = Background(self._thread)
        core.close_by(partial(self._background.call_last, timeout_s=collector.close_timeout_s))
        core.join_trajectories(collector, warnings.warn, post_traj=keywords.post_traj)
        self._unchecked_core = core
        self._converter = BatchConverter(keywords, collector, core, self._spec)
        individual = range(self.num_workers) if keywords.has_individual_policies else ()
        self._weights = WeightPublisher(core, keywords, individual)
        if isinstance(self._weights.updater, WeightUpdaterBase):
            self._weights.updater.register_collector(self)

    def _warn_of_lengths(self) -> None:
        """Warns if a batch, or all batches together, have more frames than requested."""
        keywords, frames, total = self._keywords, self._frames_per_batch, self._cfg.collector.total_frames
        notes: list[str | None] = []
        if frames != keywords.requested_frames:
            is_shared = self._cfg.collector.schedule == "sync" and keywords.frames_per_worker is None
            envs = counted(self._spec.num_envs * (self.num_workers if is_shared else 1), "env")
            given = f"frames_per_batch={keywords.frames_per_batch}"
            notes.append(f"{given} was rounded up to {frames:,}, whole steps of {envs}, as in TorchRL.")
        notes.append(surplus_note(total, keywords.requested_frames, frames))
        for note in filter(None, notes):
            warnings.warn(note, stacklevel=_level_of_user())

    def _configure(self, keywords_class: type[Keywords], arguments: tuple, passed: dict[str, Any]) -> None:
        """Sets the keywords, the configuration, and the overrides of each worker. Raises `ConfigError` with all
        problems."""
        passed, conflicts = lift_shared(passed)
        keywords, problems = parse(type(self).__name__, keywords_class, arguments, passed, BY_CLASS)
        problems += conflicts
        cfg = to_config(keywords, problems)
        check_arguments(keywords, cfg, problems)
        self._keywords, self._cfg, self._overrides = keywords, cfg, overrides_of_workers(keywords, cfg)
        self._names = names_of(keywords)
        env = self._overrides[0].env
        assert env is not None
        cfg.env, cfg.policy = env, trainers_policy(keywords, cfg.collector.num_workers)

    def _limited_start(self) -> contextlib.AbstractContextManager[None]:
        """Limits the time of the env that this process makes to that of the workers."""
        if not self._keywords.has_workers:
            return contextlib.nullcontext()
        what, timeout_s = "making or resetting an env in this process", self._cfg.collector.start_timeout_s
        return limited(what, opt("collector.start_timeout_s"), timeout_s)

    def _read_spec(self) -> EnvSpec:
        """Returns the spec of one worker's envs, read from an env that this makes. If the user passed an env object,
        copies it for workers, and where the reading would reset it."""
        env, has_workers = self._cfg.env, self._keywords.has_workers
        assert isinstance(env, UserEnvConfig)
        has_users_policy = policies.is_user_policy(self._cfg.policy)
        if has_workers or has_users_policy or undeclared(env.info_keys) or may_return_mask(env.create):
            env = copied(env, is_required=has_workers)
        return envs.read_spec(env, has_users_policy)

    def _make_policy(self) -> Any:
        """Sets `self._policy`; returns the policy to publish, None for random actions."""
        spec = self._spec
        policy: Any = policies.build(self._cfg.policy, spec, self._cfg.seed)
        self._policy = RandomPolicy() if policy is None and not self._keywords.has_workers else policy
        if policies.is_random_policy(self.policy) and self.policy.action_spec is None:
            self.policy.action_spec = spec.action_space if spec.action_spec is None else spec.action_spec
        return policy

    def _start_core(self, policy: Any) -> CollectorCore:
        """Starts the workers; returns their core. Blocks until workers of this machine are ready."""
        keywords, cfg = self._keywords, self._cfg
        with contextlib.ExitStack() as stack:
            launcher, events = open_launcher(stack, cfg, self._overrides, keywords)
            core = start_collector(cfg, policy, self._spec, events, launcher=launcher, overrides=self._overrides)
            stack.callback(core.close)
            check_keys(keywords, core.leaves)
            place = place_of(cfg)
            if place.is_local and not place.is_inline:
                core.wait_until_ready()
            self._exit_stack = stack.pop_all()
        if isinstance(keywords, WorkerKeywords) and keywords.num_threads is not None:
            torch.set_num_threads(keywords.num_threads)
        return core

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied, because it owns envs, processes and memory. Save its "
            "state_dict(), and load that into another collector with load_state_dict()."
        )

    # --- batches ---

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Returns the collector. Warns after the last batch, as a loop would be empty."""
        if self._has_ended:
            warnings.warn(f"there are no more batches: {self._delivered()}", stacklevel=2)
        return self

    def __next__(self) -> TensorDictBase:
        """Returns the next batch; blocks until it is complete. With `replay_buffer`, writes it there and returns None
        (which the annotation omits, so that other loops need no check). After Ctrl-C, the next call returns the batch
        that was awaited; without workers, it collects that batch again, from new episodes. After a cancelled
        `async for`, it returns the batch that was awaited."""
        if self._ahead is None:
            batch = self._next()
        else:
            self._check_process()
            # Ctrl-C ends the wait; then the next call waits again.
            concurrent.futures.wait([self._ahead])
            ahead, self._ahead = self._ahead, None
            batch = ahead.result()
        if batch is _END:
            raise StopIteration
        return batch

    def _next(self) -> Any:
        """Returns the next batch; `_END` after the last one."""
        self._check_process()
        if self.is_running():
            raise RuntimeError(
                "this collector cannot be iterated after start(), because it collects in the background. Sample from "
                "its replay buffer."
            )
        try:
            return self._collect()
        except StopIteration:
            return _END

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TensorDictBase:
        """Returns the next batch like `__next__`, collected in a thread, so the event loop continues. If the waiting
        task is cancelled, the next call returns its batch. Call no other method of the collector meanwhile."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            ahead = self._thread.submit(partial(contextvars.copy_context().run, self._next))
        try:
            batch = await asyncio.shield(asyncio.wrap_future(ahead))
        except (asyncio.CancelledError, GeneratorExit):
            # The waiting task was cancelled; the batch may be complete already.
            if not ahead.cancelled():
                self._ahead = ahead
            raise
        if batch is _END:
            raise StopAsyncIteration
        return batch

    def fill(self, frames: int = 1) -> int:
        """Collects at least `frames` frames into `replay_buffer`, in whole batches; blocks until then. Returns the
        number of frames collected, 0 after `total_frames`, so `while collector.fill():` is a loop over batches.

        Raises:
            RuntimeError: the collector was made without a replay buffer, or collects in the background.
        """
        if self.replay_buffer is None:
            raise RuntimeError(f"fill() {_NEEDS_BUFFER}")
        before = self._core.num_frames
        while (collected := self._core.num_frames - before) < frames and next(self, _END) is not _END:
            pass
        return collected

    def _collect(self) -> TensorDictBase | None:
        """Publishes the policy's weights if an update interval has passed, then returns the next batch; see
        `BatchConverter.next`."""
        interval, num_collected = self._keywords.publish_interval, self._converter.num_collected
        try:
            with naming(self._names):
                if interval > 0 and num_collected and num_collected % interval == 0:
                    self._weights.publish(self.policy, {None: None})
                return self._converter.next()
        except StopIteration as error:
            raise RuntimeError(
                "a function that you passed to this collector raised StopIteration, which would end the loop over its "
                "batches. Catch it in that function."
            ) from error
        except AllDelivered:
            self._has_ended = True
            raise StopIteration(self._delivered()) from None

    def _delivered(self) -> str:
        return f"total_frames={self.total_frames} is reached. Create a new collector."

    def next(self) -> TensorDictBase | None:
        """Returns the next batch, or None after the last one. With `replay_buffer`, it always returns None: use `fill`.
        Blocks until the batch is complete."""
        return next(self, None)

    def rollout(self) -> TensorDictBase | None:
        """Returns one batch, like `next()`."""
        return self.next()

    def iterator(self) -> Iterator[TensorDictBase]:
        """Returns an iterator over the remaining batches."""
        return iter(self)

    # --- batches in the background, into a replay buffer ---

    def start(self) -> None:
        """Starts a background thread, which collects into `replay_buffer` until `total_frames` or `shutdown`. Does not
        wait for a batch. Meanwhile you may sample from the buffer and publish weights.

        Raises:
            RuntimeError: the collector was made without a replay buffer, or was started before.
        """
        self._check_process()
        if self.replay_buffer is None:
            raise RuntimeError(f"start() {_NEEDS_BUFFER}")
        self._background.start(self._collect)

    def is_running(self) -> bool:
        """Whether the background thread is collecting."""
        return self._background.is_running

    @contextlib.contextmanager
    def pause(self, timeout: float | None = None, *, resume: bool = True) -> Iterator[None]:
        """Stops the writes to `replay_buffer` within a block, `with collector.pause():`. Its entry blocks until the
        current batch is complete. Within the block, workers that write to the buffer themselves are idle; other workers
        go on until their slots are full.

        Args:
            timeout: seconds to wait for the current batch; None: as long as `worker_timeout_s` allows.
            resume: must be True; call `shutdown` to end the collecting.

        Raises:
            ValueError: `resume=False`.
            TimeoutError: on entry, if the current batch is not complete within `timeout`.
            Exception: on entry, the error that ended the background thread, once.
        """
        if not resume:
            raise ValueError(
                "resume=False cannot be used, because a pause ends with its `with` block. To stop collecting, call "
                "shutdown()."
            )
        with self._exclusive(timeout):
            if workers_write(self._overrides):
                self._core.wait_until_idle()
            yield

    # --- weights ---

    def _before_publishing(self) -> contextlib.AbstractContextManager[None]:
        """Waits for the background thread's current batch, unless weights are in shared memory and `overlap` is 0: then
        a publish may happen at any time."""
        self._core.check_usable()
        if not place_of(self._cfg).shares_memory or self._cfg.collector.overlap:
            return self._exclusive()
        self._background.check()
        return naming(self._names)

    def update_policy_weights_(
        self,
        policy_or_weights: WeightsLike | Mapping[int, WeightsLike] = None,
        *,
        weights: WeightsLike | Mapping[int, WeightsLike] = None,
        policy_weights: WeightsLike | Mapping[int, WeightsLike] = None,
        policy: nn.Module | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        model_id: str | None = None,
        worker_ids: int | Sequence[int] | None = None,
        wait: bool = True,
        strict: bool = False,
    ) -> None:
        """Publishes a copy of weights as a new version. Workers act with it from their next batch on, with `overlap=1`
        from the batch after that. Does not wait for workers; after `start()` over a network or with `overlap=1`, it
        waits for the current batch.

        Args:
            policy_or_weights: the weights: a module with the policy's architecture, a state dict, or a TensorDict of
                parameters. They are copied into `collector.policy` and sent to all workers: by name, or those of a
                module with other names in the order of its layers. None: the current weights of `collector.policy`, or
                those that `weight_updater` returns. A dict from worker indices to any of these sets weights of single
                workers, which act with them until you publish newer weights for them or for all; the other workers and
                `collector.policy` keep theirs.
            weights, policy_weights, policy: the same as `policy_or_weights`.
            weights_dict: weights by the model ids that `model_id` lists; only the policy's weights may be None.
            model_id: what the weights belong to. None or "policy": the policy. A path such as
                "env.transform[0].module": that module in each worker, which gets them between two batches; the call
                blocks until then. A path such as "replay_buffer.transform[0].module": that module in this process.
            worker_ids: indices of the workers that get the weights, like the keys of a dict; None: all.
            wait: ignored (accepted for TorchRL compatibility).
            strict: whether weights whose names the policy lacks raise an error, also those of a module.

        Names of weights may contain the prefixes of wrappers: `_orig_mod.` (`torch.compile`) and `module.` (data
        parallelism). If the call raises one of these errors, it publishes and changes nothing.

        Raises:
            TypeError, ValueError: weights are missing, were passed twice, have a wrong type or shape, or belong to
                models or workers that do not exist; or, with `strict`, have unknown names.
            AttributeError, RuntimeError: a path leads nowhere, or the weights do not fit the module there; or the
                collector is closed.
        """
        by_model = weights_by_model((policy_or_weights, weights, policy_weights, policy), weights_dict, model_id)
        by_worker = {model: weights_by_worker(each, worker_ids, self.num_workers) for model, each in by_model.items()}
        others = {model: each for model, each in by_worker.items() if model != "policy"}
        # All are checked before the first one is changed.
        for model, each in others.items():
            self._load_into(model, each, only_checks=True)
        if "policy" in by_worker:
            with self._before_publishing():
                self._weights.publish(self.policy, by_worker["policy"], strict)
        for model, each in others.items():
            self._load_into(model, each)

    def _load_into(self, model: str, by_worker: Mapping[int | None, Any], only_checks: bool = False) -> None:
        """Copies weights into the modules that `model` names, or only raises the errors of that; see
        `update_policy_weights_`."""
        states = {worker: as_state_dict(weights) for worker, weights in by_worker.items()}
        if (path := within("env", model)) is not None:
            some = {worker: (path, state, only_checks) for worker, state in states.items() if worker is not None}
            self._ask("load_weights", path, states.get(None), only_checks, per_worker=some or None)
            return
        path, state = model.removeprefix("replay_buffer."), next(iter(states.values()))
        with self._exclusive():
            load_into(self.replay_buffer, path, state, only_checks)

    # TorchRL's name of the method by which a worker receives weights.
    receive_weights = update_policy_weights_

    def increment_version(self) -> int:
        """Publishes the weights of `collector.policy` to all workers as a new version; returns its number.

        Raises:
            RuntimeError: workers act with individual weights, which this would overwrite.
        """
        if individual := self._weights.individual:
            raise RuntimeError(
                "increment_version() would replace the individual weights of "
                f"{'worker' if len(individual) == 1 else 'workers'} {' and '.join(map(str, sorted(individual)))}. Call "
                "update_policy_weights_() with the weights of each worker instead."
            )
        self.update_policy_weights_()
        return self.policy_version

    # --- envs ---

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[tuple] | None = None,
        list_of_kwargs: Sequence[dict] | None = None,
    ) -> list[Any]:
        """Calls `env.NAME`, a method of the envs of each worker, with that worker's entry of the lists, or without
        arguments. Returns a result per worker; a list of results if a worker steps several envs. The call is a setting,
        see `EnvMethods`. Without workers, the lists are calls one after another.

        Any other method is this collector's, which is called once per entry of the lists. Without workers, and without
        lists, it is called once.

        Args:
            method_name: the method, or a path to it, such as "env.set_level".
            list_of_args: positional arguments of each call; None: none.
            list_of_kwargs: keyword arguments of each call; None: none.

        Raises:
            ValueError: the lists have different lengths, or not one entry per worker; or there are workers, the method
                is this collector's, and no lists are passed.
        """
        path, has_workers = within("env", method_name), self._keywords.has_workers
        has_no_lists = list_of_args is None and list_of_kwargs is None
        if path is None and has_workers and has_no_lists:
            raise ValueError(
                f"map_fn({method_name!r}) names a method of the collector, and workers have no collector. To call a "
                f"method of their envs: map_fn('env.{method_name}'). To call the collector's method once, pass "
                "list_of_args=[()]."
            )
        is_per_worker = path is not None and has_workers
        calls = next((each for each in (list_of_args, list_of_kwargs) if each is not None), [()])
        count = self.num_workers if is_per_worker else len(calls)
        positional = [()] * count if list_of_args is None else list_of_args
        named = [{}] * count if list_of_kwargs is None else list_of_kwargs
        if (len(positional), len(named)) != (count, count):
            lists = {"list_of_args": len(positional), "list_of_kwargs": len(named)}
            name, given = next(each for each in lists.items() if not is_per_worker or each[1] != count)
            other, each = f"list_of_kwargs has {len(named)}", "call"
            if is_per_worker:
                other, each = f"there {'is' if count == 1 else 'are'} {counted(count, 'worker')}", "worker"
            raise ValueError(
                f"{name} of map_fn({method_name!r}) has {counted(given, 'entry', 'entries')}, but {other}. Pass one "
                f"entry per {each}."
            )
        contents = [*zip(map(tuple, positional), named, strict=True)]
        if path is None:
            return [resolve(self, method_name)(*args, **kwargs) for args, kwargs in contents]
        settings = [contents] if has_workers else [[each] for each in contents]
        replies = self._with_core(lambda core: [core.change("call", path, each) for each in settings])
        return [each[0] if len(each) == 1 else each for reply in replies for each in reply.values()]

    def reset(self, reset_idx: Sequence[bool] | None = None) -> None:
        """Resets envs before the next batch that each worker begins. Batches that workers have already begun are still
        delivered: up to `num_slots` of each worker of an async collector; with `overlap=1`, one. Does not wait for the
        reset.

        Args:
            reset_idx: whether to reset the envs of each worker, `[workers]` bool; None: all. `Collector.reset` selects
                envs instead.

        Raises:
            ValueError: `reset_idx` lacks an entry for each worker; or it selects some workers with `trajs_per_batch`.
        """
        workers = None
        if reset_idx is not None:
            self._check_selection("reset_idx", reset_idx, self.num_workers, "worker")
            workers = [worker for worker, is_selected in enumerate(reset_idx) if is_selected]
        self._reset(Reset(), workers)

    def _reset(self, reset: Reset, workers: Sequence[int] | None = None) -> None:
        """Requests a reset of these workers. None: of all workers, which also drops unfinished trajectories."""
        with self._exclusive():
            self._core.request_reset(reset, workers)
            if workers is None and (assembler := self._core.assembler) is not None:
                assembler.forget()

    def _check_selection(self, name: str, selection: Sequence[bool], count: int, what: str) -> None:
        if len(selection) != count:
            raise ValueError(
                f"{name}={list(selection)} has {counted(len(selection), 'entry', 'entries')}, but there "
                f"{'is' if count == 1 else 'are'} {counted(count, what)}. Pass one entry per {what}, or None for all."
            )
        if self.trajs_per_batch is not None:
            raise ValueError(
                f"{name}={list(selection)} cannot be used with trajs_per_batch={self.trajs_per_batch}, because all "
                f"envs are reset together then. Leave {name} out."
            )

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds the envs and the random numbers of policies like the constructor's `seed`, and resets the envs like
        `reset`.

        Args:
            seed: an integer from 0 to 2**61 - 1.
            static_seed: True: every env gets `seed`. False: every env gets its own seed, derived from `seed`.

        Returns:
            A seed for the next call: `seed` with `static_seed`, otherwise a new one.

        Raises:
            ValueError: `seed` is out of range, or not an integer.
        """
        if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**61:
            raise ValueError(f"seed={seed!r} must be an int from 0 to 2**61 - 1")
        self._reset(Reset(seed, static_seed))
        return seed if static_seed else env_seed(seed, 0)

    # --- hooks ---

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called without arguments in every worker before each of its batches. An assignment replaces the hook in all
        workers from their next batch on, also in those that start later."""
        return self._hooks.pre_collect_hook

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._replace_hook("pre_collect_hook", hook)

    @property
    def post_collect_hook(self) -> Callable[[TensorDictBase], Any] | None:
        """Called in every worker with each batch that it collected. Assign it like `pre_collect_hook`."""
        return self._hooks.post_collect_hook

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        self._replace_hook("post_collect_hook", hook)

    def set_post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        """Sets `post_collect_hook`."""
        self.post_collect_hook = hook

    def _replace_hook(self, name: str, hook: Callable | None) -> None:
        if hook is not None and not callable(hook):
            raise ConfigError(f"{name}={hook!r} must be a callable, or None.")
        if name == "post_collect_hook" and not self._keywords.has_workers:
            with self._exclusive():
                self._converter.post_collect_hook = hook
        else:
            self._set_hook(name, hook)
        self._hooks = replace(self._hooks, **{name: hook})

    def _set_hook(self, name: str, hook: Callable | None) -> None:
        """Replaces a hook in all workers, also in those that are starting or start later."""
        hooks = Hooks(**{name: hook})
        self._ask("set_hook", name, hooks)
        self._core.pool.tell_starting("set_hook", name, hooks)
        for fields in self._overrides:
            fields.hooks = replace(fields.hooks, **{name: hook})

    # --- profiling ---

    @takes_keywords(ProfileConfig)
    def enable_profile(self, *arguments: Any, **options: Any) -> None:
        """Profiles the next batches of the selected workers, in their processes, with `torch.profiler`.

        Raises:
            NotImplementedError: the workers of this class exchange data over a network.
            ValueError: no batch would be left to record, or a worker or an activity does not exist.
        """
        self._core.check_can_ask("profile")
        self._with_core(CollectorCore.wait_for_workers)
        config = ProfileConfig(*arguments, **options).complete(min(self._core.worker_indices))
        if problems := config.problems(self._core.worker_indices):
            raise ValueError(" ".join(problems))
        self._ask("profile", per_worker=dict.fromkeys(config.workers or (), (config,)))
        self._profile_config = config

    def disable_profile(self) -> None:
        """Ends profiling, and writes the trace if a batch after the warm-up was recorded. Does nothing before
        `enable_profile`."""
        config, self._profile_config = self._profile_config, None
        if config is not None:
            self._ask("end_profile", per_worker=dict.fromkeys(config.workers or (), ()))

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the collector's state: the policy's weights, the counts of frames and batches, the settings
        of `set_attr` and `call`, each worker's trajectory ids and envs, complete batches that are not delivered yet,
        and unfinished trajectories of `trajs_per_batch`. For workers of this machine, it also contains their weights
        and version. Blocks until the workers have filled their granted slots."""
        weights = self.policy.state_dict() if isinstance(self.policy, nn.Module) else {}
        with self._exclusive():
            if workers_write(self._overrides):
                self._core.wait_until_idle()  # the replay buffer has these batches
            saved = self._core.state()
        copied = {name: value.clone() for name, value in weights.items()}
        state = {"policy_state_dict": copied, **to_state_dict(saved, self._converter.version_offset)}
        if self._core.can_ask("weights"):
            per_worker = dict.fromkeys(self._weights.individual.intersection(self._core.worker_indices), ())
            individual = self._ask("weights", per_worker=per_worker)
            versions = self._weights.versions
            # The entry of a worker that is starting is that of a loaded state, with its individual weights.
            for index in saved["workers"].keys() - (self._weights.individual - per_worker.keys()):
                state[f"worker{index}"] = state[f"worker{index}"] | {
                    "policy_state_dict": individual.get(index, state["policy_state_dict"]),
                    "is_individual": index in individual,
                    "policy_version": versions.get(index, versions[None]) + self._converter.version_offset,
                }
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Restores a state of a collector that was constructed with the same arguments: loads and publishes the
        weights, sets their version and the counts, and restores the envs. Workers with individual weights that the
        state lacks keep them.

        Envs continue within their episodes if their state can be saved: by their own `state_dict` and
        `load_state_dict`, or by pickle, which replaces the env. All other envs begin new episodes with unused seeds,
        and a warning says why. Pickles execute code: load only states that you trust. Blocks until the workers have
        completed their granted batches, which are dropped.

        If the weights do not fit, the policy keeps its own.

        Args:
            state_dict: what `state_dict` returned.
            strict: whether missing and unknown names of the policy's weights raise an error.

        Raises:
            TypeError: the state is not a dict.
            ValueError: the dict is not the state of a collector, or of one with more workers or other batches.
            RuntimeError: the weights do not fit the policy.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                "load_state_dict() needs the dict that state_dict() returned, but got a value of type "
                f"{type(state_dict).__name__}"
            )
        if missing := sorted({"policy_state_dict", "frames"} - set(state_dict)):
            raise ValueError(
                f"this is not the state of a collector: it lacks {' and '.join(map(repr, missing))}. Pass the dict "
                "that state_dict() returned."
            )
        collector, version_offset = of_state_dict(state_dict)
        num_saved, num_started = num_workers_in(collector), self._core.pool.num_started
        if num_saved > num_started:
            raise ValueError(
                f"the state dict has {counted(num_saved, 'worker')}, but this collector has {num_started}. Load it "
                f"into a collector with {num_saved} workers"
            )
        if not all(map(self._core.fits, collector["undelivered"])):
            raise ValueError(
                "the state has batches of another size than those of this collector. Load it into a collector with the "
                "same arguments."
            )
        with self._exclusive():
            # The inference server too, whose state has its generators only.
            loading = self._core.pool.askable | self._core.pool.starting
            collector["workers"] = {index: each for index, each in collector["workers"].items() if index in loading}
            if isinstance(self.policy, nn.Module):
                before = copy.deepcopy(self.policy.state_dict())
                try:
                    self.policy.load_state_dict(state_dict["policy_state_dict"], strict=strict)
                    self._publish_loaded(collector["workers"])
                except BaseException:
                    self.policy.load_state_dict(before)
                    raise
            self._continue_versions(state_dict.get("policy_version", self._core.policy_version))
            # Frames from before the load may have the trajectory ids of later ones.
            self._core.wait_until_idle()
            change = version_offset - self._converter.version_offset
            collector["undelivered"] = [self._core.with_versions(each, change) for each in collector["undelivered"]]
            collector["incarnations"] = {worker.index: worker.history.incarnation for worker in self._core.pool.records}
            reasons = self._core.load(collector, self._cfg.seed)
            self._has_ended = False
        self._warn_of_new_episodes(reasons)

    def _warn_of_new_episodes(self, reasons: Mapping[int, str]) -> None:
        """Warns of each reason once; `reasons` are by worker."""
        for reason, num_workers in Counter(reasons.values()).items():
            workers = "one worker begins" if num_workers == 1 else f"{num_workers} workers begin"
            who = workers if self._keywords.has_workers else "the envs begin"
            warnings.warn(f"{who} new episodes after load_state_dict(): {reason}", stacklevel=_level_of_user())

    def _publish_loaded(self, saved: Mapping[int, Mapping[str, Any]]) -> None:
        """Publishes the policy's weights, and to some workers the individual ones of their saved states."""
        individual = {index: each["policy_state_dict"] for index, each in saved.items() if each.get("is_individual")}
        kept = self._weights.individual - set(individual)
        if not kept and not individual:
            self.update_policy_weights_()
            return
        # One call, so no worker acts with another's weights in between.
        pool = self._core.pool
        shared = sorted((pool.ready | pool.starting) - kept - individual.keys())
        if by_worker := {**dict.fromkeys(shared), **individual}:
            self.update_policy_weights_(by_worker)
        self._weights.individual.difference_update(shared)

    def _continue_versions(self, version: int) -> None:
        """Makes `version` the number of the newest weights, in this process and in workers that write batches."""
        self._converter.version_offset = offset = version - self._core.policy_version
        if workers_write(self._overrides):
            write = partial(_write, self._keywords.replay_buffer.extend, offset)
            self._set_hook("write_batch", write)

    # --- the end ---

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stops the workers, and kills those that do not stop within `close_timeout_s`. Blocks until they have ended.
        Further calls do nothing.

        Args:
            timeout: seconds to wait for the current batch of the background thread; None: `close_timeout_s`.
            close_env: whether to close the env object that you passed to a `Collector`. The end of a `with` block does
                not close it. Envs that the collector made are always closed.
            raise_on_error: whether to raise the error that ended the background thread, and a timeout of its batch.

        Raises:
            RuntimeError: a hook, an env or a policy in this process calls this while it collects a batch.
            TimeoutError: the background thread's batch took longer than `timeout`.
            Exception: the error that ended the background thread.
        """
        self._check_process()
        self._unchecked_core.exclusive_use.check_not_within("shutdown")
        background, thread = self._background, self._thread
        self._thread = StepThread()
        self._background, self._is_closed, self._ahead = Background(self._thread), True, None
        limit_s = self._cfg.collector.close_timeout_s
        with contextlib.ExitStack() as ends:
            ends.callback(self._close, thread, background, close_env)
            try:
                background.stop(limit_s if timeout is None else timeout)
            except Exception:
                if raise_on_error:
                    raise
            finally:
                self._abort(background, limit_s)

    def _close(self, thread: StepThread, background: Background, close_env: bool) -> None:
        """Closes everything, in the thread that stepped the envs; in this one, if that thread hangs."""
        with contextlib.ExitStack() as ends:
            if close_env:
                ends.callback(self._close_users_env)
            ends.callback(self._exit_stack.close)
            limit_s = 0.0 if background.is_running else self._cfg.collector.close_timeout_s
            thread.call_last(ends.pop_all().close, limit_s)

    def _close_users_env(self) -> None:
        env: Any = self._keywords.create_env_fn
        if not self._keywords.has_workers and is_env(env) and not getattr(env, "is_closed", False):
            env.close()

    def _abort(self, background: Background, limit_s: float) -> None:
        """If the background thread is still collecting, interrupts its batch and, if that does not end it, kills the
        workers."""
        if background.is_running:
            self._core.interrupt()
            num_kills = 0
            while not background.ends_within(limit_s) and num_kills < _MOST_KILLS:
                # Several times, because a worker may have been starting.
                for handle in self._core.handles().values():
                    handle.kill()
                num_kills += 1

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """The same as `shutdown`: it blocks, too."""
        self.shutdown(timeout, close_env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # A forked process may leave a block of its parent's collector.
        if self._unchecked_core.exclusive_use.is_this_process:
            self.shutdown(close_env=False)


def _level_of_user() -> int:
    """Returns the `stacklevel` with which a warning of the caller names the first line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("collectx."):
        frame, level = frame.f_back, level + 1
    return level


def _write(extend: Callable[[TensorDictBase], Any], version_offset: int, batch: TensorDictBase) -> None:
    """Calls `extend` with a copy of the batch, whose policy versions are increased by the offset. Runs in a worker."""
    batch = batch.clone(recurse=False)
    batch[POLICY_VERSION] = batch[POLICY_VERSION] + version_offset
    extend(batch)
