"""Audits, proofs and flip rates in one call: any table, any model; and results that show themselves."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import neuronfair as nf
from neuronfair import (
    AuditSettings,
    Decision,
    TableEncoding,
    api,
    audit,
    certify,
    load_dataset,
    parse_domain,
    read_domain,
)
from neuronfair.api import Audit
from neuronfair.audits import inputs
from neuronfair.audits.gate.thresholds import read_expressions
from neuronfair.audits.pytest_check import CheckSettings
from neuronfair.audits.report import Report
from neuronfair.cli.audit import AuditJob
from neuronfair.errors import DataError, NeuronFairError
from neuronfair.parameters import find_parameters, validate_entry
from neuronfair.render.export import LAST_HEADINGS
from neuronfair.scale.pool import Serial
from neuronfair.searches.config import SearchConfig
from tests import reports
from tests.conftest import FLIPS
from tests.proof.planted import DOMAIN, PEOPLE, make
from tests.proof.planted import FLIPS as PROVED_FLIPS

pandas = pytest.importorskip("pandas", reason="the package pandas is not installed")

SMALL = AuditSettings.quick(seeds=5, steps=3, samples=300, **FLIPS)
UNREAD = [f"x{i}" for i in range(21)]


def wide(count: int = 200) -> pandas.DataFrame:
    """30 columns and a target; what is hired by depends on eight of them."""
    dice = np.random.default_rng(0)
    read = {"age": dice.integers(18, 70, count), "sex": dice.choice(["f", "m"], count)}
    read |= {f"skill {i}": dice.integers(0, 6, count) for i in range(6)}
    others = {"id": dice.permutation(9000)[:count]} | {name: dice.normal(size=count).round(2) for name in UNREAD}
    table = pandas.DataFrame({**others, **read})
    table["sex"] = table["sex"].astype("category")
    table["hired"] = np.where((table.age > 44) | (table.sex == "m"), "yes", "no")
    return table


def model_of(table: pandas.DataFrame):
    """A pipeline that is fitted to all columns and reads eight of them."""
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder
    from sklearn.tree import DecisionTreeClassifier

    numbers = ["age", *(f"skill {i}" for i in range(6))]
    first = make_column_transformer((OrdinalEncoder(), ["sex"]), ("passthrough", numbers))
    return make_pipeline(first, DecisionTreeClassifier(random_state=0)).fit(table.drop(columns="hired"), table["hired"])


@pytest.fixture(scope="module")
def found() -> Audit:
    table = wide()
    return audit(model_of(table), table, sensitive="sex", target="hired", settings=SMALL)


def test_findings_speak_of_the_columns_that_the_model_reads(found):
    report = found.report
    assert (report.data.attributes, report.data.rows, report.data.name) == (8, 200, "table")
    assert {one.column for one in report.data.left_out} == {"id", *UNREAD}
    (entry,) = report.attributes
    assert entry.rates.table.rate == (wide()["age"] <= 44).mean()
    told = [finding.sentence for finding in (*entry.worst, *entry.findings)]
    assert told
    assert not any(f"{name} " in sentence for sentence in told for name in ("id", *UNREAD, "more attribute"))
    assert not {c.attribute for group in entry.subgroups for c in group.conditions} & {"id", *UNREAD}


def test_everybody_found_is_a_line(found):
    frame = found.findings
    (entry,) = found.report.attributes
    assert frame["method"].value_counts().to_dict() == {s.method: s.findings for s in entry.searches if s.findings}
    assert list(frame.columns[:3]) == ["sensitive", "method", "number"]
    assert list(frame.columns[-len(LAST_HEADINGS) :]) == list(LAST_HEADINGS)
    line = frame.iloc[0]
    twin = {"f": "m", "m": "f"}[line["sex"]]
    assert (line["sensitive"], line["twin_sex"]) == ("sex", twin)
    assert line["decision"] == ("yes" if line["age"] > 44 or line["sex"] == "m" else "no")
    assert {line["decision"], line["twin_decision"]} == {"yes", "no"}
    assert (line["score"], line["twin_score"], line["gap"]) == (1, -1, 2)  # a tree is sure: (0, 1) against (1, 0)


def test_groups_are_lines(found):
    frame, table = found.groups, wide()
    groups = frame[frame["kind"] == "group"].set_index("who")
    assert groups["rows"].to_dict() == table["sex"].value_counts().to_dict()
    shares = table.assign(yes=table["hired"] == "yes").groupby("sex", observed=True)["yes"].mean()
    assert groups["selection_rate"].to_dict() == pytest.approx(shares.to_dict())
    (entry,) = found.report.attributes
    assert list(frame[frame["kind"] == "subgroup"]["who"]) == [group.text for group in entry.subgroups]


def test_it_is_short_in_a_terminal_and_a_card_in_a_notebook(tmp_path):
    made = Audit(reports.report(data=replace(reports.report().data, name="<b>")), {}, tmp_path)
    assert repr(made).splitlines() == [
        "Audit of <b> by sex",
        "The decision flips for 3% of people.",
        "○",
        "  sex: Flip rate 4.0% (0.5–13.7%)",
        f"  folder: {tmp_path}",
    ]
    card = made._repr_html_()
    assert "The decision flips for 3" in card
    assert "&lt;b&gt;" in card
    assert not any(word in card for word in ("<b>", "<script", "http", "<style", "src="))
    assert str(tmp_path) in card
    assert len(card) < 3000
    assert made.findings.empty


def test_it_is_saved_in_the_form_that_its_name_says(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = found.save("report.html")
    assert page.read_text(encoding="utf-8") == found.to_html()
    assert Report.from_json(found.save(tmp_path / "a.JSON").read_text()) == found.report
    assert found.save("a.md").read_text(encoding="utf-8").startswith("## ")
    with pytest.raises(DataError, match=r"a\.txt: expected a name that ends in \.html, \.json, \.md"):
        found.save("a.txt")
    with pytest.raises(DataError, match="cannot be written"):
        found.save("no/such/folder/a.md")


def test_a_model_that_does_not_read_the_attribute_says_so():
    table = wide(60)
    model = model_of(table.assign(religion=table["sex"]))
    told = audit(model, table.assign(religion=table["sex"]), sensitive="religion", target="hired", settings=SMALL)
    assert told.report.verdict.level == "no dependence found"
    assert told.report.verdict.headline == "The model does not use religion, so no decision depends on it directly."
    (note,) = [note for note in told.report.attributes[0].health if note.name == "not-read"]
    assert "does not see proxies" in note.remedy


def test_a_table_of_our_own_and_a_module(tmp_path):
    data = load_dataset("german", sensitive=["sex"])
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(TableEncoding.of(data.domain).width, 4), nn.ReLU(), nn.Linear(4, 2))
    seen = []
    folder = tmp_path / "run"
    result = audit(module, data, settings=SMALL, folder=folder, progress=lambda what, *_: seen.append(what))
    assert any("Evaluating" in what for what in seen)
    assert (result.folder, result.interrupted, result.report.data.left_out) == (folder, False, ())
    assert json.loads((folder / "audit.json").read_text())["data"]["rows"] == 1000


def test_what_a_replay_needs_and_remarks_are_kept(monkeypatch, tmp_path):
    origins = []

    def note(*given, provenance, **more):
        origins.append(provenance)
        return SimpleNamespace(report=reports.report(), outcomes={}, failure=None)

    monkeypatch.setattr(api, "run", note)
    monkeypatch.setattr(inputs, "wrap_model", lambda *given, **options: SimpleNamespace(model=None, white_box=False))
    monkeypatch.setattr(AuditSettings, "choose_methods", lambda *given: ())
    table = {
        "age": [20, 30] * 9,
        "sex": ["f", "m"] * 9,
        "hired": ["no", "yes"] * 9,
        "day": ["2020-01-02", "2021-03-04"] * 9,
    }
    more = {"weights": tmp_path / "w", "trust_pickle": True, "preprocess": "my:own"}
    made = audit("mine:make", pandas.DataFrame(table), sensitive="sex", target="hired", **more)
    assert {name: getattr(origins[0], name) for name in more} == more
    assert made.remarks == ("day: dates, read as days since 1970-01-01",)
    assert f"  data set: {made.remarks[0]}" in repr(made)


class ToldError(Exception):
    pass


def test_how_a_model_is_opened_is_passed_on(monkeypatch):
    def note(model, domain, data, **options):
        raise ToldError(data, options)

    monkeypatch.setattr(inputs, "wrap_model", note)
    model = model_of(wide(60))
    with pytest.raises(ToldError) as told:
        audit(model, wide(60), sensitive="sex", target="hired", preprocess=len, trust_pickle=True, checks=None)
    data, options = told.value.args
    said = {name: value for name, value in options.items() if value is not None}
    assert said == {"device": "cpu", "preprocess": len, "trust_pickle": True}
    assert data.inferred
    assert set(data.types) == set(wide(60))
    with pytest.raises(NeuronFairError, match="no column 'sexx'"):
        audit(model, wide(60), sensitive="sexx", target="hired")


def test_a_bar_is_shown_where_somebody_looks(capsys):
    with api._open_progress(False) as show:
        show("Judging", 1, 2)
    with api._open_progress(None) as show:  # standard error is no terminal here
        show("Judging", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_plans_say_what_a_decision_is(found):
    assert {outcome.config.decision for outcome in found.outcomes.values()} == {SearchConfig().decision}


def test_a_sensitive_column_beside_the_table(tmp_path):
    table = wide()
    model = lambda table: table["skill 1"] > 2  # noqa: E731
    sexes = table.pop("sex").sample(frac=1, random_state=0)  # in another order: the index tells who is who
    columns = table[["age", "skill 1", "hired"]]
    report = audit(model, columns, sensitive=sexes, target="hired", settings=SMALL, folder=tmp_path / "run").report
    assert (report.data.sensitive, report.data.attributes) == (("sex",), 3)
    assert report.attributes[0].rates.table.rate == 0
    assert any("does not use sex" in note.seen for note in report.attributes[0].health)
    assert read_domain(tmp_path / "run" / "domain.toml").attributes[2].encode == "none"
    groups = {group.values: group.rows for group in report.attributes[0].groups}
    assert groups == {"f": int((sexes == "f").sum()), "m": int((sexes == "m").sum())}


# Proofs


@pytest.mark.parametrize(("kind", "pool"), [("domain", None), ("file", None), ("domain", Serial(2))])
def test_a_proof_for_a_domain_alone(tmp_path, kind, pool):
    (tmp_path / "small.toml").write_text(DOMAIN, encoding="utf-8")
    domain = parse_domain(DOMAIN) if kind == "domain" else tmp_path / "small.toml"
    report = certify(make(), domain, decision=Decision("threshold", 0.0), pool=pool)
    assert (report.people.count, report.proved_discriminatory.count) == (str(PEOPLE), str(PROVED_FLIPS))
    assert (report.complete, report.sensitive) == (True, ("sex",))


def test_a_proof_for_a_table_and_a_region():
    people = {"age": [20, 38, 41, 59], "job": ["a", "b", "c", "a"], "sex": ["f", "m", "f", "m"]}
    people["hired"] = ["no", "no", "yes", "yes"]

    def model(table):
        return (table.age + 4 * (table.sex == "m") > 40) & (table.job != "c")

    report = certify(model, people, sensitive="sex", target="hired", where="job == c")
    assert report.complete
    assert report.proved_fair.count == report.people.count
    # The third row is safe if only one thing changes: with job c at any age, and at 41 with any job.


def test_a_proof_for_nobody_in_the_region():
    rule = '\n[[rules]]\nname = "b works from 30 on"\nif = { job = ["b"] }\nthen = { age = { min = 30 } }\n'
    with pytest.raises(NeuronFairError, match="allow no such person"):
        certify(make(), parse_domain(DOMAIN + rule), where="job == b and age < 30", decision=Decision("threshold", 0.0))


# Flip rates, names and words of scikit-learn


def test_the_flip_rate_of_a_table_and_of_a_domain():
    table, model = wide(60), lambda table: table["sex"] == "m"
    found = nf.rate(model, table, sensitive="sex", target="hired")
    assert (found.rate, found.population, found.sampled) == (1, "table", 60)
    assert found.interval[0] > 0.9
    assert nf.rate(model, table, sensitive="sex", target="hired", population="domain", samples=50).rate == 1
    domain = parse_domain(DOMAIN)
    assert nf.rate(make(), domain, decision=Decision("threshold", 0.0), random_state=3).population == "domain"


def test_the_flip_rate_of_a_domain_is_of_the_attributes_that_the_call_names():
    domain, options = parse_domain(DOMAIN), {"decision": Decision("threshold", 0.0), "samples": 4000}
    network = nf.Network(make(), domain)
    own, other = nf.rate(network, domain, **options), nf.rate(network, domain.with_sensitive("job"), **options)
    assert own.rate != other.rate
    assert nf.rate(network, domain, sensitive="job", **options) == other
    assert nf.rate(network, domain, sensitive_features=["job"], **options) == other
    with pytest.raises(DataError, match="Name its sensitive attributes"):
        nf.rate(network, domain, sensitive=pandas.Series(["a", "b"]), **options)
    with pytest.raises(NeuronFairError, match="there is no option 'sensitve'"):
        nf.rate(network, domain, sensitve="job", **options)


def test_a_proof_has_no_random_state():
    with pytest.raises(NeuronFairError, match="there is no option 'random_state'"):
        certify(make(), parse_domain(DOMAIN), random_state=7)


def test_sensitive_features_and_random_state():
    table = wide(60)
    by_name = nf.rate(model_of(table), table, sensitive="sex", target="hired", random_state=1)
    assert nf.rate(model_of(table), table, sensitive_features=table["sex"], target="hired", random_state=1) == by_name
    frame = table[["sex"]]
    assert nf.rate(model_of(table), table, sensitive_features=frame, target="hired", random_state=1) == by_name
    with pytest.raises(DataError, match="sensitive and sensitive_features are the same"):
        audit(model_of(table), table, sensitive="sex", sensitive_features=frame, target="hired")
    with pytest.raises(NeuronFairError, match="random_state: expected a whole number"):
        audit(model_of(table), table, sensitive="sex", target="hired", random_state=np.random.default_rng())
    changed = api._change_settings(AuditSettings(seed=4), {"random_state": 7, "prove": 1.0})
    assert changed == AuditSettings(seed=7, prove=1.0)
    assert api._change_settings(AuditSettings(seed=4), {"random_state": None}).seed == 4


def test_a_result_as_html_frame_and_picture(found):
    assert found.to_html().startswith("<!doctype html>")
    frame = found.to_frame()
    (entry,) = found.report.attributes
    assert list(frame["population"]) == [rate.population for rate in entry.rates.available]
    assert ((frame["low"] <= frame["flip_rate"]) & (frame["flip_rate"] <= frame["high"])).all()
    pytest.importorskip("matplotlib")
    axes = found.plot()
    assert len(axes.patches) == len(frame)
    assert found.plot(axes) is axes


def test_a_long_result_is_cut(tmp_path):
    (one,) = reports.report().attributes[:1]
    made = Audit(replace(reports.report(), attributes=(one,) * 20), {}, tmp_path)
    assert len(repr(made).splitlines()) == 10
    assert "… 15 more lines" in repr(made)


@pytest.mark.parametrize("old", nf._RENAMED)
def test_an_old_name_works_and_warns(old):
    with pytest.warns(DeprecationWarning, match=f"neuronfair.{old} is now neuronfair.{nf._RENAMED[old]}"):
        assert getattr(nf, old) is getattr(nf, nf._RENAMED[old])


def test_the_old_page_works_and_warns():
    with pytest.warns(DeprecationWarning, match="to_html"):
        assert nf.audit_page(reports.report()).startswith("<!doctype html>")


def test_an_option_that_does_not_exist_is_refused():
    people = {"age": [20, 40] * 20, "sex": ["f", "m"] * 20}
    for call in (nf.audit, nf.certify, nf.rate):
        with pytest.raises(
            NeuronFairError, match=r"^there is no option 'trust_pickles'\. .*Did you mean 'trust_pickle'"
        ):
            call(lambda table: table.age > 30, people, sensitive="sex", trust_pickles=True)


def test_the_signature_shows_every_option_with_its_default():
    options = inspect.signature(nf.audit).parameters
    source = {field.name for field in fields(inputs.ModelSource)} - {"model"}
    assert {*find_parameters(AuditSettings), *source} <= set(options)
    assert (options["trust_pickle"].default, options["take_rules"].default, options["name"].default) == (
        *(False, "none", "texts"),
    )
    for function in (nf.audit, nf.certify, nf.rate, nf.search, nf.compare_methods):
        assert not any(option.kind is option.VAR_KEYWORD for option in inspect.signature(function).parameters.values())


def test_an_option_of_the_other_kind_of_model_is_refused():
    people = {"age": [20, 40] * 20, "sex": ["f", "m"] * 20, "note": ["she", "he"] * 20}
    with pytest.raises(NeuronFairError, match="there is no option 'fail_if'"):
        nf.audit(lambda table: table.age > 30, people, sensitive="sex", fail_if=["flip_rate > 1%"])
    with pytest.raises(NeuronFairError, match="there is no option 'checks'"):
        nf.audit(lambda texts: [0.0] * len(texts), people, text="note", sensitive="gender", checks=nf.Checks())


def test_an_option_changes_one_setting_and_none_keeps_it():
    settings = AuditSettings(seed=4, steps=7, twins="flip")
    assert api._change_settings(settings, {"steps": 9, "twins": None}) == replace(settings, steps=9)


def test_the_old_name_of_counterfactual_twins_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="twins='counterpart' is now 'counterfactual'"):
        assert SearchConfig(twins="counterpart").twins == "counterfactual"
    with pytest.warns(DeprecationWarning, match="is now 'counterfactual'"):
        assert AuditSettings(twins="counterpart").twins == "counterfactual"
    with pytest.warns(DeprecationWarning, match=r"'counterpart\.effect' is now 'counterfactual\.excess'"):
        assert read_expressions(["counterpart.effect > 5%"], ["sex"], [])[0].metric == "counterfactual.excess"


def test_the_old_names_of_arguments_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match="corpus is now regression_set"):
        assert nf.Checks(corpus="c.jsonl").regression_set == "c.jsonl"
    with pytest.warns(DeprecationWarning, match="placebos is now permutations"):
        assert AuditSettings(placebos=4).permutations == 4
    with pytest.warns(DeprecationWarning, match="trust_feeding is now skip_encoding_check"):
        assert CheckSettings(trust_feeding=True).skip_encoding_check
    with pytest.warns(DeprecationWarning, match=r"'corpus\.unfit' is now 'regression_set\.unfit'"):
        assert read_expressions(["corpus.unfit > 0"], ["sex"], [])[0].metric == "regression_set.unfit"
    with pytest.warns(DeprecationWarning, match="corpus_add is now regression_set_add"):
        assert validate_entry({"corpus_add": False}, find_parameters(AuditJob)) == ({"regression_set_add": False}, [])
