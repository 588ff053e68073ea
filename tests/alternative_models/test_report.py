"""A search for alternatives in words and in a picture."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from neuronfair.alternative_models import AlternativesSettings
from neuronfair.alternative_models.candidates import Candidate
from neuronfair.alternative_models.objectives import Gain
from neuronfair.alternative_models.report import (
    alternatives_page,
    alternatives_report,
    describe_changes,
    regulator_text,
    write_headline,
    write_sentences,
)
from neuronfair.alternative_models.search import BASELINE, FitLine, GainChance, SearchedFits, ShownFit
from neuronfair.alternative_models.session import AlternativesReport
from neuronfair.measure.stats import Estimate

PARAMETERS = {"leave_out": 1, "reweight": 0.5, "twins": 0.0, "threshold": 0.46, "model__C": 2.0, "model__tol": 1.0}
BASE = ShownFit(BASELINE, ("sex",), Estimate(0.8, 0.78, 0.82), Estimate(0.5, 0.4, 0.6), {}, selected=0.3)
BETTER = ShownFit(
    Candidate("candidate", 1, 0, PARAMETERS),
    (),
    Estimate(0.799, 0.78, 0.82),
    Estimate(0.2, 0.1, 0.3),
    {"selection_gap": 0.1},
    Gain(-0.001, 0.001, -0.003),
    Gain(0.3, 0.02, 0.25),
    better=True,
    selected=0.25,
)
FOUND = AlternativesReport(
    neuronfair="0.3",
    data="<people>",
    sensitive=("sex",),
    groups=("f", "m"),
    left_out={"x": 7},
    target="hired",
    selected="yes",
    rows={"fit": 600, "choose": 200, "test": 200},
    estimator="lightgbm",
    baseline_reads=("sex",),
    settings=AlternativesSettings(),
    quality="accuracy",
    measure="disparate_impact",
    proxies=("club", "hobby"),
    mediated=(0.6,),
    hyper={"model__C": 1.0, "model__tol": 1.0},
    searched=SearchedFits(
        FitLine(BASELINE, quality=0.8, measure=0.5),
        (
            FitLine(Candidate("candidate", 0, 0, {}), error="too few"),
            FitLine(BETTER.candidate, quality=0.8, measure=0.2),
            FitLine(Candidate("candidate", 2, 0, {}), quality=0.7, measure=0.4),
        ),
        (FitLine(Candidate("control", 0, 0, {}), quality=0.8, measure=0.52),),
    ),
    front=("candidate-1",),
    shown=(BASE, BETTER),
    conclusion="better",
    chosen="candidate-1",
    chance=GainChance(0, 20, 0.139),
)
NONE = replace(FOUND, conclusion="none found", chosen=None, shown=(BASE, replace(BETTER, better=False)))


def test_the_headline_and_the_changes() -> None:
    assert write_headline(FOUND) == (
        "Candidate-1 lowers the disparate impact (1 − ratio) from 0.5 to 0.2, with accuracy 79.9% instead of 80% (3 "
        "candidates fitted)."
    )
    assert write_headline(NONE) == "No better alternative was found among 3 candidates."
    assert "resumes" in write_headline(replace(FOUND, conclusion="interrupted", shown=(), chosen=None))
    assert (
        describe_changes(BETTER.candidate, FOUND) == "without club, group weights to the power 0.5, threshold 0.46, C 2"
    )
    assert describe_changes(BASE.candidate, FOUND) == "the estimator as it is"
    assert (
        describe_changes(FOUND.searched.controls[0].candidate, FOUND)
        == "the baseline with another seed and 90% of the rows"
    )
    twins, same = Candidate("candidate", 2, 0, {"twins": 0.25, "bands": 4}), Candidate("candidate", 3, 0, {})
    assert describe_changes(twins, FOUND) == "25% of the counterfactual twins added, numbers in 4 bands"
    assert describe_changes(same, replace(FOUND, baseline_reads=())) == "the baseline with another seed"
    assert (
        describe_changes(same, replace(FOUND, baseline_reads=("sex",)))
        == "the baseline without the sensitive attribute"
    )


def test_what_the_report_claims() -> None:
    text = " ".join(write_sentences(FOUND))
    assert "Candidates: 3, of which 1 could not be used (mostly: too few)." in text
    assert "accuracy not more than 0.5 pp below the baseline" in text
    assert "of 20 candidates drawn at random, 0 looked better" in text
    assert "13.9%" in text
    assert "called better wrongly is at most 5%" in text
    assert "The model proposed selects ('yes') 25% of the test records, the baseline 30%." in text
    assert "can be called better only if" not in text
    # The quality is known to 0.2 pp (-0.001 to -0.003) and 0.5 pp may be lost; the measure is known to 0.05.
    needed = "only if its accuracy is at most 0.3 pp below the baseline's and its disparate impact (1 − ratio) at least"
    assert f"{needed} 0.05 lower" in " ".join(write_sentences(NONE))
    strict = replace(NONE, settings=AlternativesSettings(tolerance=0))
    assert "its accuracy is at least 0.2 pp above the baseline's" in " ".join(write_sentences(strict))
    assert "2 searches in the same folder used other test parts" in " ".join(write_sentences(replace(FOUND, earlier=2)))
    control = replace(BETTER, candidate=FOUND.searched.controls[0].candidate)
    assert "is better as well: its disparate impact (1 − ratio) is 0.2." in " ".join(
        write_sentences(replace(FOUND, shown=(BASE, control)))
    )
    assert "may read sex" in " ".join(
        write_sentences(replace(FOUND, settings=AlternativesSettings(allow_disparate_treatment=True)))
    )


def test_the_paragraph_claims_no_more_than_was_done() -> None:
    assert "0.200 (0.100 to 0.300) instead of 0.500" in regulator_text(FOUND)
    assert "Groups by sex: f and m (not compared: x (7))." in regulator_text(FOUND)
    assert "It selects 25% of the records, the model before 30%." in regulator_text(FOUND)
    assert "exists: one more random candidate may look better with a chance of up to 13.9%." in regulator_text(NONE)
    assert "that no such model exists. " in regulator_text(replace(NONE, chance=GainChance(0, 0, 1.0)))
    assert "2 searches in the same folder" in regulator_text(replace(FOUND, earlier=2))
    assert "1 refits of the baseline as controls (other seeds, 90% of the rows)" in regulator_text(NONE)
    assert "lose at most 0.5 pp of accuracy" in regulator_text(NONE)
    assert "supports no conclusion" in regulator_text(replace(FOUND, conclusion="interrupted"))
    assert "used in fitting (weights, counterfactual twins)" in regulator_text(FOUND)


def test_the_picture_has_every_fit_that_was_measured() -> None:
    page = alternatives_page(FOUND)
    points = re.findall(r'<circle class="([\w ]+)" cx="([\d.]+)%" cy="([\d.]+)%"', page)
    assert [kind for kind, _, _ in points] == ["hollow", "dot", "dot faint", "cut"]
    assert float(points[1][1]) < float(points[3][1])  # less discriminatory is to the left
    assert float(points[2][2]) > float(points[1][2])  # better is up
    assert page.count("<circle") == 4
    assert "&lt;people&gt;" in page
    assert not re.search(r"<people>|https?://", page)
    assert "On the test part" not in alternatives_page(replace(FOUND, shown=(), conclusion="interrupted", chosen=None))


def test_the_terminal() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(alternatives_report(FOUND))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "candidate-1" in out.getvalue()
