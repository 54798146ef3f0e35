"""`launcher=submitit` and its calls of SLURM, with stand-ins of SLURM's commands that say what a test wants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from collectx.config import SubmititLauncherConfig
from collectx.errors import ConfigError, LauncherError
from collectx.launcher import sbatch
from collectx.launcher.submitit import WorkerArray, slurm_resources


def launcher(**changes):
    fields = {
        "kind": "submitit",
        "hydra_mode": None,
        "num_threads": 2,
        "pin_cores": False,
        "partition": None,
        "account": None,
        "qos": None,
        "time": None,
        "mem": None,
        "cpus_per_task": None,
        "gpus": None,
        "constraint": None,
        "exclusive": False,
        "container": None,
        "python": None,
        "queue_timeout_s": 60.0,
    }
    return SubmititLauncherConfig(**fields | changes)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """`command(name, text)` puts an executable of that name in front of all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name, text):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    return make


def script_of(tmp_path, **changes):
    logs = tmp_path / "50%" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    WorkerArray(launcher(**changes), tmp_path / "jobs" / "worker.sh", logs, [sys.executable, "-c", "pass"])
    return (tmp_path / "jobs" / "worker.sh").read_text()


def options_of(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_a_script_asks_for_what_was_given_and_nothing_else(tmp_path):
    assert options_of(script_of(tmp_path)) == [
        "--job-name=collectx-worker",
        f"--output={tmp_path}/50%%/logs/worker-%a.log",
        "--open-mode=append",
        "--ntasks=1",
        "--cpus-per-task=2",
        "--no-requeue",
    ]
    asked = options_of(
        script_of(
            tmp_path,
            partition="cpu",
            account="lab",
            qos="low",
            time="2:00:00",
            mem="4G",
            cpus_per_task=8,
            gpus=1,
            constraint="intel&ib",
            exclusive=True,
            sbatch={"nodelist": "n7", "mail_type": "FAIL", "job-name": "mine", "qos": None},
        )
    )
    assert set(asked) >= {
        "--partition=cpu",
        "--account=lab",
        "--time=2:00:00",
        "--mem=4G",
        "--cpus-per-task=8",
        "--gres=gpu:1",
        "--constraint='intel&ib'",
        "--exclusive",
        "--nodelist=n7",
        "--mail-type=FAIL",
        "--job-name=mine",
    }
    assert not any("qos" in each or "wckey" in each for each in asked)


def test_a_script_runs_the_set_up_then_the_worker_of_its_index(tmp_path, command):
    command("srun", 'echo "srun: $*"')
    text = script_of(
        tmp_path, setup=["export GREETING='good day'", 'echo "$GREETING"'], srun={"container-image": "a b"}
    )
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "2"}
    said = subprocess.run(["bash"], input=text, capture_output=True, text=True, env=environment, check=True).stdout
    assert said.splitlines() == [
        "good day",
        f"srun: --container-image=a b {sys.executable} -c pass 3",
    ]


def test_workers_are_tasks_of_one_array(tmp_path, command):
    command("sbatch", f'echo "$*" >> {tmp_path}/calls; echo "17;cluster"')
    scheduler = WorkerArray(launcher(), tmp_path / "worker.sh", tmp_path, ["true"])
    assert scheduler.submit(range(3)) == {0: "17_0", 1: "17_1", 2: "17_2"}
    assert scheduler.submit([2]) == {2: "17_2"}
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"--parsable --array=0,1,2 {tmp_path}/worker.sh",
        f"--parsable --array=2 {tmp_path}/worker.sh",
    ]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("sbatch: error: invalid partition specified: nope", "launcher.partition"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", "launcher.account"),
        ("Batch job submission failed: Requested node configuration is not available", "launcher.cpus_per_task"),
        ("Unable to contact slurm controller (connect failure)", "try again later"),
    ],
)
def test_a_refusal_has_slurms_words_and_what_to_change(command, words, advice):
    command("sbatch", f'echo "{words}" >&2; exit 1')
    with pytest.raises(LauncherError) as caught:
        sbatch.submit(["script.sh"])
    assert words in str(caught.value)
    assert advice in str(caught.value)


