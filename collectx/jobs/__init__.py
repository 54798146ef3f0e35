"""Submits, watches and cancels runs, and tells their states; the processes of a job, and workers that are jobs.

    submit.run_jobs(runs, ...)     submits runs as SLURM jobs and watches them           (submit.py)
    status.status_of(run, ...)     the state of a run, from its folder and from SLURM    (status.py)
    watcher.Watcher(runs)          shows runs until they have ended                      (watcher.py)
    cancel.cancel(runs, ...)       ends runs and waits for their end                     (cancel.py)
    submitted_workers(cfg, ...)    workers that are jobs, for a trainer in this process  (worker_jobs.py)
    submit_and_follow(folder, ...) a script and its workers, submitted together          (worker_jobs.py)
    python -m collectx.jobs.entry  the process of a job: trainer or worker               (entry.py)

`collectx.run` imports nothing from here. It only names the files of jobs in a run folder, formats their events, and
handles the signals that SLURM sends.
"""
