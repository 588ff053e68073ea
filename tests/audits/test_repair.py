"""Repair proposals: a network that learned to look at the flag is trained again, or it is said why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from neuronfair import Dataset, Decision, TableDomain, train
from neuronfair.api import audit
from neuronfair.audits.provenance import Origin
from neuronfair.audits.run import run
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages import repair as proposal
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.model.open import wrap_model
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import save
from tests.conftest import FLIPS
from tests.planted import networks

SETTINGS = AuditSettings(seeds=20, steps=20, samples=2_000, **FLIPS)


def loans(n: int = 1500) -> Dataset:
    """Three numbers, the flag and chance decide who gets a loan."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9, encode="scaled", center=4.5, scale=3) for i in range(3)]
    domain = TableDomain("loans", (*columns, Attribute("s", "flag")), ("s",), target=Target("loan", ("no", "yes")))
    rows = networks.uniform_rows(domain, n)
    chance = torch.randn(n, generator=torch.Generator().manual_seed(0))
    return Dataset("loans", domain, rows, (rows[:, :3].sum(1) + 2 * rows[:, 3] + 4 * chance > 15).long())


@pytest.fixture(scope="module")
def trained():
    settings = TrainingSettings(restarts=1, epochs=40, batch=64, lr=0.01)
    return train(loans(), hidden=(8, 4), settings=settings)


def test_retraining_helps(trained, tmp_path):
    module, card = trained
    data = loans()
    save(tmp_path / "loans.safetensors", module, card)
    opened = wrap_model(tmp_path / "loans.safetensors", data.domain, data.rows)
    origin = Origin(card=card, table="my loans.csv")
    report = run(opened, data, settings=SETTINGS, origin=origin, folder=tmp_path / "run").report
    repair = report.repair
    assert repair.kind == "retraining"
    assert repair.without_findings is not None
    before, after = repair.before, repair.after
    assert after.rate.high < before.rate.low
    assert after.accuracy > before.accuracy - 0.03
    assert [group.values for group in after.groups] == ["0", "1"]
    assert 0 <= after.auc < 1
    assert repair.command == f"neuronfair repair {tmp_path}/run/s/frontier --data 'my loans.csv' --out fair.safetensors"
    rows = len(data.split(card.seed).test)
    assert (before.test.of, after.test.of, repair.without_findings.test.of) == (rows, rows, rows)
    assert f"of {rows:,} test rows, held-out records of the data set, decisions depend on s for" in repair.text
    # What was measured before is what the audit itself says, on other people and rows.
    measured = report.attributes[0].rates.domain
    assert measured.low < before.rate.rate < measured.high
    assert before.accuracy == pytest.approx(report.model.accuracy["test"])


def test_a_network_that_reads_a_proxy_only_is_trained_with_counterparts(tmp_path, monkeypatch):
    """It is not given the flag, but a copy of it; no flip is found, and the command names the run by counterparts."""
    monkeypatch.setattr(proposal, "LOSS", 0.5)
    monkeypatch.setattr(proposal, "PLACEBOS", 6)
    data = loans(600)
    flag, copy = Attribute("s", "flag", encode="none"), Attribute("copy", "flag")
    domain = replace(data.domain, attributes=(*data.domain.attributes[:3], copy, flag))
    rows = torch.cat([data.rows, data.rows[:, 3:]], 1)
    labels = (rows[:, :3].sum(1) + 6 * rows[:, 3] > 15).long()
    data = Dataset("loans", domain, rows, labels)
    module, card = train(data, hidden=(8,), settings=TrainingSettings(restarts=1, epochs=40, batch=64, lr=0.01))
    save(tmp_path / "loans.safetensors", module, card)
    opened = wrap_model(tmp_path / "loans.safetensors", domain, rows)
    quick = replace(SETTINGS, seeds=5, steps=5, samples=500, twins=None, placebos=6)
    origin = Origin(card=card, table="loans.csv")
    repair = run(opened, data, settings=quick, origin=origin, folder=tmp_path / "run").report.repair
    assert repair.kind == "retraining"
    before, after, without = (s.counterpart for s in (repair.before, repair.after, repair.without_findings))
    assert before.effect.rate > 0.2
    assert after.effect.rate < 0.75 * before.effect.rate  # it was short
    assert without.effect.rate > after.effect.rate
    assert before.of == after.of == 120  # test rows
    assert "with a counterfactual twin of each training row" in repair.text
    assert repair.command == f"neuronfair repair {tmp_path}/run/s/frontier --data loans.csv --out fair.safetensors"


