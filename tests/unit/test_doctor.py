"""The checks of `collectx doctor`, one by one, on machines that are worse than this one."""

import json
from importlib import metadata

import pytest

from collectx import doctor
from collectx.cli import doctor as command
from collectx.run import cores


def found(name):
    return list(doctor.CHECKS[name]())


def levels(name):
    return [finding.level for finding in found(name)]


@pytest.mark.parametrize("name", doctor.CHECKS)
def test_every_finding_has_a_level_and_what_to_do(name):
    for finding in found(name):
        assert finding.level in ("ok", "absent", "warning", "problem")
        assert finding.text
        assert finding.advice or finding.level in ("ok", "absent")


@pytest.mark.parametrize(("requires", "level", "text"), [
    (["torch>=99"], "problem", "is not >=99"),
    (["torch>=99; extra == 'fast'"], "warning", "is not >=99"),
    (["collectx-nothing>=1"], "problem", "collectx-nothing is not installed"),
    (["collectx-nothing>=1; extra == 'fast'"], "ok", ""),
])  # fmt: skip
def test_packages_against_the_bounds_of_the_installation(within, requires, level, text):
    within(doctor, "importlib", metadata=metadata)
    doctor.importlib.metadata = type(
        "Metadata", (), {**vars(metadata), "requires": staticmethod(lambda name: requires)}
    )
    first = found("packages")[0]
    assert (first.level, text in first.text) == (level, True)


def test_an_older_python(within):
    within(doctor, "sys", version_info=(3, 9, 1), executable="/usr/bin/python3")
    assert levels("python") == ["problem"]


@pytest.mark.parametrize(("limits", "threads", "expected"), [
    ({"affinity": 8}, "", ["ok"]),
    ({"affinity": 8, "control group": 1.5}, "", ["warning"]),
    ({"affinity": 8, "SLURM": 2}, "", ["warning"]),
    ({"affinity": 2, "SLURM": 2}, "", ["ok"]),
    ({"affinity": 8}, "16", ["ok", "warning"]),
])  # fmt: skip
def test_cores_and_what_limits_them(monkeypatch, limits, threads, expected):
    monkeypatch.setattr(cores, "limits", lambda: limits)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert levels("cores") == expected


def test_a_memory_limit_of_the_control_group(monkeypatch):
    monkeypatch.setattr(cores, "control_group_values", lambda *arguments: iter(["max", "500000000", str(2**63)]))
    (finding,) = found("memory")
    assert (finding.level, "control group 0.5 GB" in finding.text) == ("warning", True)


def test_few_open_files(monkeypatch):
    monkeypatch.setattr(doctor, "descriptors", lambda num_workers: 2**70)
    import resource

    is_unlimited = resource.getrlimit(resource.RLIMIT_NOFILE)[1] == resource.RLIM_INFINITY
    assert levels("open files") == ["ok" if is_unlimited else "warning"]


def test_a_small_shm(within):
    within(doctor, "shutil", disk_usage=lambda path: type("Usage", (), {"free": 2**26}))
    assert levels("shared memory")[-1] == "warning"


@pytest.mark.parametrize(("addresses", "level"), [
    (("127.0.0.1",), "absent"),
    (("203.0.113.7",), "problem"),  # no interface of this machine has it
])  # fmt: skip
def test_addresses_that_no_worker_reaches(monkeypatch, addresses, level):
    monkeypatch.setattr(doctor, "local_addresses", lambda interface: addresses)
    assert levels("network") == [level]


def test_slurm_in_each_state(queue, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    queue.sinfo = lambda command: "train*|idle|3\ntrain*|down*|1\n"
    queue.sacct = lambda command: ""
    assert [(finding.level, finding.text) for finding in found("slurm")] == [
        ("ok", "nodes: train* 3 idle, 1 down*"),
        ("ok", "accounting answers"),
    ]
    queue.sinfo = lambda command: "train*|down*|1\n"
    queue.sacct = lambda command: queue.no_such_command
    monkeypatch.setattr(doctor.commands, "why_no_accounting", lambda: "Slurm accounting storage is disabled")
    assert levels("slurm") == ["warning", "warning"]
    queue.error = "Unable to contact slurm controller"
    assert levels("slurm") == ["problem"]
    queue.error = "sinfo: fatal: Could not establish a configuration source"
    assert levels("slurm") == ["absent"]
    monkeypatch.setattr(doctor.commands, "is_here", lambda: False)
    assert levels("slurm") == ["absent"]


def test_a_ray_cluster_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(doctor.registry, "why_not", lambda *kind: None)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert levels("ray") == ["problem"]


def test_clocks(within, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    within(doctor, "time", time=lambda: 1e9)
    assert levels("clock") == ["problem"]
    assert levels("folders").count("warning") == 2  # files are not from 2001


def test_a_folder_that_cannot_be_written_to(within):
    within(doctor, "os", getcwd=lambda: "/proc")
    assert levels("folders") == ["ok", "problem"]


def test_a_check_that_fails_is_a_problem_and_the_exit_status_says_so(monkeypatch, capsys):
    def fails():
        raise OSError("no /proc")

    monkeypatch.setattr(doctor, "CHECKS", {"fails": fails})
    assert command.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"check": "fails", "level": "problem", "text": "the check failed: OSError: no /proc", "advice": "report it."}
    ]
    monkeypatch.setattr(doctor, "CHECKS", {"clock": lambda: [doctor.Finding("warning", "it is late", "go home.")]})
    assert command.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "warning  clock          it is late",
        f"{'':24}-> go home.",
    ]
    assert command.main(["now"]) == 2
