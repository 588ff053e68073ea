"""Training detectors and attribute classifiers on pictures, and their weights files.

Tables go through `train.py`. Pictures stay 8-bit until a batch is drawn, are mirrored and moved at random, and are
learned by SGD with a learning rate of 0.01 as in the paper, so they have a loop of their own. An attribute head on a
frozen body sees fixed numbers: that is a table again, and `train` trains it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.atomic import replacing
from neuronfair.errors import ModelError, one_line
from neuronfair.images.domain import PASS
from neuronfair.images.networks import BODIES, Detector, build
from neuronfair.limits import check_size
from neuronfair.model.layers import evaluating
from neuronfair.model.train import train
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import fully_connected, read_safetensors

FACE = 1  # the class; 0 is anything else
BATCH = 128
SHIFT = 4  # pixels that training pictures are moved by at most
HEAD_SETTINGS = TrainingSettings(epochs=40, batch=256, patience=8, restarts=1)
CARD_KEY = "neuronfair-detector"
_BYTES = 4096  # for each pixel: of the first layer after ResNet50, the largest there is

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class DetectorCard:
    """What a weights file says about its detector: body, picture size, classes and held-out accuracy."""

    body: str
    side: int
    classes: tuple[str, ...] = ("no face", "face")
    accuracy: float | None = None


def as_input(pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return 8-bit pictures as numbers in [0, 1]."""
    return pixels.to(dtype) / 255


def learn(
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
    every epoch with (epoch, epochs, mean loss).
    """
    device = pixels.device
    slow = set() if pretrained is None else set(pretrained.parameters())
    groups = [[p for p in module.parameters() if (p in slow) == part] for part in (False, True)]
    rates = [lr, lr / 10][: 1 + bool(slow)]
    optimiser = torch.optim.SGD(
        [{"params": g} for g in groups[: len(rates)]], lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    batches = max(1, len(pixels) // min(BATCH, max(16, len(pixels) // 20)))  # small sets need their steps too
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
        for part in torch.tensor_split(order, batches):
            x = _varied(pixels[part], generator).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = functional.cross_entropy(module(x).float(), labels[part])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
            total += loss.detach()
        if progress is not None:
            progress(epoch, epochs, float(total) / batches)
    module.eval()


def _varied(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return pictures as input, each mirrored or not and moved by up to SHIFT pixels, the edge repeated."""
    n, _, height, width = pixels.shape
    device = pixels.device
    dx, dy = torch.randint(-SHIFT, SHIFT + 1, (2, n, 1), generator=generator, device=device)
    columns = (torch.arange(width, device=device) + dx).clamp(0, width - 1)
    mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    lines = (torch.arange(height, device=device) + dy).clamp(0, height - 1)
    numbers = torch.arange(n, device=device)[:, None, None]
    moved = pixels.permute(0, 2, 3, 1)[numbers, lines[:, :, None], columns[:, None, :]]  # while a pixel is one byte
    return as_input(moved.permute(0, 3, 1, 2))


@torch.no_grad()
def scores(module: nn.Module, pixels: Tensor) -> Tensor:
    """Return the score of each class for each 8-bit picture: (n, classes)."""
    with evaluating(module.modules()):
        return torch.cat([module(as_input(part)) for part in torch.split(pixels, PASS)])


def predictions(module: nn.Module, pixels: Tensor) -> Tensor:
    """Return the class of each 8-bit picture: int64, (n,)."""
    return scores(module, pixels).argmax(1)


def accuracies(module: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the share of pictures that are told rightly, and its mean over the classes (balanced accuracy)."""
    right = (predictions(module, pixels) == labels).double()
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
    module = _drawn(body, pixels, 2, seed)
    if weights is not None:
        load_body(weights, module.body)
    pretrained = module.body if weights is not None else None
    learn(module, pixels, is_face.long(), epochs=epochs, seed=seed, pretrained=pretrained, progress=progress)
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
        module = _drawn(body, pixels, classes, seed)
        learn(module, pixels, labels, epochs=epochs, seed=seed)
        return module
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed)).to(pixels.device)
    held, kept = order[: len(order) // 10], order[len(order) // 10 :]
    x = torch.cat([features(detector, pixels[kept]), features(detector, pixels[kept].flip(3))])
    result = train(
        lambda: fully_connected(x.shape[1], BODIES[body][1], classes),
        x,
        labels[kept].repeat(2),
        validation=(features(detector, pixels[held]), labels[held]),
        settings=HEAD_SETTINGS,
        seed=seed,
    )
    return Detector(detector.body, result.module).eval()


@torch.no_grad()
def features(detector: Detector, pixels: Tensor) -> Tensor:
    """Return what the body makes of 8-bit pictures: (n, features)."""
    with evaluating(detector.modules()):
        return torch.cat([detector.body(as_input(part)) for part in torch.split(pixels, PASS)])


def _drawn(body: str, pixels: Tensor, classes: int, seed: int) -> Detector:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(body, side=pixels.shape[-1], classes=classes).to(pixels.device)


def save_detector(path: Path, module: Detector, card: DetectorCard) -> None:
    """Write a detector with its card to a safetensors file."""
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(state, metadata={CARD_KEY: json.dumps(asdict(card))}))


def load_detector(path: Path) -> tuple[Detector, DetectorCard]:
    """Read a detector that `save_detector` wrote."""
    state, said = read_safetensors(path)
    if CARD_KEY not in said:
        raise ModelError(f"{path}: holds no detector: it has no card. Use a file that 'audit-images' wrote")
    try:
        card = DetectorCard(**json.loads(said[CARD_KEY]))
        card = replace(card, side=int(card.side), classes=tuple(map(str, card.classes)))
        check_size(_BYTES * card.side**2, path)  # before anything of that size is built
        module = build(card.body, side=card.side, classes=len(card.classes))
    except (ValueError, TypeError, OverflowError, RecursionError, RuntimeError) as error:
        raise ModelError(f"{path}: the card in this file cannot be read ({one_line(error)})") from None
    _fill(module, state, path)
    return module.eval(), card


def load_body(path: Path, body: nn.Module) -> None:
    """Fill a body with weights from a safetensors file of any float type."""
    state, _ = read_safetensors(path)
    _fill(body, state, path)


def _fill(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(f"{path}: the weights are not those of this network ({one_line(error)})") from None
