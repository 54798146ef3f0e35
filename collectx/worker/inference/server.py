"""The inference server (`inference=server`) calls the policy for the envs of all workers on its machine. It reads
observations in the workers' slots, and writes actions there, computed with the newest weights.

    requests --order--> observations of many slots --one call of the policy--> actions in these slots --> replies

Runs in a separate process, which the trainer starts and watches like a worker.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch

from collectx import policy as policies
from collectx.batch import POLICY_VERSION, PerSlot, Slot, as_array
from collectx.config.derived import acts_in_fixed_order
from collectx.config.schema.collector import ServerInferenceConfig
from collectx.env.base import EnvSpec
from collectx.policy.base import Actor
from collectx.policy.flat_weights import FlatWeights
from collectx.policy.recurrent import spec_with_states
from collectx.rollout.inference import Inference, make_inference
from collectx.state import load_generators, save_generators
from collectx.transport.base import Request
from collectx.transport.inference_channel import NO_STEP, ActionRequest, InferenceServerEnd
from collectx.transport.shared_memory import SharedMemoryLink
from collectx.user_objects import Sealed
from collectx.worker.slot_loop import reported
from collectx.worker.spec import ProcessSpec, seed_policy

# A worker, and one of its env groups.
Member = tuple[int, int]


class Order(Protocol):
    """The order in which the server answers requests."""

    def add(self, request: ActionRequest) -> None:
        """Records a new request."""

    def drop(self, worker: int) -> None:
        """Removes a worker that is gone and not replaced."""

    def take(self) -> Sequence[ActionRequest]:
        """Returns and removes the requests for the next policy call; empty: wait for more."""

    def wait_s(self) -> float | None:
        """Returns the seconds after which `take` may return requests even if no more arrive; None: never."""


class FixedOrder:
    """Acts for all members in worker order, whatever the order of their requests, so that a seed gives the same
    actions. The members form two halves, which alternate: one steps while the policy acts for the other. A batch begins
    when all members have ended the previous one."""

    def __init__(self, members: Sequence[Member]):
        has_groups = any(group for _, group in members)
        # For each member of each half, its unanswered requests; none while the member steps.
        self._halves: list[dict[Member, deque[ActionRequest]]] = [
            {(worker, group): deque() for worker, group in members if (group if has_groups else worker) % 2 == half}
            for half in range(2)
        ]
        self._turn = 0

    def add(self, request: ActionRequest) -> None:
        for half in self._halves:
            if (waiting := half.get((request.worker, request.group))) is None:
                continue
            if waiting and waiting[-1].incarnation < request.incarnation:
                # The old process is gone. Its NO_STEP request stays, because it had completed that batch.
                ended = [each for each in waiting if each.step == NO_STEP]
                waiting.clear()
                waiting.extend(ended)
            waiting.append(request)

    def drop(self, worker: int) -> None:
        for half in self._halves:
            for member in [member for member in half if member[0] == worker]:
                del half[member]

    def take(self) -> Sequence[ActionRequest]:
        for _ in range(4):  # the halves of this batch, and of the next one
            waiting = self._halves[self._turn].values()
            if not all(waiting):
                return ()
            self._turn = 1 - self._turn
            if taken := [each.popleft() for each in waiting if each[0].step != NO_STEP]:
                return taken
            others = self._halves[self._turn].values()
            if all(each and each[0].step == NO_STEP for each in others):
                for each in (*waiting, *others):
                    each.popleft()
                self._turn = 0
        return ()

    def wait_s(self) -> float | None:
        return None


class ReadyOrder:
    """Acts for waiting members in the order in which their requests arrived.

    Args:
        sizes: number of envs in each env group of a worker.
        min_batch, timeout_s, max_batch: options of the config group `inference`. A call contains at least one env
            group, and groups are not split.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        min_batch: int,
        timeout_s: float,
        max_batch: int | None,
        clock: Callable[[], float] = monotonic,
    ):
        self._sizes, self._min_batch, self._timeout_s, self._max_batch = sizes, min_batch, timeout_s, max_batch
        self._clock = clock
        self._waiting: dict[Member, tuple[ActionRequest, float]] = {}

    def add(self, request: ActionRequest) -> None:
        member = request.worker, request.group
        self._waiting.pop(member, None)
        if request.step != NO_STEP:
            self._waiting[member] = request, self._clock()

    def drop(self, worker: int) -> None:
        for member in [member for member in self._waiting if member[0] == worker]:
            del self._waiting[member]

    def take(self) -> Sequence[ActionRequest]:
        num_envs = sum(self._sizes[group] for _, group in self._waiting)
        if num_envs < self._min_batch and self.wait_s() != 0:
            return ()
        taken: list[ActionRequest] = []
        num_envs = 0
        for request, _ in self._waiting.values():
            num_envs += self._sizes[request.group]
            if taken and self._max_batch is not None and num_envs > self._max_batch:
                break
            taken.append(request)
        for request in taken:
            del self._waiting[request.worker, request.group]
        return taken

    def wait_s(self) -> float | None:
        first = next(iter(self._waiting.values()), None)
        return None if first is None else max(0.0, first[1] + self._timeout_s - self._clock())


