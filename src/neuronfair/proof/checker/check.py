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
from neuronfair.proof.certificate import Certificate, CertificateError, fingerprint_model, read_certificate
from neuronfair.proof.checker.network import CheckedLines, Layers, build_layers, count_inputs
from neuronfair.proof.checker.reader import read_network
from neuronfair.proof.checker.region import (
    MIN_COUNTED_SHARE,
    Bools,
    CheckedRegion,
    FeatureLayout,
    Floats,
    Ints,
    SignedMargins,
    build_checked_region,
    build_margins,
)
from neuronfair.proof.checker.trees import CheckedTrees, build_checked_trees, fingerprint_trees

Bounds = Layers | CheckedTrees  # a model over the positions of a certificate
BOXES_PER_BATCH = 1 << 14
DRAWN_RECORDS = 1 << 14  # records, with all their twins, that the model itself evaluates
MAX_WRITTEN_NUMBER = 10**24  # larger numbers of records are rounded
FLOAT32_ERROR = 1e-5  # of the sizes of trees' sums: what their libraries may be off, which add in float32


@dataclass(frozen=True)
class CheckedCertificate:
    """What a certificate rightly says: numbers of boxes and records."""

    boxes: int
    record_count: int
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
    certificate = read_certificate(Path(path))
    try:
        _verify(certificate, model, domain, decision, progress)
    except NeuronFairError as error:
        raise CertificateError(f"{path}: {error}") from None
    proof = certificate.proof
    return CheckedCertificate(len(proof.certified), proof.record_count, proof.fair, proof.discriminatory)


def _verify(
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
            f"it is about another decision: {_describe(certificate.decision)}, not {_describe(decision)}"
        )
    for claim, total, counts in (
        ("certified people", proof.fair, claims.fair),
        ("people certified to depend", proof.discriminatory, claims.discriminatory),
    ):
        if total != sum(counts):
            raise CertificateError(f"it counts {_format(total)} {claim} in all; its boxes have {_format(sum(counts))}")
    region = build_checked_region(certificate)
    low, high = claims.low.astype("int64"), claims.high.astype("int64")
    if not region.cover_once(low, high):
        raise CertificateError("its boxes do not cover everybody exactly once: one is missing, doubled or changed")
    bounds = _build_bounds(certificate, model, region)
    _check_drawn_records(model, certificate.decision, bounds, low, high)
    record_count = 0
    for start in range(0, len(low), BOXES_PER_BATCH):
        part = slice(start, start + BOXES_PER_BATCH)
        result = prove_claims(bounds, low[part], high[part], claims.fair[part], claims.discriminatory[part])
        if result.refused is not None:
            index = result.refused
            box = start + index
            raise CertificateError(
                f"box {box + 1} claims {_format(claims.fair[box])} certified people and "
                f"{_format(claims.discriminatory[box])} certified to depend; {_format(result.fair[index])} and "
                f"{_format(result.discriminatory[index])} of {_format(result.record_count[index])} could be verified. "
                f"It holds: {region.describe_box(low[box], high[box])}"
            )
        record_count += sum(result.record_count.tolist())
        if progress is not None:
            progress(min(start + BOXES_PER_BATCH, len(low)), len(low))
    if proof.record_count != record_count:
        counts_in_words = f"{_format(proof.record_count)} people in all; its boxes have {_format(record_count)}"
        raise CertificateError(f"it counts {counts_in_words}")


