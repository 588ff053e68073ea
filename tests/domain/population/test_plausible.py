"""A domain of plausible people, with populations by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population import plausible as module
from neuronfair.domain.population.model import fit_population
from neuronfair.domain.population.plausible import PlausibleDomain, keep_plausible, with_plausible_twins
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.testing.cases import Young
from tests.planted.networks import domain, uniform_rows

WHOLE = domain(attributes=3)  # a0, a1, a2 on 0 to 9, and s
TABLE = torch.tensor([[code, 0, 0, code % 2] for code in range(10)])
INSIDE = keep_plausible(WHOLE, Young(WHOLE), 0.5, TABLE)  # a0 is 0 to 4: 1 - 4/9 is 0.56, 1 - 5/9 is 0.44


def rows(*codes: list[int]) -> Tensor:
    return torch.tensor(codes)


def test_who_exists():
    people = rows([4, 9, 9, 1], [5, 0, 0, 0], [0, 10, 0, 0], [0, 0, 0, -1])
    assert INSIDE.valid(people).tolist() == [True, False, False, False]
    assert WHOLE.valid(people).tolist() == [True, True, False, False]
    assert INSIDE.records.tolist() == TABLE[:5].tolist()
    assert INSIDE.is_restricted
    assert not WHOLE.is_restricted
    assert INSIDE.twins(people[:1]).valid.all()


def test_moves_go_as_far_as_they_stay_inside():
    start = rows([2, 2, 2, 1], [2, 2, 2, 1], [2, 2, 2, 1], [4, 2, 2, 1])
    goals = rows([4, 3, 2, 0], [7, 3, 2, 0], [7, 2, 2, 0], [99, 99, 2, 0])
    moved = INSIDE.move(start, goals)
    assert moved.tolist() == [[4, 3, 2, 1], [2, 3, 2, 1], [2, 2, 2, 1], [4, 9, 2, 1]]
    assert start[0].tolist() == [2, 2, 2, 1]  # what is given stays as it is
    assert WHOLE.move(start, goals)[1].tolist() == [7, 3, 2, 1]


def test_which_attributes_can_change_alone(monkeypatch):
    start, goals = rows([2, 2, 2, 1], [4, 0, 0, 0]), rows([4, 9, 10, 0], [5, -1, 0, 1])
    for at_once in (1, module.BATCH_CELLS):
        monkeypatch.setattr(module, "BATCH_CELLS", at_once)
        assert INSIDE.can_change(start, goals).tolist() == [[True, True, False, True], [False, False, True, True]]


@dataclass(frozen=True)
class Asked(Young):
    """One number per person: the first code."""

    @property
    def draws_per_row(self) -> int:
        return 1

    def rows_at(self, u: Tensor) -> Tensor:
        return torch.cat([(u * 10).long(), torch.ones(len(u), 3, dtype=torch.int64)], 1)


def test_random_rows_are_the_first_plausible_person_drawn_or_one_of_the_table():
    inside = keep_plausible(WHOLE, Asked(WHOLE), 0.5, TABLE)
    assert inside.draws_per_row == module.TRIES_PER_ROW + 1 == 5
    u = torch.tensor([[0.3, 0.2, 0.1, 0.0, 0.9], [0.9, 0.8, 0.2, 0.1, 0.9], [0.9, 0.8, 0.7, 0.6, 0.5]])
    assert inside.rows_at(u.double()).tolist() == [[3, 1, 1, 1], [2, 1, 1, 1], TABLE[2].tolist()]
    drawn = inside.sample(200, torch.Generator().manual_seed(0))
    assert inside.valid(drawn).all()
    assert torch.equal(drawn, inside.sample(200, torch.Generator().manual_seed(0)))


def test_it_stays_what_it_is():
    wide = keep_plausible(domain(attributes=3), Young(WHOLE), 0.5, TABLE).with_sensitive("a1").to("cpu")
    assert isinstance(wide, PlausibleDomain)
    assert wide.sensitive == ("a1",)
    assert wide.valid(rows([5, 0, 0, 0], [4, 0, 0, 0])).tolist() == [False, True]
    assert INSIDE.fingerprint == WHOLE.fingerprint  # the files of models belong to both
    assert INSIDE.clip(rows([9, 10, 0, 0])).tolist() == [[9, 9, 0, 0]]


def test_many_rows_are_asked_about_in_parts(monkeypatch):
    asked = []

    class Counted(Young):
        def plausibility(self, rows: Tensor) -> Tensor:
            asked.append(len(rows))
            return super().plausibility(rows)

    monkeypatch.setattr(module, "BATCH_CELLS", 4 * 4)  # cells, and four attributes
    inside = keep_plausible(WHOLE, Counted(WHOLE), 0.5, TABLE)
    assert asked == [4, 4, 2]
    assert torch.equal(inside.valid(TABLE), INSIDE.valid(TABLE))
    assert inside.valid(TABLE[:0]).tolist() == []


def test_nobody_to_start_from():
    with pytest.raises(NeuronFairError, match=r"planted: 4 of 10 rows of the table .* 0.6 or more, and 5 are needed"):
        keep_plausible(WHOLE, Young(WHOLE), 0.6, TABLE)
    with pytest.raises(NeuronFairError, match=r"none of the 5 rows to start from has a plausibility of 0\.5 or more"):
        INSIDE.among(TABLE[5:])
    assert INSIDE.among(TABLE[4:]).tolist() == TABLE[4:5].tolist()
    assert INSIDE.among(TABLE[:0]).tolist() == []


def test_about_so_many_of_the_table_are_inside():
    table = uniform_rows(WHOLE, 500) // torch.tensor([2, 3, 1, 1])
    inside = keep_plausible(WHOLE, fit_population(WHOLE, table), 0.2, table)
    # Ties stay together, and rows that a model was fitted to are more usual in it than others.
    assert 0.8 <= len(inside.records) / len(table) < 0.95


FAMILY = TableDomain(
    "family",
    (
        Attribute("relation", "nominal", values=("Husband", "Wife", "single")),
        Attribute("age", "ordinal", low=20, high=59),
        Attribute("sex", "flag", values=("Female", "Male")),
    ),
    ("sex",),
)


def families_of(count: int, seed: int = 0) -> Tensor:
    """Two in five are husbands, one in five a wife, the others of either sex; one husband is female."""
    g = torch.Generator().manual_seed(seed)
    relation = torch.multinomial(torch.tensor([0.4, 0.2, 0.4]), count, replacement=True, generator=g)
    sex = torch.where(relation == 2, torch.randint(2, (count,), generator=g), (relation == 0).long())
    made = torch.stack([relation, torch.randint(40, (count,), generator=g), sex], 1)
    made[int((relation == 0).nonzero()[0]), 2] = 0
    return made


@pytest.mark.parametrize("count", [2000, 5000])
def test_a_female_husband_is_no_plausible_twin_and_everybody_else_has_one(count):
    people = families_of(count)
    population = fit_population(FAMILY, people)
    pairs = with_plausible_twins(FAMILY, population, people)
    single = people[:, 0] == 2
    exists = pairs.twins(people).valid[:, 0]
    real = (people[:, 0] == 0) & (people[:, 2] == 0)  # the one who is in the data set: his like are many
    assert exists[single].all()
    assert not exists[~single & ~real].any()
    assert exists[real].all()
    # As a whole, such a record is not rare: the 1st likelihood percentile alone would let most of them pass.
    twins = FAMILY.twins(people[~single]).rows[:, 0]
    assert population.plausibility(twins).max() > module.MIN_PLAUSIBILITY
    assert torch.equal(pairs.twins(people).rows, FAMILY.twins(people).rows)
    assert torch.equal(pairs.to("cpu").twins(people).valid[:, 0], exists)


def test_a_small_group_is_a_plausible_twin():
    """One in a hundred is of group b, whatever else they are: rare overall, and not because of the rest."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randint(10, (4000, 4), generator=g)
    rows[:, 3] = (torch.rand(4000, generator=g) < 0.01).long()
    pairs = with_plausible_twins(WHOLE, fit_population(WHOLE, rows), rows)
    assert pairs.twins(rows).valid.all()


def test_what_is_overall_adds_up_to_one_and_who_breaks_bounds_counts_as_the_nearest():
    people = families_of(1000)
    pairs = with_plausible_twins(FAMILY, fit_population(FAMILY, people), people)
    assert float(pairs.twinning.overall.exp().sum()) == pytest.approx(1)
    assert float(pairs.twinning.overall.exp()[1]) == pytest.approx(float(people[:, 2].double().mean()), abs=0.02)
    beyond, inside = rows([2, 41, 1], [0, 99, 1]), rows([2, 39, 1], [0, 39, 1])
    assert torch.equal(pairs.twins(beyond).valid, pairs.twins(inside).valid)
