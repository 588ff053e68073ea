"""Rules for groups, on models that discriminate in a known corner of the domain and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from neuronfair import BlackBox, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.model import UserPopulation
from neuronfair.errors import DomainError
from neuronfair.measure.groups import Subgroup, learn_subgroups
from neuronfair.measure.rate import flip_rate

Held = Callable[[np.ndarray], np.ndarray]
NOBODY = torch.empty(0, 7, dtype=torch.int64)


def domain() -> TableDomain:
    """`a0` … `a3` on 0 to 9, a job, a number with 2,001 values, and the sensitive flag `s`; 10 inputs."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(4)]
    job = Attribute("job", "nominal", values=("clerk", "smith", "judge", "baker"), encode="onehot")
    income = Attribute("income", "continuous", low=0, high=1000, step=0.5)
    return TableDomain("planted", (*columns, job, income, Attribute("s", "flag")), ("s",))


def where(held: Held, view: TableDomain, sensitive: int = -1) -> BlackBox:
    """A model whose second class wins where `held` and s = 1."""

    def predict(x: np.ndarray) -> np.ndarray:
        score = held(x) * x[:, sensitive]
        return np.stack([np.full(len(x), 0.5), score], 1)

    return BlackBox.of_inputs(predict, view)


def found(held: Held, findings: Tensor = NOBODY, samples: int = 5_000, seed: int = 0) -> tuple[Subgroup, ...]:
    model = where(held, domain())
    overall = flip_rate(model, domain(), samples=20_000)
    return learn_subgroups(model, domain(), findings, overall, samples=samples, seed=seed)


def meets(group: Subgroup, view: TableDomain | None = None) -> dict[str, list]:
    """The values that each condition allows."""
    view = view or domain()
    return {
        view.names[term.column]: [view.attributes[term.column].value(c) for c in term.mask.nonzero()[:, 0].tolist()]
        for term in group.conditions
    }


def corner(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] >= 7) & (x[:, 2] <= 4)


def test_a_corner_is_found_exactly():
    (group,) = found(corner)
    assert meets(group) == {"a0": [7, 8, 9], "a2": [0, 1, 2, 3, 4]}
    assert group.rate.rate == 1.0
    assert group.population_share == pytest.approx(0.3 * 0.5)
    assert group.lift == pytest.approx(1 / 0.15, rel=0.1)
    assert group.findings_share == 0.0
    # The intervals of up to five rules hold together: each may err five times less often.
    assert group.rate.interval[0] == pytest.approx((0.05 / 5 / 2) ** (1 / group.rate.sampled), abs=1e-6)


def test_a_range_and_labels():
    """In the middle of a1, for smiths and judges: inputs 5 and 6 are theirs."""
    (group,) = found(lambda x: (x[:, 1] >= 4) & (x[:, 1] <= 6) & (x[:, 5] + x[:, 6] > 0))
    assert meets(group) == {"a1": [4, 5, 6], "job": ["smith", "judge"]}
    assert group.population_share == pytest.approx(0.3 * 0.5)
    assert group.rate.rate == 1.0


def test_the_end_of_a_long_grid():
    """An attribute with many values is cut at quantiles, and where the discriminated people begin."""
    (group,) = found(lambda x: x[:, 8] >= 900)
    ((name, values),) = meets(group).items()
    assert name == "income"
    assert 895 <= values[0] <= 905
    assert values[-1] == 1000
    assert group.rate.rate > 0.9


def test_two_corners_give_two_rules():
    def held(x: np.ndarray) -> np.ndarray:
        return ((x[:, 0] >= 8) & (x[:, 1] >= 8)) | ((x[:, 2] <= 1) & (x[:, 3] <= 1))

    groups = found(held, samples=20_000)
    assert {tuple(meets(group)) for group in groups} == {("a0", "a1"), ("a2", "a3")}
    assert all(group.rate.rate == 1.0 for group in groups)


def test_findings_show_what_random_people_do_not():
    """The corner holds 1 in 50,000 people: rules are learned from findings and measured on new people."""
    rows = domain().sample(50, torch.Generator().manual_seed(1))
    rows[:, :3], rows[:, 5] = 9, 1990
    groups = found(lambda x: (x[:, :3] == 9).all(1) & (x[:, 8] >= 980), rows)
    assert groups
    assert groups[0].rate.interval[0] > 0.01
    assert groups[0].findings_share == 1.0
    assert set(meets(groups[0])) <= {"a0", "a1", "a2", "income"}
    assert len(groups[0].conditions) <= 3


def test_people_inside_did_not_choose_the_rule():
    """Only part of those inside are discriminated, so the measured rate is that part and not what was learned."""
    (group,) = found(lambda x: (x[:, 0] >= 7) & (np.mod(x[:, 8], 10) < 5))
    assert set(meets(group)) == {"a0"}
    assert group.rate.sampled == 5_000
    assert group.rate.interval[0] < 0.5 < group.rate.interval[1]


@pytest.mark.parametrize("everybody", [False, True])
def test_a_model_that_is_blind_or_hits_everybody_gives_none(everybody):
    assert found(lambda x: np.full(len(x), everybody)) == ()


