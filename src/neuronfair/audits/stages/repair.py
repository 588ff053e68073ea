"""What could be done about it: a short retraining with the findings, before and after, or why there is none."""

from __future__ import annotations

import shlex
from dataclasses import replace

from torch import nn

from neuronfair.audits.folder import WEIGHTS
from neuronfair.audits.provenance import Origin, replay_options
from neuronfair.audits.report.counterfactual import CounterfactualState, Interval
from neuronfair.audits.report.report import RepairReport, RepairState
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.stages.groups import group_metrics
from neuronfair.audits.wording.phrases import rate_of
from neuronfair.domain.tables.dataset import DATASETS, Dataset, Split
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.formatting import listed, percent, plain
from neuronfair.interpretation.profile import interpret
from neuronfair.measure.rate import Rate, flip_rate
from neuronfair.model.formats import returned_as
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.records import records_of
from neuronfair.model.train import linear_layers
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.progress import Progress
from neuronfair.repairs.counterfactual_pairs import held_out_effect
from neuronfair.repairs.evaluate import RepairOutcome
from neuronfair.repairs.retrain import SAMPLES, RepairSettings, Retraining, retrain, retrain_with_counterfactuals
from neuronfair.searches.evaluate import counterparts_of

# Enough to see whether retraining helps; `neuronfair repair` takes its time.
SHORT = TrainingSettings(epochs=15, batch=512, patience=4)
SMALL_TABLE = 20_000  # rows and people of pairs below which such large batches would give too few steps
UNTRIED = (
    "No short retraining was tried: that is for fully connected ReLU networks. The command trains the model "
    "again with the pairs that were found or, where that cannot be done here, writes them with labels for your own "
    "training; audit the new model then."
)
UNTRIED_ALIKE = (
    "No short retraining was tried: that is for fully connected ReLU networks. The command trains the model again with "
    "a counterpart of each training row, who has the row's label, or, where that cannot be done here, writes "
    "such pairs for your own training; audit the new model then."
)
PLACEBOS = 10  # shuffled tables of a trial
LOSS = 0.01  # accuracy that may be lost on validation rows


def propose_repair(
    case: AttributeCase,
    audit: AttributeAudit,
    opened: Opened,
    parts_seed: int | None,
    command: str | None,
    progress: Progress,
) -> RepairReport:
    """Return a short retraining with the findings, or why there is none.

    `parts_seed` is that of the split the model was trained with, so that the test rows are new to it; None where that
    is not known. `command` repairs the model for good; None where no command can.
    """
    why, alike = _impossible(case, audit, opened), counterparts_of(case.domain) is not None
    if why is not None:
        return RepairReport("none", why if command is None else UNTRIED_ALIKE if alike else UNTRIED, command)
    best = max(audit.outcomes, key=lambda outcome: len(outcome.findings))
    parts = case.data.split(case.seed if parts_seed is None else parts_seed)
    small = len(case.data) + 2 * len(best.findings) < SMALL_TABLE
    training = replace(SHORT, batch=64) if small else SHORT
    settings = RepairSettings(1.0, repeats=1, max_loss=LOSS, training=training, seed=case.seed)
    trial = replace(opened, refit=None)  # of the network; an estimator is fitted anew by the command
    pairs = "counterparts" if alike else "the findings"

    def note(epoch: int, _: object) -> None:
        progress(f"Training again with {pairs}", epoch, SHORT.epochs)

    try:
        if alike:
            work = retrain_with_counterfactuals(trial, parts, settings, progress=note)
        else:
            work = retrain(trial, parts, best.findings, best.seeds, settings, progress=note)
    except NeuronFairError as error:
        text = f"A short retraining with {pairs} did not help: {error}.{_longer(command)}"
        return RepairReport("none", text, command)
    if alike:
        return _by_counterparts(case, opened, work, parts, f"{_doubt(parts_seed)}{_longer(command)}", command)
    assert work.control is not None
    before, after, without = (
        replace(state, test=rate_of(_test_rate(one, case, parts)))
        for one, state in (
            (opened, _out(opened, work.before, case, parts)),
            (work.kept, _out(work.kept, work.after, case, parts)),
            (work.control, _state(work.without, case.confidence)),
        )
    )
    assert before.test is not None
    assert after.test is not None
    assert without.test is not None
    was, now = before.test.rate, after.test.rate
    by = listed([plain(name) for name in case.domain.sensitive])
    text = (
        f"A short retraining with {work.pairs:,} of the pairs found: of {before.test.of:,} test rows, held-out records "
        f"of the data set, decisions depend on {by} for {percent(now)} instead of {percent(was)}{_change(was, now)}, "
        f"of people drawn uniformly from the domain for {percent(after.rate.rate)} instead of "
        f"{percent(before.rate.rate)}"
        f"{_change(before.rate.rate, after.rate.rate)}. It {_points(100 * (before.accuracy - after.accuracy))} of "
        f"accuracy on test rows. The same retraining without the pairs ends at {percent(without.test.rate)} of the "
        f"test rows.{_doubt(parts_seed)}{_longer(command)}"
    )
    return RepairReport("retraining", text, command, before=before, after=after, without_findings=without)


