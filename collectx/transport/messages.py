"""Packs control messages into bytes. Nothing that arrives over a network is unpickled here. Requests and replies over a
network are signed, because they carry states of envs, which a resuming worker unpickles (`collectx.state`).

trainer -> worker    GRANT   | slot, reset, version (int64): the oldest weights to act with, or the only ones with
                             | `SlotSpec.grants_name_version`. In a slab, these are a region and a pointer to weights
                     WEIGHTS | version (int64)
worker -> trainer    FULL    | slot, version, frames, episodes, metrics, settings (int64), seconds (4 float64)
                             | returns (float64) | lengths (int64) | sums, counts of metrics (float64)
                             | nothing, or `SlotReport.added` as by `pack_tensors`
                     HAVE    | version (int64)
                     PROGRESS| steps, others, imports (int64): see `collectx.progress`
                     FAILED  | the error, encoded by the transport
between processes of one machine    REQUEST | pickled request        REPLY | pickled answer
over a network                      REQUEST | tensors, plain data    REPLY | tensors, plain data: see `pack_signed`

`packed` and `unpacked` are for plain data, which every transport can send and checkpoints can contain, because reading
it executes no code.
"""

from __future__ import annotations

import hmac
import io
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from collectx.batch import Key, is_numeric
from collectx.errors import RendezvousError
from collectx.transport.base import Fill, Reset, SlotReport

FULL, FAILED, GRANT, WEIGHTS, HAVE, REQUEST, REPLY, PROGRESS = (bytes([number]) for number in range(8))
_NUMBERS = struct.Struct("<cqqq")
# How a grant encodes a reset: none; one without a seed; greater numbers encode the seed and whether it is static.
_NO_RESET, _RESET = 0, 1
_PROOF_BYTES = 32
_FULL = struct.Struct("<cqqqqqqdddd")


def pack_signed(kind: bytes, content: Any, secret: bytes) -> bytes:
    """Returns a REQUEST or REPLY with tensors and plain data, followed by its HMAC-SHA256 under the run's secret."""
    message = pack_tensors(kind, content)
    return message + hmac.digest(secret, message, "sha256")


def unpack_signed(message: bytes, secret: bytes) -> Any:
    """Returns the content of a result of `pack_signed`. Executes no code. Raises `RendezvousError` if the signature is
    wrong, so the sender does not know the secret. The content was not read."""
    content, proof = message[:-_PROOF_BYTES], message[-_PROOF_BYTES:]
    if not hmac.compare_digest(hmac.digest(secret, content, "sha256"), proof):
        raise RendezvousError(
            "a message is not signed with the secret of this run, so something between the two hosts altered it"
        )
    return unpack_tensors(content)


def pack_tensors(kind: bytes, content: Any) -> bytes:
    """Returns a message with tensors and plain data."""
    file = io.BytesIO(kind)
    file.seek(len(kind))
    torch.save(content, file)
    return file.getvalue()


def unpack_tensors(message: bytes) -> Any:
    """Returns the content of a result of `pack_tensors`. Executes no code; raises for content that is not tensors and
    plain data."""
    return torch.load(io.BytesIO(message[1:]), map_location="cpu", weights_only=True)


def pack_grant(slot: int, reset: Reset | None, version: int = 0) -> bytes:
    """Returns a grant of `slot`, to be filled with weights of `version` or newer, or of exactly this version."""
    code = _NO_RESET
    if reset is not None:
        code = _RESET if reset.seed is None else _RESET + 1 + 2 * reset.seed + reset.static
    return _NUMBERS.pack(GRANT, slot, code, version)


def unpack_grant(message: bytes) -> tuple[Fill, int]:
    """Returns the grant and the version in a result of `pack_grant`."""
    _, slot, code, version = _NUMBERS.unpack(message)
    if code == _NO_RESET:
        return Fill(slot), version
    seed, static = divmod(code - _RESET - 1, 2)
    return Fill(slot, Reset() if code == _RESET else Reset(seed, bool(static))), version


def pack_version(kind: bytes, version: int) -> bytes:
    """Returns a message that weights of `version` are being sent (`WEIGHTS`), or have been received (`HAVE`)."""
    return _NUMBERS.pack(kind, version, 0, 0)


