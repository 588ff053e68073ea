"""Adam without torch's bookkeeping."""

from __future__ import annotations

import torch
from torch import nn

from neuronfair.model.training_loop import Adam


def test_steps_are_those_of_torch_bit_for_bit_and_a_weight_without_gradient_stays():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.arange(n) / n) for n in (5, 33, 2)] for _ in range(2))
    adam, torchs = Adam(ours, 0.01, 0.1), torch.optim.Adam(theirs, lr=0.01, weight_decay=0.1, fused=True)
    for step in range(5):
        for mine, other in zip(ours[: 1 + step % 2], theirs, strict=False):  # the second in every other step
            mine.grad = other.grad = torch.randn(mine.shape, generator=generator)
        if step % 2 == 0:
            ours[1].grad = theirs[1].grad = None
        adam.step()
        torchs.step()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    assert torch.equal(ours[2], torch.arange(2) / 2)
    assert not torch.equal(ours[1], torch.arange(33) / 33)
