"""Training of classifiers: one network, several as a stack, and a model of a table with its card."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DataError, ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.training_loop import (
    EpochCallback,
    InputScaling,
    M,
    Rows,
    TrainingCourse,
    TrainingResult,
    TrainingSettings,
    TrainingTask,
    build_modules,
    check_classes,
    check_rows,
    compute_scores,
    derive_seed,
    find_first_linear,
    make_shuffles,
    run_epochs,
    seed_torch,
)
from neuronfair.model.weights import HFCN, LFCN, Card, fingerprint, fully_connected
from neuronfair.scale.tasks import one_torch_thread

# Initialisations that die (see `train`) are replaced by new ones, this many at most.
MAX_REPLACEMENTS = 5
RestartCallback = Callable[[int, int, float], None]


def train_module(
    build: Callable[[], M],
    x: Tensor,
    y: Tensor,
    *,
    validation: Rows,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    progress: RestartCallback | None = None,
) -> TrainingResult[M]:
    """Train the module that `build()` returns to predict the classes y (0, 1, …) from the inputs x.

    Adam minimises the cross entropy. The validation loss is that of the mean of the weights over the last steps:
    training stops when it has not fallen for `patience` epochs, and the best mean is kept. `settings.restarts`
    initialisations are trained and the one with the smallest validation loss is returned; one that predicts the same
    class for every row (all units of a narrow layer dead, say) is replaced by another. The same seed gives the same
    weights, and torch's own random state does not change.

    A module that begins with a linear layer is trained on standardised inputs, from a smaller initialisation of that
    layer; shift and scale are then folded into the layer, so that the result takes x as it is.
    `progress` is called after every epoch with (restart, epoch, validation loss), counted from 1.
    """
    settings = settings or TrainingSettings()
    check_rows(x, y, "training")
    check_rows(*validation, "validation")
    if int(y.min()) == int(y.max()):
        raise ModelError(f"every training label is {int(y[0])}: there is nothing to tell apart")
    task = TrainingTask((x, y), validation, settings, seed).on(x.device)
    attempts = settings.restarts + MAX_REPLACEMENTS
    usable: list[TrainingResult[M]] = []
    deciding = attempted = 0
    while deciding < settings.restarts and attempted < attempts:
        numbers = range(attempted + 1, min(attempts, attempted + settings.restarts - deciding) + 1)
        modules = build_modules(build, numbers, seed, x.device)
        report = progress and partial(_report_losses, progress, numbers)
        results = train_modules(modules, numbers, task, progress=report)
        usable += [r for r in results if math.isfinite(r.validation_loss) and not _has_constant_scores(r.module, x)]
        deciding, attempted = sum(_predicts_several_classes(r.module, x) for r in usable), numbers[-1]
    if not usable:
        raise ModelError(
            f"all {attempts} initialisations ended with the same scores for every row: check that the inputs carry "
            "information, or use wider layers, a smaller lr or a smaller weight_decay"
        )
    # A network that predicts one class for every row has learned little, whatever its loss; it is the last choice.
    return min(usable, key=lambda result: (not _predicts_several_classes(result.module, x), result.validation_loss))


def accuracy(model: nn.Module | Network, x: Tensor, y: Tensor) -> float:
    """Return the share of rows whose largest score is that of their class, from 0 to 1."""
    check_rows(x, y, "accuracy")
    scores = compute_scores(model, x)
    check_classes(scores, y)
    return float((scores.argmax(dim=1) == y.to(scores.device)).double().mean())


def _report_losses(progress: RestartCallback, numbers: Sequence[int], epoch: int, losses: dict[int, float]) -> None:
    """Pass the loss of each network to `progress`, with its number."""
    for i, loss in losses.items():
        progress(numbers[i], epoch, loss)


def _predicts_several_classes(module: nn.Module, x: Tensor) -> bool:
    chosen = compute_scores(module, x).argmax(dim=1)
    return bool((chosen != chosen[0]).any())


def _has_constant_scores(module: nn.Module, x: Tensor) -> bool:
    scores = compute_scores(module, x)
    spread = scores.amax(dim=0) - scores.amin(dim=0)
    return bool((spread <= 1e-6 * (1 + scores.abs().amax(dim=0))).all())


MIN_ROWS = 10  # so that 10% of them are one
MIN_WIDE_INPUTS = 100  # inputs from which on the paper uses its larger network


def train(
    data: Dataset,
    *,
    hidden: Sequence[int] | None = None,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    progress: RestartCallback | None = None,
) -> tuple[nn.Sequential, Card]:
    """Train a fully connected classifier on 70% of a table and return it with its card.

    `hidden` defaults to the paper's choice: LFCN for small tables, HFCN for wide ones. The same seed gives the same
    split and the same weights.
    """
    domain = data.domain
    encoding = TableEncoding.of(domain)
    if domain.target is not None and not domain.target.classes:
        raise DataError(f"{data.name}: the target is a quantity; only classifiers are trained here. Name a --model")
    if domain.target is None or not data.labelled:
        raise DataError(f"{data.name}: the rows have no labels, so there is nothing to learn. Give the target column")
    if len(data) < MIN_ROWS:
        raise DataError(
            f"{data.name}: the table has {len(data)} rows; at least {MIN_ROWS} are needed to train, validate and test"
        )
    hidden = tuple(hidden or (HFCN if encoding.width >= MIN_WIDE_INPUTS else LFCN))
    classes = domain.target.classes
    parts = data.split(seed)
    encoded = {name: (encoding.encode(part.rows), part.labels) for name, part in parts._asdict().items()}
    result = train_module(
        lambda: fully_connected(encoding.width, hidden, len(classes)),
        *encoded["train"],
        validation=encoded["validation"],
        settings=settings or TrainingSettings(),
        seed=seed,
        progress=progress,
    )
    module = result.module
    card = Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=encoding.width,
        hidden=hidden,
        outputs=len(classes),
        classes=classes,
        accuracy={name: accuracy(module, x, y) for name, (x, y) in encoded.items()},
        seed=seed,
        fingerprint=fingerprint(module),
    )
    return module, card


STACKABLE_LAYERS = (nn.Sequential, nn.Linear, nn.ReLU)
MAX_PRODUCTS = 100_000_000  # in a forward pass: up to here one thread is faster than two (benchmarks/training.py)


class Stack(nn.Module):
    """Fully connected ReLU networks of the same sizes as one module: (n, d) or (k, n, d) to (k, n, classes)."""

    def __init__(self, members: Sequence[nn.Sequential]) -> None:
        super().__init__()
        layers = [list_linear_layers(member) for member in members]
        if len({tuple(layer.weight.shape for layer in member_layers) for member_layers in layers}) != 1:
            raise ModelError("networks can be stacked only if all their layers have the same sizes")
        depths = list(zip(*layers, strict=True))  # layer by layer, all members
        self.weights = nn.ParameterList(torch.stack([layer.weight.detach().T for layer in depth]) for depth in depths)
        self.biases = nn.ParameterList(torch.stack([layer.bias.detach()[None] for layer in depth]) for depth in depths)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of every member: its own rows, or the same rows for all."""
        x = x.expand(len(self.weights[0]), *x.shape[-2:])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, torch.relu(x) if i else x, weight)
        return x

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy of every member on its own rows, (k,), and set the gradients of their sum.

        The same numbers as autograd: with networks this small autograd takes 1.05 to 1.5 times as long, and
        `torch.func.vmap` over functional calls 1.5 to 4.6 times, so the derivative is written out.
        """
        layers = list(zip(self.weights, self.biases, strict=True))
        inputs = [x]
        for i, (weight, bias) in enumerate(layers):
            x = torch.baddbmm(bias, inputs[i], weight)
            inputs.append(torch.relu_(x) if i + 1 < len(layers) else x)
        shares, classes = functional.log_softmax(x.flatten(0, 1), 1), y.reshape(-1, 1)
        count = y.shape[1]
        of_shares = torch.zeros_like(shares).scatter_(1, classes, -1 / count)
        after = torch.ops.aten._log_softmax_backward_data(of_shares, shares, 1, shares.dtype).view_as(x)
        for (weight, bias), before in reversed([*zip(layers, inputs, strict=False)]):
            weight.grad, bias.grad = torch.bmm(before.mT, after), after.sum(1, keepdim=True)
            if before is not inputs[0]:
                after = torch.ops.aten.threshold_backward(torch.bmm(after, weight.mT), before, 0)
        return -shares.gather(1, classes).view(y.shape).mean(1)

    @torch.no_grad()
    def unstack(self, members: Sequence[nn.Sequential]) -> None:
        """Copy the weights back into the members."""
        for number, member in enumerate(members):
            for layer, weight, bias in zip(list_linear_layers(member), self.weights, self.biases, strict=True):
                layer.weight.copy_(weight[number].T)
                layer.bias.copy_(bias[number, 0])


def list_linear_layers(module: nn.Sequential) -> list[nn.Linear]:
    """Return the linear layers of a network of linear layers with a ReLU between them; refuse any other."""
    modules = [part for _, part in module.named_modules(remove_duplicate=False)]
    # No forward() of its own, no hook, and no layer twice: the network applies its layers one after the other.
    is_plain = all(type(p) in STACKABLE_LAYERS and not p._forward_hooks and not p._forward_pre_hooks for p in modules)
    parts = [part for part in modules if not isinstance(part, nn.Sequential)]
    is_plain = is_plain and len(set(map(id, parts))) == len(parts)
    layers = [part for part in parts[::2] if isinstance(part, nn.Linear) and part.bias is not None]
    alternates = len(parts) % 2 == 1 and len(layers) == len(parts[::2]) and all(type(p) is nn.ReLU for p in parts[1::2])
    if not is_plain or not alternates:
        raise ModelError("expected a fully connected network: linear layers with a ReLU after each but the last")
    return layers


def as_stackable(modules: Sequence[nn.Module]) -> list[nn.Sequential] | None:
    """Return the networks if they can be trained as one stack, else None."""
    plain = [module for module in modules if isinstance(module, nn.Sequential)]
    if len(plain) < len(modules) or not all(p.requires_grad for module in plain for p in module.parameters()):
        return None
    try:
        Stack(plain)
    except ModelError:
        return None
    return plain


def train_modules(
    modules: Sequence[M],
    numbers: Sequence[int],
    task: TrainingTask,
    *,
    row_choice: Tensor | None = None,
    progress: EpochCallback | None = None,
) -> list[TrainingResult[M]]:
    """Train the modules of several restarts: fully connected ones as one stack, others one after the other.

    All learn from the same rows, or each from its `row_choice`. Inputs are standardised before a first linear layer.
    """
    (x, y), (validation_x, validation_y) = task.rows, task.validation
    first_layers = [find_first_linear(module) for module in modules]
    scaling = InputScaling.of(x) if x.dim() == 2 and None not in first_layers else None
    for first_layer in first_layers:
        if scaling is not None and first_layer is not None:
            scaling.prepare(first_layer, x, fresh=task.fresh)
    if scaling is not None:
        x, validation_x = scaling.standardise(x), scaling.standardise(validation_x)
    task = replace(task, rows=(x, y), validation=(validation_x, validation_y))
    plain = as_stackable(modules) if x.dim() == 2 else None
    courses = list[TrainingCourse]()
    if plain is not None:
        row_choice = torch.arange(len(x), device=x.device).expand(len(plain), -1) if row_choice is None else row_choice
        stack = Stack(plain)
        products = task.settings.batch * sum(weight.numel() for weight in stack.parameters())
        with one_torch_thread(x.device.type == "cpu" and products <= MAX_PRODUCTS):
            order = make_shuffles(task.seed, numbers)
            courses = run_epochs(stack, task, order, row_choice=row_choice, learn=stack.learn, progress=progress)
        stack.unstack(plain)
    else:
        for index, (module, number) in enumerate(zip(modules, numbers, strict=True)):
            report = progress and partial(_report_loss, progress, index)
            with seed_torch(derive_seed(task.seed, number), x.device):  # for layers that draw, like dropout
                courses += run_epochs(module, task, make_shuffles(task.seed, [number]), progress=report)
    for first_layer in first_layers:
        if scaling is not None and first_layer is not None:
            scaling.fold(first_layer)
    return [course.of(module, number) for course, module, number in zip(courses, modules, numbers, strict=True)]


def _report_loss(progress: EpochCallback, index: int, epoch: int, losses: dict[int, float]) -> None:
    (loss,) = losses.values()
    progress(epoch, {index: loss})
