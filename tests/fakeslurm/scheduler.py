"""A stand-in for SLURM on one machine: reads real batch scripts, and runs their tasks as processes of this machine.

    scheduler.py COMMAND [ARGUMENTS]     sbatch, srun, squeue, scancel, sacct, scontrol; `bin/` has them by name
    scheduler.py run JOB                 the life of one job, started by sbatch

Its state lies in the folder that FAKESLURM names:

    jobs/17.json, jobs/17_0.json         what SLURM would know of a job, or of a task of an array
    jobs/17.sh                           the script, as it was submitted
    knobs.json                           set by a test: `silent` (the controller does not answer), `forget` (of jobs
                                         that have ended), `accounting` (sacct works)

An option that SLURM does not have is an error, as it is there. One node, no queue, no resources. Only the standard
library; jobs outlive a test that was killed by `_PATIENCE_S` at most.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["FAKESLURM"])
JOBS = HOME / "jobs"
# As SLURM's own.
KILL_WAIT_S = 30.0
_PATIENCE_S = 350.0
_OVER = ("COMPLETED", "FAILED", "CANCELLED")
# fmt: off
_SBATCH = {
    "account", "array", "constraint", "cpus-per-task", "error", "exclusive", "gres", "job-name", "mem", "nodes",
    "no-kill", "no-requeue", "ntasks", "open-mode", "output", "parsable", "partition", "qos", "requeue", "time",
}
_SRUN = {
    "container", "cpus-per-task", "distribution", "jobid", "kill-on-bad-exit", "no-kill", "nodelist", "nodes", "ntasks",
    "ntasks-per-node", "overlap",
}
# fmt: on


def main(command: str, argv: list[str]) -> int:
    JOBS.mkdir(parents=True, exist_ok=True)
    if command not in ("srun", "run") and knobs().get("silent"):
        return fail(f"{command}: error: Unable to contact slurm controller (connect failure)")
    return {"run": run}.get(command, globals()[command])(argv)


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def knobs() -> dict:
    try:
        return json.loads((HOME / "knobs.json").read_text())
    except FileNotFoundError:
        return {}


@contextlib.contextmanager
def lock():
    with open(HOME / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(job: str) -> dict:
    return json.loads((JOBS / f"{job}.json").read_text())


def write(job: dict) -> None:
    temporary = JOBS / f"{job['id']}.{os.getpid()}"
    temporary.write_text(json.dumps(job))
    temporary.rename(JOBS / f"{job['id']}.json")


def end(job: str, state: str) -> None:
    """Sets the state of a job that has not ended."""
    with lock():
        now = read(job)
        if now["state"] not in _OVER:
            write(now | {"state": state})


def all_jobs(argument: str | None = None) -> list[dict]:
    """Those of a comma-separated list, in which an array's number means all of its tasks."""
    jobs = [json.loads(path.read_text()) for path in sorted(JOBS.glob("*.json"))]
    names = argument and argument.split(",")
    return [job for job in jobs if not names or job["id"] in names or job["id"].partition("_")[0] in names]


def options(argv: list[str], known: set[str], command: str) -> tuple[dict[str, str], list[str]]:
    values, rest = {}, list(argv)
    while rest and rest[0].startswith("--"):
        name, _, value = rest.pop(0)[2:].partition("=")
        if name not in known:
            sys.exit(fail(f"{command}: unrecognized option '--{name}'"))
        values[name] = value
    return values, rest


def sbatch(argv: list[str]) -> int:
    typed, rest = options(argv, _SBATCH, "sbatch")
    text = Path(rest[0]).read_text()
    lines = [shlex.split(line[8:])[0] for line in text.splitlines() if line.startswith("#SBATCH ")]
    asked = options(lines, _SBATCH, "sbatch")[0] | typed
    with lock():
        number = max((int(path.stem) + 1 for path in JOBS.glob("*.sh")), default=100)
        (JOBS / f"{number}.sh").write_text(text)
    # An array is written as 0-3, or as 0,2,3; what follows % limits how many run, which is not done here.
    first, _, last = asked.get("array", "").partition("%")[0].partition("-")
    indices = range(int(first), int(last) + 1) if last else first.split(",")
    for job in [f"{number}_{index}" if first else f"{number}" for index in indices]:
        node = socket.gethostname()
        write({"id": job, "asked": asked, "state": "RUNNING", "node": node, "cwd": os.getcwd()})
        # Submitted from inside another job, it is none of that job's processes.
        environ = {name: value for name, value in os.environ.items() if name != "FAKESLURM_JOB"}
        null = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.Popen([sys.executable, __file__, "run", job], env=environ, start_new_session=True, **null)
    print(number if "parsable" in asked else f"Submitted batch job {number}")
    return 0


