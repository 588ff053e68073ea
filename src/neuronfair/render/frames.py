"""An audit as DataFrames of pandas: everybody who was found, and how groups fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError, needs
from neuronfair.model.decision import Decision
from neuronfair.search.outcome import Outcome
from neuronfair.verdict.report import Report


def findings_frame(outcomes: Mapping[tuple[str, str], Outcome]) -> Any:
    """Return everybody who was found, a line each.

    A line has the attribute that was changed and the method that found the person, the person's values, those that the
    twin has instead (`twin_sex`), both decisions and scores, and the gap between them. Somebody whom two methods found
    has two lines.
    """
    pandas = _pandas()
    own = {name for outcome in outcomes.values() for name in outcome.domain.names}
    parts = [pandas.DataFrame(_lines(*key, outcome, own)) for key, outcome in outcomes.items()]
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()


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


def _lines(attribute: str, method: str, outcome: Outcome, own: set[str]) -> dict[str, Sequence[Any]]:
    """Return the columns of one search; a name that the table has already gets a _ at its end."""
    domain, decision, found = outcome.domain, outcome.plan.decision, outcome.findings
    people, twins = domain.to_table(found.rows), domain.to_table(found.twins(domain))
    scores, others = found.scores.double().cpu(), found.twin_scores.double().cpu()
    score, other = _leads(decision, scores, others)
    columns: dict[str, Sequence[Any]] = {
        "attribute": [attribute] * len(found),
        "method": [method] * len(found),
        "number": range(len(found)),
        **{f"twin_{name}": twins[name] for name in domain.sensitive},
        "decision": _decided(domain, decision, scores),
        "twin_decision": _decided(domain, decision, others),
        "score": score,
        "twin_score": other,
        "gap": decision.gap(scores, others).tolist(),
    }
    ours = {f"{name}_" if name in own else name: cells for name, cells in columns.items()}
    return _ordered(ours, people)


def _ordered(ours: Mapping[str, Sequence[Any]], people: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return all columns: what was looked for and how it was found, the person, and what became of it."""
    first, rest = list(ours.items())[:3], list(ours.items())[3:]
    return dict([*first, *people.items(), *rest])


def _decided(domain: TableDomain, decision: Decision, scores: Tensor) -> list[Any]:
    if decision.kind == "tolerance":
        return scores[:, -1].tolist()
    classes = domain.target.classes if domain.target is not None else ()
    known = len(classes) == decision.classes(scores.shape[1])
    return [classes[i] if known else f"class {i}" for i in decision.chosen(scores).tolist()]


def _leads(decision: Decision, scores: Tensor, others: Tensor) -> tuple[list[float], list[float]]:
    """Return the scores of people and twins as one number each: for classes, how far the person's leads the twin's."""
    if decision.kind != "argmax":
        return scores[:, -1].tolist(), others[:, -1].tolist()
    own, other = scores.argmax(1, keepdim=True), others.argmax(1, keepdim=True)
    leads = [(part.gather(1, own) - part.gather(1, other))[:, 0].tolist() for part in (scores, others)]
    return leads[0], leads[1]
