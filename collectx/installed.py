"""Tells the code of installed packages from that of the user."""

from __future__ import annotations

import sysconfig
from pathlib import PurePath

_FOLDERS = frozenset(("site-packages", "dist-packages"))
_PATHS = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def is_installed(path: str | PurePath) -> bool:
    """Whether a file belongs to the standard library or to an installed package.

    An environment may have packages in several folders: its own, those of the interpreter that it was made with
    (`python -m venv --system-site-packages`), the user's (`pip install --user`), and those of a cluster's modules
    (PYTHONPATH). The source of a package that is installed as editable counts as the user's.
    """
    path = PurePath(path)
    return not _FOLDERS.isdisjoint(path.parts) or any(map(path.is_relative_to, _PATHS))
