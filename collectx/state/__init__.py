"""Saves and restores the state of envs, as pickles that only workers read, and of the global random generators, as
plain data (`collectx.random_state`).

pickles.py   `dumps`, `loads`, and why something cannot be pickled; envs in processes of Gymnasium's AsyncVectorEnv
reducers.py  what pickling alone would lose or refuse: memory that is shared, closures, weak references, MuJoCo, and
             objects that the resuming process has: ALE, processes of envs, `load_state_dict`
"""

from collectx.random_state import load_generators, save_generators
from collectx.state.pickles import ProcessState, dumps, loads, reason_not_saved

__all__ = ["ProcessState", "dumps", "load_generators", "loads", "reason_not_saved", "save_generators"]