def run_inference_server(
    specs: Sealed[tuple[ProcessSpec, EnvSpec]], link: SharedMemoryLink, requests: InferenceServerEnd
) -> None:
    """Runs the server's process. Returns when the trainer stops it. Reports an error to the trainer, then raises it.
    `specs` is the server's process spec, and the env spec of one worker."""
    with reported(link):
        InferenceServer(*specs.open(), link, requests).run()


class InferenceServer:
    """Calls the policy for all workers; see the module's docstring. `env_spec` is the spec of one worker's envs,
    without the states of a recurrent policy."""

    def __init__(self, spec: ProcessSpec, env_spec: EnvSpec, link: SharedMemoryLink, requests: InferenceServerEnd):
        cfg = spec.cfg
        self._link, self._requests, self._spec = link, requests, spec
        seed_policy(cfg.seed, spec.placement)
        self._exploration = policies.ExplorationType(cfg.collector.exploration_type)
        self._env_spec = replace(env_spec, is_single=False, batch_shape=())
        self._policy = policies.build(cfg.policy, env_spec, cfg.seed)
        actor = self._make_actor(spec.num_envs)
        weights = FlatWeights(actor.module)
        weights.adopt()
        self._read, self._version = weights.read, spec.first_version
        self._leaves = actor.leaves
        # The inferences and their output arrays, by the number of envs in a call.
        self._inferences: dict[int, tuple[Inference, list[np.ndarray]]] = {}
        observed = spec_with_states(env_spec, actor.states).observation
        self._keys = [leaf.key for leaf in observed], [leaf.key for leaf in actor.leaves]
        num_workers = link.slot_spec.num_workers
        self._slots = [PerSlot(partial(self._views, link.slots_of(worker))) for worker in range(num_workers)]
        self._rows = spec.groups
        self._order = _order(spec, num_workers)

    def _views(self, slots: PerSlot[Slot], index: int) -> _Views:
        return _Views(slots[index], *self._keys)

    def run(self) -> None:
        """Answers requests until the trainer closes the connection or is gone."""
        poll, trainer = select.poll(), self._link.fileno()
        for descriptor in (trainer, self._requests.fileno()):
            poll.register(descriptor, select.POLLIN)
        with torch.inference_mode(), policies.exploration(self._exploration):
            while True:
                wait_s = self._order.wait_s()
                ready = {descriptor for descriptor, _ in poll.poll(None if wait_s is None else 1000 * wait_s)}
                if trainer in ready:
                    message = self._link.acquire()
                    if not isinstance(message, Request):
                        return
                    self._reply(message)
                    continue
                if ready:
                    for request in self._requests.receive():
                        self._order.add(request)
                while taken := self._order.take():
                    self._act(taken)

    def _act(self, requests: Sequence[ActionRequest]) -> None:
        """Writes actions and policy version for these requests, and tells their workers."""
        # With `SlotSpec.grants_name_version`, all requests of a batch contain the same pointer.
        self._link.pointer = requests[0].pointer
        self._version = self._link.refresh(self._read, self._version)
        places = [(self._slots[each.worker][each.slot], self._rows[each.group], each.step) for each in requests]
        seen = [views.seen(rows, step) for views, rows, step in places]
        written = [views.written(rows, step) for views, rows, step in places]
        sizes = [rows.stop - rows.start for _, rows, _ in places]
        infer, outputs = self._inference(sum(sizes))
        if len(requests) == 1:
            infer(seen[0], written[0])
        else:
            infer([torch.cat(parts) for parts in zip(*seen, strict=True)], outputs)
            start = 0
            for size, arrays in zip(sizes, written, strict=True):
                for array, values in zip(arrays, outputs, strict=True):
                    array[...] = values[start : start + size]
                start += size
        for request, (views, rows, step) in zip(requests, places, strict=True):
            views.versions[rows, step] = self._version
            self._requests.reply(request)

    def _inference(self, num_envs: int) -> tuple[Inference, list[np.ndarray]]:
        """Returns the inference for `num_envs` envs, and memory for its outputs."""
        if num_envs not in self._inferences:
            actor = self._make_actor(num_envs)
            spec = replace(spec_with_states(self._env_spec, actor.states), num_envs=num_envs)
            outputs = [as_array(torch.zeros((num_envs, *leaf.shape), dtype=leaf.dtype)) for leaf in self._leaves]
            self._inferences[num_envs] = make_inference(actor, spec), outputs
        return self._inferences[num_envs]

    def _make_actor(self, num_envs: int) -> Actor:
        # A call acts for several env groups; the first observation of one env stands for those of all.
        first = {key: value[:1] for key, value in self._env_spec.example_observation.items()}
        spec = replace(self._env_spec, num_envs=num_envs, example_observation=first)
        device = torch.device(self._spec.policy_device or "cpu")
        with torch.inference_mode(False):
            return policies.configured_actor(self._spec.cfg, self._policy, spec, device)[0]

    def _reply(self, request: Request) -> None:
        reply: Any = None
        if request.name == "state":
            # In the form of a worker's state, but without envs.
            reply = {"rollout": {}, "generators": save_generators()}
        elif request.name == "load":
            load_generators(request.arguments[0]["generators"])
        elif request.name == "drop":
            self._order.drop(*request.arguments)
            for taken in iter(self._order.take, ()):
                self._act(taken)
        elif request.name == "seed":
            (seed,) = request.arguments
            seed_policy(seed, self._spec.placement)
        self._link.reply(reply)


class _Views:
    """The tensors of one slot that the policy reads, and the arrays that receive its outputs."""

    def __init__(self, slot: Slot, observed: Sequence[tuple[str, ...]], written: Sequence[tuple[str, ...]]):
        arrays = slot.arrays()
        self._observed = [slot.tensors[key] for key in observed]
        self._written = [arrays[key] for key in written]
        self.versions = arrays[POLICY_VERSION]

    def seen(self, rows: slice, step: int) -> list[torch.Tensor]:
        return [tensor[rows, step] for tensor in self._observed]

    def written(self, rows: slice, step: int) -> list[np.ndarray]:
        return [array[rows, step] for array in self._written]


def _order(spec: ProcessSpec, num_workers: int) -> Order:
    cfg = spec.cfg
    assert isinstance(cfg.inference, ServerInferenceConfig)
    if acts_in_fixed_order(cfg):
        return FixedOrder([(worker, group) for worker in range(num_workers) for group in range(len(spec.groups))])
    options, sizes = cfg.inference, [rows.stop - rows.start for rows in spec.groups]
    return ReadyOrder(sizes, options.min_batch, options.timeout_s, options.max_batch)
