"""Puts this folder on the import path, for `cases`, `golden` and `record`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
