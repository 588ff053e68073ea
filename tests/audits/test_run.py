"""Whole audits of planted networks: the figures must be those of the bias that was planted."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair import BlackBox, Dataset, Decision, NeuronFairError, TableDomain, evaluate, interpret, search
from neuronfair.api import Audit, audit
from neuronfair.audits.folder import check_audit_folder
from neuronfair.audits.report import DecisionReport, Report, Seconds
from neuronfair.audits.report.attribute import Condition
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages import run_searches as search_stage
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.errors import DomainError, ModelError, RunError
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchCounts
from neuronfair.store.run import Run
from tests.conftest import FLIPS
from tests.planted import networks
from tests.scale.pools import Pickled

SMALL = AuditSettings(seeds=20, steps=20, samples=5_000, **FLIPS)


def table(domain: TableDomain, n: int = 300) -> Dataset:
    return Dataset("planted", domain, networks.uniform_rows(domain, n), torch.full((n,), -1))


def classed(domain: TableDomain) -> TableDomain:
    return replace(domain, target=Target("credit", ("no", "yes")), favourable="yes")


@pytest.fixture(scope="module")
def planted() -> Audit:
    """The flag `s` moves the boundary from a sum of 18.5 to 20.5: who has 19 or 20 is decided by it."""
    return audit(networks.one_biased_neuron(), table(classed(networks.domain())), settings=SMALL)


def test_whom_it_hurts_is_counted_in_each_population_and_in_findings(planted):
    """Who has `s` needs a higher sum for the second class, so in every pair it is lost with `s` and got without."""
    (entry,) = planted.report.attributes
    assert [one.population for one in entry.direction] == ["pairs", "table", "plausible", "domain", "findings"]
    counts = (*(rate.discriminated for rate in entry.rates.available), entry.people_found)
    for one, people in zip(entry.direction, counts, strict=True):
        assert one.people == people
        assert [(side.gets, side.loses) for side in one.sides] == [(0, people), (people, 0)]
    assert len({one.sides[0].values for one in entry.direction}) == 1
    assert planted.report.decision.scale == "logits"
    for found in entry.worst:
        assert found.outcome == "yes"
        assert (found.probability > 0.5) == (found.decision == "yes") != (found.twin_probability > 0.5)
    assert sum(entry.probability_gaps.histogram.counts) == counts[-1]


def test_rates_are_those_that_were_planted(planted):
    (entry,) = planted.report.attributes
    sums = np.array([sum(row) for row in itertools.product(range(10), repeat=4)])
    truth = np.isin(sums, (19, 20)).mean()
    valid, data = entry.rates.domain, entry.rates.table
    assert valid.low < truth < valid.high
    assert (valid.of, data.of) == (5_000, 300)
    own = table(networks.domain()).rows[:, :4].sum(1).numpy()
    assert data.discriminated == np.isin(own, (19, 20)).sum() > 0
    assert data.rate == data.discriminated / 300


def test_groups_and_neurons(planted):
    (entry,) = planted.report.attributes
    rows = table(networks.domain()).rows
    for s, group in enumerate(entry.groups):
        mine = rows[rows[:, 4] == s]
        assert (group.values, group.rows) == (str(s), len(mine))
        assert group.selection_rate == pytest.approx(float((mine[:, :4].sum(1) < 18.5 + 2 * s).double().mean()))
    (layer,) = entry.interpretation.layers
    assert (layer.biased, layer.neurons, entry.interpretation.worst) == ((3,), 8, layer.name)
    assert layer.act_diff == (0, 0, 0, 2, 0, 0, 0, 0)
    assert len(layer.curve) <= 101
    assert layer.curve[0] == (0, 1 / 8)
    assert entry.coverage is not None


def test_searches_beat_chance_and_findings_hold(planted):
    (entry,) = planted.report.attributes
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    for one in entry.searches:
        outcome = planted.outcomes["s", one.method]
        assert one.findings == len(outcome.findings) > 0
        assert one.lift == one.gsr / one.random_gsr > 1
        assert one.violations == 0
    for finding in (*entry.worst, *entry.findings):
        row = domain.from_table({name: [value] for name, value in finding.row.items()})
        assert bool(evaluate(network, domain, row).discriminates)
        assert int(row[0, :4].sum()) in (19, 20)
        (change,) = finding.changed
        assert (change.attribute, change.own, change.twin) == ("s", int(row[0, 4]), 1 - int(row[0, 4]))
        assert {finding.decision, finding.twin_decision} == {"no", "yes"}
        # The class of the person leads before, the other one afterwards; together that is the gap.
        assert finding.score > 0 > finding.twin_score
        assert finding.score - finding.twin_score == pytest.approx(finding.gap) == pytest.approx(2)
        assert f"s {change.twin} instead of {change.own}" in finding.sentence


def test_the_severity_is_that_of_different_people(planted):
    (entry,) = planted.report.attributes
    gaps = entry.severity
    assert gaps.median == gaps.p95 == gaps.max == pytest.approx(2)
    domain = networks.domain()
    keys = torch.cat([domain.key(outcome.findings.rows) for outcome in planted.outcomes.values()])
    assert sum(gaps.histogram.counts) == len(torch.unique(keys))
    assert len({tuple(f.row[f"a{i}"] for i in range(4)) for f in entry.worst}) == len(entry.worst) == 10


def test_the_verdict(planted):
    verdict = planted.report.verdict
    assert (verdict.level, verdict.tone) == ("dependence found", "neutral")
    assert verdict.headline.startswith("Decisions depend on s for ")
    assert planted.report.attributes[0].level == "dependence found"
    assert planted.verdict == verdict.text
    assert not planted.interrupted


def test_each_attribute_alone_and_all_together():
    """Only sex 1 together with race D is decided otherwise, so each attribute matters for some, and both for more."""
    domain = networks.sex_and_race()
    report = audit(networks.one_biased_pair(), table(domain), settings=SMALL).report
    sex, race, both = report.attributes
    assert [entry.name for entry in (sex, race, both)] == ["sex", "race", "sex+race"]
    assert [entry.twins for entry in (sex, race, both)] == [1, 4, 9]
    # Of those with a sum of 19 or 20: race D; sex 1; everybody.
    whole = both.rates.domain.rate
    assert sex.rates.domain.rate == pytest.approx(whole / 5, rel=0.3)
    assert race.rates.domain.rate == pytest.approx(whole / 2, rel=0.3)
    assert race.rates.table.rate < both.rates.table.rate
    assert report.verdict.headline.startswith("Decisions depend on race for ")  # a combination leads only if it must
    assert "Decisions also depend on sex (" in report.verdict.text
    assert "sex and race (" in report.verdict.text
    chosen = audit(networks.one_biased_pair(), table(domain), sensitive=["race"], settings=SMALL).report
    assert [entry.name for entry in chosen.attributes] == ["race"]
    assert chosen.attributes[0].rates == race.rates


def test_a_blind_network():
    blind = networks.one_biased_neuron(weight=0.0)
    report = audit(blind, table(networks.domain()), settings=SMALL).report
    (entry,) = report.attributes
    assert report.verdict.level == "no dependence found"
    assert "synthetic records drawn uniformly from the declared input space: the upper 95%" in report.verdict.text
    assert "bound is 0.074%." in report.verdict.text
    assert (entry.worst, entry.findings, entry.subgroups, entry.severity) == ((), (), (), None)
    assert entry.interpretation.layers[0].biased == ()


def test_what_only_a_search_finds_is_a_dependence_of_synthetic_records():
    """Who is decided by `s` has a sum of 61 or 62, of numbers that add up to 495 on average."""
    domain = networks.large_domain()
    module = networks.one_biased_neuron(11, 12, boundary=60.5)
    report = audit(module, table(domain), settings=SMALL).report
    (entry,) = report.attributes
    assert (entry.rates.domain.discriminated, entry.rates.table.discriminated) == (0, 0)
    assert entry.searches[0].findings > 0
    assert (report.verdict.level, report.verdict.tone) == ("dependence found", "neutral")
    assert report.verdict.headline.startswith("No decision in the data set depends on s; a search found ")


def test_a_model_is_not_called_blind_where_only_people_outside_the_data_set_flip():
    """The flag counts where a0 is 9, and no row of the table has that: no score of theirs moves."""

    def predict(x: np.ndarray) -> np.ndarray:
        return np.stack([np.full(len(x), 0.5), 0.1 * (x[:, 1] > 4) + (x[:, 0] >= 9) * x[:, 4]], 1)

    people = table(networks.domain())
    people = replace(people, rows=people.rows.clamp(max=8))
    report = audit(BlackBox.of_inputs(predict, networks.domain()), people, settings=SMALL).report
    (entry,) = report.attributes
    assert entry.rates.table.discriminated == 0
    assert entry.rates.domain.discriminated > 0
    assert (report.verdict.level, report.verdict.tone) == ("dependence found", "neutral")
    assert report.verdict.headline.startswith("No decision in the data set depends on s; ")
    assert entry.is_read
    assert not {"not-read", "no-score-moves"} & {note.name for note in entry.health}
    assert "No score" not in report.verdict.text


def test_a_subgroup_is_told():
    """Only for a0 of 8 or more the flag counts."""

    def predict(x: np.ndarray) -> np.ndarray:
        return np.stack([np.full(len(x), 0.5), (x[:, 0] >= 8) * x[:, 4]], 1)

    domain = networks.domain()
    box = BlackBox.of_inputs(predict, domain)
    report = audit(box, table(domain), settings=replace(SMALL, samples=20_000)).report
    (entry,) = report.attributes
    (group,) = entry.subgroups
    assert group.conditions == (Condition("a0", min=8),)
    assert (group.text, group.findings) == ("a0 at least 8", 1.0)
    assert group.people == pytest.approx(float((table(domain).rows[:, 0] >= 8).double().mean()), abs=0.01)
    assert (group.rate.population, group.lift) == ("plausible", 1 / entry.rates.plausible.rate)
    assert group.sentence.startswith(
        "Realistic records with a0 at least 8: a plausible twin by s gets a different decision for 100% of "
    )
    # It is a black box: nothing to look into, searched without gradients.
    assert entry.interpretation is entry.coverage is None
    assert [search.method for search in entry.searches] == ["frontier-free", "aequitas"]
    assert not report.model.white_box


def test_a_tolerance():
    domain = networks.domain()
    result = audit(networks.biased_score(), table(domain), decision=Decision("tolerance", 0.5), settings=SMALL)
    (entry,) = result.report.attributes
    assert entry.groups == ()
    assert " gets a score of " in entry.worst[0].sentence
    for finding in entry.worst:
        assert abs(finding.score - finding.twin_score) == pytest.approx(finding.gap)
        assert finding.gap > 0.5


def test_a_threshold_has_classes_and_an_accuracy():
    domain = classed(networks.domain())
    rows = networks.uniform_rows(domain, 300)
    data = Dataset("planted", domain, rows, (rows[:, :4].sum(1) >= 21).long())
    report = audit(networks.biased_score(), data, decision=Decision("threshold", 2.05), settings=SMALL).report
    assert report.decision == DecisionReport("threshold", 2.05)
    assert {f.decision for f in report.attributes[0].findings} <= {"no", "yes"}
    scores = networks.network(networks.biased_score(), domain).scores(rows)[:, 0]
    right = ((scores >= 2.05).long() == data.labels).double().mean()
    assert report.model.accuracy == {"table": pytest.approx(float(right))}


# Folders


def untimed(report: Report) -> Report:
    """A report without times, and without commands that name a folder."""
    attributes = tuple(
        replace(
            one,
            searches=tuple(replace(s, seconds=0, findings_per_second=None, folder=None) for s in one.searches),
            worst=tuple(replace(f, replay=None) for f in one.worst),
            findings=tuple(replace(f, replay=None) for f in one.findings),
        )
        for one in report.attributes
    )
    again = replace(report.reproduction, created="", export=None)
    return replace(report, attributes=attributes, seconds=Seconds(), reproduction=again)


def test_every_search_is_a_run(planted, tmp_path):
    result = audit(
        networks.one_biased_neuron(), table(classed(networks.domain())), settings=SMALL, folder=tmp_path / "a"
    )
    (entry,) = result.report.attributes
    names = ["audit.json", "domain.toml", "manifest.json", "s"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    assert Report.from_json((tmp_path / "a" / "audit.json").read_bytes()) == result.report
    for one in entry.searches:
        run = Run.open(tmp_path / "a" / one.folder)
        assert len(run.findings()) == one.findings
        assert run.summary["findings"] == one.findings
    stored = {m: Run.open(tmp_path / "a" / "s" / m).findings().rows for m in ("frontier", "neuronfair-plus")}
    for finding in entry.findings:
        assert finding.replay is None  # the model is in memory only
        row = networks.domain().from_table({name: [value] for name, value in finding.row.items()})
        assert torch.equal(stored[finding.method][finding.number], row[0])
    assert untimed(result.report) == untimed(planted.report)


def press(at: str):
    """A progress that presses Ctrl-C once when a stage is reached."""
    pressed = []

    def progress(what: str, done: int, total: int | None, note: str = "") -> None:
        if at in what and not pressed:
            pressed.append(what)
            signal.raise_signal(signal.SIGINT)

    return progress


TINY = replace(SMALL, seeds=8, steps=8, samples=1_000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Report:
    """An audit that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "a"
    return untimed(
        audit(networks.one_biased_pair(), table(networks.sex_and_race()), settings=TINY, folder=folder).report
    )


