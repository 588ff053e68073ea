"""Labels for pairs: who votes, and how a tie is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from neuronfair import Dataset
from neuronfair.domain.table import Target
from neuronfair.errors import NeuronFairError
from neuronfair.repairs.labels import UNLABELLED, Ensemble, check_rule, seed_labels, twin_labels
from neuronfair.searches.findings import Findings
from tests.planted.networks import domain, linear, network, one_biased_neuron, uniform_rows


def labelled(rows: int = 600) -> Dataset:
    """People whose label follows from their own values: the sum of a0 … a3 against 18; s plays no part."""
    space = replace(domain(), target=Target("y", ("low", "high")))
    codes = uniform_rows(space, rows)
    return Dataset("planted", space, codes, (codes[:, :4].sum(1) > 18).long())


def findings(space, rows: list[list[int]], origin: list[int]) -> Findings:
    packed = torch.tensor(rows).to(space.compact)
    number = torch.tensor(origin)
    scores = torch.zeros(len(rows), 2)
    return Findings(packed, 1 - packed[:, -1:].long(), scores, scores, number, number * 0, packed[:0])


def test_the_ensemble_learns_the_table_and_does_not_see_the_sensitive_attribute() -> None:
    data = labelled(300)
    ensemble = Ensemble(data.split(0))
    rows = uniform_rows(data.domain, 500, seed=1)
    labels = ensemble.labels(rows)
    assert ((rows[:, :4].sum(1) > 18).long() == labels).double().mean() > 0.9
    twins = rows.clone()
    twins[:, -1] = 1 - twins[:, -1]
    assert torch.equal(ensemble.labels(twins), labels)


def test_a_finding_has_the_label_of_the_row_it_was_reached_from() -> None:
    space = domain()
    rows = torch.tensor([[1, 1, 1, 1, 0], [2, 2, 2, 2, 1], [2, 2, 2, 2, 1], [2, 2, 2, 2, 1], [3, 3, 3, 3, 0]])
    data = Dataset("planted", space, rows, torch.tensor([1, 0, 1, 1, 0]))
    seeds = torch.tensor([[3, 3, 3, 3, 0], [2, 2, 2, 2, 1], [9, 9, 9, 9, 1], [1, 1, 1, 1, 0]])
    found = findings(space, [[0, 0, 0, 0, 0]] * 5, [0, 1, 2, 3, -1])
    # The most frequent label of equal rows counts; a seed that is no row of the table, or a pilot, has none.
    assert seed_labels(space, found, seeds, data).tolist() == [0, 1, UNLABELLED, 1, UNLABELLED]
    assert seed_labels(space, found, seeds[:0], data).tolist() == [UNLABELLED] * 5


def test_twins_vote_by_how_frequent_they_are() -> None:
    space = domain()
    net = network(one_biased_neuron(), space)
    # The second class wins below a sum of 18.5, and below 20.5 for s = 1.
    rows = torch.tensor([[9, 9, 1, 0, 0], [9, 9, 1, 0, 1], [9, 9, 9, 9, 1], [0, 0, 0, 0, 0]])
    mostly = {s: torch.tensor([[0, 0, 0, 0, s]] * 3 + [[0, 0, 0, 0, 1 - s]]) for s in (0, 1)}
    assert twin_labels(net, space, rows, mostly[0]).tolist() == [0, 0, 0, 1]
    assert twin_labels(net, space, rows, mostly[1]).tolist() == [1, 1, 0, 1]


def test_scores_break_a_tie() -> None:
    space = domain()
    rows = torch.tensor([[9, 9, 0, 0, 0], [9, 9, 1, 0, 0]])  # sums 18 and 19: s = 1 says 1; s = 0 says 1, then 0
    table = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])

    def labels(weight: float, shift: float, boundary: float) -> list[int]:
        first = linear([[weight] * 4 + [0.0], [0.0] * 4 + [shift]], [0.0, boundary])
        module = nn.Sequential(first, nn.ReLU(), linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]))
        return twin_labels(network(module, space), space, rows, table).tolist()

    # At 19: margin -0.5 without s, +2.5 with it. The mean probability says yes.
    assert labels(1.0, 3.0, 18.5) == [1, 1]
    # At 19: margin -2 without s, +0.5 with it. It says no.
    assert labels(4.0, 2.5, 74.0) == [1, 0]


def test_an_unknown_rule() -> None:
    with pytest.raises(NeuronFairError, match="Did you mean 'twins'"):
        check_rule("twin")
