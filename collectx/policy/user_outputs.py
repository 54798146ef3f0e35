"""What a user's policy writes: checked once against the env's spaces, then converted in every call. Used by
`collectx.policy.user_actor`, in the worker's process.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, ShapeError
from collectx.policy.calls import Outputs, key_names


@dataclass(frozen=True)
class Output:
    """An output of the policy.

    Attributes:
        shape: that `act` returns, with the group's dimensions.
        is_reshaped: whether the policy's own shape is another one: of envs in several dimensions, or an action with
            more or fewer last dimensions of size 1.
        is_choice: whether the action is one-hot, and the policy returns its index, or a score for each action.
    """

    leaf: Leaf
    shape: tuple[int, ...]
    is_reshaped: bool
    is_action: bool
    is_choice: bool = False

    def convert(self, value: torch.Tensor) -> torch.Tensor:
        """A later output in the dtype of the leaf. Raises ShapeError where that changes it."""
        dtype = self.leaf.dtype
        if self.is_choice:
            return _one_hot(value, self.leaf, self.shape)
        if value.shape != self.shape or not (self.is_action or torch.can_cast(value.dtype, dtype)):
            raise ShapeError(
                f"the policy returned {key_names([self.leaf.key])} of shape {list(value.shape)}, {value.dtype}, but of "
                f"shape {list(self.shape)}, {dtype} in its first call: an output has one shape and dtype."
            )
        return _cast(value, self.leaf) if self.is_action else value.to(dtype)


def read_outputs(outputs: Outputs, spec: EnvSpec) -> list[Output]:
    """The records of a policy's first outputs, actions first.

    Raises:
        ConfigError, ShapeError: see `UserActor`.
    """
    actions = {leaf.key: leaf for leaf in spec.action}
    missing = [key for key in actions if key not in outputs]
    if missing:
        raise ConfigError(
            [
                f"the env takes its action from {key_names(missing)}, but the policy wrote {key_names(outputs)}: "
                "change its out_keys."
            ]
        )
    size, dims = spec.policy_shape, len(spec.policy_shape)
    observed = {leaf.key: leaf for leaf in spec.observation}
    records = []
    for key in (*actions, *(key for key in outputs if key not in actions)):
        value, name, is_action = outputs[key], key_names([key]), key in actions
        if not isinstance(value, torch.Tensor):
            raise ShapeError(f"the policy returned {type(value).__name__} for {name}, not a tensor")
        if value.shape[:dims] != size:
            raise ShapeError(
                f"the policy returned {name} of shape {list(value.shape)} for observations of batch size {list(size)}: "
                f"expected {[*size, '...']}"
            )
        shape = tuple(value.shape[dims:])
        leaf = actions.get(key, Leaf(key, shape, value.dtype))
        if is_action and _is_choice(value, shape, leaf, spec):
            whole = (size if dims <= 1 else (spec.num_envs,)) + leaf.shape
            _one_hot(value, leaf, whole)
            records.append(Output(leaf, whole, False, True, is_choice=True))
            continue
        if _without_last_ones(shape) != _without_last_ones(leaf.shape):
            hint = " For a discrete action return its index (argmax), not logits or one-hot." if not leaf.shape else ""
            raise ShapeError(
                f"the policy returned {name} of shape {list(value.shape)}, but the action space demands "
                f"{[*size, *leaf.shape]}.{hint}"
            )
        if is_action:
            _cast(value, leaf)
        elif (seen := observed.get(key, leaf)) != leaf:
            raise ShapeError(
                f"the policy overwrites {name}, which the env observes as {list(seen.shape)} {seen.dtype}, with "
                f"{list(shape)} {leaf.dtype}: a batch has one shape and dtype for both: write it under another key."
            )
        is_reshaped = dims > 1 or shape != leaf.shape
        records.append(Output(leaf, ((spec.num_envs,) if is_reshaped else size) + leaf.shape, is_reshaped, is_action))
    return records


def _without_last_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape[-1:] == (1,):
        shape = shape[:-1]
    return shape


def _is_choice(value: torch.Tensor, shape: tuple[int, ...], leaf: Leaf, spec: EnvSpec) -> bool:
    """Whether `value`, of this shape for each env, is the index of a one-hot action or a score for each action."""
    if spec.action_spec is None or type(spec.action_spec[leaf.key]).__name__ != "OneHot":
        return False
    if value.is_floating_point():
        return shape == leaf.shape
    return shape in ((), (1,)) and shape != leaf.shape and value.dtype is not torch.bool


def _one_hot(value: torch.Tensor, leaf: Leaf, shape: tuple[int, ...]) -> torch.Tensor:
    """The one-hot action of an index, or of the largest score; `shape` includes the group's dimensions.

    Raises:
        ShapeError: a score is NaN, or there is no action with that index.
    """
    (num_actions,) = leaf.shape
    name = key_names([leaf.key])
    if value.is_floating_point():
        if value.isnan().any():
            raise ShapeError(f"the policy returned {name} with a NaN among the scores of the {num_actions} actions")
        value = value.argmax(-1)
    elif value.numel() and not 0 <= value.min() <= value.max() < num_actions:
        raise ShapeError(
            f"the policy returned {name} with the indices {value.unique().tolist()}, but there are {num_actions} "
            "actions, numbered from 0"
        )
    return one_hot(value.long(), num_actions).reshape(shape).to(leaf.dtype)


def _cast(value: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """An action in the leaf's dtype. Floating-point actions are rounded to its precision.

    Raises:
        ShapeError: an integer or bool dtype cannot represent a value.
    """
    cast = value.to(leaf.dtype)
    if leaf.dtype.is_floating_point or torch.promote_types(value.dtype, leaf.dtype) == leaf.dtype:
        return cast
    back = cast.to(value.dtype)
    if not torch.equal(back, value):
        wrong = value[back != value][0].item()
        raise ShapeError(
            f"the policy returned {key_names([leaf.key])} as {value.dtype} with the value {wrong}, but the action "
            f"space demands {leaf.dtype}, which has no such value: round it, or return the index of the action."
        )
    return cast