def test_a_pool_makes_the_same_report(whole, tmp_path):
    """Everything goes there and back as bytes, as between processes."""
    told = []
    found = audit(
        networks.one_biased_pair(),
        table(networks.sex_and_race()),
        settings=TINY,
        folder=tmp_path / "apart",
        pool=Pickled(),
        progress=lambda *line: told.append(line),
    )
    assert untimed(found.report) == whole
    assert found.report.seconds.search > 0
    assert ("Auditing by each attribute", 3, 3) in told
    for (name, method), outcome in found.outcomes.items():
        kept = Run.open(tmp_path / "apart" / name / method)
        assert torch.equal(kept.findings().rows, outcome.findings.rows)


def test_ctrl_c_keeps_the_attributes_that_a_pool_has_finished(whole):
    class Stopped(Pickled):
        def map(self, work, shared, items, **options):
            yield from super().map(work, shared, items[:1], **options)
            raise KeyboardInterrupt

    data = table(networks.sex_and_race())
    found = audit(networks.one_biased_pair(), data, settings=TINY, pool=Stopped())
    assert found.interrupted
    assert [one.name for one in found.report.attributes] == ["sex"]
    assert found.report.attributes[0].rates == whole.attributes[0].rates


@pytest.mark.parametrize("stage", ["Comparing people", "frontier: local", "neuronfair-plus: local"])
def test_ctrl_c_keeps_what_was_found_and_the_audit_goes_on(whole, tmp_path, stage):
    module, data, folder = networks.one_biased_pair(), table(networks.sex_and_race()), tmp_path / "cut"
    stopped = audit(module, data, settings=TINY, folder=folder, progress=press(stage))
    assert stopped.interrupted
    report = stopped.report
    (entry,) = report.attributes  # sex; race was not begun
    assert report.verdict.text.endswith("The audit was interrupted: this is what was measured until then.")
    if stage == "neuronfair-plus: local":
        assert "interrupted" in entry.searches[1].stop
        assert entry.worst
    if stage == "Comparing people":
        assert entry.rates.available == ()
        assert report.verdict.level == "not assessable"
    assert Report.from_json((folder / "audit.json").read_bytes()) == report
    again = audit(module, data, settings=TINY, folder=folder)
    assert not again.interrupted
    assert untimed(again.report) == whole


