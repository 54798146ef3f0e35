"""What collectx makes of SLURM's commands, and a shell of its scripts, with stand-ins for the commands."""

import json
import os
import select
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import psutil
import pytest
from composed_overrides import composed

from collectx.errors import ConfigError, LauncherError
from collectx.jobs import submit, watcher
from collectx.jobs.status import NamedRun
from collectx.library.slurm import slurm_resources
from collectx.place.slurm import JobFiles, commands, job, job_watcher, log_watcher, script
from collectx.place.slurm.commands import JobState
from collectx.place.slurm.log_watcher import role_shell

# What a task calls: SLURM starts another command.
NOTHING = (print, ())


def is_readable(handle, timeout_s=100.0):
    return bool(select.select([handle.sentinel], [], [], timeout_s)[0])


@pytest.fixture
def command(tmp_path, monkeypatch):
    """`command(name, text)` puts a shell script of that name in front of all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name, text):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_a_workers_script_has_the_options_of_the_configuration_and_runs_the_set_up_first(tmp_path, command):
    command("srun", 'echo "srun: $*"')
    command("sbatch", 'echo "17;cluster"')
    launcher = slurm_resources({}, 2)
    launcher.setup.extend(["export GREETING='good day'", 'echo "$GREETING"'])
    launcher.srun["container-image"] = "a b"
    launcher.sbatch.update({"mail_type": "FAIL", "constraint": "intel&ib", "job-name": "mine", "qos": None})
    files = JobFiles(tmp_path / "50%")
    files.logs.mkdir(parents=True)
    workers = job_watcher.JobArray(launcher, files, ["work"])
    assert workers.submit([0, 2]) == {0: "17_0", 2: "17_2"}
    assert files.worker_jobs.read_text().splitlines() == ["17_0 0", "17_2 2"]
    assert {line for line in files.worker_script.read_text().splitlines() if line.startswith("#SBATCH")} == {
        *("#SBATCH --output=/dev/null", "#SBATCH --ntasks=1"),
        *("#SBATCH --no-requeue", "#SBATCH --cpus-per-task=2", "#SBATCH --constraint='intel&ib'"),
        *("#SBATCH --mail-type=FAIL", "#SBATCH --job-name=mine"),
    }
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "2"}
    subprocess.check_call(["bash", files.worker_script, "1000"], env=environment)
    words = f"srun: --container-image=a b {' '.join(commands.WITHOUT_REQUESTS)} work 1003"
    assert files.worker_log(1003).read_text().splitlines() == ["good day", words]


def test_workers_above_the_largest_array_are_tasks_of_further_arrays_and_all_are_submitted_or_none(tmp_path, command):
    called, cancelled = tmp_path / "called", tmp_path / "cancelled"
    count = f'echo "$*" >> {called}; number=$(wc -l < {called})'
    refuse = 'if [ "$number" = 4 ]; then echo "error: AssocMaxSubmitJobLimit" >&2; exit 1; fi'
    command("sbatch", f"{count}; {refuse}; echo 1$number")
    command("scancel", f'echo "$*" > {cancelled}')
    command("scontrol", "echo 'MaxArraySize = 3'; echo 'SchedulerParameters = bf_interval=2,max_array_tasks=9'")
    files = JobFiles(tmp_path)
    workers = job_watcher.JobArray(slurm_resources({}, 1), files, ["work"])
    assert workers.submit(range(5)) == {0: "11_0", 1: "11_1", 2: "11_2", 3: "12_0", 4: "12_1"}
    assert workers.submit([4]) == {4: "13_1"}
    ends = [line.rpartition(str(files.worker_script))[2].split() for line in called.read_text().splitlines()]
    assert ends == [["0"], ["3"], ["3"]]
    called.write_text("1\n2\n")
    with pytest.raises(
        LauncherError, match=r"only 3 of 4 workers could be submitted: .*\. collectx cancelled their jobs\."
    ):
        workers.submit(range(4))
    assert cancelled.read_text().split() == ["--quiet", "13_0", "13_1", "13_2"]
    assert len(files.worker_jobs.read_text().splitlines()) == 6


def test_the_jobs_id_is_the_last_line_of_digits_and_options_of_the_script_are_on_the_command_line(tmp_path, command):
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/bash\n#SBATCH --constraint='a&b'\n#SBATCH hetjob\n#SBATCH --time=5\necho\n")
    command("sbatch", 'echo "$*" >&2; echo "Welcome to 2 clusters"; echo "7 jobs"; echo " 19;north"; echo "have fun"')
    assert commands.submit(script, "--hold", arguments=["0"]) == "19"
    command("sbatch", 'echo "Welcome"; echo "$*"')
    with pytest.raises(LauncherError) as caught:
        commands.submit(script, "--hold", arguments=["0"])
    words = f"Welcome; --parsable --hold --constraint=a&b : --hold --time=5 {script} 0"
    assert f"sbatch printed no job id, so collectx cannot tell whether the job is queued. It printed: {words}" in str(
        caught.value
    )


def test_a_worker_that_slurm_has_ended_leaves_a_note(tmp_path):
    workers = job_watcher.JobArray(slurm_resources({}, 1), JobFiles(tmp_path), [])
    failed, timeout = (JobState(word, True, True) for word in ("FAILED", "TIMEOUT"))
    assert workers.is_ended_by_slurm("17_0", timeout)
    assert workers.is_ended_by_slurm("17_0", JobState("COMPLETING", False, True, "TimeLimit"))
    assert not workers.is_ended_by_slurm("17_0", failed)
    JobFiles(tmp_path).note_of_end("17_0").touch()
    assert workers.is_ended_by_slurm("17_0", failed)
    assert not workers.is_ended_by_slurm("17_1", failed)


def test_a_job_that_slurm_has_requeued_too_often_is_not_started_again(folder):
    launcher = composed("launcher=slurm launcher.requeue=true launcher.max_requeues=2").launcher
    environment = os.environ | {"SLURM_RESTART_COUNT": "3", "SLURM_JOB_ID": "17"}
    text = script.script([folder], launcher, 3, False, 1.0)
    assert subprocess.run(["bash"], input=text, env=environment, text=True).returncode == 1
    message = (
        "collectx: job 17 will not start again, because it was already requeued 2 times (launcher.max_requeues=2). "
        "Raise the limit, or continue the run with collectx resume.\n"
    )
    assert (folder / "logs" / "job.log").read_text() == message


@pytest.mark.parametrize(
    ("limit", "seconds"), [("1:00", 60), ("2:00", 120), ("2:01", 0), ("1-00:00:00", 0), ("UNLIMITED", 0), ("", 0)]
)
def test_a_job_that_slurm_would_signal_as_it_starts_ends_and_says_why(folder, command, limit, seconds):
    command("squeue", f'[ -n "$SQUEUE_PARTITION" ] || echo "{limit}"')
    command("srun", "exit 7")
    environment = os.environ | {"SQUEUE_PARTITION": "x", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1"}
    text = script.script([folder], composed("launcher=slurm launcher.requeue=true").launcher, 3, False, 1.0)
    assert subprocess.run(["bash"], input=text, env=environment, text=True).returncode == (1 if seconds else 7)
    said = (folder / "logs" / "job.log").read_text()
    assert (f"job 17 ends, because its time limit is {seconds} s, and " in said) == (seconds > 0)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_request_for_a_checkpoint_ends_neither_a_tasks_shell_nor_the_batch_script(folder, command, number):
    before = signal.signal(number, signal.SIG_DFL)  # a shell cannot trap what it ignores from its start
    try:
        python = command(
            "python", f"kill -{number:d} $PPID $$; exit 3"
        )  # the shell and Python, which has not imported yet
        assert play(folder, 0, python) == 3
        # srun, which forwards signals to the tasks.
        command("srun", f'trap "exit 5" {number:d}; sleep 0.5; kill -{number:d} $PPID; while :; do sleep 0.1; done')
        environment = os.environ | {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1"}
        text = script.script([folder], composed("launcher=slurm").launcher, 3, False, 1.0)
        assert subprocess.run(["bash"], input=text, env=environment, text=True, timeout=100).returncode == 5
    finally:
        signal.signal(number, before)


def test_a_job_whose_trainer_finds_its_configuration_wrong_ends_without_its_workers(folder, command):
    """The workers wait for the trainer for their time to start."""
    command("srun", f'echo 2 > "{folder}/jobs/exit_status.17"; exec sleep 1000')
    environment = os.environ | {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1"}
    text = script.script([folder], composed("launcher=slurm").launcher, 3, False, 1000.0)
    assert subprocess.run(["bash"], input=text, env=environment, text=True, timeout=100).returncode == 2


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Batch job submission failed: Invalid account or account/partition combination specified", "launcher.account"),
        ("Batch job submission failed: Requested node configuration is not available", "launcher.cpus_per_task"),
        ("Unable to contact slurm controller (connect failure)", "Try again later"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "Submit fewer jobs at a time",
        ),
    ],
)
def test_a_refused_submission_has_slurms_reason_and_what_to_change(command, tmp_path, words, advice):
    command("sbatch", f'echo "{words}" >&2; exit 1')
    (tmp_path / "script.sh").touch()
    with pytest.raises(LauncherError) as caught:
        commands.submit(tmp_path / "script.sh")
    reason = words.removeprefix("Batch job submission failed: ")
    assert str(caught.value).startswith(f"the job could not be submitted: {reason}. ")
    assert advice in str(caught.value)


def test_of_several_lines_of_slurm_the_fatal_one_is_shown(command, tmp_path):
    fatal = "Could not establish a configuration source"
    command("sbatch", f'echo "sbatch: error: DNS SRV lookup failed" >&2; echo "sbatch: fatal: {fatal}" >&2; exit 1')
    (tmp_path / "script.sh").touch()
    with pytest.raises(LauncherError) as caught:
        commands.submit(tmp_path / "script.sh")
    advice = "Use launcher=local, or start this on a login node of the cluster."
    assert str(caught.value) == f"sbatch finds no SLURM cluster ('{fatal}'). {advice}"


def test_states_are_of_the_jobs_in_the_argument_that_slurm_knows(command):
    lines = {
        "17_0|RUNNING|None|n1": "RUNNING on n1",
        "17_1|PENDING|Resources|": "PENDING (Resources: the nodes it needs are in use)",
        "17_2|NODE_FAIL|NodeDown|n2": "NODE_FAIL (NodeDown) on n2",
        "17_3|COMPLETING|None|n2": "COMPLETING on n2",
        "17_4|COMPLETED|None|n3": None,
        "18+0|CANCELLED|None|n1": "CANCELLED on n1",
        "18+1|RUNNING|None|n2": None,
    }
    command("squeue", "cat <<END\nWelcome | to the cluster\n" + "\n".join(lines) + "\nEND")
    found = commands.queued(["17_0", "17_1", "17_2", "17_3", "18", "19"])
    assert list(found) == ["17_0", "17_1", "17_2", "17_3", "18"]
    assert [str(state) for state in found.values()] == [text for text in lines.values() if text is not None]
    assert [state.is_over for state in found.values()] == [False, False, True, False, True]
    assert [state.has_started for state in found.values()] == [True, False, True, True, True]
    command("squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
    with pytest.raises(LauncherError, match="Unable to contact"):
        commands.queued(["17"])


def test_a_command_that_hangs_is_given_up(command, monkeypatch):
    command("scancel", "exec sleep 60")
    monkeypatch.setattr(commands, "COMMAND_S", 0.2)
    with pytest.raises(LauncherError, match=r"scancel did not answer within 0\.2 s"):
        commands.cancel(["17"])


def test_a_command_has_no_variables_of_the_job_that_calls_it_and_none_that_hide_jobs(command, monkeypatch):
    command("scancel", "env >&2; exit 1")
    removed = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURMD_NODENAME", "SRUN_DEBUG", "SQUEUE_PARTITION", "SBATCH_WAIT")
    kept = ("SLURM_CONF", "SBATCH_ACCOUNT", "SBATCH_WAIT_ALL_NODES")
    for name in (*removed, *kept):
        monkeypatch.setenv(name, "x")
    with pytest.raises(LauncherError) as caught:
        commands.cancel(["17"])
    variables = {word.partition("=")[0] for word in str(caught.value).split()}
    assert (variables & {*removed, *kept}) == set(kept)


@pytest.fixture
def folder(tmp_path):
    """A run folder with a blank in its name."""
    path = tmp_path / "a run"
    for each in ("jobs", "logs"):
        (path / each).mkdir(parents=True)
    (path / "logs" / "job.log").touch()  # as the batch script does
    return path


def play(folder, rank, python):
    """Runs a task of the job; its output goes to the job's log. Returns its exit status."""
    environment = os.environ | {"SLURM_PROCID": str(rank), "SLURM_JOB_ID": "100", "run": str(folder)}
    with open(folder / "logs" / "job.log", "ab") as log:
        return subprocess.run(["bash", "-c", role_shell(python)], env=environment, stdout=log, stderr=log).returncode