def repair_command(case: AttributeCase, one: AttributeAudit, opened: Opened, origin: Origin) -> str | None:
    """Return the command that repairs the model with what was found, or writes the pairs to train it with.

    None where there is no table, no folder or no class to learn.
    """
    named, table = replay_options(opened, origin), origin.table is not None or case.data.name in DATASETS
    target, found = case.domain.target, any(len(outcome.findings) for outcome in one.outcomes)
    known = target is not None and opened.decision.classes(opened.model.outputs) == len(target.classes) > 0
    if case.folder is None or not found or named is None or not table or not (known and case.data.labelled):
        return None
    best = max(one.outcomes, key=lambda outcome: len(outcome.findings)).config.method
    words = ["neuronfair", "repair", str(case.folder / best)]
    words += ["--data", origin.table, *origin.beside] if origin.table is not None else []
    file = returned_as(WEIGHTS if origin.trained_here else opened.source, weights=origin.weights is not None)
    if file is None or (opened.refit is None and opened.module is None):
        return shlex.join([*words, "--augment", "pairs.csv"])
    return shlex.join([*words, *named, "--out", f"fair{file}"])


def _test_rate(one: Opened, case: AttributeCase, parts: Split) -> Rate:
    """Return the flip rate of the test rows."""
    return flip_rate(
        one.model,
        case.domain,
        population=parts.test,
        samples=len(parts.test),
        confidence=case.confidence,
        decision=case.decision,
        seed=case.seed,
    )


def _by_counterparts(
    case: AttributeCase, opened: Opened, work: Retraining, parts: Split, after_all: str, command: str | None
) -> RepairReport:
    """Return what a short retraining with counterparts came to, measured on test rows."""
    assert work.control is not None
    before, after, without = (
        replace(_out(one, outcome, case, parts), counterpart=_compared(one, case, parts))
        for one, outcome in ((opened, work.before), (work.kept, work.after), (work.control, work.without))
    )
    was, now, control = (state.counterpart.effect.rate for state in (before, after, without) if state.counterpart)
    by = listed([plain(name) for name in case.domain.sensitive])
    text = (
        f"A short retraining with a counterfactual twin of each training row, with the row's label: the excess flip "
        f"rate by {by} on test rows, over the permutation baseline, is {percent(now)} instead of {percent(was)}"
        f"{_change(was, now)}, and that {_points(100 * (before.accuracy - after.accuracy))} of accuracy; the same "
        f"retraining without them ends at {percent(control)}.{after_all}"
    )
    return RepairReport("retraining", text, command, before=before, after=after, without_findings=without)


def _compared(one: Opened, case: AttributeCase, parts: Split) -> CounterfactualState:
    found = held_out_effect(
        one.model, parts, case.decision, confidence=case.confidence, placebos=PLACEBOS, seed=case.seed
    )
    rate, placebo, effect = (Interval(*figure) for figure in (found.rate, found.placebo, found.effect))
    return CounterfactualState(rate, placebo, effect, found.of)


def _impossible(case: AttributeCase, audit: AttributeAudit, opened: Opened) -> str | None:
    """Return in one sentence why the model cannot be retrained here; None where it can."""
    target = case.domain.target
    if not any(len(outcome.findings) for outcome in audit.outcomes):
        return "Nobody was found, so there is nothing to repair."
    if opened.module is None:
        return (
            "A black box cannot be trained again from outside. Add the pairs that were found to its training data, "
            "both people of a pair with the same label, and audit the new model."
        )
    if target is None or not case.data.labelled or case.decision.kind != "argmax":
        return "The rows have no labels, or the model chooses no class, so it cannot be trained again here."
    try:
        layers = linear_layers(opened.module) if isinstance(opened.module, nn.Sequential) else []
    except ModelError:
        layers = []
    if not layers:
        return (
            "Only fully connected ReLU networks can be trained again here. Add the pairs that were found to the "
            "training data, both people of a pair with the same label, train with your own program, and audit again."
        )
    if layers[-1].out_features != len(target.classes):
        return f"The network has {layers[-1].out_features} outputs for {len(target.classes)} classes."
    return None


def _doubt(parts_seed: int | None) -> str:
    seen = " The model may have been trained on some of the test rows, which then flatter what it was before."
    return seen if parts_seed is None else ""


def _longer(command: str | None) -> str:
    if command is not None:
        return ""
    return (
        " This was a trial: to repair the model, add the pairs that were found to its training data, both people of a "
        "pair with the same label, and train with your own program."
    )


def _change(before: float, after: float) -> str:
    if not before or after == before:
        return ""
    return f" ({percent(round(abs(1 - after / before), 2))} {'less' if after < before else 'more'})"


def _points(lost: float) -> str:
    return (
        f"costs {lost:.1f} points" if lost >= 0.05 else f"gains {-lost:.1f} points" if lost <= -0.05 else "costs none"
    )


def _out(opened: Opened, outcome: RepairOutcome, case: AttributeCase, parts: Split) -> RepairState:
    test: Dataset = parts.test
    network = opened.model
    assert isinstance(network, Network)
    auc = interpret(network, case.domain, test.rows).worst.auc
    tested = records_of(network, test)
    groups, _ = group_metrics(tested.model, tested.data, case.decision)
    people = len(test) if counterparts_of(case.domain) is not None else SAMPLES
    state = replace(_state(outcome, case.confidence, people), groups=groups, auc=auc)
    if case.population is None:
        return state
    rate = flip_rate(
        network,
        case.domain,
        population=case.population,
        samples=SAMPLES,
        confidence=case.confidence,
        decision=case.decision,
        seed=case.seed + 3,  # other people than those whose rate is measured elsewhere
    )
    return replace(state, plausible=rate_of(rate))


def _state(outcome: RepairOutcome, confidence: float, people: int = SAMPLES) -> RepairState:
    rate = Rate(round(outcome.rate * people), people, "domain" if people == SAMPLES else "table", confidence)
    return RepairState(rate_of(rate), outcome.accuracy)
