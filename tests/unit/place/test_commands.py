"""What SLURM's commands print, read."""

import pytest

from collectx.errors import LauncherError
from collectx.place.slurm import commands


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
    values = {"no_kill": True, "overlap": False, "nodes": 2, "time": None, "mem": "", "ntasks": 0}
    assert commands.options(values) == ["--no-kill", "--nodes=2", "--mem=", "--ntasks=0"]
    assert [commands.per_node(text) for text in ("4(x2),2", "3", "")] == [[4, 4, 2], [3], []]


def test_states_are_those_of_the_first_part_of_a_job():
    rows = [
        ("7", "RUNNING", "None", "n1"),
        ("8+0", "PENDING", "Priority", ""),
        ("8+1", "FAILED", "x", ""),
        ("9", "X", "", ""),
    ]
    found = commands._read_states(rows, ["8", "7", "6"])
    assert list(found) == ["8", "7"]
    assert [(state.word, state.is_over, state.has_started) for state in found.values()] == [
        ("PENDING", False, False),
        ("RUNNING", False, True),
    ]
    (over,) = commands._read_states([("7", "TIMEOUT", "", "")], ["7"]).values()
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
        (None, commands._DEFAULT_ARRAY_SIZE),
        ("Other = 3", commands._DEFAULT_ARRAY_SIZE),
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
