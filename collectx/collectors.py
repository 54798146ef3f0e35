"""Collectors as a Python library, with TorchRL's names and keywords: thin compositions of what `collectx run` composes.

    keywords --gathered at once--> Order --> RunConfig, one env per worker, a policy --> collector.build --> batches

Called in the trainer's process. Keyword arguments do not travel further than `collectx.keywords`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.background import Background
from collectx.collector.build import build
from collectx.collector.worker import env_seed
from collectx.config import (
    REMOTE,
    EnvConfig,
    RayLauncherConfig,
    RunConfig,
    SubmititLauncherConfig,
    backend_of,
    is_stacked,
)
from collectx.early import Early, Interrupted, Preempted
from collectx.errors import ConfigError
from collectx.given import Hooks
from collectx.inspection import Inspected
from collectx.keywords import (
    CreateEnv,
    Devices,
    EachBatchWeights,
    Frames,
    Handing,
    Keywords,
    Nested,
    Order,
    RayRemote,
    Remote,
    RpcRemote,
    Weights,
    Work,
    Workers,
    described,
    own_of,
)
from collectx.launcher.place import Place
from collectx.launcher.submitit import slurm_resources
from collectx.run import RunFolder, rules
from collectx.run.events import EventLog
from collectx.run.folder import new_folder
from collectx.run.submitted import Beforehand, submitted_workers, waiting_workers
from collectx.trajectories import Assembler, Assembly
from collectx.transport.base import RESET, reset_with
from collectx.updates import Given, given_weights, load_weights, updated_weights

# Of an order, what is made from keywords.
_SPECS = {
    "work": Work,
    "frames": Frames,
    "devices": Devices,
    "handing": Handing,
    "workers": Workers,
    "weights": Weights,
    "remote": Nested,
    "hooks": Hooks,
    "assembly": Assembly,
    "early": Early,
}


class DataCollector(Inspected):
    """What all collectors of this module share; not to be made itself.

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
        taken = Keywords(type(self).__name__, {"create_env_fn": create_env_fn, "policy": policy, **keywords})

        def take(spec: type) -> Any:
            chosen = next((own for own in self._specs if issubclass(own, spec)), None)
            return spec() if chosen is None else taken.take(chosen)

        self._order = order = Order(kind=kind, sync=sync, **{name: take(spec) for name, spec in _SPECS.items()})
        taken.end()
        order.check()
        self._cfg, own = order.config()
        create = [each["env"] for each in own]
        if kind in REMOTE:
            _launch_by(self._cfg, order.remote)
        self._own = own
        spec = envs.read_spec(create[0])
        self._frames_per_batch = order.fit(self._cfg, own, spec.num_envs)
        self._most_steps = [each.get("steps") for each in own]
        self.policy: Any = policies.build(self._cfg.policy, spec, self._cfg.seed)
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            place, events = _jobs(stack, self._cfg, create, order.remote)
            self._collector = build(
                self._cfg,
                self.policy,
                spec,
                events,
                place=place,
                own=own,
                compact_obs=order.handing.compact_obs,
                threshold=order.early.threshold,
            )
            stack.callback(self._collector.close)
            self._closing = stack.pop_all()
        if order.workers.num_threads is not None:
            torch.set_num_threads(order.workers.num_threads)
        self._hooks = order.hooks
        self._num_delivered = 0
        self._same: TensorDictBase | None = None
        self._assembler = Assembler(order.assembly, self._cfg.collector.reset_at_each_iter)
        self._background: Background | None = None
        self._weights_lock = threading.Lock()

    def __iter__(self) -> Iterator[TensorDictBase | None]:
        return self

    def __next__(self) -> TensorDictBase | None:
        if self.is_running:
            raise RuntimeError("this collector collects in the background, since start(): take from its replay buffer")
        return self._take()

    def _take(self) -> TensorDictBase | None:
        """The next batch, as the user wants it."""
        handing, interval = self._order.handing, self._order.weights.interval
        if interval > 0 and self._num_delivered and self._num_delivered % interval == 0:
            with self._weights_lock:
                self._publish(None)
        if self._order.workers_write:
            self._collector.advance()
            self._num_delivered += 1
            return None
        if self._order.assembly.trajs_per_batch is not None:
            return self._take_whole()
        batch = self._hand(next(self._collector), self._collector.steps)
        self._num_delivered += 1
        if handing.return_same_td:
            batch = self._same = batch if self._same is None else self._same.copy_(batch)
        if handing.replay_buffer is None:
            return batch
        handing.store(batch)
        return None

    def _take_whole(self) -> TensorDictBase | None:
        """The next batch of whole trajectories; with a replay buffer, takes one of frames, and whole ones go there."""
        buffer = self.replay_buffer
        while True:
            if buffer is None and (whole := self._assembler.take()) is not None:
                return whole
            self._assembler.add(self._hand(next(self._collector), self._collector.steps))
            self._num_delivered += 1
            if buffer is not None:
                for frames in self._assembler.writes():
                    buffer.extend(frames)
                return None

    def _hand(self, batch: Any, steps: Sequence[int] | None = None) -> Any:
        """The batch as the user wants it; `steps` of each part are filled, None: as many as there can be."""
        stacked, masked = is_stacked(self._cfg.collector), self._order.early.threshold is not None
        if steps is None:
            steps = [most or batch.shape[-1] for most in self._most_steps]
        return self._order.handing.hand(batch, stacked, steps, masked)

    def _take_another(self) -> bool:
        try:
            self._take()
        except StopIteration:
            return False
        return True

    def next(self) -> TensorDictBase | None:
        """The next batch; None after the last. Blocks until it is there."""
        return next(self, None)

    def iterator(self) -> Iterator[TensorDictBase | None]:
        """The batches that are left."""
        return iter(self)

    def start(self) -> None:
        """Collects into `replay_buffer` from now on, in a thread of this process, until `total_frames` or `shutdown`.
        Newer weights may be published meanwhile. Does not wait. Where workers write to the buffer themselves, the
        thread only says who may go on.

        Raises:
            RuntimeError: there is no replay buffer, or it has been started.
        """
        if self._order.handing.replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: give replay_buffer=... to the constructor")
        if self._background is not None:
            raise RuntimeError("start() was called before")
        self._background = Background(self._take_another)

    @property
    def is_running(self) -> bool:
        """Whether it collects in the background."""
        return self._background is not None and self._background.is_running

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """`with collector.pause():` adds nothing to the replay buffer inside the block. Workers that write there
        themselves rest; others fill the slots that they have. Blocks until the batches under way are there.

        Raises:
            Exception: by entering the block: what has ended the collecting since `start()`, once.
        """
        with self._alone():
            if self._order.workers_write:
                self._collector.settle()
            yield

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Keeps the thread of `start()` from the collector, after the batch under way."""
        return contextlib.nullcontext() if self._background is None else self._background.hold()

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

    def update_policy_weights_(self, policy_or_weights: Given = None, **named: Any) -> None:
        """Lets the workers act with newer weights from their next batch on. Copies before it returns, does not wait,
        except, after `start()` and where weights do not lie in shared memory, for the batch under way.

        Args:
            policy_or_weights: a module built as the policy, or its weights by name (a state dict, or a TensorDict of
                parameters), which are copied into this collector's policy; None takes that policy as it is, or what
                `weight_updater` gives.
            named: the same as `weights`, `policy` or `weights_dict={"policy": ...}`. `model_id` must be "policy".

        Raises:
            KeyError: the weights lack one of the policy's.
            TypeError, ValueError: the weights are given twice, are another model's, or only some workers'.
        """
        given = given_weights(policy_or_weights, named)
        with self._publishing():
            self._publish(given)

    # What a worker does in TorchRL; here the trainer's policy is the source of all workers' weights.
    receive_weights = update_policy_weights_

    def _publish(self, given: Given) -> None:
        weights = self._order.weights
        if not weights.travel:
            return
        given = updated_weights(weights.weight_updater, given)
        if isinstance(given, nn.Module):
            self._collector.publish(given)
            return
        if given is not None:
            load_weights(self.policy, given)
        self._collector.publish(self.policy if isinstance(self.policy, nn.Module) else None)

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
            self._closing.close()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """`shutdown`, after `start()`."""
        self.shutdown(timeout, close_env)

    def reset(self) -> None:
        """New trajectories in all envs, from the next batch that a worker begins: in an async collector up to
        `num_slots` batches of each worker come before."""
        with self._alone():
            self._collector.order(RESET)
            self._assembler.forget()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds envs and random actions, as if the collector had been made with `seed`, and begins new trajectories, as
        `reset` does.

        Args:
            seed: at least 0, below 2**61.
            static_seed: all envs get the seed itself, in the place of one each that is derived from it.

        Returns:
            A seed to go on with: the same where `static_seed`, otherwise another.
        """
        if not 0 <= seed < 2**61:
            raise ValueError(f"seed={seed}: must be at least 0 and below 2**61")
        with self._alone():
            self._collector.order(reset_with(seed, static_seed))
            self._assembler.forget()
        return seed if static_seed else env_seed(seed, 0)

    def rollout(self) -> TensorDictBase | None:
        """One batch, as `next()` gives it."""
        return self.next()

    def increment_version(self) -> int:
        """Publishes the policy's weights as they are, as a newer version; returns it."""
        self.update_policy_weights_()
        return self.policy_version

    @property
    def frames_per_batch(self) -> int:
        """Frames of one batch, rounded up."""
        return self._frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """As the constructor was told."""
        return self._order.frames.in_all

    @property
    def total_frames(self) -> int:
        """When it ends; -1: never."""
        return self._cfg.collector.total_frames

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


