"""A stand-in for SLURM on one machine: reads real batch scripts, and runs their tasks as processes of this machine.

    scheduler.py COMMAND [ARGUMENTS]     sbatch, srun, squeue, scancel, sacct, scontrol; `bin/` has them by name
    scheduler.py run JOB                 the life of one job, started by sbatch

All that is known lies in the folder that FAKESLURM names:

    jobs/17.json, jobs/17_0.json         what SLURM would know of a job, or of a task of an array
    jobs/17.sh                           the script, as it was submitted
    knobs.json                           what a test wants: `hold` (jobs stay in the queue, for that reason), `refuse`
                                         (sbatch says this and fails), `silent` (the controller does not answer),
                                         `forget` (of jobs that have ended), `accounting` (sacct works)

An option that SLURM does not have is an error, as it is there. What is here is what the tests need: one node, no
resources, no priorities. Only the standard library; jobs outlive the test that forgets them by `_PATIENCE_S` at most.
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
# As SLURM's own.
KILL_WAIT_S = 30.0
_PATIENCE_S = 350.0
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
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
    (HOME / "jobs").mkdir(parents=True, exist_ok=True)
    if command not in ("srun", "run") and knobs().get("silent"):
        return fail(f"{command}: error: Unable to contact slurm controller (connect failure)")
    return {"run": run}.get(command, globals()[command])(argv)


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


# --- what is known ---


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
    return json.loads((HOME / "jobs" / f"{job}.json").read_text())


def write(job: dict) -> None:
    path = HOME / "jobs" / f"{job['id']}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(job))
    temporary.rename(path)


def change(job: str, **fields) -> dict:
    with lock():
        changed = read(job) | fields
        write(changed)
        return changed


def all_jobs() -> list[dict]:
    paths = (HOME / "jobs").glob("*.json")
    return sorted((json.loads(path.read_text()) for path in paths), key=lambda job: (job["number"], job["id"]))


def meant(argument: str) -> list[dict]:
    """The jobs in a comma-separated list; an array's number means all of its tasks."""
    names = argument.split(",")
    return [job for job in all_jobs() if job["id"] in names or job["id"].partition("_")[0] in names]


# --- commands ---


def options(argv: list[str], known: set[str], command: str) -> tuple[dict[str, str], list[str]]:
    found = {}
    rest = list(argv)
    while rest and rest[0].startswith("--"):
        name, _, value = rest.pop(0)[2:].partition("=")
        if name not in known:
            sys.exit(fail(f"{command}: unrecognized option '--{name}'"))
        found[name] = value
    return found, rest


