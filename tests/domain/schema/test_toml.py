from __future__ import annotations

from datetime import date

import numpy as np
import pytest

from neuronfair import read_domain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.cells import count_days
from neuronfair.domain.rules import MAX_CONDITIONS, Span
from neuronfair.domain.schema.toml import allowed_codes, format_condition, format_domain, parse_domain, read_conditions
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import limit_domain
from neuronfair.errors import DomainError
from neuronfair.limits import TooLargeError
from neuronfair.model.encoding import TableEncoding
from tests.conftest import PEOPLE


def test_kinds_choose_their_encoding(people):
    chosen = {a.name: a.encode for a in people.attributes}
    assert chosen["age"] == chosen["gain"] == "scaled"
    assert chosen["loss"] == chosen["sex"] == "raw"
    assert chosen["race"] == "onehot"
    everything_raw = parse_domain('encode = "raw"\n' + PEOPLE)
    assert TableEncoding.of(everything_raw).width == 7


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[attributes]", "[atributes]", "unknown entry 'atributes'.*Did you mean 'attributes'"),
        ('kind = "ordinal", low = 17', "low = 17", "attribute 'age': kind is missing"),
        ("low = 17", "lo = 17", "attribute 'age': unknown entry 'lo'"),
        ("low = 17", 'low = "17"', "attribute 'age': low must be a number"),
        ("low = 17, high = 90,", "low = 17,", "attribute 'age': give either low and high"),
        ('values = ["F", "M"]', 'values = "F"', "expected a list"),
        ("if = {", "iff = {", "rule 'a husband or wife is married': unknown entry 'iff'"),
        ("then = {", "# then = {", "needs either forbid"),
        ('relationship = ["Husband", "Wife"] }', 'relation = ["Husband"] }', "no attribute 'relation'"),
        ('["Husband", "Wife"]', '["Husbnd"]', "unknown value 'Husbnd'.*Did you mean 'Husband'"),
        ("{ min = 0.5 }", "{ minn = 0.5 }", "unknown entry 'minn'"),
        ("{ min = 0.5 }", "{}", "needs a number for min or max"),
        ('marital = ["Married", "AF"]', "marital = { min = 1 }", "has labels, not numbers"),
        ('classes = ["low", "high"]', 'classes = ["low", "low"]', "at least two different classes"),
        ('target = { column = "income",', "target = {", "target: write target"),
        ("name = ", 'outside = "maybe"\nname = ', "outside must be"),
        ("age = {", "age = 3\nx = {", "attribute 'age': expected a table"),
        ("[attributes]", "[attributes", "Expected"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    assert old in PEOPLE
    path = tmp_path / "people.toml"
    path.write_text(PEOPLE.replace(old, new, 1))
    with pytest.raises(DomainError, match=message) as caught:
        read_domain(path)
    assert str(caught.value).startswith(str(path))


def test_unreadable_files(tmp_path):
    with pytest.raises(DomainError, match="No such file"):
        read_domain(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DomainError, match="not a text file"):
        read_domain(tmp_path / "binary.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(DomainError, match="attributes: expected a table"):
        read_domain(tmp_path / "empty.toml")


def test_a_file_that_would_take_too_much_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "people.toml"
    path.write_text(PEOPLE)
    read_domain(path)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(100 * len(PEOPLE)))
    with pytest.raises(TooLargeError, match=r"people\.toml: would take"):
        read_domain(path)


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 100_000) + " = 1",
        "[" + " . ".join(["a"] * 100_000) + "]",
        '[[ "a".' + '\'b\'."\\"".' * 50_000 + "c]]",
        "x = {y = 1, " + ".".join(["1"] * 100_000) + " = 1}",
    ],
)
def test_keys_of_many_parts_are_refused_at_once(text):
    with pytest.raises(DomainError, match="a key has too many parts"):
        parse_domain(text)


def test_dots_in_labels_and_numbers_are_no_parts_of_a_key(people):
    label = ".".join(map(str, range(40)))
    changed = PEOPLE.replace('"Husband"', f'"{label}"').replace("low = 0, high = 50", "low = 0.0, high = 50.0")
    assert label in parse_domain(f'description = "{label}"\n' + changed).attributes[2].values


