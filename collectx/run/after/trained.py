"""Rebuilds the policy of a run from its run folder: `collectx.load_policy`.

    policy.pt                       the state dict of the policy, written at the end of the run
    checkpoints/<batches>/state.pt  the weights of a run that has not ended, or was killed

Users' scripts and commands use it after a run.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import Leaf, as_key
from collectx.checkpoints import STATE, Checkpoint, Checkpoints
from collectx.config.problem import did_you_mean, page
from collectx.config.schema.run import RunConfig
from collectx.env.base import Env, EnvSpec
from collectx.env.observation import ACTION_MASK, ObservationLeaves
from collectx.env.spaces import SpaceLeaves, numpy_dtype
from collectx.errors import ConfigError, DamagedFileError, DataError, misfit_of, summary_of
from collectx.policy.base import Actor
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.flat_weights import FlatWeights, not_finite
from collectx.policy.recurrent import StateSpec
from collectx.policy.stochastic import StochasticPolicy
from collectx.policy.user_actor import UserActor
from collectx.random_state import preserve_random_state
from collectx.rollout.wrappers import RolloutOptions
from collectx.run.after import foreign_code
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.saved_config import read_config, run_config
from collectx.run.preflight import missing_device

# The number of calls with one observation, after which a policy that always returns the same action counts as greedy.
_NUM_CALLS = 32


def not_greedy(kind: ExplorationType) -> str:
    """Returns a text about a policy that samples although its exploration type is `kind`."""
    return (
        f"the policy returned several actions for one observation with exploration_type={kind.value}: it samples, or "
        "has a state of its own. A policy reads how to act from tensordict.nn.probabilistic.interaction_type(). See "
        f"the section 'The exploration type': {page('policies')}"
    )


def load_policy(
    run_dir: str | os.PathLike[str],
    deterministic: bool = True,
    device: torch.device | str = "cpu",
    trust: bool = False,
    weights: str = "newest",
) -> LoadedPolicy:
    """Returns the policy of a run, with the last published weights if the run has ended, otherwise with those of its
    newest checkpoint. It creates and closes an env of the run to read the spaces. Warns (`UserWarning`) if weights are
    not finite, or if a greedy policy returns several actions for one observation.

    Args:
        run_dir: the run folder.
        deterministic: True: act greedily, with the module in evaluation mode (`nn.Module.eval`) and the exploration
            type DETERMINISTIC, which your own policy has to follow. False: act as in the run
            (`collector.exploration_type`).
        device: the device of the policy.
        trust: whether to load a folder of another user, whose configuration names code that is imported and called.
        weights: "newest", or "best": those of the checkpoint that `checkpoint.keep_best` kept.

    Raises:
        ConfigError: the folder contains no run or no such weights, its configuration is wrong, or it belongs to another
            user.
    """
    run_folder = RunFolder(run_dir)
    cfg = run_config(run_folder)
    foreign_code.check(run_folder, cfg, trust)
    if reason := missing_device(str(device)):
        raise ConfigError(f"device={str(device)!r} cannot be used: {reason}")
    kind = "deterministic" if deterministic else cfg.collector.exploration_type
    loaded = LoadedPolicy.of(run_folder, cfg, ExplorationType(kind), torch.device(device), weights)
    for text in loaded.warnings():
        warnings.warn(text, stacklevel=2)
    return loaded


class LoadedPolicy:
    """A trained policy, which you call with observations; see `load_policy`.

    Attributes:
        module: the policy: an `nn.Module`, another callable, or None for random actions.
        spec: the leaves and spaces for which the policy was built.
        device: where the policy computes.
        leaves: the observation leaves that a call needs, each with its key and `shape`.
    """

    def __init__(
        self,
        module: Callable | None,
        spec: EnvSpec,
        kind: ExplorationType,
        device: torch.device,
        flatten: Callable[[Any], list[Any]] | None = None,
        reads: Sequence[Any] = (),
    ):
        """See `load_policy`.

        Args:
            flatten: converts an observation of the env to the values of `spec.inputs`; None: an observation is a single
                value.
            reads: keys that the policy reads in addition to `spec.inputs`.
        """
        self.module = module
        self.device = device
        keys = {as_key(key) for key in reads}
        self.leaves = tuple(leaf for leaf in spec.observation if leaf in spec.inputs or leaf.key in keys)
        first = {key: value[:1] for key, value in spec.example_observation.items()}
        self.spec = dataclasses.replace(spec, observation=self.leaves, batch_shape=(), example_observation=first)
        self._kind = kind
        self._flatten = flatten
        self._actors: dict[int, Actor] = {}
        self._states: list[torch.Tensor] = []

    def __repr__(self) -> str:
        parts = [
            "random actions" if self.module is None else f"policy {type(self.module).__name__}",
            *(f"{'.'.join(leaf.key)} {[*leaf.shape]}" for leaf in self.leaves),
            f"exploration_type={self._kind.value}",
            str(self.device),
        ]
        return f"<{type(self).__name__}: {', '.join(parts)}>"

    @classmethod
    def of(
        cls, run_folder: RunFolder, cfg: RunConfig, kind: ExplorationType, device: torch.device, weights: str = "newest"
    ) -> LoadedPolicy:
        """Returns the policy of the run in a trusted folder."""
        flatten: Callable[[Any], list[Any]] | None = None

        def examine(group: Env) -> None:
            nonlocal flatten
            if (space := _observation_space(group)) is not None:
                flatten = ObservationLeaves(space, getattr(cfg.env, "exclude_keys", ())).flatten

        module, _, spec = build(cfg, examine)
        load_weights(run_folder, module, weights)
        if isinstance(module, nn.Module) and kind is ExplorationType.DETERMINISTIC:
            module.eval()
        reads = [key for name in ("in_keys", "observation_keys") for key in getattr(module, name, None) or ()]
        return cls(module, spec, kind, device, flatten, reads)

    def __call__(self, observation: Any) -> Any:
        """Returns the action for one observation, or the actions for a batch of observations.

        Args:
            observation: an observation as the env returns it: an array or tensor `[*shape]`, or `[B, *shape]` for a
                batch; a dict or tuple of these for a Dict or Tuple space. Or a TensorDict with the keys of `leaves`.
                Arrays may be views in any order, such as flipped images, and are copied.

        Returns:
            The action in the form that the env's `step` takes: arrays `[*shape]` or `[B, *shape]`; tensors if you pass
            a TensorDict.

        Raises:
            DataError: the observation does not have the shape of the env's observations, or does not contain real
                numbers.
        """
        is_dict = isinstance(observation, TensorDictBase)
        values = [observation[leaf.key] for leaf in self.leaves] if is_dict else self._values(observation)
        tensors = [_tensor(v, leaf).to(self.device, leaf.dtype) for v, leaf in zip(values, self.leaves, strict=True)]
        size = tuple(tensors[0].shape[: tensors[0].ndim - len(self.leaves[0].shape)]) if tensors else ()
        rows = [_row(tensor, leaf, size) for tensor, leaf in zip(tensors, self.leaves, strict=True)]
        num_rows = size[0] if size else 1
        self._actor(num_rows)  # an actor cannot be made in inference mode
        if not self._states or len(self._states[0]) != num_rows:
            self._states = [state.clone() for state in self._first_states(num_rows)]
        with torch.inference_mode():
            outputs = self.act([*rows, *self._states], num_rows)
        # Copies, as the next call may overwrite the outputs.
        shapes = [(*size, *leaf.shape) for leaf in self.spec.action]
        actions = [value.reshape(shape).clone() for value, shape in zip(outputs, shapes, strict=False)]
        for kept, state in zip(self._states, outputs[len(shapes) :], strict=True):
            kept.copy_(state)
        if is_dict:
            return actions[0] if len(actions) == 1 else actions
        arrays = [value.numpy(force=True)[()] for value in actions]
        return arrays[0] if len(arrays) == 1 else SpaceLeaves(self.spec.action_space, ("action",)).nest(arrays)

    def reset(self, ended: Any = None) -> None:
        """Begins new episodes: resets the state of a recurrent policy. Other policies have none.

        Args:
            ended: `[B]` bool, the rows of the batch whose episodes end; None: all.
        """
        if ended is None:
            self._states = []
        elif self._states:
            rows = torch.as_tensor(ended, device=self.device)
            for state, first in zip(self._states, self._first_states(len(rows)), strict=True):
                state[rows] = first[rows]

    @property
    def states(self) -> list[StateSpec]:
        """The states that a recurrent policy carries from step to step."""
        return [state for state in self._actor(1).states if state.initial is not None]

    def act(self, inputs: Sequence[torch.Tensor], rows: int, any_rows: bool = False) -> tuple[torch.Tensor, ...]:
        """Returns the actions `[B, *shape]` and next states for observations and states `[B, *shape]` on `device`, in
        the order of `leaves` and `states`; B is `rows`. The next call may overwrite the result.

        Args:
            any_rows: whether the result must be right for any number of rows, as in a graph that is exported; the
                outputs of a user's policy are then passed on as they are.
        """
        actor = self._actor(rows)
        with exploration(self._kind):
            if any_rows and isinstance(actor, UserActor):
                values = actor.plan.run(inputs)
                outputs = [values[i].to(leaf.dtype) for i, leaf in zip(actor.plan.numbers, actor.leaves, strict=True)]
            else:
                outputs = [*actor.act(inputs)]
        written = dict(zip(actor.leaves, outputs, strict=True))
        # The only state that a policy reads but does not write is `is_init`, which is zero after the first step.
        following = [
            written[state.leaf.under("next")] if state.is_written else torch.zeros_like(old)
            for state, old in zip(self.states, inputs[len(self.leaves) :], strict=True)
        ]
        return (*outputs[: len(self.spec.action)], *following)

    def example(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Returns first observations, or zeros, and first states, as `act` takes them for a number of rows."""
        self._actor(rows)
        first = self.spec.example_observation
        # Where all actions are legal.
        others = {
            leaf.key: torch.full((1, *leaf.shape), leaf.key[-1] == ACTION_MASK).to(leaf.dtype) for leaf in self.leaves
        }
        observations = [first.get(leaf.key, others[leaf.key]).to(self.device) for leaf in self.leaves]
        tensors = [each.repeat(rows, *[1] * (each.ndim - 1)) for each in observations]
        return (*tensors, *(state.clone() for state in self._first_states(rows)))

    def warnings(self) -> list[str]:
        """Returns what a user should know of the weights and the actions; calls the user's policy some times."""
        texts = [] if (what := not_finite(self.module)) is None else [f"{what}, so its actions have no meaning."]
        if self._kind is not ExplorationType.RANDOM and self.samples():
            texts.append(not_greedy(self._kind))
        return texts

    def samples(self) -> bool:
        """Whether a user's policy returns several actions for one first observation, in `_NUM_CALLS` calls."""
        if self.module is None or policies.is_random_policy(self.module) or isinstance(self.module, StochasticPolicy):
            return False
        example, num_actions = self.example(1), len(self.spec.action)
        with torch.inference_mode(), preserve_random_state([self.device] if self.device.type == "cuda" else []):
            calls = (self.act([each.clone() for each in example], 1) for _ in range(_NUM_CALLS))
            actions = ([each.clone() for each in outputs[:num_actions]] for outputs in calls)
            first = next(actions)
            return any(not torch.equal(a, b) for other in actions for a, b in zip(first, other, strict=True))

    def _values(self, observation: Any) -> list[Any]:
        if self._flatten is not None and isinstance(observation, torch.Tensor):
            # Indexed by a name, a tensor makes torch warn before it raises.
            observation = observation.numpy(force=True)
        values = [observation] if self._flatten is None else self._flatten(observation)
        if len(values) != len(self.leaves):
            keys = ", ".join(".".join(leaf.key) for leaf in self.leaves)
            raise DataError(f"the policy reads {keys}. Call it with a TensorDict that contains these keys.")
        return values

    def _actor(self, rows: int) -> Actor:
        if rows not in self._actors:
            spec = dataclasses.replace(self.spec, num_envs=rows)
            self._actors[rows] = policies.make_actor(self.module, spec, self.device, self._kind)
        return self._actors[rows]

    def _first_states(self, rows: int) -> list[torch.Tensor]:
        firsts = [state.initial for state in self.states if state.initial is not None]
        return [first.expand(rows, *first.shape).to(self.device) for first in firsts]