@pytest.fixture
def workers(folder, monkeypatch, command):
    """Returns the specs of the workers of a job on three nodes."""
    command("srun", "exit 1")
    monkeypatch.setattr(commands, "hostnames", lambda nodes: nodes.split(","))
    environment = {"SLURM_JOB_ID": "100", "SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_TASKS_PER_NODE": "2,1(x2)"}
    cfg, logs = slurm_resources({"slurm_srun_args": ["--mpi=none"]}, 1), folder / "logs"
    launcher = job.JobTasksLauncher(
        cfg,
        command=["work"],
        environment=environment,
        job_log=logs / "job.log",
        log_begin=0,
        log=lambda worker: logs / f"worker-{worker}.log",
        run=str(folder),
    )
    with closing(launcher):
        yield launcher


@pytest.mark.parametrize(
    ("python", "how", "last"),
    [
        ("echo 'ImportError: no torch' >&2; exit 1", "ended with status 1", "ImportError: no torch"),
        ("echo 'at work'; kill -KILL $$", "was killed by signal 9", "at work"),
        ("kill -KILL $$", "was killed by signal 9", None),
    ],
)
def test_a_failed_worker_is_described_with_its_host_and_its_last_words(folder, workers, command, python, how, last):
    lost, other = workers.start(1, NOTHING), workers.start(0, NOTHING)
    assert play(folder, 2, command("python", python)) != 0
    assert is_readable(lost)
    where = f"task 2 on {socket.gethostname()} {how}; log: {folder}/logs/worker-1.log"
    assert workers.describe(1, lost) == f"worker 1 ({where}{f', which ends: {last}' if last else ''})"
    assert other.exitcode is None
    assert workers.describe(0, other) == f"worker 0 (log: {folder}/logs/worker-0.log)"


