"""The checker's own reading of regions and rules means what the prover's does, and both mean what is written."""

from __future__ import annotations

import numpy as np
import pytest

from neuronfair.domain.rules import Rule, RuleBook, Span
from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.tables.dataset import catalog_domain
from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.region import find_region_codes, find_rule_masks
from tests.domain.schema.test_toml import DOMAIN

TEXTS = [
    "",
    "  ",
    "age >= 27",
    "age>27",
    "age<=22 AND age != 21",
    "age = 22.0",
    "age in [20, 25 to 27,29]",
    "age not in [20 to 27]",
    "age > 27.5",
    "income >= 7,000",
    "income in ['7,000', 8000]",
    "rate >= 0.3 and rate <= 0.7",
    "rate > 0.3 and rate < 0.7",
    "rate == missing",
    "rate != missing",
    "rate in [0.9 to 1, missing]",
    "rate = 0.44",  # which a continuous attribute rounds
    "school >= Masters",
    "school < Masters and sex == M",
    "school in [Bachelors to Masters]",
    "'job type' == Exec-managerial",
    '"job type" in [\'rock and roll\', "<50"]',
    r'"job type" = "a \"b\""',
    "born > 03.01.1970 and born <= 05.01.1970",
    "weight >= 0,5 and weight < 1,5",
    'age = { min = 22, max = 24 }, school = ["Masters", "Doctorate"]',
    '"job type" = ["rock and roll", "unheard of"], rate = ["missing", 0.5]',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_region_means_the_same_codes_to_checker_and_prover(text):
    for mine, theirs in zip(find_region_codes(DOMAIN, text), allowed_codes(DOMAIN, text), strict=True):
        assert np.array_equal(mine, theirs.numpy())


@pytest.mark.parametrize(
    "text",
    [
        *("aeg > 3", "school == Mastres", "'job type' == Clerk", "'job type' < C", "rate > missing", "age > nan"),
        *("born > 1970", "age == 22.5", "age", "age 25", "> 25", "and age > 25", "age > 25 and", "age > 25 or age < 3"),
        *("age in 25", "age in [25", "age in [25 26]", "age in []", "'age > 25", "age not 25", "age == 99", "age ! 5"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text):
    with pytest.raises(CertificateError, match=r"its region .* cannot be read") as refused:
        find_region_codes(DOMAIN, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["adult", "german", "bank", "compas"])
def test_rules_of_the_catalog_mean_the_same_to_checker_and_prover(name):
    domain = catalog_domain(name, "default")
    same_rules(domain, domain.rules)


def test_rules_of_every_kind_of_attribute_mean_the_same():
    rules = (
        Rule("a", {"age": Span(low=25)}, {"school": ("Masters", "Doctorate")}),
        Rule("b", {"rate": Span(0.3, 0.7), "sex": ("M",)}, {"rate": (0.5, "missing")}),
        Rule("c", {"born": ("03.01.1970", "04.01.1970")}, {}),
        Rule("d", {"weight": ("0,5", 1.0), "job type": ("C", "unheard of")}, {"age": (20, "21")}),
        Rule("e", {"income": (1000, 2000.0)}, {"sex": ("F",)}),
    )
    same_rules(DOMAIN, rules)


def same_rules(domain, rules):
    for rule, parts in zip(rules, RuleBook(domain.attributes, rules).conditions, strict=True):
        for mine, theirs in zip(find_rule_masks(domain, rule), parts, strict=True):
            assert [column for column, _ in mine] == [column for column, _ in theirs]
            assert all(np.array_equal(a, b.numpy()) for (_, a), (_, b) in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("when", "then"),
    [
        ({"height": Span(low=1)}, {}),
        ({"school": Span(low=1)}, {}),
        ({"school": ("None",)}, {}),
        ({"age": (99,)}, {}),
        ({}, {"age": (20,)}),
    ],
)
def test_rules_that_name_what_there_is_not_are_refused(when, then):
    with pytest.raises(CertificateError):
        find_rule_masks(DOMAIN, Rule("odd", when, then))
