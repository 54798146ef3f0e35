"""The collectors as a Python library, with TorchRL's names and keywords: `collectx/library/collectors.py`. They run in
the process of the user's script, which is the trainer's.
"""