def test_the_trainer_leaves_its_status_and_a_worker_that_ends_well_says_nothing(folder, command):
    assert play(folder, 0, command("python", "exit 3")) == 3
    assert (folder / "jobs" / "exit_status.100").read_text() == "3\n"
    assert play(folder, 1, command("python", "exit 0")) == 0
    assert (folder / "logs" / "job.log").read_text() == ""


@pytest.mark.parametrize(
    ("state", "job", "has_result", "requeued"),
    [
        ("RUNNING", "17_3", False, ["requeue 17_3"]),
        ("RUNNING", "17_3", True, []),
        ("COMPLETING", "17_3", False, []),
        ("RUNNING", "", False, []),
    ],
)
def test_a_job_that_is_signalled_before_its_run_begins_is_requeued(
    folder, command, monkeypatch, state, job, has_result, requeued
):
    monkeypatch.setenv("COLLECTX_REQUEUE", job)
    monkeypatch.setenv("SQUEUE_PARTITION", "another")  # would hide the job
    lines = f"echo {state}; echo {state}"  # one for each part of a job
    command("squeue", f'[ -n "$SQUEUE_PARTITION" ] || {{ {lines}; }}')
    command("scontrol", f'echo "$*" >> {folder.parent}/called')
    if has_result:
        (folder / "result.json").touch()
    assert play(folder, 0, command("python", "kill -TERM $$")) == 143
    called = folder.parent / "called"
    assert (called.read_text().splitlines() if called.exists() else []) == requeued
    # A job that is ended a second time before its first batch would come back for ever.
    assert play(folder, 0, command("python", "kill -TERM $$")) == 143
    assert (called.read_text().splitlines() if called.exists() else []) == requeued
    said = (folder / "logs" / "job.log").read_text()
    assert (f"job {job} is not requeued: it was ended twice before its first batch" in said) == bool(requeued)


