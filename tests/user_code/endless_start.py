"""Hangs in a worker: in the import of a module, or in the making of the second env."""

import multiprocessing
import threading

import gymnasium

_is_worker = multiprocessing.parent_process() is not None
_made = []


def imports():
    if _is_worker:
        import user_code.endless_import  # noqa: F401
    return gymnasium.make("CartPole-v1")


def makes():
    if _is_worker and _made:
        threading.Event().wait()
    _made.append(None)
    return gymnasium.make("CartPole-v1")
