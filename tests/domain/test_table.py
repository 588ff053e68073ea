from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import Neighbours
from neuronfair.errors import DomainError
from tests.conftest import PEOPLE

DOMAIN = parse_domain(PEOPLE)
WILD = st.lists(st.tuples(*(st.integers(-5, a.size + 5) for a in DOMAIN.attributes)), min_size=1, max_size=20)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(row: list[int]) -> bool:
    """The bounds and the two rules of PEOPLE, written out."""
    _, _, relationship, marital, _, gain, loss = row
    inside = all(0 <= c < a.size for c, a in zip(row, DOMAIN.attributes, strict=True))
    return inside and not (relationship in (0, 1) and marital == 2) and not (gain >= 1 and loss >= 1)


@given(WILD)
def test_valid_agrees_with_the_rules_by_hand(rows):
    assert DOMAIN.valid(torch.tensor(rows)).tolist() == [by_hand(list(r)) for r in rows]


@given(WILD)
def test_clip_gives_valid_rows_and_leaves_valid_rows_alone(rows):
    rows = torch.tensor(rows)
    clipped = DOMAIN.clip(rows)
    assert DOMAIN.valid(clipped).all()
    assert torch.equal(DOMAIN.clip(clipped), clipped)
    valid = DOMAIN.valid(rows)
    assert torch.equal(clipped[valid], rows[valid])


@settings(max_examples=30)
@given(st.lists(st.tuples(*(st.integers(0, 3) for _ in range(4))), min_size=1, max_size=5))
def test_clip_changes_as_few_attributes_as_any_valid_row_can(rows):
    attributes = tuple(Attribute(n, "nominal", values=("a", "b", "c", "d")) for n in "wxyz")
    rules = (
        Rule("r1", {"w": ("a", "b")}, {"x": ("a",)}),
        Rule("r2", {"x": ("a",), "y": ("b", "c")}, {}),
    )
    domain = TableDomain("small", attributes, ("z",), rules)
    everything = torch.tensor(list(itertools.product(range(4), repeat=4)))
    valid = everything[domain.valid(everything)]
    for row, clipped in zip(torch.tensor(rows), domain.clip(torch.tensor(rows)), strict=True):
        assert (clipped != row).sum() == (valid != row).sum(1).min()
        assert clipped[3] == row[3]  # the sensitive value need not move


def test_clip_prefers_the_short_way(people):
    row = people.from_table(_person(gain=[0.5], loss=[20]))
    assert people.to_table(people.clip(row))["gain"] == [0]
    row = people.from_table(_person(gain=[50], loss=[1]))
    assert people.to_table(people.clip(row))["loss"] == [0]


def test_count_is_exact_and_sampling_reaches_every_valid_row_alike():
    attributes = (
        Attribute("a", "ordinal", low=0, high=4),
        Attribute("b", "ordinal", low=0, high=3),
        Attribute("s", "flag"),
    )
    domain = TableDomain("tiny", attributes, ("s",), (Rule("not both", {"a": Span(low=1), "b": Span(low=2)}, {}),))
    everything = torch.tensor(list(itertools.product(range(5), range(4), range(2))))
    valid = everything[domain.valid(everything)]
    assert domain.count == len(valid) == 2 * (1 * 4 + 4 * 2)
    drawn = domain.sample(48_000, generator())
    assert domain.valid(drawn).all()
    _, counts = torch.unique(drawn, dim=0, return_counts=True)
    assert len(counts) == len(valid)
    # 24 cells of 2,000 expected draws each: chi-square with 23 degrees of freedom stays below 60 (p < 0.00005).
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 60


def test_sampling_is_valid_where_rejection_would_starve():
    wide = tuple(Attribute(n, "ordinal", low=0, high=99_999) for n in "ab")
    domain = TableDomain(
        "wide", (*wide, Attribute("s", "flag")), ("s",), (Rule("one", {"a": Span(1), "b": Span(1)}, {}),)
    )
    rows = domain.sample(10_000, generator())
    assert domain.valid(rows).all()
    share = float((rows[:, 0] > 0).double().mean())
    assert abs(share - 0.5) < 0.03  # half of the valid rows have a > 0


