"""Detectors of images: their network, training and weights files, and the shifts that flip what a classifier sees.

A detector is a small convolutional body with a fully connected head; BODIES takes others. Images stay 8-bit until a
batch is drawn, are mirrored and moved at random, and are learned by SGD with a learning rate of 0.01 as in the paper,
so they have a training loop of their own. An attribute head on a frozen body reads fixed numbers, like a table, so
`train` trains it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.atomic import replace_file
from neuronfair.domain.draws import draw_order
from neuronfair.errors import ModelError, did_you_mean, one_line
from neuronfair.images.domain import IMAGES_PER_PASS
from neuronfair.limits import check_size
from neuronfair.model.network import eval_mode
from neuronfair.model.train import train_module
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import fully_connected, read_safetensors
from neuronfair.progress import Progress

FACE = 1  # the class; 0 is anything else
IMAGES_PER_BATCH = 128
MAX_SHIFT_IN_PIXELS = 4  # pixels that training pictures are moved by at most
HEAD_SETTINGS = TrainingSettings(epochs=40, batch=256, patience=8, restarts=1)
CARD_KEY = "neuronfair-detector"
_LAYER_BYTES_PER_PIXEL = 4096  # for each pixel: of the first layer of a ResNet50, the largest body that was measured

#: Hidden layers of the fully connected part, of the detector and of attribute classifiers.
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


def build_small_body() -> nn.Sequential:
    """Build a convolutional part that two CPU cores train in a minute: three convolutions with stride 2 or 4."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalise=Normalise())
    parts["conv1"] = build_convolution(3, 16, 5, stride=4)
    parts["conv2"] = build_convolution(16, 32, 3, stride=2)
    parts["conv3"] = build_convolution(32, 64, 3, stride=2)
    return nn.Sequential(parts | {"flatten": nn.Flatten()})


BODIES: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {"small": (build_small_body, SMALL_HEAD)}


def build(name: str, *, side: int, classes: int = 2) -> Detector:
    """Build an untrained detector: one of BODIES and its head. The weights are drawn from torch's global generator."""
    if name not in BODIES:
        raise ModelError(f"no detector '{name}'. {did_you_mean(name, BODIES)}")
    make, hidden = BODIES[name]
    body = make()
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, 3, side, side)).shape[1]
    return Detector(body, fully_connected(features, hidden, classes)).train()


