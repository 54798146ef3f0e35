"""The configuration of a run: its schema, and what follows from it. Imports neither torch nor gymnasium.

    plain data --check--> schema --rules--> problems, --warnings--> notes

`registry` lists every `kind` of every group: the dataclass of its options, and what builds it; workers use it too. The
process that starts a run checks its configuration: a command all of it, a Python class what follows from its keywords.
"""
