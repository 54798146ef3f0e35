"""The actor over a policy of the user's own, in the cheapest form that its kind allows.

    what the policy is                        what `act` calls
    TensorDictModule, plain inner module      the inner module, on the observation's tensors
    TensorDictSequential of such              the inner modules in turn
    any other module of tensordict's,         the policy, with a TensorDict of the observation's tensors and of what
      forward(td), forward(tensordict)          it has written there a frame before
    anything else                             the policy, with the observation's tensors; it returns the action, or a
                                                tuple of the action and further outputs

Everything is settled when the actor is made, in the worker's process: keys, shapes and casts, by one forward on first
observations of the env (`EnvSpec.first`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn

from collectx.batch import Key, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, ShapeError
from collectx.policy.acceleration import Acceleration
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.recurrent import Carried, find_carried, seen_with
from collectx.policy.spaces import observation_leaves
from collectx.policy.weights import FlatWeights
from collectx.random_state import kept_random_state

# Observation tensors to the policy's outputs by key.
Outputs = dict[Key, torch.Tensor]
Call = Callable[[Sequence[torch.Tensor]], Outputs]


class WrappedActor:
    """`module`, `device`, `leaves`, `carried`: see `collectx.policy.base.Actor`.

    Raises:
        ConfigError: the policy reads keys that the env does not write, or writes no action, or what it carries cannot
            be told, see `collectx.policy.recurrent`, or its distribution has no action of that exploration type.
        ShapeError: an action has not the shape or the kind of dtype that the action space demands, or a state not that
            of the env.
    """

    leaves: tuple[Leaf, ...]

    def __init__(
        self,
        policy: Callable,
        spec: EnvSpec,
        device: torch.device,
        exploration_type: ExplorationType,
        is_trusted: bool = False,
    ):
        self.device = device
        self._is_trusted = is_trusted
        self.module: nn.Module | None = policy.to(device) if isinstance(policy, nn.Module) else None

        def settle(seen: EnvSpec) -> tuple[Leaf, ...]:
            self._settle(policy, seen, exploration_type)
            return self.leaves

        self.carried: tuple[Carried, ...] = find_carried(policy, spec, settle)
        settle(seen_with(spec, self.carried))

    def _settle(self, policy: Callable, spec: EnvSpec, exploration_type: ExplorationType) -> None:
        device = self.device

        def settled(how: Acceleration) -> Call:
            how = dataclasses.replace(how, one_row=spec.is_single)
            call = _settle(policy, spec, device, exploration_type, how, self._is_trusted)
            return _viewed(_with_changed(call, changed), spec)

        changed: dict[Key, int] = {}
        self._settled = settled
        self._call = self._settled(Acceleration())
        first = [_first(leaf, spec).to(device) for leaf in spec.observation]
        unchanged = [tensor._version for tensor in first]
        # Not under inference mode: parameters that a lazy layer makes there could never be trained.
        with exploration(exploration_type), torch.no_grad(), _without_trace(self.module, device):
            try:
                outputs = self._call(first)
            except Exception as error:
                if isinstance(error, NotImplementedError) and f".{exploration_type.value} " in str(error):
                    raise ConfigError(
                        [
                            f"exploration_type={exploration_type.value}: the policy's distribution has none ({error}): "
                            "use random, mode, mean or deterministic."
                        ]
                    ) from error
                size = spec.policy_shape
                seen = ", ".join(f"{_names([o.key])} {[*size, *o.shape]} {o.dtype}" for o in spec.observation)
                what = "first observations of the env" if spec.first else "zeros for observations"
                error.add_note(f"raised by the policy, which was called once with {what}: {seen}")
                raise
        for i, (leaf, tensor, version) in enumerate(zip(spec.observation, first, unchanged, strict=True)):
            if tensor._version != version and leaf.key not in outputs:
                changed[leaf.key] = i
                outputs[leaf.key] = tensor.view(*spec.policy_shape, *leaf.shape)
        missing = [leaf.key for leaf in spec.action if leaf.key not in outputs]
        if missing:
            raise ConfigError(
                [
                    f"the policy wrote {_names(outputs)}, but not {_names(missing)}, where the env looks for its "
                    "action: change its out_keys."
                ]
            )
        for key, value in outputs.items():
            if not isinstance(value, torch.Tensor):
                raise ShapeError(f"the policy returned a {type(value).__name__} for {_names([key])}, not a tensor")
        actions = {leaf.key: leaf for leaf in spec.action}
        dims = len(spec.policy_shape)
        extra = [
            Leaf(key, tuple(value.shape[dims:]), value.dtype) for key, value in outputs.items() if key not in actions
        ]
        for leaf in (*spec.action, *extra):
            _check(leaf, outputs[leaf.key], spec.policy_shape, leaf.key in actions)
        observed = {leaf.key: leaf for leaf in spec.observation}
        for leaf in extra:
            if (there := observed.get(leaf.key, leaf)) != leaf:
                raise ShapeError(
                    f"the policy overwrites {_names([leaf.key])}, which the env observes as {list(there.shape)} "
                    f"{there.dtype}, with {list(leaf.shape)} {leaf.dtype}: a batch has one shape and dtype for both: "
                    "write it under another key."
                )
        self.leaves = (*spec.action, *extra)
        self._keys = [leaf.key for leaf in self.leaves]
        self._call = self._settled(Acceleration())  # forgets what it was called with
        # What is not as it is to be returned: of envs in several dimensions, or an action with a last one of size 1.
        self._shapes = [
            (i, (spec.num_envs, *leaf.shape))
            for i, leaf in enumerate(self.leaves)
            if dims > 1 or outputs[leaf.key].shape[dims:] != leaf.shape
        ]
        self._casts = [(i, leaf) for i, leaf in enumerate(spec.action) if outputs[leaf.key].dtype != leaf.dtype]
        for _, leaf in self._casts:
            _cast(outputs[leaf.key], leaf)

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """See `collectx.policy.base.Actor.act`."""
        outputs = self._call(observation)
        values = [outputs[key] for key in self._keys]
        for i, shape in self._shapes:
            values[i] = values[i].reshape(shape)
        for i, leaf in self._casts:
            values[i] = _cast(values[i], leaf)
        return values

    def forget(self) -> None:
        """Nothing is drawn ahead."""

    def accelerate(self, how: Acceleration) -> None:
        """See `collectx.policy.base.Actor.accelerate`."""
        call = self._settled(how)
        graph = how.captured(lambda *tensors: call(tensors))
        self._call = call if how.cudagraph is None else lambda tensors: graph(*tensors)


def takes_tensordict(policy: Callable) -> bool:
    """Whether `policy` is called with a TensorDict: it is a module of tensordict's, or its only argument is named
    `tensordict` or `td`, or is annotated as a TensorDict."""
    if isinstance(policy, TensorDictModuleBase):
        return True
    parameters = _parameters(policy)
    if len(parameters) != 1:
        return False
    annotation = parameters[0].annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameters[0].name in ("tensordict", "td") or "TensorDict" in named


def _viewed(call: Call, spec: EnvSpec) -> Call:
    """`call`, which takes observations of the env's own batch size, on those of a group."""
    shape = spec.policy_shape
    if shape == (spec.num_envs,):
        return call
    if not shape:
        return lambda observation: call([tensor[0] for tensor in observation])
    return lambda observation: call([tensor.unflatten(0, shape) for tensor in observation])


