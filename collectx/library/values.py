"""Converts the forms in which a keyword's value may be passed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from collectx.config.derived import device_named
from collectx.config.problem import counted
from collectx.config.schema.fields import Unset
from collectx.policy.exploration import ExplorationType


def for_each(value: Any, num_workers: int) -> list[Any]:
    """Returns a value per worker: the entries of a list or tuple, or the same value for all. Raises `Unset` for a list
    of a wrong length, which `rules._lists` reports."""
    values = list(value) if isinstance(value, list | tuple) else [value] * num_workers
    if len(values) != num_workers:
        raise Unset(f"{counted(len(values), 'entry', 'entries')} for {counted(num_workers, 'worker')}")
    return values


def numbered_workers(num_workers: int) -> str:
    """Returns which workers exist, for messages."""
    return "the only worker is 0" if num_workers == 1 else f"there are {num_workers} workers, numbered from 0"


def entries(value: Any) -> list[Any]:
    """Returns the entries of a list or tuple, or the value alone."""
    return list(value) if isinstance(value, list | tuple) else [value]


def within(root: str, path: str) -> str | None:
    """Returns the rest of a path that begins with `root`, such as "x" of "env.x"; None for other paths."""
    first, _, rest = path.partition(".")
    return rest if first == root else None


def kwargs_of(value: bool | dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the keyword arguments of a value that is a dict, or True for none; None for False and None."""
    return dict(value) if isinstance(value, Mapping) else {} if value else None


def positive(count: int | None) -> int | None:
    """Returns the number; None for 0 and negative numbers, which mean no limit in TorchRL."""
    return count if count is not None and count > 0 else None


def frames_limit(total: float | None) -> int:
    """Returns `total_frames` as the configuration knows it: -1 for None and infinity. Raises `ValueError` for other
    floats that are not whole."""
    if total in (None, math.inf):
        return -1
    if total != int(total):
        raise ValueError("must be a whole number, or infinity.")
    return int(total)


def port_number(port: int | str | None) -> int | None:
    """Returns a port, which may be passed as digits like in TorchRL, as a number. Raises `ValueError` for other
    texts."""
    if isinstance(port, str) and not port.isdecimal():
        raise ValueError("must be a port number, such as 10003.")
    return None if port is None else int(port)


def exploration_name(value: Any) -> str:
    """Returns the name of an exploration type in lower case. It may be passed as a name, or as a member of this
    package's or TorchRL's enum; None: "random"."""
    return ExplorationType.RANDOM.value if value is None else str(getattr(value, "name", value)).lower()


def device_name(device: Any) -> str | None:
    """Returns the name of a device; None for None. Raises `ValueError` with the reason if torch knows no such
    device."""
    try:
        return None if device is None else str(torch.device(device))
    except (RuntimeError, TypeError):
        raise ValueError("is not a device. Use 'cpu', 'cuda', or 'cuda:N' for GPU N.") from None


def first_device(value: Any) -> str | None:
    """Returns the name of a device, or of the first one in a list. Raises `ValueError` like `device_name`."""
    return next(iter([device_name(one) for one in entries(value)]), None)


def only_device(value: Any) -> str | None:
    """Returns the name of a device, or of the one that is repeated in a list; None if a list contains different
    devices. Raises `ValueError` like `device_name`."""
    return first_device(value) if num_devices(value) == 1 else None


def num_devices(value: Any) -> int:
    """Returns the number of devices, or None, in a list. Raises `ValueError` like `device_name`."""
    names = map(device_name, entries(value))
    return len({name and device_named(name) for name in names})


def visible_names(devices: Any) -> list[str] | None:
    """Returns the names of `visible_devices`, in which a number means a GPU. Raises `ValueError` like `device_name`."""
    if devices is None:
        return None
    # torch takes a number only on a machine with a GPU.
    names = (device_name(f"cuda:{each}" if isinstance(each, int) else each) for each in entries(devices))
    chosen = [torch.device(name or "cpu") for name in names]
    return [each.type if each.type == "cpu" else f"{each.type}:{each.index or 0}" for each in chosen]
