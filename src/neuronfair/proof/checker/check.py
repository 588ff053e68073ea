"""The checker of certificates: verifies a proof box by box, by its own reading of model, region and rules.

It shares with the prover the domain, its attributes and how the text of a condition is parsed, how a model file is
opened as a torch module, and how trees are read from a model's file. Everything else is its own: what a network
computes, what the region and the rules mean, all bounds and counts. It also asks the model itself about records drawn
from the boxes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr

from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError, one_line
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel
from neuronfair.model.weights import fingerprint
from neuronfair.proof.certificate import Certificate, CertificateError, known_by, read
from neuronfair.proof.checker.network import CheckedLines, Layers, layers_of, numbers_of
from neuronfair.proof.checker.reader import read_network
from neuronfair.proof.checker.region import (
    WORTH,
    Bools,
    CheckedRegion,
    FeatureLayout,
    Floats,
    Ints,
    Signed,
    checked_region,
    signed,
)
from neuronfair.proof.checker.trees import CheckedTrees, fingerprint_of_trees, trees_of

Bounds = Layers | CheckedTrees  # a model over the places of a certificate
BOXES_PER_BATCH = 1 << 14
DRAWN_RECORDS = 1 << 14  # records, with all their twins, that the model itself evaluates
MAX_WRITTEN_NUMBER = 10**24  # larger numbers of records are rounded
FLOAT32_ERROR = 1e-5  # of the sizes of trees' sums: what their libraries may be off, which add in float32


@dataclass(frozen=True)
class CheckedCertificate:
    """What a certificate rightly says: numbers of boxes and records."""

    boxes: int
    people: int
    fair: int
    discriminatory: int


def check(
    path: Path,
    model: OpenedModel | Network | Forest,
    *,
    domain: TableDomain | None = None,
    decision: Decision | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckedCertificate:
    """Verify a certificate about a model; the first thing that is wrong, or cannot be verified, is an error.

    Where a domain or a decision is given, or the model has a decision of its own, it must be that of the certificate.
    `progress` receives how many boxes are verified, and of how many.
    """
    certificate = read(Path(path))
    try:
        _verified(certificate, model, domain, decision, progress)
    except NeuronFairError as error:
        raise CertificateError(f"{path}: {error}") from None
    proof = certificate.proof
    return CheckedCertificate(len(proof.certified), proof.people, proof.fair, proof.discriminatory)


def _verified(
    certificate: Certificate,
    model: OpenedModel | Network | Forest,
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
    decision = decision or (model.decision if isinstance(model, OpenedModel) else None)
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
    region = checked_region(certificate)
    low, high = claims.low.astype("int64"), claims.high.astype("int64")
    if not region.cover_once(low, high):
        raise CertificateError("its boxes do not cover everybody exactly once: one is missing, doubled or changed")
    bounds = _bounds(certificate, model, region)
    _check_drawn(model, certificate.decision, bounds, low, high)
    people = 0
    for start in range(0, len(low), BOXES_PER_BATCH):
        some = slice(start, start + BOXES_PER_BATCH)
        found = proved(bounds, low[some], high[some], claims.fair[some], claims.discriminatory[some])
        if found.refused is not None:
            number = found.refused
            box = start + number
            raise CertificateError(
                f"box {box + 1} claims {_number(claims.fair[box])} certified people and "
                f"{_number(claims.discriminatory[box])} certified to depend; {_number(found.fair[number])} and "
                f"{_number(found.discriminatory[number])} of {_number(found.people[number])} could be verified. "
                f"It holds: {region.in_words(low[box], high[box])}"
            )
        people += sum(found.people.tolist())
        if progress is not None:
            progress(min(start + BOXES_PER_BATCH, len(low)), len(low))
    if proof.people != people:
        raise CertificateError(f"it counts {_number(proof.people)} people in all; its boxes have {_number(people)}")


def _bounds(certificate: Certificate, model: OpenedModel | Network | Forest, region: CheckedRegion) -> Bounds:
    domain = certificate.domain
    inner = model.model if isinstance(model, OpenedModel) else model
    if isinstance(inner, Network):
        encoding = inner.encoding
        sizes = [attribute.size for attribute in encoding.attributes] if isinstance(encoding, TableEncoding) else []
        if not isinstance(encoding, TableEncoding) or sizes != [a.size for a in domain.attributes]:
            raise CertificateError("the model does not read rows of the certificate's domain")
        stored = model.fingerprint if isinstance(model, OpenedModel) else fingerprint(inner.module)
        _same(certificate, known_by(stored, inner.module))
        network = read_network(inner.module, sum(map(numbers_of, encoding.attributes)))
        rows = signed(certificate.decision, len(network.layers[-1].bias), network.end)
        return layers_of(network, encoding.attributes, region, rows)
    forest = model.trees() if isinstance(model, OpenedModel) and model.trees is not None else model
    if not isinstance(forest, Forest):
        raise CertificateError("only networks and trees can be checked, and the model is neither")
    if [len(cells) for cells in forest.cells] != [attribute.size for attribute in domain.attributes]:
        raise CertificateError("the model does not read rows of the certificate's domain")
    _same(certificate, model.fingerprint if isinstance(model, OpenedModel) else fingerprint_of_trees(forest))
    return trees_of(forest, region, signed(certificate.decision, len(forest.base), forest.link))


def _check_drawn(
    model: OpenedModel | Network | Forest, decision: Decision, bounds: Bounds, low: Ints, high: Ints
) -> None:
    """Evaluate records drawn from the boxes with the model itself; refuse it if it differs from what was read of it."""
    own = model.model if isinstance(model, OpenedModel) else model
    if not isinstance(own, (Network, BlackBox)):
        return
    region, draw = bounds.layout.region, np.random.default_rng()
    count = max(1, DRAWN_RECORDS // len(region.values))
    box = draw.integers(0, len(low), count)
    places = region.drawn(low[box], high[box], draw)
    rows = torch.from_numpy(region.rows(places, draw))
    try:
        scores = own.double().scores(rows.flatten(0, 1).to(own.encoding.device)).cpu().double()
    except NeuronFairError as error:
        raise CertificateError(f"the model cannot decide about people of its boxes: {one_line(error)}") from None
    scores = scores.view(*rows.shape[:2], -1)
    valid, _ = region.valid(places, places)
    margins = bounds.points(places)
    near = FLOAT32_ERROR * bounds.size if isinstance(bounds, CheckedTrees) else 0.0
    alike, flips = bounds.rows.decided(margins - near, valid)
    off = ~torch.from_numpy(valid)
    if decision.kind == "tolerance":
        score = scores[..., -1]
        wide = score.masked_fill(off, -torch.inf).amax(1) - score.masked_fill(off, torch.inf).amin(1)
        differ = (wide > decision.value).numpy()
    else:
        chosen = decision.decide(scores)
        differ = (
            chosen.masked_fill(off, -1).amax(1) > chosen.masked_fill(off, torch.iinfo(chosen.dtype).max).amin(1)
        ).numpy()
    wrong = np.flatnonzero((alike & differ) | (flips & ~differ))
    if len(wrong):
        person = region.in_words(places[wrong[0]], places[wrong[0]])
        raise CertificateError(f"the model decides otherwise than what was read of it, about {person}")


def _same(certificate: Certificate, digest: str) -> None:
    if digest != certificate.fingerprint:
        raise CertificateError("it is about a model with other weights, from another file, or of other Python code")


def _in_words(decision: Decision) -> str:
    return decision.kind if decision.kind == "argmax" else f"{decision.kind} {decision.value:g}"


def _number(count: int) -> str:
    """Return a number of records as text; a huge one that a forged certificate claims is rounded."""
    return f"{count:,}" if count < MAX_WRITTEN_NUMBER else f"about 10^{len(str(count)) - 1}"


STEEPNESS_WEIGHT = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
FIRST_WAVES, MORE_WAVES = 128, 512  # by which shares are counted, at first and then
MAX_ENUMERATED_AT_ONCE = 64  # combinations of places up to which records are enumerated at once
MAX_ENUMERATED = 4096  # and up to which they are before a box is cut
NUMBERS_PER_THREAD = 1 << 21  # that are computed together
MAX_PARTS = 1 << 15  # into which a box is cut before its claim is refused
MAX_CUTS = 80  # of a box, one in the other
CUTS_BEFORE_TEST = 4  # then it is tested whether a claim can be true at all
MAX_TESTED_BOXES, DRAWS_PER_BOX = 16, 2048  # boxes of which that is tested, and records drawn from each
BOXES_PER_PIECE = 1 << 11  # boxes that are looked at together, at most
BOXES_PER_GROUP = 1 << 10  # boxes that are cut together, at most
MAX_PARTS_TOGETHER = 1 << 17  # and their parts, unless it is one box
THREADS = min(4, os.cpu_count() or 1)  # each with pieces of its own; numpy computes in all of them at once


def bounded(bounds: Bounds, low: Ints, high: Ints, valid: Bools, needed: list[Floats]) -> tuple[Floats, Floats, Ints]:
    """Return at least the shares of boxes that do not flip and that do, and an axis to cut.

    Where less than is needed is proved, it is tried with more effort.
    """
    joint = bounds.lines(low, high, True)
    shares = _shares(bounds, low, high, valid, needed, joint, FIRST_WAVES)
    axis = _axis(bounds.layout, low, high, valid, joint)
    for single in (False, True):
        short = np.flatnonzero(((shares[0] < needed[0]) | (shares[1] < needed[1])) & (shares.max(0) < 1))
        if not len(short) or (single and not bounds.single):
            break
        box = low[short], high[short], valid[short]
        lines = bounds.lines(*box[:2], False) if single else joint.chosen(short)
        again = _shares(bounds, *box, [need[short] for need in needed], lines, MORE_WAVES)
        shares[:, short] = np.maximum(shares[:, short], again)
    return shares[0], shares[1], axis


def _axis(layout: FeatureLayout, low: Ints, high: Ints, valid: Bools, lines: CheckedLines) -> Ints:
    """Return the axis that makes lines loosest within each box, to be cut: (n,)."""
    exists = valid[..., None] if lines.slopes.shape[1] > 1 else np.ones((len(low), 1, 1), bool)
    loose = np.where(exists, lines.slopes.sum(2), 0).sum(1)[:, None]  # both signs of a margin: what is between them
    steep = np.where(exists, np.abs(lines.slopes).sum(2), 0).sum(1)[:, None]
    score = layout.reach(low, high, loose)[:, 0] + STEEPNESS_WEIGHT * layout.reach(low, high, steep)[:, 0]
    return np.asarray(np.where(high > low, score + 1e-300 * (high - low), -1.0).argmax(1))


def _shares(
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, needed: list[Floats], lines: CheckedLines, waves: int
) -> Floats:
    """Return at least the shares of boxes that do not flip and that do, by some lines: (2, n)."""
    layout, rows = bounds.layout, bounds.rows
    whole = rows.decided(lines.least, valid)
    shares = np.array(whole, dtype=np.float64)
    for share, need, counted in zip(shares, needed, (_alike, _flips), strict=True):
        some = np.flatnonzero(~(whole[0] | whole[1]) & (need > 0))
        if len(some):
            box = _Box(layout, low[some], high[some], valid[some], waves)
            share[some] = counted(box, rows, lines.chosen(some))
    return shares


def _over(what: Callable[[Ints, Ints, Floats], Floats], low: Ints, high: Ints, lines: CheckedLines) -> Floats:
    """Return a function of lines over boxes, computed once for lines that all values share, plus their constants."""
    n, k, r, features = lines.slopes.shape
    return what(low, high, lines.slopes.reshape(n, k * r, features)).reshape(n, k, r) + lines.at


@dataclass(frozen=True)
class _Box:
    """Boxes whose shares are counted by so many waves."""

    layout: FeatureLayout
    low: Ints
    high: Ints
    valid: Bools
    waves: int

    def above(self, slopes: Floats, at: Floats, some: Ints | slice = slice(None)) -> Floats:
        """Return at least the share of some boxes where lines are above 0."""
        return self.layout.bound_share(self.low[some], self.high[some], slopes, at, self.waves)


def _alike(box: _Box, rows: Signed, lines: CheckedLines) -> Floats:
    """Return at least the share of boxes where one line below those of all values says that they do not flip."""
    if not rows.classes:
        (slopes, at), (others, other) = (_common(box, lines, row, box.valid) for row in (0, 1))
        return box.above(slopes + others, at + other + rows.tolerance)
    shares = []
    for row in range(len(rows.matrix)):
        matter = box.valid & (lines.least[..., row] <= 0)  # those that are positive anyway do not
        matter[~matter.any(1)] = box.valid[~matter.any(1)]
        shares.append(box.above(*_common(box, lines, row, matter)))
    total = np.zeros(len(box.low))
    for own in rows.classes:
        total += np.clip(1 - sum(1 - shares[row] for row in own), 0, 1)
    return np.minimum(total, 1 - 2.0**-52)


def _common(box: _Box, lines: CheckedLines, row: int, matter: Bools) -> tuple[Floats, Floats]:
    """Return one line below those of the values that matter: (n, features) and (n,)."""
    slopes, at = lines.slopes[:, :, row], lines.at[:, :, row]
    if slopes.shape[1] == 1:
        return slopes[:, 0], np.where(matter, at, np.inf).min(1)
    mean = (slopes * (matter / matter.sum(1, keepdims=True))[..., None]).sum(1)
    rest = box.layout.least(box.low, box.high, slopes - mean[:, None]) + at
    return mean, np.where(matter, rest, np.inf).min(1)


def _likely(layout: FeatureLayout, box: _Box, lines: CheckedLines) -> Floats:
    """Return about the share of boxes where each line is above 0: (n, values, rows)."""
    n, k, r, features = lines.slopes.shape
    spread = layout.spread(box.low, box.high, lines.slopes.reshape(n, k * r, features)).reshape(n, k, r)
    return np.asarray(ndtr(_over(layout.mean, box.low, box.high, lines) / spread))


def _flips(box: _Box, rows: Signed, lines: CheckedLines) -> Floats:
    """Return at least the share of boxes where one value surely has a class and another surely has not."""
    n, layout, exists = len(box.low), box.layout, box.valid[..., None]
    every, last = np.arange(n), lines.slopes.shape[1] - 1
    mean = np.where(exists, _over(layout.mean, box.low, box.high, lines), -np.inf)

    def line(some: Ints, value: Ints, row: int | Ints) -> tuple[Floats, Floats]:
        return lines.slopes[some, np.minimum(value, last)[some], row], lines.at[some, value[some], row]

    if not rows.classes:
        (slopes, at), (others, other) = (line(every, mean[..., row].argmax(1), row) for row in (0, 1))
        return box.above(slopes + others, at + other - rows.tolerance)
    likely = _likely(layout, box, lines)
    best = np.zeros(n)
    for own, against in zip(rows.classes, rows.against, strict=True):
        chosen_by = mean[..., own].min(-1).argmax(1)
        other = mean[..., against].reshape(n, -1).argmax(1)
        excluded_by, row = other // len(against), np.asarray(against)[other % len(against)]
        total = np.zeros(n)
        # Where there are two classes, the two values may flip either way.
        for one, two in ((chosen_by, excluded_by), (excluded_by, chosen_by))[: 2 if len(rows.classes) == 2 else 1]:
            chance = likely[every, two, row] - (1 - likely[every, one][:, own]).sum(1)
            some = np.flatnonzero(chance > WORTH)
            sure = sum(1 - box.above(*line(some, one, c), some) for c in own)
            total[some] += np.maximum(0, box.above(*line(some, two, row[some]), some) - sure)
        best = np.maximum(best, total)
        if len(rows.classes) == 2:
            break
    return np.minimum(best, 1 - 2.0**-52)


@dataclass(frozen=True)
class Parts:
    """Parts of boxes, and what was proved of them again."""

    low: Ints
    high: Ints
    box: Ints  # (n,) to which box each belongs
    people: Any  # (n,) exact whole numbers; 0 where a rule still cuts the part
    fair: Any
    discriminatory: Any
    axis: Ints  # (n,) which axis to cut next; -1: nothing is left to prove

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, chosen: Any) -> Parts:
        return Parts(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def __add__(self, other: Parts) -> Parts:
        both = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Parts(*(np.concatenate(pair) for pair in both))


@dataclass(frozen=True)
class ClaimResult:
    """What was proved again of boxes: exact whole numbers of records (n,), and the first box whose claim was not."""

    people: Any
    fair: Any
    discriminatory: Any
    refused: int | None


def proved(bounds: Bounds, low: Ints, high: Ints, fair: Any, discriminatory: Any) -> ClaimResult:
    """Prove again what is claimed of boxes: at least so many records do not flip, and so many do."""
    n = len(low)
    # Who claims more records than there can be is refused by one too many: the claim may be too large for a float.
    region = bounds.layout.region
    most = region.combinations(low, high).astype(object) * len(region.values) + 1
    claims = [np.minimum(np.asarray(claim, dtype=object), most) for claim in (fair, discriminatory)]
    parts = _examined(bounds, low, high, np.arange(n), claims, first=True)
    people, sums = parts.people.astype(object), [parts.fair.astype(object), parts.discriminatory.astype(object)]
    left = np.flatnonzero(_short(parts, claims, sums, n))
    waiting = [left[i : i + BOXES_PER_GROUP] for i in range(0, len(left), BOXES_PER_GROUP)][::-1]
    while waiting:
        some = waiting.pop()
        found = _cut(bounds, parts[some], [claim[some] for claim in claims])
        if found is None:  # too many parts together, which a single box is refused for before
            few = max(1, len(some) // 16)
            waiting += [some[i : i + few] for i in range(0, len(some), few)][::-1]
            continue
        people[some], sums[0][some], sums[1][some], failed = found
        if failed.any():
            return ClaimResult(people, sums[0], sums[1], int(some[failed.argmax()]))
    return ClaimResult(people, sums[0], sums[1], None)


def _short(parts: Parts, claims: list[Any], sums: list[Any], n: int) -> Bools:
    """Return which boxes claim more than is proved of their parts, or have a part that a rule cuts: (n,)."""
    unsure = np.bincount(parts.box[((parts.people == 0) & (parts.axis >= 0)).astype(bool)], minlength=n) > 0
    return np.asarray(unsure | ((sums[0] < claims[0]) | (sums[1] < claims[1])).astype(bool))


def _cut(bounds: Bounds, parts: Parts, claims: list[Any]) -> tuple[Any, Any, Any, Bools] | None:
    """Cut boxes until what is claimed is proved: the records, both sums, and which failed; None if parts are too many.

    A box that is cut into too many parts has failed.
    """
    n = len(parts)
    parts = replace(parts, box=np.arange(n))
    for level in range(MAX_CUTS + 1):
        sums = [_sums(parts.box, column, n) for column in (parts.fair, parts.discriminatory)]
        short = _short(parts, claims, sums, n)
        wanted = short[parts.box] & (parts.axis >= 0)
        crowded = bool((np.bincount(parts.box, minlength=n) > MAX_PARTS).any())
        if not wanted.any() or crowded or level == MAX_CUTS:
            break
        if len(parts) > MAX_PARTS_TOGETHER and n > 1:
            return None
        if level == CUTS_BEFORE_TEST and (untrue := _untrue(bounds, parts, claims, short)).any():
            return _sums(parts.box, parts.people, n), *sums, untrue
        cut = _largest(parts, wanted, [claim - sum_ for claim, sum_ in zip(claims, sums, strict=True)])
        parts = parts[~cut] + _halves(bounds, parts[cut], claims)
    return _sums(parts.box, parts.people, n), sums[0], sums[1], short


def _untrue(bounds: Bounds, parts: Parts, claims: list[Any], short: Bools) -> Bools:
    """Return which boxes claim what drawn records disprove: (n,).

    A claim about all records of a box is disproved by one counterexample; a claim about some of them by more
    counterexamples than chance allows in one of 10¹² certificates (Hoeffding's inequality).
    """
    region, draw = bounds.layout.region, np.random.default_rng()
    untrue = np.zeros(len(short), bool)
    for number in np.flatnonzero(short)[:MAX_TESTED_BOXES]:
        mine = parts[(parts.box == number) & (parts.people > 0).astype(bool)]
        people = mine.people.astype(object)
        if not len(mine) or (parts.people[parts.box == number] == 0).any():
            continue
        share = (people / sum(people)).astype(np.float64)
        part = draw.choice(len(mine), DRAWS_PER_BOX, p=share / share.sum())
        places = region.drawn(mine.low[part], mine.high[part], draw)
        valid, _ = region.valid(places, places)
        alike, flips = bounds.rows.decided(bounds.points(places), valid)
        for claim, other in zip(claims, (flips, alike), strict=True):
            rest = 1 - float(claim[number] / sum(people))
            chance = math.sqrt(math.log(1e12) / (2 * DRAWS_PER_BOX))
            untrue[number] |= bool(other.mean() > (rest + chance if claim[number] < sum(people) else 0))
    return untrue


def _largest(parts: Parts, wanted: Bools, missing: list[Any]) -> Bools:
    """Return which parts to cut: the largest ones, which together hold twice the records that a claim still lacks."""
    left = (parts.people - parts.fair - parts.discriminatory).astype(np.float64)
    left[(parts.people == 0).astype(bool)] = np.inf  # a rule cuts them
    order = np.flatnonzero(wanted)
    order = order[np.lexsort((-left[order], parts.box[order]))]
    box, size = parts.box[order], np.where(np.isinf(left[order]), 0, left[order])
    before = np.cumsum(size) - size
    start = np.flatnonzero(np.diff(box, prepend=-1))
    before -= np.repeat(before[start], np.diff(np.append(start, len(box))))  # of the same box
    most = 2 * np.maximum(missing[0], missing[1]).astype(np.float64)[box]
    cut = np.zeros(len(parts), bool)
    first = np.repeat(size[start], np.diff(np.append(start, len(box))))  # the largest of the same box
    cut[order[(before <= most) | (size >= first / 4) | np.isinf(left[order])]] = True
    return cut


def _sums(box: Ints, numbers: Any, n: int) -> Any:
    total = np.zeros(n, dtype=object)
    np.add.at(total, box, numbers.astype(object))
    return total


def _halves(bounds: Bounds, parts: Parts, claims: list[Any]) -> Parts:
    rows = np.arange(len(parts))
    middle = (parts.low[rows, parts.axis] + parts.high[rows, parts.axis]) // 2
    below, above = parts.high.copy(), parts.low.copy()
    below[rows, parts.axis], above[rows, parts.axis] = middle, middle + 1
    low, high = np.concatenate([parts.low, above]), np.concatenate([below, parts.high])
    return _examined(bounds, low, high, np.tile(parts.box, 2), claims, first=False)


def _examined(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], *, first: bool) -> Parts:
    step = max(1, min(BOXES_PER_PIECE, NUMBERS_PER_THREAD // bounds.numbers))

    def piece(p: slice) -> Parts:
        return _piece(bounds, low[p], high[p], box[p], [c[box[p]] for c in claims], first)

    with ThreadPoolExecutor(THREADS) as threads:
        parts = list(threads.map(piece, (slice(i, i + step) for i in range(0, len(low), step))))
    return Parts(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Parts)))


def _piece(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], first: bool) -> Parts:
    """Return what can be proved of parts of boxes, of which whole ones (`first`) need no more than is claimed."""
    region, n = bounds.layout.region, len(low)
    valid, axis = region.valid(low, high)
    whole = axis < 0
    twins = valid.sum(1)
    people = region.combinations(low, high) * ((valid & region.counted).sum(1) * whole).astype(region.exact)
    fair: Any = np.zeros(n, dtype=region.exact)
    flips: Any = np.zeros(n, dtype=region.exact)
    alone = whole & (twins < 2)  # no record has a twin
    fair[alone] = people[alone]
    open_ = np.flatnonzero(whole & ~alone & (people > 0).astype(bool) & (claims[0] + claims[1] > 0).astype(bool))
    alike = bounds.same(low[open_], high[open_], valid[open_])
    fair[open_[alike]] = people[open_[alike]]
    open_ = open_[~alike]
    count = (high[open_] - low[open_] + 1.0).prod(1)
    few = MAX_ENUMERATED_AT_ONCE if first and bounds.quick_lines else MAX_ENUMERATED
    little = open_[count <= few]
    fair[little], flips[little] = _enumerated(bounds, low[little], high[little], valid[little])
    open_ = open_[count > few]
    if len(open_):
        needed = [(claim[open_] > 0).astype(np.float64) for claim in claims]
        if first:
            needed = [(claim[open_] / people[open_]).astype(np.float64) for claim in claims]
        shares = bounded(bounds, low[open_], high[open_], valid[open_], needed)
        fair[open_], flips[open_] = (_part(share, people[open_]) for share in shares[:2])
        left = (shares[0] < 1) & (shares[1] < 1)
        axis[open_[left]] = shares[2][left]
    return Parts(low, high, box, people, fair, flips, axis)


def _part(share: Floats, people: Any) -> Any:
    """Return at most this share of whole numbers, exactly rounded down."""
    whole = (share * 2.0**52).astype(np.int64).astype(object)
    return (whole * people.astype(object) // 2**52).astype(people.dtype)


def _enumerated(bounds: Bounds, low: Ints, high: Ints, valid: Bools) -> tuple[Any, Any]:
    """Enumerate the records of small boxes: how many certainly do not flip, and how many do."""
    region = bounds.layout.region
    sizes = high - low + 1
    ends = np.cumsum(sizes.prod(1))
    found: list[Any] = [np.zeros(len(low), dtype=region.exact) for _ in range(2)]
    step = max(1, NUMBERS_PER_THREAD // (len(region.values) * bounds.width))
    members = (valid & region.counted).sum(1).astype(region.exact)
    for start in range(0, int(ends[-1]) if len(ends) else 0, step):
        number = np.arange(start, min(start + step, ends[-1]))
        owner = np.searchsorted(ends, number, side="right")
        rest = number - np.where(owner > 0, ends[owner - 1], 0)
        places = np.empty((len(owner), low.shape[1]), dtype=np.int64)
        weight = members[owner]
        for axis in range(low.shape[1]):
            rest, place = np.divmod(rest, sizes[owner, axis])
            places[:, axis] = low[owner, axis] + place
            weight = weight * region.counts[axis][places[:, axis]].astype(region.exact)
        for total, who in zip(found, bounds.rows.decided(bounds.points(places), valid[owner]), strict=True):
            np.add.at(total, owner[who], weight[who])
    return found[0], found[1]
