"""Where `neuronfair replay` finds a model that a test has checked."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.weights import Card, fingerprint, fully_connected, save
from neuronfair.store.manifest import where

WEIGHTS = "model.safetensors"
ROWS = 1000  # people on whom a copy must give the same scores


def keep(folder: Path, domain: TableDomain, opened: Opened) -> dict[str, str] | None:
    """Return where `neuronfair replay` finds the model, and its fingerprint; None where it cannot be kept.

    A model that came from a file is there. The weights of a plain ReLU network are saved into the folder.
    """
    if Path(opened.source).is_file() or ":" in opened.source:  # a file, or package.module:name
        return {"model": where(opened.source), "weights": opened.fingerprint}
    copied = None if opened.module is None else _plain_copy(opened.module, domain)
    if copied is None:
        return None
    linears = [part for part in copied.modules() if isinstance(part, nn.Linear)]
    inputs, *hidden, outputs = linears[0].in_features, *(linear.out_features for linear in linears)
    target = domain.target
    named = target is not None and len(target.classes) == outputs
    card = Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=inputs,
        hidden=tuple(hidden),
        outputs=outputs,
        classes=target.classes if target is not None and named else tuple(f"class {i}" for i in range(outputs)),
        accuracy={},
        seed=0,
        fingerprint=fingerprint(copied),
    )
    save(folder / WEIGHTS, copied, card)
    return {"model": f"../{WEIGHTS}", "weights": card.fingerprint}


def _plain_copy(module: nn.Module, domain: TableDomain) -> nn.Sequential | None:
    """Return the module as a fully connected ReLU network of the zoo; None if that is another function."""
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not linears or any(linear.bias is None for linear in linears):
        return None
    sizes = [linears[0].in_features, *(linear.out_features for linear in linears)]
    copied = fully_connected(sizes[0], sizes[1:-1], sizes[-1]).to(linears[0].weight)
    ours = [part for part in copied.modules() if isinstance(part, nn.Linear)]
    for own, theirs in zip(ours, linears, strict=True):
        if own.weight.shape != theirs.weight.shape:
            return None
        with torch.no_grad():
            own.weight.copy_(theirs.weight)
            own.bias.copy_(theirs.bias)
    rows = domain.sample(ROWS, torch.Generator().manual_seed(0))
    try:
        same = torch.equal(*(Network(each, domain, layers=()).scores(rows) for each in (module, copied)))
    except ModelError:  # it takes other numbers than those of the domain, or its first layer not all of them
        return None
    return copied.eval() if same else None