def _with_changed(call: Call, changed: dict[Key, int]) -> Call:
    """`call`, whose outputs include the observations that it changes in place.

    Args:
        changed: the place of each among the observations.
    """
    if not changed:
        return call
    return lambda observation: {**{key: observation[i] for key, i in changed.items()}, **call(observation)}


def _settle(
    policy: Callable,
    spec: EnvSpec,
    device: torch.device,
    exploration_type: ExplorationType,
    how: Acceleration,
    is_trusted: bool,
) -> Call:
    places = {leaf.key: i for i, leaf in enumerate(spec.observation)}
    if not is_trusted and not takes_tensordict(policy):
        return _map(policy, spec, how)
    wanted = [] if is_trusted else [_key(key) for key in getattr(policy, "in_keys", ())]
    unknown = [key for key in wanted if key not in places and not any(p[: len(key)] == key for p in places)]
    if unknown:
        raise ConfigError(
            [f"the policy reads {_names(unknown)}, but the env writes {_names(places)}: change its in_keys."]
        )
    steps = _plain_steps(policy, how)
    known = set(places)
    for _, reads, writes in steps or ():
        if not known.issuperset(reads):
            steps = None  # it reads a whole nested TensorDict
            break
        known.update(writes)
    if steps is not None:
        return _direct(steps, places)
    called = policy if how.compile is None else how.compiled(policy)
    size = spec.policy_shape
    return _with_tensordict(called, places, size, device, exploration_type, forgets=how.cudagraph is not None)


