from __future__ import annotations

import pytest
import torch

from neuronfair import Network
from neuronfair.experiments.planted import cast_classifier, cast_detector
from neuronfair.images.domain import ImageDomain, PictureEncoding
from neuronfair.images.measures import score_gap, shift_norms, still_flips, walk_norms, walk_report
from neuronfair.images.search import PictureSearch
from neuronfair.searches.findings import Findings


def test_norms_by_hand():
    pictures = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(1, 3, 2, 2, dtype=torch.int8)
    shift[0, 0] = 51
    domain = ImageDomain("x", pictures, shift)
    rows = domain.seeds.clone()
    rows[0, 2] = 151
    assert shift_norms(domain, rows).tolist() == pytest.approx([0.4])  # four pixels by 0.2
    assert walk_norms(domain, rows).tolist() == pytest.approx([0.2])
    rows[0, 1] = 1  # on the shifted side the walk is the same
    assert walk_norms(domain, rows).tolist() == pytest.approx([0.2])


def test_the_attribute_of_a_pair_may_no_longer_flip_after_the_walk():
    pictures = torch.full((2, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(2, 3, 2, 2, dtype=torch.int8)
    shift[:, 0] = 2
    pictures[:, 0] = 99
    domain = ImageDomain("x", pictures, shift)
    classifier = cast_classifier()
    rows = domain.seeds.clone()
    assert still_flips(classifier, domain, rows) == 1.0
    rows[1, 2:6] = 150
    assert still_flips(classifier, domain, rows) == 0.5
    detector = Network(cast_detector(reads_cast=True), PictureEncoding(domain))
    assert score_gap(detector, domain, rows) == pytest.approx(0.5 * 2 * 2 / 255, rel=1e-4)


def test_a_face_from_which_several_pictures_were_found_counts_once():
    """Of five faces, the second led to three pictures and the fifth to one: two faces, four pictures of eight tried."""
    pictures = torch.full((5, 3, 2, 2), 100, dtype=torch.uint8)
    domain = ImageDomain("x", pictures, torch.ones(5, 3, 2, 2, dtype=torch.int8))
    origin = torch.tensor([1, 4, 1, 1])
    rows, scores = domain.rows(origin), torch.zeros(4, 2)
    found = Findings(rows, torch.ones(4, 1, dtype=torch.int64), scores, scores, origin, origin * 0, rows[:0], tried=8)
    walk = walk_report(cast_classifier(), PictureSearch(domain, found, 5, 1.0))
    assert (walk.seeds, walk.faces_found, walk.share_of_faces) == (5, 2, 0.4)
    assert (walk.share_low, walk.share_high) == pytest.approx((0.0527, 0.8534), abs=1e-4)  # Clopper and Pearson
    assert (walk.findings, walk.gsr) == (4, 0.5)
