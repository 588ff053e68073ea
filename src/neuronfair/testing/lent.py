"""What every search method promises of what it is lent: it is given back as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.search.campaign import find
from neuronfair.search.outcome import Plan
from neuronfair.testing.asking import STEPS, check, full_search
from neuronfair.testing.cases import WALKERS, case, random_module


class BrokenError(Exception):
    """What the fragile model raises."""


class Fragile(nn.Module):
    """A network with everything that could be disturbed, which breaks at a given call."""

    def __init__(self, domain: TableDomain, breaks_at: int | None = None) -> None:
        super().__init__()
        first, _, second = random_module(domain, seed=1)
        norm = nn.BatchNorm1d(TableEncoding.of(domain).width)
        self.parts = nn.Sequential(norm, nn.Dropout(), first, nn.ReLU(), second)
        self.breaks_at, self.calls = breaks_at, 0
        second.bias.requires_grad_(False)
        first.register_forward_hook(_do_nothing)
        self.train()
        norm.eval()  # parts of it in one mode and parts in the other

    def forward(self, x: Tensor) -> Tensor:
        """Compute the scores, or break."""
        self.calls += 1
        if self.calls == self.breaks_at:
            raise BrokenError
        scores: Tensor = self.parts(x)
        return scores


def _do_nothing(*_: Any) -> None:
    """The hook of somebody else."""


def _snapshot(module: nn.Module) -> list[object]:
    """Return everything that a search must leave alone."""
    values = [(name, value.tolist()) for name, value in module.state_dict().items()]
    modes = [part.training for part in module.modules()]
    slopes = [(p.requires_grad, p.grad is None) for p in module.parameters()]
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [[list(getattr(part, kind).values()) for kind in kinds] for part in module.modules()]
    return [values, modes, slopes, hooks]


def _search_fragile(name: str, module: Fragile) -> None:
    domain, rows = case("people").domain, case("people").rows[:40]
    find(Network(module, domain), domain, rows, Plan(name, WALKERS, STEPS, STEPS), seeds=case("people").seeds)


@check()
def the_module_is_left_as_it_was(name: str) -> None:
    """Weights, modes, gradients and hooks are as before, also after a search that failed on the way."""
    domain = case("people").domain
    module = Fragile(domain)
    before = _snapshot(module)
    _search_fragile(name, module)
    assert _snapshot(module) == before
    for share in (0.4, 0.9):  # of the calls; the controls come last
        fragile = Fragile(domain, breaks_at=int(share * module.calls))
        try:
            _search_fragile(name, fragile)
        except ModelError:
            assert _snapshot(fragile) == before
        else:
            raise AssertionError("the error of the model is lost")


@check()
def random_states_threads_and_rows_are_left_as_they_were(name: str) -> None:
    """Whoever calls a search finds the random numbers, the settings and the rows as they were."""
    here = case("people")
    rows, seeds = here.rows.clone(), here.seeds.clone()
    threads, modes = torch.get_num_threads(), (torch.is_grad_enabled(), torch.get_default_dtype())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    full_search(name, "people", controls=True)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]
    assert (threads, modes) == (torch.get_num_threads(), (torch.is_grad_enabled(), torch.get_default_dtype()))
    assert torch.equal(here.rows, rows)
    assert torch.equal(here.seeds, seeds)
