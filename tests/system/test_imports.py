"""Each module can be imported as the first one of the product: processes of workers, of the evaluator and of users
begin with any of them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
PRODUCT = Path(__file__).parents[2] / "collectx"
# Arguments: modules. Each is imported in a fork that has what they need.
EACH_FIRST = """
import os, sys, torch, tensordict, gymnasium, hydra
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            os._exit((error.name or "").startswith("collectx"))
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_each_module_can_be_imported_first():
    paths = [path.relative_to(PRODUCT.parent).with_suffix("") for path in sorted(PRODUCT.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    # Those initialise MPI, are the command, or make a process the fork server.
    others = ("__main__", "place.mpi", "network.mpi", "fork_server.end")
    names = [name for name in names if not name.endswith(others)]
    command = [sys.executable, "-c", EACH_FIRST, *names]
    done = subprocess.run(command, cwd=PRODUCT.parent, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert len(names) > 200


@pytest.mark.parametrize("line", ["eval nowhere", "export nowhere format=onnx", "export nowhere format=memmap"])
def test_a_folder_that_does_not_exist_is_refused_without_torch(line, tmp_path):
    name, *words = line.split()
    code = f"import sys; from collectx.cli.{name} import main; print(main({words}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 False\n"
    assert "there is no folder" in done.stderr