@pytest.mark.parametrize(
    ("line", "first", "workers", "how"),
    [
        ("srun: error: n2: task 2: Killed", 1, [1], "on n2 is gone: srun says 'Killed'"),
        ("srun: error: n2: task 1: Killed", 0, [1], "on n2 is gone: srun says 'Killed'"),
        # The trainer, alone on its node in its part of the job.
        ("srun: error: n1: task 0: Killed", 0, [], ""),
        ("srun: error: n3: tasks 3-4: Exited with exit code 2", 1, [2, 3], "on n3 ended with status 2"),
        ("srun: error: Node failure on n3", 1, [2, 3], "on n3 is gone: srun says 'Node failure on n3'"),
        ("srun: error: n9: task 2: Killed", 1, [], ""),
        ("collectx: task 2 on n2: status 12", 1, [1], "on n2 ended with status 12"),
        ("collectx: task 2 on n2: status", 1, [], ""),
    ],
)
def test_whole_lines_of_srun_and_of_tasks_in_the_jobs_log(folder, line, first, workers, how, monkeypatch):
    asked = []

    def hostnames(nodes):
        asked.append(nodes)
        if len(asked) == 1:
            raise LauncherError("scontrol: Killed")
        return [nodes]

    monkeypatch.setattr(commands, "hostnames", hostnames)
    monkeypatch.setattr(log_watcher, "_POLL_S", 0.001)
    log = folder / "logs" / "job.log"
    log.write_text("collectx: task 1 on n0: status 1\n")
    watcher = log_watcher.LogWatcher(log, log.stat().st_size, lambda: ["n0", "n2", "n3", "n3", "n0"], first)
    handles = [watcher.watch(worker) for worker in range(5)]
    with closing(watcher), open(log, "a") as file:
        # The last line is understood after the first, and not before its end.
        file.write(f"{line}\ncollectx: task 5 on n0: status 12")
        file.flush()
        assert not is_readable(handles[4], 0.05)
        file.write("7\n")
        file.flush()
        assert is_readable(handles[4])
    assert handles[4].exitcode == 127
    failed = {worker: handle.text for worker, handle in enumerate(handles[:4]) if handle.exitcode}
    assert failed == {worker: f"task {worker + 1} {how}" for worker in workers}


