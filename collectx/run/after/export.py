"""Writes the policy of a run for other programs: `collectx export`. Each function writes one format to `output`, by
default a file in the folder `export` of the run, and returns the file's path. The run folder is trusted."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from collectx.errors import ConfigError, ExportError, frames_of_user, text_of
from collectx.policy.exploration import ExplorationType
from collectx.policy.fast_call import unchecked_distributions
from collectx.policy.stochastic import StochasticPolicy
from collectx.run.after.trained import LoadedPolicy
from collectx.run.folder.files import write_atomically
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.saved_config import run_config
from collectx.run.terminal import printing

# Rows of the example with which a graph is recorded. The graph accepts any number, but would treat one row as a
# constant.
_ROWS = 2


def state_dict(run_dir: Path, output: Path | None, weights: str) -> Path:
    """Writes the policy's state dict by `torch.save`."""
    policy, path = _prepare(run_dir, output, weights, "policy.pt")
    write_atomically(path, lambda file: torch.save(_module(policy).state_dict(), file))
    return path


def torchscript(run_dir: Path, output: Path | None, weights: str) -> Path:
    """Writes a graph that maps observations to greedy actions, recorded by `torch.jit.trace`."""
    policy, path = _prepare(run_dir, output, weights, "policy.ts")
    with _quiet():
        graph = torch.jit.trace(_Greedy(policy), policy.example(_ROWS), check_trace=False)
        write_atomically(path, lambda file: torch.jit.save(graph, file))
    drawing = sorted({node.kind() for node in graph.inlined_graph.nodes() if node.isNondeterministic()})
    if drawing and not policy.samples():
        printing.note(
            f"the graph draws random numbers ({', '.join(drawing)}), so its actions may differ from call to call."
        )
    return path


def onnx(run_dir: Path, output: Path | None, weights: str) -> Path:
    """Writes a graph that maps observations to greedy actions, recorded by `torch.export`. Raises `ConfigError` if the
    packages of the extra `onnx` are missing, or `ExportError` if the policy has no graph."""
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise ConfigError(f"format=onnx needs {' and '.join(missing)}. Install it: pip install 'collectx[onnx]'")
    policy, path = _prepare(run_dir, output, weights, "policy.onnx")
    example = policy.example(_ROWS)
    batch = torch.export.Dim("batch")
    states = [".".join(each.leaf.key) for each in policy.states]
    with _quiet(), unchecked_distributions():
        graph = _Greedy(policy)
        try:
            program = torch.onnx.export(
                graph,
                example,
                dynamo=True,
                verbose=False,
                dynamic_shapes=(tuple({0: batch} for _ in example),),
                input_names=[*(".".join(leaf.key) for leaf in policy.leaves), *states],
                output_names=[
                    *(".".join(leaf.key) for leaf in policy.spec.action),
                    *(f"next.{name}" for name in states),
                ],
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ExportError(_why_no_graph(error)) from error
    assert program is not None
    write_atomically(path, lambda file: file.write(program.model_proto.SerializeToString()))
    return path


def _why_no_graph(error: BaseException) -> str:
    """Returns four lines: what to change, and the cause with the user's line that raised it. torch's own text takes a
    screen."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = re.sub(r"\x1b\[[\d;]*m", "", text_of(error)).strip().splitlines() or [""]
    own = frames_of_user(error)
    where = f"in {own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else "(not raised in your code)"
    return "\n  ".join(
        [
            "torch found no graph that fits all observations. Avoid .item(), `if` on a tensor and validate_args=True",
            "in the policy, or use format=torchscript or format=state_dict, which accept more policies.",
            f"torch.export raised {type(error).__name__}: {lines[0]}",
            where,
        ]
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what torch's exporter says about itself: warnings, and graphs that it could not complete."""
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


class _Greedy(nn.Module):
    """Maps observations and policy states, `[B, *shape]` each, to actions and next states, for any B."""

    def __init__(self, policy: LoadedPolicy):
        super().__init__()
        self.module = _module(policy).requires_grad_(False)
        self._policy = policy
        example = policy.example(_ROWS)
        forms = [[(each.shape, each.dtype) for each in act] for act in (self(*example), policy.act(example, _ROWS))]
        if forms[0] != forms[1]:
            raise ConfigError(
                f"the graph would return {forms[0]} (shape, dtype), but the env takes {forms[1]}. Use "
                "format=state_dict."
            )

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if isinstance(self.module, StochasticPolicy):
            values = {leaf.key: value for leaf, value in zip(self._policy.leaves, inputs, strict=True)}
            return (self.module.head.mode(self.module([values[key] for key in self.module.observation_keys])),)
        return self._policy.act(inputs, _ROWS, any_rows=True)


def _module(policy: LoadedPolicy) -> nn.Module:
    if not isinstance(policy.module, nn.Module):
        raise ConfigError("the policy of this run has no weights, so there is nothing to export.")
    return policy.module


def _prepare(run_dir: Path, output: Path | None, weights: str, name: str) -> tuple[LoadedPolicy, Path]:
    """Returns the policy and the output path; creates the path's folder."""
    run_folder = RunFolder(run_dir)
    cfg, kind = run_config(run_folder), ExplorationType.DETERMINISTIC
    policy = LoadedPolicy.of(run_folder, cfg, kind, torch.device("cpu"), weights)
    _module(policy)
    for text in policy.warnings():
        printing.note(text)
    path = output or run_folder.path / "export" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return policy, path
