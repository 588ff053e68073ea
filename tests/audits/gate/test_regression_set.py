from __future__ import annotations

import json
import multiprocessing
import os

import pytest
import torch

from neuronfair.audits.gate.regression_set import extend, read_regression_set, replay_regression_set
from neuronfair.audits.report import RegressionSetReport
from neuronfair.audits.report.attribute import Change
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError
from neuronfair.limits import TooLargeError
from neuronfair.model.decision import Decision
from tests import reports
from tests.planted import networks
from tests.reports import attribute, report

# one_biased_neuron on domain(): the decision flips exactly if the sum of a0 … a3 is 19 or 20.
WRONG, FINE = (5, 5, 5, 4), (5, 5, 5, 3)


@pytest.fixture
def domain():
    return networks.domain()


@pytest.fixture
def network(domain):
    return networks.network(networks.one_biased_neuron(), domain)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "regression_set.jsonl"


def finding(*codes: int, s: int = 0):
    row = {f"a{i}": code for i, code in enumerate(codes)} | {"s": s}
    return reports.finding(row=row, changed=(Change("s", s, 1 - s),), decision="0", twin_decision="1")


def audit(*findings):
    return report(attribute("s", worst=findings))


def test_worst_findings_are_written_by_label_and_judged_again(path, domain, network):
    empty = read_regression_set(path, domain)
    assert len(empty) == 0
    assert extend(empty, audit(finding(*WRONG), finding(*FINE))) == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {
        "row": {"a0": 5, "a1": 5, "a2": 5, "a3": 4, "s": 0},
        "sensitive": ["s"],
        "twin": {"s": 1},
        "decision": "0",
        "other_decision": "1",
        "seen": {"version": "0.1.0", "date": "2024-05-06", "model": "abc"},
    }
    figures = replay_regression_set(read_regression_set(path, domain), network)
    # What is decided now, not the "0" and "1" of then.
    told = "a0 5, a1 5, a2 5, a3 4, s 0: gets class 0; with s 1: class 1"
    assert figures == RegressionSetReport(str(path), replayed=2, still_flips=1, fixed=1, unfit=0, examples=(told,))


def test_the_decision_rule_is_kept(path, domain):
    model = networks.network(networks.biased_score(), domain)
    extend(read_regression_set(path, domain), audit(finding(9, 0, 0, 0)))
    regression_set = read_regression_set(path, domain)
    assert replay_regression_set(regression_set, model, Decision("tolerance", 2.9)).still_flips == 1
    assert replay_regression_set(regression_set, model, Decision("tolerance", 3.1)).still_flips == 0


def test_nobody_is_added_twice_and_old_lines_stay_as_they_are(path, domain):
    regression_set = read_regression_set(path, domain)
    assert extend(regression_set, audit(finding(*WRONG), finding(*WRONG, s=1))) == 1  # the same person
    path.write_text(path.read_text().replace('"row": {', '"row":   {').rstrip("\n"))
    before = path.read_text()
    assert extend(regression_set, audit(finding(*WRONG), finding(*FINE))) == 1
    assert path.read_text().startswith(before + "\n{")
    same = path.read_bytes()
    assert extend(regression_set, audit(finding(*FINE))) == 0
    assert extend(regression_set, audit()) == 0
    assert path.read_bytes() == same


def test_only_so_many_are_added_for_each_attribute(path, domain):
    findings = [finding(0, 0, 0, i) for i in range(5)]
    assert extend(read_regression_set(path, domain), audit(*findings), limit=3) == 3
    assert [past.row["a3"] for past in read_regression_set(path, domain).past] == [0, 1, 2]


def test_the_same_person_may_stand_there_for_other_attributes(path):
    domain = networks.sex_and_race()
    network = networks.network(networks.one_biased_pair(), domain)
    row = {"a0": 5, "a1": 5, "a2": 5, "a3": 4, "sex": 1, "race": "D"}

    def worst(name, to):
        return (reports.finding(row=row, changed=(Change(name, row[name], to),)),)

    found = [attribute(n, worst=worst(n, to)) for n, to in (("sex", 0), ("race", "A"))]
    found.append(attribute("sex+race", worst=worst("race", "A")))
    assert extend(read_regression_set(path, domain), report(*found)) == 3
    figures = replay_regression_set(read_regression_set(path, domain), network)
    assert (figures.replayed, figures.still_flips) == (3, 3)
    # For race A nobody is decided by sex; by race and by both they are.
    path.write_text(path.read_text().replace('"race": "D"', '"race": "B"'))
    figures = replay_regression_set(read_regression_set(path, domain), network)
    assert (figures.still_flips, figures.fixed) == (2, 1)


def test_a_model_may_read_the_same_people_in_another_encoding(path, domain, network):
    extend(read_regression_set(path, domain), audit(finding(*WRONG)))
    scaled = TableDomain(
        "scaled",
        (
            *(Attribute(a.name, "ordinal", low=0, high=9, encode="scaled", scale=2.0) for a in domain.attributes[:4]),
            domain.attributes[4],
        ),
        ("s",),
    )
    module = networks.one_biased_neuron()
    with torch.no_grad():
        module[0][0].weight[:, :4] *= 2
    regression_set = read_regression_set(path, domain)
    assert replay_regression_set(regression_set, networks.network(module, scaled)).still_flips == 1