def test_a_log_that_a_network_file_system_shows_late_is_read(folder, monkeypatch):
    monkeypatch.setattr(log_watcher, "_POLL_S", 0.001)
    watcher = log_watcher.LogWatcher(folder / "late.log", 0, lambda: ["n1"], 1)
    handle = watcher.watch(0)
    with closing(watcher):
        assert not is_readable(handle, 0.05)
        (folder / "late.log").write_text("collectx: task 1 on n1: status 1\n")
        assert is_readable(handle)


@pytest.mark.parametrize(("down", "names"), [(None, ["n2", "n3", "n1", "n2"]), ("n2", ["n3", "n3", "n1", "n3"])])
def test_a_worker_is_restarted_on_its_node_or_on_the_next_that_is_up(workers, monkeypatch, down, names):
    monkeypatch.setattr(job, "seems_lost", lambda node: node == down)
    started = []
    monkeypatch.setattr(job, "start_step", lambda command, log: started.append(command()) or Mock(exitcode=0))
    for restarts, node in enumerate(names, 1):
        workers.start(1, NOTHING, restarts)
        assert {f"--nodelist={node}", "--mpi=none"} <= set(started[-1])


@pytest.mark.ci
def test_a_task_that_is_replaced_is_killed_with_its_processes(folder, workers, command, monkeypatch, wait_until):
    monkeypatch.setattr(job, "seems_lost", lambda node: False)
    command("srun", 'while [ "${1#--}" != "$1" ]; do shift; done; [ "$1" = work ] || exec "$@"')
    python = command("python", 'sleep 1000 & echo $! >> "$4/children"; wait')
    children = folder / "children"
    children.touch()
    hung, other = workers.start(1, NOTHING), workers.start(0, NOTHING)
    with ThreadPoolExecutor(2) as pool:
        for rank in (1, 2):
            pool.submit(play, folder, rank, python)
        wait_until(lambda: children.read_text().count("\n") == 2)
        workers.start(1, NOTHING, 1, hung)
        assert is_readable(hung)
        assert (hung.exitcode, other.exitcode) == (137, None)
        workers.start(0, NOTHING, 1, other)
        assert is_readable(other)
    for child in children.read_text().split():
        wait_until(lambda pid=int(child): not psutil.pid_exists(pid))


def test_a_silent_node_is_lost_when_slurm_says_so(command, tmp_path, monkeypatch, capfd):
    """A port without a listener refuses, and a listener whose queue is full answers nobody, as a dead host."""
    monkeypatch.setattr(job, "_ANSWER_S", 0.1)
    monkeypatch.setattr(job, "_ASK_S", 0.01)
    asked = tmp_path / "asked"
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        show = f"echo NodeName=n2 NodeAddr=127.0.0.1 Port={port} State=ALLOCATED"
        command("scontrol", f'[ "$2" = config ] && echo "SlurmdTimeout = 15 sec" || {show}')
        command("sinfo", f'echo x >> {asked}; [ "$(wc -l < {asked})" -lt 4 ] || echo "n2|down*"')
        assert not job.is_lost("n2")
        assert not job.seems_lost("n2")
        listener.listen(0)
        first.connect(("127.0.0.1", port))
        assert job.seems_lost("n2")
        assert job.is_lost("n2")
        assert "n2 does not answer. SLURM may take up to 45 s to say whether it is lost" in capfd.readouterr().out
        command("scontrol", "echo 'Node n2 not found' >&2; exit 1")
        asked.unlink()
        assert not job.is_lost("n2")
        assert not job.seems_lost("n2")