def test_many_attributes(people):
    lines = "".join(f'a{i} = {{ kind = "flag" }}\n' for i in range(3000))
    domain = parse_domain(f'sensitive = ["a2999"]\n[attributes]\n{lines}')
    assert domain.sensitive_columns == (2999,)
    assert TableEncoding.of(domain).width == 3000
    assert domain.count == 2**3000
    assert not domain.keys_are_exact


def test_rules_with_too_many_conditions_are_refused():
    rules = '[[rules]]\nforbid = { sex = "F" }\n' * (MAX_CONDITIONS + 1)
    with pytest.raises(DomainError, match="1,001 conditions; 1,000 at most"):
        parse_domain(PEOPLE.partition("[[rules]]")[0] + rules)


def test_the_tables_of_rules_are_limited(monkeypatch):
    """A condition on 100,000 values takes a byte for each, and their classes 32."""
    text = PEOPLE.replace("high = 20", "high = 99999")
    parse_domain(text)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "3300000")
    with pytest.raises(TooLargeError, match="the tables of the rules"):
        parse_domain(text)


def test_one_hot_blocks_are_limited(monkeypatch):
    """Four blocks, of which the largest has 100,000 values: 400,000 places of up to 32 bytes."""
    block = 'big = { kind = "ordinal", low = 0, high = 99999, encode = "onehot" }'
    text = PEOPLE.replace("loss = { kind", f"{block}\nloss = {{ kind")
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "12800000")
    assert TableEncoding.of(parse_domain(text)).width == 100_000 + 14
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "12799999")
    with pytest.raises(TooLargeError, match="the one-hot blocks"):
        TableEncoding.of(parse_domain(text))


def test_rules_that_multiply_are_refused_before_they_do(monkeypatch):
    """Ten attributes of which each of 100 values is a case of its own: 100, 10,000, … cases."""
    names = [f"a{i}" for i in range(10)]
    text = 'sensitive = ["a0"]\n[attributes]\n'
    text += "".join(f'{name} = {{ kind = "ordinal", low = 0, high = 99 }}\n' for name in names)
    for value in range(90):
        text += f"[[rules]]\nforbid = {{ {', '.join(f'{name} = {value}' for name in names)} }}\n"
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "10000000")
    with pytest.raises(TooLargeError, match="the cases of the rules"):
        parse_domain(text)


def test_the_class_that_people_hope_for(people):
    text = PEOPLE.replace("[attributes]", 'favourable = "high"\n[attributes]', 1)
    domain = parse_domain(text)
    assert domain.favourable == "high"
    assert parse_domain(format_domain(domain)) == domain
    assert domain.fingerprint == people.fingerprint
    assert people.favourable is None
    with pytest.raises(DomainError, match="favourable 'hihg' is not a class of the target"):
        parse_domain(text.replace('"high"\n', '"hihg"\n'))


def test_dates_are_written_as_dates():
    text = """
    sensitive = ["sex"]
    [attributes]
    sex = { kind = "flag", values = ["F", "M"] }
    born = { kind = "ordinal", low = 1970-01-02, high = 1971-01-01, date = "iso" }
    [[rules]]
    name = "only men before 1970-02-01"
    if = { born = { max = 1970-01-31 } }
    then = { sex = "M" }
    """
    domain = parse_domain(text)
    rows = domain.from_table({"sex": ["F", "F", "M"], "born": ["1970-01-31", "1970-02-01", "1970-01-02"]})
    assert rows.tolist() == [[0, 29], [0, 30], [1, 0]]
    assert domain.valid(rows).tolist() == [False, True, True]
    assert parse_domain(format_domain(domain)) == domain
    with pytest.raises(DomainError, match="'born': other must be a text, is 3"):
        parse_domain(text.replace('date = "iso"', 'date = "iso", other = 3'))