def test_states_are_those_of_the_jobs_asked_for(command):
    lines = [
        "17_0|RUNNING|None|n1",
        "17_1|PENDING|Resources|",
        "17_2|NODE_FAIL|NodeDown|n2",
        "17_3|COMPLETING|None|n2",
        "17_4|COMPLETED|None|n3",
        "18+0|CANCELLED|None|n1",
        "18+1|RUNNING|None|n2",
    ]
    command("squeue", "cat <<END\n" + "\n".join(lines) + "\nEND")
    found = sbatch.states(["17_0", "17_1", "17_2", "17_3", "18", "19"])
    assert list(found) == ["17_0", "17_1", "17_2", "17_3", "18"]
    assert [state.is_over for state in found.values()] == [False, False, True, False, True]
    assert [state.has_started for state in found.values()] == [True, False, True, True, True]
    assert str(found["17_0"]) == "RUNNING on n1"
    assert str(found["17_1"]) == "PENDING (Resources: what it asks for is in use)"


def test_jobs_that_slurm_has_forgotten_have_no_state_and_a_dead_controller_is_said(command):
    command("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert sbatch.states(["17"]) == {}
    command("squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
    with pytest.raises(LauncherError, match="Unable to contact"):
        sbatch.states(["17"])


def test_a_command_that_hangs_is_given_up(command, monkeypatch):
    command("scancel", "exec sleep 60")
    monkeypatch.setattr(sbatch, "COMMAND_S", 0.2)
    with pytest.raises(LauncherError, match=r"scancel has not answered for 0\.2 s"):
        sbatch.cancel(["17"])


def test_what_slurm_told_this_job_is_not_told_to_another(command, monkeypatch):
    command("sbatch", "env >&2; exit 1")
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURMD_NODENAME", "SRUN_DEBUG", "SLURM_CONF", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(LauncherError) as caught:
        sbatch.submit([])
    seen = str(caught.value)
    assert "SLURM_CONF=x" in seen
    assert "SBATCH_ACCOUNT=x" in seen
    assert not any(name in seen for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURMD_NODENAME", "SRUN_DEBUG"))


def test_what_jobs_ask_for_is_said_in_submitits_words(command):
    command("srun", "exit 0")
    given = {
        "timeout_min": 10,
        "mem_gb": 1.5,
        "cpus_per_task": 2,
        "slurm_gpus_per_node": 1,
        "slurm_partition": "p",
        "account": "mine",
        "slurm_mail_type": "FAIL",
        "name": "mine",
        "slurm_setup": ["module load cuda"],
        "slurm_exclusive": "user",
        "slurm_srun_args": ["--mpi=none", "--exact"],
        "slurm_additional_parameters": {"reservation": "r"},
        "nodes": 1,
        "slurm_qos": None,
    }
    asked = slurm_resources(given, 3)
    assert (asked.time, asked.mem, asked.cpus_per_task, asked.gpus) == ("10", "1536MB", 2, 1)
    assert (asked.partition, asked.account, asked.qos, asked.exclusive) == ("p", "mine", None, False)
    assert asked.sbatch == {"mail-type": "FAIL", "job-name": "mine", "exclusive": "user", "reservation": "r"}
    assert asked.srun == {"mpi": "none", "exact": True}
    assert (asked.setup, asked.num_threads) == (["module load cuda"], 3)
    assert slurm_resources({}, 1).time is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"slurm_partitoin": "p"}, "Unknown argument 'partitoin' for executor 'slurm'"),
        ({"timeout_min": "ten"}, '"timeout_min" expected type'),
        ({"tasks_per_node": 4, "slurm_teardown": ["ls"]}, "ntasks_per_node=4: a worker is one task on one node"),
    ],
)
def test_what_submitit_does_not_know_is_refused_in_its_words(command, given, sentence):
    command("srun", "exit 0")
    with pytest.raises(ConfigError) as caught:
        slurm_resources(given, 1)
    assert any(sentence in problem for problem in caught.value.problems)


def test_without_slurm_submitit_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="are you indeed on a slurm cluster"):
        slurm_resources({"timeout_min": 10}, 1)