def test_another_audit_does_not_go_on_here(tmp_path):
    folder, data = tmp_path / "a", table(networks.domain())
    audit(networks.one_biased_neuron(), data, settings=TINY, folder=folder)
    before = sorted(folder.rglob("*"))
    other = Dataset("planted", data.domain, data.rows[:200], data.labels[:200])
    for module, rows, settings, what in (
        (networks.one_biased_neuron(weight=3.0), data, TINY, "another model"),
        (networks.one_biased_neuron(), other, TINY, "another table"),
        (networks.one_biased_neuron(), data, replace(TINY, seeds=10), "another budget or seed"),
    ):
        with pytest.raises(RunError, match=what):
            audit(module, rows, settings=settings, folder=folder)
    with pytest.raises(RunError, match="another --decision"):
        audit(networks.one_biased_neuron(), data, settings=TINY, folder=folder, decision=Decision("threshold", 1.0))
    assert sorted(folder.rglob("*")) == before


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match="not the folder of an audit"):
        check_audit_folder(tmp_path)
    with pytest.raises(RunError, match="not a folder that can be written"):
        check_audit_folder(tmp_path / "thesis.txt" / "deep")
    check_audit_folder(tmp_path / "new")


def test_an_edited_domain_is_not_overlooked(tmp_path):
    folder, data = tmp_path / "a", table(networks.domain())
    audit(networks.one_biased_neuron(), data, settings=TINY, folder=folder)
    path = folder / "domain.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("= 9", "= 8"), encoding="utf-8")
    with pytest.raises(RunError, match="was edited"):
        audit(networks.one_biased_neuron(), data, settings=TINY, folder=folder)


