"""Train a classifier on a table, measure it on rows it has not seen, and describe it on a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from neuronfair.domain.data import Data
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, ModelError
from neuronfair.model.descent import TrainingSettings
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.train import accuracy, train
from neuronfair.model.weights import Card, fingerprint, load
from neuronfair.model.zoo import HFCN, LFCN, fully_connected

MIN_ROWS = 10  # so that 10 % of them are one
WIDE = 100  # inputs from which on the paper uses its larger network


def fit(
    data: Data,
    *,
    hidden: Sequence[int] | None = None,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> tuple[nn.Sequential, Card]:
    """Train a fully connected classifier on 70 % of a table and return it with its card.

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
    hidden = tuple(hidden or (HFCN if encoding.width >= WIDE else LFCN))
    classes = domain.target.classes
    parts = data.split(seed)
    encoded = {name: (encoding.encode(part.rows), part.labels) for name, part in parts._asdict().items()}
    result = train(
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


def read_model(path: Path, domain: TableDomain, fewer: str = "") -> nn.Sequential:
    """Read weights and make sure that they were made for rows of this domain in this encoding.

    `fewer` is what an error says of how many inputs there would be otherwise.
    """
    module, card = load(path)
    first = next(part for part in module.modules() if isinstance(part, nn.Linear))
    width = TableEncoding.of(domain).width
    if first.in_features != width:
        made_for = f" (it was trained on {card.domain}, encoding '{card.encoding}')" if card else ""
        raise ModelError(
            f"{path}: expects {first.in_features} inputs{made_for}, but {domain.name} in encoding '{domain.encoding}' "
            f"has {width}{fewer}. Choose another --encoding, --domain or --model"
        )
    if card is not None and card.domain_fingerprint not in (None, domain.input_fingerprint):
        raise ModelError(
            f"{path}: was trained on {card.domain}, encoding '{card.encoding}', with other attributes, values, scaling "
            f"or classes than {domain.name}, encoding '{domain.encoding}'. Choose the data or the model to match"
        )
    return module
