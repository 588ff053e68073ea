"""The input encoding check: whether the model gets rows as it was trained on them, by the labels of the data set."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from neuronfair.audits.report import EncodingCheckReport, EncodingLevel
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import draw_order
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.formatting import percent
from neuronfair.measure.rate import Rate
from neuronfair.measure.stats import Fit
from neuronfair.model.blackbox import score_in_batches, uncounted
from neuronfair.model.decision import Decision
from neuronfair.model.open import OpenedModel
from neuronfair.model.records import prepare_records

CERTAIN_ERRORS = 3.3  # standard errors that are evidence: one time in 2,000 by chance
MAX_RECORDS = 10_000  # records that are evaluated at most
MIN_ROWS_PER_CLASS = 10  # rows of each class without which nothing is concluded
FOREST_RECORDS, FOREST_TREES = 3_000, 60  # rows that a forest learns from, to see what can be known, and its trees
SATURATED_CONFIDENCE, MAX_SATURATED_SHARE = (
    0.999,
    0.9,
)  # an output is saturated from this confidence on; a larger share of them are no probabilities
LIKELY_ERRORS = 2.0  # standard errors that make a model suspicious
WRONG_SKILL, SUSPICIOUS_SKILL = (
    0.4,
    0.5,
)  # parts of the forest's skill: below them a model that breaks its promises is wrong or suspicious
SUFFICIENT_SKILL = 0.8  # part of the forest's skill from which on labels speak for a model
EXCHANGED_ROWS, MAX_COLUMN_PAIRS = (
    1_000,
    200,
)  # rows and pairs of columns that are exchanged, to see whether labels tell them apart
NORMAL_ERRORS = 1.96  # standard errors on each side of an interval of 95%
_REMEDY = "Check encode, center, scale, the order of attributes and values, and the classes in the domain file."


def check_encoding(opened_model: OpenedModel, data: Dataset) -> EncodingCheckReport:
    """Return whether the inputs seem to be encoded as in training: ok, suspicious or wrong, and the metrics."""
    decision = opened_model.decision
    order = draw_order(len(data), 0)[:MAX_RECORDS]
    data = data.take(order.to(data.rows.device))
    with uncounted(opened_model.model):
        records = prepare_records(opened_model, data)
        scores = score_in_batches(records.model, records.data.rows)
        report = _report_scores(scores, decision)
        target, classes = data.domain.target, decision.classes(opened_model.model.outputs)
        if opened_model.unassessed:
            text = f"Accuracy, error rates and the input encoding are not assessable: {opened_model.unassessed}."
            report = replace(report, level="not assessable", text=text)
        elif target is not None and len(target.classes) == classes > 1 and data.labelled:
            decisions = decision.decide(scores)
            if int(torch.bincount(data.labels, minlength=classes).min()) >= MIN_ROWS_PER_CLASS:
                fit = Fit.of(scores.cpu().numpy(), data.labels.cpu().numpy(), decision)
                report = _report_labels(report, data, fit, int((decisions == data.labels).sum()))
        return _report_order(report, opened_model, data)


def _report_scores(scores: Tensor, decision: Decision) -> EncodingCheckReport:
    """Return what can be said without labels."""
    rows, is_constant = len(scores), decision.is_unanimous(scores)
    text = "Accuracy, error rates and the input encoding are not assessable: the table has no labels, or too few."
    if decision.kind == "tolerance":
        text = "Accuracy and the input encoding are not assessable: the model's answers are quantities, only compared."
    if is_constant:
        text = f"This model gives all {rows:,} rows looked at the same decision. {text} {_REMEDY}"
    report = EncodingCheckReport("suspicious" if is_constant else "not assessable", text, rows, constant=is_constant)
    if decision.kind == "tolerance":
        return report
    counts = torch.bincount(decision.decide(scores), minlength=decision.classes(scores.shape[1]))
    fit = Fit.of(scores.cpu().numpy(), np.zeros(rows, dtype=np.int64), decision)
    return replace(
        report,
        decided=tuple((counts / rows).tolist()),
        probabilities=tuple(np.quantile(fit.probability[:, -1], (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()),
        confidence=float(fit.confidence.mean()),
        saturated=float((fit.confidence >= SATURATED_CONFIDENCE).mean()),
    )


def _report_labels(report: EncodingCheckReport, data: Dataset, fit: Fit, correct: int) -> EncodingCheckReport:
    """Return what the labels say, and the verdict."""
    labels = data.labels.cpu().numpy()
    shares = np.bincount(labels) / len(labels)
    low, high = Rate(correct, len(labels), "table").interval
    area, deviation = fit.auc()
    forest = _fit_forest(data.rows.cpu().numpy()[:FOREST_RECORDS], labels[:FOREST_RECORDS])
    report = replace(
        report,
        level="ok",
        accuracy=correct / len(labels),
        low=low,
        high=high,
        majority=float(shares.max()),
        calibration=fit.calibration,
        auc=area,
        auc_low=max(0.0, area - NORMAL_ERRORS * deviation),
        auc_high=min(1.0, area + NORMAL_ERRORS * deviation),
        attainable=forest[0],
    )
    has_bad_probabilities = bool(
        fit.error.mean() > 1 - (shares**2).sum()
    )  # it says less than the shares of the classes would
    low_accuracy = high < shares.max()
    level: EncodingLevel = "suspicious" if low_accuracy else "ok"
    if (low_accuracy and not _separates_classes(report)) or (
        has_bad_probabilities and _measure_shortfall(fit, forest, WRONG_SKILL) > CERTAIN_ERRORS
    ):
        level = "wrong"
    elif (
        has_bad_probabilities
        and _measure_shortfall(fit, forest, SUSPICIOUS_SKILL) > LIKELY_ERRORS
        and (report.saturated or 0.0) < MAX_SATURATED_SHARE
    ) or (report.constant and _measure_shortfall(fit, forest, SUSPICIOUS_SKILL) > 0):
        level = "suspicious"
    return replace(report, level=level, text=_describe_level(replace(report, level=level)))


def _separates_classes(report: EncodingCheckReport) -> bool:
    """Return whether a model tells the classes apart nearly as well as a forest that learned from the same rows."""
    return (report.auc_low or 0.0) >= 0.5 + SUFFICIENT_SKILL * ((report.attainable or 0.5) - 0.5) > 0.5


def _report_order(report: EncodingCheckReport, opened_model: OpenedModel, data: Dataset) -> EncodingCheckReport:
    """Return the conclusion where columns were matched by position and their order was not named.

    The labels confirm it if the model fits them about as well as a forest does, clearly worse once a sensitive column
    changes places with another of its kind, and not better once two others do.
    """
    if not opened_model.by_position or not data.inferred or data.inputs_in_order:
        return report
    order = ",".join(data.domain.names)
    if report.level == "wrong":
        remark = (
            f"Its inputs have no names, so columns were matched by position ({order}): --columns names another order."
        )
        return replace(report, text=f"{report.text} {remark}")
    doubt = "the data set has no labels that could confirm it"
    if report.accuracy is not None:
        doubt = "the labels do not confirm it"
        if report.level == "ok" and _separates_classes(report):
            pair = _find_exchangeable_columns(opened_model, data)
            if pair is None:
                return report
            doubt = f"the labels do not tell {pair[0]} from {pair[1]}"
    text = (
        f"The model has no names for its inputs, so columns were matched by position, and {doubt}: the flip rate may "
        f"be that of another column. If the model reads them in this order, say so: --columns {order}"
    )
    return replace(report, level="unconfirmed", text=text)


def _find_exchangeable_columns(opened_model: OpenedModel, data: Dataset) -> tuple[str, str] | None:
    """Return two columns of one kind that the labels do not tell apart: the fit is no worse once they change places.

    Without a sensitive one among them, the fit must be better.
    """
    from neuronfair.model.open.frames import table_inputs

    if opened_model.scores_of_frame is None:
        return None
    sample = data.take(torch.arange(min(EXCHANGED_ROWS, len(data)), device=data.rows.device))
    labels, domain = sample.labels.cpu().numpy(), sample.domain.to("cpu")
    table = table_inputs(domain).of_rows(sample.rows)
    fit = Fit.of(opened_model.scores_of_frame(table), labels, opened_model.decision)
    pairs = combinations([attribute for attribute in domain.attributes if attribute.is_input], 2)
    candidates = [(first.name, second.name) for first, second in pairs if _are_exchangeable(first, second)]
    candidates.sort(key=lambda pair: not {*pair} & {*domain.sensitive})  # those first
    for first, second in candidates[:MAX_COLUMN_PAIRS]:
        exchanged = table.assign(**{first: table[second], second: table[first]})
        difference = Fit.of(opened_model.scores_of_frame(exchanged), labels, opened_model.decision).error - fit.error
        limit = LIKELY_ERRORS if {first, second} & {*domain.sensitive} else -LIKELY_ERRORS
        if difference.mean() <= limit * difference.std() / sqrt(len(difference)):
            return first, second
    return None


def _are_exchangeable(first: Attribute, second: Attribute) -> bool:
    """Return whether a model of numbers could be given one attribute in the place of another: flags, or numbers."""
    if first.grid_size == 2 or second.grid_size == 2:
        return first.grid_size == second.grid_size
    return first.is_ordered and second.is_ordered and not first.values and not second.values


def _measure_shortfall(fit: Fit, forest: tuple[float, float], part: float) -> float:
    """Return by how many standard errors a model's skill lies below a part of the forest's."""
    area, deviation = fit.auc()
    gap = part * (forest[0] - 0.5) - (area - 0.5)
    return gap / (sqrt((part * forest[1]) ** 2 + deviation**2) or 1.0)


def _fit_forest(rows: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the AUC of a forest on rows that each of its trees has not seen, and its standard error."""
    from sklearn.ensemble import RandomForestClassifier

    if len(np.unique(labels)) < 2:
        return 0.5, 0.0
    forest = RandomForestClassifier(FOREST_TREES, min_samples_leaf=3, oob_score=True, random_state=0)
    forest.fit(rows, labels)
    return Fit.of(forest.oob_decision_function_, np.searchsorted(forest.classes_, labels), Decision()).auc()


def _describe_level(report: EncodingCheckReport) -> str:
    shares = f"{percent(report.accuracy)} right on this table (the most frequent class: {percent(report.majority)})"
    if report.level == "ok":
        return f"This model is {shares}, and no encoding mismatch was detected."
    doubt = "is probably" if report.level == "wrong" else "may be"
    area, forest = report.auc or 0.0, report.attainable or 0.0
    if (report.high or 0.0) < (report.majority or 0.0) and report.level == "suspicious":
        return (
            f"This model is {shares}, which is less, though it tells the classes apart (ROC AUC {area:.2f}, a forest "
            f"{forest:.2f}): it weighs the classes, or they are in another order, or the encoding may be wrong. "
            f"{_REMEDY}"
        )
    evidence = f"Its AUC is {area:.2f}, that of a forest that learns from the same rows {forest:.2f}."
    if forest > 0.6 and 1 - area > forest - 0.1:
        evidence += " It ranks the records the wrong way round: the classes may be swapped."
    model = "This model gives every record the same decision," if report.constant else "This model is"
    return f"{model} {shares}: the encoding {doubt} wrong. {evidence} {_REMEDY}"
