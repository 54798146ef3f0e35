"""Jobs, steps and commands of SLURM, in the trainer's process or in that of the command that submits a run."""
