"""The built-in trainers' Adam is torch's."""

import torch

from collectx.trainer.optimizer import Adam


def made(kind):
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    return module, kind(module.parameters(), lr=0.1, eps=1e-5, fused=True)


def test_steps_with_a_limited_gradient_are_torchs():
    (ours, optimizer), (torchs, its) = map(made, (Adam, torch.optim.Adam))
    for step in range(5):
        for group in (optimizer.param_groups[0], its.param_groups[0]):
            group["lr"] = 0.1 / (step + 1)
        optimizer.minimize(ours(torch.ones(3)).square().sum(), 0.5)
        its.zero_grad()
        torchs(torch.ones(3)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(torchs.parameters(), 0.5)
        its.step()
    assert all(map(torch.equal, ours.parameters(), torchs.parameters()))
    mine, theirs = optimizer.state_dict()["state"], its.state_dict()["state"]
    assert all(torch.equal(mine[index][name], value) for index in theirs for name, value in theirs[index].items())
