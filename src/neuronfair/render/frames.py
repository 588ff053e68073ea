"""An audit as DataFrames of pandas: everybody who was found, and how groups fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from neuronfair.errors import NeuronFairError, needs
from neuronfair.render.export import columns, headings, plain, twin_names
from neuronfair.search.outcome import Outcome
from neuronfair.verdict.report import Report


def findings_frame(outcomes: Mapping[tuple[str, str], Outcome]) -> Any:
    """Return everybody who was found, a line each, with the columns of an exported table.

    Somebody whom two methods found has two lines.
    """
    pandas, every = _pandas(), list(outcomes.values())
    if not every:
        return pandas.DataFrame()
    twins = twin_names(one.domain for one in every)
    names = headings(every[0].domain.names, twins)
    return pa.concat_tables(plain(pa.table(_columns(one, twins), names=names)) for one in every).to_pandas()


def groups_frame(report: Report) -> Any:
    """Return how groups fare: those of the table (kind "group"), and those in whom flips are frequent ("subgroup")."""
    lines = []
    for one in report.attributes:
        for group in one.groups:
            figures = asdict(group)
            lines.append({"attribute": one.name, "kind": "group", "who": figures.pop("values"), **figures})
        for part in one.subgroups:
            figures = {"people": part.people, "findings": part.findings, "lift": part.lift}
            figures |= {"rate": part.rate.rate, "low": part.rate.low, "high": part.rate.high}
            lines.append({"attribute": one.name, "kind": "subgroup", "who": part.text, **figures})
    return _pandas().DataFrame(lines)


def _pandas() -> Any:
    return needs("pandas", "sklearn", "a DataFrame", NeuronFairError)


def _columns(outcome: Outcome, twins: Sequence[str]) -> list[pa.Array]:
    plan, found = outcome.plan, outcome.findings
    return columns(outcome.domain, plan.decision, plan.method, found, found.scale(plan.decision, plan.scale), twins)
