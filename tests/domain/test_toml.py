from __future__ import annotations

import pytest

from neuronfair import read_domain
from neuronfair.domain.toml import parse_domain
from neuronfair.errors import DomainError
from neuronfair.network.encoding import TableEncoding
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