@described(Work, Frames, Devices, Handing, Weights, Hooks, Assembly, Interrupted)
class Collector(DataCollector):
    """One rollout in this process (TorchRL's `Collector`, formerly `SyncDataCollector`). Acts with the policy itself,
    so that no publishing is needed."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__("single", create_env_fn, policy, keywords)


@described(Work, Frames, Devices, Handing, Workers, Weights, Hooks, Assembly, Preempted)
class MultiCollector(DataCollector):
    """Workers in processes of this machine, over shared memory. The policy is copied to them.

    `sync=True`: a batch is one equal part of each worker, `[workers, ...]`, all with the newest weights. `sync=False`:
    every batch comes whole from the worker that is ready first.
    """

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool, **keywords: Any):
        super().__init__("multi_sync" if sync else "multi_async", create_env_fn, policy, keywords)


@described(*MultiCollector._specs)
class MultiSyncCollector(MultiCollector):
    """`MultiCollector(sync=True)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


@described(*MultiCollector._specs)
class MultiAsyncCollector(MultiCollector):
    """`MultiCollector(sync=False)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=False, **keywords)


@described(Work, Frames, Devices, Handing, Workers, Weights, Remote, Assembly)
class DistributedCollector(DataCollector):
    """Workers over torch.distributed; `sync` as in `MultiCollector`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("distributed_sync" if sync else "distributed", create_env_fn, policy, keywords)


@described(Work, Frames, Devices, Handing, Workers, EachBatchWeights, Remote, Assembly)
class DistributedSyncCollector(DistributedCollector):
    """`DistributedCollector(sync=True)`; publishes the policy's weights after every batch if nothing else is said."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