def test_the_sentinel_of_a_step_tells_its_end(tmp_path):
    def refuse():
        raise LauncherError("scontrol does not answer")

    commands = (lambda: ["sh", "-c", "exit 3"], refuse, lambda: ["sleep", "100"])
    ended, refused, endless = (job.start_step(command, tmp_path / "log") for command in commands)
    assert not is_readable(endless, 0.05)
    endless.terminate()
    for step in (ended, refused, endless):
        assert is_readable(step)
        step.join(100)
    assert (ended.exitcode, refused.exitcode) == (3, 1)
    assert endless.exitcode not in (None, 0)


def test_a_job_that_slurm_has_forgotten_is_looked_up_in_its_accounting(command):
    command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert commands.states(["17", "18"]) == {}
    command("sacct", "echo '17|CANCELLED by 0|n1'; echo '18+0|FAILED|None assigned'; echo '18+1|COMPLETED|n2'")
    states = commands.states(["17", "18", "19"])
    assert states == {"17": JobState("CANCELLED", True, True, "", "n1"), "18": JobState("FAILED", True, True)}


@pytest.mark.parametrize(
    ("lines", "status", "printed"),
    [
        (["f() { false; true; }", "f", "false || true", ". ./sourced"], 0, "srun: work"),
        (
            ["export A=1", "no_such_command x", "echo after"],
            127,
            "launcher.setup failed with status 127 at: no_such_command x",
        ),
        ([". ./nowhere"], 1, "launcher.setup failed with status 1 at: . ./nowhere"),
    ],
)
def test_a_failing_line_of_the_set_up_stops_the_job(tmp_path, command, lines, status, printed):
    command("srun", 'echo "srun: $*"')
    (tmp_path / "sourced").write_text("false\ntrue\n")
    launcher = slurm_resources({"slurm_setup": lines}, 1)
    (tmp_path / "script").write_text("\n".join(commands.body(launcher, ["work"])))
    done = subprocess.run(["bash", "script"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status
    assert printed in done.stdout + done.stderr
    assert "after" not in done.stdout


def test_inside_an_allocation_a_run_is_a_step_of_it(tmp_path, command, monkeypatch, capsys):
    ended = {"exit_reason": "", "frames": 1, "batches": 1, "wall_s": 1, "start_s": 1, "frames_per_s": 1, "failures": []}
    ended |= {"status": "completed", "mean_return": 1, "num_episodes": 1, "digest": None}
    (tmp_path / "ended.json").write_text(json.dumps(ended))
    end = f'for run; do :; done; cp {tmp_path}/ended.json "$run/new"; mv "$run/new" "$run/result.json"'
    command("srun", f'env | grep -c ^SLURM_; echo "$@"; {end}')
    for name, value in {"JOB_ID": "17", "JOB_CPUS_PER_NODE": "4(x2),1", "NTASKS": "1", "STEP_ID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("REFRESH_S", "_MIN_QUERY_S", "_MAX_QUERY_S", "_SETTLE_S"):
        monkeypatch.setattr(watcher, name, 0.01)
    cfg = composed("launcher=slurm collector=multi_async collector.num_workers=8 launcher.srun={mpi:none}")
    results = []
    assert not submit.run_jobs([NamedRun("run", tmp_path / "run", cfg)], ["run"], None, results)
    assert [each.status for each in results] == ["completed"]
    assert "inside the allocation of job 17, so launcher=slurm runs steps of that job" in capsys.readouterr().err
    count, words, *_ = (tmp_path / "run" / "logs" / "job.log").read_text().splitlines()
    assert count == "1"  # SLURM_EXPORT_ENV
    assert {"--jobid=17", "--overlap", "--ntasks=9", "--mpi=none"} <= {*words.split()}
    cfg.collector.num_workers = 9
    with pytest.raises(
        ConfigError, match=r"needs 10 cores, 1 for each worker and the trainer, but the allocation of job 17 has 9"
    ):
        submit.run_jobs([NamedRun("run", tmp_path / "other", cfg)], ["run"], None, [])
    cfg.trainer.num_learners, cfg.collector.num_workers = 2, 8
    with pytest.raises(ConfigError, match=r"trainer.num_learners=2 needs 10 cores, 5 for each learner and its workers"):
        submit.run_jobs([NamedRun("run", tmp_path / "other", cfg)], ["run"], None, [])
