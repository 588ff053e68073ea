"""An empty cell among numbers as a value of its own: `missing = "keep"`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from neuronfair.audits.stages.run_searches import _find_nearest
from neuronfair.audits.wording.phrases import _format_condition, report_condition
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.table import TableDomain, Target
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import DataError, DomainError
from neuronfair.measure.groups import RuleTerm, _list_conditions, _restrict_domain
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.frames import cells_of
from neuronfair.model.train import train
from neuronfair.searches.shrink import shrink
from neuronfair.store.tables import _read_codes, decode_codes

AGE = Attribute("age", "ordinal", low=20, high=23, encode="scaled", center=21, scale=2, missing="keep")
SEX = Attribute("sex", "nominal", values=("F", "M"))
HALF = Decision("threshold", 0.5)
EMPTY = 4  # after the codes of 20, 21, 22 and 23


def domain(*rules: Rule) -> TableDomain:
    return TableDomain("t", (AGE, SEX), ("sex",), rules=rules)


def test_it_has_the_last_code_and_is_called_missing():
    assert (AGE.size, AGE.grid_size, AGE.empty) == (5, 4, EMPTY)
    assert AGE.codes(["20", "", None, 23, float("nan"), "missing"]).tolist() == [0, 4, 4, 3, 4, 4]
    assert [AGE.value(code) for code in range(5)] == [20, 21, 22, 23, "missing"]
    for outside in ("error", "keep"):  # the code after the last would be that of an empty cell
        with pytest.raises(DomainError, match="24 is outside 20 to 23"):
            AGE.codes([24], outside=outside)
    assert AGE.codes([19], outside="keep").tolist() == [-1]
    plain = replace(AGE, missing=21)
    assert (plain.size, plain.empty, plain.codes([""]).tolist()) == (4, None, [1])
    label = Attribute("a", "nominal", values=("keep", "x"), missing="keep")  # a label of this name stays one
    assert (label.size, label.empty, label.codes([""]).tolist()) == (2, None, [0])


def test_rows_are_read_described_drawn_and_written_back():
    people = domain()
    rows = people.from_table({"age": ["", 22], "sex": ["F", "M"]})
    assert rows.tolist() == [[EMPTY, 0], [2, 1]]
    assert people.describe(rows[0]) == "age missing, sex F"
    assert people.from_table(people.to_table(rows)).tolist() == rows.tolist()
    assert people.count == 10
    drawn = people.sample(5000, torch.Generator().manual_seed(0))[:, 0]
    np.testing.assert_allclose(torch.bincount(drawn).numpy() / 5000, 0.2, atol=0.02)
    again = parse_domain(format_domain(people))
    assert again.fingerprint == people.fingerprint
    stored = decode_codes(AGE, rows[:, 0])
    assert stored.to_pylist() == [None, 22]
    assert _read_codes(AGE, pa.chunked_array([stored])).tolist() == [EMPTY, 2]
    assert cells_of(AGE)[3] == 23
    assert np.isnan(cells_of(AGE)[EMPTY])


def test_it_is_no_step_from_the_largest_number():
    people = domain()
    rows = torch.tensor([[0, 0], [3, 0], [EMPTY, 0]])
    for u, expected in ((0.1, [1, 2]), (0.9, [1, 2])):
        moved = people.neighbours(rows, torch.full((3, 2), u))[:, 0].tolist()
        assert moved[:2] == expected
        assert moved[2] in range(4)  # from there to any number
    lone = replace(AGE, high=20)
    small = TableDomain("t", (lone, SEX), ("sex",))
    assert small.neighbours(torch.tensor([[0, 0], [1, 0]]), torch.full((2, 2), 0.3))[:, 0].tolist() == [1, 0]


def test_rules_about_numbers_do_not_match_it():
    old = Rule("the old are men", {"age": Span(low=22)}, {"sex": ("M",)})
    people = domain(old)
    assert people.count == 10 - 2
    assert people.valid(torch.tensor([[EMPTY, 0], [3, 0]])).tolist() == [True, False]
    never = domain(Rule("nobody is old", {"age": Span(low=22)}, {}))
    assert never.clip(torch.tensor([[3, 0], [EMPTY, 0]])).tolist() == [[1, 0], [EMPTY, 0]]  # not missing instead
    known = domain(Rule("known", {"age": ("missing",)}, {}))
    assert known.clip(torch.tensor([[EMPTY, 1]])).tolist() == [[3, 1]]
    unknown = domain(Rule("unknown", {"age": Span()}, {}))
    assert unknown.clip(torch.tensor([[1, 1]])).tolist() == [[EMPTY, 1]]


def test_a_network_is_given_the_centre():
    encoding = TableEncoding.of(domain())
    rows = torch.tensor([[0, 0], [3, 0], [EMPTY, 1]])
    assert encoding.encode(rows)[:, 0].tolist() == [-0.5, 1.0, 0.0]
    raw = TableEncoding((replace(AGE, encode="raw", center=0.0),))  # 0 is outside: the middle of 20 and 23
    assert raw.encode(torch.tensor([[EMPTY], [1]])).tolist() == [[21.5], [21.0]]
    slope = torch.ones(3, encoding.width)
    effects = encoding.effects(slope, rows, torch.zeros(3, 1, dtype=torch.int64), torch.tensor([[EMPTY], [EMPTY], [0]]))
    assert effects.flatten().tolist() == [0.5, -1.0, -0.5]
    assert encoding.step_uphill(slope, rows)[:, 0].tolist() == [1, 3, EMPTY]
    block = TableEncoding((replace(AGE, encode="onehot"),))
    assert block.encode(torch.tensor([[EMPTY]])).tolist() == [[0, 0, 0, 0, 1]]


def test_people_without_the_number_are_a_group_of_their_own():
    people = domain()
    rows = torch.tensor([[EMPTY, 0], [EMPTY, 1], [3, 0], [0, 1]])
    cuts = [cut for cut in _list_conditions(people, rows, rows) if cut.column == 0]
    assert sum(bool(cut.mask[EMPTY]) for cut in cuts) == 1
    (lack,) = [cut for cut in cuts if cut.mask[EMPTY]]
    assert (_format_condition(AGE, lack), report_condition(people, lack).values) == ("age missing", ("missing",))
    assert _restrict_domain(people, (lack,)).count == 2
    high = RuleTerm(0, torch.tensor([False, False, True, True, False]))
    assert (_format_condition(AGE, high), report_condition(people, high).min) == ("age at least 22", 22)
    assert _restrict_domain(people, (high,)).count == 4


def test_it_is_as_far_from_every_number():
    people = domain()
    rows, table = torch.tensor([[3, 0], [EMPTY, 0]]), torch.tensor([[EMPTY, 0], [1, 0]])
    assert _find_nearest(people, rows, table).tolist() == [[1, 0], [EMPTY, 0]]
    flips = BlackBox(lambda rows: rows[:, 1] * (rows[:, 0] >= 2) * 1.0, people)  # from 22 on, and if missing
    shrunk = shrink(flips, people, torch.tensor([[EMPTY, 0], [3, 0]]), torch.tensor([[0, 0], [0, 0]]), HALF)
    assert shrunk.tolist() == [[EMPTY, 0], [2, 0]]  # nothing lies between a number and an empty cell


def test_drafts(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{20 + i % 4 if i % 5 else ''},{'FM'[i % 2]},{i * 1.5},{'yn'[i % 2]}" for i in range(120)]
    path.write_text("age,sex,price,y\n" + "\n".join(lines) + "\n")
    kept = infer_domain(path, sensitive=["sex"], target="y", keep_missing=True)
    assert kept.attributes[0].empty == 4
    assert (read_table(path, kept).rows[:, 0] == 4).sum() == 24
    filled = infer_domain(path, sensitive=["sex"], target="y")
    assert (filled.attributes[0].empty, filled.attributes[0].missing) == (None, 22)
    quantity = infer_domain(path, sensitive=["sex"], target="price")
    assert quantity.target == Target("price", ())
    assert parse_domain(format_domain(quantity)).target == quantity.target
    data = read_table(path, quantity)
    assert not data.labelled
    years = infer_domain(path, sensitive=["sex"], target="price", regression=True).to_toml()
    assert 'target = { column = "price" }' in years
    with pytest.raises(DataError, match="the target is a quantity; only classifiers are trained here"):
        train(data)
    with pytest.raises(DomainError, match="at least two different classes"):
        parse_domain('sensitive = "s"\ntarget = { column = "y", classes = [] }\n[attributes]\ns = { kind = "flag" }')


def test_numbers_have_the_digits_of_their_grid():
    decimal = Attribute("f", "continuous", low=-3.2, high=3.4, step=0.001)
    assert decimal.value(3246) == 0.046
    assert decimal.codes([decimal.value(code) for code in range(0, decimal.size, 7)]).tolist() == list(
        range(0, decimal.size, 7)
    )
    fine = Attribute("g", "continuous", low=0, high=1e6, step=1e-9)
    assert fine.value(3) == 3e-9
    assert Attribute("h", "ordinal", low=0, high=10**15, step=10**9).value(7) == 7 * 10**9
