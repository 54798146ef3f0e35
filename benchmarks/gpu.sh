#!/usr/bin/env bash
# Runs benchmarks/gpu.py on a machine with a GPU, Python 3.12 and torch, and without a network:
#
#     make gpu-bundle                            on a machine with a network: wheels in gpu-bundle/
#     benchmarks/gpu.sh RESULTS [--device cpu]   on the other one, in a copy of this folder
set -euo pipefail
cd "$(dirname "$0")/.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site" gpu-bundle/*.whl
# The installed package has `collectx.cli` and `collectx.conf`, which the folder `collectx/` of a checkout lacks.
export PYTHONPATH="$site:$PWD" PYTHONSAFEPATH=1 PATH="$site/bin:$PATH"
python3 -m benchmarks.gpu "$@"
