"""Adam without torch's compiler."""

from __future__ import annotations

import inspect

import torch


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` whose methods do not import `torch._dynamo`, which takes a second and 70 MB. Torch's own
    methods import it to exclude themselves from compilation; no trainer of collectx compiles its step."""

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
