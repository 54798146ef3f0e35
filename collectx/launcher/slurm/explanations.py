"""SLURM's reasons and errors, and what to do about them. Used by commands.py."""

# Explanations of SLURM's reasons.
REASONS = {
    "Priority": "Priority: others are before it",
    "Resources": "Resources: what it asks for is in use",
    "PartitionConfig": "PartitionConfig: no node of the partition has what it asks for: ask for less, or choose "
    "another",
    "PartitionTimeLimit": "PartitionTimeLimit: launcher.time is more than the partition allows",
    "PartitionNodeLimit": "PartitionNodeLimit: it asks for more nodes than the partition allows",
    "BadConstraints": "BadConstraints: no node has the features and resources that it asks for",
    "Dependency": "Dependency: launcher.max_parallel or launcher.sbatch.dependency lets others go first",
    "JobArrayTaskLimit": "JobArrayTaskLimit: as many points run as launcher.max_parallel allows",
    "JobHeldUser": "JobHeldUser: it is held until `scontrol release`",
    "BeginTime": "BeginTime: its start is set to a later time; SLURM does so for two minutes when it requeues a job",
    "None": "",
}

# Remedies by a part of sbatch's message.
ADVICE = {
    "accounting storage": "SLURM keeps no record of ended jobs",
    "account": "choose another with launcher.account (`sacctmgr show associations user=$USER` lists yours)",
    "partition": "choose another with launcher.partition (`sinfo` lists them)",
    "qos": "choose another with launcher.qos",
    "time limit": "ask for less with launcher.time",
    "feature": "choose another with launcher.constraint (`sinfo -o %f` lists them)",
    "memory": "ask for less with launcher.mem",
    "node configuration": "no node has so much: ask for less launcher.cpus_per_task, launcher.gpus or launcher.mem",
    "configuration source": 'this machine is in no SLURM cluster: use launcher=local (in Python: launcher="mp")',
    "contact slurm controller": "SLURM does not answer: try again later",
    "timed out": "SLURM does not answer: try again later",
}