def _build_bounds(certificate: Certificate, model: OpenedModel | Network | Forest, region: CheckedRegion) -> Bounds:
    domain = certificate.domain
    inner = model.model if isinstance(model, OpenedModel) else model
    if isinstance(inner, Network):
        encoding = inner.encoding
        sizes = [attribute.size for attribute in encoding.attributes] if isinstance(encoding, TableEncoding) else []
        if not isinstance(encoding, TableEncoding) or sizes != [a.size for a in domain.attributes]:
            raise CertificateError("the model does not read rows of the certificate's domain")
        stored = model.fingerprint if isinstance(model, OpenedModel) else fingerprint(inner.module)
        _check_fingerprint(certificate, fingerprint_model(stored, inner.module))
        network = read_network(inner.module, sum(map(count_inputs, encoding.attributes)))
        rows = build_margins(certificate.decision, len(network.layers[-1].bias), network.end)
        return build_layers(network, encoding.attributes, region, rows)
    forest = model.trees() if isinstance(model, OpenedModel) and model.trees is not None else model
    if not isinstance(forest, Forest):
        raise CertificateError("only networks and trees can be checked, and the model is neither")
    if [len(cells) for cells in forest.cells] != [attribute.size for attribute in domain.attributes]:
        raise CertificateError("the model does not read rows of the certificate's domain")
    _check_fingerprint(certificate, model.fingerprint if isinstance(model, OpenedModel) else fingerprint_trees(forest))
    return build_checked_trees(forest, region, build_margins(certificate.decision, len(forest.base), forest.link))


