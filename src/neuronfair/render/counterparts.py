"""Counterparts as lines of a table and as sentences, for terminal, Markdown and model card."""

from __future__ import annotations

from collections.abc import Sequence

from neuronfair.verdict.entries import AttributeReport
from neuronfair.words import percent, spanned

TITLE = "Had they been of another group"
HEADS = ("attribute", "decided otherwise", "groups shuffled", "effect", "lost", "gained")


def counterpart_lines(attributes: Sequence[AttributeReport]) -> list[tuple[str, ...]]:
    """Return a line for each choice of sensitive attributes whose people were compared with counterparts."""
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
    """Return what is said below the table, each once: what carries it, how well the group is told, and what is kept."""
    reports = [one.counterpart for one in attributes if one.counterpart is not None]
    return list(dict.fromkeys(told for one in reports for told in (one.carried, one.told, *one.notes) if told))


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
