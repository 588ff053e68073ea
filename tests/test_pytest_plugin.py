"""The fixture `fairness`, used as a stranger uses it: in a test of a project of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

# pytester forgets the modules that its tests import, and some cannot be imported twice: so all are imported before.
import pyarrow.parquet  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.cluster  # noqa: F401

from neuronfair.audits.gate.regression_set import extend, read_regression_set
from neuronfair.audits.report.attribute import Change
from tests import reports
from tests.planted import networks

# one_biased_neuron on domain(): 660 and 633 of the 10,000 sums of four digits are 19 and 20: 12.93% of all people.
HEAD = """
import pathlib
import pytest
from dataclasses import replace
import torch
from torch import nn
from neuronfair import BlackBox, Dataset, Decision, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.errors import NeuronFairError
from neuronfair.audits.pytest_check import CheckSettings
from tests.planted import networks

domain = networks.domain()
biased = networks.one_biased_neuron()
fair = networks.one_biased_neuron(weight=0.0)
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run the body of a test in a project of its own, and return what pytest says."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")

    def run(body: str, *options: str) -> pytest.RunResult:
        monkeypatch.chdir(pytester.path)
        lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
        pytester.makepyfile(test_model=f"{HEAD}\n\ndef test_it(fairness):\n{lines}\n")
        return pytester.runpytest_inprocess("-q", *options)

    return run


def said(result: pytest.RunResult) -> str:
    """The message of a failure."""
    result.assert_outcomes(failed=1)
    return "\n".join(line.removeprefix("E").strip() for line in result.outlines if line.startswith("E "))


def test_a_fair_model_passes(outcome):
    outcome(
        """
        checked = fairness.check(fair, domain)
        assert checked.rate.flips == 0
        assert checked.rate.interval[1] < checked.max_rate == 0.01
        assert checked.regression_set is None
        """
    ).assert_outcomes(passed=1)


def test_a_model_that_does_not_decide_fails(outcome):
    text = said(outcome("fairness.check(lambda table: table['a0'] * 0 + 1.0, domain)"))
    assert "gave the same decision to every record" in text
    assert "drawn uniformly" not in text


def test_a_model_that_decides_rarely_passes(outcome):
    rarely = "lambda table: (table[['a0', 'a1', 'a2']].sum(axis=1) == 27) * 1.0 - 0.5"  # one in a thousand
    outcome(f"fairness.check({rarely}, domain)").assert_outcomes(passed=1)


def test_a_biased_model_fails_with_the_worst_pair_and_a_line_that_shows_it_again(outcome, run, monkeypatch, pytester):
    result = outcome("fairness.check(biased, domain, max_rate=0.1, settings=CheckSettings(seeds=20, steps=20))")
    text = said(result)
    assert "The decision depends on s for 1" in text
    assert "at most 10% is allowed" in text
    assert "too few" not in text
    assert " gets 'class " in text
    assert "; with s " in text
    assert not any("fairness.py" in line for line in result.outlines)  # the line of the test, and none of ours
    again = text.partition("See it again: neuronfair ")[2].partition(" --model (its file")[0].split()
    monkeypatch.chdir(pytester.path)
    pytester.makepyfile(made="from tests.planted import networks\nbiased = networks.one_biased_neuron")
    shown = run(*again, "--model", "made:biased")
    assert shown.status == 0, shown
    assert "it still holds" in " ".join(shown.out.split())
    # The person in the message is the one on the terminal.
    worst = json.loads((pytester.path / again[1]).parent.joinpath("worst.json").read_text(encoding="utf-8"))["worst"][0]
    assert worst["sentence"] in text
    shrunk = networks.domain().from_table({name: [value] for name, value in worst["row"].items()})[0]
    assert networks.domain().describe(shrunk) in shown.out.partition("Shrunk")[2]
    # The same test again takes the place of what it left behind.
    assert (
        said(outcome("fairness.check(biased, domain, max_rate=0.1, settings=CheckSettings(seeds=20, steps=20))"))
        == text
    )