def _map(policy: Callable, spec: EnvSpec, how: Acceleration) -> Call:
    """A policy from observation tensors to the action: one argument per observation leaf, or a nested dict of them for
    a policy with one argument and an env with several leaves. What it returns after the action is `output1`, ..."""
    leaves = observation_leaves(spec)
    chosen = [spec.observation.index(leaf) for leaf in leaves]
    forward = how.compiled(policy)
    keys = names = [leaf.key for leaf in spec.action]
    as_dict = len(leaves) > 1 and len(_parameters(policy)) == 1

    def call(observation: Sequence[torch.Tensor]) -> Outputs:
        nonlocal names
        tensors = [observation[i] for i in chosen]
        if as_dict:
            result = forward(_nested([leaf.key[1:] for leaf in leaves], tensors))
        else:
            result = forward(*tensors)
        if isinstance(result, torch.Tensor):
            result = (result,)
        if not isinstance(result, tuple | list) or len(result) < len(keys):
            raise ShapeError(
                f"a policy without out_keys has to return the env's action ({_names(keys)}) as "
                f"{'a tensor' if len(keys) == 1 else f'a tuple of {len(keys)} tensors'}, got a {type(result).__name__}"
            )
        if len(result) != len(names):
            # TorchRL's names for what a policy returns after the action.
            names = [*keys, *((f"output{i}",) for i in range(1, len(result) - len(keys) + 1))]
        return dict(zip(names, result, strict=True))

    return call


_Step = tuple[Callable, list[Key], list[Key]]


def _plain_steps(module: Any, how: Acceleration) -> list[_Step] | None:
    """The functions on tensors, with the keys they read and write, that `module` amounts to; None if it is more."""
    if not hasattr(module, "_forward_hooks"):  # no nn.Module
        return None
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    if hooked or getattr(module, "_kwargs", None) or getattr(module, "method", None):
        return None
    if type(module) is TensorDictModule and not getattr(module, "_get_kwargs", None):
        keys = [_key(k) for k in module.in_keys], [_key(k) for k in module.out_keys]
        return [(how.compiled(module.module), *keys)]
    if type(module) is TensorDictSequential and not (module.partial_tolerant or module._select_before_return):
        steps: list[_Step] = []
        for child in module.module:
            inner = _plain_steps(child, how)
            if inner is None:
                return None
            steps += inner
        return steps
    return None


def _direct(steps: list[_Step], places: dict[Key, int]) -> Call:
    if len(steps) == 1:
        forward, reads, writes = steps[0]
        chosen = [places[key] for key in reads]
        if len(writes) == 1:
            key = writes[0]
            if len(chosen) == 1:
                only = chosen[0]
                return lambda observation: {key: forward(observation[only])}
            return lambda observation: {key: forward(*[observation[i] for i in chosen])}

    def call(observation: Sequence[torch.Tensor]) -> Outputs:
        values = {key: observation[i] for key, i in places.items()}
        outputs: Outputs = {}
        for forward, reads, writes in steps:
            result = forward(*[values[key] for key in reads])
            if isinstance(result, torch.Tensor):
                result = (result,)
            outputs.update(zip(writes, result, strict=True))
            values.update(outputs)
        return {key: value for key, value in outputs.items() if not _is_private(key)}

    return call


