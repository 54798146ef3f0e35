"""`BaseCollector`, the base class of the library's collectors: iteration, weights, state, life cycle.

    arguments --parse--> keywords --> RunConfig --rules--> overrides per worker --> collector.compose.build --> batches

`delivery` converts batches to the requested form.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import torch
from tensordict import TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import POLICY_VERSION
from collectx.collector.collector import CollectorCore
from collectx.collector.compose import build
from collectx.collector.saved_state import CollectorState
from collectx.collector.stream import Stream
from collectx.config.derived import surplus_note
from collectx.env.base import EnvSpec
from collectx.env.infos import undeclared
from collectx.env.user_env import copied, is_env
from collectx.library.attributes import ReadableCollector
from collectx.library.background import Background
from collectx.library.configuration import fit_frames, named_in_python, to_config
from collectx.library.delivery import Delivery
from collectx.library.keywords import Keywords, WorkerKeywords
from collectx.library.nested import lift_shared
from collectx.library.overrides import overrides_of_workers, trainers_policy
from collectx.library.parse import parse, signature_of
from collectx.library.rules import check_arguments, check_keys
from collectx.library.slurm import open_launcher
from collectx.library.step_thread import StepThread
from collectx.library.updaters import WeightUpdaterBase
from collectx.library.weights import WeightPublisher, WeightsLike, as_state_dict, weights_by_model, weights_by_worker
from collectx.place import place_of
from collectx.policy.random import RandomPolicy
from collectx.standard_streams import open_closed
from collectx.transport.base import Reset
from collectx.user_objects import Hooks, UserEnvConfig
from collectx.worker.profiling import ProfileConfig
from collectx.worker.requests import load_into, resolve
from collectx.worker.spec import env_seed

# How often `shutdown` kills the workers if the background thread does not end.
_MOST_KILLS = 5
_END: Any = object()


class BaseCollector(ReadableCollector):
    """Base class of the library's collectors, for `isinstance`; it has no instances itself.

    Iterate over a collector to get TensorDicts of `frames_per_batch` frames (see docs/explanation/concepts.md, "A
    batch"), until `total_frames` are delivered. Use it from one thread, and only in the process that made it. As a
    context manager, it stops its workers at the end of the block.

    The constructor waits up to `start_timeout_s` until worker processes on this machine have made their envs and
    policies. Jobs and Ray actors start in the background; the first batch waits for them.

    Raises:
        ConfigError: arguments of the constructor are wrong. The message lists all problems; nothing was started.
        TypeError: the constructor does not take a keyword.
        Exception: in the constructor as in `next`, what an env or a policy raised in a worker.
    """

    _profile_config: ProfileConfig | None = None
    # The batch that `async for` waits for. It belongs to no event loop, as a cancelled task's loop may be closed.
    _ahead: concurrent.futures.Future[Any] | None = None

    def __init__(self, keywords_class: type[Keywords], arguments: tuple, passed: dict[str, Any]):
        open_closed()
        self._configure(keywords_class, arguments, passed)
        with named_in_python(self._keywords):
            self._spec = self._read_spec()
        self._frames_per_batch = fit_frames(self._keywords, self._cfg, self._overrides, self._spec)
        self._warn_of_surplus(stacklevel=4)
        policy = self._make_policy()
        with named_in_python(self._keywords):
            core = self._start_core(policy)
        keywords, collector = self._keywords, self._cfg.collector
        self._hooks, self._thread = keywords.hooks, StepThread()
        core.close_by(partial(self._thread.call_last, timeout_s=collector.close_timeout_s))
        self._background = Background(self._thread)
        self._stream = Stream(core, collector, warnings.warn, "", keywords.post_traj, keywords.is_concatenated)
        self._delivery = Delivery(keywords, collector, self._stream, self._spec)
        individual = range(self.num_workers) if keywords.has_individual_policies else ()
        self._weights = WeightPublisher(core, keywords, individual)
        if isinstance(self._weights.updater, WeightUpdaterBase):
            self._weights.updater.register_collector(self)

    def _configure(self, keywords_class: type[Keywords], arguments: tuple, passed: dict[str, Any]) -> None:
        """Makes the configuration, and the overrides of each worker, from the constructor's arguments."""
        passed, conflicts = lift_shared(passed)
        keywords, problems = parse(type(self).__name__, keywords_class, arguments, passed)
        problems += conflicts
        cfg = to_config(keywords, problems)
        check_arguments(keywords, cfg, problems)
        self._keywords, self._cfg, self._overrides = keywords, cfg, overrides_of_workers(keywords, cfg)
        env = self._overrides[0].env
        assert env is not None
        cfg.env, cfg.policy = env, trainers_policy(keywords, cfg.collector.num_workers)

    def _read_spec(self) -> EnvSpec:
        """Returns the spec of one worker's envs. Makes an env, a copy if the collector itself steps another."""
        env, has_workers = self._cfg.env, self._keywords.has_workers
        assert isinstance(env, UserEnvConfig)
        has_users_policy = policies.is_user_policy(self._cfg.policy)
        if has_workers or has_users_policy or undeclared(env.info_keys):
            env = copied(env, is_required=has_workers)
        return envs.read_spec(env, has_users_policy)

    def _warn_of_surplus(self, stacklevel: int) -> None:
        """Warns if `total_frames` is rounded up, unless the remainder only comes from rounding up to the envs."""
        if self.total_frames % self._keywords.requested_frames:
            note = surplus_note(self.total_frames, self._frames_per_batch)
            if note is not None:
                warnings.warn(note, stacklevel=stacklevel)

    def _make_policy(self) -> Any:
        """Makes `self.policy`; returns the trainer's policy, None for random actions."""
        spec = self._spec
        policy: Any = policies.build(self._cfg.policy, spec, self._cfg.seed)
        self.policy = RandomPolicy() if policy is None and not self._keywords.has_workers else policy
        if policies.is_random_policy(self.policy) and self.policy.action_spec is None:
            self.policy.action_spec = spec.action_space if spec.action_spec is None else spec.action_spec
        return policy

    def _start_core(self, policy: Any) -> CollectorCore:
        """Returns the started core. Waits for workers of this machine."""
        keywords, cfg = self._keywords, self._cfg
        with contextlib.ExitStack() as stack:
            launcher, events = open_launcher(stack, cfg, self._overrides, keywords)
            core = build(cfg, policy, self._spec, events, launcher=launcher, overrides=self._overrides)
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
            f"{type(self).__name__} cannot be pickled or copied: it owns processes, envs and memory. "
            "Pickle its state_dict(), and call load_state_dict on another collector."
        )

    def __iter__(self) -> Iterator[TensorDictBase]:
        return self

    def __next__(self) -> TensorDictBase:
        """Returns the next batch; blocks until it is complete. Returns None if batches go to `replay_buffer`; the
        annotation omits None, so other loops need no check. After Ctrl-C, the next call returns the batch that was
        awaited; without workers, it collects that batch again, with new episodes."""
        self._check_process()
        if self.is_running():
            raise RuntimeError("start() made this collector collect in the background: sample from its replay buffer")
        return cast(TensorDictBase, self._collect())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TensorDictBase:
        """Collects like `__next__`, in a thread, so the event loop continues. If the waiting task is cancelled, the
        next call returns its batch. Do not use the collector otherwise meanwhile."""
        if self._ahead is None:
            step = partial(contextvars.copy_context().run, next, self, _END)
            self._ahead = self._thread.submit(step)
        try:
            batch = await asyncio.shield(asyncio.wrap_future(self._ahead))
        except asyncio.CancelledError:
            # The waiting task was cancelled; the batch may be complete already.
            if self._ahead.cancelled():
                self._ahead = None
            raise
        except BaseException:
            self._ahead = None
            raise
        self._ahead = None
        if batch is _END:
            raise StopAsyncIteration
        return batch

    def fill(self, frames: int = 1) -> int:
        """Collects whole batches into `replay_buffer`; blocks until they contain at least `frames` frames. Returns the
        number of collected frames, 0 after `total_frames`. `while collector.fill():` replaces iteration, which returns
        None for each of these batches, as TorchRL does.

        Raises:
            RuntimeError: the collector has no replay buffer, or collects in the background.
        """
        if self.replay_buffer is None:
            raise RuntimeError("fill() collects into a replay buffer: pass replay_buffer=... to the constructor")
        before = self._core.num_frames
        while (collected := self._core.num_frames - before) < frames and next(self, _END) is not _END:
            pass
        return collected

    def _collect(self) -> TensorDictBase | None:
        """Publishes the weights if they are due, then collects a batch; see `Delivery.next`."""
        interval, num_collected = self._keywords.publish_interval, self._delivery.num_collected
        if interval > 0 and num_collected and num_collected % interval == 0:
            self._weights.publish(self.policy, {None: None}, self.num_workers)
        return self._delivery.next()

    def next(self) -> TensorDictBase | None:
        """Returns the next batch, or None after the last one. Blocks until it is complete."""
        return next(self, None)

    def iterator(self) -> Iterator[TensorDictBase]:
        """Returns an iterator over the remaining batches."""
        return iter(self)

    def start(self) -> None:
        """Starts to collect into `replay_buffer` in a background thread, until `total_frames` or `shutdown`. Returns at
        once. You may publish weights meanwhile.

        Raises:
            RuntimeError: the collector has no replay buffer, or was started before.
        """
        self._check_process()
        if self.replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: pass replay_buffer=... to the constructor")
        self._background.start(self._collect)

    def is_running(self) -> bool:
        """Whether the background thread is collecting."""
        return self._background.is_running

    @contextlib.contextmanager
    def pause(self, timeout: float | None = None, *, resume: bool = True) -> Iterator[None]:
        """Within `with collector.pause():`, the replay buffer gets no frames. The entry blocks until the current batch
        is complete. Workers that write to the buffer themselves are idle within the block; others fill their free
        slots.

        Args:
            timeout: seconds to wait for the current batch; None: as long as `worker_timeout_s` allows.
            resume: must be True; `shutdown` ends the collecting.

        Raises:
            ValueError: `resume=False`.
            TimeoutError: on entry, if the current batch is not complete within `timeout`.
            Exception: on entry, the error that ended the background thread, once.
        """
        if not resume:
            raise ValueError("resume=False: a pause ends with its block; use shutdown() to end the collecting")
        with self._exclusive(timeout):
            if self._keywords.shared_buffer is not None:
                self._core.wait_until_idle()
            yield

    def _before_publishing(self) -> contextlib.AbstractContextManager[None]:
        """Waits for the background thread's current batch, unless weights are in shared memory and no next batch is
        being filled with older ones."""
        self._check_process()
        if not place_of(self._cfg).shares_memory or self._cfg.collector.overlap:
            return self._exclusive()
        self._background.check()
        return contextlib.nullcontext()

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
        """Publishes a copy of weights. Workers act with them from their next batch on, with `overlap=1` from the batch
        after it. Only blocks after `start()` without shared memory or with `overlap=1`: then it waits for the current
        batch.

        Args:
            policy_or_weights: a module with the architecture of the policy, or weights by name (a state dict, or a
                TensorDict of parameters): copied into `collector.policy` and sent to all workers. None publishes
                `collector.policy` as it is, or the weights that `weight_updater` returns. A dict from worker indices to
                any of these sets individual weights of those workers, until newer weights for them or for all are
                published; the other workers and `collector.policy` keep theirs.
            weights, policy_weights, policy: alternatives to `policy_or_weights`.
            weights_dict: weights by model, see `model_id`; only the policy's may be None.
            model_id: the model of the other arguments: None or "policy"; or the path of a module, such as
                "env.transform[0].module" (in each worker; waits until it is between two batches) or
                "replay_buffer.transform[0].module" (in this process).
            worker_ids: indices of the workers that get the weights, as with a dict; None: all.
            wait: ignored; accepted for TorchRL compatibility.
            strict: whether unknown names of weights are an error.

        Names may begin with the prefixes of wrappers, `_orig_mod.` of `torch.compile` and `module.` of data
        parallelism.

        Raises:
            KeyError: weights of the policy are missing, or, if `strict`, names are unknown.
            TypeError, ValueError: weights were passed twice, have a wrong type or shape, or belong to models or workers
                that do not exist. Nothing is published then.
        """
        by_model = weights_by_model((policy_or_weights, weights, policy_weights, policy), weights_dict, model_id)
        by_worker = {model: weights_by_worker(each, worker_ids, self.num_workers) for model, each in by_model.items()}
        for model, each in by_worker.items():
            if model != "policy":
                self._load_into(model, each)
        if "policy" in by_worker:
            with self._before_publishing():
                self._weights.publish(self.policy, by_worker["policy"], self.num_workers, strict)

    def _load_into(self, model: str, by_worker: Mapping[int | None, Any]) -> None:
        """Copies weights into the modules that `model` names; see `update_policy_weights_`."""
        place, _, path = model.partition(".")
        states = {worker: as_state_dict(weights) for worker, weights in by_worker.items()}
        some = {worker: (path, state) for worker, state in states.items() if worker is not None}
        if place == "env":
            self._ask("load_weights", path, states.get(None), per_worker=some or None)
            return
        with self._exclusive():
            load_into(self.replay_buffer, path, next(iter(states.values())))

    # TorchRL's workers receive weights by this method; here all weights come from the trainer's policy.
    receive_weights = update_policy_weights_

    def increment_version(self) -> int:
        """Publishes `collector.policy` to all workers as a new version; returns the version.

        Raises:
            RuntimeError: workers have individual weights, which would be overwritten.
        """
        if individual := self._weights.individual:
            raise RuntimeError(
                f"increment_version() publishes this process's policy, and workers {sorted(individual)} have "
                "individual weights: call update_policy_weights_ with the weights of each worker"
            )
        self.update_policy_weights_()
        return self.policy_version

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[tuple] | None = None,
        list_of_kwargs: Sequence[dict] | None = None,
    ) -> list[Any]:
        """Calls a method of the envs of each worker, `env.set_level`, with the entry of the lists for this worker, or
        without arguments; returns the results by worker, a list for several envs. It is a setting, see `EnvMethods`.

        Any other method is one of this collector, which is called once per entry. Without workers, the lists may be
        missing for a single call.

        Args:
            method_name: name of the method, or a path to it as for `get_distant_attr`.

        Raises:
            ValueError: the lists have different lengths, or not one entry per worker; or there are workers, the method
                is this collector's, and no lists are passed.
        """
        if self._keywords.has_workers and method_name.startswith("env."):
            return self._map_envs(method_name.removeprefix("env."), list_of_args, list_of_kwargs)
        if list_of_args is None and list_of_kwargs is None:
            if self._keywords.has_workers:
                raise ValueError(
                    f"map_fn({method_name!r}) without lists is a call in every worker for TorchRL; here workers have "
                    "only the methods of their envs, env.NAME, and other methods are this collector's: pass "
                    "list_of_args=[()] for one call."
                )
            list_of_args = [()]
        positional, named = list(list_of_args or ()), list(list_of_kwargs or ())
        if positional and named and len(positional) != len(named):
            raise ValueError(f"list_of_args has {len(positional)} entries, list_of_kwargs {len(named)}: one per call")
        count = len(positional) or len(named)
        calls = zip(positional or [()] * count, named or [{}] * count, strict=True)
        return [resolve(self, method_name)(*args, **kwargs) for args, kwargs in calls]

    def _map_envs(self, path: str, list_of_args: Any, list_of_kwargs: Any) -> list[Any]:
        count = self._cfg.collector.num_workers
        positional, named = list_of_args or [()] * count, list_of_kwargs or [{}] * count
        if (len(positional), len(named)) != (count, count):
            given = f"{len(positional)} and {len(named)}"
            raise ValueError(f"map_fn('env.{path}'): got lists of {given} entries: each worker, of {count}, takes one")
        contents = [*zip(map(tuple, positional), named, strict=True)]
        results = self._with_core(lambda core: core.change("call", path, contents))
        return [each[0] if len(each) == 1 else each for each in results.values()]

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called in the worker before every batch. Assignment replaces it in all workers from their next batch on; a
        restarted worker uses the constructor's hook."""
        return self._hooks.pre_collect_hook

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._replace_hook("pre_collect_hook", hook)

    @property
    def post_collect_hook(self) -> Callable[[TensorDictBase], Any] | None:
        """Called in the worker with every batch. Assignment replaces it as for `pre_collect_hook`."""
        return self._hooks.post_collect_hook

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        self._replace_hook("post_collect_hook", hook)

    def set_post_collect_hook(self, hook: Callable[[TensorDictBase], Any] | None) -> None:
        """Sets `post_collect_hook`."""
        self.post_collect_hook = hook

    def _replace_hook(self, name: str, hook: Callable | None) -> None:
        if name == "post_collect_hook" and not self._keywords.has_workers:
            with self._exclusive():
                self._delivery.post_collect_hook = hook
        else:
            self._ask("set_hook", name, Hooks(**{name: hook}))
        self._hooks = replace(self._hooks, **{name: hook})

    def reset(self, reset_idx: Sequence[bool] | None = None) -> None:
        """Resets envs before the next batch that a worker begins. An async collector first delivers up to `num_slots`
        earlier batches of each worker, a collector with `overlap=1` the batch that is being filled.

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
        self._reset(Reset(), workers)

    def _reset(self, reset: Reset, workers: Sequence[int] | None = None) -> None:
        """Requests a reset of workers; None: of all, which also drops unfinished trajectories."""
        with self._exclusive():
            self._core.request_reset(reset, workers)
            if workers is None:
                self._stream.forget()

    def _check_selection(self, name: str, selection: Sequence[bool], count: int, what: str) -> None:
        """Raises ValueError unless `selection` has an entry for each of `count` envs or workers to reset."""
        if len(selection) != count:
            raise ValueError(f"{name}={list(selection)}: one entry for each of {count} {what}, or None for all")
        if self.trajs_per_batch is not None:
            raise ValueError(f"{name}={list(selection)} with trajs_per_batch={self.trajs_per_batch}: reset all or none")

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds envs and random actions like the constructor, and resets the envs like `reset`.

        Args:
            seed: at least 0, below 2**61.
            static_seed: True: every env gets `seed`. False: every env gets another seed, derived from `seed`.

        Returns:
            A seed for the next call: `seed` if `static_seed`, otherwise another.
        """
        if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**61:
            raise ValueError(f"seed={seed!r}: must be at least 0, below 2**61 and a whole number")
        self._reset(Reset(seed, static_seed))
        return seed if static_seed else env_seed(seed, 0)

    @signature_of(ProfileConfig)
    def enable_profile(self, *arguments: Any, **options: Any) -> None:
        """Profiles the next batches of some workers, in their processes, with `torch.profiler`.

        Raises:
            NotImplementedError: the workers are on other hosts, or may be.
            ValueError: no batch is left to record, or a worker or an activity does not exist.
        """
        self._core.check_can_ask("profile")
        config = ProfileConfig(*arguments, **options).complete(min(self._core.workers))
        if problems := config.problems(self._core.workers):
            raise ValueError(" ".join(problems))
        self._ask("profile", per_worker=dict.fromkeys(config.workers or (), (config,)))
        self._profile_config = config

    @property
    def profile_config(self) -> ProfileConfig | None:
        """The configuration of the last `enable_profile`; None before it, and after `disable_profile`."""
        return self._profile_config

    def disable_profile(self) -> None:
        """Ends profiling, and writes the recorded trace, if any batch after the warm-up was recorded. Does nothing
        without `enable_profile`."""
        config, self._profile_config = self._profile_config, None
        if config is not None:
            self._ask("end_profile", per_worker=dict.fromkeys(config.workers or (), ()))

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the state: the policy's weights, counts of frames and batches and, for each worker, its
        trajectory ids, the state of its envs and, on this machine, its weights and their version. Blocks until the
        workers have filled the granted slots; the state does not contain these frames."""
        weights = self.policy.state_dict() if isinstance(self.policy, nn.Module) else {}
        with self._exclusive():
            saved = self._core.state()
        state: dict[str, Any] = {
            "policy_state_dict": {name: value.clone() for name, value in weights.items()},
            "frames": saved["frames"],
            "iter": saved["batches"],
            "policy_version": saved["version"] + self._stream.version_offset,
            **{f"worker{index}": each for index, each in saved["workers"].items()},
        }
        if self._core.can_ask("weights"):
            per_worker = dict.fromkeys(self._weights.individual.intersection(self._core.workers), ())
            individual = self._ask("weights", per_worker=per_worker)
            versions = self._weights.versions
            for index in saved["workers"]:
                state[f"worker{index}"] |= {
                    "policy_state_dict": individual.get(index, state["policy_state_dict"]),
                    "is_individual": index in individual,
                    "policy_version": versions.get(index, versions[None]) + self._stream.version_offset,
                }
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Restores a state: loads and publishes the weights, sets their version and the counts, restores the envs. The
        collector must have been constructed with the same arguments. Workers whose individual weights the state lacks
        keep theirs.

        Envs resume within their episodes if their state can be saved (`collectx.state`): envs with `state_dict` and
        `load_state_dict`, and picklable envs, which are replaced. Pickles execute code: load only states that you
        trust. All other envs begin new episodes with unused seeds. Async workers first complete their granted batches.

        Raises:
            KeyError: the dict is no state of a collector.
        """
        if missing := sorted({"policy_state_dict", "frames"} - set(state_dict)):
            raise KeyError(f"the state lacks {', '.join(missing)}: pass the result of state_dict()")
        workers = self._core.workers
        saved = {index: state_dict[f"worker{index}"] for index in workers if f"worker{index}" in state_dict}
        if isinstance(self.policy, nn.Module):
            self.policy.load_state_dict(state_dict["policy_state_dict"], strict=strict)
            individual = {
                index: each["policy_state_dict"] for index, each in saved.items() if each.get("is_individual")
            }
            kept = self._weights.individual - set(individual)
            if not kept and not individual:
                self.update_policy_weights_()
            else:
                # One call, so no worker acts with another's weights in between.
                shared = [index for index in workers if index not in kept and index not in individual]
                if by_worker := {**dict.fromkeys(shared), **individual}:
                    self.update_policy_weights_(by_worker)
                self._weights.individual.difference_update(shared)
        version = state_dict.get("policy_version", self._core.policy_version)
        self._stream.version_offset = offset = version - self._core.policy_version
        if (buffer := self._keywords.shared_buffer) is not None:
            write = partial(_write, buffer.extend, offset)
            self._ask("set_hook", "write_batch", Hooks(write_batch=write))
            for fields in self._overrides:  # for restarted workers
                fields.hooks = replace(fields.hooks, write_batch=write)
        saved_state: CollectorState = {
            "frames": state_dict["frames"],
            "batches": state_dict.get("iter", 0),
            "frames_by_worker": {},
            "undelivered": [],
            "incarnations": {worker.index: worker.incarnation for worker in self._core.pool.records},
            "workers": saved,
        }
        with self._exclusive():
            self._core.load(saved_state, self._cfg.seed)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stops the workers, and kills those that do not stop within `close_timeout_s`. Idempotent.

        Args:
            timeout: after `start()`, seconds to wait for the current batch; None: `close_timeout_s`.
            close_env: whether to close an env that was passed to a collector without workers. Envs that the collector
                made are always closed; the end of a `with` block leaves a passed env open.
            raise_on_error: whether to raise the error that ended the background thread.
        """
        self._check_process()
        background, thread = self._background, self._thread
        self._thread = StepThread()
        self._background, self.closed = Background(self._thread), True
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
        """Closes everything, in the thread that stepped the envs, unless that thread hangs."""
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
        """Interrupts the current batch if the background thread is still alive, which uses what is about to be
        closed."""
        if background.is_running:
            self._core.interrupt()
            num_kills = 0
            while not background.ends_within(limit_s) and num_kills < _MOST_KILLS:
                # Several times, because a worker may have been starting.
                for handle in self._core.handles().values():
                    handle.kill()
                num_kills += 1

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env)

    def rollout(self) -> TensorDictBase | None:
        """Returns one batch, like `next()`."""
        return self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A forked process may leave a block of its parent's collector.
        if self._stream.core.owner.is_this_process:
            self.shutdown(close_env=False)


def _write(extend: Callable[[TensorDictBase], Any], version_offset: int, batch: TensorDictBase) -> None:
    """Runs in a worker: calls `extend` with the batch, whose policy versions are increased by the offset."""
    batch = batch.clone(recurse=False)
    batch[POLICY_VERSION] = batch[POLICY_VERSION] + version_offset
    extend(batch)
