"""Checks whether a backend can work in this process, and explains why not.

Called before workers start. Imports a backend's libraries only when that backend is checked.
"""

from __future__ import annotations

from typing import Any

from collectx.config.registry import implementation


def why_not(backend: str) -> str | None:
    """Why a network backend cannot work here: one clause, and what to do; None if it can."""
    install = f"pip install 'collectx[{backend}]', or use {'another launcher' if backend == 'ray' else 'backend=gloo'}"
    try:
        module = implementation("backend", backend)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: {install}"
    except Exception as error:
        return f"its library cannot be loaded ({error}): {install}"
    return module.why_not()


def actor_problems(name: str, configs: Any) -> list[str]:
    """Problems of arguments of `ray.remote`, a dict or a list of dicts, which are the option `name`. Imports ray."""
    if why_not("ray") is not None:
        return []
    return implementation("backend", "ray").problems(name, configs)
