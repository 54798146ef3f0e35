"""A Ray cluster of two machines, as the page "Several machines without SLURM" sets it up. The machines are network
namespaces that share neither /tmp nor a home directory."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pages
import pytest
import yaml
from commands import environment
from machines import HEAD, TRIAL, Machines, wait_until

from collectx.run import RunFolder

pytest.importorskip("ray")
pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("ray_machines"), pytest.mark.timeout(900)]
PAGE = pages.ROOT / "docs" / "how-to" / "several-machines.md"
WHERE = re.compile(r"<!-- not run: on the machine (\w+) -->")


class RayMachines(Machines):
    """`shared` is the only folder that both machines see; each starts commands in its own `/tmp/mine`."""

    def bash(self, machine, script, status=0, **options):
        """Starts or runs a line of bash, and returns what it prints."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
        with self.start(["bash", "-c", script], machine, Path("/tmp/mine"), **options) as process:
            said, _ = process.communicate(timeout=200)
        assert process.returncode == status, f"{machine}: {script}\n{said}"
        return said

    def ray(self, block):
        """Starts Ray as a block of the page does."""
        machine = WHERE.search(PAGE.read_text().splitlines()[block.line - 1])[1]
        self.bash(machine, "\n".join(command for command, _ in block.commands()))


@pytest.fixture(scope="module")
def machines():
    if os.geteuid():
        pytest.skip("namespaces are for root")
    home = Path.cwd()
    # The working directory of this process does not exist on the machines.
    os.chdir("/")
    with tempfile.TemporaryDirectory(prefix="collectx-ray-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        for name in ("log", "shared"):
            (folder / name).mkdir()
        # Debian's `ip` may not be on the path of a user.
        environ = environment(HOME="/tmp/home", RAY_AUTH_MODE="token", COLUMNS="140")
        environ["PATH"] += ":/usr/sbin:/sbin"
        if subprocess.run(TRIAL, env=environ, capture_output=True).returncode:
            pytest.skip("this machine has no namespaces")
        prefixes = [pages.ROOT, Path(sys.prefix), Path(sys.base_prefix), folder / "shared"]
        cluster = RayMachines(folder, ["first", "second"], prefixes, environ)
        try:
            for machine in (HEAD, *cluster.nodes):
                cluster.boot(machine)
            for machine in cluster.nodes:
                cluster.login(["mkdir", "/tmp/mine", "/tmp/home"], machine=machine, cwd=Path("/"))
            first, second = (block for block in pages.blocks(PAGE) if "ray start" in block.text)
            cluster.ray(first)
            token = cluster.bash("first", "cat ~/.ray/auth_token").strip()
            cluster.bash("second", f"mkdir ~/.ray; echo -n {token} > ~/.ray/auth_token")
            cluster.ray(second)
            yield cluster
        finally:
            for machine in (*cluster.nodes, HEAD):
                cluster.crash(machine)
            os.chdir(home)


def test_the_commands_of_the_page(machines):
    for block in pages.blocks(PAGE):
        if block.title == "my_env.py":
            machines.bash("first", f"cat > my_env.py <<'EOF'\n{block.text}EOF")
        here = WHERE.search(PAGE.read_text().splitlines()[block.line - 1])
        if here is None or "ray start" in block.text:
            continue
        for command, lines in block.commands():
            printed = machines.bash(here[1], command)
            missing, _ = pages.compare(lines, printed.splitlines())
            assert missing is None, f"{command}\nnot printed: {missing}\nprinted:\n{printed}"
    joined = [event for event in _events(machines, "first-run") if event["event"] == "worker_joined"]
    assert {event["host"] for event in joined} == {"first", "second"}
    # A run in Kubernetes, in this cluster.
    (manifest,) = (yaml.safe_load(block.text) for block in pages.blocks(PAGE) if block.title == "rayjob.yaml")
    words = shlex.split(manifest["spec"]["entrypoint"].replace("/shared", str(machines.folder / "shared")))
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert f"collector.num_workers={group['replicas'] * container['resources']['limits']['cpu']}" in words
    machines.bash("first", f"RAY_ADDRESS=first:6379 {shlex.join(words)}")
    assert RunFolder(machines.folder / "shared" / "runs" / "first").read_result()["status"] == "completed"


def _events(machines, run):
    """The events of a run of the first machine."""
    machines.bash("first", f"cp {run}/events.jsonl {machines.folder / 'shared'}")
    return RunFolder(machines.folder / "shared").read_events()


RUN = "collectx run collector=ray launcher=ray trainer=meter policy=random launcher.ray_init_config.address=auto"
TINY = f"{RUN} debug=tiny collector.num_workers=4"


def test_what_another_machine_lacks_is_said_with_what_to_type(machines):
    code = "import gymnasium; make = lambda: gymnasium.make('CartPole-v1')"
    machines.bash("first", f'echo "{code}" > only_here.py')
    mine = f"{TINY} env=gym env.entry_point=only_here:make"
    said = machines.bash("first", mine, status=1)
    assert "No module named 'only_here'. Install it on every node, or let Ray copy the folder that contains it:" in said
    assert "launcher.ray_init_config.runtime_env.working_dir=.\n" in said
    said = machines.bash("first", f"{mine} launcher.ray_init_config.runtime_env.working_dir=none", status=2)
    assert "directory none must be an existing directory" in said
    assert "ray start --head" not in said
    said = machines.bash("second", TINY.replace("auto", "second:6379"), status=2)
    assert "Start a cluster with `ray start --head`" in said
    said = machines.bash("first", f"{TINY} backend.interface=lo", status=1)
    assert "second could not reach the trainer at 127.0.0.1" in said
    assert "Bad file descriptor" not in said
    machines.login(["mount", "-t", "tmpfs", "tmpfs", str(pages.ROOT / "collectx")], machine="second", cwd=Path("/"))
    try:
        said = machines.bash("first", TINY, status=1)
    finally:
        machines.login(["umount", str(pages.ROOT / "collectx")], machine="second", cwd=Path("/"))
    assert "No module named 'collectx'. Install the same version of collectx in the Python of each node" in said


def test_the_workers_of_a_lost_machine_start_again_on_another_or_the_run_says_what_they_wait_for(machines):
    """Both of its workers fit on the other machine, whose two cores are free; of four workers, two do not."""
    shared = machines.folder / "shared" / "lost"
    output = machines.folder / "said.txt"
    words = f"{RUN} collector.on_worker_failure=restart collector.max_restarts=20 collector.total_frames=-1"
    words += f" collector.num_workers=2 launcher.remote_configs.scheduling_strategy=SPREAD hydra.run.dir={shared}"

    def joined(host):
        events = RunFolder(shared).read_events()
        return [event for event in events if event["event"] == "worker_joined" and event["host"] == host]

    def wait_for(condition, what):
        wait_until(lambda: condition() or run.poll() is not None, 120, what)
        assert run.poll() is None, output.read_text()

    def start(words):
        with open(output, "w") as said:
            command = ["bash", "-c", f"exec {words}"]
            return machines.start(command, "first", Path("/tmp/mine"), stdout=said, stderr=subprocess.STDOUT)

    def stop():
        machines.bash("first", f"kill -INT $(pgrep -f '^[^ ]*python[^ ]* .*hydra.run.dir={shared}')")
        run.wait(60)
        assert RunFolder(shared).read_result()["status"] == "interrupted", output.read_text()

    run = start(words)
    wait_for(lambda: joined("first") and joined("second"), "both workers")
    machines.bash("second", "kill -9 $(pgrep -x raylet)")
    wait_for(lambda: len(joined("first")) == 2, "the other machine's worker")
    stop()
    assert "on second is gone" in output.read_text()
    run = start(f"{words} run.overwrite=true collector.num_workers=4 launcher.autoscaling=true")
    wait_for(lambda: "waits for its start: it asks for 1 CPU. Nodes: 1 with 2 CPU" in output.read_text(), "the reason")
    machines.bash("second", "ray stop --force; ray start --address=first:6379")
    wait_for(lambda: len(joined("second")) == 2, "workers on the machine that has come back")
    stop()


def test_learners_on_several_machines_need_a_run_folder_that_all_share(machines):
    """Learners 1 and 2 each ask for all cores of a machine."""
    shared = machines.folder / "shared"
    words = "collectx run launcher=ray launcher.ray_init_config.address=auto trainer.num_learners=3 trainer.digest=true"
    words += " collector.num_workers=3 collector.frames_per_batch=384 collector.total_frames=1536"
    machines.bash("first", f"{words} hydra.run.dir={shared}/learners")
    local = words.replace("launcher=ray launcher.ray_init_config.address=auto", "launcher=local")
    machines.bash("first", f"{local} hydra.run.dir={shared}/local")
    digests = {RunFolder(shared / name).read_result()["digest"] for name in ("learners", "local")}
    assert len(digests) == 1
    said = machines.bash("first", f"{words} hydra.run.dir=mine", status=1)
    assert "second does not see the run folder /tmp/mine/mine. Choose a folder on a file system that all nodes" in said