@described(Work, Frames, Devices, Handing, Workers, Weights, RpcRemote, Assembly)
class RPCCollector(DataCollector):
    """Workers over torch RPC, which pickles between them and this process: whoever reaches the ports that it opens can
    run code there, without the run's secret; `sync` as in `MultiCollector`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("rpc", create_env_fn, policy, keywords, sync)


@described(Work, Frames, Devices, Handing, Workers, Weights, RayRemote, Assembly)
class RayCollector(DataCollector):
    """Workers that are actors of a Ray cluster, over its object store; `sync` as in `MultiCollector`. This process is
    connected to Ray by the first, and stays so until it ends, or `ray.shutdown()` is called. Ray pickles what its
    processes tell each other."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("ray", create_env_fn, policy, keywords, sync)

    def add_collectors(
        self,
        create_env_fn: Callable[..., Any] | Sequence[Callable[..., Any]],
        num_envs: int | None = None,
        policy: Any = None,
        collector_kwargs: dict[str, Any] | None = None,
        remote_configs: dict[str, Any] | None = None,
    ) -> None:
        """Starts more workers, with envs' seeds and trajectory ids of their own. Does not wait for them. The batches of
        a sync collector grow by their parts, and wait for them.

        Args:
            create_env_fn: one callable for each new worker; all must make as many envs, of the same spaces, as the
                others do.
            num_envs, policy: are not looked at: what `create_env_fn` makes, and the policy that the others have.
            collector_kwargs, remote_configs: as the constructor's, for each of the new ones; None: `remote_configs` of
                the first worker.
        """
        launcher = self._cfg.launcher
        assert isinstance(launcher, RayLauncherConfig)
        creates = [create_env_fn] if callable(create_env_fn) else list(create_env_fn)
        with self.pause():
            for create in creates:
                self._own.append(own_of(self._order, create, collector_kwargs))
                launcher.remote_configs.append(dict(remote_configs or launcher.remote_configs[0]))
                self._collector.add()

    @property
    def remote_collectors(self) -> list[Any]:
        """Ray's handles of the workers' actors."""
        return [handle.actor for _, handle in sorted(self._collector.handles().items())]

    def local_policy(self) -> Any:
        """This process's policy."""
        return self.policy

    def stop_remote_collectors(self) -> None:
        """`shutdown`."""
        self.shutdown()

    stop = stop_remote_collectors


