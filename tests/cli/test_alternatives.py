"""`neuronfair alternatives` as people use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from tests.planted.alternatives import nothing_to_have

CALL = ("alternatives", "people.csv", "--sensitive", "sex", "--target", "hired", "--favourable", "yes")
SMALL = ("--budget", 2, "--families", "leave-out", "--families", "reweight", "--out", "found")

MAKER = """
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
def same(frame):
    return frame
def make():
    return make_pipeline(FunctionTransformer(same), DummyClassifier(strategy="stratified"))
def unnamed():
    return make_pipeline(FunctionTransformer(lambda frame: frame), DummyClassifier(strategy="stratified"))
"""


@pytest.fixture(autouse=True)
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "maker", raising=False)
    nothing_to_have(0).to_csv("people.csv", index=False)
    Path("maker.py").write_text(MAKER, encoding="utf-8")


def test_a_search_and_its_files(run):
    done = run(*CALL, "--estimator", "logistic", *SMALL, "--json", "found.json")
    assert (done.status, done.err) == (0, "")
    shown = " ".join(done.out.split())
    assert "No better alternative was found among 2 candidates." in shown
    assert "No candidate reads sex at decision time" in shown
    report = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert (report["conclusion"], report["chosen"], len(report["searched"]["controls"])) == ("none found", None, 2)
    names = {path.name for path in Path("found").iterdir()}
    assert {"search.jsonl", "alternatives.json", "report.html", "regulator.md", "baseline.skops"} <= names
    page = Path("found/report.html").read_text(encoding="utf-8")
    assert page.count("<circle") == 4  # baseline, a candidate and two controls: without its merit, one selects everyone
    assert "of which 1 could not be used (mostly: it selects 200 of 200 records" in page
    assert "<title>baseline:" in page
    words = Path("found/regulator.md").read_text(encoding="utf-8")
    assert "This does not show that no such model exists" in words
    again = run(*CALL, "--estimator", "logistic", *SMALL)  # everything is there already
    assert (again.status, again.out) == (0, done.out)
    other = (*CALL, "--estimator", "logistic", *SMALL, "--tolerance", 0.1)
    assert "another setting" in run(*other).err
    assert "test part was already used" in run(*other, "--force").err  # a second look, whatever the settings
    Path("found/model.skops").write_bytes(b"of the earlier search")
    assert run(*other, "--force", "--seed", 1, "-q").status == 0
    assert not Path("found/model.skops").exists()
    assert Path("found/report.html").exists()


def test_audits_and_certificates_before_and_after(run):
    """A model that selects all men is replaced by one whose decision cannot depend on sex."""
    people = nothing_to_have(0, 2_000)
    people["hired"] = np.where((people.sex == "m") | (people.merit == "b"), "yes", "no")
    people.to_csv("people.csv", index=False)
    words = make_column_transformer((OneHotEncoder(), ["sex", "merit"]))
    model = make_pipeline(words, DecisionTreeClassifier(max_leaf_nodes=3))
    joblib.dump(model.fit(people[["sex", "merit"]], people.hired), "model.joblib")
    call = (*CALL, "--model", "model.joblib", "--trust-pickle", *SMALL, "--tolerance", 0.5, "--audit", "chosen")
    done = run(*call)
    assert done.status == 0
    counts = {}
    for stage in ("before", "after"):
        assert "</html>" in Path(f"found/{stage}.html").read_text(encoding="utf-8")
        proof = json.loads(Path(f"found/{stage}-certificate/proof.json").read_bytes())["data_set"]
        counts[stage] = [proof[f"certified_{kind}"]["count"] for kind in ("discriminatory", "fair")]
        assert f"Certificate {stage}: found/{stage}-certificate" in done.out
    assert counts["after"] == [0, 400]
    assert sum(counts["before"]) == 400
    assert counts["before"][0] == pytest.approx(180, abs=60)  # 45% are of merit a, of whom the men are selected
    again = run(*call)  # the certificates are there already
    assert (again.status, again.out) == (0, done.out)
    check = ("certify", "--check", "found/after-certificate/certificate.parquet", "--trust-pickle", "--model")
    assert run(*check, "found/model.joblib").status == 0
    assert run(*check, "found/baseline.joblib").status != 0


def test_a_file_of_a_model_and_code_of_the_users(run):
    assert run(*CALL, "--estimator", "logistic", *SMALL, "-q").status == 0
    other = (*SMALL[:-1], "other")
    assert run(*CALL, "--model", "found/baseline.skops", *other, "-q").status == 0
    found = json.loads(Path("other/alternatives.json").read_text(encoding="utf-8"))
    assert found["estimator"] == "found/baseline.skops"
    assert run(*CALL, "--estimator", "maker:make", *SMALL[:-1], "third", "-q").status == 0
    audited = run("audit", "people.csv", "--sensitive", "sex", "--target", "hired", "--model", "found/baseline.skops",
                  "--quick", "--starts", 5, "--steps", 2, "--samples", 500, "--out", "audit")  # fmt: skip
    assert audited.status == 0
    command = json.loads(Path("audit/audit.json").read_text(encoding="utf-8"))["reproduction"]["alternatives"]
    expected = "people.csv --domain audit/domain.toml --model found/baseline.skops --out audit-alternatives"
    assert command == f"neuronfair alternatives {expected}"
    assert run(*command.split()[1:], "--budget", 1, "--families", "reweight", "-q").status == 0


def test_processes_load_code_of_the_working_folder_and_refuse_a_lambda(run, refused):
    small = ("--budget", 1, "--families", "counterfactuals", "--workers", 2, "-q")
    assert run(*CALL, "--estimator", "maker:make", *small, "--out", "processes").status == 0
    assert run(*CALL, "--estimator", "maker:make", *small[:-3], "-q", "--out", "serial").status == 0
    made, expected = (
        [
            json.loads(line)["fit"] | {"seconds": 0}
            for line in Path(name, "search.jsonl").read_text(encoding="utf-8").splitlines()[1:-1]
        ]
        for name in ("processes", "serial")
    )
    assert made == expected
    refused(*CALL, "--estimator", "maker:unnamed", *small, "--out", "third",
            says=("cannot be sent to other processes", "--workers"))  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), ("--model", "--estimator")),
        (("--estimator", "logistic", "--model", "m.skops"), ("one of the two",)),
        (("--estimator", "logistics"), ("Did you mean 'logistic'",)),
        (("--model", "m.ubj"), ("m.ubj",)),
        (("--estimator", "logistic", "--quality", "beauty"), ("quality 'beauty'",)),
        (("--estimator", "logistic", "--measure", "luck"), ("--measure",)),
        (("--estimator", "logistic", "--out", "."), ("holds other files",)),
        (("--estimator", "logistic", "--budget", 0), ("--budget",)),
    ],
)
def test_wrong_words(refused, words, says):
    refused(*CALL, *SMALL, *words, says=says)
