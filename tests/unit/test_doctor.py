"""The checks of `collectx doctor`, one by one, on machines that are worse than this one."""

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from collectx import doctor, memory
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
    (["torch>=99"], "problem", "is installed, but collectx needs >=99"),
    (["torch>=99; extra == 'fast'"], "warning", "is installed, but collectx needs >=99"),
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
    assert (finding.level, "(control group limit: 0.5 GB)" in finding.text) == ("warning", True)


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
        ("ok", "accounting works"),
    ]
    queue.sinfo = lambda command: "train*|down*|1\n"
    queue.sacct = lambda command: queue.no_such_command
    monkeypatch.setattr(doctor.commands, "why_no_accounting", lambda: "Slurm accounting storage is disabled")
    assert levels("slurm") == ["warning", "warning"]
    queue.error = "Unable to contact slurm controller"
    assert levels("slurm") == ["problem"]
    queue.error_type = doctor.commands.NoCluster
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


@pytest.mark.parametrize(("module", "name", "expected"), [
    ("tempfile", "gettempdir", [("problem", "set TMPDIR to another folder."), ("ok", "")]),
    ("os", "getcwd", [("ok", ""), ("problem", "choose writable folders with hydra.run.dir and hydra.sweep.dir.")]),
])  # fmt: skip
def test_a_folder_that_cannot_be_written_to(within, module, name, expected):
    within(doctor, module, **{name: lambda: "/proc"})
    assert [(finding.level, finding.advice) for finding in found("folders")] == expected


def test_a_machine_that_maps_no_shared_memory(within):
    def refuse(descriptor, nbytes):
        raise OSError("Operation not permitted")

    within(memory, "mmap", mmap=refuse)
    first = found("shared memory")[0]
    assert (first.level, first.text) == (
        "problem",
        "batches cannot share memory, because memfd_create fails: Operation not permitted",
    )


def test_a_check_that_fails_is_a_problem_and_the_exit_status_says_so(monkeypatch, capsys):
    def fails():
        raise OSError("no /proc")

    monkeypatch.setattr(doctor, "CHECKS", {"fails": fails})
    assert command.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {
            "check": "fails",
            "level": "problem",
            "text": "the check failed: OSError: no /proc",
            "advice": "please report this as a bug.",
        }
    ]
    monkeypatch.setattr(doctor, "CHECKS", {"clock": lambda: [doctor.Finding("warning", "it is late", "go home.")]})
    assert command.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "warning  clock          it is late",
        f"{'':24}-> go home.",
    ]
    assert command.main(["now"]) == 2


def shown(name):
    return [f"  {each.level}: {each.text}{f' -> {each.advice}' if each.advice else ''}" for each in found(name)]


def test_whole_findings(expected, monkeypatch, within, queue, tmp_path):
    """The checks describe machines of every kind, at the limits too."""
    text = []

    def say(case, name, **hidden):
        lines = shown(name)
        for word, there in hidden.items():
            lines = [line.replace(there, word) for line in lines]
        text.extend([f"{name}, {case}", *lines])

    within(doctor, "os", cpu_count=lambda: 64)
    for threads, limits in (
        ("", {"affinity": 8}),
        ("8", {"affinity": 8}),
        ("9", {"affinity": 8}),
        ("x", {"affinity": 3}),
        ("", {"affinity": 2}),
        ("", {"affinity": 1}),
        ("", {"affinity": 8, "control group": 1.5}),
        ("", {"affinity": 8, "SLURM": 2}),
        ("", {"affinity": 8, "SLURM": 8}),
        ("", {"affinity": 8, "control group": 2.0, "SLURM": 2}),
        ("", {"affinity": 8, "control group": 4.0, "SLURM": 3}),
    ):
        monkeypatch.setattr(cores, "limits", lambda limits=limits: limits)
        monkeypatch.setattr(cores, "num_cores", lambda limits=limits: max(1, int(min(limits.values()))))
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        say(f"{limits}, OMP_NUM_THREADS={threads}", "cores")
    import psutil

    for free, values in (
        (10**9, []),
        (10**9 - 1, []),
        (4 * 10**9, ["max"]),
        (4 * 10**9, ["999999999", "2000000000"]),
        (4 * 10**9, ["1000000000", str(8 * 10**9), str(2**63)]),
    ):
        memory = SimpleNamespace(available=free, total=8 * 10**9)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        monkeypatch.setattr(cores, "control_group_values", lambda *names, values=values: iter(values))
        say(f"{free} bytes free, limits {values}", "memory")
    import resource

    monkeypatch.setattr(doctor, "descriptors", lambda num_workers: 10 * num_workers)
    for hard in (639, 640, 641, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, hard=hard: (256, hard))
        say(f"a hard limit of {hard}", "open files")
    for free in (2**26, 2**26 + 1):
        within(doctor, "shutil", disk_usage=lambda path, free=free: SimpleNamespace(free=free), which=lambda name: None)
        say(f"{free} bytes free", "shared memory")
    within(doctor, "socket", gethostname=lambda: "host")
    for addresses in (("127.0.0.1",), ("127.0.0.2",), ("127.0.0.2", "10.0.0.1")):
        monkeypatch.setattr(doctor, "local_addresses", lambda interface, addresses=addresses: addresses)
        say(f"{addresses}", "network")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    queue.sacct = lambda command: ""
    for nodes in ("", "a*|idle|3\na*|down*|1\nb|mixed~|2\n", "a|down|1\n", "a|completing|1\n", "a|allocated#|1\n"):
        queue.sinfo = lambda command, nodes=nodes: nodes
        say(repr(nodes), "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(doctor.commands, "why_no_accounting", lambda: "it is disabled")
    say("in a job", "slurm")
    monkeypatch.setattr(doctor.registry, "why_not", lambda *kind: f"{kind[0]} is broken")
    say("without ray", "ray")
    say("all broken", "backends")
    monkeypatch.setattr(doctor.registry, "why_not", lambda *kind: None)
    say("all fine", "backends")
    for address in (None, "auto", "ray://127.0.0.1:x"):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if address is not None:
            monkeypatch.setenv("RAY_ADDRESS", address)
        say(f"RAY_ADDRESS={address}", "ray")
    import torch

    monkeypatch.setattr(torch, "__version__", "2.0")
    say("no GPU", "gpus")
    within(doctor, "shutil", which=lambda name: name)
    say("no build for GPUs", "gpus")
    for name, result in {"is_available": True, "device_count": 2, "get_device_name": "GPU"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *index, result=result: result)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1.26e9, (index + 2) * 10**9))
    say("two", "gpus")
    for free, late_s in ((10**9, 0.0), (10**9 + 1, 1.9), (2 * 10**9, 2.1), (2 * 10**9, -2.1)):
        now_s = doctor.Path(doctor.__file__).stat().st_mtime
        within(doctor, "shutil", disk_usage=lambda path, free=free: SimpleNamespace(free=free))
        clock = SimpleNamespace(st_mtime=now_s - late_s)
        within(doctor, "os", stat=lambda path, clock=clock: clock, getcwd=lambda: str(tmp_path))
        within(doctor, "time", time=lambda now_s=now_s: now_s, strftime=lambda *form: "NOW")
        within(doctor, "tempfile", gettempdir=lambda: str(tmp_path))
        say(f"{free} bytes free, {late_s} s late", "folders", PATH=str(tmp_path))
        within(doctor, "time", time=lambda now_s=now_s, late_s=late_s: now_s - late_s, strftime=lambda *form: "NOW")
        say(f"{late_s} s late", "clock")
    expected("findings", "\n".join(text))