# TorchRL's earlier names.
SyncDataCollector = Collector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
DistributedDataCollector = DistributedCollector
DistributedSyncDataCollector = DistributedSyncCollector
RPCDataCollector = RPCCollector


def _launch_by(cfg: RunConfig, remote: Nested) -> None:
    """Puts the launcher into `cfg`."""
    if isinstance(remote, RayRemote):
        cfg.launcher = remote.launcher_config(cfg.launcher.num_threads, cfg.collector.num_workers)
    if not isinstance(remote, Remote):
        return
    if remote.launcher == "submitit":
        cfg.launcher = slurm_resources(remote.slurm_kwargs or {}, cfg.launcher.num_threads)
    elif remote.launcher == "submitit_delayed":
        cfg.launcher = _SubmittedBeforehand(**vars(slurm_resources({}, cfg.launcher.num_threads)))
        cfg.backend.port = _check_beforehand(cfg, remote.tcp_port)


class _SubmittedBeforehand(SubmititLauncherConfig):
    """Jobs that wait already, see `collectx.run.submitted.Beforehand`."""


def _check_beforehand(cfg: RunConfig, tcp_port: int | None) -> int | None:
    """Whether what was submitted beforehand is what `cfg` wants; returns the port to listen at.

    Raises:
        ConfigError: it is not, or nothing was submitted.
    """
    there = Beforehand.from_environment()
    if there is None:
        raise ConfigError(
            [
                "launcher='submitit_delayed': no jobs were submitted for this process: decorate the main function with "
                "collectx.submitit_delayed_launcher, or use launcher='submitit'."
            ]
        )
    problems = []
    if there.num_workers != cfg.collector.num_workers:
        problems.append(
            f"{cfg.collector.num_workers} workers, but submitit_delayed_launcher(num_jobs={there.num_workers}): "
            "give both the same number."
        )
    if there.backend != cfg.backend.kind:
        problems.append(
            f"backend={cfg.backend.kind!r}, but submitit_delayed_launcher(backend={there.backend!r}): "
            "give both the same."
        )
    if cfg.collector.on_worker_failure == "restart":
        problems.append(
            "on_worker_failure='restart': with launcher='submitit_delayed' no job may be submitted in the place of one "
            "that is gone: use 'raise' or 'drop'."
        )
    if problems:
        raise ConfigError(problems)
    return there.tcp_port if tcp_port is None else tcp_port


def _jobs(
    stack: contextlib.ExitStack, cfg: RunConfig, create: Sequence[EnvConfig], remote: Nested
) -> tuple[Place | None, Callable[..., None]]:
    """Where the workers come up that are SLURM jobs, until `stack` is closed; and what writes events down."""
    if isinstance(cfg.launcher, _SubmittedBeforehand):
        beforehand = Beforehand.from_environment()
        assert beforehand is not None
        events = EventLog(beforehand.files())
        stack.callback(events.close)
        return waiting_workers(cfg, beforehand, create), events
    if cfg.launcher.kind != "submitit":
        return None, lambda name, **fields: None
    if problems := rules.launcher_problems(cfg):
        raise ConfigError(problems)
    assert isinstance(remote, Remote)
    files = new_folder() if remote.folder is None else RunFolder(remote.folder)
    files.begin()
    events = EventLog(files)
    stack.callback(events.close)
    return stack.enter_context(submitted_workers(cfg, files, lambda text: events("jobs", message=text), create)), events