def test_twins_are_all_other_combinations():
    domain = DOMAIN.with_sensitive("sex", "race")
    row = domain.sample(4, generator())
    twins, valid = domain.twins(row)
    assert twins.shape == (4, 5, 7)
    assert valid.all()
    for i in range(4):
        pairs = {tuple(p) for p in twins[i][:, [1, 4]].tolist()} | {tuple(row[i, [1, 4]].tolist())}
        assert pairs == set(itertools.product(range(2), range(3)))
    rest = [0, 2, 3, 5, 6]
    assert (twins[:, :, rest] == row[:, None, rest]).all()


def test_members_of_a_family_by_their_number():
    domain = DOMAIN.with_sensitive("sex", "race")
    rows = domain.sample(4, generator())
    rows[3, 4] = 7  # outside the bounds: its twins are inside, it stays itself
    twins = domain.twins(rows).rows
    assert torch.equal(domain.member(rows, torch.zeros(4, dtype=torch.int64)), rows)
    for number in range(5):
        assert torch.equal(domain.member(rows, torch.full((4,), number + 1)), twins[:, number])
    assert torch.equal(
        domain.member(rows, torch.tensor([0, 2, 5, 0])), torch.stack([rows[0], twins[1, 1], twins[2, 4], rows[3]])
    )


def test_twins_that_break_a_rule_do_not_count():
    rules = (Rule("no doctorate before 25", {"degree": ("doctor",)}, {"age": Span(low=25)}),)
    attributes = (Attribute("age", "ordinal", low=20, high=29), Attribute("degree", "flag", values=("none", "doctor")))
    domain = TableDomain("d", attributes, ("age",), rules)
    twins, valid = domain.twins(torch.tensor([[7, 1], [7, 0], [2, 1]]))
    assert [sorted(twins[0, valid[0], 0].tolist()), int(valid[1].sum())] == [[5, 6, 8, 9], 9]
    assert int(valid[2].sum()) == 9  # a row that breaks the rule itself, as real rows may, is still comparable


def test_key_ignores_sensitive_columns_and_tells_all_other_rows_apart(people):
    rows = people.sample(20_000, generator())
    twins, _ = people.twins(rows)
    assert torch.equal(people.key(twins[:, 0]), people.key(rows))
    others = [i for i in range(7) if i not in people.sensitive_columns]
    assert people.keys_are_exact
    assert len(torch.unique(people.key(rows))) == len(torch.unique(rows[:, others], dim=0))


def test_hashed_keys_tell_many_rows_apart():
    domain = TableDomain("flags", tuple(Attribute(f"f{i}", "flag") for i in range(401)), ("f7",))
    assert not domain.keys_are_exact
    rows = domain.sample(20_000, generator())
    neighbours = rows.repeat(2, 1)
    neighbours[20_000:, 3] ^= 1
    assert len(torch.unique(domain.key(neighbours))) == 40_000
    neighbours[20_000:] = rows
    neighbours[20_000:, 7] ^= 1
    assert len(torch.unique(domain.key(neighbours))) == 20_000


@given(st.integers(0, 2**31))
def test_rows_round_trip_through_the_table(seed):
    rows = DOMAIN.sample(50, generator(seed))
    assert torch.equal(DOMAIN.from_table(DOMAIN.to_table(rows)), rows)


def test_describe_speaks_words(people):
    text = people.describe(people.from_table(_person())[0])
    assert text == "age 30, sex M, relationship Wife, marital Married, race B, gain 2.5, loss 0"


