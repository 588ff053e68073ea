"""Repairing a model with the findings of a run: table and model found again, the work, before and after, the files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from neuronfair.atomic import replacing
from neuronfair.domain.tables.dataset import DATASETS, Dataset, load_dataset, read_table
from neuronfair.domain.tables.files import Sheet
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from neuronfair.formatting import percent
from neuronfair.interpretation.profile import interpret
from neuronfair.measure.counterfactual_effect import CounterfactualEffect
from neuronfair.model import weights
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.open.request import TOLERANCE, TRIED
from neuronfair.model.train import linear_layers
from neuronfair.model.weights import Card, fingerprint
from neuronfair.progress import Progress
from neuronfair.repairs.counterfactual_pairs import counterfactual_pairs, held_out_effect
from neuronfair.repairs.evaluate import FairnessMeasurement, measure_model
from neuronfair.repairs.labels import Ensemble, labelled_pairs
from neuronfair.repairs.neurons import NeuronRepair, repair_neurons
from neuronfair.repairs.retrain import RepairSettings, Retraining, retrain, retrain_with_counterfactuals
from neuronfair.repairs.training import check_trainable
from neuronfair.searches.evaluate import counterparts_of
from neuronfair.searches.findings import Findings
from neuronfair.store.manifest import rows_digest
from neuronfair.store.run import Run

How = Literal["retrain", "neurons"]
OWN = "neuronfair"  # the kind of our own weights, which have a card


@dataclass(frozen=True)
class Repaired:
    """What a repair came to: the work, and how the model stands before and after."""

    work: Retraining | NeuronRepair
    kept: Opened
    before: FairnessMeasurement
    after: FairnessMeasurement
    data: Dataset
    card: Card | None  # of our own weights
    notes: tuple[str, ...]  # what a reader must know
    without: CounterfactualEffect | None = None  # of the control of a repair by counterparts

    def write(self, path: Path, reopen: Callable[[Path], Opened]) -> None:
        """Write the model in the format it came in; `reopen` must give the same scores again."""
        if self.card is not None and self.kept.module is not None:
            weights.save(path, self.kept.module, self.card)
            return
        assert self.kept.save is not None
        rows = self.data.rows[:TRIED]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"model{path.suffix}"
            self.kept.save(self.kept.module, file)
            ours, theirs = (one.model.scores(rows).double() for one in (self.kept, reopen(file)))
            if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE):
                raise ModelError(f"{path}: opened again, the model gives other scores, so nothing was written")
            try:
                with replacing(path) as temporary:
                    temporary.write_bytes(file.read_bytes())
            except OSError as error:
                raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from error


def repair(
    run: Run | None, opened: Opened, data: Dataset, how: How, settings: RepairSettings, *, show: Progress
) -> Repaired:
    """Repair a model with the findings of a run; refuse the work if the rate does not fall.

    In a domain with counterparts it learns from those of the training rows instead, and needs no run.
    """
    check_trainable(opened, data)
    card = weights.load(opened.source)[1] if opened.kind == OWN else None
    data = data.to(opened.model.encoding.device)
    alike = counterparts_of(data.domain) is not None
    split_seed = settings.seed if card is None else card.seed
    parts = data.split(split_seed)
    work: Retraining | NeuronRepair
    if how == "retrain" and alike:
        work = retrain_with_counterfactuals(opened, parts, settings, progress=partial(_note, show))
        kept = work.kept
    elif how == "retrain":
        assert run is not None
        findings, seeds = _findings(run, data), run.seeds.to(data.rows.device)
        work = retrain(opened, parts, findings, seeds, settings, progress=partial(_note, show))
        kept = work.kept
    else:
        module = opened.module
        assert isinstance(module, nn.Sequential)
        work = repair_neurons(
            module,
            interpret(Network(module, data.domain), data.domain, parts.train.rows),
            parts,
            max_loss=settings.max_loss,
            seed=settings.seed,
            progress=lambda done, total: show("Turning neurons down", done, total),
        )
        kept = opened.with_module(work.module)
    # With the seed of the run, the search would go the ways again that gave the findings.
    seed = (0 if run is None else int(run.manifest["plan"]["seed"])) + 1 + settings.seed
    before, after = (
        measure_model(one, parts, seed=seed, progress=partial(_search_shown, show, what))
        for what, one in (("Measuring before", opened), ("Measuring after", kept))
    )
    if after.unfair >= before.unfair:
        what, remedy = ("effect", "Allow more --repeats") if alike else ("rate", "Search longer for more findings")
        raise NeuronFairError(
            f"the {what} did not fall ({percent(before.unfair)} before, {percent(after.unfair)} "
            f"after), so nothing was written. {remedy}, or repair otherwise with --how"
        )
    control = work.control if isinstance(work, Retraining) and alike else None
    without = None if control is None else held_out_effect(control.model, parts, opened.decision)
    made = _card(kept.module, data, after.accuracy, split_seed) if opened.kind == OWN else None
    return Repaired(work, kept, before, after, data, made, _notes(run, opened, card), without)


def training_pairs(
    run: Run | None, data: Dataset, settings: RepairSettings, voter: Callable[[], Opened]
) -> tuple[Tensor, Tensor]:
    """Return pairs for the user's own training, (f, 2, d), and a label for both people of each, (f,).

    Of the model, `voter`, nothing is asked unless its twins are to vote. In a domain with counterparts the pairs are
    all rows of the table and their counterparts.
    """
    if counterparts_of(data.domain) is not None:
        return counterfactual_pairs(data, settings.seed)
    assert run is not None
    asked = voter() if settings.label == "twins" else None
    data = data if asked is None else data.to(asked.model.encoding.device)
    findings, seeds = _findings(run, data), run.seeds.to(data.rows.device)
    parts = data.split(settings.seed)
    ensemble = Ensemble(parts, seed=settings.seed) if settings.label == "ensemble" else None
    pairs, labels = labelled_pairs(parts.train, findings, seeds, settings.label, ensemble=ensemble, voter=asked)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(settings.seed))
    drawn = order[: settings.joining(len(pairs))]
    return pairs[drawn], labels[drawn]


def _findings(run: Run, data: Dataset) -> Findings:
    findings = replace(run, ledger=replace(run.ledger, domain=data.domain)).findings()  # on the device
    if len(findings) == 0:
        raise RunError(f"{run.folder}: nothing was found, so there is nothing to repair with. Search longer first")
    return findings


def _note(show: Progress, epoch: int, losses: dict[int, float]) -> None:
    mean = f"epochs, validation loss {sum(losses.values()) / len(losses):.4f}" if losses else "fits"
    show("Training again", epoch, None, mean)


def _search_shown(show: Progress, label: str, what: str, done: int, total: int | None, note: str = "") -> None:
    show(label, done, total, note)


def searched_table(run: Run, given: Path | Sheet | None) -> Dataset:
    """Return the table that a run has searched."""
    name = str(run.manifest.get("data"))
    path = given.path if isinstance(given, Sheet) else given
    if given is not None:
        table = read_table(given, run.domain)
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


def _notes(run: Run | None, opened: Opened, card: Card | None) -> tuple[str, ...]:
    """Return what a reader must know about a model and the findings."""
    notes = []
    if opened.kind == OWN and card is None:
        notes.append(
            "These weights have no card: they may have seen the test rows, so the accuracy before may be too good."
        )
    elif opened.kind != OWN:
        fair = " The control tells what it costs: the same fit without pairs." if opened.refit is not None else ""
        notes.append(
            "It is not known which rows the model was trained with. It may have seen the test rows, so the accuracy "
            f"before may be too good.{fair}"
        )
    if run is not None and opened.fingerprint != run.manifest["weights"]:
        notes.append("The findings of this run were made with other weights.")
    return tuple(notes)


def _card(module: nn.Module | None, table: Dataset, accuracy: dict[str, float], seed: int) -> Card:
    """Return the card of a repaired network; its seed is that of the split, so that the test rows stay the same."""
    domain = table.domain
    assert domain.target is not None
    assert isinstance(module, nn.Sequential)
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
