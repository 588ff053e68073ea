"""Repairing a network with the findings of a run: the table and the network found again, the work, before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from torch import nn

from neuronfair.domain.data import DATASETS, Data, load, read_table
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from neuronfair.interpretation.profile import interpret
from neuronfair.model import weights
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import open_model
from neuronfair.model.stacked import linear_layers
from neuronfair.model.weights import Card, fingerprint
from neuronfair.repair.evaluate import Standing, stand
from neuronfair.repair.neurons import NeuronRepair, repair_neurons
from neuronfair.repair.retrain import RepairSettings, Retraining, retrain
from neuronfair.store.manifest import rows_digest
from neuronfair.store.run import Run
from neuronfair.words import percent

How = Literal["retrain", "neurons"]


@dataclass(frozen=True)
class Repaired:
    """What a repair came to: the work, and how the network stands before and after."""

    work: Retraining | NeuronRepair
    before: Standing
    after: Standing
    data: Data
    card: Card
    notes: tuple[str, ...]  # what a reader must know


class Progress(Protocol):
    """Shows what is being done, how much is done of how much, and a note."""

    def __call__(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show it."""


def repair(
    run: Run, path: Path, data: Data, how: How, settings: RepairSettings, *, device: str, show: Progress
) -> Repaired:
    """Repair the network in a weights file; refuse the work if the rate does not fall."""
    known, module, notes = _opened(run, path, data, device)
    data = data.to(device)
    findings = replace(run, domain=data.domain).findings()  # on the device
    if len(findings) == 0:
        raise RunError(f"{run.folder}: nothing was found, so there is nothing to repair with. Search longer first")
    split_seed = settings.seed if known is None else known.seed
    parts = data.split(split_seed)
    work: Retraining | NeuronRepair
    if how == "retrain":

        def note(epoch: int, losses: dict[int, float]) -> None:
            show("Training again", epoch, None, f"epochs, validation loss {sum(losses.values()) / len(losses):.4f}")

        work = retrain(module, parts, findings, run.seeds.to(device), settings, progress=note)
    else:
        profile = interpret(Network(module, data.domain), data.domain, parts.train.rows)
        work = repair_neurons(
            module,
            profile,
            parts,
            max_loss=settings.max_loss,
            seed=settings.seed,
            progress=lambda done, total: show("Turning neurons down", done, total),
        )
    # With the seed of the run, the search would go the ways again that gave the findings.
    seed = int(run.manifest["plan"]["seed"]) + 1 + settings.seed
    before, after = (
        stand(one, parts, seed=seed, progress=partial(_count, show, what))
        for what, one in (("Measuring before", module), ("Measuring after", work.module))
    )
    if after.rate.rate >= before.rate.rate:
        raise NeuronFairError(
            f"the rate did not fall ({percent(before.rate.rate)} before, {percent(after.rate.rate)} "
            "after), so nothing was written. Search longer for more findings, or repair otherwise with --how"
        )
    card = _card(work.module, data, after.accuracy, split_seed)
    return Repaired(work, before, after, data, card, tuple(notes))


def _count(show: Progress, what: str, phase: str, done: int, total: int, found: int) -> None:
    show(what, done, total, f"{found:,} findings")


def searched_table(run: Run, path: Path | None) -> Data:
    """Return the table that a run has searched."""
    name = str(run.manifest.get("data"))
    if path is not None:
        table = read_table(path, run.domain)
    elif name in DATASETS:
        table = load(name, run.domain.encoding, sensitive=run.domain.sensitive)
    else:
        raise DataError(f"{run.folder}: it was made with a table of your own, '{name}'. Name its file with --data")
    if table.domain.fingerprint != run.manifest["domain"] or rows_digest(table.rows) != run.manifest["rows"]:
        raise DataError(
            f"{run.folder}: was made with other rows than {path or name} holds. Name their file with --data"
        )
    if table.domain.target is None or not table.labelled:
        raise DataError(f"{path or name}: the rows have no labels, so no accuracy can be kept. Give the target column")
    return table


def _opened(run: Run, path: Path, data: Data, device: str) -> tuple[Card | None, nn.Sequential, list[str]]:
    """Return the card of a network if it has one, the network, and what a reader must know about it."""
    card = weights.load(path)[1]  # comes first: it takes files only, never a name of Python code
    opened = open_model(str(path), data.domain, data.rows, device=device)
    module = opened.module
    assert isinstance(module, nn.Sequential)
    assert data.domain.target is not None
    outputs, classes = linear_layers(module)[-1].out_features, len(data.domain.target.classes)
    if outputs != classes:
        raise ModelError(f"{path}: has {outputs} outputs, but {data.name} has {classes} classes")
    if run.manifest["plan"]["decision"]["kind"] != "argmax":
        raise RunError(f"{run.folder}: decides by scores. Only networks that choose a class can be repaired")
    notes = []
    if card is None:
        notes.append(
            "These weights have no card: they may have seen the test rows, so the accuracy before may be too good."
        )
    if opened.fingerprint != run.manifest["weights"]:
        notes.append("The findings of this run were made with other weights.")
    return card, module, notes


def _card(module: nn.Sequential, table: Data, accuracy: dict[str, float], seed: int) -> Card:
    """Return the card of a repaired network; its seed is that of the split, so that the test rows stay the same."""
    domain = table.domain
    assert domain.target is not None
    *hidden, outputs = [layer.out_features for layer in linear_layers(module)]
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
