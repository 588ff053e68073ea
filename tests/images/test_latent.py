from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity

from neuronfair.experiments.planted import MARK, cast_detector, mark, mark_classifier, marked_faces
from neuronfair.images.attribute_shift import AttributeShift
from neuronfair.images.detector import predictions
from neuronfair.images.latent_shift import SIZE, LatentSpace, fit_latent, flip_latent, random_latent
from neuronfair.images.measures import walk_report
from neuronfair.images.page import twins_beside
from neuronfair.images.search import PictureSettings
from neuronfair.images.subject import DetectorSubject, ImageSplit, compare, subject

SIDE = 16
FACES, WEARS = marked_faces(100, SIDE)
CLASSIFIER = mark_classifier(SIDE)


@pytest.fixture(scope="module")
def space() -> LatentSpace:
    return fit_latent(FACES, WEARS)


def marked(space: LatentSpace, *, reads_cast: bool) -> DetectorSubject:
    split = ImageSplit(FACES, WEARS >= 0, WEARS, torch.zeros(len(FACES), dtype=torch.bool))
    detector = cast_detector(reads_cast=reads_cast)
    return subject(detector, CLASSIFIER, split, name="marked", sensitive="mark", latent=space)


def test_the_direction_of_a_planted_mark_is_recovered(space):
    way = torch.tensordot(space.groups[1] - space.groups[0], space.decoder, 1)
    alike = cosine_similarity(way.flatten(), mark(SIDE).flatten(), dim=0)
    assert float(alike) > 0.9
    assert float(way[0][mark(SIDE)[0] > 0].mean()) == pytest.approx(MARK, rel=0.15)  # levels: the groups' distance


def test_the_smallest_step_of_the_schedule_that_flips_is_taken_in_whole_levels(space):
    shift = flip_latent(space, CLASSIFIER, FACES)
    assert shift.flips.all()
    assert shift.levels.dtype == torch.int8
    own, twin = FACES, (FACES.to(torch.int16) + shift.levels).clamp(0, 255)
    assert (predictions(CLASSIFIER, own) == WEARS).all()
    assert (predictions(CLASSIFIER, twin) == 1 - WEARS).all()
    smaller = (FACES.to(torch.int16) + (shift.levels * 0.5).round().to(torch.int16)).clamp(0, 255)
    assert (predictions(CLASSIFIER, smaller) == WEARS).all()  # 0.5 and 0.75 come before 0.75 and 1, 0.25 before 0.5
    assert torch.equal(shift.size, shift.levels.long().abs().amax((1, 2, 3)))


def test_a_step_by_hand():
    """Two pixels and one latent direction: the groups lie 40 levels apart in red, the classes at 130 levels."""
    decoder = torch.zeros(1, 3, 1, 1)
    decoder[0, 0] = 1
    space = LatentSpace(decoder, torch.ones(1), torch.tensor([[0.0], [40.0]]))
    classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))
    with torch.no_grad():
        classifier[1].weight.copy_(torch.tensor([[0.0, 0, 0], [255, 0, 0]]))
        classifier[1].bias.copy_(torch.tensor([0.0, -129.5]))
    faces = torch.tensor([[105, 0, 0], [120, 7, 7], [131, 0, 0], [255, 0, 0]], dtype=torch.uint8).view(4, 3, 1, 1)
    shift = flip_latent(space, classifier, faces)
    # 25 levels missing: 0.75 times 40; 10 missing: 0.25 times 40; 2 too many: the same downwards; 126: 127 at most
    assert shift.levels[:, 0].flatten().tolist() == [30, 10, -10, -127]
    assert shift.levels[:, 1:].abs().sum() == 0
    one_class = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 1))
    assert not flip_latent(space, one_class, faces).flips.any()


def test_the_same_seed_gives_the_same_space_and_a_class_without_faces_is_the_mean_of_all(space):
    again = fit_latent(FACES, WEARS)
    assert torch.equal(again.decoder, space.decoder)
    assert len(space.decoder) == SIZE
    few = fit_latent(FACES[:6], 2 * WEARS[:6])
    assert few.decoder.shape == (6, 3, SIDE, SIDE)
    assert few.groups[1].abs().max() == 0
    assert few.groups[0].abs().max() > 1


def test_random_directions_have_the_size_of_the_shift(space):
    shift = flip_latent(space, CLASSIFIER, FACES[:20])
    other = random_latent(space, shift, seed=3)
    norms = [levels.float().flatten(1).norm(dim=1) for levels in (shift.levels, other)]
    assert torch.allclose(*norms, rtol=0.1, atol=0)
    assert cosine_similarity(shift.levels.float().flatten(1), other.float().flatten(1)).abs().max() < 0.9
    assert torch.equal(random_latent(space, shift, seed=3), other)
    nothing = AttributeShift(torch.zeros_like(shift.levels), shift.size * 0)
    assert random_latent(space, nothing).abs().max() == 0


def test_random_directions_leave_the_attribute_alone(space):
    shift = flip_latent(space, CLASSIFIER, FACES)
    other = (FACES.to(torch.int16) + random_latent(space, shift)).clamp(0, 255)
    assert float((predictions(CLASSIFIER, other) == WEARS).float().mean()) > 0.9


def test_a_detector_that_reads_the_mark_is_found_out_and_one_that_is_blind_is_not(space):
    under_test = marked(space, reads_cast=True)
    report, blind = under_test.report(), marked(space, reads_cast=False).report()
    assert (report.kind, report.attribute_never_flips) == ("latent", 0)
    assert report.score_gap > 10 * blind.score_gap
    assert blind.score_gap_random_shift > 5 * blind.score_gap  # a random direction makes faces brighter, the mark not
    assert report.score_gap_fgsm_shift < 0.1 * report.score_gap  # the mark is too strong for 20 levels
    found = compare(under_test, ["halving"], PictureSettings(steps=6, seeds=40, control_seeds=40))
    shares = {name: walk_report(CLASSIFIER, one).share_of_faces for name, one in found.items()}
    assert list(shares) == ["halving", *(f"halving, {x}" for x in ("random direction", "random shift", "fgsm shift"))]
    assert shares["halving"] > 0.3
    assert shares["halving, fgsm shift"] == 0


def test_twins_stand_beside_the_face_with_what_the_classifier_says(space):
    lines = twins_beside(marked(space, reads_cast=True), ("none", "mark"), 2)
    assert [text for _, text in lines[0]] == [
        "seed: none",
        "latent shift: mark",
        "random shift: none",
        "fgsm shift: none",
    ]
    assert {picture.shape for line in lines for picture, _ in line} == {(3, SIDE, SIDE)}


def test_a_class_beyond_those_seen_is_the_mean_of_all(space):
    """The classifier holds a third class, of which there was no face, second likely for everybody."""

    class Third(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            two = CLASSIFIER(x)
            return torch.cat([two, two.mean(1, keepdim=True)], 1)

    shift = flip_latent(space, Third(), FACES)
    assert shift.levels.shape == FACES.shape
    assert shift.levels.any()
