"""SLURM's programs from Debian's packages. Must not know what they are used for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged")
# The last is for `srun --mpi=pmix`.
_PACKAGES = ("slurm-wlm", "munge", "iproute2", "libpmix-dev")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb-admin")
_ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")


def obstacle(accounting: bool = False) -> str | None:
    """Installs what is missing, if it can (blocks for up to some minutes), and returns None; or why there can be no
    SLURM here, in one line."""
    if sys.platform != "linux":
        return f"SLURM runs on Linux, this is {sys.platform}"
    problem = _have(_PROGRAMS, _PACKAGES)
    return problem or (_have(_ACCOUNTING_PROGRAMS, _ACCOUNTING_PACKAGES) if accounting else None)


def _have(programs: tuple[str, ...], packages: tuple[str, ...]) -> str | None:
    missing = [program for program in programs if not _on_path(program)]
    if not missing:
        return None
    lacks = f"{', '.join(missing)} not installed"
    if os.geteuid() != 0:
        return f"{lacks}, and only root can: apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        return f"{lacks}, and there is no apt-get to install {' '.join(packages)} with"
    failure = _install(packages)
    return failure and f"{lacks}, and apt-get failed: {failure}"


def _on_path(program: str) -> bool:
    # The daemons live where only root's PATH leads.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin") is not None


def _install(packages: tuple[str, ...]) -> str | None:
    """None, or the last line that apt-get said."""
    install = ["install", "--yes", "--no-install-recommends", *packages]
    # The lists of packages may be missing or old: then a second time.
    return _apt(install) and (_apt(["update"]) or _apt(install))


def _apt(arguments: list[str]) -> str | None:
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took longer than 300 s"
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else f"exit status {done.returncode}"