def build(
    cfg: RunConfig,
    examine: Callable[[Env], object] = lambda group: None,
    limit: AbstractContextManager[None] | None = None,
) -> tuple[Callable | None, EnvSpec, EnvSpec]:
    """Returns the policy of a configuration on the CPU, with its first weights; the spec of its envs, and the spec as
    policies see it, with what `cfg.collector` adds.

    Args:
        examine: see `collectx.env.read_spec`.
        limit: limits the time in which the env is made; None: no limit.
    """
    with limit or nullcontext():
        spec = envs.read_spec(cfg.env, policies.is_user_policy(cfg.policy), examine)
    seen = RolloutOptions.of(cfg.collector).env_spec(spec)
    policy = policies.build(cfg.policy, spec, cfg.seed)
    # A lazy module creates its tensors in the first call.
    policies.make_actor(policy, seen, torch.device("cpu"), ExplorationType.RANDOM)
    return policy, spec, seen


def load_weights(run_folder: RunFolder, module: Any, weights: str = "newest") -> int | None:
    """Copies weights of a run into its policy; does nothing for a policy without weights. Returns the number of batches
    after which the run had them; None if that is unknown.

    Args:
        weights: "newest", or "best", see `checkpoint.keep_best`.

    Raises:
        ConfigError: the folder contains no such weights, or they cannot be read.
    """
    if weights not in ("newest", "best"):
        raise ConfigError(f"weights={weights!r} is unknown{did_you_mean(weights, ('newest', 'best'))}")
    if not isinstance(module, nn.Module):
        return None
    checkpoints = Checkpoints(run_folder.checkpoints)
    if weights == "best":
        if (best := checkpoints.best()) is None:
            why, advice = "", "Use weights=newest."
            if name := (read_config(run_folder.newest_config).get("checkpoint") or {}).get("keep_best"):
                why = f", because it has no checkpoint with a value of {name} (checkpoint.keep_best)"
            else:
                advice += " To keep a best one, train with checkpoint.keep_best=mean_return."
            raise ConfigError(f"{run_folder.path} contains no best checkpoint{why}. {advice}")
        try:
            weights_of_best = _weights(Checkpoint(best, [STATE]))
        except DamagedFileError as error:
            raise DamagedFileError(f"{error.problems[0]}. Restore it from a copy, or use weights=newest.") from error
        FlatWeights(module).read(weights_of_best)
        return checkpoints.number(best)
    if run_folder.policy.is_file():
        try:
            weights_of_run = torch.load(run_folder.policy, map_location="cpu", weights_only=True)
        except Exception as error:
            why = summary_of(error).splitlines()[0].partition(". ")[0].rstrip(".")
            raise DamagedFileError(
                f"{run_folder.policy} cannot be loaded: {why}. It is damaged. Restore it from a copy, or "
                "delete it to use the weights of the newest checkpoint."
            ) from error
        try:
            module.load_state_dict(weights_of_run)
            return (run_folder.read_result() or {}).get("batches")
        except Exception as error:
            if isinstance(error, RuntimeError):
                raise ConfigError(
                    f"the weights in {run_folder.policy} do not fit the policy. Leave out overrides that change the "
                    f"policy or the spaces of the env, or restore the code of the run ({misfit_of(error)})."
                ) from error
            raise DamagedFileError(
                f"{run_folder.policy} cannot be loaded: {summary_of(error)}. Restore it from a copy, or repeat the run."
            ) from error
    found, problems = checkpoints.newest(lambda each: (_weights(each), checkpoints.number(each.path)), [STATE])
    if found is None:
        advice = "A run saves them at its end, and in each checkpoint (checkpoint.every_batches, checkpoint.every_min)."
        missing = f"{run_folder.path} contains no policy weights. {advice}"
        raise ConfigError(checkpoints.no_intact(problems) if problems else missing)
    flat, batches = found
    FlatWeights(module).read(flat)
    return batches


