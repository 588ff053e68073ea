"""Health checks: what would make the result of a search misleading, checked before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.formatting import join_words, percent
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import Evaluation, evaluate
from neuronfair.searches.method import SearchContext

CHECKED_SEEDS = 1000  # seeds, and as many uniform rows, that are checked
CHECKED_ROWS = 1 << 18  # rows that are scored for that at most, twins included
CONSTANT_DECISION = "constant-decision"  # the name of the note that the model does not decide
WEAK_GUIDANCE = "weak-guidance"  # the name of the note that gradients do not help
NORMAL_QUANTILE = 1.96  # standard deviations on each side of a 95% interval
MIN_GUIDED_RATIO = 1.1  # how many times as often as in random directions a guided search must succeed


@dataclass(frozen=True)
class HealthNote:
    """A problem that makes the result of a search misleading."""

    name: str
    observation: str  # what was measured, and why it matters
    remedy: str  # what to do


def check_health(context: SearchContext, seeds: Tensor, rows: Tensor) -> tuple[HealthNote, ...]:
    """Return what would make a search from these seeds misleading, if anything.

    `rows` is the table. The first thousand seeds and a thousand uniform rows of the domain are evaluated.
    """
    sample = _evaluate_sample(context, seeds, rows)
    notes = {name: check(sample) for name, check in CHECKS.items()}
    return tuple(HealthNote(name, *note) for name, note in notes.items() if note is not None)


def find_weak_guidance(
    method: str, sensitive: Sequence[str], guided: tuple[int, int], blind: tuple[int, int]
) -> HealthNote | None:
    """Return a note if a search succeeds hardly more often than the same method in random directions.

    `guided` and `blind` are the findings and the distinct records tried of both. The note says that gradients did not
    help only if the confidence intervals of the two success rates do not overlap.
    """
    if not blind[0] or not guided[1] or guided[0] * blind[1] >= MIN_GUIDED_RATIO * blind[0] * guided[1]:
        return None
    share, blind_share = guided[0] / guided[1], blind[0] / blind[1]
    (low, high), (blind_low, blind_high) = _wilson_interval(*guided), _wilson_interval(*blind)
    if high < blind_low:
        result = "less often than the same method in random directions: its gradients did not help"
    elif low > blind_high:
        result = f"only {share / blind_share:.2f} times as often as the same method in random directions"
    else:
        result = "not measurably more often than the same method in random directions: the 95% intervals overlap"
    return HealthNote(
        WEAK_GUIDANCE,
        f"{method} ({join_words(sensitive)}) succeeded {result}. Success rates: {percent(share)} of {guided[1]:,} "
        f"records ({percent(low)} to {percent(high)}) versus {percent(blind_share)} of {blind[1]:,} "
        f"({percent(blind_low)} to {percent(blind_high)}).",
        "Compare methods: neuronfair compare.",
    )


def _wilson_interval(findings: int, records: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a success rate: the score interval of Wilson (1927)."""
    share, weight = findings / records, NORMAL_QUANTILE**2 / records
    middle = (share + weight / 2) / (1 + weight)
    margin = NORMAL_QUANTILE * math.sqrt(share * (1 - share) / records + weight / (4 * records)) / (1 + weight)
    return max(0.0, middle - margin), min(1.0, middle + margin)


@dataclass(frozen=True)
class _Sample:
    """The evaluated rows that the checks look at."""

    context: SearchContext
    table: Tensor
    seeds: Tensor  # (n, d)
    evaluation: Evaluation  # of the seeds
    scores: Tensor  # (m, outputs) of the seeds, the uniform rows and the twins of both, those that exist


_Note = tuple[str, str] | None


