"""The detectors of the paper: VGG16 and ResNet50. Importing this makes them known to `fit_detector`."""

from __future__ import annotations

from collections import OrderedDict

from neuronfair.images.detector import BODIES, Normalise

from torch import Tensor, nn

HEAD: tuple[int, ...] = (512, 256, 128, 64, 16)  # hidden layers of the fully connected part


def build_convolution(
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


def vgg16(*, batch_norm: bool = True) -> nn.Sequential:
    """Build the convolutional part of VGG16 (Simonyan and Zisserman 2014): five blocks of 3 x 3 convolutions.

    Batch normalisation is not in the original; with it the network learns from random weights in seconds.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise())
    channels = 3
    for block, (size, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for number in range(1, count + 1):
            parts[f"conv{block}_{number}"] = build_convolution(channels, size, 3, norm=batch_norm, bias=True)
            channels = size
        parts[f"pool{block}"] = nn.MaxPool2d(2)
    return nn.Sequential(parts | {"flatten": nn.Flatten()})


def resnet50() -> nn.Sequential:
    """Build the convolutional part of ResNet50 (He et al. 2016), strides in the first 1 x 1 convolution of a stage."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise())
    parts["conv1"] = build_convolution(3, 64, 7, stride=2)
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
        self.first = build_convolution(before, size, 1, stride=stride)
        self.second = build_convolution(size, size, 3)
        self.third = build_convolution(size, 4 * size, 1, last=True)
        changes = stride != 1 or before != 4 * size
        self.short = build_convolution(before, 4 * size, 1, stride=stride, last=True) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, which is 0 or more."""
        out: Tensor = self.relu(self.third(self.second(self.first(x))) + self.short(x))
        return out


BODIES |= {"vgg16": (vgg16, HEAD), "resnet50": (resnet50, HEAD)}
