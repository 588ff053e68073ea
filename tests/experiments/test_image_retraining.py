from __future__ import annotations

import pytest
import torch

from experiments.image_retraining import retrain, state
from neuronfair import interpret
from neuronfair.images.archive import draw_images
from neuronfair.images.audit import ImageSplit, find_subject
from neuronfair.images.detector import fit_attribute, fit_detector
from neuronfair.images.search import ImageSettings, search_images


def test_retraining_touches_a_copy_and_uses_no_held_out_face():
    pictures = draw_images(80, 80, side=32)
    split = ImageSplit.of(pictures, "cast", "cpu", 0)
    detector = fit_detector("small", pictures.pixels, pictures.is_face, epochs=3)
    face = pictures.is_face
    classifier = fit_attribute(detector, "small", pictures.pixels[face], split.labels[face])
    under_test = find_subject(detector, classifier, split, name="drawn", sensitive="cast")
    settings = ImageSettings(steps=6, epochs=3)
    everybody = torch.arange(len(under_test.domain.pictures))
    findings = search_images(under_test.network, under_test.domain, "adf", everybody, settings).findings
    before = {name: t.clone() for name, t in detector.state_dict().items()}
    module, after = retrain(under_test, findings, settings)
    assert all(torch.equal(t, before[name]) for name, t in detector.state_dict().items())
    assert any(not torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert after.used == int((~under_test.held_out[findings.origin]).sum()) < len(findings)
    assert 0 <= after.detection_rate <= 1
    assert retrain(under_test, None, settings)[1].used == 0
    same = state(under_test, detector, settings)
    out = under_test.held_out.nonzero()[:, 0]
    profile = interpret(under_test.network, under_test.domain, under_test.domain.rows(out))
    assert same.auc == pytest.approx(profile.worst.auc)