def test_an_attribute_that_no_model_is_given(people):
    text = PEOPLE.replace("sex = { kind", 'sex = { encode = "none", kind')
    domain = parse_domain(text)
    assert [a.name for a in domain.attributes if not a.is_input] == ["sex"]
    assert parse_domain(format_domain(domain)).fingerprint == domain.fingerprint != people.fingerprint
    # What a network sees is the same as where the column does not exist.
    assert (
        domain.input_fingerprint
        == limit_domain(people.with_sensitive("race"), {*people.names} - {"sex"}).input_fingerprint
    )
    assert domain.input_fingerprint != people.input_fingerprint
    with pytest.raises(DomainError, match='every attribute has encode = "none"'):
        parse_domain('encode = "none"\nsensitive = ["sex"]\n[attributes]\nsex = { kind = "flag" }\n')


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
        # as a rule of a domain file has them
        ("age = { min = 27 }", "age", [7, 8, 9]),
        ("age = { min = 22, max = 23 }", "age", [2, 3]),
        ("age = [20, 29]", "age", [0, 9]),
        ('school = ["Masters", "Doctorate"]', "school", [2, 3]),
        ('"job type" = ["rock and roll"]', "job type", [1]),
        ('rate = ["missing", 0.5]', "rate", [5, 11]),
        ("born = { min = 1970-01-09 }", "born", [8, 9]),
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
    attribute = Attribute(
        "day", "ordinal", low=count_days(date(2020, 1, 1)), high=count_days(date(2020, 1, 31)), date="iso"
    )
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
        ("age", "cannot be read from 'age' on. Write conditions such as"),
        ("age 25", "cannot be read from 'age 25' on"),
        ("> 25", "cannot be read from '> 25' on"),
        ("and age > 25", "cannot be read from 'and age > 25' on"),
        ("age > 25 and", "cannot be read from 'and' on"),
        ("age >= and sex == M", "cannot be read from 'age >= and sex == M' on"),
        ("age > 25 or sex == M", "cannot be read from 'age > 25 or sex == M' on"),
        ("'job type' == rock and roll", "cannot be read from 'roll' on"),
        ("age > 25 25", "cannot be read from"),
        ("age in 25", "cannot be read from"),
        ("age not 25", "cannot be read from"),
        ("age in [25", "cannot be read from"),
        ("age in [25 26]", "cannot be read from"),
        ("age in []", "cannot be read from"),
        ("school == 'Masters", "cannot be read from"),
        ("age >== 25", "cannot be read from"),
        ("age = 25 } x = {", "cannot be read from"),
        ("age = { min = 25 }, sex = { max = 1 }", "'sex' has labels, not numbers"),
        ("age = { least = 25 }", "cannot be read from"),
        ("age." + "a." * 40 + "a = { }", "cannot be read from"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text, reason):
    with pytest.raises(DomainError, match=reason) as caught:
        allowed_codes(DOMAIN, text)
    assert str(caught.value).startswith(f"where '{text}': ")
    assert "\n" not in str(caught.value)


def test_both_ways_of_writing_are_conditions_of_rules():
    text = "age >= 22 and age < 25 and school in [Masters, Doctorate]"
    assert read_conditions(DOMAIN, text) == [
        ("age", Span(22, 29)),
        ("age", Span(20, 24)),
        ("school", ("Masters", "Doctorate")),
    ]
    text = 'age = { min = 22, max = 24 }, school = ["Masters", "Doctorate"]'
    assert read_conditions(DOMAIN, text) == [("age", Span(22, 24)), ("school", ("Masters", "Doctorate"))]


def test_ranges_of_large_numbers_are_exact():
    large = Attribute("large", "ordinal", low=10**7, high=10**7 + 99)
    domain = TableDomain("d", (large, DOMAIN.attributes[-1]), sensitive=("sex",))
    assert allowed_codes(domain, f"large > {10**7 + 6}")[0].nonzero()[:, 0].tolist() == list(range(7, 100))


@pytest.mark.parametrize("text", ["age in [" + "'a', " * 3000, "age > 20 and " * 1000, "age > 20 and " * 3000])
def test_long_texts_are_refused_at_once(text):
    with pytest.raises(DomainError):
        allowed_codes(DOMAIN, text)


def test_codes_are_written_as_conditions_that_are_read_again():
    draw = np.random.default_rng(1)
    for column, attribute in enumerate(DOMAIN.attributes):
        for _ in range(40):
            met = draw.random(attribute.size) < draw.random()
            if met.any():
                text = format_condition(attribute, met)
                assert np.array_equal(allowed_codes(DOMAIN, text)[column].numpy(), met), text