def run(argv: list[str]) -> int:
    job = read(argv[0])
    number, _, index = job["id"].partition("_")
    with open(job["asked"].get("output", os.devnull).replace("%a", index), "ab") as file:
        script = subprocess.Popen(
            ["bash", str(JOBS / f"{number}.sh")],
            cwd=job["cwd"],
            env=environment(job["id"], job["asked"]),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _PATIENCE_S
    while script.poll() is None and time.monotonic() < deadline:
        if read(job["id"])["state"] == "CANCELLED":
            deadline = min(deadline, time.monotonic() + KILL_WAIT_S)
        time.sleep(0.05)
    for pid in processes(job["id"], tasks_only=False):
        kill(pid, signal.SIGKILL)
    end(job["id"], "FAILED" if script.wait() else "COMPLETED")
    return 0


def environment(job: str, asked: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    number, _, index = job.partition("_")
    tasks = asked.get("ntasks", "1")
    kept |= {"FAKESLURM_JOB": job, "SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": socket.gethostname()}
    kept |= {"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": tasks, "SLURM_TASKS_PER_NODE": tasks}
    if index:
        kept |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
    if "cpus-per-task" in asked:
        kept["SLURM_CPUS_PER_TASK"] = asked["cpus-per-task"]
    return kept


def srun(argv: list[str]) -> int:
    typed, words = options(argv, _SRUN, "srun")
    if "FAKESLURM_JOB" not in os.environ:
        return fail("srun: error: this stand-in has steps of batch jobs only")
    count = int(typed.get("ntasks") or os.environ.get("SLURM_NTASKS", "1"))
    environ = os.environ | ({"SLURM_JOB_ID": typed["jobid"]} if "jobid" in typed else {})
    tasks = [
        subprocess.Popen(
            words,
            env=environ | {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(count)},
            start_new_session=True,
        )
        for rank in range(count)
    ]

    def forward(signum: int, frame: object) -> None:
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task.pid, signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, forward)
    codes = [task.wait() for task in tasks]
    return max(128 - code if code < 0 else code for code in codes)


def squeue(argv: list[str]) -> int:
    typed, _ = options(argv, {"noheader", "array", "states", "jobs", "format"}, "squeue")
    jobs = [job for job in all_jobs(typed.get("jobs")) if not knobs().get("forget") or job["state"] not in _OVER]
    if not jobs and "jobs" in typed and "," not in typed["jobs"]:
        return fail("slurm_load_jobs error: Invalid job id specified")
    for job in jobs:
        fields = {"i": job["id"], "T": job["state"], "r": "None", "N": job["node"]}
        print(re.sub("%([a-zA-Z])", lambda match, fields=fields: fields[match[1]], typed["format"]))
    return 0


def sacct(argv: list[str]) -> int:
    typed, _ = options(argv, {"noheader", "allocations", "parsable2", "format", "jobs"}, "sacct")
    if not knobs().get("accounting"):
        return fail("Slurm accounting storage is disabled")
    for job in all_jobs(typed["jobs"]):
        state = "CANCELLED by 0" if job["state"] == "CANCELLED" else job["state"]
        fields = {"JobID": job["id"], "State": state, "NodeList": job["node"]}
        print("|".join(fields[name] for name in typed["format"].split(",")))
    return 0


def scancel(argv: list[str]) -> int:
    for job in all_jobs(",".join(options(argv, {"quiet"}, "scancel")[1])):
        if job["state"] not in _OVER:
            end(job["id"], "CANCELLED")
            for pid in processes(job["id"], tasks_only=True):
                kill(pid, signal.SIGTERM)
    return 0


def scontrol(argv: list[str]) -> int:
    assert argv[:2] == ["show", "hostnames"], argv
    print("\n".join(argv[2].split(",")))
    return 0


def processes(job: str, tasks_only: bool) -> list[int]:
    """Those of a job, by their environment: all, or what srun has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            # Other tests have jobs of the same number.
            is_mine = f"FAKESLURM_JOB={job}".encode() in words and f"FAKESLURM={HOME}".encode() in words
            if is_mine and (not tasks_only or any(word.startswith(b"SLURM_PROCID=") for word in words)):
                found.append(int(folder.name))
    return found


def kill(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
