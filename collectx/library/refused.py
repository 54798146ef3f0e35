"""Public names and attributes of TorchRL's collectors that do not exist in this package, and the reasons."""

from __future__ import annotations

_WEIGHT_SCHEMES = "it connects the parts of TorchRL's collectors; here weights travel by the collector's transport"
_PROCESSES = "the transport has the workers' processes and connections; use getattr_env or stats"

# Public methods and attributes of TorchRL's collectors that do not exist here, with the reason or a replacement.
ATTRIBUTES = {
    "IPAddr": "workers are told how to reach the trainer; use the keyword tcp_port to choose its port",
    "cascade_execute": _WEIGHT_SCHEMES,
    "collector_infos": _PROCESSES,
    "collector_rrefs": _PROCESSES,
    "env_constructors": "use collector.create_env_fn",
    "frames_per_worker": "use collector.frames_per_batch_worker",
    "futures": _PROCESSES,
    "get_cached_weights": "no copy of the weights is kept; use collector.policy",
    "init_updater": "a weight updater only supplies weights; set it up before passing it to the constructor",
    "jobs": _PROCESSES,
    "out_tensordicts": _PROCESSES,
    "pipes": _PROCESSES,
    "policy_version_tracker": "use collector.policy_version",
    "procs": _PROCESSES,
    "queue_out": _PROCESSES,
    "register_scheme_receiver": _WEIGHT_SCHEMES,
    "server_backend": "the policy is called in a separate process",
    "server_stats": "use the seconds of a batch in collector.stats",
    "running": "use collector.is_running()",
    "total_frames_per_collector": "workers collect until the run has total_frames",
}

# Public names of `torchrl.collectors` that do not exist in `collectx`, with the reason or a replacement.
NAMES = {
    "Evaluator": "evaluate with Collector(..., exploration_type='DETERMINISTIC')",
    "RayEvalWorker": "evaluate with RayCollector(..., exploration_type='DETERMINISTIC')",
}
