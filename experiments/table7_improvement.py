"""Tables 7 and 9 of the paper: discrimination and the AUC of the most biased layer, before and after retraining."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from experiments.cases import (
    CASES,
    CLASSIFIERS,
    PAPER,
    PUBLISHED,
    WIDE,
    case_data,
    found,
    model_of,
    network,
    once,
    profile,
    search_job,
    split_of,
    starts,
    train_jobs,
)
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, mean
from experiments.metrics import deviation, spearman
from experiments.repairs.labels import Ensemble
from experiments.repairs.retrain import RepairSettings, retrain, without_findings
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret

from torch import nn

METHODS = ("aequitas", "symbgen", "adf", "eidig5", "neuronfair", "frontier")
OWN = ("neuronfair", "frontier")
SECONDS = 2  # times those of Table 5 are the most for SymbGen
SEEN = {"published": " (rows that these classifiers had seen)", "own": ""}
QUICK = ("adult-sex", "german-sex")


def improve(case: str, model: str | int, repeats: int, **config: Any) -> dict[str, Any]:
    """Search, retrain with a tenth of the findings, and measure before and after."""
    rows, module, seed = case_data(case), network(case, model).module, split_of(model)
    findings = found(case, model, **config)
    assert isinstance(module, nn.Sequential)
    if not len(findings):
        return {"refused": "nothing was found, so there is nothing to learn from"}
    done = retrain(
        module,
        rows.split(seed),
        findings,
        starts(case, config["seeds"], seed),
        RepairSettings(share=0.1, repeats=repeats, max_loss=math.inf, seed=seed),
        ensemble=_voters(case, seed),
        control=_control(case, model, module),
    )
    after = Network(done.module, rows.domain)
    return {
        "auc": profile(case, model).worst.auc,
        "rate": done.before.rate,
        "accuracy": done.before.accuracy,
        "rates": [o.rate for o in done.repeats],
        "accuracies": [o.accuracy for o in done.repeats],
        "kept": [done.after.rate, done.after.accuracy],
        "without": [done.without.rate, done.without.accuracy],
        "auc_after": interpret(after, rows.domain, rows.rows).worst.auc,
    }


@cache
def _voters(case: str, seed: int) -> Ensemble:
    """Return the networks that label the findings: the same for all methods."""
    return once(f"voters-{case}-{seed}", lambda: Ensemble(case_data(case).split(seed), seed=seed))


def _control(case: str, model: str | int, module: nn.Sequential) -> nn.Sequential:
    """Return a classifier retrained on the training rows alone: the same for all methods."""
    parts, settings = case_data(case).split(split_of(model)), RepairSettings(seed=split_of(model))
    return once(f"control-{case}-{model}", lambda: without_findings(module, parts, settings))


def run(scale: Scale, case: str, model: str | int, method: str) -> Job:
    """Return the retraining with the findings of one method: those of its search for Table 4, if it is there."""
    limit = {"seconds": SECONDS * scale.seconds} if method == "symbgen" else {}
    search = search_job(scale, case, model, method, split_of(model), **limit)
    return Job("table7_improvement:improve", {**search.arguments, "repeats": scale.retrainings})


def own(scale: Scale, case: str) -> list[int]:
    """Return the training seeds of our own classifiers that are retrained: one only for wide tables."""
    return list(range(min(1 if case in WIDE else 2, scale.trainings)))


def jobs(scale: Scale) -> list[Job]:
    """Return all retrainings."""
    cases = [case for case in CASES if not scale.quick or case in QUICK]
    # One case after the other, so that two processes need not train the same voters at the same time.
    published = [run(scale, case, model_of(case), m) for m in METHODS for case in cases]
    ours = [run(scale, case, seed, m) for m in OWN for case in cases for seed in own(scale, case)]
    return [*train_jobs(scale), *published, *ours]


def report(scale: Scale, results: Results) -> Report:
    """Return DM-RS, AUC and accuracy before and after, and how consistent DM-RS and AUC are."""
    rates, areas = [], []
    for case, (*_, printed) in CASES.items():
        done = [_retrained(results(run(scale, case, model_of(case), m))) for m in METHODS]
        first = next(filter(None, done), None)
        if first is None:
            continue
        before, *after = PAPER["dm_rs"][printed]
        paper = [f" ({100 * rate:.2f})" for rate in after] + [""]  # none for frontier
        ours = [figure([100 * rate for rate in d["rates"]], ".2f") if d else "–" for d in done]
        rates.append(
            [case, f"{100 * first['rate']:.2f} ({100 * before:.2f})", *map("".join, zip(ours, paper, strict=True))]
        )
        areas.append([case, f"{first['auc']:.3f}", *(f"{d['auc_after']:.3f}" if d else "–" for d in done)])
    costs = _costs(scale, results)
    consistency = _consistency(scale, results)
    return Report(
        "Tables 7 and 9: retraining with the findings",
        "A tenth of the findings joins the training rows. Both records of a pair get the same label, the vote of an "
        "ensemble that does not see the sensitive attribute. DM-RS is the flip rate of random records.",
        {
            "dm-rs": Table(
                ["case", "before", *METHODS],
                rates,
                f"DM-RS in percent, {scale.retrainings} retrainings each; the paper's in brackets. {CLASSIFIERS}. "
                f"SymbGen is stopped after {SECONDS * scale.seconds:g} s.",
                on_page=False,
            ),
            "auc": Table(
                ["case", "before", *METHODS],
                areas,
                "Table 9: AUC of the most biased layer; after: of the network kept.",
                on_page=False,
            ),
            "cost": Table(
                ["case, classifier, findings of", "before", "without findings", "after", "drop", "accuracy, points"],
                [cost.line() for cost in costs],
                "DM-RS, and the change of accuracy on held-out rows. 'Without findings': the same retraining on the "
                "training rows alone. The published classifiers have seen all rows, so their loss is overstated.",
                on_page=False,
            ),
            "consistency": consistency,
        },
        _claims(costs, consistency),
    )


class Cost(NamedTuple):
    """What retraining with the findings of one method did to one kind of classifier."""

    case: str
    where: str
    method: str
    before: float
    plain: float
    after: float
    lost: float

    @property
    def drop(self) -> float:
        """The share of DM-RS that is gone."""
        return 1 - self.after / self.before if self.before else 0.0

    def line(self) -> list[str]:
        """Return the cells of a table."""
        shares = [f"{x:.2%}" for x in (self.before, self.plain, self.after)]
        return [f"{self.case}, {self.where}, {self.method}", *shares, f"{self.drop:.0%}", f"{100 * self.lost:+.2f}"]


def _costs(scale: Scale, results: Results) -> list[Cost]:
    costs = []
    for case in CASES:
        for where, models in (("published", [model_of(case)]), ("own", own(scale, case))):
            for method in OWN:
                tried = [_retrained(results(run(scale, case, model, method))) for model in models]
                done = [d for d in tried if d]
                if done and (where == "own" or model_of(case) == PUBLISHED):
                    before, plain = mean(d["rate"] for d in done), mean(d["without"][0] for d in done)
                    after = mean(rate for d in done for rate in d["rates"])
                    lost = mean(a - d["accuracy"] for d in done for a in d["accuracies"])
                    costs.append(Cost(case, where, method, before, plain, after, lost))
    return costs


def _retrained(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a result, or None where there was nothing to retrain with."""
    return result if result and "rates" in result else None