def test_a_limit_above_the_rate_is_kept(outcome):
    outcome("assert 0.11 < fairness.check(biased, domain, max_rate=0.15).rate.rate < 0.14").assert_outcomes(passed=1)


def test_too_few_people_do_not_pass(outcome):
    text = said(outcome("fairness.check(fair, domain, settings=CheckSettings(samples=100))"))
    assert "for 0% of synthetic records drawn uniformly from the declared input space" in text
    assert "about 370 records are needed (settings=CheckSettings(samples=370))" in text
    assert "Worst pair" not in text


def test_more_confidence_asks_for_more(outcome):
    outcome("fairness.check(fair, domain, settings=CheckSettings(samples=370))").assert_outcomes(passed=1)
    assert "99% CI" in said(outcome("fairness.check(fair, domain, settings=CheckSettings(0.99, 370))"))


@pytest.mark.parametrize(
    "model",
    [
        "networks.network(biased, domain)",
        "BlackBox.of_inputs(lambda x: x[:, :4].sum(1) - 2 * x[:, 4], domain)",
        "lambda table: table[['a0', 'a1', 'a2', 'a3']].sum(axis=1) - 2 * table['s']",
    ],
)
def test_every_kind_of_model_is_taken(outcome, model):
    decision = "" if "network(" in model else ", decision=Decision('threshold', 18.5)"
    text = said(
        outcome(f"fairness.check({model}, domain, max_rate=0.1, settings=CheckSettings(seeds=10, steps=10){decision})")
    )
    assert "Worst pair" in text
    if "network(" not in model:
        assert "--model" in text.partition("See it again: neuronfair show ")[2]


def test_a_table_is_judged_as_well(outcome):
    text = said(
        outcome(
            """
            rows = networks.uniform_rows(domain, 400)
            hit = rows[torch.isin(rows[:, :4].sum(1), torch.tensor([19, 20]))]
            data = Dataset("people", domain, torch.cat([hit] * 9), torch.zeros(9 * len(hit)).long())
            fairness.check(biased, data, max_rate=0.15, settings=CheckSettings(seeds=9, steps=9))
            """
        )
    )
    assert "depends on s for 100% of people in the data set with a plausible twin" in text


def test_groups_are_checked(outcome):
    text = said(
        outcome(
            """
            rows = networks.uniform_rows(domain, 400)
            decided = (rows[:, :4].sum(1) < 18.5 + 2 * rows[:, 4]).long()
            nameless = Dataset("people", domain, rows, decided)
            with pytest.raises(NeuronFairError, match="needs the favourable outcome"):
                fairness.check_groups(biased, nameless, "disparate_impact < 0.5")
            named = replace(domain, target=Target("hired", ("no", "yes")), favourable="yes")
            data = Dataset("people", named, rows, decided)
            passed = fairness.check_groups(biased, data, "disparate_impact < 0.5", "selection_rate.difference > 40%")
            assert [check.fired for check in passed] == [False, False]
            with pytest.raises(NeuronFairError, match="expected thresholds on disparate_impact"):
                fairness.check_groups(biased, data, "rate > 1%")
            with pytest.raises(NeuronFairError, match="got none"):
                fairness.check_groups(biased, data)
            constant = networks.one_biased_neuron(weight=0.0)
            with torch.no_grad():
                constant[-1].bias += torch.tensor([1e6, 0.0])
            with pytest.raises(AssertionError, match="gave the same decision to every record"):
                fairness.check_groups(constant, data, "disparate_impact < 0.5")
            fairness.check_groups(biased, data, "disparate_impact < 0.99", "disparate_impact < 0.5")
            """
        )
    )
    assert text.count("Disparate-impact ratio by s:") == 1
    assert "the lower end is below 0.99" in text


