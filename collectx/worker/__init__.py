"""Workers: build envs and policy, and fill the slots that the trainer grants. They run in their own processes; inline
workers run in the trainer's.
"""