def _check_drawn_records(
    model: OpenedModel | Network | Forest, decision: Decision, bounds: Bounds, low: Ints, high: Ints
) -> None:
    """Evaluate records drawn from the boxes with the model itself; refuse it if it differs from what was read of it."""
    inner = model.model if isinstance(model, OpenedModel) else model
    if not isinstance(inner, (Network, BlackBox)):
        return
    region, draw = bounds.layout.region, np.random.default_rng()
    count = max(1, DRAWN_RECORDS // len(region.values))
    box = draw.integers(0, len(low), count)
    points = region.draw_points(low[box], high[box], draw)
    rows = torch.from_numpy(region.make_rows(points, draw))
    try:
        scores = inner.double().scores(rows.flatten(0, 1).to(inner.encoding.device)).cpu().double()
    except NeuronFairError as error:
        raise CertificateError(f"the model cannot decide about people of its boxes: {one_line(error)}") from None
    scores = scores.view(*rows.shape[:2], -1)
    valid, _ = region.find_valid(points, points)
    margins = bounds.compute_margins(points)
    rounding = FLOAT32_ERROR * bounds.size if isinstance(bounds, CheckedTrees) else 0.0
    fair, flips = bounds.rows.decide(margins - rounding, valid)
    invalid = ~torch.from_numpy(valid)
    if decision.kind == "tolerance":
        score = scores[..., -1]
        gap = score.masked_fill(invalid, -torch.inf).amax(1) - score.masked_fill(invalid, torch.inf).amin(1)
        differ = (gap > decision.value).numpy()
    else:
        chosen = decision.decide(scores)
        differ = (
            chosen.masked_fill(invalid, -1).amax(1) > chosen.masked_fill(invalid, torch.iinfo(chosen.dtype).max).amin(1)
        ).numpy()
    wrong_indices = np.flatnonzero((fair & differ) | (flips & ~differ))
    if len(wrong_indices):
        record = region.describe_box(points[wrong_indices[0]], points[wrong_indices[0]])
        raise CertificateError(f"the model decides otherwise than what was read of it, about {record}")


def _check_fingerprint(certificate: Certificate, digest: str) -> None:
    if digest != certificate.fingerprint:
        raise CertificateError("it is about a model with other weights, from another file, or of other Python code")


def _describe(decision: Decision) -> str:
    return decision.kind if decision.kind == "argmax" else f"{decision.kind} {decision.value:g}"


def _format(count: int) -> str:
    """Return a number of records as text; a huge one that a forged certificate claims is rounded."""
    return f"{count:,}" if count < MAX_WRITTEN_NUMBER else f"about 10^{len(str(count)) - 1}"


STEEPNESS_WEIGHT = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
FIRST_WAVES, MORE_WAVES = 128, 512  # waves by which shares are counted, at first and then
MAX_ENUMERATED_AT_ONCE = 64  # combinations of positions up to which records are enumerated at once
MAX_ENUMERATED = 4096  # combinations of positions up to which records are enumerated before a box is cut
NUMBERS_PER_THREAD = 1 << 21  # numbers that a thread computes together
MAX_PARTS = 1 << 15  # parts into which a box is cut before its claim is refused
MAX_CUTS = 80  # cuts of a box, one in the other
CUTS_BEFORE_TEST = 4  # cuts of a box after which it is tested whether a claim can be true at all
MAX_TESTED_BOXES, DRAWS_PER_BOX = 16, 2048  # boxes whose claim is tested so, and records drawn from each
BOXES_PER_PIECE = 1 << 11  # boxes that are looked at together, at most
BOXES_PER_GROUP = 1 << 10  # boxes that are cut together, at most
MAX_PARTS_TOGETHER = 1 << 17  # parts of boxes that are cut together, unless it is one box
THREADS = min(4, os.cpu_count() or 1)  # threads, each with pieces of its own; numpy computes in all of them at once


def bound_boxes(
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, required: list[Floats]
) -> tuple[Floats, Floats, Ints]:
    """Return at least the shares of boxes that do not flip and that do, and an axis to cut.

    Where less than is needed is proved, it is tried with more effort.
    """
    joint = bounds.find_lines(low, high, True)
    shares = _bound_shares(bounds, low, high, valid, required, joint, FIRST_WAVES)
    axis = _choose_axis(bounds.layout, low, high, valid, joint)
    for single in (False, True):
        short_indices = np.flatnonzero(((shares[0] < required[0]) | (shares[1] < required[1])) & (shares.max(0) < 1))
        if not len(short_indices) or (single and not bounds.tries_each_value):
            break
        short_boxes = low[short_indices], high[short_indices], valid[short_indices]
        lines = bounds.find_lines(*short_boxes[:2], False) if single else joint.select(short_indices)
        more_shares = _bound_shares(bounds, *short_boxes, [need[short_indices] for need in required], lines, MORE_WAVES)
        shares[:, short_indices] = np.maximum(shares[:, short_indices], more_shares)
    return shares[0], shares[1], axis


def _choose_axis(layout: FeatureLayout, low: Ints, high: Ints, valid: Bools, lines: CheckedLines) -> Ints:
    """Return the axis that makes lines loosest within each box, to be cut: (n,)."""
    is_valid = valid[..., None] if lines.slopes.shape[1] > 1 else np.ones((len(low), 1, 1), bool)
    loose = np.where(is_valid, lines.slopes.sum(2), 0).sum(1)[:, None]  # both signs of a margin: what is between them
    steep = np.where(is_valid, np.abs(lines.slopes).sum(2), 0).sum(1)[:, None]
    score = layout.find_ranges(low, high, loose)[:, 0] + STEEPNESS_WEIGHT * layout.find_ranges(low, high, steep)[:, 0]
    return np.asarray(np.where(high > low, score + 1e-300 * (high - low), -1.0).argmax(1))


def _bound_shares(
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, required: list[Floats], lines: CheckedLines, waves: int
) -> Floats:
    """Return at least the shares of boxes that do not flip and that do, by some lines: (2, n)."""
    layout, rows = bounds.layout, bounds.rows
    decisions = rows.decide(lines.minimum, valid)
    shares = np.array(decisions, dtype=np.float64)
    for share, needs, bound_share in zip(shares, required, (_bound_fair_share, _bound_flip_share), strict=True):
        indices = np.flatnonzero(~(decisions[0] | decisions[1]) & (needs > 0))
        if len(indices):
            box = _CountedBoxes(layout, low[indices], high[indices], valid[indices], waves)
            share[indices] = bound_share(box, rows, lines.select(indices))
    return shares


def _apply_to_lines(
    function: Callable[[Ints, Ints, Floats], Floats], low: Ints, high: Ints, lines: CheckedLines
) -> Floats:
    """Return a function of lines over boxes, computed once for lines that all values share, plus their constants."""
    n, values, rows, features = lines.slopes.shape
    return function(low, high, lines.slopes.reshape(n, values * rows, features)).reshape(n, values, rows) + lines.at


@dataclass(frozen=True)
class _CountedBoxes:
    """Boxes whose shares are counted by so many waves."""

    layout: FeatureLayout
    low: Ints
    high: Ints
    valid: Bools
    waves: int

    def bound_share(self, slopes: Floats, at: Floats, part: Ints | slice = slice(None)) -> Floats:
        """Return at least the share of some boxes where lines are above 0."""
        return self.layout.bound_share(self.low[part], self.high[part], slopes, at, self.waves)


def _bound_fair_share(box: _CountedBoxes, rows: SignedMargins, lines: CheckedLines) -> Floats:
    """Return at least the share of boxes where one line below those of all values says that they do not flip."""
    if not rows.classes:
        (slopes, at), (others, other) = (_find_common_line(box, lines, row, box.valid) for row in (0, 1))
        return box.bound_share(slopes + others, at + other + rows.tolerance)
    shares = []
    for row in range(len(rows.matrix)):
        relevant = box.valid & (lines.minimum[..., row] <= 0)  # those that are positive anyway do not
        relevant[~relevant.any(1)] = box.valid[~relevant.any(1)]
        shares.append(box.bound_share(*_find_common_line(box, lines, row, relevant)))
    total = np.zeros(len(box.low))
    for class_rows in rows.classes:
        total += np.clip(1 - sum(1 - shares[row] for row in class_rows), 0, 1)
    return np.minimum(total, 1 - 2.0**-52)


def _find_common_line(box: _CountedBoxes, lines: CheckedLines, row: int, relevant: Bools) -> tuple[Floats, Floats]:
    """Return one line below those of the values that matter: (n, features) and (n,)."""
    slopes, at = lines.slopes[:, :, row], lines.at[:, :, row]
    if slopes.shape[1] == 1:
        return slopes[:, 0], np.where(relevant, at, np.inf).min(1)
    mean = (slopes * (relevant / relevant.sum(1, keepdims=True))[..., None]).sum(1)
    lowest = box.layout.find_minimum(box.low, box.high, slopes - mean[:, None]) + at
    return mean, np.where(relevant, lowest, np.inf).min(1)


def _estimate_shares(layout: FeatureLayout, box: _CountedBoxes, lines: CheckedLines) -> Floats:
    """Return about the share of boxes where each line is above 0: (n, values, rows)."""
    n, values, rows, features = lines.slopes.shape
    slopes = lines.slopes.reshape(n, values * rows, features)
    spread = layout.estimate_deviation(box.low, box.high, slopes).reshape(n, values, rows)
    return np.asarray(ndtr(_apply_to_lines(layout.mean, box.low, box.high, lines) / spread))


def _bound_flip_share(box: _CountedBoxes, rows: SignedMargins, lines: CheckedLines) -> Floats:
    """Return at least the share of boxes where one value surely has a class and another surely has not."""
    n, layout, exists = len(box.low), box.layout, box.valid[..., None]
    all_boxes, last_copy = np.arange(n), lines.slopes.shape[1] - 1
    mean = np.where(exists, _apply_to_lines(layout.mean, box.low, box.high, lines), -np.inf)

    def line(indices: Ints, value: Ints, row: int | Ints) -> tuple[Floats, Floats]:
        return lines.slopes[indices, np.minimum(value, last_copy)[indices], row], lines.at[indices, value[indices], row]

    if not rows.classes:
        (slopes, at), (others, other) = (line(all_boxes, mean[..., row].argmax(1), row) for row in (0, 1))
        return box.bound_share(slopes + others, at + other - rows.tolerance)
    likely = _estimate_shares(layout, box, lines)
    best = np.zeros(n)
    for class_rows, against in zip(rows.classes, rows.against, strict=True):
        chosen_by = mean[..., class_rows].min(-1).argmax(1)
        other = mean[..., against].reshape(n, -1).argmax(1)
        excluded_by, row = other // len(against), np.asarray(against)[other % len(against)]
        total = np.zeros(n)
        # Where there are two classes, the two values may flip either way.
        pairs = [(chosen_by, excluded_by), (excluded_by, chosen_by)]
        for chosen, excluded in pairs if len(rows.classes) == 2 else pairs[:1]:
            chance = likely[all_boxes, excluded, row] - (1 - likely[all_boxes, chosen][:, class_rows]).sum(1)
            indices = np.flatnonzero(chance > MIN_COUNTED_SHARE)
            sure = sum(1 - box.bound_share(*line(indices, chosen, c), indices) for c in class_rows)
            total[indices] += np.maximum(0, box.bound_share(*line(indices, excluded, row[indices]), indices) - sure)
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
    record_count: Any  # (n,) exact whole numbers; 0 where a rule still cuts the part
    fair: Any
    discriminatory: Any
    axis: Ints  # (n,) which axis to cut next; -1: nothing is left to prove

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, chosen: Any) -> Parts:
        return Parts(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def __add__(self, other: Parts) -> Parts:
        columns = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Parts(*(np.concatenate(pair) for pair in columns))


@dataclass(frozen=True)
class ClaimResult:
    """What was proved again of boxes: exact whole numbers of records (n,), and the first box whose claim was not."""

    record_count: Any
    fair: Any
    discriminatory: Any
    refused: int | None


def prove_claims(bounds: Bounds, low: Ints, high: Ints, fair: Any, discriminatory: Any) -> ClaimResult:
    """Prove again what is claimed of boxes: at least so many records do not flip, and so many do."""
    n = len(low)
    # Who claims more records than there can be is refused by one too many: the claim may be too large for a float.
    region = bounds.layout.region
    impossible = region.count_combinations(low, high).astype(object) * len(region.values) + 1
    claims = [np.minimum(np.asarray(claim, dtype=object), impossible) for claim in (fair, discriminatory)]
    parts = _examine(bounds, low, high, np.arange(n), claims, first=True)
    counts, sums = (parts.record_count.astype(object), [parts.fair.astype(object), parts.discriminatory.astype(object)])
    short_indices = np.flatnonzero(_mark_short(parts, claims, sums, n))
    waiting = [short_indices[i : i + BOXES_PER_GROUP] for i in range(0, len(short_indices), BOXES_PER_GROUP)][::-1]
    while waiting:
        group = waiting.pop()
        result = _cut_until_proved(bounds, parts[group], [claim[group] for claim in claims])
        if result is None:  # too many parts together, which a single box is refused for before
            smaller = max(1, len(group) // 16)
            waiting += [group[i : i + smaller] for i in range(0, len(group), smaller)][::-1]
            continue
        counts[group], sums[0][group], sums[1][group], failed = result
        if failed.any():
            return ClaimResult(counts, sums[0], sums[1], int(group[failed.argmax()]))
    return ClaimResult(counts, sums[0], sums[1], None)


def _mark_short(parts: Parts, claims: list[Any], sums: list[Any], n: int) -> Bools:
    """Return which boxes claim more than is proved of their parts, or have a part that a rule cuts: (n,)."""
    unsure = np.bincount(parts.box[((parts.record_count == 0) & (parts.axis >= 0)).astype(bool)], minlength=n) > 0
    return np.asarray(unsure | ((sums[0] < claims[0]) | (sums[1] < claims[1])).astype(bool))


def _cut_until_proved(bounds: Bounds, parts: Parts, claims: list[Any]) -> tuple[Any, Any, Any, Bools] | None:
    """Cut boxes until what is claimed is proved: the records, both sums, and which failed; None if parts are too many.

    A box that is cut into too many parts has failed.
    """
    n = len(parts)
    parts = replace(parts, box=np.arange(n))
    for level in range(MAX_CUTS + 1):
        sums = [_sum_by_box(parts.box, column, n) for column in (parts.fair, parts.discriminatory)]
        is_short = _mark_short(parts, claims, sums, n)
        is_open = is_short[parts.box] & (parts.axis >= 0)
        crowded = bool((np.bincount(parts.box, minlength=n) > MAX_PARTS).any())
        if not is_open.any() or crowded or level == MAX_CUTS:
            break
        if len(parts) > MAX_PARTS_TOGETHER and n > 1:
            return None
        if level == CUTS_BEFORE_TEST and (untrue := _mark_untrue(bounds, parts, claims, is_short)).any():
            return _sum_by_box(parts.box, parts.record_count, n), *sums, untrue
        cut = _mark_largest(parts, is_open, [claim - total for claim, total in zip(claims, sums, strict=True)])
        parts = parts[~cut] + _split(bounds, parts[cut], claims)
    return _sum_by_box(parts.box, parts.record_count, n), sums[0], sums[1], is_short


def _mark_untrue(bounds: Bounds, parts: Parts, claims: list[Any], short: Bools) -> Bools:
    """Return which boxes claim what drawn records disprove: (n,).

    A claim about all records of a box is disproved by one counterexample; a claim about some of them by more
    counterexamples than chance allows in one of 10¹² certificates (Hoeffding's inequality).
    """
    region, draw = bounds.layout.region, np.random.default_rng()
    untrue = np.zeros(len(short), bool)
    for index in np.flatnonzero(short)[:MAX_TESTED_BOXES]:
        box_parts = parts[(parts.box == index) & (parts.record_count > 0).astype(bool)]
        counts = box_parts.record_count.astype(object)
        if not len(box_parts) or (parts.record_count[parts.box == index] == 0).any():
            continue
        share = (counts / sum(counts)).astype(np.float64)
        part = draw.choice(len(box_parts), DRAWS_PER_BOX, p=share / share.sum())
        points = region.draw_points(box_parts.low[part], box_parts.high[part], draw)
        valid, _ = region.find_valid(points, points)
        fair, flips = bounds.rows.decide(bounds.compute_margins(points), valid)
        for claim, disproved in zip(claims, (flips, fair), strict=True):
            unclaimed = 1 - float(claim[index] / sum(counts))
            chance = math.sqrt(math.log(1e12) / (2 * DRAWS_PER_BOX))
            untrue[index] |= bool(disproved.mean() > (unclaimed + chance if claim[index] < sum(counts) else 0))
    return untrue


def _mark_largest(parts: Parts, is_open: Bools, missing: list[Any]) -> Bools:
    """Return which parts to cut: the largest ones, which together hold twice the records that a claim still lacks."""
    unproved = (parts.record_count - parts.fair - parts.discriminatory).astype(np.float64)
    unproved[(parts.record_count == 0).astype(bool)] = np.inf  # a rule cuts them
    order = np.flatnonzero(is_open)
    order = order[np.lexsort((-unproved[order], parts.box[order]))]
    box, size = parts.box[order], np.where(np.isinf(unproved[order]), 0, unproved[order])
    before = np.cumsum(size) - size
    start = np.flatnonzero(np.diff(box, prepend=-1))
    before -= np.repeat(before[start], np.diff(np.append(start, len(box))))  # of the same box
    needed_records = 2 * np.maximum(missing[0], missing[1]).astype(np.float64)[box]
    cut = np.zeros(len(parts), bool)
    first = np.repeat(size[start], np.diff(np.append(start, len(box))))  # the largest of the same box
    cut[order[(before <= needed_records) | (size >= first / 4) | np.isinf(unproved[order])]] = True
    return cut


def _sum_by_box(box: Ints, numbers: Any, n: int) -> Any:
    total = np.zeros(n, dtype=object)
    np.add.at(total, box, numbers.astype(object))
    return total


def _split(bounds: Bounds, parts: Parts, claims: list[Any]) -> Parts:
    rows = np.arange(len(parts))
    middle = (parts.low[rows, parts.axis] + parts.high[rows, parts.axis]) // 2
    below, above = parts.high.copy(), parts.low.copy()
    below[rows, parts.axis], above[rows, parts.axis] = middle, middle + 1
    low, high = np.concatenate([parts.low, above]), np.concatenate([below, parts.high])
    return _examine(bounds, low, high, np.tile(parts.box, 2), claims, first=False)


def _examine(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], *, first: bool) -> Parts:
    step = max(1, min(BOXES_PER_PIECE, NUMBERS_PER_THREAD // bounds.line_numbers))

    def piece(part: slice) -> Parts:
        return _examine_piece(bounds, low[part], high[part], box[part], [c[box[part]] for c in claims], first)

    with ThreadPoolExecutor(THREADS) as threads:
        parts = list(threads.map(piece, (slice(i, i + step) for i in range(0, len(low), step))))
    return Parts(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Parts)))


def _examine_piece(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], first: bool) -> Parts:
    """Return what can be proved of parts of boxes, of which whole ones (`first`) need no more than is claimed."""
    region, n = bounds.layout.region, len(low)
    valid, axis = region.find_valid(low, high)
    is_uniform = axis < 0
    twins = valid.sum(1)
    value_counts = ((valid & region.in_region).sum(1) * is_uniform).astype(region.exact)
    counts = region.count_combinations(low, high) * value_counts
    fair: Any = np.zeros(n, dtype=region.exact)
    flips: Any = np.zeros(n, dtype=region.exact)
    without_twin = is_uniform & (twins < 2)  # no record has a twin
    fair[without_twin] = counts[without_twin]
    has_claim = (counts > 0).astype(bool) & (claims[0] + claims[1] > 0).astype(bool)
    remaining = np.flatnonzero(is_uniform & ~without_twin & has_claim)
    has_same_margins = bounds.mark_same_margins(low[remaining], high[remaining], valid[remaining])
    fair[remaining[has_same_margins]] = counts[remaining[has_same_margins]]
    remaining = remaining[~has_same_margins]
    point_counts = (high[remaining] - low[remaining] + 1.0).prod(1)
    max_points = MAX_ENUMERATED_AT_ONCE if first and bounds.quick_lines else MAX_ENUMERATED
    small = remaining[point_counts <= max_points]
    fair[small], flips[small] = _enumerate(bounds, low[small], high[small], valid[small])
    remaining = remaining[point_counts > max_points]
    if len(remaining):
        required = [(claim[remaining] > 0).astype(np.float64) for claim in claims]
        if first:
            required = [(claim[remaining] / counts[remaining]).astype(np.float64) for claim in claims]
        shares = bound_boxes(bounds, low[remaining], high[remaining], valid[remaining], required)
        fair[remaining], flips[remaining] = (_take_share(share, counts[remaining]) for share in shares[:2])
        is_unproved = (shares[0] < 1) & (shares[1] < 1)
        axis[remaining[is_unproved]] = shares[2][is_unproved]
    return Parts(low, high, box, counts, fair, flips, axis)


