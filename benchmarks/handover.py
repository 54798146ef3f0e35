"""Time from publishing weights to their use in a worker over gloo, relative to one raw gloo send of as many bytes;
measured alternately in one run, on loopback.

    publish, then use   from the call of `publish` to the delivery of the first batch in which the new weights acted:
                        copy, transfer, the worker's copy, one frame, and its delivery
    raw send            from the call of `send` to the return of the receiver's `wait`, with the receive posted before
"""

import multiprocessing
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.cases import ballast_config, counting_config, run_config

MEGABYTES = (1.0, 100.0)
_LEAST_PAIRS = 10


def measure(megabytes: float, seconds: float, **_: Any) -> dict[str, Any]:
    """Measures medians in milliseconds, and the ratios of all pairs."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector

    torch.set_num_threads(1)
    env = counting_config()
    policy = ballast_config(megabytes)
    spec = envs.read_spec(env)
    module: Any = policies.build(policy, spec, 0)
    times: dict[str, list[float]] = {"publish": [], "use": [], "raw": [], "memcpy": []}
    raw = _Raw(int(megabytes * 1e6))
    with start_collector(run_config(env, policy, "distributed", 1, 1), module, spec) as collector:
        for _warm in range(20):
            next(collector)
        raw.send()
        end = perf_counter() + seconds
        while perf_counter() < end or len(times["raw"]) < _LEAST_PAIRS:
            began = perf_counter()
            version = collector.publish(module)
            times["publish"].append(perf_counter() - began)
            next(collector)
            while collector.last_batch_info.parts[0].report.policy_version != version:
                next(collector)
            times["use"].append(perf_counter() - began)
            times["raw"].append(raw.send())
            times["memcpy"].append(raw.copy())
    raw.close()
    ratios = [use / send for use, send in zip(times["use"], times["raw"], strict=True)]
    return {**{f"{name}_ms": 1e3 * median(values) for name, values in times.items()}, "ratios": ratios}


class _Raw:
    """A gloo pair with a process that only receives."""

    def __init__(self, num_bytes: int):
        import torch

        from collectx.transport.network.p2p import TRAINER, PairConfig

        self._connection, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_receive, args=(theirs, num_bytes), daemon=True
        )
        self._process.start()
        theirs.close()
        self._pair = PairConfig(60.0).make_pair(self._connection, TRAINER, "127.0.0.1")
        self._buffer = torch.ones(num_bytes, dtype=torch.uint8)
        self._target = torch.ones(num_bytes, dtype=torch.uint8)

    def send(self) -> float:
        """Seconds of one transfer. Both processes read the same monotonic clock."""
        self._connection.recv_bytes()
        began = perf_counter()
        self._pair.send(self._buffer).wait()
        return self._connection.recv() - began

    def copy(self) -> float:
        """Seconds of one memcpy of as many bytes."""
        began = perf_counter()
        self._target.copy_(self._buffer)
        return perf_counter() - began

    def close(self) -> None:
        self._pair.close()
        self._connection.close()
        self._process.join(10.0)


def _receive(connection: Connection, num_bytes: int) -> None:
    import torch

    from collectx.transport.network.p2p import WORKER, PairConfig

    torch.set_num_threads(1)
    pair = PairConfig(60.0).make_pair(connection, WORKER, "127.0.0.1")
    buffer = torch.zeros(num_bytes, dtype=torch.uint8)
    try:
        while True:
            incoming = pair.receive(buffer)
            connection.send_bytes(b"ready")
            incoming.wait()
            connection.send(perf_counter())
    except (RuntimeError, OSError):
        pair.close()


if __name__ == "__main__":
    fresh.serve(measure)
