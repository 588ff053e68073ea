"""People, decisions and rules in plain words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import BlackBox, Decision, TableDomain
from neuronfair.audits.report.attribute import Change, Condition, Finding
from neuronfair.audits.wording import phrases
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.counterfactuals import fit_counterfactuals, with_counterfactuals
from neuronfair.measure.groups import RuleTerm, Subgroup
from neuronfair.measure.rate import Rate
from neuronfair.testing.cases import uniform_rows

ARGMAX = Decision()


def pair(
    people: TableDomain, columns: list[int], *, age: int = 39, decision: Decision = ARGMAX, scores=None
) -> Finding:
    table = {"age": age, "sex": "F", "relationship": "Wife", "marital": "AF", "race": "B", "gain": 2.5, "loss": 0}
    twin = table | {"sex": "M"}
    rows = people.from_table({name: [table[name], twin[name]] for name in table})
    one, other = torch.tensor([[2.0, 0.5], [-1.0, 0.5]]) if scores is None else scores
    return phrases.report_finding(people, decision, phrases.DescribedPair(*rows, one, other), columns, 17, "frontier")


def test_a_pair(people):
    told = pair(people, [6, 0, 1, 5, 2, 3, 4])
    assert told.sentence == (
        "A 39-year-old with relationship Wife, marital AF, race B, gain 2.5 and loss 0 gets 'low'; with sex M "
        "instead of F: 'high'."
    )
    assert told.changed == (Change("sex", "F", "M"),)
    assert (told.decision, told.twin_decision) == ("low", "high")
    # The lead of "low": 2 - 0.5 before, -1 - 0.5 after.
    assert (told.score, told.twin_score, told.gap) == (1.5, -1.5, 3.0)


def test_a_pair_of_a_person_and_a_counterfactual(people, monkeypatch):
    beside = with_counterfactuals(people, fit_counterfactuals(people, uniform_rows(people, 200)))
    table = {"age": 39, "sex": "F", "relationship": "Wife", "marital": "AF", "race": "B", "gain": 2.5, "loss": 0}

    def told(domain, **twin) -> str:
        both = domain.from_table({name: [table[name], {**table, **twin}[name]] for name in table})
        scores = torch.tensor([[2.0, 0.5], [-1.0, 0.5]])
        return phrases.report_finding(
            domain, ARGMAX, phrases.DescribedPair(*both, *scores), list(range(7)), 0, "frontier"
        ).sentence

    assert told(beside, sex="M", relationship="Husband", gain=3, age=41) == (
        "A person with marital AF, race B and loss 0 gets 'low'; the counterfactual twin with sex M instead of F (also "
        "age 41 instead of 39, relationship Husband instead of Wife and gain 3 instead of 2.5): 'high'."
    )
    assert told(beside, sex="M").endswith(
        "; the counterfactual twin with sex M instead of F (nothing else differs): 'high'."
    )
    # Whatever domain it is told with, somebody who differs in more than the group is a counterfactual.
    assert "; the counterfactual twin with sex M instead of F (also loss 3 instead of 0): " in told(
        people, sex="M", loss=3
    )
    monkeypatch.setattr(phrases.describe_twin, "__defaults__", (1,))
    assert "(also age 41 instead of 39 and 2 more attributes)" in told(beside, sex="M", loss=3, gain=0, age=41)


def test_the_most_telling_attributes_are_named(people, monkeypatch):
    monkeypatch.setattr(phrases, "MAX_NAMED_ATTRIBUTES", 2)
    assert pair(people, [5, 1, 4, 0]).sentence.startswith("A person with race B, gain 2.5 and 4 more attributes gets")
    monkeypatch.setattr(phrases, "MAX_NAMED_ATTRIBUTES", 5)
    assert " and 1 more attribute gets" in pair(people, [0, 2, 3, 4, 5, 6]).sentence


@pytest.mark.parametrize(("age", "who"), [(18, "An 18-year-old"), (80, "An 80-year-old"), (17, "A 17-year-old")])
def test_ages(people, age, who):
    assert pair(people, [0, 2], age=age).sentence.startswith(f"{who} with ")


def test_the_number_of_a_bin_is_no_age(people):
    ages = Attribute("age", "ordinal", low=0, high=9), Attribute("age", "ordinal", values=("17", "39", "90"))
    for age, value in zip(ages, (4, 39), strict=True):
        binned = replace(people, attributes=(age, *people.attributes[1:]))
        assert pair(binned, [0, 4], age=value).sentence.startswith(f"A person with age {value}, race B and ")


def test_140_attributes_stay_readable():
    columns = tuple(Attribute(f"question_{i}", "ordinal", low=0, high=9) for i in range(140))
    domain = TableDomain("wide", (*columns, Attribute("sex", "flag")), ("sex",))
    rows = torch.zeros(2, 141, dtype=torch.int64)
    rows[1, 140] = 1
    both = phrases.DescribedPair(*rows, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    told = phrases.report_finding(domain, ARGMAX, both, list(range(141)), 0, "frontier")
    assert len(told.sentence) < 250
    assert "question 0 0" in told.sentence
    assert "133 more attributes gets 'class 0'; with sex 1 instead of 0: 'class 1'." in told.sentence
    assert len(told.row) == 141


@pytest.mark.parametrize(
    ("decision", "scores", "said"),
    [
        (Decision("threshold", 0.5), (0.7, 0.2), ("high", "low")),
        (Decision("threshold", 0.5), (0.5, 0.4999), ("high", "low")),
        (Decision("tolerance", 0.1), (0.7, 0.25), ("a score of 0.7", "a score of 0.25")),
    ],
)
def test_scores(people, decision, scores, said):
    told = pair(people, [0], decision=decision, scores=torch.tensor(scores)[:, None])
    assert (told.decision, told.twin_decision) == said
    assert (told.score, told.twin_score) == pytest.approx(scores)
    assert told.gap == pytest.approx(scores[0] - scores[1], abs=1e-6)
    unnamed = replace(people, target=None)
    told = pair(unnamed, [0], decision=Decision("threshold", 0.5), scores=torch.tensor([[0.7], [0.2]]))
    assert (told.decision, told.twin_decision) == ("at least 0.5", "below 0.5")


def test_probabilities_are_told_where_scores_have_them(people):
    """Of 'low': e^2 / (e^2 + e^0.5) = 0.818 before, e^-1 / (e^-1 + e^0.5) = 0.182 after."""
    rows = people.from_table(
        {
            name: [value] * 2
            for name, value in dict(zip(people.names, (39, "F", "Wife", "AF", "B", 2.5, 0), strict=True)).items()
        }
    )
    rows[1, people.column("sex")] = 1 - rows[0, people.column("sex")]
    pair = phrases.DescribedPair(*rows, *torch.tensor([[2.0, 0.5], [-1.0, 0.5]]))
    told = phrases.report_finding(people, ARGMAX, pair, [0], 0, "frontier", "logits")
    assert (told.outcome, told.probability) == ("low", pytest.approx(0.8176, abs=1e-4))
    assert told.twin_probability == pytest.approx(0.1824, abs=1e-4)
    assert told.sentence.endswith(": 'high' (probability of 'low' 82% → 18%).")
    assert (told.score, told.twin_score) == (1.5, -1.5)  # margins stay
    hoped = phrases.report_finding(replace(people, favourable="high"), ARGMAX, pair, [0], 0, "frontier", "logits")
    assert (hoped.outcome, hoped.probability) == ("high", pytest.approx(0.1824, abs=1e-4))


def test_numbers_of_a_regression_have_the_digits_that_tell(people):
    scores = torch.tensor([[0.0460000000000003], [0.1469999]], dtype=torch.float64)
    told = pair(people, [0], decision=Decision("tolerance", 0.05), scores=scores)
    assert told.sentence.endswith("gets a score of 0.046; with sex M instead of F: a score of 0.147.")
    assert told.probability is told.twin_probability is told.outcome is None


def cut(domain: TableDomain, name: str, *codes: int) -> RuleTerm:
    column = domain.column(name)
    table = torch.zeros(domain.attributes[column].size, dtype=torch.bool)
    table[list(codes)] = True
    return RuleTerm(column, table)


def test_subgroups(people):
    cuts = (cut(people, "age", *range(24, 74)), cut(people, "race", 0, 2), cut(people, "gain", *range(3, 7)))
    told = phrases.report_subgroup(people, Subgroup(cuts, 0.2, 0.5, Rate(38, 100, "domain"), 5.0))
    assert told.text == "age at least 41, race A or C and gain 1.5 to 3"
    assert told.conditions == (
        Condition("age", min=41),
        Condition("race", values=("A", "C")),
        Condition("gain", min=1.5, max=3),
    )
    assert told.sentence == (
        "Records with age at least 41, race A or C and gain 1.5 to 3: the decision depends on sex for 38% of them, 5 "
        "times the overall rate."
    )
    assert (told.rate.of, told.rate.discriminated, told.lift) == (100, 38, 5.0)
    told = phrases.report_subgroup(
        people, Subgroup((cut(people, "loss", 0, 1),), 0.2, 0.5, Rate(38, 100, "domain"), None)
    )
    assert told.conditions == (Condition("loss", max=1),)
    assert told.sentence == "Records with loss at most 1: the decision depends on sex for 38% of them."


def test_nobody_can_be_asked_about(people):
    """Shrinking asks about whoever is left, and that may be nobody."""
    nobody = torch.empty(0, 7, dtype=torch.int64)
    assert people.with_sensitive("relationship").twins(nobody).valid.shape == (0, 3)

    def only_somebody(x):
        assert len(x)
        return x[:, 0]

    model = BlackBox.of_inputs(only_somebody, people)
    assert model.scores(nobody).shape == (0, 1)


def test_a_sensitive_attribute_that_stays_is_named(people):
    """Of sex and race only sex differs: the race of both belongs to the person."""
    told = pair(people.with_sensitive("sex", "race"), [6, 0, 1, 5, 2, 3])
    assert told.changed == (Change("sex", "F", "M"),)
    assert told.sentence.startswith(
        "A 39-year-old with relationship Wife, marital AF, race B, gain 2.5 and loss 0 gets 'low'; with sex M "
    )
    assert pair(people.with_sensitive("sex", "race"), [0]).sentence.startswith(
        "A 39-year-old with race B and 4 more attributes gets"
    )