def statistics_of_normalizers(run_folder: RunFolder, weights: str) -> list[dict[str, Any]]:
    """Returns the statistics of the wrappers around an env of the run, the first one of its first worker, from the
    newest checkpoint, or from the best one; see `collectx.env.wrappers.statistics_of`. Empty if there are none."""
    checkpoints = Checkpoints(run_folder.checkpoints)
    if weights == "best":
        best = checkpoints.best()
        return [] if best is None else _normalizers(Checkpoint(best, [STATE]))
    return checkpoints.newest(_normalizers, [STATE])[0] or []


def _normalizers(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    workers = checkpoint.load(mmap=True)["collector"]["workers"]
    return next((workers[index].get("normalizers", []) for index in sorted(workers)), [])


def _weights(checkpoint: Checkpoint) -> torch.Tensor:
    return checkpoint.load(mmap=True)["collector"]["weights"]


def _observation_space(group: Env) -> spaces.Space | None:
    """Returns the space of the envs' observations; None for envs of TorchRL, which have specs."""
    if not group.user_envs:
        return group.spec.observation_space
    first = group.user_envs[0]
    space = getattr(first, "single_observation_space", getattr(first, "observation_space", None))
    return space if isinstance(space, spaces.Space) else None


def _tensor(value: Any, leaf: Leaf) -> torch.Tensor:
    """Returns an observation as a tensor. Torch itself takes no array that is flipped, of another byte order, or of
    Python's numbers, and warns of one that is read-only."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    try:
        if array.dtype.kind in "biufO":
            return torch.from_numpy(np.array(array, numpy_dtype(leaf), order="C"))
    except (TypeError, ValueError):
        pass
    raise DataError(
        f"{'.'.join(leaf.key)} is an array of {array.dtype}, which cannot be converted to {leaf.dtype}. Pass an "
        "observation of the env."
    )


def _row(tensor: torch.Tensor, leaf: Leaf, size: tuple[int, ...]) -> torch.Tensor:
    if len(size) > 1 or tuple(tensor.shape) != (*size, *leaf.shape):
        batch = f"[{', '.join(map(str, ('B', *leaf.shape)))}]"
        raise DataError(
            f"{'.'.join(leaf.key)} must have shape {list(leaf.shape)}, or {batch} for a batch, but has shape "
            f"{list(tensor.shape)}. Pass an observation of the env."
        )
    return tensor.reshape(size[0] if size else 1, *leaf.shape)
