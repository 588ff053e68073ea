"""What is audited, from whatever a user gives: the columns that the model reads, and the sensitive ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from neuronfair import load, parse_domain, read_domain
from neuronfair.domain.column import LeftOut
from neuronfair.domain.data import read_table
from neuronfair.errors import DataError, ModelError
from neuronfair.verdict.given import UNREAD, given

PEOPLE = {
    "id": range(1, 31),
    "number": [f"n{i}" for i in range(30)],  # every cell is different: by itself it would be left out
    "age": [20, 31, 42, 53, 64] * 6,
    "job": ["cook", "smith", "cook"] * 10,
    "sex": ["f", "m"] * 15,
    "hired": ["no", "yes", "yes"] * 10,
}
DOMAIN = """
sensitive = ["sex"]
target = { column = "hired", classes = ["no", "yes"] }
[attributes]
id = { kind = "ordinal", low = 1, high = 20 }  # the table has more
age = { kind = "ordinal", low = 18, high = 80 }
job = { kind = "nominal", values = ["cook", "smith"] }
sex = { kind = "flag", values = ["f", "m"] }
[[rules]]
name = "no old smiths"
forbid = { job = "smith", age = { min = 70 } }
[[rules]]
name = "the first are young"
if = { id = { max = 3 } }
then = { age = { max = 60 } }
"""


def reading(*names: str) -> SimpleNamespace:
    """A model that says what it reads."""
    return SimpleNamespace(feature_names_in_=list(names))


def test_an_inferred_domain_has_what_the_model_reads_and_nothing_else():
    found = given(PEOPLE, model=reading("number", "sex", "age"), sensitive="sex", target="hired")
    assert found.data.domain.names == ("number", "age", "sex")
    assert (found.inferred, found.reads) == (True, ("number", "sex", "age"))
    assert found.left_out == (LeftOut("id", UNREAD), LeftOut("job", UNREAD))
    assert parse_domain(found.text).names == found.data.domain.names
    everything = given(PEOPLE, sensitive=["sex"], target="hired")
    assert everything.data.domain.names == ("age", "job", "sex")
    assert everything.reads is None
    assert [one.column for one in everything.left_out] == ["id", "number"]  # by what they are


def test_a_sensitive_attribute_that_is_not_read_stays():
    found = given(PEOPLE, model=reading("age"), sensitive=["sex", "job"], target="hired")
    assert found.data.domain.names == ("age", "job", "sex")
    assert found.reads == ("age",)


def test_a_domain_file_is_limited_with_its_rules(tmp_path):
    path = tmp_path / "people.toml"
    path.write_text(DOMAIN)
    found = given(PEOPLE, model=reading("age", "job_smith", "job_cook"), domain=path)  # the bad ids do not matter
    assert found.data.domain.names == ("age", "job", "sex")
    assert [rule.name for rule in found.data.domain.rules] == ["no old smiths"]
    assert found.left_out == (LeftOut("id", UNREAD),)
    assert found.text.startswith('# Without "id": the model does not read it.\n')
    assert parse_domain(found.text).fingerprint == found.data.domain.fingerprint
    whole = given(PEOPLE | {"id": [7] * 30}, domain=read_domain(path), sensitive="job")
    assert (whole.data.domain.names, whole.text) == (("id", "age", "job", "sex"), None)
    assert whole.data.domain.sensitive == ("job",)
    assert given(PEOPLE | {"id": [7] * 30}, domain=str(path)).text == DOMAIN


def test_data_is_limited():
    data = read_table(PEOPLE | {"id": [7] * 30}, parse_domain(DOMAIN))
    found = given(data, model=reading("job", "age"))
    assert found.data.domain.names == ("age", "job", "sex")
    assert found.data.rows.tolist() == data.rows[:, 1:].tolist()
    assert found.data.labels is data.labels
    same = given(load("german"), model=len).data
    assert same.domain.fingerprint == load("german").domain.fingerprint


def test_a_missing_column_is_reported_at_once():
    with pytest.raises(ModelError, match=r"reads a column 'aeg', which the table does not have\..*Did you mean 'age'"):
        given(PEOPLE, model=reading("aeg", "sex"), sensitive="sex", target="hired")
    with pytest.raises(ModelError, match=r"reads a column 'number', which the domain does not have\. Add it"):
        given(PEOPLE, model=reading("age", "number"), domain=parse_domain(DOMAIN))
    with pytest.raises(ModelError, match="reads the target 'hired' itself"):
        given(PEOPLE, model=reading("age", "hired"), sensitive="sex", target="hired")


def test_the_model_is_asked_before_the_table_is_read():
    with pytest.raises(ModelError, match="there is no such file"):
        given("no-such.csv", model="no-such.onnx", sensitive="sex", target="hired")


def test_what_does_not_go_together_is_refused():
    domain = parse_domain(DOMAIN)
    with pytest.raises(DataError, match="name a domain, or both the sensitive attributes and the target"):
        given(PEOPLE, sensitive="sex")
    with pytest.raises(DataError, match="the domain names the target"):
        given(PEOPLE, domain=domain, target="hired")
    with pytest.raises(DataError, match="german: this table has its own domain"):
        given(load("german"), target="hired")


def test_rules_that_the_table_suggests_are_taken_over_where_the_domain_is_read_off_it():
    grade = [i % 4 for i in range(400)]
    table = {
        "grade": grade,
        "word": ["abcd"[g] for g in grade],
        "sex": ["f", "f", "f", "f", "m", "m", "m", "m"] * 50,
        "hired": ["no", "no", "no", "yes", "no"] * 80,
    }
    plain = given(table, sensitive="sex", target="hired")
    assert plain.data.domain.rules == ()
    assert "1 rule is suggested: see the end of the domain file; not used" in plain.remarks[-1]
    taken = given(table, sensitive="sex", target="hired", take_rules="free")
    assert len(taken.data.domain.rules) == 4
    assert taken.data.domain.valid(taken.data.rows).all()


def test_rules_are_not_taken_over_into_a_domain_that_is_given():
    for table, domain in ((load("german"), None), (PEOPLE, parse_domain(DOMAIN))):
        with pytest.raises(DataError, match="take rules 'free': for domains read off a table; this one is given"):
            given(table, domain=domain, take_rules="free")