def _evaluate_sample(context: SearchContext, seeds: Tensor, table: Tensor) -> _Sample:
    domain = context.domain
    count = max(1, min(CHECKED_SEEDS, CHECKED_ROWS // len(domain.sensitive_values)))
    seeds = domain.clip(seeds[:count])
    uniform_rows = domain.sample(count, torch.Generator().manual_seed(context.draws.seed))
    evaluation = evaluate(context.network, domain, torch.cat([seeds, uniform_rows]), context.decision)
    scores = torch.cat([evaluation.scores, evaluation.twin_scores[evaluation.valid]])
    return _Sample(context, table, seeds, evaluation[: len(seeds)], scores)


def _find_constant_decision(sample: _Sample) -> _Note:
    scores = sample.scores
    if not sample.context.decision.is_unanimous(scores):
        return None
    return (
        f"All {len(scores):,} records checked get the same decision. A search without findings says nothing about "
        "fairness then: the network does not decide.",
        "Check that the weights belong to this encoding, and the threshold or tolerance if there is one.",
    )


def _find_zero_gradients(sample: _Sample) -> _Note:
    context, seeds, evaluation = sample.context, sample.seeds, sample.evaluation
    if not isinstance(context.network, Network):
        return None
    ends = evaluation.ends
    members = context.domain.member(seeds.repeat(2, 1), torch.cat([ends.highest, ends.lowest]))
    slopes = context.network.gradient(members, lambda s: (s * ends.margin_weights.repeat(2, 1)).sum(1))
    flat_count = int((slopes == 0).all(1).view(2, -1).all(0).sum())
    if 2 * flat_count <= len(seeds):
        return None
    return (
        f"The gradient is 0 in every input at {flat_count:,} of {len(seeds):,} seeds and their twins. A guided search "
        "goes in random directions there.",
        "Check the scaling of the inputs; use the scores before a final softmax or sigmoid, which may be saturated.",
    )


def _find_dead_neurons(sample: _Sample) -> _Note:
    context = sample.context
    if context.profile is None or not isinstance(context.network, Network) or len(sample.seeds) == 0:
        return None
    layer = context.profile.worst
    members = torch.cat([sample.seeds, sample.evaluation.twins[sample.evaluation.valid]])
    active = context.network.activations(members, [layer.name])[layer.name]
    dead = int((active[:, list(layer.biased)] == 0).all(0).sum())
    if dead == 0:
        return None
    return (
        f"{dead} of {len(layer.biased)} biased neurons of layer '{layer.name}' are 0 for all seeds and their twins. "
        "They cannot guide the search.",
        "Compute the profile from rows like the seeds, or use other seeds.",
    )


def _find_train_mode(sample: _Sample) -> _Note:
    network = sample.context.network
    if not isinstance(network, Network) or not network.module.training:
        return None
    return (
        "The module is in train mode. It is evaluated in eval mode, without dropout and with stored batch statistics: "
        "the findings hold for that mode only.",
        "Call module.eval() before the search, if that is how it is used.",
    )


def _find_single_values(sample: _Sample) -> _Note:
    domain, table = sample.context.domain, sample.table
    assert isinstance(domain, TableDomain)  # health checks look at tables
    columns = [c for c in domain.sensitive_columns if len(table) and bool((table[:, c] == table[0, c]).all())]
    if not columns:
        return None
    values = ", ".join(
        f"'{domain.names[c]}' ({domain.attributes[c].value(int(table[0, c]))} in all {len(table):,} rows)"
        for c in columns
    )
    return (
        f"The table holds one value only of {values}. No row shows how the network should treat another value.",
        "Check the column, or add rows of every group.",
    )


def _find_discriminating_seeds(sample: _Sample) -> _Note:
    count, total = int(sample.evaluation.discriminates.sum()), len(sample.seeds)
    if 2 * count <= total:
        return None
    return (
        f"{count:,} of {total:,} seeds are findings before any step. The global phase has little to do, and its "
        "success rate says little about the method.",
        "Compare with the random search at equal queries, or start from rows that do not discriminate.",
    )


def _find_double_softmax(sample: _Sample) -> _Note:
    network, classes = sample.context.network, sample.scores.shape[1]
    if classes < 2 or not isinstance(network, Network) or not network.ends_in("Softmax", "Softmax"):
        return None
    # The softmax of probabilities: the least when another class has them all, the most when this one has.
    lowest, highest = 1 / (1 + (classes - 1) * math.e), math.e / (math.e + classes - 1)
    return (
        f"The module applies softmax twice, so its scores lie between {lowest:.3f} and {highest:.3f}. Gradients and "
        "score gaps are too small then, and a threshold means something else.",
        "Remove the softmax from the module, or from its wrapper.",
    )


CHECKS: dict[str, Callable[[_Sample], _Note]] = {
    CONSTANT_DECISION: _find_constant_decision,
    "zero-gradient": _find_zero_gradients,
    "dead-biased-neurons": _find_dead_neurons,
    "train-mode": _find_train_mode,
    "one-sensitive-value": _find_single_values,
    "seeds-already-discriminating": _find_discriminating_seeds,
    "softmax-twice": _find_double_softmax,
}