def unpack_version(message: bytes) -> int:
    """Returns the version in a result of `pack_version`."""
    _, version, _, _ = _NUMBERS.unpack(message)
    return version


def pack_progress(counts: tuple[int, ...]) -> bytes:
    """Returns a message with a worker's counts; see `collectx.progress`."""
    return _NUMBERS.pack(PROGRESS, *counts)


def unpack_progress(message: bytes) -> tuple[int, int, int]:
    """Returns the counts in a result of `pack_progress`."""
    _, steps, others, imports = _NUMBERS.unpack(message)
    return steps, others, imports


def pack_full(slot: int, report: SlotReport) -> bytes:
    """Returns a message that `slot` is filled, with its report."""
    times = (report.env_s, report.policy_s, report.wait_s, report.send_s)
    counts = (len(report.returns), report.metrics.shape[1], report.settings_lag)
    head = _FULL.pack(FULL, slot, report.policy_version, report.frames, *counts, *times)
    added = pack_tensors(FULL, report.added) if report.added else b""
    return head + report.returns.tobytes() + report.lengths.tobytes() + report.metrics.tobytes() + added


def unpack_full(message: bytes) -> tuple[int, SlotReport]:
    """Returns the slot and the report in a result of `pack_full`. The report's arrays are views of `message`. Raises
    `ValueError` if the size or the content of the message is wrong."""
    if len(message) < _FULL.size:
        raise ValueError(f"FULL has {len(message)} bytes, but needs at least {_FULL.size}")
    _, slot, version, frames, episodes, metrics, lag, env_s, policy_s, wait_s, send_s = _FULL.unpack_from(message)
    end = _FULL.size + 16 * (episodes + metrics)
    if min(episodes, metrics) < 0 or end > len(message):
        raise ValueError(f"FULL has {len(message)} bytes, but {episodes} episodes and {metrics} metrics need {end}")
    returns = np.frombuffer(message, np.float64, episodes, _FULL.size)
    lengths = np.frombuffer(message, np.int64, episodes, _FULL.size + 8 * episodes)
    sums = np.frombuffer(message, np.float64, 2 * metrics, _FULL.size + 16 * episodes).reshape(2, metrics)
    added = _unpack_added(message[end:]) if end < len(message) else {}
    return slot, SlotReport(version, frames, env_s, policy_s, returns, lengths, wait_s, send_s, sums, lag, added)


def _unpack_added(message: bytes) -> dict[Key, torch.Tensor]:
    try:
        added = unpack_tensors(message)
    except Exception as error:
        raise ValueError(f"FULL ends with {len(message)} bytes that are not tensors") from error
    if not isinstance(added, dict) or not all(_is_entry(*each) for each in added.items()):
        raise ValueError(f"FULL contains {type(added).__name__} in place of tensors")
    return added


def _is_entry(key: Any, value: Any) -> bool:
    is_key = isinstance(key, tuple) and len(key) > 0 and all(isinstance(part, str) for part in key)
    return is_key and isinstance(value, torch.Tensor)


# The only key of a dict that stands for a NumPy array, because `torch.load(weights_only=True)` refuses arrays.
_ARRAY = "\0array"


def packed(value: Any) -> Any:
    """Returns a copy of a value as plain data: numbers, strings, None, tensors on the CPU, and dicts, lists and tuples
    of these. NumPy's arrays and numbers become tensors; `unpacked` restores them. Raises `TypeError` if the value is,
    or contains, something else."""
    if isinstance(value, np.ndarray | np.generic) and is_numeric(value.dtype):
        return {_ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: packed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(packed, value))
    if type(value) in (bool, int, float, str, type(None)):
        return value
    raise TypeError(
        f"{value!r:.100}, of type {type(value).__name__}, cannot be sent to or from workers. Use numbers, strings, "
        "None, tensors, arrays of numbers, and lists, tuples and dicts of these, with strings or integers as keys."
    )


def unpacked(value: Any) -> Any:
    """Returns the value that `packed` copied. A 0-dimensional array becomes a NumPy number."""
    if isinstance(value, dict):
        return value[_ARRAY].numpy()[()] if value.keys() == {_ARRAY} else {key: unpacked(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return type(value)(map(unpacked, value))
    return value