def test_fingerprint_follows_the_content_not_the_sensitive_choice(people):
    assert people.fingerprint == people.with_sensitive("race").fingerprint == parse_domain(PEOPLE).fingerprint
    assert people.fingerprint != parse_domain(PEOPLE.replace("high = 90", "high = 91")).fingerprint
    assert people.fingerprint != parse_domain(PEOPLE.replace("min = 0.5", "min = 1.0")).fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gender",), r"sensitive attribute 'gender' is not a column"),
        (("sexx",), r"Did you mean 'sex'\?"),
        ((), "no sensitive attribute is named"),
        (("sex", "sex"), "named twice"),
    ],
)
def test_wrong_sensitive_attributes(people, change, message):
    with pytest.raises(DomainError, match=message):
        people.with_sensitive(*change)


def test_a_sensitive_attribute_with_one_value_is_refused():
    attributes = (Attribute("a", "ordinal", low=0, high=3), Attribute("s", "nominal", values=("only",)))
    with pytest.raises(DomainError, match="has one value only"):
        TableDomain("one", attributes, ("s",))


def test_rules_that_forbid_every_row_are_refused():
    attributes = (Attribute("a", "flag"), Attribute("s", "flag"))
    rules = (Rule("never 0", {"a": (0,)}, {}), Rule("never 1", {"a": (1,)}, {}))
    with pytest.raises(DomainError, match="forbid every row: never 0; never 1"):
        TableDomain("none", attributes, ("s",), rules)


def test_a_missing_column_is_named(people):
    table = _person()
    del table["marital"]
    table["maritl"] = ["Married"]
    with pytest.raises(DomainError, match=r"column 'marital' is missing.*Did you mean 'maritl'\?"):
        people.from_table(table)


def test_count_of_a_huge_domain_does_not_overflow():
    domain = TableDomain("flags", tuple(Attribute(f"f{i}", "flag") for i in range(401)), ("f7",))
    assert domain.count == 2**401
    assert math.isfinite(float(domain.sample(3, generator()).sum()))


def _person(**cells: list[object]) -> dict[str, list[object]]:
    person: dict[str, list[object]] = {"age": [30], "sex": ["M"], "relationship": ["Wife"], "marital": ["Married"]}
    return person | {"race": ["B"], "gain": [2.5], "loss": [0]} | cells


COLUMN = st.tuples(st.integers(1, 5), st.booleans(), st.booleans())  # points, whether ordered, with an empty cell


@given(st.lists(COLUMN, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_value_goes_one_step_inwards_or_anywhere_else(columns, random):
    points = torch.tensor([many for many, _, _ in columns])
    sizes = points + torch.tensor([int(empty) for _, _, empty in columns])
    ordered = torch.tensor([in_order for _, in_order, _ in columns])
    rows = torch.tensor([[random.randrange(size) for size in sizes.tolist()] for _ in range(8)])
    u = torch.tensor([[random.random() for _ in columns] for _ in range(8)], dtype=torch.float64)
    near = Neighbours.of(sizes, points, ordered).draw(rows, u)
    for row, numbers, there in zip(rows.tolist(), u.tolist(), near.tolist(), strict=True):
        for code, v, to, (many, in_order, empty) in zip(row, numbers, there, columns, strict=True):
            size = many + empty
            if in_order and many > 1 and code < many:
                step = -1 if v < 0.5 else 1
                assert to == (code + step if 0 <= code + step < many else code - step)
            else:
                assert to == (code + 1 + int(v * (size - 1))) % size


def test_nothing_is_made_anew_where_all_are_ordered():
    near = Neighbours.of(torch.tensor([3, 2]), torch.tensor([3, 2]), torch.tensor([True, True]))
    assert len(near.others) == 0
    rows, u = torch.tensor([[0, 1], [1, 0], [2, 1]]), torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.9, 0.4]])
    assert near.draw(rows, u.double()).tolist() == [[1, 0], [2, 1], [1, 0]]


def test_methods_of_other_packages_may_use_the_former_name_of_the_changeable_codes():
    assert DOMAIN.free.tolist() == [name not in DOMAIN.sensitive for name in DOMAIN.names]
