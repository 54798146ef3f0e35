"""Events that the user should hear of while the run goes on, as sentences. Must not know where they are shown."""

from __future__ import annotations

from typing import Any


def sentence(name: str, fields: dict[str, Any]) -> str | None:
    """What to say of an event of `events.jsonl`; None where it is nothing to speak of."""
    worker = fields.get("worker")
    if name == "worker_failed":
        return f"worker {worker} failed: {fields['type']}: {fields['message']}"
    if name == "worker_restarted":
        time = _nth(fields["life"])
        return f"worker {worker} is started again (collector.on_worker_failure=restart), for the {time} time"
    if name == "worker_dropped":
        left = fields["num_workers"]
        return f"the run goes on without worker {worker} (collector.on_worker_failure=drop): {left} left"
    if name == "jobs":
        return str(fields["message"])
    if name == "peer_refused":
        return f"refused a connection from {fields['address']}: {fields['reason']}"
    return None


def _nth(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
