"""Our own networks as an estimator of scikit-learn, so that a search treats them as any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn

from neuronfair.domain.population.counterfactuals import fit_counterfactuals, with_counterfactuals
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.interpretation.profile import interpret
from neuronfair.model import weights
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.train import linear_layers, train_module
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import Card, fingerprint, fully_connected

HELD = 10  # one row in so many stops the training
COMPARED = 2_000  # rows that show which neurons react


class NetworkClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fully connected ReLU network of the records of a domain.

    It is not given the attributes in `without`. After training, the share `turned` of the neurons of a layer that react
    most to the sensitive attribute, or to what goes with it, is multiplied by `factor`.
    """

    def __init__(
        self,
        domain: TableDomain,
        *,
        hidden: tuple[int, ...] = (32, 16),
        epochs: int = 20,
        lr: float = 0.003,
        without: tuple[str, ...] = (),
        layer: int = 0,
        turned: float = 0.0,
        random_state: int = 0,
    ) -> None:
        self.domain, self.hidden, self.epochs, self.lr, self.without = domain, hidden, epochs, lr, without
        self.layer, self.turned, self.random_state = layer, turned, random_state

    def fit(self, table: Any, y: Any) -> NetworkClassifier:
        """Train the network."""
        target = self.domain.target
        assert target is not None
        self.domain_ = replace(
            self.domain,
            attributes=tuple(
                replace(a, encode="none") if a.name in self.without else a for a in self.domain.attributes
            ),
        )
        self.classes_ = np.unique(np.asarray(y))
        rows, texts = self._rows(table), [str(one) for one in np.asarray(y)]
        labels = torch.tensor([target.classes.index(text) for text in texts])
        encode, width, outputs = (
            TableEncoding.of(self.domain_).encode,
            TableEncoding.of(self.domain_).width,
            len(target.classes),
        )
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.random_state))
        held, learned = order[: max(1, len(rows) // HELD)], order[max(1, len(rows) // HELD) :]
        x = encode(rows)
        self.module_ = train_module(
            lambda: fully_connected(width, self.hidden, outputs),
            x[learned],
            labels[learned],
            validation=(x[held], labels[held]),
            settings=TrainingSettings(restarts=1, epochs=self.epochs, lr=self.lr, batch=256, patience=3),
            seed=self.random_state,
        ).module
        if self.turned > 0:
            self.module_ = self._turned(self.module_, rows)
        return self

    def predict_proba(self, table: Any) -> Any:
        """Return the probabilities of the classes, in the order of `classes_`."""
        target = self.domain.target
        assert target is not None
        scores = Network(self.module_, self.domain_).scores(self._rows(table)).double().softmax(1).numpy()
        return scores[:, [target.classes.index(str(one)) for one in self.classes_]]

    def predict(self, table: Any) -> Any:
        """Return the likeliest classes."""
        return self.classes_[self.predict_proba(table).argmax(1)]

    def shifted(self, threshold: float, positive: int) -> NetworkClassifier:
        """Return the same network of two classes with another threshold for one of them, as part of its weights."""
        output = linear_layers(self.module_)[-1]
        with torch.no_grad():
            output.bias[positive] -= float(np.log(threshold / (1 - threshold)))
        return self

    def save(self, path: Path, accuracy: float) -> None:
        """Write the weights and their card."""
        target = self.domain_.target
        assert target is not None
        card = Card(
            domain=self.domain_.name,
            encoding=self.domain_.encoding,
            domain_fingerprint=self.domain_.input_fingerprint,
            inputs=TableEncoding.of(self.domain_).width,
            hidden=tuple(self.hidden),
            outputs=len(target.classes),
            classes=target.classes,
            accuracy={"test": accuracy},
            seed=self.random_state,
            fingerprint=fingerprint(self.module_),
        )
        weights.save(path, self.module_, card)

    def _rows(self, table: Any) -> Tensor:
        return read_table(table, self.domain).rows

    def _turned(self, module: nn.Sequential, rows: Tensor) -> nn.Sequential:
        """Turn down the neurons that differ most between records and their counterfactual twins."""
        some = rows[:COMPARED]
        twins = with_counterfactuals(self.domain_, fit_counterfactuals(self.domain_, some))
        profile = interpret(Network(module, self.domain_), twins, some)
        layer = min(self.layer, len(profile.layers) - 1)
        order = torch.argsort(profile.layers[layer].act_diff, descending=True)
        with torch.no_grad():
            linear_layers(module)[layer + 1].weight[:, order[: max(1, round(self.turned * len(order)))]] = 0.0
        return module
