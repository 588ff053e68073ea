"""`neuronfair compare` and `neuronfair rate` as people use them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from neuronfair.cli import options
from neuronfair.measure import counterfactual_effect
from neuronfair.searches.methods import METHODS
from tests.cli.test_research import copies, folder, other_outputs  # noqa: F401  # fixtures
from tests.scale.pools import Pickled

DATA = ("table.csv", "--domain", "table.toml", "--model", "model.safetensors")
SMALL = ("--starts", 10, "--steps", 8)


def test_all_methods_in_one_table(run, tmp_path):
    result = run("compare", *DATA, *SMALL, "--plot", "methods.svg", "--json", "figures.json")
    assert result.status == 0, result.err
    for name in METHODS:
        assert name in result.out
    assert "drawn uniformly" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert "…" not in result.out  # no heading is cut off
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [entry["method"] for entry in figures["methods"]] == list(METHODS)
    for entry in figures["methods"]:
        assert entry["gsr"] == pytest.approx(entry["findings"] / entry["tried"])
        assert {"lift", "diversity", "severity", "seconds_per_1000", "rows_per_finding"} <= set(entry)
    assert (tmp_path / "methods.svg").read_text().count("<svg") == 1


def test_repeats_as_json_alone(run):
    figures = json.loads(run("compare", *DATA, *SMALL, "--methods", "adf,uniform", "--repeats", 2, "--json", "-").out)
    assert (figures["run_seeds"], figures["steps"]) == ([0, 1], 8)
    assert all(entry["plus_minus"]["gsr"] >= 0 and entry["runs"] == 2 for entry in figures["methods"])


def test_methods_are_compared_on_a_cluster(run, monkeypatch):
    monkeypatch.setattr(options, "cluster", lambda address: nullcontext(Pickled()))
    words = ("compare", *DATA, *SMALL, "--methods", "aequitas,uniform", "--json", "-")
    found, alone = (json.loads(run(*words, *more).out)["methods"] for more in (("--ray",), ()))
    for one, other in zip(found, alone, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }


def test_methods_are_compared_by_counterfactuals(run):
    words = ("compare", *DATA, *SMALL, "--methods", "aequitas,uniform", "--json", "figures.json")
    told = run(*words, "--twins", "counterfactual")
    assert (told.status, told.err) == (0, "")
    assert "A typical counterfactual twin gets a different decision for" in " ".join(told.out.split())
    found = json.loads(Path("figures.json").read_text(encoding="utf-8"))
    assert found["twins"] == "counterfactual"
    assert sum(entry["findings"] for entry in found["methods"]) > 0
    assert found["rates"]["table"]["rate"] > 0


def test_a_network_with_one_output_is_compared_and_interpreted(run):
    other_outputs(1)
    one = (*DATA[:-1], "1.safetensors")
    for words, share in (
        (("compare", *one, *SMALL, "--methods", "uniform"), lambda found: found["rates"]["plausible"]["rate"]),
        (("interpret", *one), lambda found: found["ablation"]["before"]["rate"]),
    ):
        assert "one output" in run(*words, "--decision", "argmax").err
        by_sign, same, any_gap = (
            share(json.loads(run(*words, "--json", "-", *decision).out))
            for decision in ((), ("--decision", "threshold=0"), ("--decision", "tolerance=0"))
        )
        assert by_sign == same < any_gap


def test_interpreting_by_a_tolerance_says_nothing_about_accuracy(run):
    other_outputs(1)
    words = ("interpret", *DATA[:-1], "1.safetensors")
    result = run(*words, "--decision", "tolerance=0.01")
    assert result.status == 0
    assert "accuracy" not in result.out
    assert json.loads(run(*words, "--json", "-").out)["ablation"]["before"]["accuracy"] is not None


def test_quiet_comparison_says_nothing(run):
    assert run("compare", *DATA, *SMALL, "--methods", "uniform", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--methods", "adf,eidgi5"), ("no method 'eidgi5'", "eidig5")),
        (("--methods", ","), ("one method",)),
        (("--plot", "picture.txt"), (".png",)),
        (("--json", "nowhere/figures.json"), ("no folder",)),
    ],
)
def test_a_comparison_that_cannot_be(refused, words, says):
    refused("compare", *DATA, *SMALL, *words, says=says)


def test_the_rate_and_its_interval(run, tmp_path):
    result = run("rate", *DATA, "--error", 0.02, "--json", "rate.json")
    assert result.status == 0, result.err
    assert " ".join(result.out.split()).count("The decision depends on sex for") == 4
    figures = json.loads((tmp_path / "rate.json").read_text())
    assert list(figures["rates"]) == ["pairs", "table", "plausible", "domain"]
    for name, one in figures["rates"].items():
        assert one["population"] == name
        assert 0 <= one["low"] <= one["rate"] == one["discriminated"] / one["of"] <= one["high"] <= 1
    assert figures["rates"]["table"]["of"] == 200
    assert "rate" not in figures


def test_the_rate_of_one_population(run):
    figures = json.loads(run("rate", *DATA, "--error", 0.02, "--population", "plausible", "--json", "-").out)
    assert list(figures["rates"]) == ["plausible"]
    one = figures["rates"]["plausible"]
    assert one["low"] <= one["rate"] == one["discriminated"] / one["of"] <= one["high"]
    assert (one["high"] - one["low"]) / 2 == pytest.approx(one["error"])
    assert one["error"] <= 0.02


def test_the_rate_among_the_rows_of_the_table(run):
    result = run("rate", *DATA, "--population", "table", "--error", 0.0001)
    said = " ".join(result.out.split())
    assert "of records in the data set (95% CI " in said
    assert "there are no more records" in said


def test_a_rate_that_is_less_sure_than_asked_for_names_the_limit_that_stopped_it(run):
    said = " ".join(run("rate", *DATA, "--population", "domain", "--error", 0.0001, "--samples", 500).out.split())
    assert "raise --samples" in said
    assert "no more records" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--error", 0), ("error must be more than 0",)),
        (("--confidence", 1.5), ("confidence must lie between 0 and 1",)),
        (("--population", "mine"), ("mine",)),
    ],
)
def test_a_rate_that_cannot_be(refused, words, says):
    refused("rate", *DATA, *words, says=says)


def test_the_rate_by_counterfactuals(run, monkeypatch):
    quick = counterfactual_effect.CounterfactualSettings(draws=4, permutations=3)
    monkeypatch.setattr(counterfactual_effect, "CounterfactualSettings", lambda: quick)
    result = run("rate", *DATA, "--twins", "counterfactual", "--json", "rate.json")
    assert result.status == 0, result.err
    said = " ".join(result.out.split())
    assert "counterfactual twins (same place in the other group's distribution) get a different decision" in said
    assert "The permutation baseline has 3 shuffles only." in said
    figures = json.loads(Path("rate.json").read_text())
    found = figures["counterfactual"]
    assert (figures["sensitive"], found["of"], found["draws"], found["confidence"]) == (["sex"], 200, 4, 0.95)
    assert found["effect"]["rate"] <= found["rate"]
    assert "rates" not in figures
