"""Table 6 of the paper: the two phases for themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from experiments.cases import CASES, PAPER, PAPER_METHODS, WIDE, case_data, model_of, network, run_seeds
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, held_in, mean, span
from neuronfair.audits.comparison import measure_method
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.model.blackbox import Model
from neuronfair.searches.campaign import SearchResult, search
from neuronfair.searches.config import SearchConfig

import torch
from torch import Tensor

METHODS = ("aequitas", "symbgen", "adf", "eidig5", "neuronfair", "frontier")
LOCAL_SEEDS = 100
MIX_SEEDS = 10  # times as many seeds start each method's global phase, whose findings are then mixed

Phase = Literal["global", "local"]


def phase(
    case: str, model: str | int, phase: Phase, seeds: int, steps: int, seed: int, seconds: float
) -> dict[str, Any]:
    """Compare one phase of all methods on one classifier; SymbGen would take minutes on the wide tables.

    Local phases start from the same mix of the global findings of all methods, and these do not count.
    """
    rows, subject = case_data(case), network(case, model)
    methods = [m for m in METHODS if m != "symbgen" or case not in WIDE]
    config = SearchConfig(seeds=seeds, steps=steps, seed=seed, seconds=seconds, controls=False)
    starts = None
    if phase == "local":
        wide = replace(config, seeds=MIX_SEEDS * seeds, steps=0, seconds=None)
        found = [_search(subject, rows, replace(wide, method=m), None).findings.rows for m in methods]
        starts = _mixed(rows.domain, torch.cat(found), config)
        config = replace(config, global_steps=0)
    done = {m: _search(subject, rows, replace(config, method=m), starts) for m in methods}
    return {method: measure_method(outcome) for method, outcome in done.items()}


def _search(subject: Model, rows: Dataset, config: SearchConfig, starts: Tensor | None) -> SearchResult:
    outcome = search(subject, rows.domain, rows.rows, config, seeds=starts)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def _mixed(domain: TableDomain, pool: Tensor, config: SearchConfig) -> Tensor:
    """Return `config.seeds` distinct rows, drawn at random."""
    pool = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(config.seed)).to(pool.device)]
    _, number = torch.unique(domain.key(pool), return_inverse=True)
    first = torch.full((len(pool),), len(pool)).scatter_reduce(0, number, torch.arange(len(pool)), "amin")
    mixed = pool[first[first < len(pool)].sort().values][: config.seeds]
    if len(mixed) == 0:
        raise NeuronFairError("no method has a global finding, so there is nothing to start the local phases from")
    return mixed


def runs(scale: Scale, case: str, phase: Phase) -> list[Job]:
    """Return the comparisons of one phase, one for each run seed; fewer local ones."""
    seeds, steps = (scale.seeds, 0) if phase == "global" else (min(scale.seeds, LOCAL_SEEDS), scale.steps)
    fixed = {"case": case, "model": model_of(case), "phase": phase, "seeds": seeds, "steps": steps}
    fixed |= {"seconds": scale.seconds}  # at most, for each method, as in Table 5
    chosen = run_seeds(scale, case) if phase == "global" else range(scale.few)
    return [Job("table6_phases:phase", {**fixed, "seed": seed}) for seed in chosen]


def jobs(scale: Scale) -> list[Job]:
    """Return all comparisons."""
    return [job for case in CASES for phase in ("global", "local") for job in runs(scale, case, phase)]


def report(scale: Scale, results: Results) -> Report:
    """Return findings per 1,000 seeds globally, and per seed and 1,000 steps locally, next to the paper's."""
    tables: dict[str, Table] = {}
    orders: dict[str, list[bool]] = {}
    for part in ("global", "local"):
        lines, counts = [], []
        for case, (*_, printed) in CASES.items():
            done = gather(results, runs(scale, case, part))
            counts.append(len(done))
            unit = {"global": ("findings", 1000 / scale.seeds), "local": ("gsr", 1000)}[part]
            found = {m: [d[m][unit[0]] * unit[1] for d in done if m in d] for m in METHODS}
            theirs = dict(zip(PAPER_METHODS, PAPER["phases"][part][printed], strict=True))
            paper = [f" ({theirs[m.replace('eidig5', 'eidig')]})" if m != "frontier" else "" for m in METHODS]
            lines.append([case, *(figure(found[m]) + p for m, p in zip(METHODS, paper, strict=True))])
            if done and part == "global":
                ranked = [mean(found[m]) for m in ("neuronfair", "eidig5", "adf", "aequitas")]
                orders[case] = [all(a >= b for a, b in pairwise(ranked[:n])) for n in (4, 3)]
        note = {
            "global": "Distinct findings per 1,000 starts, 40 steps each; the paper's per 1,000 instances in brackets.",
            "local": f"Findings per 1,000 distinct rows, from {LOCAL_SEEDS} mixed findings; the paper's in brackets.",
        }[part]
        note += f" {span(counts)} run seeds; a method is stopped after {scale.seconds:g} s."
        tables[part] = Table(["case", *METHODS], lines, note, on_page=False)
    claims = []
    if orders:
        fine, three = ([case for case, held in orders.items() if held[n]] for n in (0, 1))
        claims.append(
            Claim(
                "In the global phase NeuronFair ≥ EIDIG ≥ ADF ≥ Aequitas (Table 6)",
                held_in(len(fine), len(orders)),
                f"in {len(fine)} of {len(orders)} cases; without Aequitas in {len(three)}",
                "neuronfair",
            )
        )
    text = (
        "The paper counts instances of the global phase; they can only be the ends of chains, so the table counts "
        "those. Aequitas draws random rows in its global phase, here as many as the other methods take steps (40 for "
        "every start; its own program draws one). SymbGen queries the network for 500 neighbours of every row; it is "
        "left out of COMPAS and MEPS, where it hardly gets beyond one step in the time limit."
    )
    return Report("Table 6: the two phases for themselves", text, tables, claims)
