"""`neuronfair certify` as people use it; what it must prove was counted by hand."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neuronfair.proof import session
from neuronfair.proof.certificate import ProofReport
from neuronfair.scale.pool import Serial
from neuronfair.store.ledger import JOURNAL
from tests.conftest import Result
from tests.proof.planted import DOMAIN, FLIPS, PEOPLE

MODELS = """
import torch
from tests.proof import planted

def network():
    return planted.make()

def blind():
    return planted.make(bias=0.0)

def constant():
    return planted.make(bias=0.0, age=0.0)

def wide():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))

def answers(table):
    return (table.age + 4 * (table.sex == "m") > 40).astype(float)
"""
LARGE = """
name = "large"
sensitive = ["sex"]

[attributes]
age = { kind = "ordinal", low = 0, high = 3000 }
income = { kind = "ordinal", low = 0, high = 1000 }
sex = { kind = "flag", values = ["f", "m"] }
"""
CERTIFY = ("certify", "small.toml", "--decision", "threshold=0", "--out", "run")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A domain, a table, and models of which the truth is known."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "known_models", raising=False)
    rows = [f"{age},{job},{sex},{'yes' if age > 40 else 'no'}" for age in (25, 38, 50) for job in "ab" for sex in "fm"]
    (tmp_path / "table.csv").write_text("\n".join(["age,job,sex,hired", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "small.toml").write_text(DOMAIN, encoding="utf-8")
    (tmp_path / "large.toml").write_text(LARGE, encoding="utf-8")
    (tmp_path / "known_models.py").write_text(MODELS, encoding="utf-8")


def model(name: str) -> tuple[str, str]:
    return "--model", f"known_models:{name}"


def figures(result: Result) -> dict[str, Any]:
    assert (result.status, result.err) == (0, "")
    return json.loads(result.out)


def counts(found: dict[str, Any]) -> list[int]:
    return [int(found[name]["count"]) for name in ("people", "proved_fair", "proved_discriminatory", "undecided")]


@pytest.mark.parametrize(("name", "method"), [("network", "bounds of a network"), ("answers", "enumeration")])
def test_the_figures_of_a_domain_file(run, name, method):
    decision = "threshold=0" if name == "network" else "threshold=0.5"
    found = figures(run(*CERTIFY, "--decision", decision, *model(name), "--json", "-"))
    assert counts(found) == [PEOPLE, PEOPLE - FLIPS, FLIPS, 0]
    assert found["proved_discriminatory"]["share"] == FLIPS / PEOPLE
    assert (found["complete"], found["interrupted"], found["method"]) == (True, False, method)
    assert (found["where"], found["sensitive"]) == ("", ["sex"])
    text = Path("run/proof.json").read_text(encoding="utf-8")
    assert ProofReport.from_json(text) == ProofReport.from_json(json.dumps(found))
    assert {path.name for path in Path("run").iterdir()} == {
        *("manifest.json", "domain.toml", "journal.jsonl", "proof-00000.state.safetensors"),
        *("proof.json", "certificate.parquet"),
    }


def test_a_table_with_a_domain(run):
    table = ("certify", "table.csv", "--domain", "small.toml", "--decision", "threshold=0", "--out", "run")
    found = figures(run(*table, *model("network"), "--json", "-", "--row", "3"))
    assert counts(found) == [PEOPLE, PEOPLE - FLIPS, FLIPS, 0]
    parts = {name: found["data_set"][name]["count"] for name in ("certified_fair", "certified_discriminatory")}
    assert (found["data_set"]["of"], parts) == (12, {"certified_fair": 8, "certified_discriminatory": 4})  # of 38 years
    assert 0.2 < found["fresh"]["certified_discriminatory"]["share"] < 0.5
    assert (found["row"]["rule"], found["row"]["depends"]) == ("age <= 36", False)
    assert found["row"]["size"]["count"] == str(17 * 3 * 2)
    assert found["row"]["rows"]["count"] == 4
    again = " ".join(run(*table, *model("network"), "--row", "5").out.split())
    assert "Row 5: every decision depends on the attribute where age >= 37 and age <= 40 (24 records" in again
    assert "Decisions are certified not to depend on sex for 66.7% of 12 records in the data set, and" in again
    assert "In the data set: 8 certified, 4 certified to depend, 0 undecided." in again


def test_the_order_by_volume(run, refused):
    table = ("certify", "table.csv", "--domain", "small.toml", "--decision", "threshold=0", "--out", "run")
    found = figures(run(*table, *model("network"), "--json", "-", "--order", "volume"))
    assert (counts(found), found["order"]) == ([PEOPLE, PEOPLE - FLIPS, FLIPS, 0], "volume")
    assert found["data_set"]["certified_fair"]["count"] == 8
    refused(*table, *model("network"), says=("order", "volume"))


def test_a_table_without_a_domain(run):
    table = ("certify", "table.csv", "--target", "hired", "--sensitive", "sex", "--decision", "threshold=0.5")
    words = " ".join(run(*table, *model("answers"), "--out", "run").out.split())
    assert "Nothing is undecided" in words
    assert "The domain was read off the table. Please read and correct it: run/domain.toml" in words
    assert "Check it" not in words  # there is nothing but the model's own word


def test_a_region(run):
    found = figures(run(*CERTIFY, *model("network"), "--where", "age < 40 and sex == f", "--json", "-"))
    assert counts(found) == [20 * 3, 17 * 3, 3 * 3, 0]  # of 37, 38 and 39 years
    assert found["people"]["share"] == 60 / PEOPLE
    assert found["where"] == "age < 40 and sex == f"


def test_it_says_what_it_means(run):
    result = run(*CERTIFY, *model("network"), "--json", "figures.json")
    assert (result.status, result.err) == (0, "")
    words = " ".join(result.out.split())
    for said in (
        "certified not to depend on sex for 90% of the declared input space, and to depend on it for 10%.",
        "Nothing is undecided: the decision depends on sex for exactly 24. 240 records in",
        "bounds of a network",
        "Check it: neuronfair certify --check run/certificate.parquet --model known_models:network",
    ):
        assert said in words
    assert counts(json.loads(Path("figures.json").read_text(encoding="utf-8")))[0] == PEOPLE


@pytest.mark.parametrize("name", ["blind", "constant"])
def test_nobody(run, name):
    words = " ".join(run(*CERTIFY, *model(name)).out.split())
    assert "Certified for all of the declared input space: decisions do not depend on sex. 240 records in" in words
    assert run(*CERTIFY, *model(name), "--quiet") == Result(0, "", "")


def test_a_finished_proof_is_shown_and_not_made_again(run, monkeypatch):
    first = figures(run(*CERTIFY, *model("network"), "--json", "-"))
    before = Path("run", JOURNAL).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(session, "prove", None)
        assert figures(run(*CERTIFY, *model("network"), "--seconds", 600, "--json", "-")) == first
        assert "finished already" in run(*CERTIFY, *model("network")).out
    assert Path("run", JOURNAL).read_bytes() == before
    Path("run/certificate.parquet").unlink()
    assert figures(run(*CERTIFY, *model("network"), "--json", "-"))["complete"]  # made again of the last state
    assert Path("run/certificate.parquet").is_file()
    figures(run(*CERTIFY, *model("network"), "--force", "--json", "-"))
    assert Path("run", JOURNAL).read_text(encoding="utf-8").count('"part"') == 1


def test_more_seconds_go_on(run):
    assert counts(figures(run(*CERTIFY, *model("network"), "--seconds", 0, "--json", "-"))) == [PEOPLE, 0, 0, PEOPLE]
    words = " ".join(run(*CERTIFY, *model("network"), "--seconds", 0).out.split())
    assert "No decision was certified in" in words
    assert "A higher --seconds may decide more." in words
    assert figures(run(*CERTIFY, *model("network"), "--seconds", 60, "--json", "-"))["complete"]


def test_ctrl_c_keeps_what_is_proved(run, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "_describe_progress", stop)
        patch.setattr("neuronfair.proof.prove.MAX_ENUMERATED", 0)  # so that more than one step is needed
        result = run(*CERTIFY, *model("network"), "--json", "figures.json")
    assert (result.status, result.err) == (130, "")
    assert "Interrupted: what was certified is kept." in " ".join(result.out.split())
    found = json.loads(Path("figures.json").read_text(encoding="utf-8"))
    assert found["interrupted"]
    assert counts(found)[3] > 0
    assert Path("run/certificate.parquet").is_file()
    assert figures(run(*CERTIFY, *model("network"), "--json", "-"))["complete"]


def test_workers_prove_together(run, monkeypatch):
    asked = []
    pool = "neuronfair.cli.options.make_pool"
    monkeypatch.setattr(pool, lambda ray: asked.append(ray) or nullcontext(Serial(2)))
    monkeypatch.setattr("neuronfair.proof.prove.MAX_ENUMERATED", 2)
    monkeypatch.setattr("neuronfair.proof.distributed.BOXES_PER_PIECE", 1)
    found = figures(run(*CERTIFY, *model("network"), "--ray", "--json", "-"))
    assert counts(found) == [PEOPLE, PEOPLE - FLIPS, FLIPS, 0]
    assert asked == ["local"]
    assert run(*check(*model("network"))).status == 0
    assert not Path("run/shards").exists()


# What is refused


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (CERTIFY, ("name the model with --model",)),
        (("certify", *model("network")), ("name a table or a domain file", "--out", "--check")),
        ((*CERTIFY, *model("gone")), ("known_models:gone",)),
        ((*CERTIFY, "--model", "gone.safetensors"), ("gone.safetensors",)),
        ((*CERTIFY, *model("wide")), ("known_models:wide", "gives 5 numbers a row")),
        ((*CERTIFY, *model("network"), "--where", "agee > 30"), ("agee", "Did you mean 'age'?")),
        ((*CERTIFY, *model("network"), "--where", "age > 300"), ("no value of 'age' is left",)),
        ((*CERTIFY, *model("network"), "--sensitive", "sx"), ("sx", "Did you mean 'sex'?")),
        ((*CERTIFY, *model("network"), "--domain", "small.toml"), ("small.toml: is a domain file",)),
        ((*CERTIFY, *model("network"), "--device", "nowhere"), ("--device nowhere",)),
        (("certify", "large.toml", *model("answers"), "--out", "run"), ("nothing can be proved", "6,008,002 people")),
        (("certify", "gone.toml", *model("network"), "--out", "run"), ("gone.toml",)),
        (("certify", "table.csv", *model("network"), "--out", "."), ("exists and is not a run folder",)),
    ],
)
def test_bad_input(refused, words, says):
    refused(*words, says=says)


def test_a_sensitive_attribute_with_one_value(refused, tmp_path):
    (tmp_path / "small.toml").write_text(DOMAIN.replace('["a", "b", "c"]', '["a"]'), encoding="utf-8")
    refused(*CERTIFY, *model("network"), "--sensitive", "job", says=("job", "one value"))


def test_a_region_whom_the_rules_forbid(refused, tmp_path):
    rule = '\n[[rules]]\nname = "b works from 30 on"\nif = { job = ["b"] }\nthen = { age = { min = 30 } }\n'
    (tmp_path / "small.toml").write_text(DOMAIN + rule, encoding="utf-8")
    refused(*CERTIFY, *model("network"), "--where", "job == b and age < 30", says=("no such person",))


def test_a_folder_of_another_question(run, refused):
    run(*CERTIFY, *model("network"))
    other = (*CERTIFY, *model("network"), "--where", "age > 30")
    refused(*other, says=("begun with where = , not age > 30", "--out"))
    refused(*CERTIFY, *model("blind"), says=("other weights", "--force"))
    refused("show", "run", 0, says=("holds a proof, not a search",))
    refused("search", "table.csv", "--domain", "small.toml", "--out", "run", *model("network"), says=("holds a proof",))
    assert run(*other, "--force").status == 0


# The checker


def check(*words: object) -> tuple[object, ...]:
    return ("certify", "--check", "run/certificate.parquet", *words)


def test_a_certificate_is_checked(run):
    run(*CERTIFY, *model("network"), "--where", "age < 40")
    result = run(*check(*model("network")))
    assert (result.status, result.err) == (0, "")
    words = " ".join(result.out.split())
    assert "Of 120 records where age < 40 the decision does not depend on sex for 102 at least" in words
    assert "and does for 18 at least" in words
    found = figures(run(*check(*model("network"), "--json", "-")))
    assert found == {"verified": True, "people": "120", "proved_fair": "102", "proved_discriminatory": "18", "boxes": 1}
    assert run("certify", "small.toml", *check(*model("network"))[1:]).status == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (model("blind"), "other weights"),
        ((*model("network"), "--decision", "threshold=1"), "about another decision"),
        (("small.toml", "--sensitive", "job", *model("network")), "other sensitive attributes"),
        ((*model("answers"), "--decision", "threshold=0"), "only networks and trees can be checked"),
    ],
)
def test_a_certificate_about_something_else_is_refused(run, words, says):
    run(*CERTIFY, *model("network"))
    result = run(*check(*words, "--json", "figures.json"))
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("neuronfair: refused: run/certificate.parquet: ")
    assert says in result.err
    assert not Path("figures.json").exists()


def test_a_certificate_about_a_decision_that_nobody_makes_is_refused(run):
    """With a threshold out of reach no decision flips, and a proof of that is no proof about the model."""
    run(*CERTIFY, *model("network"), "--decision", "threshold=1000000")
    result = run(*check(*model("network")))
    assert (result.status, result.out) == (1, "")
    assert "another decision, threshold=1000000.0, not threshold=0.0" in result.err
    named = run(*check(*model("network"), "--decision", "threshold=1000000"))
    assert "hold for this model and the decision threshold=1000000.0." in " ".join(named.out.split())


def test_what_is_no_certificate(run, refused):
    Path("run").mkdir()
    refused(*check(*model("network")), says=("run/certificate.parquet: there is no such file",))
    Path("run/certificate.parquet").write_text("nothing", encoding="utf-8")
    assert run(*check(*model("network"))).status == 1


@pytest.mark.parametrize("kind", ["linear", "perceptron"])
def test_a_pipeline_is_proved_and_checked_without_its_table(run, kind):
    pytest.importorskip("skops")
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from skops.io import dump

    people = pd.DataFrame(
        [(age, pay, job, sex) for age in range(20, 60) for pay in range(0, 120, 2) for job in "abc" for sex in "fm"],
        columns=["age", "pay", "job", "sex"],
    )
    hired = people.age / 10 + people.pay / 9 + (people.sex == "m") + (people.job == "b") > 11
    before = make_column_transformer((OneHotEncoder(), ["job", "sex"]), (StandardScaler(), ["age", "pay"]))
    final = LogisticRegression() if kind == "linear" else MLPClassifier((4,), solver="lbfgs", random_state=0)
    fitted = make_pipeline(before, final).fit(people, hired.map({True: "yes", False: "no"}))
    dump(fitted, "model.skops")
    table = people.assign(hired=fitted.predict(people))
    table.sample(frac=1, random_state=1).to_csv("people.csv", index=False)
    pair = (fitted.predict(people.assign(sex=sex)) for sex in "fm")
    flips = int((next(pair) != next(pair)).sum())
    named = ("--target", "hired", "--sensitive", "sex", "--json", "-", "--out", "run")
    found = figures(run("certify", "people.csv", "--model", "model.skops", *named))
    assert counts(found) == [len(people), len(people) - flips, flips, 0]
    check = ("certify", "--check", "run/certificate.parquet", "--model", "model.skops", "--json", "-")
    assert figures(run(*check))["proved_discriminatory"] == str(flips)
