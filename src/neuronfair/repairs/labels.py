"""Which decision a discriminated person should have had, and pairs with that label as training data."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.atomic import replacing
from neuronfair.domain.attribute import KEEP, MISSING, Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset, Split
from neuronfair.errors import DataError, NeuronFairError, did_you_mean
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding, families
from neuronfair.model.open import Opened
from neuronfair.model.train import Stack, train_stack
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import fully_connected
from neuronfair.searches.findings import Findings

RULES = ("ensemble", "seed", "twins")
UNLABELLED = -1  # a finding for which the rule has no answer

MEMBERS = 5  # of the ensemble; odd, so that two classes cannot tie
HIDDEN = (32, 16)
# Quicker than the training of a classifier: five voters correct each other.
QUICK = TrainingSettings(epochs=100, batch=256, lr=0.003, patience=5)


def check_rule(rule: str) -> None:
    """Refuse a label rule that does not exist."""
    if rule not in RULES:
        raise NeuronFairError(f"no label rule '{rule}'. {did_you_mean(rule, RULES)}")


class Ensemble:
    """Small networks that do not see the sensitive attributes and decide by majority."""

    def __init__(self, parts: Split, *, seed: int = 0) -> None:
        self.domain = parts.train.domain
        self.encoding = TableEncoding.of(self.domain)
        target = self.domain.target
        assert target is not None
        x, y = self._inputs(parts.train.rows), parts.train.labels
        # Each voter learns from its own draw of the rows, so that they do not all err alike.
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(len(x), (MEMBERS, len(x)), generator=generator)
        held = self._inputs(parts.validation.rows), parts.validation.labels
        results = train_stack(
            lambda: fully_connected(self.encoding.width, HIDDEN, len(target.classes)),
            (x, y),
            chosen=drawn,
            validation=held,
            settings=QUICK,
            seed=seed,
        )
        self.stack = Stack([result.module for result in results]).to(x.device).eval()

    def labels(self, rows: Tensor) -> Tensor:
        """Return the class that most members decide for: (n,)."""
        parts = families(self.encoding, self.domain, rows)
        return torch.cat([self._votes(part) for (part,) in zip(*parts, strict=True)])

    @torch.no_grad()
    def _votes(self, rows: Tensor) -> Tensor:
        scores = self.stack(self._inputs(rows))  # (members, n, classes)
        return _majority(scores.transpose(0, 1), torch.ones(len(rows), len(scores), device=rows.device))

    def _inputs(self, rows: Tensor) -> Tensor:
        """Return the network input of people who all have the same sensitive values."""
        blind = rows.clone()
        blind[:, list(self.domain.sensitive_columns)] = 0
        return self.encoding.encode(blind)


def seed_labels(domain: TableDomain, findings: Findings, seeds: Tensor, data: Dataset) -> Tensor:
    """Return the label of the table row that each finding was reached from; UNLABELLED where it was no row of it."""
    rows = torch.cat([domain.clip(data.rows), domain.clip(seeds)])
    _, same = torch.unique(rows, dim=0, return_inverse=True)
    known, asked = same[: len(data)], same[len(data) :]
    classes = int(data.labels.max()) + 1
    # Several rows of a table may be alike and have different labels: the most frequent one counts.
    counts = torch.bincount(known * classes + data.labels, minlength=(int(same.max()) + 1) * classes).view(-1, classes)
    of_seed = torch.where(counts.sum(1) > 0, counts.argmax(1), UNLABELLED)[asked]
    origin = findings.origin
    return torch.where(origin >= 0, of_seed[origin.clamp(min=0)], UNLABELLED) if len(seeds) else origin * 0 - 1


def from_training_rows(parts: Split, findings: Findings, seeds: Tensor) -> Findings:
    """Return the findings that were not reached from a held-out row, on which the result is evaluated."""
    domain, train = parts.train.domain, len(parts.train)
    held = [parts.validation.rows, parts.test.rows]
    rows = torch.cat([domain.clip(part) for part in (parts.train.rows, *held, seeds.to(parts.train.rows.device))])
    _, same = torch.unique(rows, dim=0, return_inverse=True)
    learned, held_out, asked = torch.tensor_split(same, (train, len(same) - len(seeds)))
    leaks = torch.isin(asked, held_out) & ~torch.isin(asked, learned)  # a row that both parts have is a training row
    origin = findings.origin.to(leaks.device)
    kept = findings[~(leaks[origin.clamp(min=0)] & (origin >= 0))] if len(seeds) else findings
    if len(findings) and not len(kept):
        raise NeuronFairError(
            "every finding was reached from a validation or test row, so none can be trained with. "
            "Search from more seeds"
        )
    return kept


def labelled_pairs(
    train: Dataset, findings: Findings, seeds: Tensor, rule: str, *, ensemble: Ensemble | None, voter: Opened | None
) -> tuple[Tensor, Tensor]:
    """Return the pairs that have a label, (f, 2, d), and the labels, (f,).

    The rule "ensemble" asks the ensemble, and "twins" the voter, which is the model itself.
    """
    domain, rows = train.domain, findings.rows
    if ensemble is not None:
        labels = ensemble.labels(rows)
    elif rule == "seed":
        labels = seed_labels(domain, findings, seeds, train)
    else:
        assert voter is not None
        labels = twin_labels(voter.model, domain, rows, train.rows, voter.decision)
    known = labels != UNLABELLED
    if not bool(known.any()):
        raise NeuronFairError(
            "no finding was reached from a training row, so no label is known. Choose --label ensemble or twins"
        )
    return torch.stack([rows, findings.twins(domain)], 1)[known], labels[known]


def twin_labels(
    model: Model, domain: TableDomain, rows: Tensor, table: Tensor, decision: Decision | None = None
) -> Tensor:
    """Return the decision of the majority of the twins, the person included: (n,).

    Every twin weighs as much as its sensitive values are frequent in the table. With equal weights two values would
    always tie, and a tie would have to be broken by the scores, which are all but equal where findings lie.
    """
    frequency = _frequencies(domain, table)
    labels = []
    for (part,) in zip(*families(model.encoding, domain, rows), strict=True):
        twins, valid = domain.twins(part)
        family = torch.cat([part[:, None], twins], 1)  # (n, 1 + k, d)
        scores = model.scores(family.flatten(0, 1)).view(*family.shape[:2], -1)
        if decision is not None and decision.kind == "threshold":  # one score for two classes
            lean = scores[..., -1:] - decision.value
            scores = torch.cat([-lean, lean], -1)
        weight = frequency[domain.combinations.number(family)]
        weight[:, 1:] *= valid
        labels.append(_majority(scores, weight))
    return torch.cat(labels) if labels else rows.new_empty(0)


def _frequencies(domain: TableDomain, rows: Tensor) -> Tensor:
    """Return how often each combination of sensitive values occurs, none of them never: (combinations,)."""
    counts = torch.bincount(domain.combinations.number(domain.clip(rows)), minlength=len(domain.sensitive_values))
    return counts.double() + 1e-3


def _majority(scores: Tensor, weight: Tensor) -> Tensor:
    """Return the class with the most weight: scores (n, voters, classes), weight (n, voters) -> (n,).

    The mean probability breaks a tie.
    """
    share = (weight / weight.sum(1, keepdim=True)).to(scores.dtype)[..., None]
    decided = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]) * share
    belief = scores.softmax(-1) * share
    return (decided.sum(1) + 1e-4 * belief.sum(1)).argmax(1)


Cell = str | int | float | None
SUFFIXES = (".csv", ".parquet")


def training_table(domain: TableDomain, pairs: Tensor, labels: Tensor) -> dict[str, list[Cell]]:
    """Return pairs, (f, 2, d), as columns of a table with the target's: the two people of a pair stand together.

    The cells are those of the table that was searched, as they are: an empty one is None, and nothing is put before a
    text that a spreadsheet would take for a formula, since a program is to learn from it.
    """
    target = domain.target
    assert target is not None
    table: dict[str, list[Cell]] = {}
    for attribute, codes in zip(domain.attributes, pairs.flatten(0, 1).cpu().T, strict=True):
        distinct, place = torch.unique(codes, return_inverse=True)
        cells = [_cell(attribute, code) for code in distinct.tolist()]
        table[attribute.name] = [cells[i] for i in place.tolist()]
    table[target.column] = [target.classes[i] for i in labels.repeat_interleave(2).tolist()]
    return table


def _cell(attribute: Attribute, code: int) -> Cell:
    value = attribute.value(code)
    return None if value == MISSING and attribute.missing in (MISSING, KEEP, code) else value


def write_training_table(path: Path, table: dict[str, list[Cell]]) -> None:
    """Write columns as CSV, or by its name as Parquet, with the types that the texts suggest."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    content = text.getvalue().encode()
    try:
        with replacing(path) as temporary:
            if path.suffix.lower() == ".parquet":
                _write_parquet(temporary, content, [name for name in table if _keeps_zeros(table[name])])
            else:
                temporary.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def _keeps_zeros(cells: Sequence[Cell]) -> bool:
    """Return whether a column holds a text such as a postcode, which would lose its first zero as a number."""
    return any(isinstance(cell, str) and re.match(r"0\d", cell) is not None for cell in set(cells))


def _write_parquet(path: Path, content: bytes, texts: Sequence[str]) -> None:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    options = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(texts, pyarrow.string()), null_values=[""], strings_can_be_null=True
    )
    table = pyarrow.csv.read_csv(io.BytesIO(content), convert_options=options)
    pyarrow.parquet.write_table(table, path)
