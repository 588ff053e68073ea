"""The whole test of a detector on pictures: whom it misses when only the attribute changes, and what training helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuronfair.errors import DataError
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.network import Network
from neuronfair.search.findings import Findings
from neuronfair.vision.bodies import Detector
from neuronfair.vision.detector import predictions
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.encoding import PictureEncoding
from neuronfair.vision.fgsm import Shift, random_like, turn
from neuronfair.vision.quality import score_gap, shift_norms, still_turned, walk_norms
from neuronfair.vision.repair import FACE, retrained
from neuronfair.vision.search import STEPS, ImageSearch, search_pictures
from neuronfair.words import percent

PROFILE_ROWS = 2000  # seed pictures whose activations are compared; the AUC of a layer hardly moves with more
CONTROLLED = ("neuronfair", "halving")
AGAIN_SEEDS = 500  # held-out faces from which a retrained detector is searched again

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Subject:
    """A detector under test, the classifier that says what the attribute is, and the faces to walk from."""

    detector: Detector
    network: Network
    attribute: Detector
    domain: ImageDomain  # faces that are detected and whose attribute turns
    shift: Shift
    numbers: Tensor  # of these faces among all faces
    held: Tensor  # bool: which of them the detector was not trained on
    faces: int
    detected: int
    profile: BiasProfile

    @property
    def turned(self) -> int:
        """How many detected faces have an attribute that turns."""
        return len(self.domain.pictures)

    def figures(self) -> dict[str, Any]:
        """Return how many faces there are, and how large their shifts."""
        sizes = self.shift.size.double()
        other = self.domain.with_shift(random_like(self.shift).levels)
        look = self.domain.rows(torch.arange(min(self.turned, PROFILE_ROWS), device=self.domain.device))
        return {
            "faces": self.faces,
            "detected": self.detected,
            "attribute_turns": self.turned,
            "attribute_never_turns": self.detected - self.turned,
            "epsilon_median": float(sizes.median()) / 255,
            "epsilon_mean": float(sizes.mean()) / 255,
            "shift_l2": float(shift_norms(self.domain, self.domain.seeds).mean()),
            "score_gap": score_gap(self.network, self.domain, look),
            "score_gap_random_shift": score_gap(self.network, other, look),
            "worst_layer": self.profile.worst.name,
            "auc": self.profile.worst.auc,
            "auc_by_layer": {layer.name: layer.auc for layer in self.profile.layers},
        }


def subject(
    detector: Detector, classifier: Detector, faces: Tensor, held: Tensor, *, name: str, sensitive: str
) -> Subject:
    """Find the shift of every detected face and where the detector reacts to it; leave out faces that never turn."""
    seen = (predictions(detector, faces) == FACE).nonzero()[:, 0]
    if len(seen) == 0:
        raise DataError(f"{name}: the detector finds no face in any of {len(faces):,} pictures, so there is no seed")
    shift = turn(classifier, faces[seen])
    turned = shift.turned.nonzero()[:, 0]
    if len(turned) == 0:
        raise DataError(f"{name}: no shift turns '{sensitive}' in any of {len(seen):,} faces, so nobody has a twin")
    numbers = seen[turned]
    shift = Shift(shift.levels[turned], shift.size[turned])
    domain = ImageDomain(name, faces[numbers], shift.levels, (sensitive,))
    network = Network(detector, PictureEncoding(domain))
    out = held[numbers]
    look = (out if bool(out.any()) else ~out).nonzero()[:, 0][:PROFILE_ROWS]
    profile = interpret(network, domain, domain.rows(look))
    return Subject(detector, network, classifier, domain, shift, numbers, out, len(faces), len(seen), profile)


def measured(subject: Subject, found: ImageSearch, domain: ImageDomain | None = None) -> dict[str, Any]:
    """Return the figures of one search."""
    domain = domain or subject.domain
    rows = found.findings.rows
    walked = walk_norms(domain, rows)
    return {
        "seeds": found.seeds,
        "idis": len(found.findings),
        "gsr": found.findings.gsr,
        "tried": found.findings.tried,
        "rejected": found.findings.rejected,
        "found_at_once": found.at_once,
        "share_of_seeds": len(found.findings) / max(1, found.seeds),
        "bias_l2": float(walked.mean()) if len(rows) else None,
        "shift_l2": float(shift_norms(domain, rows).mean()) if len(rows) else None,
        "attribute_still_turned": still_turned(subject.attribute, domain, rows),
        "median_step": float(found.findings.step.double().median()) if len(rows) else None,
        "seconds": found.seconds,
        "seconds_per_1000": found.seconds_per_1000,
    }


def compare(
    subject: Subject,
    methods: Sequence[str],
    *,
    seeds: int | None = None,
    control_seeds: int = 2000,
    seconds: float | None = None,
    steps: int = STEPS,
    walkers: int = 512,
    seed: int = 0,
    say: Say = lambda _: None,
) -> tuple[dict[str, ImageSearch], dict[str, dict[str, Any]]]:
    """Search with each method from all seeds, and with controls from some; return findings and figures.

    `…, random direction` is the same walk with noise in the place of gradients; `…, random shift` is the same walk
    with a shift of equal size in a random direction, so that what turns there is not the attribute. `seconds` bounds
    each search, to the end of a batch of walkers.
    """
    numbers = _spread(len(subject.domain.pictures), seeds, seed).to(subject.domain.device)
    other = subject.domain.with_shift(random_like(subject.shift, seed=seed).levels)
    plain: dict[str, Any] = {"profile": subject.profile, "steps": steps, "walkers": walkers, "seed": seed}
    plain["seconds"] = seconds
    found: dict[str, ImageSearch] = {}
    figures: dict[str, dict[str, Any]] = {}
    for method in methods:
        found[method] = search_pictures(subject.network, subject.domain, method, numbers, **plain)
        figures[method] = measured(subject, found[method])
        say(f"{method}: {figures[method]['idis']:,} findings, GSR {percent(figures[method]['gsr'])}")
    some = numbers[:control_seeds]
    for method in (m for m in CONTROLLED if m in methods):
        for name, domain, blind in (("random direction", subject.domain, True), ("random shift", other, False)):
            control = search_pictures(subject.network, domain, method, some, blind=blind, **plain)
            name = f"{method}, {name}"
            figures[name] = measured(subject, control, domain)
            say(f"{name}: {figures[name]['idis']:,} findings, GSR {percent(figures[name]['gsr'])}")
    return found, figures


def improve(
    subject: Subject,
    found: ImageSearch | None,
    pixels: Tensor,
    is_face: Tensor,
    held_pixels: Tensor,
    held_is_face: Tensor,
    *,
    epochs: int,
    steps: int = STEPS,
    walkers: int = 512,
    seed: int = 0,
) -> tuple[Detector, dict[str, Any]]:
    """Retrain with the findings of a search and measure bias and detection again, on pictures held out.

    `pixels` are those the detector was trained on. Findings that come from held-out faces are not used, so that what
    is measured was never seen. Without a search the training goes on with the same pictures: the control.
    """
    clock = time.perf_counter()
    nothing = Findings.empty(subject.domain, subject.network.outputs)
    findings = nothing if found is None else found.findings[~subject.held[found.findings.origin]]
    module = retrained(subject.detector, subject.domain, findings, pixels, is_face, epochs=epochs, seed=seed)
    seconds = time.perf_counter() - clock
    return module, {
        "used": len(findings),
        **after(subject, module, held_pixels, held_is_face, steps=steps, walkers=walkers, seed=seed),
        "seconds": seconds,
    }


def after(
    subject: Subject,
    detector: Detector,
    held_pixels: Tensor,
    held_is_face: Tensor,
    *,
    steps: int = STEPS,
    walkers: int = 512,
    seed: int = 0,
) -> dict[str, Any]:
    """Return AUC, detection rate and a new search (halving) of a detector, all on held-out pictures.

    The shifts stay those of the detector under test, so that before and after are asked the same question.
    """
    domain = subject.domain
    network = Network(detector, PictureEncoding(domain))
    seen = predictions(detector, domain.pictures) == FACE
    out = (subject.held if bool(subject.held.any()) else ~subject.held).nonzero()[:, 0]
    profile = interpret(network, domain, domain.rows(out[:PROFILE_ROWS]))
    again = search_pictures(
        network,
        domain,
        "halving",
        out[seen[out]][:AGAIN_SEEDS],
        profile=profile,
        steps=steps,
        walkers=walkers,
        seed=seed,
    )
    aucs = {layer.name: layer.auc for layer in profile.layers}
    return {
        "auc": profile.worst.auc,
        "auc_same_layer": aucs[subject.profile.worst.name],
        "auc_mean": sum(aucs.values()) / len(aucs),
        "detection_rate": float((predictions(detector, held_pixels) == held_is_face.long()).double().mean()),
        "found_again": len(again.findings),
        "seeds_again": again.seeds,
        "gsr_again": again.findings.gsr,
    }


def _spread(count: int, wanted: int | None, seed: int) -> Tensor:
    """Return the numbers of the seeds in a random order, some of them or all."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order if wanted is None else order[:wanted]
