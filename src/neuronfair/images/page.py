"""Picture findings side by side: the seed, both pictures of the pair, both differences amplified, both decisions."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.atomic import replacing, write_text
from neuronfair.formatting import spanned
from neuronfair.images.archive import decoder
from neuronfair.images.audit import PictureAudit
from neuronfair.images.detector import predictions
from neuronfair.images.domain import FLAG, PASS, SEED, ImageDomain
from neuronfair.images.report import sentences
from neuronfair.images.subject import RANDOM_SHIFT, DetectorSubject
from neuronfair.render.page import rendered
from neuronfair.searches.findings import Findings
from neuronfair.searches.methods import HALVING
from neuronfair.store.files import writing

FIGURES, PAGE, PAIRS = "figures.json", "report.html", "pairs.npz"
SHOWN, TWINS = 12, 6  # pairs on the page, and faces with the twins that each shift makes
ENLARGED = 3  # times, so that single pixels can be seen
REACH = 127  # levels that the largest difference is amplified to


def amplified(difference: Tensor) -> tuple[Tensor, int]:
    """Return a difference as a picture around middle grey, and how many times it is amplified: a whole number."""
    largest = int(difference.abs().max())
    times = max(1, REACH // largest) if largest else 1
    return (128 + difference.to(torch.int16) * times).clamp(0, 255).to(torch.uint8), times


def panels(domain: ImageDomain, findings: Findings, classes: Sequence[str]) -> list[list[tuple[Tensor, str]]]:
    """Return for each finding five pictures with a line of text each: seed, picture, twin and both differences."""
    rows = findings.rows.clone()
    seeds = domain.rows(rows[:, SEED].long())
    twins = findings.twins(domain)
    decisions = findings.scores.argmax(1), findings.twin_scores.argmax(1)
    shown = []
    for i in range(len(rows)):
        seed, own, twin = (domain.levels(r[i : i + 1])[0] for r in (seeds, rows, twins))
        walk, walk_times = amplified(own - seed)
        shift, shift_times = amplified(twin - own if int(rows[i, FLAG]) == 0 else own - twin)
        shown.append(
            [
                (seed.to(torch.uint8), "seed"),
                (own.to(torch.uint8), f"picture: {classes[int(decisions[0][i])]}"),
                (twin.to(torch.uint8), f"twin: {classes[int(decisions[1][i])]}"),
                (walk, f"Δ bias × {walk_times}"),
                (shift, f"Δ {domain.sensitive[0]} × {shift_times}"),
            ]
        )
    return shown


def twins_beside(subject: DetectorSubject, classes: Sequence[str], shown: int) -> list[list[tuple[Tensor, str]]]:
    """Return for some faces the seed, its twin and the same face with a random shift, with the attribute of each.

    The attribute is the classifier's answer: people may see another one.
    """
    domains = {"attribute shift": subject.domain, RANDOM_SHIFT: subject.random}
    rows = subject.domain.rows(torch.arange(min(shown, len(subject.domain.pictures)), device=subject.domain.device))
    seen = {"seed": subject.domain.levels(rows)}
    seen |= {name: domain.levels(domain.twins(rows).rows[:, 0]) for name, domain in domains.items()}
    said = {name: predictions(subject.attribute, pixels).tolist() for name, pixels in seen.items()}
    return [
        [(pixels[i].to(torch.uint8), f"{name}: {classes[said[name][i]]}") for name, pixels in seen.items()]
        for i in range(len(rows))
    ]


def finding_pictures(domain: ImageDomain, findings: Findings) -> Tensor:
    """Return both pictures of every finding, as 8-bit pictures: (2 f, c, h, w)."""
    rows = torch.cat([findings.rows, findings.twins(domain)])
    return torch.cat([domain.levels(part).to(torch.uint8) for part in torch.split(rows, PASS)])


def picture_page(audit: PictureAudit) -> str:
    """Return the audit of a detector as one self-contained HTML page: sentences, figures, and pairs side by side."""
    report, subject = audit.report, audit.subject
    shown = audit.found[HALVING].findings[:SHOWN]
    strips = twins_beside(subject, report.classes, TWINS), panels(subject.domain, shown, audit.classes)
    twins, pairs = ([[(_png(picture), text) for picture, text in row] for row in rows] for rows in strips)
    lines = sentences(report)
    return rendered(
        "pictures.html", style="page.css", report=report, lines=lines, spanned=spanned, twins=twins, pairs=pairs
    )


def write_results(folder: Path, audit: PictureAudit) -> None:
    """Write the figures of an audit, its page, and all pairs that halving has found as 8-bit pictures."""
    findings, domain = audit.found[HALVING].findings, audit.subject.domain
    pictures, twins = finding_pictures(domain, findings).cpu().chunk(2)
    with writing(folder), replacing(folder / PAIRS) as temporary:
        write_text(folder / FIGURES, audit.report.to_json())
        write_text(folder / PAGE, picture_page(audit))
        np.savez_compressed(
            temporary,
            pictures=pictures.numpy(),
            twins=twins.numpy(),
            scores=findings.scores.cpu().numpy(),
            twin_scores=findings.twin_scores.cpu().numpy(),
            seeds=np.array([audit.files[i] for i in findings.origin.tolist()], dtype=str),
        )


def enlarged(picture: Tensor) -> Any:
    """Return a picture as one of Pillow's, so large that single pixels can be seen."""
    pillow = decoder()
    array = np.ascontiguousarray(picture.cpu().numpy().transpose(1, 2, 0))
    image = pillow.fromarray(array)
    return image.resize((image.width * ENLARGED, image.height * ENLARGED), pillow.Resampling.NEAREST)


def _png(picture: Tensor) -> str:
    buffer = io.BytesIO()
    enlarged(picture).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
