"""Repairs one of our own networks with the findings of a run: reads both, does the work, measures before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from experiments.repairs.evaluate import FairnessMeasurement, measure_network
from experiments.repairs.neurons import NeuronRepair, repair_neurons
from experiments.repairs.retrain import RepairSettings, Retraining, retrain
from neuronfair.domain.tables.dataset import DATASETS, Dataset, load_dataset, read_table
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from neuronfair.formatting import percent
from neuronfair.model import weights
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.profile import interpret
from neuronfair.model.train import list_linear_layers
from neuronfair.model.weights import Card, fingerprint
from neuronfair.progress import Progress
from neuronfair.searches.evaluate import counterfactuals_of
from neuronfair.store.ledger import rows_digest
from neuronfair.store.run import Run

from torch import nn

How = Literal["retrain", "neurons"]
NO_CARD = "These weights have no card: they may have seen the test rows, so the accuracy before may be too good."
OTHER_WEIGHTS = "The findings of this run were made with other weights."


@dataclass(frozen=True)
class Repaired:
    """A repaired network: the work, its metrics before and after, and its card."""

    work: Retraining | NeuronRepair
    before: FairnessMeasurement
    after: FairnessMeasurement
    card: Card
    notes: tuple[str, ...]

    def write(self, path: Path) -> None:
        """Write the network and its card."""
        weights.save_weights(path, self.work.module, self.card)


def repair(run: Run, path: Path, data: Dataset, how: How, settings: RepairSettings, *, show: Progress) -> Repaired:
    """Repair the network of a file with the findings of a run; refuse the result if the flip rate does not fall.

    The test part is that of the training of the network, as its card says.
    """
    if counterfactuals_of(run.domain) is not None:
        raise RunError(
            f"{run.folder}: this run compares counterfactual twins; a repair learns from attribute flips. "
            "Search for a better model with 'neuronfair alternatives'"
        )
    opened, card = wrap_model(str(path), data.domain, data.rows), weights.load_weights(path)[1]
    module, classes = opened.module, len(data.domain.target.classes) if data.domain.target is not None else 0
    assert isinstance(module, nn.Sequential)
    if opened.model.outputs != classes:
        raise ModelError(f"{path}: has {opened.model.outputs} outputs, but {data.name} has {classes} classes")
    split_seed = settings.seed if card is None else card.seed
    parts = data.split(split_seed)
    work: Retraining | NeuronRepair
    if how == "retrain":
        findings = replace(run, declared=data.domain).findings()
        if not len(findings):
            raise RunError(f"{run.folder}: nothing was found, so there is nothing to repair with. Search longer first")
        work = retrain(module, parts, findings, run.seeds, settings, progress=partial(_note, show))
    else:
        work = repair_neurons(
            module,
            interpret(Network(module, data.domain), data.domain, parts.train.rows),
            parts,
            max_loss=settings.max_loss,
            seed=settings.seed,
            progress=lambda done, total: show("Turning neurons down", done, total),
        )
    # With the seed of the run, the same records could be drawn again that gave the findings.
    seed = int(run.manifest["plan"]["seed"]) + 1 + settings.seed
    show("Measuring before and after", 0, None)
    before, after = (measure_network(one, parts, seed=seed) for one in (module, work.module))
    if after.rate.rate >= before.rate.rate:
        raise NeuronFairError(
            f"the rate did not fall ({percent(before.rate.rate)} before, {percent(after.rate.rate)} "
            "after), so nothing was written. Search longer for more findings, or repair otherwise with --how"
        )
    notes = () if card is not None else (NO_CARD,)
    if opened.fingerprint != run.manifest["weights"]:
        notes = (*notes, OTHER_WEIGHTS)
    return Repaired(work, before, after, _card(work.module, data, after.accuracy, split_seed), notes)


def _note(show: Progress, epoch: int, losses: dict[int, float]) -> None:
    show("Training again", epoch, None, f"epochs, validation loss {sum(losses.values()) / len(losses):.4f}")


def searched_table(run: Run, path: Path | None) -> Dataset:
    """Return the table that a run has searched."""
    name = str(run.manifest.get("data"))
    if path is not None:
        table = read_table(path, run.domain)
    elif name in DATASETS:
        table = load_dataset(name, run.domain.encoding, sensitive=run.domain.sensitive)
        table = replace(table, domain=replace(table.domain, twinning=run.domain.twinning))
    else:
        raise DataError(f"{run.folder}: it was made with a table of your own, '{name}'. Name its file with --data")
    if table.domain.fingerprint != run.manifest["domain"] or rows_digest(table.rows) != run.manifest["rows"]:
        raise DataError(
            f"{run.folder}: was made with other rows than {path or name} holds. Name their file with --data"
        )
    if table.domain.target is None or not table.labelled:
        raise DataError(f"{path or name}: the rows have no labels, so no accuracy can be kept. Give the target column")
    return table


def _card(module: nn.Sequential, table: Dataset, accuracy: dict[str, float], seed: int) -> Card:
    """Return the card of a repaired network; its seed is that of the split, so that the test rows stay the same."""
    domain = table.domain
    assert domain.target is not None
    *hidden, outputs = [layer.out_features for layer in list_linear_layers(module)]
    return Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=TableEncoding.of(domain).width,
        hidden=tuple(hidden),
        outputs=outputs,
        classes=domain.target.classes,
        accuracy=accuracy,
        seed=seed,
        fingerprint=fingerprint(module),
    )
