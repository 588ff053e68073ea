"""The checker of certificates: verifies a proof box by box, by its own reading of model, region and rules.

It shares with the prover the domain, its attributes and how the text of a condition is parsed, how a model file is
opened as a torch module, and how trees are read from a model's file. Everything else is its own: what a network
computes, what the region and the rules mean, all bounds and counts. It also asks the model itself about people drawn
from the boxes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError, one_line
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.weights import fingerprint
from neuronfair.proof.certificate import Certificate, CertificateError, known_by, read
from neuronfair.proof.checker.claims import Bounds, proved
from neuronfair.proof.checker.ground import CheckedRegion, Ints, checked_region, signed
from neuronfair.proof.checker.network import layers_of, numbers_of
from neuronfair.proof.checker.reader import read_network
from neuronfair.proof.checker.trees import CheckedTrees, fingerprint_of_trees, trees_of

BOXES = 1 << 14  # that are verified together
DRAWN = 1 << 14  # people, with all their twins, about whom the model itself decides
LONGEST = 10**24  # numbers of people that are written in full
SINGLE = 1e-5  # of the sizes of trees' sums: what their libraries may be off, which add in float32


@dataclass(frozen=True)
class CheckedCertificate:
    """What a certificate rightly says: numbers of boxes and people, and how long it took to verify."""

    boxes: int
    people: int
    fair: int
    discriminatory: int
    seconds: float


def check(
    path: Path,
    model: Opened | Network | Forest,
    *,
    domain: TableDomain | None = None,
    decision: Decision | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckedCertificate:
    """Verify a certificate about a model; the first thing that is wrong, or cannot be verified, is an error.

    Where a domain or a decision is given, or the model has a decision of its own, it must be that of the certificate.
    `progress` is told how many boxes of how many are verified.
    """
    begun = time.perf_counter()
    certificate = read(Path(path))
    try:
        _verified(certificate, model, domain, decision, progress)
    except NeuronFairError as error:
        raise CertificateError(f"{path}: {error}") from None
    proof = certificate.proof
    return CheckedCertificate(
        len(proof.certified), proof.people, proof.fair, proof.discriminatory, time.perf_counter() - begun
    )


def _verified(
    certificate: Certificate,
    model: Opened | Network | Forest,
    domain: TableDomain | None,
    decision: Decision | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    proof, claims = certificate.proof, certificate.proof.certified
    if domain is not None and (domain.fingerprint, domain.sensitive) != (
        certificate.domain.fingerprint,
        certificate.domain.sensitive,
    ):
        raise CertificateError("it is about another domain, other rules or other sensitive attributes")
    decision = decision or (model.decision if isinstance(model, Opened) else None)
    if decision is not None and decision != certificate.decision:
        raise CertificateError(
            f"it is about another decision: {_in_words(certificate.decision)}, not {_in_words(decision)}"
        )
    for words, said, counts in (
        ("certified people", proof.fair, claims.fair),
        ("people certified to depend", proof.discriminatory, claims.discriminatory),
    ):
        if said != sum(counts):
            raise CertificateError(f"it counts {_number(said)} {words} in all; its boxes have {_number(sum(counts))}")
    ground = checked_region(certificate)
    low, high = claims.low.astype("int64"), claims.high.astype("int64")
    if not ground.cover_once(low, high):
        raise CertificateError("its boxes do not cover everybody exactly once: one is missing, doubled or changed")
    bounds = _bounds(certificate, model, ground)
    _check_people(model, certificate.decision, bounds, low, high)
    people = 0
    for start in range(0, len(low), BOXES):
        some = slice(start, start + BOXES)
        found = proved(bounds, low[some], high[some], claims.fair[some], claims.discriminatory[some])
        if found.refused is not None:
            number = found.refused
            box = start + number
            raise CertificateError(
                f"box {box + 1} claims {_number(claims.fair[box])} certified people and "
                f"{_number(claims.discriminatory[box])} certified to depend; {_number(found.fair[number])} and "
                f"{_number(found.discriminatory[number])} of {_number(found.people[number])} could be verified. "
                f"It holds: {ground.in_words(low[box], high[box])}"
            )
        people += sum(found.people.tolist())
        if progress is not None:
            progress(min(start + BOXES, len(low)), len(low))
    if proof.people != people:
        raise CertificateError(f"it counts {_number(proof.people)} people in all; its boxes have {_number(people)}")


def _bounds(certificate: Certificate, model: Opened | Network | Forest, ground: CheckedRegion) -> Bounds:
    domain = certificate.domain
    inner = model.model if isinstance(model, Opened) else model
    if isinstance(inner, Network):
        encoding = inner.encoding
        sizes = [attribute.size for attribute in encoding.attributes] if isinstance(encoding, TableEncoding) else []
        if not isinstance(encoding, TableEncoding) or sizes != [a.size for a in domain.attributes]:
            raise CertificateError("the model does not read rows of the certificate's domain")
        stored = model.fingerprint if isinstance(model, Opened) else fingerprint(inner.module)
        _same(certificate, known_by(stored, inner.module))
        network = read_network(inner.module, sum(map(numbers_of, encoding.attributes)))
        rows = signed(certificate.decision, len(network.layers[-1].bias), network.end)
        return layers_of(network, encoding.attributes, ground, rows)
    forest = model.trees() if isinstance(model, Opened) and model.trees is not None else model
    if not isinstance(forest, Forest):
        raise CertificateError("only networks and trees can be checked, and the model is neither")
    if [len(cells) for cells in forest.cells] != [attribute.size for attribute in domain.attributes]:
        raise CertificateError("the model does not read rows of the certificate's domain")
    _same(certificate, model.fingerprint if isinstance(model, Opened) else fingerprint_of_trees(forest))
    return trees_of(forest, ground, signed(certificate.decision, len(forest.base), forest.link))


def _check_people(model: Opened | Network | Forest, decision: Decision, bounds: Bounds, low: Ints, high: Ints) -> None:
    """Let the model itself decide about people drawn from the boxes: as what was read of it does, or it is refused."""
    own = model.model if isinstance(model, Opened) else model
    if not isinstance(own, (Network, BlackBox)):
        return
    ground, draw = bounds.frame.ground, np.random.default_rng()
    count = max(1, DRAWN // len(ground.values))
    box = draw.integers(0, len(low), count)
    places = ground.drawn(low[box], high[box], draw)
    rows = torch.from_numpy(ground.rows(places, draw))
    try:
        scores = own.double().scores(rows.flatten(0, 1).to(own.encoding.device)).cpu().double()
    except NeuronFairError as error:
        raise CertificateError(f"the model cannot decide about people of its boxes: {one_line(error)}") from None
    scores = scores.view(*rows.shape[:2], -1)
    valid, _ = ground.valid(places, places)
    margins = bounds.points(places)
    near = SINGLE * bounds.size if isinstance(bounds, CheckedTrees) else 0.0
    alike, flips = bounds.rows.decided(margins - near, valid)
    off = ~torch.from_numpy(valid)
    if decision.kind == "tolerance":
        score = scores[..., -1]
        wide = score.masked_fill(off, -torch.inf).amax(1) - score.masked_fill(off, torch.inf).amin(1)
        differ = (wide > decision.value).numpy()
    else:
        chosen = decision.chosen(scores)
        differ = (
            chosen.masked_fill(off, -1).amax(1) > chosen.masked_fill(off, torch.iinfo(chosen.dtype).max).amin(1)
        ).numpy()
    wrong = np.flatnonzero((alike & differ) | (flips & ~differ))
    if len(wrong):
        person = ground.in_words(places[wrong[0]], places[wrong[0]])
        raise CertificateError(f"the model decides otherwise than what was read of it, about {person}")


def _same(certificate: Certificate, digest: str) -> None:
    if digest != certificate.fingerprint:
        raise CertificateError("it is about a model with other weights, from another file, or of other Python code")


def _in_words(decision: Decision) -> str:
    return decision.kind if decision.kind == "argmax" else f"{decision.kind} {decision.value:g}"


def _number(count: int) -> str:
    """Return a number of people in words, however large a stranger says it is."""
    return f"{count:,}" if count < LONGEST else f"about 10^{len(str(count)) - 1}"