def test_names_that_are_no_folders(tmp_path):
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(4)]
    domain = TableDomain("odd", (*columns, Attribute("../../s", "flag")), ("../../s",))
    audit(networks.one_biased_neuron(), table(domain), settings=TINY, folder=tmp_path / "deep" / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a"]


@pytest.mark.parametrize("folder", [None, "a"])
def test_nothing_is_written_for_what_cannot_be_audited(tmp_path, folder):
    data = table(networks.domain())
    place = folder and tmp_path / folder
    with pytest.raises(DomainError, match="'x' is not a column"):
        audit(networks.one_biased_neuron(), data, sensitive=["x"], settings=SMALL, folder=place)
    with pytest.raises(NeuronFairError, match="every attribute is sensitive"):
        audit(networks.one_biased_neuron(), data, sensitive=data.domain.names, settings=SMALL, folder=place)
    box = BlackBox.of_inputs(lambda x: x[:, :2], data.domain)
    with pytest.raises(NeuronFairError, match="follows gradients"):
        audit(box, data, settings=replace(SMALL, methods=("frontier",)), folder=place)
    assert list(tmp_path.iterdir()) == []


def test_large_families_get_a_smaller_budget():
    class Opened:
        white_box = True

    settings = AuditSettings(seeds=200, steps=100, samples=50_000)
    assert settings.scale_budgets(Opened(), 8) == settings
    large = settings.scale_budgets(Opened(), 800)
    assert (large.seeds, large.steps, large.samples) == (20, 10, 2_000)
    Opened.white_box = False
    slow = settings.scale_budgets(Opened(), 2)
    assert (slow.seeds, slow.steps, slow.samples) == (100, 50, 12_500)
    tiny = AuditSettings(seeds=5, steps=0, samples=100)
    assert tiny.scale_budgets(Opened(), 800) == tiny
    assert AuditSettings.quick(seed=3).seed == 3


def test_a_network_keeps_the_layers_it_was_made_with():
    domain = networks.domain()
    network = networks.network(
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), domain
    )
    report = audit(network, table(domain), settings=replace(SMALL, seeds=5, steps=5)).report
    assert report.model.layers == network.neurons
    assert report.model.source == "Network"


