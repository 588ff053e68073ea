"""Detectors for pictures of 64 x 64 pixels: the convolutional parts of VGG16 and ResNet50, and a small one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from neuronfair.errors import ModelError, did_you_mean
from neuronfair.model.weights import fully_connected

#: Hidden layers of the fully connected part, of detectors and of attribute classifiers.
HEAD: tuple[int, ...] = (512, 256, 128, 64, 16)
SMALL_HEAD: tuple[int, ...] = (64, 32, 16)


class Normalise(nn.Module):
    """Shift and scale pixels in [0, 1], per colour; the numbers travel with the weights."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float] = (0.5, 0.5, 0.5), scale: Sequence[float] = (4.0, 4.0, 4.0)) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("scale", torch.tensor(scale).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) * scale."""
        return (x - self.mean) * self.scale


class Detector(nn.Module):
    """A convolutional body and a fully connected head. An attribute classifier is a new head on the same body."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of pictures in [0, 1]: (n, 3, h, w) to (n, classes)."""
        scores: Tensor = self.head(self.body(x))
        return scores


def vgg16(*, batch_norm: bool = True) -> nn.Sequential:
    """Build the convolutional part of VGG16 (Simonyan and Zisserman 2014): five blocks of 3 x 3 convolutions.

    Batch normalisation is not in the original; with it the network learns from random weights in seconds.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise())
    channels = 3
    for block, (size, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for number in range(1, count + 1):
            parts[f"conv{block}_{number}"] = _convolution(channels, size, 3, norm=batch_norm, bias=True)
            channels = size
        parts[f"pool{block}"] = nn.MaxPool2d(2)
    return nn.Sequential(parts | {"flatten": nn.Flatten()})


def resnet50() -> nn.Sequential:
    """Build the convolutional part of ResNet50 (He et al. 2016), strides in the first 1 x 1 convolution of a stage."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise())
    parts["conv1"] = _convolution(3, 64, 7, stride=2)
    parts["pool1"] = nn.MaxPool2d(3, 2, padding=1)
    channels = 64
    for stage, (size, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for number in range(count):
            stride = 2 if number == 0 and stage > 2 else 1
            parts[f"res{stage}{'abcdef'[number]}"] = Bottleneck(channels, size, stride)
            channels = 4 * size
    return nn.Sequential(parts | {"flatten": nn.Flatten()})


class Bottleneck(nn.Module):
    """A residual block of three convolutions: 1 x 1, 3 x 3, 1 x 1."""

    def __init__(self, before: int, size: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(before, size, 1, stride=stride)
        self.second = _convolution(size, size, 3)
        self.third = _convolution(size, 4 * size, 1, last=True)
        changes = stride != 1 or before != 4 * size
        self.short = _convolution(before, 4 * size, 1, stride=stride, last=True) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, which is 0 or more."""
        out: Tensor = self.relu(self.third(self.second(self.first(x))) + self.short(x))
        return out


def small() -> nn.Sequential:
    """Build a convolutional part that two CPU cores train in a minute: three convolutions with stride 2 or 4."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise())
    parts["conv1"] = _convolution(3, 16, 5, stride=4)
    parts["conv2"] = _convolution(16, 32, 3, stride=2)
    parts["conv3"] = _convolution(32, 64, 3, stride=2)
    return nn.Sequential(parts | {"flatten": nn.Flatten()})


BODIES: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "vgg16": (vgg16, HEAD),
    "resnet50": (resnet50, HEAD),
    "small": (small, SMALL_HEAD),
}


def build(name: str, *, side: int, classes: int = 2) -> Detector:
    """Build an untrained detector: one of BODIES and its head. The weights are drawn from torch's global generator."""
    if name not in BODIES:
        raise ModelError(f"no detector '{name}'. {did_you_mean(name, BODIES)}")
    make, hidden = BODIES[name]
    body = make()
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, 3, side, side)).shape[1]
    return Detector(body, fully_connected(features, hidden, classes)).train()


def _convolution(
    before: int, after: int, side: int, *, stride: int = 1, norm: bool = True, bias: bool = False, last: bool = False
) -> nn.Sequential:
    """Return convolution, batch normalisation, and ReLU unless it is the last one before a sum."""
    convolution = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=bias)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    parts: list[nn.Module] = [convolution]
    if norm:
        parts.append(nn.BatchNorm2d(after))
    if not last:
        parts.append(nn.ReLU())
    return nn.Sequential(*parts)
