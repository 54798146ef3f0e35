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
