"""Runs that are jobs, and runs of other processes: submitted, watched, cancelled, and their states read from outside.

    submit.run_jobs(runs, ...)     submits runs as SLURM jobs and watches them           (submit.py)
    status.status_of(run, ...)     the state of a run, from its folder and from SLURM    (status.py)
    watcher.Watcher(runs)          shows runs until they have ended                      (watcher.py)
    cancel.cancel(runs, ...)       ends runs and waits for their end                     (cancel.py)
    logs.print_logs(run, ...)      prints the logs of a run                              (logs.py)

Called by the command line, in its process. The runs themselves are in `collectx.run`, which knows nothing of this.
"""
