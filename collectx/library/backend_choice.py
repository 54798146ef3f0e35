"""Selects the class that `Collector(..., backend=..., num_collectors=...)` makes; `service_backend` sets the default of
`backend` within a block.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from collectx.config.check import out_of_range
from collectx.config.problem import PYTHON, counted
from collectx.errors import ConfigError
from collectx.library.keywords import BACKENDS

SELECTING_KEYWORDS = ("backend", "num_collectors", "sync", "backend_options")
_default: ContextVar[str | None] = ContextVar("collectx_service_backend", default=None)


@contextlib.contextmanager
def service_backend(backend: str) -> Iterator[None]:
    """`with service_backend("process"):` sets the default of `Collector`'s keyword `backend` within the block, for this
    thread or task. TorchRL's context manager of this name has the same effect.

    Raises:
        ConfigError: there is no such backend.
    """
    token = _default.set(_checked(backend))
    try:
        yield
    finally:
        _default.reset(token)


def select(
    classes: Mapping[str, tuple[type, type]], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[type, tuple[Any, ...], dict[str, Any]] | None:
    """Returns the one of `classes` (for `sync=False` and for `sync=True`, by backend) that the arguments of `Collector`
    select, and the arguments for it; None for `Collector` itself. Raises `ConfigError`."""
    rest = dict(keywords)
    backend, count, sync, options = (rest.pop(name, None) for name in SELECTING_KEYWORDS)
    if backend is None:
        backend = _default_backend() or ("direct" if count is None else "process")
    backend = _checked(backend)
    if backend == "direct":
        return None
    creates = arguments[0] if arguments else rest.pop("create_env_fn", None)
    if problems := _problems(creates, count, rest, options or {}):
        raise ConfigError(*problems)
    if not isinstance(creates, list | tuple):
        creates = [creates] * (count or 1)
    rest |= options or {}
    asynchronous, synchronous = classes[backend]
    if asynchronous is synchronous:
        rest["sync"] = bool(sync)
    if backend == "submitit" and rest.setdefault("launcher", backend) != backend:
        raise ConfigError(
            f"launcher={rest['launcher']!r} cannot be used, because backend='submitit' already selects the launcher. "
            "Leave launcher out."
        )
    return synchronous if sync else asynchronous, (creates, *arguments[1:]), rest


def _problems(creates: Any, count: Any, keywords: Mapping[str, Any], options: Any) -> list[str]:
    if not isinstance(options, Mapping):
        return [f"backend_options={options!r} must be a dict of keyword arguments, such as {{'num_slots': 2}}."]
    problems = []
    if count is not None and not (isinstance(count, int) and count > 0):
        problems.append(f"num_collectors={count!r} must be an int of at least 1.")
    elif isinstance(creates, list | tuple) and count not in (None, len(creates)):
        callables = f"create_env_fn has {counted(len(creates), 'entry', 'entries')}"
        problems.append(
            f"num_collectors={count}, but {callables}. Pass one entry per collector, or a single callable for all."
        )
    if twice := sorted(set(options) & ({*keywords, *SELECTING_KEYWORDS} - {"backend"})):
        names = " and ".join(map(repr, twice))
        are, them = ("which is a keyword", "it") if len(twice) == 1 else ("which are keywords", "them")
        problems.append(
            f"backend_options contains {names}, {are} of Collector itself. Pass {them} directly to Collector."
        )
    return problems


def _checked(backend: Any) -> str:
    if backend not in BACKENDS:
        raise ConfigError(f"backend={backend!r} {out_of_range(backend, {'choices': BACKENDS}, PYTHON)}")
    return "process" if backend == "multiprocessing" else backend


def _default_backend() -> str | None:
    """Returns the backend of the innermost `service_backend`, of this package or of an imported TorchRL."""
    if (backend := _default.get()) is not None:
        return backend
    theirs = getattr(sys.modules.get("torchrl._comm.backends"), "_SERVICE_BACKEND_CONTEXT", None)
    # The id of the process that set it, and the backend. A forked process ignores it.
    process, backend = (None if theirs is None else theirs.get(None)) or (None, None)
    return backend if process == os.getpid() else None
