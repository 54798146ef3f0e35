"""Cores that the trainer may use, by what limits them."""

import os

import pytest

from collectx.run import cores


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Control groups, whose files a test writes."""
    monkeypatch.setattr(cores, "_CGROUP_FILE", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_CGROUP_ROOT", tmp_path / "root")
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)

    def write(lines, **files):
        (tmp_path / "cgroup").write_text("\n".join(lines))
        for name, text in files.items():
            path = tmp_path / "root" / name.replace("__", "/").replace("_OF_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    return write


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ([], {}, []),
        (
            ["0::/a/b"],
            {"a__b__cpu_OF_max": "150000 100000", "a__cpu_OF_max": "max 100000", "cpu_OF_max": "3 1"},
            [1.5, 3.0],
        ),
        (["0::/a"], {"b__cpu_OF_max": "1 1"}, []),
        (
            ["4:cpu,cpuacct:/a", "5:memory:/m", "6:cpuset:/c"],
            {
                **{"cpu,cpuacct__a__cpu_OF_cfs_quota_us": "50", "cpu,cpuacct__a__cpu_OF_cfs_period_us": "100"},
                **{"cpu,cpuacct__cpu_OF_cfs_quota_us": "-1", "cpu,cpuacct__cpu_OF_cfs_period_us": "100"},
            },
            [0.5],
        ),
    ],
)
def test_quotas_are_those_of_all_control_groups_above(groups, lines, files, expected):
    groups(lines, **files)
    assert cores.limits().get("control group") == (min(expected) if expected else None)
    assert cores.num_cores() >= 1


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, None),
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "8"}, 3),
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "4,3"}, 2),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_NODEID": "1"}, 2),
        ({"SLURM_CPUS_ON_NODE": "9", "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_NODEID": "1"}, 3),
        ({"SLURM_CPUS_ON_NODE": "9", "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_NODEID": "2"}, 9),
    ],
)
def test_the_cores_of_a_task_of_slurm(monkeypatch, environment, count):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cores.limits().get("SLURM") == count


@pytest.mark.parametrize(("num_processes", "is_short"), [(1, False), (8, False), (9, True)])
def test_each_busy_process_should_have_half_a_core(monkeypatch, num_processes, is_short):
    monkeypatch.setattr(cores, "num_cores", lambda: 4)
    assert (cores.shortage(num_processes) is not None) == is_short