def _take_share(share: Floats, counts: Any) -> Any:
    """Return at most this share of whole numbers, exactly rounded down."""
    parts = (share * 2.0**52).astype(np.int64).astype(object)
    return (parts * counts.astype(object) // 2**52).astype(counts.dtype)


def _enumerate(bounds: Bounds, low: Ints, high: Ints, valid: Bools) -> tuple[Any, Any]:
    """Enumerate the records of small boxes: how many certainly do not flip, and how many do."""
    region = bounds.layout.region
    sizes = high - low + 1
    ends = np.cumsum(sizes.prod(1))
    totals: list[Any] = [np.zeros(len(low), dtype=region.exact) for _ in range(2)]
    step = max(1, NUMBERS_PER_THREAD // (len(region.values) * bounds.numbers_per_point))
    value_counts = (valid & region.in_region).sum(1).astype(region.exact)
    for start in range(0, int(ends[-1]) if len(ends) else 0, step):
        point_index = np.arange(start, min(start + step, ends[-1]))
        owner = np.searchsorted(ends, point_index, side="right")
        remainder = point_index - np.where(owner > 0, ends[owner - 1], 0)
        points = np.empty((len(owner), low.shape[1]), dtype=np.int64)
        weight = value_counts[owner]
        for axis in range(low.shape[1]):
            remainder, position = np.divmod(remainder, sizes[owner, axis])
            points[:, axis] = low[owner, axis] + position
            weight = weight * region.counts[axis][points[:, axis]].astype(region.exact)
        decisions = bounds.rows.decide(bounds.compute_margins(points), valid[owner])
        for total, decided in zip(totals, decisions, strict=True):
            np.add.at(total, owner[decided], weight[decided])
    return totals[0], totals[1]
