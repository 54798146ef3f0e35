"""The ports on which torch listens in this process: gloo's and TensorPipe's ask nobody for a secret, and bytes of a
stranger can end the process. They are closed to new connections while nobody is expected there; those that there are
go on.

Used by the pairs. Linux only, by a filter that drops what comes to a listening socket; elsewhere the ports stay open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

Made = TypeVar("Made")

# Of Linux's asm-generic/socket.h, as Python's socket module does not name them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_RETURN = 0x06
_libc = ctypes.CDLL(None)


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class Door:
    """Listening sockets of a library, which knows nothing of it. Closed at first; from any thread."""

    def __init__(self, descriptors: Collection[int]):
        self._descriptors = descriptors
        self._num_expected = 0
        self._lock = threading.Lock()
        self._let_in(False)

    def open(self) -> None:
        """Lets peers connect, until there were as many calls of `close`."""
        with self._lock:
            self._num_expected += 1
            self._let_in(True)

    def close(self) -> None:
        """Lets nobody connect any more: to a stranger, nobody answers."""
        with self._lock:
            self._num_expected -= 1
            self._let_in(self._num_expected > 0)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """`open`, and at the end of the block `close`."""
        self.open()
        try:
            yield
        finally:
            self.close()

    def _let_in(self, anybody: bool) -> None:
        # The program keeps none of the bytes of any packet.
        drop = _Program(1, ctypes.pointer(_Instruction(_RETURN, 0, 0, 0)))
        option, value = (_SO_DETACH_FILTER, ctypes.c_int(0)) if anybody else (_SO_ATTACH_FILTER, drop)
        for descriptor in self._descriptors:
            # A socket object of Python's would change whether the library's blocks.
            _libc.setsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.sizeof(value))


def door_of(make: Callable[[], Made]) -> tuple[Made, Door]:
    """What `make` makes, and the door of what listens in this process since then."""
    before = _listening()
    made = make()
    return made, Door(_listening() - before)


def _listening() -> set[int]:
    """Descriptors of this process's sockets that listen."""
    if sys.platform != "linux":
        return set()
    return {descriptor for name in os.listdir("/proc/self/fd") if _listens(descriptor := int(name))}


def _listens(descriptor: int) -> bool:
    listens, size = ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _libc.getsockopt(descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(listens), ctypes.byref(size))
    return bool(listens.value)
