"""The collectors as a Python library, with TorchRL's names and keywords. `collectors.py` contains the public classes.
This package runs in the process of the user's script, which is the trainer.
"""
