"""The graph of causes: what it refuses, what it leaves alone, and what stands in for an attribute that goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair.domain.attribute import Attribute, check_graph, graph
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import limited
from neuronfair.errors import DomainError


def attributes(**causes):
    return tuple(
        Attribute(name, "flag", values=("no", "yes"), causes=None if of is None else tuple(of))
        for name, of in causes.items()
    )


def test_columns_that_others_depend_on():
    assert graph(attributes(sex="", job=["sex"], pay=["job", "sex"])) == {0: [], 1: [0], 2: [1, 0]}
    assert graph(attributes(sex=None, job=["sex"], pay=None)) == {0: [], 1: [0], 2: []}
    assert graph(attributes(sex=None, job=None)) is None


@pytest.mark.parametrize("reads", [check_graph, graph])
def test_a_circle_and_an_unknown_cause_are_refused_in_a_sentence(reads):
    with pytest.raises(
        DomainError, match=r"^causes go round in a circle: '\w+' -> '\w+' -> '\w+'. Remove one of them$"
    ):
        reads(attributes(sex=None, job=["pay"], pay=["job"]))
    with pytest.raises(DomainError, match=r"^causes go round in a circle: 'job' -> 'job'"):
        reads(attributes(sex=None, job=["job"]))
    with pytest.raises(DomainError, match=r"^attribute 'job': causes names 'sxe', which is no attribute.*'sex'"):
        reads(attributes(sex=None, job=["sxe"]))


def test_the_causes_of_an_attribute_that_is_left_out_stand_in_for_it():
    domain = TableDomain("people", attributes(sex=None, school=["sex"], job=["school", "sex"], pay=["job"]), ("sex",))
    fewer = limited(domain, {"sex", "pay"})
    assert [a.causes for a in fewer.attributes] == [(), ("sex",)]
    fewer = limited(domain, {"sex", "school", "pay"})
    assert [a.causes for a in fewer.attributes] == [(), ("sex",), ("school", "sex")]


def test_a_graph_stays_one_where_all_that_has_causes_is_left_out():
    domain = TableDomain("people", attributes(sex=None, age=None, pay=["sex"]), ("sex",))
    assert graph(limited(domain, {"sex", "age"}).attributes) == {0: [], 1: []}


def test_what_is_said_of_counterparts_is_written_and_read():
    sex, job, pay, age = attributes(sex=None, job=["sex"], pay=["job", "sex"], age=())
    domain = TableDomain("people", (sex, replace(job, legitimate=True), pay, replace(age, fixed=True)), ("sex",))
    again = parse_domain(format_domain(domain))
    assert again.attributes == domain.attributes
    assert [(a.fixed, a.legitimate, a.causes) for a in again.attributes] == [
        (False, False, None),
        (False, True, ("sex",)),
        (False, False, ("job", "sex")),
        (True, False, ()),
    ]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("causes = [3]", "pay.*causes"),
        ("fixed = 1", "pay.*fixed"),
        ("fixed = true, legitimate = true", "pay.*is fixed and legitimate: say one of the two"),
        ('causes = ["pay"]', "circle"),
        ('causes = ["pya"]', "'pya', which is no attribute"),
    ],
)
def test_a_domain_file_that_says_it_wrongly_is_refused_in_a_sentence(entry, says):
    flag = 'kind = "flag", values = ["no", "yes"]'
    with pytest.raises(DomainError, match=says) as error:
        parse_domain(f'sensitive = ["sex"]\n[attributes]\nsex = {{ {flag} }}\npay = {{ {flag}, {entry} }}\n')
    assert "\n" not in str(error.value)
