"""The collectors as a Python library, with TorchRL's names and keywords: `collectx/library/collectors.py`."""
