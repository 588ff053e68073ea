"""Several small networks trained as one: a batched product costs hardly more than one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from neuronfair.errors import ModelError
from neuronfair.network.train import Rows, TrainingResult, TrainingSettings, check_rows, descend, seeded
from neuronfair.network.units import Units


class Stack(nn.Module):
    """Fully connected ReLU networks of the same sizes as one module: (n, d) or (k, n, d) to (k, n, classes)."""

    def __init__(self, members: Sequence[nn.Sequential]) -> None:
        super().__init__()
        layers = [linear_layers(member) for member in members]
        if len({tuple(layer.weight.shape for layer in own) for own in layers}) != 1:
            raise ModelError("networks can be stacked only if all their layers have the same sizes")
        rows = list(zip(*layers, strict=True))  # layer by layer, all members
        self.weights = nn.ParameterList(torch.stack([layer.weight.detach().T for layer in row]) for row in rows)
        self.biases = nn.ParameterList(torch.stack([layer.bias.detach()[None] for layer in row]) for row in rows)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of every member: its own rows, or the same rows for all."""
        x = x.expand(len(self.weights[0]), *x.shape[-2:])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, torch.relu(x) if i else x, weight)
        return x

    @torch.no_grad()
    def unstack(self, members: Sequence[nn.Sequential]) -> None:
        """Copy the weights back into the members."""
        for number, member in enumerate(members):
            for layer, weight, bias in zip(linear_layers(member), self.weights, self.biases, strict=True):
                layer.weight.copy_(weight[number].T)
                layer.bias.copy_(bias[number, 0])


def linear_layers(module: nn.Sequential) -> list[nn.Linear]:
    """Return the linear layers of a network that is nothing but linear layers with a ReLU between them."""
    parts = [part for part in module.modules() if not isinstance(part, nn.Sequential)]
    layers = [part for part in parts[::2] if isinstance(part, nn.Linear) and part.bias is not None]
    if len(parts) % 2 == 0 or len(layers) != len(parts[::2]) or not all(isinstance(p, nn.ReLU) for p in parts[1::2]):
        raise ModelError("expected a fully connected network: linear layers with a ReLU after each but the last")
    return layers


def train_stack(
    build: Callable[[], nn.Sequential],
    x: Tensor,
    y: Tensor,
    *,
    chosen: Tensor,
    validation: Rows,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    fresh: bool = True,
    progress: Callable[[int, list[float]], None] | None = None,
) -> list[TrainingResult[nn.Sequential]]:
    """Train k fully connected networks at once; line i of `chosen`, (k, n), holds the rows of x that network i sees.

    Network i starts, shuffles and stops as restart i + 1 of `train` with the same seed does; here each is a result of
    its own, and none is replaced. The units of the inputs are those of all rows of x. `progress` is called after every
    epoch with the epoch and all validation losses.
    """
    settings = settings or TrainingSettings()
    check_rows(x, y, "training")
    check_rows(*validation, "validation")
    held_x, held_y = (part.to(x.device) for part in validation)
    units = Units.of(x)
    members, shuffles = [], []
    for number in range(1, len(chosen) + 1):
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            shuffles.append(seeded(seed, number, x.device))
            members.append(build().to(x.device))
        units.enter(linear_layers(members[-1])[0], x, fresh=fresh)
    stack = Stack(members)
    courses = descend(
        stack,
        (units.standardise(x), y.to(x.device)),
        (units.standardise(held_x), held_y),
        settings,
        shuffles,
        chosen=chosen.to(x.device),
        progress=progress,
    )
    stack.unstack(members)
    results = []
    for number, (member, course) in enumerate(zip(members, courses, strict=True), 1):
        units.fold(linear_layers(member)[0])
        results.append(TrainingResult(member.eval(), *course.figures, number))
    return results