def test_files_a_table_and_sensitive_attributes(outcome):
    text = said(
        outcome(
            """
                        from neuronfair.domain.schema.toml import format_domain
            both = networks.sex_and_race()
            pathlib.Path("both.toml").write_text(format_domain(both))
            model = networks.one_biased_pair()
            data = Dataset("people", both, networks.uniform_rows(both, 50), torch.zeros(50).long())
            # For 12.93% of the sums sex 1 with race D flips: by sex alone that concerns race D, 1 in 5.
            checked = fairness.check(model, data, sensitive="sex", max_rate=0.25)
            assert [rate.population for rate in checked.rates] == ["pairs", "table", "plausible", "domain"]
            assert 0.02 < checked.rates[2].rate < 0.035
            assert checked.rate is checked.rates[0]  # 50 rows show less
            few = CheckSettings(seeds=9, steps=9)
            fairness.check(model, "both.toml", sensitive=["sex", "race"], max_rate=0.1, settings=few)
            """
        )
    )
    assert "depends on sex and race" in text


def test_past_counterexamples_must_be_fixed(outcome, pytester):
    def finding(*codes: int):
        row = {f"a{i}": code for i, code in enumerate(codes)} | {"s": 0}
        return reports.finding(row=row, changed=(Change("s", 0, 1),))

    path = pytester.path / "cases.jsonl"
    worst = (finding(5, 5, 5, 4), finding(0, 0, 0, 0))
    extend(read_regression_set(path, networks.domain()), reports.report(reports.attribute("s", worst=worst)))
    text = said(outcome("fairness.check(biased, domain, max_rate=0.2, regression_set='cases.jsonl')"))
    assert "1 of 2 past counterexamples in cases.jsonl still flip:" in text
    assert "a0 5, a1 5, a2 5, a3 4, s 0: gets class 0; with s 1: class 1" in text
    assert "is allowed" not in text
    outcome(
        "assert fairness.check(fair, domain, regression_set='cases.jsonl').regression_set.fixed == 2"
    ).assert_outcomes(passed=1)
    path.write_text(path.read_text().replace('"a3":', '"b3":', 1))
    text = said(outcome("fairness.check(fair, domain, regression_set='cases.jsonl')"))
    assert "1 of 2 past counterexamples in cases.jsonl no longer fit the domain, so they were not evaluated:" in text
    assert "line 1: " in text


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("fair, domain, max_rate=0", "max_rate must lie between 0 and 1"),
        ("fair, domain, regression_set='none.jsonl'", "no such regression set"),
        ("fair, domain, regresion_set='none.jsonl'", "there is no option 'regresion_set'"),
        ("fair, domain, prooved=0.9", "there is no option 'prooved'"),
        ("fair, domain, max_rates=0.5", "there is no option 'max_rates'"),
        ("fair, 'none.toml'", "none.toml"),
        ("3, domain", "or a function of a table, got an int"),
        ("'none.onnx', domain", "none.onnx"),
        ("fair, domain, sensitive='t'", "'t' is not a column"),
    ],
)
def test_mistakes_are_told(outcome, call, says):
    assert says in said(outcome(f"fairness.check({call})"))


def test_tests_with_like_names_have_folders_of_their_own(pytester, monkeypatch):
    monkeypatch.chdir(pytester.path)
    pytester.makepyfile(
        """
        import pytest

        seen = set()

        @pytest.mark.parametrize("name", ["a/b", "a:b", "long" * 50, "x" + "long" * 50])
        def test_it(fairness, name):
            assert fairness._folder not in seen
            seen.add(fairness._folder)
        """
    )
    pytester.runpytest_inprocess("-q").assert_outcomes(passed=4)


def test_without_a_cache_it_works_too(outcome):
    outcome("fairness.check(fair, domain)", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_pytest_starts_without_torch_and_leaves_threads_alone(tmp_path, monkeypatch):
    """Unless a test asks for the fixture: other people's tests are none of our business."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    seen = "print(sorted({'torch', 'numpy', 'neuronfair'} & set(sys.modules)), os.environ.get('OMP_WAIT_POLICY'))"
    lines = ["import os, sys", "def test_it():", f"    {seen}", "def test_used(fairness):", f"    {seen}"]
    (tmp_path / "test_it.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "neuronfair",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("[] None\n.['neuronfair', 'numpy', 'torch'] PASSIVE\n.")
    shown = subprocess.run([*command[:3], "--fixtures", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert "Check models for discrimination" in shown.stdout
