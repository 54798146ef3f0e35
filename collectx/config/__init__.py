"""The configuration of a run: its schema, and what follows from it. Imports neither torch nor gymnasium.

    plain data --check--> schema --rules--> problems, --warnings--> notes

`registry` has every `kind` of every group: the dataclass of its options, and what builds it; workers use it too. The
command line checks complete configurations, the Python classes those that follow from their keywords, in the process
that starts a run.
"""
