"""Conditions in words: the codes they mean are counted by hand."""

from __future__ import annotations

from datetime import date

import pytest
import torch

from neuronfair.domain.attribute import Attribute, as_days
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.proof.where import allowed_codes, condition, written

DOMAIN = TableDomain(
    "people",
    (
        Attribute("age", "ordinal", low=20, high=29),
        Attribute("rate", "continuous", low=0, high=1, step=0.1, missing="keep"),
        Attribute("income", "ordinal", low=0, high=9000, step=1000),
        Attribute("school", "ordinal", values=("Basic", "Bachelors", "Masters", "Doctorate")),
        Attribute("job type", "nominal", values=("Exec-managerial", "rock and roll", "<50", 'a "b"', "C"), other="C"),
        Attribute("born", "ordinal", low=0, high=9, date="%d.%m.%Y"),
        Attribute("weight", "continuous", low=0, high=2, step=0.5, decimal=","),
        Attribute("sex", "flag", values=("F", "M")),
    ),
    sensitive=("sex",),
)
PLACE = {name: i for i, name in enumerate(DOMAIN.names)}


def codes(text: str, name: str) -> list[int]:
    allowed = allowed_codes(DOMAIN, text)
    for other, table in zip(DOMAIN.names, allowed, strict=True):
        assert len(table) == DOMAIN.attributes[PLACE[other]].size
        assert other == name or table.all()
    return allowed[PLACE[name]].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("age >= 27", "age", [7, 8, 9]),
        ("age>27", "age", [8, 9]),
        ("age < 22", "age", [0, 1]),
        ("age<=22 AND age != 21", "age", [0, 2]),
        ("age == 22", "age", [2]),
        ("age = 22.0", "age", [2]),
        ("age in [20, 25 to 27,29]", "age", [0, 5, 6, 7, 9]),
        ("age not in [20 to 27]", "age", [8, 9]),
        ("age > 27.5", "age", [8, 9]),
        ("income >= 7,000", "income", [7, 8, 9]),
        ("income in ['7,000', 8000]", "income", [7, 8]),
        # 0.1 * 3 is not 0.3: neither end may be lost or gained by rounding.
        ("rate >= 0.3 and rate <= 0.7", "rate", [3, 4, 5, 6, 7]),
        ("rate > 0.3 and rate < 0.7", "rate", [4, 5, 6]),
        ("rate == missing", "rate", [11]),
        ("rate != missing", "rate", list(range(11))),
        ("rate != 0.5", "rate", [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]),
        ("rate in [0.9 to 1, missing]", "rate", [9, 10, 11]),
        ("school >= Masters", "school", [2, 3]),
        ("school < Masters", "school", [0, 1]),
        ("school in [Bachelors to Masters]", "school", [1, 2]),
        ("school in [Masters, Doctorate]", "school", [2, 3]),
        ("'job type' == Exec-managerial", "job type", [0]),
        ('"job type" in [\'rock and roll\', "<50"]', "job type", [1, 2]),
        ("'job type' == 'a \"b\"'", "job type", [3]),
        (r'"job type" = "a \"b\""', "job type", [3]),
        ("born > 03.01.1970 and born <= 05.01.1970", "born", [3, 4]),
        ("born == 03.01.1970", "born", [2]),
        ("weight >= 0,5 and weight < 1,5", "weight", [1, 2]),
        ("sex == M", "sex", [1]),
    ],
)
def test_conditions_mean_these_codes(text, name, expected):
    assert codes(text, name) == expected


def test_no_text_means_everybody_and_several_attributes_meet():
    assert all(table.all() for table in allowed_codes(DOMAIN, "  "))
    allowed = allowed_codes(DOMAIN, "income >= 5000 and school in [Masters, Doctorate] and income < 8000")
    assert allowed[PLACE["income"]].nonzero()[:, 0].tolist() == [5, 6, 7]
    assert allowed[PLACE["school"]].nonzero()[:, 0].tolist() == [2, 3]


def test_iso_dates_are_read_as_days():
    attribute = Attribute("day", "ordinal", low=as_days(date(2020, 1, 1)), high=as_days(date(2020, 1, 31)), date="iso")
    domain = TableDomain("d", (attribute, DOMAIN.attributes[-1]), sensitive=("sex",))
    assert int(allowed_codes(domain, "day >= 2020-01-30")[0].sum()) == 2


