"""A repair in words and as plain values."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from torch import nn

from experiments.repairs.evaluate import FairnessMeasurement, RepairOutcome
from experiments.repairs.neurons import NeuronRepair, Turn
from experiments.repairs.report import repair_json, repair_report, verdict
from experiments.repairs.retrain import Retraining
from experiments.repairs.session import Repaired
from neuronfair.domain.table import Target
from neuronfair.measure.groups import Group
from neuronfair.measure.rate import Rate
from neuronfair.model.weights import Card
from tests.planted.networks import domain

SPACE = replace(domain(), target=Target("y", ("no", "yes")))
BEFORE = FairnessMeasurement(
    Rate(50, 1_000, "table"),
    Rate(200, 10_000, "domain"),
    {"train": 0.87, "validation": 0.86, "test": 0.85},
    (Group((0,), 60, (0.7, 0.3), 0.8), Group((1,), 40, (0.4, 0.6), 0.9)),
    "layer2",
    0.75,
)
AFTER = FairnessMeasurement(
    Rate(12, 1_000, "table"),
    Rate(20, 10_000, "domain"),
    {"train": 0.86, "validation": 0.86, "test": 0.845},
    (Group((0,), 60, (0.6, 0.4), 0.8), Group((1,), 40, (0.55, 0.45), 0.9)),
    "layer2",
    0.25,
)
RETRAINING = Retraining(
    nn.Sequential(),
    1,
    1234,
    RepairOutcome(0.02, 0.85),
    (RepairOutcome(0.004, 0.85), RepairOutcome(0.002, 0.84)),
    RepairOutcome(0.019, 0.852),
    0.835,
)
NEURONS = NeuronRepair(
    nn.Sequential(),
    Turn(1, (2, 5), 0.25),
    RepairOutcome(0.02, 0.85),
    RepairOutcome(0.01, 0.84),
    (RepairOutcome(0.02, 0.85), RepairOutcome(0.005, 0.83), RepairOutcome(0.01, 0.85)),
)


CARD = Card("planted", "default", None, 5, (4,), 2, ("no", "yes"), {}, 0, "")


def done(work: Retraining | NeuronRepair, *notes: str) -> Repaired:
    return Repaired(work, BEFORE, AFTER, CARD, notes)


def text(work: Retraining | NeuronRepair, *notes: str) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(repair_report(done(work, *notes), SPACE))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return " ".join(out.getvalue().split())


def test_before_and_after_in_a_table() -> None:
    shown = text(RETRAINING, "A note.")
    for words in (
        "Repair of the flip rate by s: before and after",
        "flip rate of the test rows │ 5.0% (3.7–6.5%)",
        "2.0% (1.7–2.3%)",  # Clopper and Pearson, 200 of 10,000
        "0.20% (0.12–0.31%)",
        "AS-AUC of the worst layer │ 0.750 (layer2) │ 0.250 (layer2)",
        "accuracy, test rows │ 85% │ 84.5%",
        "yes if s 0 │ 30% │ 40%",
        "yes if s 1 │ 60% │ 45%",
        "A note.",
    ):
        assert words in shown


def test_the_sentence() -> None:
    """The test rows come first: of them the rate fell by 76%, of uniform people, who are not real, by 90%."""
    assert verdict(BEFORE, AFTER) == (
        "Of the 1,000 test rows, held-out records of the data set, the flip rate fell by 76% (5% to 1.2%); of "
        "records drawn uniformly from the domain it fell by 90% (2% to 0.2%); accuracy on the test rows loses 0.5 "
        "points."
    )
    assert "the flip rate did not fall (1.2% before, 5% after)" in verdict(AFTER, BEFORE)
    little = replace(BEFORE, rate=Rate(190, 10_000, "domain"))
    assert "fell by 5% (2% to 1.9%, the intervals overlap)" in verdict(BEFORE, little)
    nobody = replace(BEFORE, test=Rate(0, 1_000, "table"))
    assert "the flip rate was 0% and is 1.2%" in verdict(nobody, AFTER)
    assert "accuracy on the test rows stays." in verdict(BEFORE, little)


def test_a_retraining_and_its_control() -> None:
    shown = text(RETRAINING)
    for words in (
        "1,234 pairs, labelled by the vote of networks that do not see s (83.5% of test rows right).",
        "2 repeats: DM-RS 0.30% (0.20–0.40%), accuracy 84.5%.",
        "without findings: DM-RS 1.9%, accuracy 85.2%.",
    ):
        assert words in shown


def test_turned_down_neurons_and_their_control() -> None:
    shown = text(NEURONS)
    for words in (
        "Turned down to 25%: 2 of the neurons of layer 2 that react most to s (2, 5).",
        "DM-RS 1%, accuracy 84%",
        "3 draws: DM-RS 1.2% (0.5–2.0%), accuracy 84.3%; 2 of them have the same flip rate or less.",
    ):
        assert words in shown


def test_all_figures_as_plain_values() -> None:
    values = json.loads(json.dumps(repair_json(done(RETRAINING)), allow_nan=False))
    assert values["rate_drop"] == 0.9
    assert values["test_rate_drop"] == pytest.approx(0.76)
    assert (values["after"]["test_rate"], values["after"]["test_rate_records"]) == (0.012, 1_000)
    assert round(values["accuracy_lost"], 9) == 0.005
    assert values["before"]["rate"] == 0.02
    assert (values["before"]["layer"], values["before"]["auc"]) == ("layer2", 0.75)
    assert values["after"]["groups"][1]["selection"] == [0.55, 0.45]
    assert values["repair"]["repeats"][1] == {"rate": 0.002, "accuracy": 0.84}
    assert values["repair"]["without"] == {"rate": 0.019, "accuracy": 0.852}
    turned = repair_json(done(NEURONS))["repair"]
    assert turned["turn"] == {"layer": 1, "neurons": (2, 5), "factor": 0.25}
    assert len(turned["random"]) == 3
    nobody = replace(BEFORE, rate=Rate(0, 100, "domain"))
    assert repair_json(replace(done(NEURONS), before=nobody))["rate_drop"] is None
