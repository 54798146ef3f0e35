"""The transport between hosts. `transport.py`, `admission.py` and `weight_sync.py` run in the
trainer's process, `link.py` in the worker's, the other modules in both.
"""