def test_chance_gives_none():
    """Who is discriminated is as good as drawn: no rule stands the test on new people."""

    def held(x: np.ndarray) -> np.ndarray:
        return np.mod(7 * x[:, 0] + 3 * x[:, 1] + x[:, 2] + 9 * x[:, 3] + 26 * x[:, 8], 17) < 2

    assert found(held) == ()


def test_rules_of_the_domain_are_kept(people):
    """Only valid people are drawn and counted: a husband or wife has 2 of 3 marital values, the others all 3."""
    model = where(lambda x: x[:, 2], people, sensitive=1)
    overall = flip_rate(model, people, samples=20_000)
    (group,) = learn_subgroups(model, people, NOBODY, overall, samples=5_000)
    assert meets(group, people) == {"relationship": ["Husband"]}
    assert group.population_share == pytest.approx(2 / (2 + 2 + 3 + 3))
    assert group.rate.rate == 1.0


def test_sensitive_attributes_play_no_part():
    """Smiths with s = 1 are decided otherwise; with both sensitive, everybody has such a twin or is one."""
    view = domain().with_sensitive("s", "job")
    model = where(lambda x: (x[:, 0] >= 7) & (x[:, 5] == 1), view)
    overall = flip_rate(model, view, samples=20_000)
    (group,) = learn_subgroups(model, view, NOBODY, overall, samples=5_000)
    assert meets(group) == {"a0": [7, 8, 9]}
    assert group.rate.rate == 1.0


def test_the_same_seed_gives_the_same_rules():
    first, second = (found(corner, seed=3) for _ in range(2))
    assert [(group.rate, meets(group)) for group in first] == [(group.rate, meets(group)) for group in second]


def test_rows_of_another_domain():
    with pytest.raises(DomainError, match="subgroups: expected rows with the 7 columns"):
        found(corner, torch.zeros(3, 2, dtype=torch.int64))


def test_an_attribute_with_very_many_values_is_no_condition():
    """A table over a million billion values could not even be made."""
    huge = Attribute("huge", "ordinal", low=0, high=10**15)
    view = TableDomain("planted", (huge, *domain().attributes), ("s",))

    def held(x: np.ndarray) -> np.ndarray:
        return corner(x[:, 1:])

    model = where(held, view)
    overall = flip_rate(model, view, samples=20_000)
    (group,) = learn_subgroups(model, view, torch.empty(0, 8, dtype=torch.int64), overall, samples=5_000)
    assert set(meets(group, view)) == {"a0", "a2"}


class Young:
    """A population in which a0 is below 5: uniform otherwise."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        rows = domain().sample(n, generator)
        rows[:, 0] %= 5
        return rows


def in_population(held: Held) -> tuple[Subgroup, ...]:
    model, young = where(held, domain()), Young()
    overall = flip_rate(model, domain(), population=young, samples=20_000)
    assert overall.population == "plausible"
    return learn_subgroups(model, domain(), NOBODY, overall, population=young, samples=5_000)


def test_rules_are_learned_from_a_population_and_measured_in_it():
    """Of the young, one in five has a0 = 4 and four in ten of them an a2 of 3 or less."""
    (group,) = in_population(lambda x: (x[:, 0] >= 4) & (x[:, 2] <= 3))
    assert meets(group) == {"a0": list(range(4, 10)), "a2": [0, 1, 2, 3]}
    assert (group.rate.rate, group.rate.population) == (1.0, "plausible")
    assert group.population_share == pytest.approx(0.2 * 0.4, abs=0.01)
    assert group.rate.sampled == pytest.approx(5 * 5_000 * 0.08, rel=0.1)
    assert group.lift == pytest.approx(1 / (0.2 * 0.4), rel=0.1)


def test_where_nobody_lives_there_is_no_group():
    assert in_population(lambda x: x[:, 0] >= 7) == ()
    assert len(found(lambda x: x[:, 0] >= 7)) == 1


def of_a_sampler(held: Held, n: int) -> tuple[Subgroup, ...]:
    model, own = where(held, domain()), UserPopulation(domain().sample(n, torch.Generator().manual_seed(3)), Young())
    overall = flip_rate(model, domain(), population=own, samples=20_000)
    return learn_subgroups(model, domain(), NOBODY, overall, population=own, samples=20_000)


def test_of_a_sampler_the_people_who_teach_a_rule_do_not_measure_it():
    (group,) = of_a_sampler(corner, 4_000)
    assert meets(group) == {"a0": [7, 8, 9], "a2": [0, 1, 2, 3, 4]}
    assert group.rate.sampled == pytest.approx(2_000 * 0.15, rel=0.2)
    assert group.population_share == group.rate.sampled / 2_000
    # Of 60 people a fifth is hit by chance: rules that single them out say nothing of others.
    assert of_a_sampler(lambda x: np.round(x @ np.arange(1, 11) * 37) % 5 == 0, 60) == ()
    assert of_a_sampler(lambda x: x[:, 0] >= 0, 1) == ()
