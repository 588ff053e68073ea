"""Adam and the mean of the weights on its way, for small networks: nothing is looked up anew in a step."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Adam:
    """What torch's fused Adam does, number for number; but that one looks everything up anew in every step."""

    def __init__(self, weights: list[nn.Parameter], lr: float, decay: float) -> None:
        self.weights, self.lr, self.decay = weights, lr, decay
        self.means, self.squares = ([torch.zeros_like(w, requires_grad=False) for w in weights] for _ in range(2))
        self.steps = [torch.zeros((), device=weight.device) for weight in weights]

    @torch.no_grad()
    def step(self) -> None:
        """Follow the gradients, where there are any."""
        lines = zip(self.weights, self.means, self.squares, self.steps, strict=True)
        weights, means, squares, steps = zip(*(line for line in lines if line[0].grad is not None), strict=True)
        adam(
            list(weights),
            [weight.grad for weight in weights],
            list(means),
            list(squares),
            [],
            list(steps),
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=self.decay,
            eps=1e-8,
            maximize=False,
        )


class WeightMean:
    """A copy of a module whose weights are the mean of those of the last steps, the latest weighing most.

    What torch's `AveragedModel` does; but that one lists all tensors anew in every step of a small network.
    """

    def __init__(self, module: nn.Module, memory: float) -> None:
        self.source, self.module = module, copy.deepcopy(module)
        self.blend = get_ema_multi_avg_fn(1 - 1 / memory)  # type: ignore[no-untyped-call]
        self.begun, self.buffered = False, any(True for _ in module.buffers())
        self.list_tensors()

    def list_tensors(self) -> None:
        """Look up what is to follow what: once, and again where the module has changed its tensors."""
        pairs = list(zip(_tensors(self.module), _tensors(self.source), strict=True))
        self.mine, self.theirs = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
        self.counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    def follow(self) -> None:
        """Take in the weights that the module has now; the first time there are no others."""
        if self.buffered:  # a forward pass may put another tensor in the place of a buffer
            self.list_tensors()
        exact = self.counts if self.begun else [*self.counts, *zip(self.mine, self.theirs, strict=True)]
        for mine, theirs in exact:
            mine.copy_(theirs)
        if self.begun:
            self.blend(self.mine, self.theirs, None)
        self.begun = True


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
