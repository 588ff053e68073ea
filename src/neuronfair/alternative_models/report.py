"""A search for alternatives as text, as an HTML page with its front, and as a paragraph for the file of a regulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table

from neuronfair.alternative_models.candidates import CONTROL_ROWS, Candidate
from neuronfair.alternative_models.objectives import MEASURES
from neuronfair.alternative_models.parts import counted
from neuronfair.alternative_models.session import AlternativesReport
from neuronfair.formatting import listing, percent, plural, pp, short_number, with_interval
from neuronfair.render.page import render_template

SHARES = ("accuracy", "balanced_accuracy", "roc_auc")  # qualities that are shown in percent


def headline(report: AlternativesReport) -> str:
    """Return the result in one sentence."""
    tried, one = plural(len(report.searched.candidates), "candidate"), report.winner
    if report.conclusion == "interrupted":
        return f"Interrupted after {tried}. The test part was not used: the same command resumes."
    if one is None:
        return f"No better alternative was found among {tried}."
    before = report.shown[0]
    values = (quality(report, shown.quality.value) for shown in (one, before))
    was, now = short_number(before.measure.value), short_number(one.measure.value)
    return (
        f"{one.candidate.name.capitalize()} lowers the {MEASURES[report.measure]} from {was} to {now}, with"
        f" {quality_name(report)} {' instead of '.join(values)} ({tried} fitted)."
    )


def sentences(report: AlternativesReport) -> list[str]:
    """Return what a reader must know of the result, a sentence or two each."""
    rows, searched, settings, chance = report.rows, report.searched, report.settings, report.chance
    name, measure, sensitive = quality_name(report), MEASURES[report.measure], listing(report.sensitive)
    sure = percent(settings.confidence)
    why = Counter(one.error for one in searched.candidates if one.error is not None).most_common(1)
    reason = f" (mostly: {why[0][0]})" if why else ""
    found = [
        f"Three parts of {report.data}: {rows['fit']:,} records to fit, {rows['choose']:,} to choose, {rows['test']:,} "
        f"to test. The test part was {'used once, for the models below' if report.shown else 'not used'}.",
        f"Candidates: {len(searched.candidates)}, of which {report.failed} could not be used{reason}. Controls, each "
        f"the baseline with another seed and {percent(CONTROL_ROWS)} of the rows: {len(searched.controls)}.",
    ]
    if report.shown:
        found.append(
            f"Better means: on the test part, {name} not more than {lost(report, settings.tolerance)} below the "
            f"baseline, and the {measure} lower. The chance that any model below is called better wrongly is at most "
            f"{percent(1 - settings.confidence)}."
        )
    if report.winner is not None:
        now, was = (percent(one.selected) for one in (report.winner, report.shown[0]))
        found.append(f"The model proposed selects ('{report.selected}') {now} of the test records, the baseline {was}.")
    for one in report.shown:
        if one.better and one.candidate.kind == "control":
            known = "It is the model proposed: the search found nothing beyond chance. "
            found.append(
                f"The best control, which differs in its seed and rows only, is better as well: its {measure} is "
                f"{short_number(one.measure.value)}. {known if one is report.winner else ''}".rstrip()
            )
    gains = [(one.quality_gain, one.measure_gain) for one in report.shown if one.quality_gain and one.measure_gain]
    if report.shown and not gains:
        found.append("No candidate was worth a look at the test part: none kept the quality and lowered the measure.")
    elif report.shown and report.winner is None:
        kept = max(gain.value - gain.low for gain, _ in gains) - settings.tolerance
        less = max(gain.value - gain.low for _, gain in gains)
        side = "above" if kept > 0 else "below"
        found.append(
            f"With {rows['test']:,} test records, a model like these can be called better only if its {name} is at "
            f"{'least' if kept > 0 else 'most'} {lost(report, abs(kept))} {side} the baseline's and its {measure} at "
            f"least {short_number(less)} lower."
        )
    if chance.of:
        found.append(
            f"More search: of {chance.of} candidates drawn at random, {chance.better} looked better on the choose part "
            f"({sure} upper bound for the next one: {percent(chance.high)})."
        )
    if report.earlier:
        before = plural(report.earlier, "search", "searches")
        found.append(
            f"Before it, {before} in the same folder used other test parts, which its confidence does not count."
        )
    if settings.allow_disparate_treatment:
        found.append(f"Candidates may read {sensitive} at decision time (--allow-disparate-treatment).")
    else:
        found.append(f"No candidate reads {sensitive} at decision time, and thresholds are the same for all.")
    return [*found, *report.notes]


def quality_name(report: AlternativesReport) -> str:
    """Return the quality in words."""
    return {"roc_auc": "ROC AUC", "log_loss": "log likelihood"}.get(report.quality, report.quality.replace("_", " "))


def quality(report: AlternativesReport, value: float) -> str:
    """Return a value of the quality."""
    return percent(value) if report.quality in SHARES else short_number(value)


def lost(report: AlternativesReport, value: float) -> str:
    """Return a difference of the quality."""
    return pp(value) if report.quality in SHARES else short_number(value)


def changes(one: Candidate, report: AlternativesReport) -> str:
    """Return in words how a fit differs from the baseline."""
    if one.kind == "baseline":
        return "the estimator as it is"
    if one.kind == "control":
        return f"the baseline with another seed and {percent(CONTROL_ROWS)} of the rows"
    values, said = dict(one.parameters), []
    if count := int(values.pop("leave_out", 0)):
        said.append(f"without {listing(report.proxies[:count])}")
    names = {
        "twins": "{} of the counterfactual twins added",
        "pairs": "{} of the findings added",
        "reweight": "group weights to the power {}",
        "bands": "numbers in {} bands",
    }
    for name, phrase in names.items():
        if value := float(values.pop(name, 0)):
            said.append(phrase.format(percent(value) if name in ("twins", "pairs") else short_number(value)))
    if values.pop("monotone", 0):
        said.append("monotone constraints")
    if share := float(values.get("silenced_share", 0)):
        said.append(f"{percent(share)} of the neurons of layer {int(values.get('layer', 0)) + 1} silenced")
    if float(values.pop("threshold", 0.5)) != 0.5:
        said.append(f"threshold {short_number(float(one.parameters['threshold']))}")
    if float(values.pop("rows", 1.0)) < 1:
        said.append(f"{percent(float(one.parameters['rows']))} of the rows")
    own = {"silenced_share", "layer", "leave_out", *names}
    other = [name for name in values if name not in own and values[name] != report.hyper.get(name)]
    said += [f"{name.rpartition('__')[2]} {short_number(float(values[name]))}" for name in other]
    blind = report.baseline_reads and not report.settings.allow_disparate_treatment
    return ", ".join(said) or f"the baseline {'without the sensitive attribute' if blind else 'with another seed'}"


def alternatives_report(report: AlternativesReport) -> RenderableType:
    """Return the result for a terminal."""
    columns = ("", quality_name(report), MEASURES[report.measure], "better", "changes")
    table = Table(*columns, title="On the test part")
    for one in report.shown:
        mark = "" if one.quality_gain is None else "yes" if one.better else "no"
        span = with_interval(*one.quality) if report.quality in SHARES else f"{one.quality.value:.4g}"
        measure = f"{one.measure.value:.3f} ({one.measure.low:.3f}–{one.measure.high:.3f})"
        table.add_row(one.candidate.name, span, measure, mark, changes(one.candidate, report))
    return Lines(headline(report), *([table] if report.shown else []), *sentences(report))


def regulator_text(report: AlternativesReport) -> str:
    """Return a paragraph for the file of a regulator, which claims no more than was done."""
    rows, searched, settings, winner = report.rows, report.searched, report.settings, report.winner
    measure, name, sensitive = MEASURES[report.measure], quality_name(report), listing(report.sensitive)
    small = f" (not compared: {counted(report.left_out)})" if report.left_out else ""
    text = (
        f"Search for less discriminatory alternatives. Model: {report.estimator}, predicting '{report.target}' from "
        f"{report.data} ({sum(rows.values()):,} records). Groups by {sensitive}: {listing(report.groups)}{small}. "
        f"Business purpose measured by {name}; discrimination measured by the {measure} for '{report.selected}'. "
        f"{len(searched.candidates)} alternatives were fitted to {rows['fit']:,} records ({report.failed} could not be "
        f"used), with {len(searched.controls)} refits of the baseline as controls (other seeds, "
        f"{percent(CONTROL_ROWS)} of the rows), and compared on {rows['choose']:,} others. "
        f"{max(0, len(report.shown) - 1)} were then measured, once, on {rows['test']:,} records that played no "
        f"part before, with intervals that hold together at {percent(settings.confidence)}. "
    )
    if report.conclusion == "interrupted":
        return text + "The search was interrupted, so it supports no conclusion.\n"
    if winner is None:
        bound = percent(report.chance.high) if report.chance.of else ""
        text += (
            f"None was shown to lose at most {lost(report, settings.tolerance)} of {name} and to have a lower "
            f"{measure}. This does not show that no such model exists"
        )
        text += f": one more random candidate may look better with a chance of up to {bound}. " if bound else ". "
    else:
        before = report.shown[0]
        now, was = ("{:.3f} ({:.3f} to {:.3f})".format(*one.measure) for one in (winner, before))
        text += (
            f"{winner.candidate.name.capitalize()} ({changes(winner.candidate, report)}) has a {measure} of {now} "
            f"instead of {was} and {quality(report, winner.quality.value)} {name} instead of "
            f"{quality(report, before.quality.value)}. "
        )
        now, was = percent(winner.selected), percent(before.selected)
        text += f"It selects {now} of the records, the model before {was}. "
    if report.earlier:
        text += f"Before it, {plural(report.earlier, 'search', 'searches')} in the same folder used other test parts. "
    reads = "may read" if settings.allow_disparate_treatment else "do not read"
    return text + (
        f"Candidates {reads} {sensitive} at decision time; no threshold differs by group. Groups are used in fitting "
        "(weights, counterfactual twins) and in choosing among candidates. The results hold for people like those in "
        "the data set.\n"
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, with some room."""
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.01
    return low - room, high + room


def alternatives_page(report: AlternativesReport) -> str:
    """Return the result as one HTML page that opens offline."""
    searched = report.searched
    fits = [one for one in (*searched.controls, *searched.candidates, searched.baseline) if one.error is None]
    return render_template(
        "alternatives.html",
        version=report.neuronfair,
        report=report,
        fits=fits,  # in the picture: quality upwards, the measure to the right
        quality_axis=_ends([one.quality for one in fits]),
        measure_axis=_ends([one.measure for one in fits]),
        headline=headline(report),
        sentences=sentences(report),
        paragraph=regulator_text(report),
        describe_changes=lambda one: changes(one.candidate, report),
        format_quality=lambda value: quality(report, value),
        format_loss=lambda value: lost(report, value),
        quality_name=quality_name(report),
        measure=MEASURES[report.measure],
        MEASURES=MEASURES,
    )
