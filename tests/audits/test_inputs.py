"""What is audited, from whatever a user gives: the columns that the model reads, and the sensitive ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from neuronfair import load_dataset, parse_domain, read_domain
from neuronfair.audits.inputs import UNREAD, ModelSource, read_input
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import DataError, DomainError, ModelError


def read(table, *, model=None, columns=None, **how):
    """Read a table for a model."""
    return read_input(table, ModelSource(model, columns=columns), **how)


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
    found = read(PEOPLE, model=reading("number", "sex", "age"), sensitive="sex", target="hired")
    assert found.data.domain.names == ("number", "age", "sex")
    assert (found.inferred, found.reads) == (True, ("number", "sex", "age"))
    assert found.left_out == (ExcludedColumn("id", UNREAD), ExcludedColumn("job", UNREAD))
    assert parse_domain(found.domain_text).names == found.data.domain.names
    everything = read(PEOPLE, sensitive=["sex"], target="hired")
    assert everything.data.domain.names == ("age", "job", "sex")
    assert everything.reads is None
    assert [one.column for one in everything.left_out] == ["id", "number"]  # by what they are


def test_a_sensitive_attribute_that_is_not_read_stays():
    found = read(PEOPLE, model=reading("age"), sensitive=["sex", "job"], target="hired")
    assert found.data.domain.names == ("age", "job", "sex")
    assert found.reads == ("age",)


def test_a_domain_file_is_limited_with_its_rules(tmp_path):
    path = tmp_path / "people.toml"
    path.write_text(DOMAIN)
    found = read(PEOPLE, model=reading("age", "job_smith", "job_cook"), domain=path)  # the bad ids do not matter
    assert found.data.domain.names == ("age", "job", "sex")
    assert [rule.name for rule in found.data.domain.rules] == ["no old smiths"]
    assert found.left_out == (ExcludedColumn("id", UNREAD),)
    assert found.domain_text.startswith('# Without "id": the model does not read it.\n')
    assert parse_domain(found.domain_text).fingerprint == found.data.domain.fingerprint
    whole = read(PEOPLE | {"id": [7] * 30}, domain=read_domain(path), sensitive="job")
    assert (whole.data.domain.names, whole.domain_text) == (("id", "age", "job", "sex"), None)
    assert whole.data.domain.sensitive == ("job",)
    assert read(PEOPLE | {"id": [7] * 30}, domain=str(path)).domain_text == DOMAIN


def test_data_is_limited():
    data = read_table(PEOPLE | {"id": [7] * 30}, parse_domain(DOMAIN))
    found = read(data, model=reading("job", "age"))
    assert found.data.domain.names == ("age", "job", "sex")
    assert found.data.rows.tolist() == data.rows[:, 1:].tolist()
    assert found.data.labels is data.labels
    same = read(load_dataset("german"), model=len).data
    assert same.domain.fingerprint == load_dataset("german").domain.fingerprint


def test_a_missing_column_is_reported_at_once():
    with pytest.raises(ModelError, match=r"reads a column 'aeg', which the table does not have\..*Did you mean 'age'"):
        read(PEOPLE, model=reading("aeg", "sex"), sensitive="sex", target="hired")
    with pytest.raises(ModelError, match=r"reads a column 'number', which the domain does not have\. Add it"):
        read(PEOPLE, model=reading("age", "number"), domain=parse_domain(DOMAIN))
    with pytest.raises(ModelError, match="reads the target 'hired' itself"):
        read(PEOPLE, model=reading("age", "hired"), sensitive="sex", target="hired")


def test_the_model_is_asked_before_the_table_is_read():
    with pytest.raises(ModelError, match="there is no such file"):
        read("no-such.csv", model="no-such.onnx", sensitive="sex", target="hired")


def test_what_does_not_go_together_is_refused():
    domain = parse_domain(DOMAIN)
    with pytest.raises(DataError, match="name a domain, or the sensitive attributes"):
        read(PEOPLE, target="hired")
    with pytest.raises(DataError, match="the domain names the target"):
        read(PEOPLE, domain=domain, target="hired")
    with pytest.raises(DataError, match="german: this table has its own domain"):
        read(load_dataset("german"), target="hired")


def test_rules_that_the_table_suggests_are_taken_over_where_the_domain_is_read_off_it():
    grade = [i % 4 for i in range(800)]
    table = {
        "grade": grade,
        "word": ["abcd"[g] for g in grade],
        "sex": ["f", "f", "f", "f", "m", "m", "m", "m"] * 100,
        "hired": ["no", "no", "no", "yes", "no"] * 160,
    }
    assert len(read(table, sensitive="sex", target="hired").data.domain.rules) == 4  # a copy is tied anyway
    table["word"][0] = "b"
    plain = read(table, sensitive="sex", target="hired")
    assert plain.data.domain.rules == ()
    assert "1 rule is suggested: see the end of the domain file; not used" in plain.remarks[-1]
    taken = read(table, sensitive="sex", target="hired", take_rules="free")
    assert len(taken.data.domain.rules) == 4
    assert int((~taken.data.domain.valid(taken.data.rows)).sum()) == 1


def test_rules_are_not_taken_over_into_a_domain_that_is_given():
    for table, domain in ((load_dataset("german"), None), (PEOPLE, parse_domain(DOMAIN))):
        with pytest.raises(DataError, match="take rules 'free': only for an inferred domain"):
            read(table, domain=domain, take_rules="free")


# What a model is not given


def blind() -> dict[str, object]:
    return {name: cells for name, cells in PEOPLE.items() if name != "sex"}


SEXES = {"sex": PEOPLE["sex"]}


def test_columns_beside_the_table_are_no_inputs():
    found = read(blind(), sensitive=SEXES, target="hired")
    assert (found.data.domain.names, found.not_inputs) == (("age", "job", "sex"), ("sex",))
    assert found.reads == ("age", "job")
    assert found.joined.names == ("sex",)
    assert read(blind(), model=reading("age"), sensitive=SEXES, target="hired").reads == ("age",)


def test_a_model_that_reads_what_stands_beside_the_table_is_refused(tmp_path):
    for name in ("sex", "sex_m"):
        with pytest.raises(ModelError, match="reads 'sex', which is no input: it is in sensitive values"):
            read(blind(), model=reading("age", name), sensitive=SEXES, target="hired")
    (tmp_path / "people.toml").write_text(DOMAIN.replace('kind = "flag"', 'kind = "flag", encode = "none"'))
    with pytest.raises(ModelError, match="reads 'sex', which is no input: the domain says encode = \"none\""):
        read(PEOPLE | {"id": [7] * 30}, model=reading("age", "sex"), domain=tmp_path / "people.toml")
    found = read(blind() | {"id": [7] * 30}, model=reading("age"), sensitive=SEXES, domain=tmp_path / "people.toml")
    assert (found.data.domain.names, found.not_inputs) == (("age", "sex"), ("sex",))


def test_a_domain_must_say_that_what_stands_beside_the_table_is_no_input():
    with pytest.raises(DomainError, match="'sex' is in a separate table, so it is no input of a model"):
        read(blind() | {"id": [7] * 30}, sensitive=SEXES, domain=parse_domain(DOMAIN))


def test_data_have_their_columns():
    with pytest.raises(DataError, match="german: this table has its own domain"):
        read(load_dataset("german"), sensitive=SEXES)


def of_width(width: int):
    """A model of so many inputs."""
    return nn.Sequential(nn.Linear(width, 3), nn.ReLU(), nn.Linear(3, 2))


def test_a_model_without_names_whose_width_fits_the_others_only_is_not_given_the_sensitive_ones(tmp_path):
    how = {"sensitive": "sex", "target": "hired"}
    found = read(PEOPLE, model=of_width(2), **how)  # age and job
    assert (found.not_inputs, found.reads) == (("sex",), ("age", "job"))
    assert found.remarks[-1] == "sex: no input of the model, which fits the other columns only"
    assert [a.name for a in parse_domain(found.domain_text).attributes if not a.is_input] == ["sex"]
    assert read(PEOPLE, model=of_width(3), **how).not_inputs == ()
    assert read(PEOPLE, model=of_width(7), **how).not_inputs == ()  # and is refused when it is opened
    path = tmp_path / "people.toml"
    path.write_text(DOMAIN)
    table = PEOPLE | {"id": [7] * 30}
    found = read(table, domain=path, model=of_width(4))  # id, age, two jobs
    assert (found.not_inputs, found.data.domain.names) == (("sex",), ("id", "age", "job", "sex"))
    assert parse_domain(found.domain_text).fingerprint == found.data.domain.fingerprint
    every = read(PEOPLE, model=of_width(1), sensitive=["sex", "age", "job"], target="hired")
    assert every.not_inputs == ()  # nothing would be left


def test_a_model_that_names_its_columns_is_not_opened():
    found = read(PEOPLE, model=reading("age"), sensitive="sex", target="hired")
    assert found.not_inputs == ()
