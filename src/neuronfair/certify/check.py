"""The checker of certificates: verifies a proof box by box, with nothing of the prover but domain and weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from neuronfair.certify.certificate import Certificate, CertificateError, fingerprint, read
from neuronfair.certify.check_claims import proved
from neuronfair.certify.check_decision import signed
from neuronfair.certify.check_ground import Ground, ground_of
from neuronfair.certify.check_network import layers_of
from neuronfair.certify.check_shares import Bounds
from neuronfair.certify.check_trees import trees_of
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.model.chain import Chain, chain_of
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest
from neuronfair.model.network import Network
from neuronfair.model.open import Opened

BOXES = 1 << 14  # that are verified together


@dataclass(frozen=True)
class Checked:
    """What a certificate rightly says: numbers of boxes and people, and how long it took to verify."""

    leaves: int
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
) -> Checked:
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
    return Checked(len(proof.leaves), proof.people, proof.fair, proof.discriminatory, time.perf_counter() - begun)


def _verified(
    certificate: Certificate,
    model: Opened | Network | Forest,
    domain: TableDomain | None,
    decision: Decision | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    proof, leaves = certificate.proof, certificate.proof.leaves
    if domain is not None and (domain.fingerprint, domain.sensitive) != (
        certificate.domain.fingerprint,
        certificate.domain.sensitive,
    ):
        raise CertificateError("it is about another domain, other rules or other sensitive attributes")
    decision = decision or (model.decision if isinstance(model, Opened) else None)
    if decision is not None and decision != certificate.decision:
        raise CertificateError(f"it is about another decision: {_said(certificate.decision)}, not {_said(decision)}")
    ground = ground_of(certificate)
    bounds = _bounds(certificate, model, ground)
    low, high = leaves.low.astype("int64"), leaves.high.astype("int64")
    if not ground.cover_once(low, high):
        raise CertificateError("its boxes do not cover everybody exactly once: one is missing, doubled or changed")
    people = 0
    for start in range(0, len(low), BOXES):
        some = slice(start, start + BOXES)
        found = proved(bounds, low[some], high[some], leaves.fair[some], leaves.discriminatory[some])
        if found.refused is not None:
            number = found.refused
            box = start + number
            raise CertificateError(
                f"box {box + 1} claims {leaves.fair[box]:,} people decided alike and {leaves.discriminatory[box]:,} "
                f"not; {found.fair[number]:,} and {found.discriminatory[number]:,} of {found.people[number]:,} "
                f"could be verified. It holds: {ground.in_words(low[box], high[box])}"
            )
        people += sum(found.people.tolist())
        if progress is not None:
            progress(min(start + BOXES, len(low)), len(low))
    fair, discriminatory = sum(leaves.fair), sum(leaves.discriminatory)
    for name, said, true in (
        ("people", proof.people, people),
        ("people decided alike", proof.fair, fair),
        ("people not decided alike", proof.discriminatory, discriminatory),
    ):
        if said != true:
            raise CertificateError(f"it counts {said:,} {name} in all; its boxes have {true:,}")


def _bounds(certificate: Certificate, model: Opened | Network | Forest, ground: Ground) -> Bounds:
    domain = certificate.domain
    inner = model.model if isinstance(model, Opened) else model
    if isinstance(inner, Network):
        encoding = inner.encoding
        if not isinstance(encoding, TableEncoding) or encoding.size.tolist() != domain.sizes.tolist():
            raise CertificateError("the model does not read rows of the certificate's domain")
        chain = chain_of(inner, domain.sample(64, torch.Generator().manual_seed(0)).to(inner.device))
        _same(certificate, chain)
        rows = signed(certificate.decision, inner.outputs, chain.end)
        return layers_of(chain, encoding, ground, rows)
    forest = model.trees() if isinstance(model, Opened) and model.trees is not None else model
    if not isinstance(forest, Forest):
        raise CertificateError("only networks and trees can be checked, and the model is neither")
    if [len(cells) for cells in forest.cells] != domain.sizes.tolist():
        raise CertificateError("the model does not read rows of the certificate's domain")
    _same(certificate, forest)
    return trees_of(forest, ground, signed(certificate.decision, len(forest.base), forest.link))


def _same(certificate: Certificate, numbers: Chain | Forest) -> None:
    if fingerprint(numbers) != certificate.fingerprint:
        raise CertificateError("it is about a model with other weights")


def _said(decision: Decision) -> str:
    return decision.kind if decision.kind == "argmax" else f"{decision.kind} {decision.value:g}"
