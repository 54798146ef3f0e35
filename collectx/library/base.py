"""What all collectors of the library share: a thin composition of what `collectx run` composes.

    keywords --gathered at once--> Order --> RunConfig, one env per worker, a policy --> collector.build --> batches

Called in the trainer's process. Keyword arguments do not travel further than `collectx.library.keywords`.
"""

from __future__ import annotations

import contextlib
import numbers
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import torch
from tensordict import TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.collector.compose import build
from collectx.collector.trajectories import Assembler
from collectx.config import REMOTE, backend_of, is_stacked, surplus_note
from collectx.library.background import Background
from collectx.library.early_stop import Early
from collectx.library.inspection import Inspected
from collectx.library.keywords import (
    BatchOutput,
    CreateEnv,
    Devices,
    Frames,
    Keywords,
    Nested,
    Order,
    Weights,
    Work,
    Workers,
    alike,
)
from collectx.library.slurm import choose_launcher, start_workers
from collectx.library.trajectories import Assembly
from collectx.library.weights import WeightsLike, apply_weight_updater, load_weights, weight_writers, weights_by_worker
from collectx.transport.base import RESET, reset_with
from collectx.user_objects import Given, Hooks
from collectx.worker.spec import env_seed

# Of an order, what is made from keywords.
_SPECS = {
    "work": Work,
    "frames": Frames,
    "devices": Devices,
    "output": BatchOutput,
    "workers": Workers,
    "weights": Weights,
    "remote": Nested,
    "hooks": Hooks,
    "assembly": Assembly,
    "early": Early,
}


