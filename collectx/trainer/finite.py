"""`trainer.check_finite`: ends a run if a loss or a weight is not finite, before the weights are published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from collectx.config.schema.trainer import LearningTrainerConfig
from collectx.errors import TrainingDivergedError
from collectx.policy.flat_weights import largest


def check_finite(
    cfg: LearningTrainerConfig,
    names: Sequence[str],
    losses: torch.Tensor,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Checks the losses of the newest gradient steps, and all weights, unless `cfg.check_finite` is false. Raises
    `TrainingDivergedError` if a value is not finite; the message names the first such loss, otherwise the first weight,
    and the step. `losses` is `[steps, names]`, a row per gradient step, at least one. `optimizer` counts the gradient
    steps of the run."""
    if not cfg.check_finite:
        return
    weights = {f"{of}.{name}": weight for of, module in modules.items() for name, weight in module.named_parameters()}
    if torch.cat((losses.flatten(), torch.stack(largest(weights.values())))).isfinite().all():
        return
    last_step = int(max(state["step"] for state in optimizer.state.values()))
    problems = [
        (last_step - len(losses) + row, f"{name} is {value}")
        for row, values in enumerate(losses.tolist(), 1)
        for name, value in zip(names, values, strict=True)
        if not math.isfinite(value)
    ]
    for name, weight in weights.items():
        bad = weight[~weight.isfinite()]
        if len(bad):
            problems.append((last_step, f"the weight {name} contains {bad[0].item()}"))
    step, what = problems[0]
    norm = "null" if cfg.max_grad_norm is None else f"{cfg.max_grad_norm:g}"
    raise TrainingDivergedError(
        f"{what} in gradient step {step} of trainer={cfg.kind}: training diverged, or batches contain such values "
        f"(possible with collector.check_finite=false). Lower trainer.learning_rate (now {cfg.learning_rate:g}) or "
        f"trainer.max_grad_norm (now {norm}), or continue with trainer.check_finite=false collector.check_finite=false."
    )
