"""Which backends can work here."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from collectx.config import registry
from collectx.config.registry import why_not


@pytest.mark.skipif(torch.distributed.is_ucc_available(), reason="torch is built with UCC")
def test_what_torch_was_built_without_is_refused_with_the_reason():
    assert "is built without UCC" in why_not("ucc")


@pytest.mark.parametrize(
    ("version", "prte", "reason"),
    [
        (None, "prte", "mpi4py is not installed. Install it (pip install 'collectx[mpi]')"),
        ("MPICH 4.1, of 2023", "prte", "this is MPICH 4.1. Install Open MPI (pip install"),
        ("Open MPI v5", None, "its program prte to start workers, but it is neither in"),
        ("Open MPI v5", "prte", "Set PRTE_ALLOW_RUN_AS_ROOT=1"),
    ],
)
def test_mpi_is_refused_where_it_would_start_no_worker(monkeypatch, within, version, prte, reason):
    mpi = SimpleNamespace(Get_library_version=lambda: version)
    mpi4py = version and SimpleNamespace(rc=SimpleNamespace(), MPI=mpi)
    monkeypatch.setitem(sys.modules, "mpi4py", mpi4py)
    monkeypatch.setitem(sys.modules, "collectx.transport.network.mpi", None)
    del sys.modules["collectx.transport.network.mpi"]
    if version is not None:
        module = importlib.import_module("collectx.transport.network.mpi")
        within(module, "shutil", which=lambda name, path: prte)
        within(module, "os", geteuid=lambda: 0)
    for name in ("PMIX_NAMESPACE", "PRTE_ALLOW_RUN_AS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert reason in why_not("mpi")


def test_a_library_that_cannot_be_loaded_is_named_in_one_line(monkeypatch):
    def fails(group, kind):
        raise RuntimeError("cannot load MPI library\nlibmpi.so: No such file")

    monkeypatch.setattr(registry, "implementation", fails)
    assert "(cannot load MPI library). Install it (pip install" in registry.why_not("mpi")
