"""Groups of a table made by hand: who is selected, how often that is right, and how far the groups lie apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair.audits.report.attribute import Gap, GroupReport
from neuronfair.audits.stages.rates import MIN_GROUP_ROWS, compare_groups
from neuronfair.domain.table import Target
from neuronfair.domain.tables.dataset import UNKNOWN, Dataset
from neuronfair.measure.rate import Rate
from neuronfair.model.decision import Decision
from tests.planted import networks

DOMAIN = replace(networks.domain(), target=Target("hired", ("no", "yes")), favourable="yes")
NETWORK = networks.network(networks.one_biased_neuron(), DOMAIN)  # yes to sums below 18.5, or 20.5 where s is 1


def people(*parts: tuple[int, int, int, int], domain=DOMAIN) -> Dataset:
    """So many rows with this s, this label and this decision."""
    rows = [[0 if decided else 9] * 4 + [s] for s, label, decided, n in parts for _ in range(n)]
    labels = [label for s, label, decided, n in parts for _ in range(n)]
    return Dataset("people", domain, torch.tensor(rows), torch.tensor(labels))


# s = 0: of 40 labelled yes 20 get it, of 60 others 6. s = 1: of 50 labelled yes 40 get it, of 50 others 25.
PARTS = (
    (0, 1, 1, 20), (0, 1, 0, 20), (0, 0, 1, 6), (0, 0, 0, 54),
    (1, 1, 1, 40), (1, 1, 0, 10), (1, 0, 1, 25), (1, 0, 0, 25),
)  # fmt: skip


def ends(*counts: tuple[int, int]) -> list[tuple[float, float]]:
    return [Rate(found, of, "table", looks=len(counts)).interval for found, of in counts]


def test_figures_by_hand():
    groups, disparity = compare_groups(NETWORK, people(*PARTS), Decision())
    assert groups == (GroupReport("0", 100, 0.26, 0.74, 0.5, 0.1), GroupReport("1", 100, 0.65, 0.65, 0.8, 0.5))
    assert (disparity.selected, disparity.confidence, disparity.unknown) == ("yes", 0.95, {})
    (low, high), (other_low, other_high) = ends((26, 100), (65, 100))
    impact, apart, errors = (
        disparity.disparate_impact, disparity.selection_rate_difference, disparity.error_rate_difference
    )  # fmt: skip
    assert impact == Gap("selection rate", pytest.approx(0.4), low / other_high, high / other_low, "0", "1")
    assert apart == Gap("selection rate", pytest.approx(0.39), other_low - high, other_high - low, "0", "1")
    tpr, tpr_other, fpr, fpr_other = ends((20, 40), (40, 50), (6, 60), (25, 50))  # four rates, held together
    assert (errors.rate, errors.least, errors.most) == ("false positive rate", "0", "1")
    assert errors.value == pytest.approx(0.4)  # true positives: 0.3
    assert errors.low == pytest.approx(max(tpr_other[0] - tpr[1], fpr_other[0] - fpr[1]))
    assert errors.high == pytest.approx(max(tpr_other[1] - tpr[0], fpr_other[1] - fpr[0]))


def test_the_favourable_class_is_the_one_that_is_counted():
    wished = replace(DOMAIN, favourable="no")
    groups, disparity = compare_groups(NETWORK, people(*PARTS, domain=wished), Decision())
    assert disparity.selected == "no"
    assert groups == (GroupReport("0", 100, 0.74, 0.74, 0.9, 0.5), GroupReport("1", 100, 0.35, 0.65, 0.5, 0.2))
    assert disparity.disparate_impact.value == pytest.approx(0.35 / 0.74)
    assert (disparity.disparate_impact.least, disparity.disparate_impact.most) == ("1", "0")


@pytest.mark.parametrize("classes", [("no", "yes"), ("yes", "no")])
def test_without_a_favourable_outcome_no_class_is_taken_for_it(classes):
    """The ratio depends on the class: 0.26 / 0.65 of yes, 0.35 / 0.74 of no. The differences do not."""
    unset = replace(DOMAIN, target=Target("hired", classes), favourable=None)
    _, disparity = compare_groups(NETWORK, people(*PARTS, domain=unset), Decision())
    assert (disparity.selected, disparity.favourable) == (classes[-1], False)
    assert disparity.disparate_impact is None
    assert disparity.unknown["disparate_impact"] == (
        "needs the favourable outcome. Set --favourable, or favourable in the domain file, to one of "
        f"'{classes[0]}' and '{classes[1]}'; probably 'yes'"
    )
    assert disparity.selection_rate_difference.value == pytest.approx(0.39)
    both = [replace(unset, favourable=name) for name in classes]
    known = [compare_groups(NETWORK, people(*PARTS, domain=domain), Decision())[1] for domain in both]
    assert {round(one.error_rate_difference.value, 9) for one in known} == {
        round(disparity.error_rate_difference.value, 9)
    }
    assert {round(one.selection_rate_difference.value, 9) for one in known} == {0.39}
    assert len({round(one.disparate_impact.value, 3) for one in known}) == 2


def test_without_labels_errors_are_not_known():
    data = people(*PARTS)
    for given in (
        replace(data, labels=torch.full((200,), UNKNOWN)),
        replace(data, domain=networks.domain()),
        replace(data, domain=replace(DOMAIN, target=Target("hired", ("no", "perhaps", "yes")), favourable="yes")),
    ):
        groups, disparity = compare_groups(NETWORK, given, Decision())
        assert [(g.selection_rate, g.accuracy, g.true_positive_rate) for g in groups] == [
            (0.26, None, None), (0.65, None, None)
        ]  # fmt: skip
        assert disparity.selection_rate_difference.value == pytest.approx(0.39)
        assert disparity.error_rate_difference is None
        assert "no labels" in disparity.unknown["error_rate.difference"]
    assert disparity.selected == "class 1"


def test_a_group_that_is_too_small_is_left_out_and_named():
    few = MIN_GROUP_ROWS - 1
    groups, disparity = compare_groups(NETWORK, people((0, 1, 1, 50), (0, 0, 1, 50), (1, 0, 0, few)), Decision())
    assert [group.rows for group in groups] == [100, few]  # its figures are shown
    assert disparity.disparate_impact is disparity.selection_rate_difference is None
    assert "fewer than two groups by s have the 30 rows" in disparity.unknown["disparate_impact"]
    domain = replace(networks.sex_and_race(), target=DOMAIN.target, favourable="yes")
    rows = torch.tensor([[0, 0, 0, 0, 0, r] for r, n in ((0, 40), (1, 30), (2, 9)) for _ in range(n)])
    network = networks.network(networks.one_biased_pair(), domain)
    data = Dataset("people", domain.with_sensitive("race"), rows, torch.zeros(79).long())
    _, disparity = compare_groups(network, data, Decision())
    (name,) = disparity.selection_rate_difference.left_out
    assert name.endswith("(9 rows)")
    assert "fewer than two groups by race have the 30 rows labelled yes" in disparity.unknown["error_rate.difference"]


def test_nobody_selected_is_no_pass():
    _, disparity = compare_groups(NETWORK, people((0, 0, 0, 50), (1, 0, 0, 50)), Decision())
    assert disparity.disparate_impact is None
    assert disparity.unknown["disparate_impact"] == "nobody is selected in any group"
    assert disparity.selection_rate_difference.value == 0


def test_a_threshold_and_a_tolerance():
    score = networks.network(networks.biased_score(), networks.domain())
    data = people(*PARTS, domain=networks.domain())
    assert compare_groups(score, data, Decision("threshold", 1.5))[1].selected == "at least 1.5"
    assert compare_groups(score, data, Decision("tolerance", 0.1)) == ((), None)
