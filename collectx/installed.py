"""Tells code of installed packages from user code."""

from __future__ import annotations

import sysconfig
from pathlib import PurePath

_FOLDERS = frozenset(("site-packages", "dist-packages"))
_PATHS = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def is_installed(path: str | PurePath) -> bool:
    """Whether a file belongs to the standard library or to an installed package.

    Packages may be in several folders: the environment's, the ones of the interpreter that made it
    (`python -m venv --system-site-packages`), the user's (`pip install --user`), and the ones of a cluster's modules
    (PYTHONPATH). The source of an editable package counts as the user's.
    """
    path = PurePath(path)
    return not _FOLDERS.isdisjoint(path.parts) or any(map(path.is_relative_to, _PATHS))
