"""What SLURM's commands print, read."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from collectx.errors import LauncherError
from collectx.place.slurm import commands, script


@pytest.fixture
def said(monkeypatch):
    """`said(text)`: every command prints this text; None: SLURM does not answer."""

    def say(text):
        def run(command):
            if text is None:
                raise LauncherError("no answer")
            return text

        monkeypatch.setattr(commands, "_run", run)

    return say


def test_options_and_counts_in_the_syntax_of_slurm():
    values = {
        "no_kill": True,
        "overlap": False,
        "nodes": 2,
        "time": None,
        "mem": "",
        "ntasks": 0,
        "nodelist": ["n1", "n2"],
    }
    assert commands.options(values) == ["--no-kill", "--nodes=2", "--mem=", "--ntasks=0", "--nodelist=n1,n2"]
    assert [commands.per_node(text) for text in ("4(x2),2", "3", "")] == [[4, 4, 2], [3], []]


def test_states_are_those_of_the_first_part_of_a_job(said):
    said("7|RUNNING|None|n1\n8+0|PENDING|Priority|\n8+1|FAILED|x|\n9|X||")
    found = commands.queued(["8", "7", "6"])
    assert list(found) == ["8", "7"]
    assert [(state.word, state.is_over, state.has_started) for state in found.values()] == [
        ("PENDING", False, False),
        ("RUNNING", False, True),
    ]
    said("7|TIMEOUT||")
    (over,) = commands.queued(["7"]).values()
    assert (over.is_over, over.has_started) == (True, True)


def test_lines_of_nodes_without_banners(said):
    said("Welcome\nn1|down\nn1|down*\nn2|no_respond|more\n")
    assert commands.down("n[1-3]") == ["n1", "n2"]
    said("cpu*|idle|3\nWelcome|x\ngpu|mix|1\n")
    assert commands.node_states() == [("cpu*", "idle", 3), ("gpu", "mix", 1)]
    said("NodeName=n1 NodeAddr=10.0.0.1 Port=7000 SlurmdPort = 6818")
    assert commands.slurmd("n1") == ("10.0.0.1", 7000)
    said("SlurmdPort = 6818\nNodeAddr=10.0.0.1")
    assert commands.slurmd("n1") == ("10.0.0.1", 6818)
    for text in ("NodeAddr=10.0.0.1", "Port=7000", "NodeAddr=a Port=b"):
        said(text)
        with pytest.raises(LauncherError, match="at which port n1 listens"):
            commands.slurmd("n1")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, 1001),
        ("Other = 3", 1001),
        ("MaxArraySize            = 50", 50),
        ("MaxArraySize = 50\nSchedulerParameters = a=1,max_array_tasks=20", 20),
        ("MaxArraySize = 10\nSchedulerParameters = max_array_tasks=20", 10),
        ("MaxArraySize = 0", 1),
    ],
)
def test_the_size_of_the_largest_array(said, text, size):
    said(text)
    assert commands.largest_array() == size


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [(None, False), ("cpu", False), ("gpu", True), ("cpu,low", True), ("gp", False), ("off", False)],
)
def test_partitions_where_slurm_may_preempt(said, partitions, expected):
    lines = ["PartitionName=cpu Default=YES PreemptMode=OFF", "PartitionName=gpu Default=NO PreemptMode=REQUEUE"]
    said("\n".join([*lines, "PartitionName=low PreemptMode=CANCEL", "PartitionName=off PreemptMode=SUSPEND"]))
    assert commands.preempts(partitions) is expected
    said("PartitionName=a Default=YES PreemptMode=CANCEL")
    assert commands.preempts(None)


def test_why_there_is_no_accounting(said):
    said("")
    assert commands.why_no_accounting() == ""
    said(None)
    assert commands.why_no_accounting() == "no answer"


SQUEUE = "17_0|RUNNING|None|n1\n17_1|PENDING|Priority|\n18|SUSPENDED|x|n2\n19|COMPLETED|None|n3\n20|STOPPED||n2\n"
SACCT = "21|CANCELLED by 1000|n[1-2]\n22|COMPLETED|None assigned\na banner\n23|RUNNING|n5\n"
JOBS = ["17_0", "17_1", "18", "19", "20"]
INVALID = "slurm_load_jobs error: Invalid job id specified"
WAITING = "1|PENDING|DependencyNeverSatisfied|\n2|PENDING|Reservation|\n3|PENDING|job requeued in held state|\n"
HELD = "17|PENDING|JobHeldUser|\n"
# By name: the call, and what each command prints in turn; an error's text is what it prints to standard error.
CALLS = {
    "states": (lambda: commands.states([*JOBS, "21", "22", "24"]), [SQUEUE, SACCT]),
    "states that wait for something": (lambda: commands.states(["1", "2", "3"]), [WAITING]),
    "states of no job": (lambda: commands.states([]), []),
    "states of known jobs": (lambda: commands.states(JOBS), [SQUEUE]),
    "states of forgotten jobs": (lambda: commands.states(["21"]), [ValueError(INVALID), SACCT]),
    "states without accounting": (
        lambda: commands.states(["17_0", "21"]),
        [SQUEUE, ValueError("accounting storage is disabled.")],
    ),
    "states without an answer": (lambda: commands.states(["17_0"]), [ValueError("Unable to contact slurm controller")]),
    "cancel": (lambda: commands.cancel(["17_0", "18"]), [""]),
    "interrupt": (lambda: commands.interrupt(JOBS), [SQUEUE, "", ""]),
    "interrupt ended jobs": (lambda: commands.interrupt(["19"]), [SQUEUE]),
    "interrupt while one ends": (lambda: commands.interrupt(JOBS), [SQUEUE, ValueError(""), ""]),
    "interrupt what is not ours": (lambda: commands.interrupt(JOBS), [SQUEUE, *[ValueError("Access denied")] * 2]),
    "release": (lambda: commands.release(["17_0", "17_1"]), [""]),
    "release what cannot start yet": (lambda: commands.release(["17"]), [ValueError("error"), SQUEUE]),
    "release in vain": (lambda: commands.release(["17"]), [ValueError("error"), HELD]),
    "requeue": (lambda: commands.requeue("17_0"), [""]),
    "requeue this job": (lambda: commands.requeue("17_0"), [ValueError("")]),
    "requeue in vain": (lambda: commands.requeue("17_0"), [ValueError("Job can not be altered")]),
    "hostnames": (lambda: commands.hostnames("n[1-2]"), ["n1\nn2\n"]),
    "down": (lambda: commands.down("n[1-2]"), ["n1|down\nn1|down\n"]),
    "slurmd": (lambda: commands.slurmd("n1"), ["NodeAddr=10.0.0.1 Other", "SlurmdPort = 6818"]),
    "node_states": (lambda: commands.node_states(), ["cpu*|idle|3\n"]),
    "why_no_accounting": (lambda: commands.why_no_accounting(), [""]),
    "preempts": (lambda: commands.preempts("a,b"), ["PartitionName=b PreemptMode=CANCEL"]),
}


@pytest.fixture
def called(within):
    """`called(*outputs)`: the list of the commands that are called from then on."""

    def answer(*outputs):
        calls, left = [], list(outputs)

        def run(words, **options):
            calls.append(" ".join(words))
            said = left.pop(0)
            is_error = isinstance(said, ValueError)
            return SimpleNamespace(returncode=int(is_error), stdout="" if is_error else said, stderr=str(said))

        within(commands, "subprocess", run=run)
        return calls

    return answer


def test_commands_and_answers_of_slurm(called, expected):
    rows = {}
    for name, (call, outputs) in CALLS.items():
        calls = called(*outputs)
        try:
            result = call()
        except LauncherError as error:
            result = f"{type(error).__name__}: {error}"
        if isinstance(result, dict):
            result = [f"{job}: {state} {[state.is_over, state.has_started]}" for job, state in result.items()]
        rows[name] = [*calls, result]
        assert len(calls) == len(outputs), name
    expected("commands", rows)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("", "NoMessage: scancel failed with exit status 1"),
        (" one \ntwo.", "LauncherError: one; two."),
        ("a banner\nsbatch: fatal: no more", "LauncherError: no more"),
        ("Invalid partition name.", "LauncherError: Invalid partition name. Choose another partition with"),
        (
            "Invalid QOS specification",
            "LauncherError: Invalid QOS specification. Choose another QOS with launcher.qos.",
        ),
    ],
)
def test_messages_of_slurm_with_advice(called, said, message):
    called(ValueError(said))
    with pytest.raises(LauncherError) as error:
        commands.cancel(["1"])
    assert f"{type(error.value).__name__}: {error.value}".startswith(message)


def test_how_a_command_is_called(within):
    calls, TimeoutExpired, DEVNULL = [], commands.subprocess.TimeoutExpired, commands.subprocess.DEVNULL

    def run(words, **options):
        calls.append(options)
        if len(calls) == 1:
            return SimpleNamespace(returncode=0, stdout="", stderr="")
        raise TimeoutExpired(words, 60) if len(calls) == 2 else FileNotFoundError(2, "no such file")

    within(commands, "subprocess", run=run)
    commands.cancel(["1"])
    calls[0].pop("env")
    assert calls[0] == {
        **{"capture_output": True, "text": True, "timeout": 60.0},
        **{"stdin": DEVNULL, "start_new_session": True},
    }
    for words in ("scancel did not answer within 60 s. SLURM's", "scancel cannot be called on this machine: "):
        with pytest.raises(LauncherError, match=words):
            commands.cancel(["1"])


def test_variables_of_the_job_are_not_passed_on():
    removed = ("SLURM_JOB_ID", "SLURMD_NODENAME", "SRUN_CPUS_PER_TASK", "SQUEUE_FORMAT", "SBATCH_ARRAY_INX")
    kept = dict.fromkeys(("SLURM_CONF", "SLURM_CONF_SERVER", "SBATCH_PARTITION", "PATH", "SLURMX"), "x")
    assert commands.environment(kept | dict.fromkeys((*removed, "SBATCH_WAIT", "SBATCH_CLUSTERS"), "x")) == kept


@pytest.mark.parametrize(
    ("said", "job"),
    [("17\n", "17"), ("Welcome 3\n 17;cluster \n", "17"), ("17\n18", "18"), ("17 18", None), ("\n", None)],
)
def test_the_id_of_a_submitted_job(called, tmp_path, said, job):
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\n#SBATCH --mem=1G\n#SBATCH --job-name='a b'\n#SBATCH hetjob\n#SBATCH --nodes=2\nrun\n")
    calls = called(said)
    if job is None:
        with pytest.raises(LauncherError, match=f"It printed: {said.strip() or 'nothing'}. To see your jobs"):
            commands.submit(path, "--hold", arguments=["3"])
    else:
        assert commands.submit(path, "--hold", arguments=["3"]) == job
    options = "--hold --mem=1G --job-name=a b : --hold --nodes=2"
    assert calls == [f"sbatch --parsable {options} {path} 3"]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("earlier", [None, b"earlier"])
def test_a_refused_script_leaves_the_earlier_one(monkeypatch, tmp_path, is_known, earlier):
    path = tmp_path / "jobs" / "run.sh"
    if earlier is not None:
        path.parent.mkdir()
        path.write_bytes(earlier)
    answer = {"return_value": "17"} if is_known else {"side_effect": LauncherError("no")}
    monkeypatch.setattr(commands, "submit", submit := Mock(**answer))
    if is_known:
        assert (script.submit(path, "one", 1), script.submit(path, "two", 2)) == (["17"], ["17_0", "17_1"])
        assert path.read_text() == "two"
    else:
        with pytest.raises(LauncherError):
            script.submit(path, "one", 1)
        assert (path.read_bytes() if path.parent.exists() else None) == earlier
    submit.assert_called_with(path, "--hold")
