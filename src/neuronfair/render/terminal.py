"""What an audit came to, on the terminal: the verdict, a short table, the worst findings."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from neuronfair.render.counterparts import HEADS as COUNTERPART_HEADS
from neuronfair.render.counterparts import TITLE, counterpart_lines, counterpart_sentences, hurt_sentences
from neuronfair.render.groups import HEADS, group_lines, left_out
from neuronfair.render.strip import KEY, strip_line
from neuronfair.shown import visible
from neuronfair.verdict.entries import AttributeReport, measured_populations, notes_of, omissions, worst_cases
from neuronfair.verdict.report import Report, Tone
from neuronfair.words import UNKNOWN, listed, percent, spanned, times

WORST = 3  # findings told
COLUMNS = 8  # left out and named
_STYLE: dict[Tone, str] = {"alarm": "bold red", "caution": "bold yellow", "calm": "bold green", "neutral": "bold"}


def audit_report(report: Report) -> RenderableType:
    """Return the verdict first, then the figures of each attribute, the worst findings and what could be done."""
    attributes, verdict = report.attributes, report.verdict
    lead = Text(visible(f"{verdict.level.capitalize()}: {verdict.headline}"), style=_STYLE[verdict.tone])
    lines: list[RenderableType] = [lead, *filter(None, (verdict.details, verdict.threshold_text))]
    if report.feeding is not None and report.feeding.accuracy is None:
        lines.append(report.feeding.text)
    lines += [_table(attributes), *omissions(attributes), *_counterparts(attributes)]
    lines += _usual(report)
    lines += _proofs(attributes)
    lines += [f"Whom it hurts: {sentence}" for sentence in hurt_sentences(attributes)]
    lines += _groups(attributes)
    for finding in worst_cases(attributes, WORST):
        lines.append(f"• {finding.sentence} {finding.how_usual}".rstrip())
        if finding.replay:
            lines.append(Text(visible(f"  {finding.replay}"), style="dim", overflow="fold"))
    lines += [f"• {group.sentence}" for one in attributes for group in one.subgroups[:1]]
    lines += [f"Note: {note}" for note in notes_of(attributes)]
    lines.append(report.model.note)
    lines += _left_out(report)
    return Group(*lines, *_afterwards(report))


def _left_out(report: Report) -> list[str]:
    """Return which columns nobody looked at, and why."""
    reasons: dict[str, list[str]] = {}
    for one in report.data.left_out:
        reasons.setdefault(one.reason, []).append(one.column)
    more = {reason: f", … ({len(names)} in all)" if len(names) > COLUMNS else "" for reason, names in reasons.items()}
    return [f"Left out: {', '.join(names[:COLUMNS])}{more[why]}: {why}." for why, names in reasons.items()]


def _table(attributes: tuple[AttributeReport, ...]) -> Table:
    # Four rates and a search must fit into 80 columns: then the intervals stand below the rates, and all is close.
    populations = measured_populations(attributes)
    close = len(populations) > 2
    searched = ("search", "found") if len(populations) > 3 else ("search", "found", "lift")
    table = Table(
        title="How often the decision flips", box=SIMPLE_HEAD, padding=(0, 0, 0, 0 if close else 1), show_edge=False
    )
    for heading in ("attribute", *populations, *searched):
        justify: JustifyMethod = "left" if heading in ("attribute", "search") else "right"
        width = len("(0.461–0.673)") if close and heading in populations else None
        table.add_column(heading, justify=justify, width=width, no_wrap=heading in searched)
    for one in attributes:
        rates = [getattr(one.rates, population) for population in populations]
        cells = [one.name, *(UNKNOWN if rate is None else spanned(rate.rate, rate.low, rate.high) for rate in rates)]
        for search in one.searches:
            lift = "" if search.lift is None else times(search.lift)
            table.add_row(*cells, *(search.method, f"{search.findings:,}", lift)[: len(searched)])
            cells = [""] * len(cells)
        if not one.searches:
            table.add_row(*cells, "none")
    return table


def _counterparts(attributes: tuple[AttributeReport, ...]) -> list[RenderableType]:
    lines = counterpart_lines(attributes)
    if not lines:
        return []
    table = Table(title=TITLE, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False)
    for heading in COUNTERPART_HEADS:
        table.add_column(heading, justify="left" if heading == "attribute" else "right")
    for cells in lines:
        table.add_row(*cells)
    return [table, *counterpart_sentences(attributes)]


def _usual(report: Report) -> list[str]:
    """Return what plausible people are, and how many of the findings are such."""
    known = [
        (search.plausible_share, f"{percent(search.plausible_share)} by {search.method} ({one.name})")
        for one in report.attributes
        for search in one.searches
        if search.plausible_share is not None
    ]
    shares = f" Of the findings these are plausible: {listed([told for _, told in known])}." if known else ""
    if known and all(share == 1 for share, _ in known):
        shares = " All findings are plausible."
    if known:
        shares += " Plausible: at or above the 1st likelihood percentile of your data."
    return [] if report.data.population is None else [report.data.population.text + shares]


def _proofs(attributes: tuple[AttributeReport, ...]) -> list[RenderableType]:
    """Return what is proved, a line for each attribute; what cannot be proved is said once."""
    proofs = [(one, one.proved) for one in attributes if one.proved is not None]
    key = [Text(KEY, style="dim")] if any(proved.method for _, proved in proofs) else []
    return [*dict.fromkeys(strip_line(*proof) for proof in proofs), *key]


def _groups(attributes: tuple[AttributeReport, ...]) -> list[RenderableType]:
    lines = group_lines(attributes)
    if not lines:
        return []
    table = Table(title="How the groups of the table fare")
    for heading in HEADS:
        table.add_column(heading, overflow="fold")
    for cells in lines:
        table.add_row(*cells)
    return [table, *(f"Note: {sentence}" for sentence in left_out(attributes))]


def _afterwards(report: Report) -> list[RenderableType]:
    """Return what is said of a repair, the corpus, an earlier audit and the gate, where there are such."""
    lines: list[RenderableType] = []
    if report.repair is not None:
        longer = f" {report.repair.lead} {report.repair.command}" if report.repair.command else ""
        lines.append(f"Repair: {report.repair.text}{longer}")
    if report.corpus is not None:
        corpus = report.corpus
        lines.append(
            f"Corpus: {corpus.still_flips:,} of {corpus.replayed:,} past counterexamples still flip; "
            f"{corpus.added:,} added to {corpus.file}."
        )
    if report.baseline is not None:
        lines.append(f"Since {report.baseline.file}: {report.baseline.text}")
    for check in report.gate.checks if report.gate is not None else ():
        mark, style = ("FAILED", "bold red") if check.fired else ("passed", "green")
        lines.append(Text.assemble((mark, style), visible(f" {check.expression}: {check.text}")))
    return lines
