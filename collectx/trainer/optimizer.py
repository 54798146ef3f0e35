"""Adam without torch's compiler.

`trainer.check_finite`: ends a run if a loss or a weight is not finite, before the weights are published.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from collectx.config.schema.trainer import LearningTrainerConfig
from collectx.errors import TrainingDivergedError
from collectx.policy.flat_weights import largest
from collectx.trainer.learners import ALONE


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` whose methods do not import `torch._dynamo`, which takes a second and 70 MB. Torch's own
    methods import it to exclude themselves from compilation; no trainer of collectx compiles its step.

    Attributes:
        learners: those over which `clipped_step` averages the gradients first.
    """

    learners = ALONE

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)

    def minimize(self, loss: torch.Tensor, max_norm: float | None) -> None:
        """Takes one gradient step to reduce `loss`, with a gradient of at most this norm; None: of any."""
        self.zero_grad()
        loss.backward()
        self.clipped_step(max_norm)

    @torch.no_grad()
    def clipped_step(self, max_norm: float | None) -> None:
        """Has the effect of `torch.nn.utils.clip_grad_norm_` and `step`, with a few calls for all parameters together:
        on small networks, a call takes longer than its arithmetic."""
        group = self.param_groups[0]
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters]
        if not parameters:
            return
        self.learners.average(gradients)
        if max_norm is not None:
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1.0))
        states = [self.state[parameter] for parameter in parameters]
        if not all(states):
            self.step()  # makes the states
            return
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )


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
