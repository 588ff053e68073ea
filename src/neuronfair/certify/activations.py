from dataclasses import dataclass
import torch
from torch import Tensor

@dataclass(frozen=True)
class Relaxation:
    low: Tensor
    low_at: Tensor
    high: Tensor
    high_at: Tensor

def relax(curve, low, high, policy):
    assert curve.name == "relu"
    crossed = (low < 0) & (high > 0)
    chord = high / (high - low).where(crossed, 1.0)
    steep = (low >= 0).to(low)
    upper = torch.where(crossed, chord, steep)
    at = torch.where(crossed, high - chord * high, 0.0)
    flat = crossed if policy == "flat" else crossed & (high <= -low)
    below = torch.where(crossed, torch.where(flat, 0.0, 1.0).to(low), steep)
    return Relaxation(below, torch.zeros_like(low), upper, at)