def test_a_search_without_misses_has_no_coverage():
    """Everybody is decided by the flag, so nobody who was tried is a miss."""
    module = nn.Sequential(nn.Linear(5, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module[0].weight[0, 4] = module[2].weight[1, 0] = 2.0
        module[2].bias[0] = 1.0
    report = audit(module, table(networks.domain()), settings=TINY).report
    (entry,) = report.attributes
    assert entry.rates.domain.rate == 1
    assert entry.coverage is None
    assert Report.from_json(report.to_json()) == report


def test_only_rules_that_are_too_many_are_a_reason_to_find_no_groups(monkeypatch):
    def failing(error: NeuronFairError):
        def subgroups(*_, **__):
            raise error

        monkeypatch.setattr(search_stage, "learn_subgroups", subgroups)
        small = AuditSettings(seeds=5, steps=5, samples=2_000, **FLIPS)
        return audit(networks.one_biased_neuron(), table(classed(networks.domain())), settings=small)

    (entry,) = failing(DomainError("too many combinations")).report.attributes
    (note,) = (note for note in entry.health if note.name == "no-groups")
    assert "too many combinations" in note.seen
    with pytest.raises(ModelError, match="the model broke"):
        failing(ModelError("the model broke"))


def test_neurons_are_read_once_for_each_choice_of_sensitive_attributes(monkeypatch):
    """The searches take what was read before, and find what they find alone."""
    asked = []

    def counted(network, domain, rows, **options):
        asked.append(domain.sensitive)
        return interpret(network, domain, rows, **options)

    for module in (campaign, search_stage):
        monkeypatch.setattr(module, "interpret", counted)
    people = table(networks.sex_and_race())
    result = audit(networks.one_biased_pair(), people, settings=TINY)
    assert asked == [("sex",), ("race",), ("sex", "race")]
    assert {method for _, method in result.outcomes} == {"frontier", "neuronfair-plus"}
    for (name, _), outcome in result.outcomes.items():
        domain = people.domain.with_sensitive(*name.split("+"))
        network = networks.network(networks.one_biased_pair(), domain)
        alone = search(network, domain, people.rows, outcome.config, seeds=outcome.seeds)
        assert torch.equal(alone.findings.packed, outcome.findings.packed)
        assert len(alone.findings) > 0


def test_every_search_that_random_directions_match_is_noted(monkeypatch):
    monkeypatch.setattr(campaign._PhaseSequence, "random_directions", lambda *_: SearchCounts(1_000, 1_000, 1_000))
    small = AuditSettings(seeds=5, steps=5, samples=2_000, **FLIPS)
    (entry,) = audit(networks.one_biased_neuron(), table(networks.domain()), settings=small).report.attributes
    seen = [note.seen for note in entry.health if note.name == "weak-guidance"]
    assert [text.partition(" ")[0] for text in seen] == ["frontier", "neuronfair-plus"]
