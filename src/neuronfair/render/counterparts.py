"""Counterfactual twins as lines of a table and as sentences, for terminal, Markdown and model card."""

from __future__ import annotations

from collections.abc import Sequence

from neuronfair.verdict.entries import AttributeReport
from neuronfair.words import percent, spanned

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
