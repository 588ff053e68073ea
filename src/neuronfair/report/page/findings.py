"""Findings for people: the worst as cards, many as a table that can be searched, sorted and paged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.report.page.shell import command, embedded, escape, finite, name
from neuronfair.report.page.words import count, known, number, plain, plural

FIRST = 4  # cards that are open at once
_COLUMNS = (("number", "Number"), ("text", "What happens"), ("text", "Decisions"), ("number", "Score gap"))


def cards(worst: Sequence[Mapping[str, Any]]) -> str:
    """Return the worst findings, one card each: the person in words, both decisions, and the line that replays it."""
    if not worst:
        return ""
    first, more = worst[:FIRST], worst[FIRST:]
    rest = f'<details class="more"><summary>{plural(len(more), "more case")}</summary>{_list(more)}</details>'
    return _list(first) + (rest if more else "")


def finding_table(findings: Sequence[Mapping[str, Any]], total: int) -> str:
    """Return findings as rows of sentences; the page's script adds search, order, pages and all attributes."""
    if not findings:
        return ""
    columns = list(dict.fromkeys(attribute for finding in findings for attribute in finding["row"]))
    people = [[finite(finding["row"].get(column)) for column in columns] for finding in findings]
    # The script draws the attributes of a row when they are asked for: 300 rows of 140 would be a heavy page.
    changed = [
        [[finite(change[key]) for key in ("attribute", "from", "to")] for change in f["changed"]] for f in findings
    ]
    head = "".join(f'<th scope="col" data-sort="{kind}">{title}</th>' for kind, title in _COLUMNS)
    shown = count(len(findings)) if len(findings) >= total else f"{count(len(findings))} of {count(total)}"
    return (
        '<div class="finder">'
        '<div class="controls" hidden><label>Search <input type="search" autocomplete="off" spellcheck="false" '
        'placeholder="a word, or attribute=value"></label>'
        '<p class="status" role="status"></p></div>'
        f'<table class="findings"><caption>{shown} findings, each in one sentence</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{''.join(_row(i, f) for i, f in enumerate(findings))}</tbody></table>"
        '<nav class="pages" aria-label="Pages of findings" hidden><button type="button" class="back">Previous</button>'
        '<span></span><button type="button" class="next">Next</button></nav>'
        f"{embedded({'columns': columns, 'rows': people, 'changed': changed}, 'people')}</div>"
    )


def marked(finding: Mapping[str, Any]) -> str:
    """Return the sentence of a finding with what was changed marked; the change itself follows if it is not in it.

    >>> change = {"attribute": "sex", "from": "F", "to": "M"}
    >>> marked({"sentence": "… with sex M instead of F: yes.", "changed": [change]})
    '… with <mark>sex M instead of F</mark>: yes.'
    """
    sentence = plain(finding["sentence"])
    spans, missing = [], []
    for change in finding["changed"]:
        span = _find(sentence, change)
        if span:
            spans.append(span)
        else:
            missing.append(change)
    parts, at = [], 0
    for start, end in sorted(spans):
        if start >= at:  # two changes may have been found in the same words
            parts += [escape(sentence[at:start]), f"<mark>{escape(sentence[start:end])}</mark>"]
            at = end
    return "".join([*parts, escape(sentence[at:]), *(f" {_change(change)}" for change in missing)])


def _list(findings: Sequence[Mapping[str, Any]]) -> str:
    return f'<ol class="cards">{"".join(map(_card, findings))}</ol>'


def _find(sentence: str, change: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return where a sentence speaks of a change: the more words the better."""
    attribute, old, new = (str(change[key]) for key in ("attribute", "from", "to"))
    plain = re.sub("[_-]+", " ", attribute)
    swap = f"{new} instead of {old}"
    for words in (f"{attribute} {swap}", f"{plain} {swap}", swap, attribute, plain):
        found = list(re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", sentence))
        if found:
            return found[-1].span()  # the person is described first, the change last
    return None


def _change(change: Mapping[str, Any]) -> str:
    return f"<mark>{name(change['attribute'])} {name(change['from'])} → {name(change['to'])}</mark>"


def _card(finding: Mapping[str, Any]) -> str:
    sides = (("from", "decision", "score"), ("to", "other_decision", "other_score"))
    pair = "".join(
        '<div><span class="who">'
        + ", ".join(f"{name(change['attribute'])} <mark>{name(change[side])}</mark>" for change in finding["changed"])
        + f'</span><b class="decided">{name(finding[decision])}</b><small>score {number(finding[score])}</small></div>'
        for side, decision, score in sides
    )
    about = [f"finding {count(finding['number'])} of {escape(finding['method'])}"]
    if known(finding["gap"]):
        about.insert(0, f"score gap {number(finding['gap'])}")
    changed = {change["attribute"]: change for change in finding["changed"]}
    row = "".join(
        f"<div><dt>{name(attribute)}</dt><dd>"
        + (_change_only(changed[attribute]) if attribute in changed else name(value))
        + "</dd></div>"
        for attribute, value in finding["row"].items()
    )
    return (
        f'<li class="card"><p class="sentence" dir="auto">{marked(finding)}</p><div class="pair">{pair}</div>'
        f'<p class="about">{", ".join(about).capitalize()}</p>'
        f"<details><summary>All {plural(len(finding['row']), 'attribute')}</summary>"
        f'<dl class="person">{row}</dl></details>{command(finding["replay"])}</li>\n'
    )


def _change_only(change: Mapping[str, Any]) -> str:
    return f"<mark>{name(change['from'])} → {name(change['to'])}</mark>"


def _row(i: int, finding: Mapping[str, Any]) -> str:
    gap = finding["gap"]
    return (
        f'<tr data-i="{i}"><td data-value="{escape(finding["number"])}">'
        f"{count(finding['number'])} <small>{escape(finding['method'])}</small></td>"
        f'<td><span class="sentence" dir="auto">{marked(finding)}</span>'
        f'<details><summary>All attributes</summary><dl class="person"></dl>'
        f"{command(finding['replay'])}</details></td>"
        f"<td>{name(finding['decision'])} → {name(finding['other_decision'])}</td>"
        f'<td class="gap" data-value="{gap if known(gap) else ""}">{number(gap)}</td></tr>\n'
    )
