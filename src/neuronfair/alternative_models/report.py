"""A search for alternatives as text, as an HTML page with its front, and as a paragraph for the file of a regulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table

from neuronfair.alternative_models.candidates import CONTROL_ROWS, Candidate
from neuronfair.alternative_models.objectives import MEASURES
from neuronfair.alternative_models.parts import list_group_sizes
from neuronfair.alternative_models.session import AlternativesReport
from neuronfair.formatting import format_points, join_words, percent, pluralise, short_number, with_interval
from neuronfair.render.page import render_template

SHARES = ("accuracy", "balanced_accuracy", "roc_auc")  # qualities that are shown in percent


def write_headline(report: AlternativesReport) -> str:
    """Return the result in one sentence."""
    count, winner = pluralise(len(report.searched.candidates), "candidate"), report.winner
    if report.conclusion == "interrupted":
        return f"Interrupted after {count}. The test part was not used: the same command resumes."
    if winner is None:
        return f"No better alternative was found among {count}."
    before = report.shown[0]
    values = (format_quality(report, fit.quality.value) for fit in (winner, before))
    before_text, after_text = short_number(before.measure.value), short_number(winner.measure.value)
    return (
        f"{winner.candidate.name.capitalize()} lowers the {MEASURES[report.measure]} from {before_text} to "
        f"{after_text}, with {quality_name(report)} {' instead of '.join(values)} ({count} fitted)."
    )


def write_sentences(report: AlternativesReport) -> list[str]:
    """Return what a reader must know of the result, a sentence or two each."""
    rows, fits, settings, chance = report.rows, report.searched, report.settings, report.chance
    name, measure, sensitive = quality_name(report), MEASURES[report.measure], join_words(report.sensitive)
    sure = percent(settings.confidence)
    reasons = Counter(fit.error for fit in fits.candidates if fit.error is not None).most_common(1)
    reason = f" (mostly: {reasons[0][0]})" if reasons else ""
    lines = [
        f"Three parts of {report.data}: {rows['fit']:,} records to fit, {rows['choose']:,} to choose, {rows['test']:,} "
        f"to test. The test part was {'used once, for the models below' if report.shown else 'not used'}.",
        f"Candidates: {len(fits.candidates)}, of which {report.failed} could not be used{reason}. Controls, each "
        f"the baseline with another seed and {percent(CONTROL_ROWS)} of the rows: {len(fits.controls)}.",
    ]
    if report.shown:
        lines.append(
            f"Better means: on the test part, {name} not more than {format_loss(report, settings.tolerance)} below the "
            f"baseline, and the {measure} lower. The chance that any model below is called better wrongly is at most "
            f"{percent(1 - settings.confidence)}."
        )
    if report.winner is not None:
        after_text, before_text = (percent(fit.selected) for fit in (report.winner, report.shown[0]))
        lines.append(
            f"The model proposed selects ('{report.selected}') {after_text} of the test records, the baseline "
            f"{before_text}."
        )
    for fit in report.shown:
        if fit.better and fit.candidate.kind == "control":
            remark = "It is the model proposed: the search found nothing beyond chance. "
            lines.append(
                f"The best control, which differs in its seed and rows only, is better as well: its {measure} is "
                f"{short_number(fit.measure.value)}. {remark if fit is report.winner else ''}".rstrip()
            )
    gains = [(fit.quality_gain, fit.measure_gain) for fit in report.shown if fit.quality_gain and fit.measure_gain]
    if report.shown and not gains:
        lines.append("No candidate was worth a look at the test part: none kept the quality and lowered the measure.")
    elif report.shown and report.winner is None:
        margin = max(gain.value - gain.low for gain, _ in gains) - settings.tolerance
        less = max(gain.value - gain.low for _, gain in gains)
        side = "above" if margin > 0 else "below"
        lines.append(
            f"With {rows['test']:,} test records, a model like these can be called better only if its {name} is at "
            f"{'least' if margin > 0 else 'most'} {format_loss(report, abs(margin))} {side} the baseline's and "
            f"its {measure} at least {short_number(less)} lower."
        )
    if chance.of:
        lines.append(
            f"More search: of {chance.of} candidates drawn at random, {chance.better} looked better on the choose part "
            f"({sure} upper bound for the next one: {percent(chance.high)})."
        )
    if report.earlier:
        before = pluralise(report.earlier, "search", "searches")
        lines.append(
            f"Before it, {before} in the same folder used other test parts, which its confidence does not count."
        )
    if settings.allow_disparate_treatment:
        lines.append(f"Candidates may read {sensitive} at decision time (--allow-disparate-treatment).")
    else:
        lines.append(f"No candidate reads {sensitive} at decision time, and thresholds are the same for all.")
    return [*lines, *report.notes]


def quality_name(report: AlternativesReport) -> str:
    """Return the quality in words."""
    return {"roc_auc": "ROC AUC", "log_loss": "log likelihood"}.get(report.quality, report.quality.replace("_", " "))


def format_quality(report: AlternativesReport, value: float) -> str:
    """Return a value of the quality."""
    return percent(value) if report.quality in SHARES else short_number(value)


def format_loss(report: AlternativesReport, value: float) -> str:
    """Return a difference of the quality."""
    return format_points(value) if report.quality in SHARES else short_number(value)


def describe_changes(candidate: Candidate, report: AlternativesReport) -> str:
    """Return in words how a fit differs from the baseline."""
    if candidate.kind == "baseline":
        return "the estimator as it is"
    if candidate.kind == "control":
        return f"the baseline with another seed and {percent(CONTROL_ROWS)} of the rows"
    values, phrases = dict(candidate.parameters), []
    if count := int(values.pop("leave_out", 0)):
        phrases.append(f"without {join_words(report.proxies[:count])}")
    names = {
        "twins": "{} of the counterfactual twins added",
        "pairs": "{} of the findings added",
        "reweight": "group weights to the power {}",
        "bands": "numbers in {} bands",
    }
    for name, phrase in names.items():
        if value := float(values.pop(name, 0)):
            phrases.append(phrase.format(percent(value) if name in ("twins", "pairs") else short_number(value)))
    if values.pop("monotone", 0):
        phrases.append("monotone constraints")
    if share := float(values.get("silenced_share", 0)):
        phrases.append(f"{percent(share)} of the neurons of layer {int(values.get('layer', 0)) + 1} silenced")
    if float(values.pop("threshold", 0.5)) != 0.5:
        phrases.append(f"threshold {short_number(float(candidate.parameters['threshold']))}")
    if float(values.pop("rows", 1.0)) < 1:
        phrases.append(f"{percent(float(candidate.parameters['rows']))} of the rows")
    described = {"silenced_share", "layer", "leave_out", *names}
    changed = [name for name in values if name not in described and values[name] != report.hyper.get(name)]
    phrases += [f"{name.rpartition('__')[2]} {short_number(float(values[name]))}" for name in changed]
    blind = report.baseline_reads and not report.settings.allow_disparate_treatment
    return ", ".join(phrases) or f"the baseline {'without the sensitive attribute' if blind else 'with another seed'}"


def alternatives_report(report: AlternativesReport) -> RenderableType:
    """Return the result for a terminal."""
    columns = ("", quality_name(report), MEASURES[report.measure], "better", "changes")
    table = Table(*columns, title="On the test part")
    for fit in report.shown:
        mark = "" if fit.quality_gain is None else "yes" if fit.better else "no"
        span = with_interval(*fit.quality) if report.quality in SHARES else f"{fit.quality.value:.4g}"
        measure = f"{fit.measure.value:.3f} ({fit.measure.low:.3f}–{fit.measure.high:.3f})"
        table.add_row(fit.candidate.name, span, measure, mark, describe_changes(fit.candidate, report))
    return Lines(write_headline(report), *([table] if report.shown else []), *write_sentences(report))


def regulator_text(report: AlternativesReport) -> str:
    """Return a paragraph for the file of a regulator, which claims no more than was done."""
    rows, fits, settings, winner = report.rows, report.searched, report.settings, report.winner
    measure, name, sensitive = MEASURES[report.measure], quality_name(report), join_words(report.sensitive)
    small = f" (not compared: {list_group_sizes(report.left_out)})" if report.left_out else ""
    text = (
        f"Search for less discriminatory alternatives. Model: {report.estimator}, predicting '{report.target}' from "
        f"{report.data} ({sum(rows.values()):,} records). Groups by {sensitive}: {join_words(report.groups)}{small}. "
        f"Business purpose measured by {name}; discrimination measured by the {measure} for '{report.selected}'. "
        f"{len(fits.candidates)} alternatives were fitted to {rows['fit']:,} records ({report.failed} could not be "
        f"used), with {len(fits.controls)} refits of the baseline as controls (other seeds, "
        f"{percent(CONTROL_ROWS)} of the rows), and compared on {rows['choose']:,} others. "
        f"{max(0, len(report.shown) - 1)} were then measured, once, on {rows['test']:,} records that played no "
        f"part before, with intervals that hold together at {percent(settings.confidence)}. "
    )
    if report.conclusion == "interrupted":
        return text + "The search was interrupted, so it supports no conclusion.\n"
    if winner is None:
        bound = percent(report.chance.high) if report.chance.of else ""
        text += (
            f"None was shown to lose at most {format_loss(report, settings.tolerance)} of {name} and to have a lower "
            f"{measure}. This does not show that no such model exists"
        )
        text += f": one more random candidate may look better with a chance of up to {bound}. " if bound else ". "
    else:
        before = report.shown[0]
        after_text, before_text = ("{:.3f} ({:.3f} to {:.3f})".format(*fit.measure) for fit in (winner, before))
        text += (
            f"{winner.candidate.name.capitalize()} ({describe_changes(winner.candidate, report)}) has a {measure} "
            f"of {after_text} instead of {before_text} and {format_quality(report, winner.quality.value)} {name} "
            f"instead of {format_quality(report, before.quality.value)}. "
        )
        after_text, before_text = percent(winner.selected), percent(before.selected)
        text += f"It selects {after_text} of the records, the model before {before_text}. "
    if report.earlier:
        text += (
            f"Before it, {pluralise(report.earlier, 'search', 'searches')} in the same folder used other test parts. "
        )
    reads = "may read" if settings.allow_disparate_treatment else "do not read"
    return text + (
        f"Candidates {reads} {sensitive} at decision time; no threshold differs by group. Groups are used in fitting "
        "(weights, counterfactual twins) and in choosing among candidates. The results hold for people like those in "
        "the data set.\n"
    )


def _find_axis_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, with some room."""
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.01
    return low - margin, high + margin


def alternatives_page(report: AlternativesReport) -> str:
    """Return the result as one HTML page that opens offline."""
    searched = report.searched
    fits = [fit for fit in (*searched.controls, *searched.candidates, searched.baseline) if fit.error is None]
    return render_template(
        "alternatives.html",
        version=report.neuronfair,
        report=report,
        fits=fits,  # in the picture: quality upwards, the measure to the right
        quality_axis=_find_axis_ends([fit.quality for fit in fits]),
        measure_axis=_find_axis_ends([fit.measure for fit in fits]),
        headline=write_headline(report),
        sentences=write_sentences(report),
        paragraph=regulator_text(report),
        describe_changes=lambda fit: describe_changes(fit.candidate, report),
        format_quality=lambda value: format_quality(report, value),
        format_loss=lambda value: format_loss(report, value),
        quality_name=quality_name(report),
        measure=MEASURES[report.measure],
        MEASURES=MEASURES,
    )
