"""Groups and counterfactual twins as lines of a table, for terminal, Markdown and model card."""

from __future__ import annotations

from collections.abc import Sequence

from neuronfair.audits.report.attribute import AttributeReport, Gap
from neuronfair.formatting import UNKNOWN, percent, some, spanned

TITLE = "Counterfactual twins: proxy evidence"
HEADS = ("attribute", "different decision", "permutation baseline", "excess", "lost", "gained")


def counterpart_lines(attributes: Sequence[AttributeReport]) -> list[tuple[str, ...]]:
    """Return a line for each choice of sensitive attributes whose people were compared with twins."""
    return [
        (
            one.name,
            *(spanned(share.rate, share.low, share.high) for share in (report, report.placebo, report.effect)),
            *("" if share is None else percent(share) for share in (report.lost, report.gained)),
        )
        for one in attributes
        if (report := one.counterpart) is not None
    ]


def counterpart_sentences(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return what is said below the table, each once: what it rests on, through what it goes, and what is kept."""
    reports = [one.counterpart for one in attributes if one.counterpart is not None]
    told = ((one.assumed, one.explained, one.carried, one.told, *one.notes) for one in reports)
    return list(dict.fromkeys(sentence for several in told for sentence in several if sentence))


def hurt_sentences(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return whom it hurts, by flips where the model reads the attribute, and by counterparts where they show it."""
    told = (
        sentence
        for one in attributes
        for sentence in (
            one.direction[0].sentence if one.direction and one.search_twins == "flip" else "",
            one.counterpart.hurt if one.counterpart is not None else "",
        )
    )
    return [sentence for sentence in told if sentence]


SET_FAVOURABLE = "set `favourable`"
GROUPS_HEADS = ("attribute", "selected", "least", "most", "disparate impact", "error rates apart")


def group_lines(attributes: Sequence[AttributeReport]) -> list[tuple[str, ...]]:
    """Return the cells of each attribute: the class, the groups it is decided for least and most often, the gaps."""
    lines = []
    for one in attributes:
        if one.disparity is None or not one.groups:
            continue
        shares = {group.values: group.selection_rate for group in one.groups}
        apart = one.disparity.selection_rate_difference
        ends = [f"{name} {percent(shares.get(name))}" for name in (apart.least, apart.most)] if apart else ["–", "–"]
        ratio, unset = one.disparity.disparate_impact, UNKNOWN if one.disparity.favourable else SET_FAVOURABLE
        impact = unset if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
        gaps = (impact, _shown(one.disparity.error_rate_difference))
        lines.append((one.name, one.disparity.selected, *ends, *gaps))
    return lines


def left_out(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return a sentence for each attribute with groups that are too small to be compared."""
    sentences = []
    for one in attributes:
        gap = one.disparity and (one.disparity.error_rate_difference or one.disparity.selection_rate_difference)
        if gap and gap.left_out:
            sentences.append(f"Groups by {one.name} that are too small to be compared: {some(gap.left_out)}.")
    return sentences


def _shown(gap: Gap | None) -> str:
    return UNKNOWN if gap is None else spanned(gap.value, gap.low, gap.high)
