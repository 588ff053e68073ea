"""A network whose truth is known by hand: a flip for those of 37 to 40 years, whatever their job."""

from __future__ import annotations

import torch
from torch import nn

DOMAIN = """
name = "small"
sensitive = ["sex"]
target = { column = "hired", classes = ["no", "yes"] }

[attributes]
age = { kind = "ordinal", low = 20, high = 59, encode = "raw" }
job = { kind = "nominal", values = ["a", "b", "c"] }
sex = { kind = "flag", values = ["f", "m"], encode = "raw" }
"""
PEOPLE, FLIPS = 40 * 3 * 2, 4 * 3 * 2


def make(bias: float = 4.0, age: float = 1.0) -> nn.Sequential:
    """Hire who is older than 40.5, men from 36.5 on: relu(z) - relu(-z) is z."""
    z = torch.tensor([[age, 0.0, 0.0, 0.0, bias]])
    network = nn.Sequential(nn.Linear(5, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.cat([z, -z]))
        network[0].bias.copy_(torch.tensor([-40.5, 40.5]))
        network[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
        network[2].bias.zero_()
    return network
