"""Uses of a run folder: evaluating, exporting and reproducing the run, and loading its policy. Most are for runs that
have ended; the evaluator of a run uses parts of this package too."""
