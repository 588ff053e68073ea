from __future__ import annotations

import pytest

from neuronfair import read_domain
from neuronfair.domain.rules import MAX_CONDITIONS
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.tables.dataset import limited
from neuronfair.errors import DomainError
from neuronfair.limits import TooLarge
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
    with pytest.raises(TooLarge, match=r"people\.toml: would take"):
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
    with pytest.raises(TooLarge, match="the tables of the rules"):
        parse_domain(text)


def test_one_hot_blocks_are_limited(monkeypatch):
    """Four blocks, of which the largest has 100,000 values: 400,000 places of up to 32 bytes."""
    block = 'big = { kind = "ordinal", low = 0, high = 99999, encode = "onehot" }'
    text = PEOPLE.replace("loss = { kind", f"{block}\nloss = {{ kind")
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "12800000")
    assert TableEncoding.of(parse_domain(text)).width == 100_000 + 14
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "12799999")
    with pytest.raises(TooLarge, match="the one-hot blocks"):
        TableEncoding.of(parse_domain(text))


def test_rules_that_multiply_are_refused_before_they_do(monkeypatch):
    """Ten attributes of which each of 100 values is a case of its own: 100, 10,000, … cases."""
    names = [f"a{i}" for i in range(10)]
    text = 'sensitive = ["a0"]\n[attributes]\n'
    text += "".join(f'{name} = {{ kind = "ordinal", low = 0, high = 99 }}\n' for name in names)
    for value in range(90):
        text += f"[[rules]]\nforbid = {{ {', '.join(f'{name} = {value}' for name in names)} }}\n"
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "10000000")
    with pytest.raises(TooLarge, match="the cases of the rules"):
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
        domain.input_fingerprint == limited(people.with_sensitive("race"), {*people.names} - {"sex"}).input_fingerprint
    )
    assert domain.input_fingerprint != people.input_fingerprint
    with pytest.raises(DomainError, match='every attribute has encode = "none"'):
        parse_domain('encode = "none"\nsensitive = ["sex"]\n[attributes]\nsex = { kind = "flag" }\n')