def build_convolution(before: int, after: int, side: int, *, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch normalisation and ReLU."""
    convolution = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


@dataclass(frozen=True)
class DetectorCard:
    """What a weights file says about its detector: body, picture size, classes and held-out accuracy."""

    body: str
    side: int
    classes: tuple[str, ...] = ("no face", "face")
    accuracy: float | None = None


def scale_pixels(pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return 8-bit pictures as numbers in [0, 1]."""
    return pixels.to(dtype) / 255


def train_on_images(
    module: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    lr: float = 0.01,
    seed: int = 0,
    pretrained: nn.Module | None = None,
    progress: Progress | None = None,
) -> None:
    """Train a module in place to tell the classes of 8-bit pictures: SGD with momentum on the cross entropy.

    The learning rate rises to `lr` within the first tenth of the steps and falls to 0 along a cosine. On a GPU the
    arithmetic is bfloat16. A pretrained part learns at a tenth of the rate, lest it forget. `progress` is called after
    every epoch.
    """
    device = pixels.device
    slow_parameters = set() if pretrained is None else set(pretrained.parameters())
    groups = [[p for p in module.parameters() if (p in slow_parameters) == is_slow] for is_slow in (False, True)]
    rates = [lr, lr / 10][: 1 + bool(slow_parameters)]
    optimiser = torch.optim.SGD(
        [{"params": g} for g in groups[: len(rates)]], lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    batch_size = min(IMAGES_PER_BATCH, max(16, len(pixels) // 20))  # small sets need their steps too
    batches = max(1, len(pixels) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rates, total_steps=epochs * batches, pct_start=0.1, cycle_momentum=False
    )
    generator = torch.Generator(device).manual_seed(seed)
    on_gpu = device.type == "cuda"
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.train()
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(pixels), generator=generator, device=device)
        total = torch.zeros((), device=device)
        for batch in torch.tensor_split(order, batches):
            x = _vary_images(pixels[batch], generator).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = functional.cross_entropy(module(x).float(), labels[batch])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
            total += loss.detach()
        if progress is not None:
            progress("Training the detector", epoch, epochs, f"loss {float(total) / batches:.4f}")
    module.eval()


def _vary_images(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return pictures as input, each mirrored or not and moved by a few pixels, the edge repeated."""
    n, _, height, width = pixels.shape
    device = pixels.device
    dx, dy = torch.randint(-MAX_SHIFT_IN_PIXELS, MAX_SHIFT_IN_PIXELS + 1, (2, n, 1), generator=generator, device=device)
    columns = (torch.arange(width, device=device) + dx).clamp(0, width - 1)
    mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    lines = (torch.arange(height, device=device) + dy).clamp(0, height - 1)
    indices = torch.arange(n, device=device)[:, None, None]
    shifted = pixels.permute(0, 2, 3, 1)[indices, lines[:, :, None], columns[:, None, :]]  # while a pixel is one byte
    return scale_pixels(shifted.permute(0, 3, 1, 2))


@torch.no_grad()
def score_images(module: nn.Module, pixels: Tensor) -> Tensor:
    """Return the score of each class for each 8-bit picture: (n, classes)."""
    with eval_mode(module.modules()):
        return torch.cat([module(scale_pixels(part)) for part in torch.split(pixels, IMAGES_PER_PASS)])


def predict_classes(module: nn.Module, pixels: Tensor) -> Tensor:
    """Return the class of each 8-bit picture: int64, (n,)."""
    return score_images(module, pixels).argmax(1)


def measure_accuracies(module: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the share of pictures that are classified correctly, and its mean over the classes (balanced accuracy)."""
    right = (predict_classes(module, pixels) == labels).double()
    per_class = [float(right[labels == c].mean()) for c in sorted(set(labels.tolist()))]
    return float(right.mean()), sum(per_class) / len(per_class)


def fit_detector(
    body: str,
    pixels: Tensor,
    is_face: Tensor,
    *,
    epochs: int,
    seed: int = 0,
    weights: Path | None = None,
    progress: Progress | None = None,
) -> Detector:
    """Train a detector: class 1 is a face. `weights` are those of a pretrained body, fine-tuned with the rest."""
    if bool(is_face.all()) or not bool(is_face.any()):
        raise ModelError("a detector needs pictures with and without a face: the labels hold one class only (is_face)")
    module = _draw_detector(body, pixels, 2, seed)
    if weights is not None:
        load_body(weights, module.body)
    pretrained = module.body if weights is not None else None
    train_on_images(module, pixels, is_face.long(), epochs=epochs, seed=seed, pretrained=pretrained, progress=progress)
    return module


def fit_attribute(
    detector: Detector,
    body: str,
    pixels: Tensor,
    labels: Tensor,
    *,
    own_body: bool = False,
    epochs: int = 10,
    seed: int = 0,
) -> Detector:
    """Train an attribute classifier: a new head on the frozen body of a detector, or all of it with `own_body`.

    One picture in ten is held back to say when to stop.
    """
    classes = int(labels.max()) + 1
    if own_body:
        module = _draw_detector(body, pixels, classes, seed)
        train_on_images(module, pixels, labels, epochs=epochs, seed=seed)
        return module
    order = draw_order(len(pixels), seed).to(pixels.device)
    held_out, training = order[: len(order) // 10], order[len(order) // 10 :]
    mirrored = pixels[training].flip(3)
    inputs = torch.cat([extract_features(detector, part) for part in (pixels[training], mirrored)])
    result = train_module(
        lambda: fully_connected(inputs.shape[1], BODIES[body][1], classes),
        inputs,
        labels[training].repeat(2),
        validation=(extract_features(detector, pixels[held_out]), labels[held_out]),
        settings=HEAD_SETTINGS,
        seed=seed,
    )
    return Detector(detector.body, result.module).eval()


@torch.no_grad()
def extract_features(detector: Detector, pixels: Tensor) -> Tensor:
    """Return what the body makes of 8-bit pictures: (n, features)."""
    with eval_mode(detector.modules()):
        return torch.cat([detector.body(scale_pixels(part)) for part in torch.split(pixels, IMAGES_PER_PASS)])


def _draw_detector(body: str, pixels: Tensor, classes: int, seed: int) -> Detector:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(body, side=pixels.shape[-1], classes=classes).to(pixels.device)


def save_detector(path: Path, module: Detector, card: DetectorCard) -> None:
    """Write a detector with its card to a safetensors file."""
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    with replace_file(path) as temporary:
        temporary.write_bytes(save(state, metadata={CARD_KEY: json.dumps(asdict(card))}))


def load_detector(path: Path) -> tuple[Detector, DetectorCard]:
    """Read a detector that `save_detector` wrote."""
    state, metadata = read_safetensors(path)
    if CARD_KEY not in metadata:
        raise ModelError(f"{path}: holds no detector: it has no card. Use a file that 'audit-images' wrote")
    try:
        card = DetectorCard(**json.loads(metadata[CARD_KEY]))
        card = replace(card, side=int(card.side), classes=tuple(map(str, card.classes)))
        check_size(_LAYER_BYTES_PER_PIXEL * card.side**2, path)  # before anything of that size is built
        module = build(card.body, side=card.side, classes=len(card.classes))
    except (ValueError, TypeError, OverflowError, RecursionError, RuntimeError) as error:
        raise ModelError(f"{path}: the card in this file cannot be read ({one_line(error)})") from None
    _fill_weights(module, state, path)
    return module.eval(), card


def load_body(path: Path, body: nn.Module) -> None:
    """Fill a body with weights from a safetensors file of any float type."""
    state, _ = read_safetensors(path)
    _fill_weights(body, state, path)


def _fill_weights(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(f"{path}: the weights are not those of this network ({one_line(error)})") from None


EPSILONS: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)  # ε in grey levels; 20 of 255 is 0.078


@dataclass(frozen=True, eq=False)
class AttributeShift:
    """The shift of every picture, and the largest change of a pixel in it, 0 for a picture that nothing flips."""

    levels: Tensor  # (n, c, h, w), int8
    size: Tensor  # (n,), int64

    @property
    def flips(self) -> Tensor:
        """Whether the attribute of each picture flips: bool, (n,)."""
        return self.size > 0


def find_attribute_shift(classifier: nn.Module, pictures: Tensor, schedule: Sequence[int] = EPSILONS) -> AttributeShift:
    """Return the smallest change of each 8-bit picture that flips its attribute, as the attribute classifier sees it.

    FGSM (Goodfellow, Shlens and Szegedy 2015): Δ = ε · sign(∇_x J(x, y)), with y the predicted class.
    The paper takes the true class; on a picture that the classifier gets wrong, that would push it further away from
    flipping. ε is the smallest of a schedule of whole grey levels with f(x) ≠ f(x + Δ), so that x + Δ is an 8-bit
    picture too. With more than two classes any other class will do.
    """
    parts = [_find_shift_of_part(classifier, part, sorted(schedule)) for part in torch.split(pictures, IMAGES_PER_PASS)]
    return AttributeShift(torch.cat([part.levels for part in parts]), torch.cat([part.size for part in parts]))


def _find_shift_of_part(classifier: nn.Module, pictures: Tensor, schedule: Sequence[int]) -> AttributeShift:
    before = predict_classes(classifier, pictures)
    inputs = scale_pixels(pictures).requires_grad_()
    with eval_mode(classifier.modules()):
        (gradient,) = torch.autograd.grad(functional.cross_entropy(classifier(inputs), before, reduction="sum"), inputs)
    direction = gradient.sign().to(torch.int8)
    levels = torch.zeros(pictures.shape, dtype=torch.int8, device=pictures.device)
    remaining = torch.arange(len(pictures), device=pictures.device)
    for epsilon in schedule:
        shift = epsilon * direction[remaining]
        after = predict_classes(classifier, (pictures[remaining].to(torch.int16) + shift).clamp(0, 255))
        flips = after != before[remaining]
        levels[remaining[flips]] = shift[flips]
        remaining = remaining[~flips]
        if len(remaining) == 0:
            break
    return AttributeShift(levels, levels.to(torch.int64).abs().amax((1, 2, 3)))


def draw_random_shift(shift: AttributeShift, *, seed: int = 0) -> Tensor:
    """Return shifts of the same size in random directions: the control. int8, (n, c, h, w).

    Every pixel goes up or down by ε at random where the shift changes it, so that the norms are the same.
    """
    generator = torch.Generator().manual_seed(seed)
    up = torch.randint(0, 2, shift.levels.shape, generator=generator, dtype=torch.int8)
    return shift.levels.abs() * (2 * up - 1).to(shift.levels.device)