def sbatch(argv: list[str]) -> int:
    given, rest = options(argv, _SBATCH, "sbatch")
    text = Path(rest[0]).read_text()
    lines = [shlex.split(line[8:])[0] for line in text.splitlines() if line.startswith("#SBATCH ")]
    asked = options(lines, _SBATCH, "sbatch")[0] | given
    if refusal := knobs().get("refuse"):
        return fail(f"sbatch: error: Batch job submission failed: {refusal}")
    indices, limit = array(asked.get("array"))
    with lock():
        number = 1 + max((job["number"] for job in all_jobs()), default=99)
        (HOME / "jobs" / f"{number}.sh").write_text(text)
        for offset, index in enumerate(indices):
            write(
                {
                    "id": f"{number}" if index is None else f"{number}_{index}",
                    "number": number + offset,
                    "script": f"{number}.sh",
                    "array": None if index is None else [number, index],
                    "limit": limit,
                    "asked": asked,
                    "state": "PENDING",
                    "reason": str(knobs().get("hold") or "None"),
                    "node": "",
                    "cwd": os.getcwd(),
                }
            )
    for index in indices:
        job = f"{number}" if index is None else f"{number}_{index}"
        subprocess.Popen(
            [sys.executable, __file__, "run", job],
            # Submitted from inside another job, it is none of that job's processes.
            env={name: value for name, value in os.environ.items() if name != "FAKESLURM_JOB"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    print(number if "parsable" in asked else f"Submitted batch job {number}")
    return 0


def array(text: str | None) -> tuple[list[int | None], int | None]:
    if text is None:
        return [None], None
    ranges, _, limit = text.partition("%")
    indices: list[int | None] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        indices += range(int(first), int(last or first) + 1)
    return indices, int(limit) if limit else None


def run(argv: list[str]) -> int:
    job = read(argv[0])
    began = time.monotonic()
    while not may_start(job["id"]):
        if read(job["id"])["state"] == "CANCELLED" or time.monotonic() > began + _PATIENCE_S:
            change(job["id"], state="CANCELLED")
            return 0
        time.sleep(0.1)
    output = job["asked"].get("output", os.devnull).replace("%a", job["id"].partition("_")[2])
    with open(output, "ab") as file:
        script = subprocess.Popen(
            ["bash", str(HOME / "jobs" / job["script"])],
            cwd=job["cwd"],
            env=environment(job),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    killed_s = None
    while script.poll() is None and time.monotonic() < began + _PATIENCE_S:
        state = read(job["id"])["state"]
        if state in ("CANCELLED", "TIMEOUT", "NODE_FAIL"):
            killed_s = killed_s or time.monotonic()
            if time.monotonic() > killed_s + KILL_WAIT_S:
                break
        time.sleep(0.05)
    for pid in processes(job["id"], tasks_only=False):
        kill(pid, signal.SIGKILL)
    code = script.wait()
    with lock():
        now = read(job["id"])
        if now["state"] == "RUNNING":
            write(now | {"state": "FAILED" if code else "COMPLETED", "code": code})
    return 0


def may_start(name: str) -> bool:
    with lock():
        job = read(name)
        if job["state"] == "CANCELLED":
            return False
        others = [other for other in all_jobs() if other["array"] and other["array"][:1] == (job["array"] or [0])[:1]]
        if hold := knobs().get("hold"):
            reason = str(hold)
        elif job["limit"] and sum(other["state"] == "RUNNING" for other in others) >= job["limit"]:
            reason = "JobArrayTaskLimit"
        else:
            write(job | {"state": "RUNNING", "reason": "None", "node": socket.gethostname()})
            return True
        if job["reason"] != reason:
            write(job | {"reason": reason})
        return False


def environment(job: dict) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    told = {
        "FAKESLURM_JOB": job["id"],
        "SLURM_JOB_ID": str(job["number"]),
        "SLURM_JOB_NODELIST": socket.gethostname(),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NTASKS": job["asked"].get("ntasks", "1"),
        "SLURM_TASKS_PER_NODE": job["asked"].get("ntasks", "1"),
    }
    if job["array"]:
        told |= {"SLURM_ARRAY_JOB_ID": str(job["array"][0]), "SLURM_ARRAY_TASK_ID": str(job["array"][1])}
    if "cpus-per-task" in job["asked"]:
        told["SLURM_CPUS_PER_TASK"] = job["asked"]["cpus-per-task"]
    return kept | told


def srun(argv: list[str]) -> int:
    given, words = options(argv, _SRUN, "srun")
    if "FAKESLURM_JOB" not in os.environ:
        return fail("srun: error: this stand-in has steps of batch jobs only")
    count = int(given.get("ntasks") or os.environ.get("SLURM_NTASKS", "1"))
    told = {"SLURM_JOB_ID": given["jobid"]} if "jobid" in given else {}
    tasks = [
        subprocess.Popen(
            words,
            env={**os.environ, **told, "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(count)},
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
    given, _ = options(argv, {"noheader", "array", "states", "jobs", "format"}, "squeue")
    jobs = meant(given["jobs"]) if "jobs" in given else all_jobs()
    if knobs().get("forget"):
        jobs = [job for job in jobs if job["state"] not in _OVER]
    if not jobs and "jobs" in given and "," not in given["jobs"]:
        return fail("slurm_load_jobs error: Invalid job id specified")
    for job in jobs:
        fields = {"i": job["id"], "T": job["state"], "r": job["reason"], "N": job["node"]}
        print(re.sub("%([a-zA-Z])", lambda found, fields=fields: fields[found[1]], given["format"]))
    return 0


def sacct(argv: list[str]) -> int:
    given, _ = options(argv, {"noheader", "allocations", "parsable2", "format", "jobs"}, "sacct")
    if not knobs().get("accounting"):
        return fail("Slurm accounting storage is disabled")
    for job in meant(given["jobs"]):
        state = "CANCELLED by 0" if job["state"] == "CANCELLED" else job["state"]
        fields = {"JobID": job["id"], "State": state, "NodeList": job["node"] or "None assigned"}
        print("|".join(fields[name] for name in given["format"].split(",")))
    return 0


def scancel(argv: list[str]) -> int:
    _, names = options(argv, {"quiet"}, "scancel")
    for job in meant(",".join(names)):
        if job["state"] in _OVER:
            continue
        change(job["id"], state="CANCELLED")
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
            if f"FAKESLURM_JOB={job}".encode() in words and f"FAKESLURM={HOME}".encode() in words:
                is_task = any(word.startswith(b"SLURM_PROCID=") for word in words)
                if is_task or not tasks_only:
                    found.append(int(folder.name))
    return found


def kill(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
