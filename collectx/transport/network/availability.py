"""Checks whether a backend or `launcher=ray` can work in this process, and explains why not.

Called before workers start. Imports a backend's libraries only when that backend is checked.
"""

from __future__ import annotations

from collectx.config.registry import implementation


def why_not(kind: str, group: str = "backend") -> str | None:
    """Why a network backend, or a kind of another group, cannot work here: one clause, and what to do; None if it
    can."""
    alternative = "backend=gloo" if group == "backend" else f"another {group}"
    install = f"pip install 'collectx[{kind}]', or use {alternative}"
    try:
        module = implementation(group, kind)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: {install}"
    except Exception as error:
        return f"its library cannot be loaded ({error}): {install}"
    return module.why_not() if group == "backend" else None