def test_people_who_fit_no_longer_are_named_and_not_judged(path, domain, network):
    extend(read_regression_set(path, domain), audit(*(finding(i, 0, 0, 0) for i in range(4))))
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace('"a1": 0', '"a1": 77')
    lines[1] = lines[1].replace('"a1": 0, ', "")
    lines[2] = lines[2].replace('["s"]', '["t"]')
    path.write_text("\n".join(lines))
    regression_set = read_regression_set(path, domain)
    figures = replay_regression_set(regression_set, network)
    assert (figures.replayed, figures.unfit) == (1, 3)
    assert [note.partition(":")[0] for note in figures.notes] == ["line 1", "line 2", "line 3"]
    assert "77 is outside" in figures.notes[0]
    assert "'a1' is missing" in figures.notes[1]
    assert "'t' is not a column" in figures.notes[2]
    # They stay in the file: another domain may know them.
    assert extend(regression_set, audit(finding(9, 9, 9, 9))) == 1
    assert path.read_text().splitlines()[:4] == lines


def test_people_who_break_a_rule_do_not_fit(path, domain):
    extend(read_regression_set(path, domain), audit(finding(*WRONG)))
    ruled = TableDomain("ruled", domain.attributes, ("s",), (Rule("no five", {"a0": (5,)}, {}),))
    assert read_regression_set(path, ruled).unfit == ("line 1: breaks the rule 'no five'",)
    kept = TableDomain("kept", domain.attributes, ("s",), outside="keep")
    path.write_text(path.read_text().replace('"a0": 5', '"a0": 12'))
    assert read_regression_set(path, kept).unfit == ("line 1: a value lies outside its bounds",)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not a counterexample"),
        ("<<<<<<< HEAD", "not a counterexample"),
        ("[" * 100_000, "not a counterexample"),
        ("[]", "not a counterexample"),
        ("{}", "not a counterexample"),
        (
            '{"row": {}, "sensitive": [1], "twin": {}, "decision": "", "other_decision": "", "seen": {}}',
            "not a counter",
        ),
        (
            '{"row": {"a0": []}, "sensitive": [], "twin": {}, "decision": "", "other_decision": "", "seen": {}}',
            "not a counterexample .*row",
        ),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_changed(path, domain, line, says):
    regression_set = read_regression_set(path, domain)
    extend(regression_set, audit(finding(*WRONG)))
    path.write_text(path.read_text() + "\n" + line + "\n")
    before = path.read_bytes()
    with pytest.raises(DataError, match=f"line 3: {says}"):
        read_regression_set(path, domain)
    with pytest.raises(DataError, match="line 3"):
        extend(regression_set, audit(finding(*FINE)))
    assert path.read_bytes() == before


def test_what_is_not_a_text_file_is_refused(path, domain, tmp_path):
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a text file"):
        read_regression_set(path, domain)
    with pytest.raises(DataError, match="directory"):
        read_regression_set(tmp_path, domain)
    with pytest.raises(DataError, match="cannot be written"):
        extend(read_regression_set(tmp_path / "none" / "c.jsonl", domain), audit(finding(*WRONG)))


def test_a_file_that_would_take_too_much_memory_is_refused(path, domain, monkeypatch):
    path.write_text("\n" * 10_000)
    assert len(read_regression_set(path, domain)) == 0
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "300000")
    with pytest.raises(TooLargeError, match=path.name):
        read_regression_set(path, domain)


def _extend_often(path, first: int, start) -> None:
    """Add twenty people, one after the other, as soon as everybody is ready."""
    space = networks.domain()
    regression_set = read_regression_set(path, space)
    start.wait()
    for i in range(20):
        extend(regression_set, audit(finding(first, i // 10, i % 10, 0)))


@pytest.mark.skipif(os.name == "nt", reason="forks")
def test_two_audits_that_share_a_regression_set_lose_no_counterexample(path, domain):
    forks = multiprocessing.get_context("fork")
    start = forks.Barrier(3)
    workers = [forks.Process(target=_extend_often, args=(path, first, start)) for first in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    rows = {tuple(json.loads(line)["row"].values()) for line in path.read_text().splitlines()}
    assert rows == {(first, i // 10, i % 10, 0, 0) for first in (1, 2, 3) for i in range(20)}
    assert len(path.read_text().splitlines()) == 60
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # nothing is left beside it


def test_somebody_whom_another_audit_has_added_meanwhile_is_not_added_again(path, domain):
    mine, other = read_regression_set(path, domain), read_regression_set(path, domain)
    assert extend(other, audit(finding(*WRONG))) == 1
    assert extend(mine, audit(finding(*WRONG), finding(*FINE))) == 1
    assert len(path.read_text().splitlines()) == 2


def test_a_regression_set_behind_a_link_is_written_where_it_lies(path, domain, tmp_path):
    extend(read_regression_set(path, domain), audit(finding(*WRONG)))
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    extend(read_regression_set(link, domain), audit(finding(*FINE)))
    assert link.is_symlink()
    assert len(path.read_text().splitlines()) == 2
