"""Uses of a run folder: evaluating, exporting and reproducing the run, and loading its policy. Most are for runs that
have ended; the evaluator, checkpoints and a resume of a run use parts of this package too."""