def _with_tensordict(
    policy: Callable,
    places: dict[Key, int],
    size: tuple[int, ...],
    device: torch.device,
    exploration_type: ExplorationType,
    forgets: bool,
) -> Call:
    """
    Args:
        size: batch size of the TensorDict.
        forgets: whether every call begins without what the policy wrote before: a recorded graph cannot carry it.
    """
    keys = [key[0] if len(key) == 1 else key for key in places]
    data: TensorDict | None = None

    def call(observation: Sequence[torch.Tensor]) -> Outputs:
        # The same TensorDict goes through all frames: a policy finds there what it keeps for itself, as noise that goes
        # on (`_ou_prev_noise`), and setting its observation takes half the time of making another.
        nonlocal data
        if data is None or forgets:
            data = TensorDict({}, batch_size=size, device=device)
        for key, tensor in zip(keys, observation, strict=True):
            data.set(key, tensor)
        with exploration(exploration_type):
            result = policy(data)
        if result is not None and result is not data:
            data.update(result)
        outputs = {}
        for name, value in data.items(include_nested=True, leaves_only=True):
            key = _key(name)
            if not isinstance(value, torch.Tensor) or _is_private(key):
                continue
            # What the policy has put in the place of an observation is one of its outputs.
            if key not in places or value is not observation[places[key]]:
                outputs[key] = value
        return outputs

    return call


def _first(leaf: Leaf, spec: EnvSpec) -> torch.Tensor:
    """`[E, *shape]`, the caller's."""
    first = spec.first.get(leaf.key)
    shape = (spec.num_envs, *leaf.shape)
    return torch.zeros(shape, dtype=leaf.dtype) if first is None else first.expand(shape).clone()


def _is_private(key: Key) -> bool:
    """As TorchRL has it: not a leaf of batches."""
    return any(part.startswith("_") for part in key)


def _nested(keys: Sequence[Key], values: Sequence[torch.Tensor]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        node = root
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = value
    return root


def _key(key: Any) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)


def _names(keys: Any) -> str:
    return ", ".join(".".join(key) for key in keys) or "nothing"


def _parameters(policy: Callable) -> list[inspect.Parameter]:
    """The arguments that a call has to give, by position; the first where all have defaults."""
    try:
        found = inspect.signature(policy.forward if isinstance(policy, nn.Module) else policy).parameters.values()
    except (ValueError, TypeError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in found if p.kind in kinds]
    return [p for p in positional if p.default is inspect.Parameter.empty] or positional[:1]


def _check(leaf: Leaf, value: torch.Tensor, size: tuple[int, ...], is_action: bool) -> None:
    name = ".".join(leaf.key)
    if value.shape[: len(size)] != size:
        raise ShapeError(
            f"the policy returned {name} of shape {list(value.shape)} for observations of batch size {list(size)}: "
            f"expected {[*size, '...']}"
        )
    if not is_action:
        return
    shape = tuple(value.shape[len(size) :])
    if shape != leaf.shape and shape != (*leaf.shape, 1):
        hint = " For a discrete action return its index (argmax), not logits or one-hot." if leaf.shape == () else ""
        raise ShapeError(
            f"the policy returned {name} of shape {list(value.shape)}, but the action space demands "
            f"{[*size, *leaf.shape]}.{hint}"
        )


def _cast(value: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """An action in the leaf's dtype. Floating-point actions are rounded to their precision.

    Raises:
        ShapeError: the dtype is an integer's or bool, and has no such value.
    """
    cast = value.to(leaf.dtype)
    if leaf.dtype.is_floating_point or torch.promote_types(value.dtype, leaf.dtype) == leaf.dtype:
        return cast
    back = cast.to(value.dtype)
    if not torch.equal(back, value):
        wrong = value[back != value][0].item()
        raise ShapeError(
            f"the policy returned {_names([leaf.key])} as {value.dtype} with the value {wrong}, but the action space "
            f"demands {leaf.dtype}, which has no such value: round it, or return the index of the action."
        )
    return cast


@contextlib.contextmanager
def _without_trace(module: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Undoes what a forward does besides its result: random draws, running statistics."""
    try:
        weights = FlatWeights(module)
    except ValueError:  # lazy parameters are made by the very forward that follows
        weights = FlatWeights(None)
    saved = torch.empty(weights.nbytes, dtype=torch.uint8)
    weights.write(saved)
    with kept_random_state([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            weights.read(saved)