def test_an_attribute_of_any_size_may_stand_beside():
    wide = Attribute("wide", "ordinal", low=0, high=2**40)
    domain = TableDomain("d", (wide, *DOMAIN.attributes), sensitive=("sex",))
    assert len(allowed_codes(domain, "age > 25")[0]) == 2**40 + 1
    with pytest.raises(DomainError, match="'wide' has too many values"):
        allowed_codes(domain, "wide > 25")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("aeg > 3", r"no attribute 'aeg'. Known: .* Did you mean 'age'\?"),
        ("school == Mastres", r"attribute 'school': unknown value 'Mastres'. .* Did you mean 'Masters'\?"),
        ("school >= Mastres", r"unknown value 'Mastres'. .* Did you mean 'Masters'\?"),
        ("'job type' == Clerk", "unknown value 'Clerk'"),  # though a table's cell would count as C
        ("'job type' < C", "'job type' has no order. Name the values"),
        ("rate > missing", "expected a number, got 'missing'"),
        ("age > nan", "expected a number, got 'nan'"),
        ("born > 1970", r"expected a date such as 01\.01\.1970, got '1970'"),
        ("age == 22.5", "22.5 is not on the grid"),
        ("age > 40", "no value of 'age' is left. It runs from 20 to 29$"),
        ("rate > 1", "no value of 'rate' is left. It runs from 0 to 1, or is missing$"),
        ("school not in [Basic to Doctorate]", "no value of 'school' is left. Known: Basic, "),
        ("age > 25 and age < 24", "no value of 'age' is left"),
        ("age", "expected one of == .* behind 'age', nothing follows"),
        ("age 25", "expected one of == .* behind 'age', got '25'"),
        ("> 25", "expected the name of an attribute, got '>'"),
        ("and age > 25", "expected the name of an attribute, got 'and'"),
        ("age > 25 and", "expected a condition behind 'and', nothing follows"),
        ("age >= and sex == M", "expected a value, got 'and'"),
        ("age > 25 or sex == M", "expected 'and', got 'or'"),
        ("'job type' == rock and roll", "unknown value 'rock'|behind 'roll'"),
        ("age > 25 25", "expected 'and', got '25'"),
        ("age in 25", r"expected a list such as \[A, B\] behind 'in', got '25'"),
        ("age not 25", "expected 'in', got '25'"),
        ("age in [25", r"expected a comma or \], nothing follows"),
        ("age in [25 26]", r"expected a comma or \], got '26'"),
        ("age in []", r"expected a value, got '\]'"),
        ("school == 'Masters", "''Masters' cannot be read: a quote is not closed"),
        ("age >== 25", "expected a value, got '='"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text, reason):
    with pytest.raises(DomainError, match=reason) as caught:
        allowed_codes(DOMAIN, text)
    assert str(caught.value).startswith(f"where '{text}': ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "word",
    [
        "Masters",
        "rock and roll",
        "and",
        "To",
        "a,b",
        "",
        " ",
        "a'b",
        "'a",
        'a"b',
        "\\",
        'x\\"',
        "a!=b",
        "a!",
        "[",
        "<5",
        "a=b",
    ],
)
def test_every_word_can_be_written(word):
    domain = TableDomain(
        "d", (Attribute(f"{word}!", "nominal", values=(word, "other")), DOMAIN.attributes[-1]), sensitive=("sex",)
    )
    name = written(f"{word}!")
    for text in (f"{name} == {written(word)}", f"{name} in [{written(word)}]", f"{name}!={written('other')}"):
        assert torch.equal(allowed_codes(domain, text)[0], torch.tensor([True, False])), text


@pytest.mark.parametrize(
    ("name", "chosen", "text"),
    [
        ("age", range(10), ""),
        ("age", [9], "age == 29"),
        ("age", range(7, 10), "age >= 27"),
        ("age", range(9), "age <= 28"),
        ("age", range(2, 5), "age >= 22 and age <= 24"),
        ("age", [0, 1, 2, 3, 5, 6, 7, 8, 9], "age != 24"),
        ("age", [0, 1, 5, 9], "age not in [22 to 24, 26 to 28]"),
        ("age", [2, 3, 6], "age in [22 to 23, 26]"),
        ("rate", [11], "rate == missing"),
        ("rate", range(11), "rate != missing"),
        ("rate", range(3, 11), "rate >= 0.3"),
        ("rate", range(3, 12), "rate not in [0 to 0.2]"),
        ("rate", [2, 3, 11], "rate in [0.2 to 0.3, missing]"),
        ("rate", range(1, 3), "rate >= 0.1 and rate <= 0.2"),
        ("school", [2, 3], "school >= Masters"),
        ("job type", [0, 1], '"job type" in [Exec-managerial, "rock and roll"]'),
        ("job type", [0, 3, 4], '"job type" not in ["rock and roll", "<50"]'),
        ("born", [0, 1], "born <= 02.01.1970"),
        ("weight", [1, 3], 'weight in ["0,5", "1,5"]'),
        ("sex", [1], "sex == M"),
    ],
)
def test_codes_are_said_in_few_words_that_are_read_again(name, chosen, text):
    attribute = DOMAIN.attributes[PLACE[name]]
    table = torch.zeros(attribute.size, dtype=torch.bool)
    table[list(chosen)] = True
    assert condition(attribute, table) == text
    assert torch.equal(allowed_codes(DOMAIN, text)[PLACE[name]], table)


def test_all_sets_of_codes_are_read_as_they_are_written():
    generator = torch.Generator().manual_seed(1)
    for column, attribute in enumerate(DOMAIN.attributes):
        for _ in range(40):
            table = torch.rand(attribute.size, generator=generator) < torch.rand(1, generator=generator)
            if table.any():
                text = condition(attribute, table)
                assert torch.equal(allowed_codes(DOMAIN, text)[column], table), text
