"""Workers make envs and a policy, and fill the slots that the trainer grants. Each runs in a process of its own; inline
workers run in the trainer's process.
"""
