"""Tells whether a node of a job is lost: asks SLURM, and connects to the node as SLURM does.

SLURM notices a lost node only after its `SlurmdTimeout`. Until then an unreachable node counts as silent: it may be
alive. Used by the trainer of `launcher=slurm`.
"""

from __future__ import annotations

import errno
import socket
import time

from collectx.errors import LauncherError
from collectx.place.slurm import commands

# How long a host may take to accept or refuse a connection.
_ANSWER_S = 2.0
# The interval between two queries of SLURM.
_ASK_S = 2.0
# SLURM's default SlurmdTimeout, and how much later it may report the node.
_SLURMD_TIMEOUT_S = 300
_MARGIN_S = 30
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


def seems_lost(node: str) -> bool:
    """Whether the node is lost according to SLURM, or silent. Blocks for some seconds."""
    return _is_silent(node) or _is_down(node)


def is_lost(node: str) -> bool:
    """Whether the node is lost according to SLURM. Blocks for a silent node until SLURM knows, for at most
    `SlurmdTimeout` and half a minute."""
    deadline = None
    while not _is_down(node):
        if not _is_silent(node) or (deadline is not None and time.monotonic() > deadline):
            return False
        if deadline is None:
            timeout_s = _timeout_s()
            deadline = time.monotonic() + timeout_s
            text = f"{node} does not answer. SLURM may take up to {timeout_s} s to say whether it is lost."
            print(f"collectx: {text}", flush=True)
        time.sleep(_ASK_S)
    return True


def _is_down(node: str) -> bool:
    try:
        return node in commands.down(node)
    except LauncherError:
        return False


def _is_silent(node: str) -> bool:
    """Whether nothing answers at the port over which SLURM starts tasks on the node; False if the port is unknown. A
    firewall may drop packets to other ports."""
    try:
        socket.create_connection(commands.slurmd(node), timeout=_ANSWER_S).close()
    except LauncherError:
        return False
    except OSError as error:
        return isinstance(error, TimeoutError) or error.errno in _UNREACHABLE
    return False


def _timeout_s() -> int:
    try:
        return int(commands.settings()["SlurmdTimeout"].split()[0]) + _MARGIN_S
    except (LauncherError, KeyError, ValueError):
        return _SLURMD_TIMEOUT_S + _MARGIN_S
