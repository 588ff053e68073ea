"""The groups of the table, a line for each sensitive attribute: for terminal and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from neuronfair.verdict.entries import AttributeReport, Gap
from neuronfair.words import UNKNOWN, percent, some, spanned

SET_FAVOURABLE = "set `favourable`"
HEADS = ("attribute", "selected", "least", "most", "disparate impact", "error rates apart")


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