def _consistency(scale: Scale, results: Results) -> Table:
    """Return how well AUC and DM-RS agree over all classifiers of a case, retrained or not."""
    lines = []
    for case in CASES:
        chosen = [(model_of(case), m) for m in METHODS] + [(s, m) for s in own(scale, case) for m in OWN]
        done = [d for c in chosen if (d := _retrained(results(run(scale, case, *c))))]
        # An untouched classifier was measured once with every method; it counts once, with the mean of its rates.
        before = {d["auc"]: mean(x["rate"] for x in done if x["auc"] == d["auc"]) for d in done}
        pairs = [*before.items(), *((d["auc_after"], d["kept"][0]) for d in done)]
        if len(pairs) < 3:
            continue
        auc, rate = zip(*pairs, strict=True)
        rho = spearman(auc, rate)
        lines.append(
            [
                case,
                str(len(pairs)),
                "–" if rho is None else f"{rho:.2f}",
                f"{deviation(auc):.3f}",
                f"{deviation(rate):.4f}",
            ]
        )
    return Table(
        ["case", "classifiers", "Spearman", "σ of AUC", "σ of DM-RS"],
        lines,
        "The paper has six classifiers a case and a Spearman correlation of 1 in all.",
        on_page=False,
    )


def _claims(costs: list[Cost], consistency: Table) -> list[Claim]:
    claims = []
    for where in ("published", "own"):
        mine = [c for c in costs if (c.where, c.method) == (where, "neuronfair")]
        front = [c.drop for c in costs if (c.where, c.method) == (where, "frontier")]
        if mine:
            drop, lost = mean(c.drop for c in mine), mean(c.lost for c in mine)
            claims.append(
                Claim(
                    "Retraining with NeuronFair's findings lowers DM-RS by 87% on average (Table 7), "
                    f"{where} classifiers",
                    drop >= 0.87,
                    f"by {drop:.0%} over {len(mine)} cases, at {100 * lost:+.2f} points of held-out "
                    f"accuracy{SEEN[where]}; with `frontier`'s findings by {mean(front):.0%}",
                    "neuronfair",
                )
            )
    known = [float(line[2]) for line in consistency.lines if line[2] != "–"]
    if known:
        claims.append(
            Claim(
                "AUC and DM-RS rank classifiers alike: Spearman 1 (Tables 7 and 9)",
                min(known) >= 0.995,
                f"the correlation over the classifiers of a case is {min(known):.2f} to {max(known):.2f}",
            )
        )
    return claims
