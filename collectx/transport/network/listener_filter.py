"""Filters the ports on which torch listens, because gloo and TensorPipe do not authenticate peers, and a stranger's
bytes can crash the process. A filter drops new connections while no peer is expected; open connections are not
affected.

On Linux only; on other systems, the ports stay open.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")

# From Linux's asm-generic/socket.h; Python's socket module lacks them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_RETURN = 0x06
_libc = ctypes.CDLL(None)


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class ListenerFilter:
    """A filter on the listening sockets of a library. Blocks new connections, except between `allow` and `block`.
    Thread-safe. `descriptors` are the sockets' file descriptors. A descriptor that is later reused for another file is
    left alone."""

    def __init__(self, descriptors: Collection[int]):
        self._inodes = {descriptor: _inode(descriptor) for descriptor in descriptors}
        self._num_expected = 0
        self._lock = threading.Lock()
        self._set_allowed(False)

    def allow(self) -> None:
        """Allows new connections; each call must be matched by one `block`."""
        with self._lock:
            self._num_expected += 1
            self._set_allowed(True)

    def block(self) -> None:
        """Ends one `allow`. After the last one, the kernel drops new connections."""
        with self._lock:
            self._num_expected -= 1
            self._set_allowed(self._num_expected > 0)

    def _set_allowed(self, is_allowed: bool) -> None:
        # The BPF program keeps no byte of any packet.
        drop = _Program(1, ctypes.pointer(_Instruction(_RETURN, 0, 0, 0)))
        option, value = (_SO_DETACH_FILTER, ctypes.c_int(0)) if is_allowed else (_SO_ATTACH_FILTER, drop)
        for descriptor, inode in self._inodes.items():
            if inode is None or _inode(descriptor) != inode:
                continue
            # A Python socket object would change the blocking mode of the library's socket.
            _libc.setsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.sizeof(value))


def filter_listeners(
    make: Callable[[], T], is_of_library: Callable[[int], bool] = lambda descriptor: True
) -> tuple[T, ListenerFilter]:
    """Calls `make`; returns its result, and a filter on the sockets that began to listen during the call.
    `is_of_library` says whether a descriptor may be the library's, as other threads may begin to listen during the call
    too."""
    before = _listening_descriptors()
    result = make()
    return result, ListenerFilter(list(filter(is_of_library, _listening_descriptors() - before)))


def _inode(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def _listening_descriptors() -> set[int]:
    if sys.platform != "linux":
        return set()
    return {descriptor for name in os.listdir("/proc/self/fd") if _is_listening(descriptor := int(name))}


def _is_listening(descriptor: int) -> bool:
    listens, size = ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _libc.getsockopt(descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(listens), ctypes.byref(size))
    return bool(listens.value)
