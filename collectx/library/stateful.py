"""The state of a collector: `state_dict` and `load_state_dict`. Base class of `collectx.library.collectors`, in the
trainer's process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tensordict import TensorDictBase
from torch import nn

from collectx.batch import POLICY_VERSION
from collectx.library.base import BaseCollector


class StatefulCollector(BaseCollector):
    """Saves and restores the state of its `Collector` under TorchRL's names, with the policy by names of parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the state: the policy's weights, counts of frames and batches and, for each worker, its
        trajectory ids and the state of its envs and, if it is a process of this machine, its weights and their version.
        Blocks until the workers have filled the slots that were granted before; the state does not have these frames.
        """
        weights = self.policy.state_dict() if isinstance(self.policy, nn.Module) else {}
        with self._exclusive():
            saved = self._collector.state()
        state: dict[str, Any] = {
            "policy_state_dict": {name: value.clone() for name, value in weights.items()},
            "frames": saved["frames"],
            "iter": saved["batches"],
            "policy_version": saved["version"] + self._delivery.version_offset,
            **{f"worker{index}": each for index, each in saved["workers"].items()},
        }
        if self._collector.can_ask("weights"):
            per_worker = dict.fromkeys(self._weights.individual.intersection(self._collector.workers), ())
            individual = self._ask("weights", per_worker=per_worker)
            versions = self._weights.versions
            for index in saved["workers"]:
                state[f"worker{index}"] |= {
                    "policy_state_dict": individual.get(index, state["policy_state_dict"]),
                    "is_individual": index in individual,
                    "policy_version": versions.get(index, versions[None]) + self._delivery.version_offset,
                }
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Restores a state: loads and publishes the weights, sets their version and the counts, restores the envs. The
        collector must be constructed with the same arguments. Workers with individual weights that are not in the state
        keep theirs.

        Envs resume within their episodes where their state can be saved (`collectx.state`): those that have
        `state_dict` and `load_state_dict`, and those that can be pickled, which are made anew. Their pickles execute
        code: load only states that you trust. All other envs begin new episodes with seeds that were not used before.
        Async workers first complete the batches granted before.

        Raises:
            KeyError: the dict is not the state of a collector.
        """
        if missing := sorted({"policy_state_dict", "frames"} - set(state_dict)):
            raise KeyError(f"the state lacks {', '.join(missing)}: pass the result of state_dict()")
        workers = self._collector.workers
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
                # In one call, so that no worker acts with the weights of another in between.
                shared = [index for index in workers if index not in kept and index not in individual]
                if by_worker := {**dict.fromkeys(shared), **individual}:
                    self.update_policy_weights_(by_worker)
                self._weights.individual.difference_update(shared)
        version = state_dict.get("policy_version", self._collector.policy_version)
        self._delivery.version_offset = offset = version - self._collector.policy_version
        if (buffer := self._keywords.shared_buffer) is not None:
            write = partial(_write, buffer.extend, offset)
            self._ask("set_hook", "write_batch", write)
            for fields in self._overrides:  # for workers that are started again
                fields.hooks = replace(fields.hooks, write_batch=write)
        state = {
            "frames": state_dict["frames"],
            "batches": state_dict.get("iter", 0),
            "frames_by_worker": {},
            "undelivered": [],
            "lives": {worker.index: worker.incarnation for worker in self._collector.pool.records},
            "workers": saved,
        }
        with self._exclusive():
            self._collector.load(state, self._cfg.seed)


def _write(extend: Callable[[TensorDictBase], Any], version_offset: int, batch: TensorDictBase) -> None:
    """In a worker: calls `extend` with the batch, its policy versions increased by the offset."""
    batch = batch.clone(recurse=False)
    batch[POLICY_VERSION] = batch[POLICY_VERSION] + version_offset
    extend(batch)