def test_a_command_that_would_be_refused_is_not_printed(trained, tmp_path):
    """`neuronfair repair` needs a model that is not only in memory, and the table."""
    module, card = trained
    data, quick = loans(), replace(SETTINGS, seeds=5, steps=5, samples=500)
    save(tmp_path / "loans.safetensors", module, card)
    file = wrap_model(tmp_path / "loans.safetensors", data.domain, data.rows)
    for i, (model, table) in enumerate([(module, "loans.csv"), (file, None)]):
        origin = Origin(card=card, table=table)
        opened = wrap_model(model, data.domain, data.rows)
        repair = run(opened, data, settings=quick, origin=origin, folder=tmp_path / str(i)).report.repair
        assert repair.command is None
        assert repair.text.endswith("train with your own program.")


def test_a_model_that_no_short_retraining_is_for_gets_the_command(trained, tmp_path):
    """In its own format where it can be trained again, else for the pairs."""
    module, _ = trained
    data, quick = loans(), replace(SETTINGS, seeds=5, steps=5, samples=500)
    opened = wrap_model(Split(module), data.domain, data.rows)
    for name, (options, end) in {
        "a.onnx": ((), "--out fair.onnx"),
        "a.pt2": ((), "--augment pairs.csv"),
        "mine:make": (("--model mine:make --weights w",), "--out fair.safetensors"),
    }.items():
        if ":" not in name:
            (tmp_path / name).touch()
        source = name if ":" in name else str(tmp_path / name)
        origin = Origin(table="loans.csv", weights=Path("w") if ":" in name else None)
        made = run(replace(opened, source=source), data, settings=quick, origin=origin, folder=tmp_path / end[-5:])
        repair = made.report.repair
        assert (repair.kind, repair.lead) == ("none", "The command:")
        assert repair.command.startswith(f"neuronfair repair {tmp_path / end[-5:] / 's'}/")
        assert repair.command.endswith(" ".join(["--data loans.csv", *options, end]))
        assert "No short retraining was tried" in repair.text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(0.02, 0.01, " (50% less)"), (0.01, 0.012, " (20% more)"), (0.01, 0.01, ""), (0, 0, "")],
)
def test_a_rise_is_not_called_a_fall(before, after, said):
    assert proposal._change(before, after) == said


def test_retraining_that_costs_too_much(trained, monkeypatch):
    monkeypatch.setattr(proposal, "LOSS", -1.0)
    module, card = trained
    data = loans()
    opened = wrap_model(module, data.domain, data.rows)
    repair = run(opened, data, settings=SETTINGS, origin=Origin(card=card)).report.repair
    assert repair.kind == "none"
    assert repair.text.startswith("A short retraining with the findings did not help: no repeat keeps the accuracy")
    assert repair.before is repair.after is None


class Split(nn.Module):
    """The same network, but not a plain chain of layers."""

    def __init__(self, module: nn.Sequential) -> None:
        super().__init__()
        self.inner = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 0.0


def by_sex(module: nn.Sequential) -> nn.Sequential:
    """Let the sign of the last column alone decide: every hidden neuron is above 0 for one sex only."""
    with torch.no_grad():
        module[0].weight[:] = torch.tensor([0.0, 0.0, 0.0, 2.0])
        module[0].bias[:] = -1.0
        module[2].weight[:] = torch.tensor([1.0, -1.0, -1.0])[: module[2].out_features, None]
        module[2].bias[:] = torch.tensor([-1.0, 1.0, 0.0])[: module[2].out_features]
    return module


def test_why_there_is_none(trained):
    module, _ = trained
    data, quick = loans(), replace(SETTINGS, seeds=5, steps=5, samples=500)

    def why(model: nn.Module, data: Dataset, decision: Decision | None = None) -> str:
        repair = audit(model, data, settings=quick, decision=decision).report.repair
        assert repair.kind == "none"
        return repair.text

    assert "Only fully connected ReLU networks" in why(Split(module), data)
    assert "no labels" in why(module, replace(data, labels=torch.full_like(data.labels, -1)))
    assert "chooses no class" in why(module, data, Decision("tolerance", 0.1))
    three = by_sex(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert "The network has 3 outputs for 2 classes." in why(three, data)
    gelu = by_sex(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)))
    assert "Only fully connected ReLU networks" in why(gelu, data)
