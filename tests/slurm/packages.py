"""SLURM's programs from Debian's packages. Must not know what they are used for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

# libpmix-dev is for `srun --mpi=pmix`.
_SLURM = {"slurmctld slurmd sbatch srun munged ip": ["slurm-wlm", "munge", "iproute2", "libpmix-dev"]}
_ACCOUNTING = {"slurmdbd mariadbd mariadb-admin": ["slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server"]}


def obstacle(accounting: bool = False) -> str | None:
    """Installs missing packages (blocks for up to some minutes) and returns None, or the reason why that is impossible,
    in one line."""
    if sys.platform != "linux":
        return f"SLURM runs on Linux, this is {sys.platform}"
    for programs, packages in (_SLURM | (_ACCOUNTING if accounting else {})).items():
        missing = ", ".join(program for program in programs.split() if not _is_on_path(program))
        if not missing:
            continue
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            return f"{missing} not installed: as root, apt-get install {' '.join(packages)}"
        install = ["install", "--yes", "--no-install-recommends", *packages]
        # The package lists may be missing or old: update them and try a second time.
        if failure := _apt(install) and (_apt(["update"]) or _apt(install)):
            return f"{missing} not installed, and apt-get failed: {failure}"
    return None


def _is_on_path(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin") is not None


def _apt(arguments: list[str]) -> str | None:
    """None, or the last line that apt-get wrote."""
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took longer than 300 s"
    output = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return None if done.returncode == 0 else (output or [f"exit status {done.returncode}"])[-1]
