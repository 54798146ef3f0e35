"""What is done with a run that has ended: evaluated, exported, reproduced, used by others."""
