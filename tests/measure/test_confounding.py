"""E-values: by hand, and never above the strength of a confounder that made a difference alone."""

from __future__ import annotations

import pytest
import torch

from neuronfair import BlackBox, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.measure.confounding import as_groups, e_value
from neuronfair.measure.counterfactual_effect import Thoroughness, counterfactual_effect
from neuronfair.measure.twin_decisions import TwinTally
from neuronfair.model.decision import Decision

DOMAIN = TableDomain(
    "people",
    (Attribute("group", "flag", values=("a", "b"), encode="none"), Attribute("x", "flag", values=("no", "yes"))),
    ("group",),
)


def test_the_e_value_of_a_ratio_by_hand():
    assert e_value(1.0) == 1
    assert e_value(2.0) == e_value(0.5) == pytest.approx(2 + 2**0.5)
    assert e_value(3.9) == pytest.approx(7.26, abs=0.01)  # VanderWeele and Ding 2017: breastfeeding


def test_a_group_is_its_own_people_and_the_twins_of_the_others():
    """Two of a, one of whom gets it, and one of b, who does not; both of a lose nothing, the one of b gains in half."""
    count = torch.full((3, 1), 2.0)
    nothing, gained = torch.zeros(3, 1), torch.tensor([[0.0], [0.0], [1.0]])
    tally = TwinTally(count, gained, nothing, gained, torch.tensor([0, 0, 1]), torch.tensor([True, False, False]))
    as_a, as_b, people = as_groups(tally)[0, 1]
    assert (as_a, as_b, people) == (pytest.approx(1.5 / 3), pytest.approx(1 / 3), 3)


@pytest.mark.parametrize(("in_a", "in_b", "with_it", "without"), [(0.2, 0.6, 0.8, 0.2), (0.3, 0.6, 0.6, 0.1)])
def test_what_a_confounder_makes_alone_needs_no_stronger_one(in_a, in_b, with_it, without):
    """Something hidden goes with the group and with x; the group itself changes nothing, and x is all that decides.

    Its risk ratios are `in_b / in_a` with the group and `with_it / without` with the decision: the bound of Ding and
    VanderWeele says that the E-value is not larger than the larger of the two, and what is seen not above their factor.
    """
    rows = []
    for group, share in ((0, in_a), (1, in_b)):
        yes = round(1000 * (share * with_it + (1 - share) * without))
        rows += [[group, 1]] * yes + [[group, 0]] * (1000 - yes)
    model = BlackBox(lambda some: some[:, 1].double(), DOMAIN)
    found = counterfactual_effect(
        model, DOMAIN, torch.tensor(rows), decision=Decision("threshold", 0.5), thorough=Thoroughness(32, 8)
    ).sensitivity
    strength = (in_b / in_a, with_it / without)
    assert (found.more, found.less, found.outcome) == ((1,), (0,), 1)
    expected = (in_b * with_it + (1 - in_b) * without) / (in_a * with_it + (1 - in_a) * without)
    assert found.ratio == pytest.approx(expected, rel=0.06)
    assert found.ratio <= 1.05 * strength[0] * strength[1] / (sum(strength) - 1)
    assert 1 < found.e_value_low < found.e_value <= max(strength)
