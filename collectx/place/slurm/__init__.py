"""SLURM's jobs, steps and commands, used by trainers and by the command that submits runs."""
