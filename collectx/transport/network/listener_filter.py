"""The ports on which torch listens in this process: gloo's and TensorPipe's ask nobody for a secret, and a
stranger's bytes can crash the process. They are closed to new connections while nobody is expected there; connections
that exist go on.

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


class ListenerFilter:
    """A filter on the listening sockets of a library. Closed when it is made. Thread-safe.

    Args:
        descriptors: the sockets'. A number that has become another file's is left alone.
    """

    def __init__(self, descriptors: Collection[int]):
        self._inodes = {descriptor: _inode(descriptor) for descriptor in descriptors}
        self._num_expected = 0
        self._lock = threading.Lock()
        self._let_in(False)

    def open(self) -> None:
        """Lets peers connect, until there were as many calls of `close`."""
        with self._lock:
            self._num_expected += 1
            self._let_in(True)

    def close(self) -> None:
        """Ends one `open`. After the last one, the kernel drops new connections."""
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
        for descriptor, inode in self._inodes.items():
            if inode is None or _inode(descriptor) != inode:
                continue
            # A socket object of Python's would change whether the library's blocks.
            _libc.setsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.sizeof(value))


def filter_listeners(
    make: Callable[[], Made], is_of_library: Callable[[int], bool] = lambda descriptor: True
) -> tuple[Made, ListenerFilter]:
    """What `make` makes, and the door of the sockets that began to listen in this process meanwhile.

    Args:
        is_of_library: whether a descriptor may be one of the library's: another thread may have begun to listen, too.
    """
    before = _listening()
    made = make()
    return made, ListenerFilter([descriptor for descriptor in _listening() - before if is_of_library(descriptor)])


def _inode(descriptor: int) -> int | None:
    """None where it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def _listening() -> set[int]:
    """Descriptors of this process's sockets that listen."""
    if sys.platform != "linux":
        return set()
    return {descriptor for name in os.listdir("/proc/self/fd") if _listens(descriptor := int(name))}


def _listens(descriptor: int) -> bool:
    listens, size = ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _libc.getsockopt(descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(listens), ctypes.byref(size))
    return bool(listens.value)
