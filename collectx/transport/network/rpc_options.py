"""Rules for the options of `backend=rpc`. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from collectx.config.derived import device_named
from collectx.config.problem import Conflict, Problem, counted
from collectx.config.schema.launcher import BackendConfig, RpcBackendConfig
from collectx.config.schema.run import RunConfig

_VISIBLE = re.compile(r"cpu|cuda:\d+")
# The options of `torch.distributed.rpc.TensorPipeRpcBackendOptions` that a user may set.
_TENSORPIPE = ("num_worker_threads", "rpc_timeout", "_transports", "_channels")


def tensorpipe(cfg: RunConfig) -> Iterator[Problem]:
    """Yields the problems of `backend.tensorpipe`."""
    if not isinstance(cfg.backend, RpcBackendConfig):
        return
    path = "backend.tensorpipe"
    for key, value in cfg.backend.tensorpipe.items():
        if key not in _TENSORPIPE:
            rule = f"has the unknown key {key!r}. Valid names: {', '.join(_TENSORPIPE)}."
            yield Problem(path, rule)
        elif key.startswith("_"):
            if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
                rule = f"has {key}={value!r}, but {key} must be a list of TensorPipe {key[1:]}, such as ['uv']."
                yield Problem(path, rule)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            yield Problem(path, f"has {key}={value!r}, but {key} must be a number greater than 0.")


def visible_problems(backend: BackendConfig, acting: Sequence[str]) -> Iterator[Problem]:
    """Yields the problems of `backend.visible_devices`, the GPUs that workers see. `acting` are the devices on which
    the policies of the workers act."""
    path, visible = "backend.visible_devices", getattr(backend, "visible_devices", None)
    if visible is None:
        return
    if isinstance(visible, str) or not all(_VISIBLE.fullmatch(str(each)) for each in visible):
        rule = "must be a list with one entry per worker: cuda:N if the worker sees only GPU N, cpu if it sees no GPU."
        yield Problem(path, rule, visible)
        return
    if len(visible) != len(acting):
        yield Problem(
            path,
            f"has {counted(len(visible), 'entry', 'entries')} for {counted(len(acting), 'worker')}",
            advice="give one entry per worker.",
        )
        return
    for worker, (sees, acts) in enumerate(zip(visible, acting, strict=True)):
        # `cuda` is the GPU that the worker sees.
        if sees == "cpu" if acts == "cuda" else device_named(acts) not in ("cpu", sees):
            rule = f"the policy of worker {worker} acts on {acts}, but the worker only sees {sees}"
            yield Conflict(path, rule, visible, "give both the same device.")
