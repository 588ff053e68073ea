"""One finding of a run again: as it was found, and what a model decides for it now."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from neuronfair.audits.folder import NEARER
from neuronfair.audits.report.attribute import Finding
from neuronfair.audits.wording.phrases import DescribedPair
from neuronfair.errors import DomainError, ModelError
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.searches.evaluate import flip_share_of_drawn_twins
from neuronfair.searches.findings import NO_SEED
from neuronfair.store.files import read_sealed
from neuronfair.store.run import Run


@dataclass(frozen=True)
class Replay:
    """A finding, where it comes from, and the scores that a model gives it now."""

    found: DescribedPair
    step: int
    origin: int | None  # the number of the seed; None for one of the pilot, which starts from random rows
    seed: Tensor | None  # its record in the data set
    plausibility: float | None  # None: not known
    shrunk: DescribedPair | None  # as an audit shows it, nearer to that row; None where no audit does
    drawn: tuple[int, int] | None  # number of drawn twins, and how many get a different decision; None for flips


def replay_finding(run: Run, network: Model, number: int) -> Replay:
    """Evaluate a finding and its twin again."""
    one = run.findings()[number : number + 1]
    origin = None if int(one.origin) == NO_SEED else int(one.origin)
    nearer = shrunk_pair(run, number)
    drawn = flip_share_of_drawn_twins(network, run.domain, one.rows, Decision(**run.manifest["plan"]["decision"]))
    return Replay(
        found=_evaluated(network, one.rows[0], one.twins(run.domain)[0]),
        step=int(one.step),
        origin=origin,
        seed=None if origin is None else run.domain.clip(run.seeds[one.origin])[0],
        plausibility=None if bool(one.plausibility.isnan()) else float(one.plausibility),
        shrunk=None if nearer is None else _evaluated(network, *nearer),
        drawn=None if drawn is None else (int(drawn.of), int(drawn.otherwise)),
    )


def still_holds(pair: DescribedPair, decision: Decision) -> bool:
    """Return whether the decision for the two still differs."""
    return bool(decision.differ(pair.scores, pair.twin_scores))


def _evaluated(network: Model, row: Tensor, twin: Tensor) -> DescribedPair:
    now, other = network.scores(torch.stack([row, twin]))
    if not (now.isfinite().all() and other.isfinite().all()):
        raise ModelError("the network gives NaN or infinite scores for this finding. Check its weights")
    return DescribedPair(row, twin, now, other)


def shrunk_pair(run: Run, number: int) -> tuple[Tensor, Tensor] | None:
    """Return a finding of an audit's run and its twin, (d,) each, as the audit shows them; None if it does not."""
    if "worst" not in run.manifest:  # a search alone
        return None
    method = run.folder.absolute().name  # an older audit had other names of methods
    try:
        worst = read_sealed(run.folder.absolute().parent / NEARER)["worst"]
        findings = msgspec.convert(worst, tuple[Finding, ...])
        one = next(f for f in findings if (f.method, f.number) == (method, number))
        twin = {**one.row, **{change.attribute: change.twin for change in one.changed}}
        rows = run.domain.from_table({name: [one.row[name], twin[name]] for name in run.domain.names})
    except (OSError, LookupError, TypeError, msgspec.MsgspecError, StopIteration, DomainError):
        return None  # an unfinished audit, a finding that is not among the worst, or a file that is not ours
    return rows[0], rows[1]
