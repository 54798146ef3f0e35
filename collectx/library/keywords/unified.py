"""The keywords by which `Collector` becomes a collector of another class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectx.library.keywords.options import limited
from collectx.library.keywords.specs import Keywords

BACKENDS = ("direct", "process", "multiprocessing", "ray", "rpc", "distributed", "submitit")
ONE_CONSTRUCTOR = ("backend", "num_collectors", "sync", "backend_options")


@dataclass(frozen=True, kw_only=True)
class Unified(Keywords):
    """The keywords that choose the class of the collector that `Collector(...)` makes. They are not for its subclasses.

    Args:
        backend: where envs are stepped: "direct": in this process; "process" or "multiprocessing":
            `MultiAsyncCollector`; "ray": `RayCollector`; "rpc": `RPCCollector`; "distributed" and "submitit":
            `DistributedCollector`, in the latter case with workers that are SLURM jobs. None: the backend of an
            enclosing `collectx.service_backend`; without one, "process" with `num_collectors`, otherwise "direct".
        num_collectors: number of workers; one callable as `create_env_fn` is then for all of them.
        sync: whether a batch has a part of every worker; with "process": `MultiSyncCollector`.
        backend_options: further keywords of the class of that backend, such as `cat_results` or `launcher`. Type
            checkers see the keywords of this class alone; they may also be passed directly.
    """

    backend: str | None = limited(None, choices=BACKENDS)
    num_collectors: int | None = None
    sync: bool | None = None
    backend_options: dict[str, Any] | None = None

    def problems(self) -> list[str]:
        defaults = {"backend": "direct", "num_collectors": 1}
        rule = "this collector collects in this process, without workers"
        return super().problems() + [
            f"{name}={value!r}: {rule}: call Collector itself, with backend='process' or another."
            for name in ONE_CONSTRUCTOR
            if (value := getattr(self, name)) not in (None, defaults.get(name))
        ]
