"""Small certificates made by hand: a domain that can be enumerated, boxes cut at random, and the truth about each."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.model.decision import Decision
from neuronfair.model.forest import Forest
from neuronfair.model.network import Network
from neuronfair.model.weights import fingerprint
from neuronfair.proof.certificate import (
    AxisCodes,
    Certificate,
    CertifiedBoxes,
    Proof,
    fingerprint_model,
    write_certificate,
)
from neuronfair.proof.checker.trees import fingerprint_trees
from neuronfair.searches.evaluate import evaluate

DOMAIN = """
name = "small"
sensitive = ["sex"]
[attributes]
age = { kind = "ordinal", low = 20, high = 29, encode = "scaled", center = 25, scale = 3 }
sex = { kind = "nominal", values = ["F", "M"], encode = "onehot" }
job = { kind = "nominal", values = ["a", "b", "c", "d"], encode = "onehot" }
hours = { kind = "ordinal", low = 0, high = 11, encode = "scaled", center = 5, scale = 4 }
"""
RULES = """
[[rules]]
name = "the young are no d"
if = { age = { max = 22 } }
then = { job = ["a", "b", "c"] }
[[rules]]
name = "no woman works more than 9 hours as b"
forbid = { sex = ["F"], job = ["b"], hours = { min = 10 } }
"""


def domain_of(text: str = DOMAIN) -> TableDomain:
    return parse_domain(text)


def network_of(domain: TableDomain, curve: nn.Module | None = None, outputs: int = 2, seed: int = 3) -> Network:
    torch.manual_seed(seed)
    width = sum(a.size if a.encode == "onehot" else 1 for a in domain.attributes)
    curve = curve or nn.ReLU()
    layers = [nn.Linear(width, 8), curve, nn.Linear(8, 5), type(curve)(), nn.Linear(5, outputs)]
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, std=1.0)
    return Network(nn.Sequential(*layers), domain)


def axes_of(domain: TableDomain, linear: bool = True) -> tuple[AxisCodes, ...]:
    """One place for every code, those of labels in reverse order."""
    axes = []
    for attribute in domain.attributes:
        if attribute.name in domain.sensitive:
            continue
        if linear and attribute.encode != "onehot":
            axes.append(AxisCodes(attribute.name, True, (((0, attribute.size - 1),),)))
        else:
            codes = reversed(range(attribute.size))
            axes.append(AxisCodes(attribute.name, False, tuple(((code, code),) for code in codes)))
    return tuple(axes)


def cut_up(sizes: list[int], pieces: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes that cover everything once, by cutting one at random again and again."""
    draw = random.Random(seed)
    boxes = [([0] * len(sizes), [size - 1 for size in sizes])]
    while len(boxes) < pieces:
        low, high = boxes.pop(draw.randrange(len(boxes)))
        axis = draw.choice([i for i in range(len(sizes)) if low[i] < high[i]] or [0])
        if low[axis] == high[axis]:
            boxes.append((low, high))
            continue
        at = draw.randrange(low[axis], high[axis])
        boxes.append((low, [*high[:axis], at, *high[axis + 1 :]]))
        boxes.append(([*low[:axis], at + 1, *low[axis + 1 :]], high))
    return np.array([b[0] for b in boxes], np.int32), np.array([b[1] for b in boxes], np.int32)


def truth(
    model: Network, domain: TableDomain, decision: Decision, axes: tuple[AxisCodes, ...], allowed: dict[str, set[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return for every combination of places how many people are decided alike and how many not, by asking all."""
    rows = torch.tensor(list(product(*(range(a.size) for a in domain.attributes))))
    rows = rows[domain.valid(rows)]
    for name, codes in allowed.items():
        rows = rows[torch.isin(rows[:, domain.column(name)], torch.tensor(sorted(codes)))]
    flips = evaluate(model.double() if isinstance(model, Network) else model, domain, rows, decision).discriminates
    shape = [len(axis) for axis in axes]
    found = np.zeros((2, *shape), dtype=np.int64)
    places = []
    for axis in axes:
        place = {}
        for number in range(len(axis)):
            runs = [(axis.runs[0][0][0] + number,) * 2] if axis.linear else axis.runs[number]
            place |= {code: number for a, b in runs for code in range(a, b + 1)}
        places.append([place[code] for code in rows[:, domain.column(axis.column)].tolist()])
    np.add.at(found, (flips.long().numpy(), *map(np.array, places)), 1)
    return found[0], found[1]


def certificate_of(
    model: Network,
    domain: TableDomain,
    decision: Decision | None = None,
    axes: tuple[AxisCodes, ...] | None = None,
    pieces: int = 12,
    numbers: Forest | None = None,
) -> Certificate:
    """Return a certificate that claims all that is true of each box."""
    decision, axes = decision or Decision(), axes or axes_of(domain)
    low, high = cut_up([len(axis) for axis in axes], pieces)
    alike, not_alike = truth(model, domain, decision, axes, {})
    boxes = [tuple(slice(a, b + 1) for a, b in zip(*ends, strict=True)) for ends in zip(low, high, strict=True)]
    fair, flips = ([int(table[box].sum()) for box in boxes] for table in (alike, not_alike))
    boxes = CertifiedBoxes(low, high, fair, flips)
    proof = Proof(sum(fair) + sum(flips), sum(fair), sum(flips), len(low), 1.5, boxes)
    known = (
        fingerprint_model(fingerprint(model.module), model.module) if numbers is None else fingerprint_trees(numbers)
    )
    return Certificate(domain, decision, "", known, axes, proof)


def with_boxes(certificate: Certificate, **changes: object) -> Certificate:
    """Return a certificate with other boxes, and totals that fit them."""
    boxes = replace(certificate.proof.certified, **changes)
    proof = replace(certificate.proof, certified=boxes, fair=sum(boxes.fair), discriminatory=sum(boxes.discriminatory))
    return replace(certificate, proof=proof)


def written(folder: Path, certificate: Certificate) -> Path:
    path = folder / "certificate.parquet"
    write_certificate(path, certificate)
    return path
