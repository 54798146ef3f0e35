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

    def minimize(self, loss: torch.Tensor, max_norm: float) -> None:
        """Takes one gradient step, with a gradient of at most this norm. Has the effect of `zero_grad`, `backward`,
        `torch.nn.utils.clip_grad_norm_` and `step`, with a few calls for all parameters together: on small networks,
        a call takes longer than its arithmetic."""
        self.zero_grad()
        loss.backward()
        parameters = self.param_groups[0]["params"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1.0))
            self.step()