class DataCollector(Inspected):
    """What all collectors of the library share; not to be made itself.

    Iterate to get TensorDicts of `frames_per_batch` frames (see README, "A batch"), until `total_frames` are delivered.
    Used from one thread. A context manager: leaving it shuts the workers down.

    Raises:
        ConfigError: by the constructor: what is wrong with the arguments, all at once, before anything is started.
        TypeError: by the constructor: a keyword that it does not know.
    """

    # What the keywords are taken apart into.
    _specs: tuple[type, ...] = ()

    def __init__(
        self, kind: str, create_env_fn: CreateEnv, policy: Any, keywords: dict[str, Any], sync: bool | None = None
    ):
        keywords, problems = alike(keywords)
        taken = Keywords(type(self).__name__, {"create_env_fn": create_env_fn, "policy": policy, **keywords})

        def take(spec: type) -> Any:
            chosen = next((own for own in self._specs if issubclass(own, spec)), None)
            return spec() if chosen is None else taken.take(chosen)

        self._order = order = Order(kind=kind, sync=sync, **{name: take(spec) for name, spec in _SPECS.items()})
        taken.end()
        order.check(taken.problems + problems)
        self._cfg, own = order.config()
        given = [Given.of(each["env"], each.get("policy", self._cfg.policy), custom=each.get("custom")) for each in own]
        if kind in REMOTE:
            choose_launcher(self._cfg, order.remote)
        self._overrides = own
        spec = envs.read_spec(own[0]["env"], policies.is_user_policy(self._cfg.policy))
        self._num_envs, self._is_cuttable = spec.num_envs, spec.cuttable
        self._frames_per_batch = order.fit(self._cfg, own, spec)
        if order.frames.has_surplus and (note := surplus_note(self.total_frames, self._frames_per_batch)):
            warnings.warn(note, stacklevel=3)
        self._most_steps = [each.get("steps") for each in own]
        self.policy: Any = policies.build(self._cfg.policy, spec, self._cfg.seed)
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            place, events = start_workers(stack, self._cfg, given, order.remote)
            self._collector = build(self._cfg, self.policy, spec, events, place=place, own=own)
            stack.callback(self._collector.close)
            self._closing = stack.pop_all()
        if order.workers.num_threads is not None:
            torch.set_num_threads(order.workers.num_threads)
        self._hooks = order.hooks
        self._num_delivered = 0
        self._same: TensorDictBase | None = None
        self._assembler = Assembler(
            order.assembly.trajs_per_batch or 1, self.traj_format, self._cfg.collector.reset_at_each_iter
        )
        self._background: Background | None = None
        self._weights_lock = threading.Lock()
        # Workers with weights of which this process's policy knows nothing.
        self._individual = set(range(self.num_workers) if order.work.has_individual_policies else ())

    def __iter__(self) -> Iterator[TensorDictBase]:
        return self

    def __next__(self) -> TensorDictBase:
        """The next batch. Blocks until it is there. Returns None where batches go to `replay_buffer`; the annotation
        leaves that out, as every other loop would have to check for it."""
        if self.is_running():
            raise RuntimeError("this collector collects in the background, since start(): take from its replay buffer")
        return cast(TensorDictBase, self._take())

    def _take(self) -> TensorDictBase | None:
        """The next batch, as the user wants it; None where it is in the replay buffer."""
        output, interval = self._order.output, self._order.update_interval
        if interval > 0 and self._num_delivered and self._num_delivered % interval == 0:
            with self._weights_lock:
                self._publish({None: None})
        if self._order.workers_write:
            self._collector.advance()
            self._num_delivered += 1
            return None
        if self._order.assembly.trajs_per_batch is not None:
            return self._take_whole()
        batch = next(self._collector)
        self._num_delivered += 1
        if output.replay_buffer is not None:
            output.write(batch, is_stacked(self._cfg.collector), self._collector.steps)
            return None
        batch = self._deliver(batch, self._collector.steps)
        if output.return_same_td:
            same = self._same
            batch = self._same = batch if same is None or same.shape != batch.shape else same.copy_(batch)
        return batch

    def _take_whole(self) -> TensorDictBase | None:
        """The next batch of whole trajectories; with a replay buffer, takes one of frames, and whole ones go there."""
        buffer = self.replay_buffer
        while True:
            if buffer is None and (whole := self._assembler.take()) is not None:
                return whole
            self._assembler.add(self._deliver(next(self._collector), self._collector.steps))
            self._num_delivered += 1
            if buffer is not None:
                for frames in self._assembler.writes(self.trajs_per_write or 1):
                    buffer.extend(frames)
                return None

    def _deliver(self, batch: Any, steps: Sequence[int] | None = None) -> Any:
        """The batch as the user wants it; `steps` of each part are filled, None: as many as there can be."""
        stacked, masked = is_stacked(self._cfg.collector), self._order.early.threshold is not None
        if steps is None:
            steps = [most or batch.shape[-1] for most in self._most_steps]
        return self._order.output.deliver(batch, stacked, steps, masked)

    def _take_another(self) -> bool:
        try:
            self._take()
        except StopIteration:
            return False
        return True

    def next(self) -> TensorDictBase | None:
        """The next batch; None after the last. Blocks until it is there."""
        return next(self, None)

    def iterator(self) -> Iterator[TensorDictBase]:
        """The batches that are left."""
        return iter(self)

    def start(self) -> None:
        """Collects into `replay_buffer` from now on, in a thread of this process, until `total_frames` or `shutdown`.
        Newer weights may be published meanwhile. Does not wait. Where workers write to the buffer themselves, the
        thread only says who may go on.

        Raises:
            RuntimeError: there is no replay buffer, or it has been started.
        """
        if self._order.output.replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: give replay_buffer=... to the constructor")
        if self._background is not None:
            raise RuntimeError("start() was called before")
        self._background = Background(self._take_another)

    def is_running(self) -> bool:
        """Whether it collects in the background."""
        return self._background is not None and self._background.is_running

    @contextlib.contextmanager
    def pause(self, timeout: float | None = None, *, resume: bool = True) -> Iterator[None]:
        """`with collector.pause():` adds nothing to the replay buffer inside the block. Workers that write there
        themselves rest; others fill the slots that they have. Blocks until the batches under way are there.

        Args:
            timeout: seconds that the batch under way may take; None: as long as workers may.
            resume: must be True: `shutdown` ends it for good.

        Raises:
            ValueError: `resume=False`.
            TimeoutError: by entering the block: see `timeout`.
            Exception: by entering the block: what has ended the collecting since `start()`, once.
        """
        if not resume:
            raise ValueError("resume=False: a pause is over with its block, as nothing else would end it: use shutdown")
        with self._alone(timeout):
            if self._order.workers_write:
                self._collector.settle()
            yield

    def _alone(self, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Keeps the thread of `start()` from the collector, after the batch under way."""
        return contextlib.nullcontext() if self._background is None else self._background.hold(timeout_s)

    @contextlib.contextmanager
    def _publishing(self) -> Iterator[None]:
        """One at a time. Weights in shared memory wait for no batch."""
        if self._background is None or backend_of(self._cfg) != "shared_memory":
            with self._alone():
                yield
        else:
            self._background.check()
            with self._weights_lock:
                yield

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
    ) -> None:
        """Lets the workers act with newer weights from their next batch on. Copies before it returns, does not wait,
        except, after `start()` and where weights do not lie in shared memory, for the batch under way.

        Args:
            policy_or_weights: a module built as the policy, or weights by name (a state dict, or a TensorDict of
                parameters): they are copied into this process's policy and reach all workers. None takes that policy
                as it is, or what `weight_updater` gives. A dict from worker indices to any of these: each worker named
                acts with individual weights until newer ones come for it or for all; the other workers, and this
                process's policy, stay as they are.
            weights, policy_weights, policy, weights_dict: the same, the last as `{"policy": ...}`.
            model_id: must be "policy" or None.
            worker_ids: indices of the workers that the weights are for, as if they were given in a dict; None: all.
            wait: is not looked at.

        Raises:
            KeyError: the weights lack one of the policy's.
            TypeError, ValueError: the weights are given twice, are none, are another model's, are for workers that
                there are not, or have other shapes. Nothing is published then.
        """
        every = (policy_or_weights, weights, policy_weights, policy)
        given = weights_by_worker(every, weights_dict, model_id, worker_ids, self.num_workers)
        with self._publishing():
            self._publish(given)

    # What a worker does in TorchRL; here the trainer's policy is the source of all workers' weights.
    receive_weights = update_policy_weights_

    def _publish(self, given: Mapping[int | None, WeightsLike]) -> None:
        """Publishes weights by worker; None: for all."""
        weights = self._order.weights
        if not weights.travel:
            return
        given = {worker: apply_weight_updater(weights.weight_updater, one) for worker, one in given.items()}
        individual = {worker: one for worker, one in given.items() if worker is not None}
        if individual and self.num_workers > 1:
            self._collector.publish_to(weight_writers(self.policy, individual))
            self._individual |= set(individual)
            return
        (one,) = given.values()
        if one is not None:
            load_weights(self.policy, one)
        self._collector.publish(self.policy if isinstance(self.policy, nn.Module) else None)
        self._individual.clear()

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stops the workers; kills those that have not stopped within `close_timeout_s`. Idempotent.

        Args:
            timeout: seconds that the batch under way may take after `start()`; None: `close_timeout_s`.
            close_env: is not looked at: envs end with their workers.
            raise_on_error: whether an error that has ended the collecting since `start()` is raised here.
        """
        background, self._background = self._background, None
        try:
            if background is not None:
                if timeout is None:
                    timeout = self._cfg.collector.close_timeout_s
                with contextlib.nullcontext() if raise_on_error else contextlib.suppress(Exception):
                    background.stop(timeout)
        finally:
            if background is not None and background.is_running:
                self._give_up(background)
            self._closing.close()

    def _give_up(self, background: Background) -> None:
        """Ends the batch under way: its thread uses what is about to be closed."""
        limit_s = self._cfg.collector.close_timeout_s
        self._collector.interrupt()
        if not background.ends_within(limit_s):
            for handle in self._collector.handles().values():
                handle.kill()
            background.ends_within(limit_s)

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """`shutdown`, after `start()`."""
        self.shutdown(timeout, close_env)

    def reset(self, reset_idx: Sequence[bool] | None = None) -> None:
        """New trajectories in all envs, from the next batch that a worker begins: in an async collector up to
        `num_slots` batches of each worker come before.

        Args:
            reset_idx: for each worker, whether its envs are meant; None: all are.

        Raises:
            ValueError: there are not as many as workers, or only some are meant where batches are of whole
                trajectories.
        """
        if reset_idx is None:
            with self._alone():
                self._collector.order(RESET)
                self._assembler.forget()
            return
        self._check_some("reset_idx", reset_idx, self.num_workers, "workers")
        with self._alone():
            self._collector.order(RESET, [worker for worker, is_meant in enumerate(reset_idx) if is_meant])

    def _check_some(self, name: str, chosen: Sequence[bool], count: int, what: str) -> None:
        """Whether `chosen` says which of `count` are to be reset."""
        if len(chosen) != count:
            raise ValueError(f"{name}={list(chosen)}: one entry for each of {count} {what}, or None for all")
        if self.trajs_per_batch is not None:
            raise ValueError(f"{name}={list(chosen)} with trajs_per_batch={self.trajs_per_batch}: reset all, or none")

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds envs and random actions, as if the collector had been made with `seed`, and begins new trajectories, as
        `reset` does.

        Args:
            seed: at least 0, below 2**61.
            static_seed: all envs get the seed itself, in the place of one each that is derived from it.

        Returns:
            A seed to go on with: the same where `static_seed`, otherwise another.
        """
        if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**61:
            raise ValueError(f"seed={seed!r}: must be at least 0 and below 2**61, and whole")
        with self._alone():
            self._collector.order(reset_with(seed, static_seed))
            self._assembler.forget()
        return seed if static_seed else env_seed(seed, 0)

    def rollout(self) -> TensorDictBase | None:
        """One batch, as `next()` gives it."""
        return self.next()

    def increment_version(self) -> int:
        """Publishes the policy's weights as they are, as a newer version for all workers; returns it.

        Raises:
            RuntimeError: workers have individual weights, which would be lost.
        """
        if self._individual:
            raise RuntimeError(
                f"increment_version() publishes this process's policy, and workers {sorted(self._individual)} have "
                "individual weights: call update_policy_weights_ with the weights that each is to have"
            )
        self.update_policy_weights_()
        return self.policy_version

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __len__(self) -> int:
        """How many batches there are in all.

        Raises:
            TypeError: the collector is endless, or its batches are of whole trajectories.
        """
        total, frames = self.total_frames, self.frames_per_batch
        if total < 0 or self._order.assembly.trajs_per_batch is not None:
            raise TypeError("an endless collector (total_frames=-1), or one of whole trajectories, has no length")
        return -(-total // frames)
