"""Reports of made-up audits: a small one worked out by hand, and `adult`, of realistic shape and size."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neuronfair.audits import report as r
from neuronfair.audits.report import attribute as e
from neuronfair.audits.report import counterfactual as c
from neuronfair.audits.report.attribute import FlipRateReport, Interpretation, LayerReport, ProofSummary, Rates
from neuronfair.audits.wording.summary import describe_certificate
from neuronfair.measure.rate import Rate
from neuronfair.model.decision import Decision
from neuronfair.proof.certificate import DataSetClaims, ProofReport, RecordShare, RowShare

MODEL = r.ModelReport(
    source="m.onnx", kind="ONNX", white_box=True, note="White box.", fingerprint="abc", outputs=2,
    accuracy={"train": 0.9, "test": 0.8},
)  # fmt: skip
REPRODUCTION = r.Reproduction(
    command="neuronfair audit people.csv", seed=0, created="2024-05-06T07:08:09+0000", python="3.11.7",
    torch="2.13.0", numpy="2.3.1", platform="Linux-x86_64", domain="d1", rows="r1", model="abc",
)  # fmt: skip
REGRESSION_SET = r.RegressionSetReport(
    file="c.jsonl", replayed=3, still_flips=1, fixed=2, unfit=1, added=4, examples=("age 39: decided low",),
    notes=("line 3: column 'x' is missing",),
)  # fmt: skip


def rate(found: int, people: int, population: Any = "domain") -> FlipRateReport:
    measured = Rate(found, people, "domain")
    return FlipRateReport(population, measured.rate, *measured.interval, people, found, 0.95)


def rates(found: int, people: int = 20_000, table: int = 1213) -> Rates:
    return Rates(rate(table, 20_000, "table"), rate(found // 2, people, "plausible"), rate(found, people))


def proved(
    fair: int, unfair: int = 0, people: int = 1000, name: str = "sex", data_set: DataSetClaims | None = None
) -> ProofSummary:
    parts = [RowShare.of(count, people) for count in (people, fair, unfair, people - fair - unfair)]
    whole = fair + unfair == people
    about = ("adult", "0" * 64, tuple(name.split("+")), "", Decision())
    report = ProofReport(*about, *parts, 96, 2.5, whole, "bounds of a network", data_set=data_set)
    return ProofSummary.of(report, describe_certificate(report)[0])


def certified_rows(fair: int, unfair: int = 0, rows: int = 1000) -> DataSetClaims:
    parts = [RecordShare.of(count, rows) for count in (fair, unfair, rows - fair - unfair)]
    return DataSetClaims(rows, *parts, without_twin=0, outside_domain=0)


def search(method: str, findings: int = 50, lift: float | None = 4.0, tried: int = 1000, **more: Any) -> e.SearchReport:
    gsr = findings / tried
    figures: dict[str, Any] = {
        "method": method, "folder": f"sex/{method}", "findings": findings, "tried": tried, "gsr": gsr, "seconds": 1.5,
        "findings_per_second": findings / 1.5, "random_gsr": gsr / lift if lift else 0.0, "lift": lift,
        "random_direction_gsr": 0.4 * gsr, "lift_over_random_direction": 2.5 if findings else None, "violations": 0,
        "stop": "global: walkers; local: steps",
    }  # fmt: skip
    return e.SearchReport(**figures | more)


def finding(name: str = "sex", **more: Any) -> e.Finding:
    made = e.Finding(
        number=17, method="frontier", row={"age": 39, name: "F"}, changed=(e.Change(name, "F", "M"),), decision="low",
        twin_decision="high", score=1.0, twin_score=-2.0, gap=3.0,
        sentence=f"A person with age 39 is decided low; with {name} M instead of F: high.",
        replay=f"neuronfair show RUN/{name}/frontier 17",
    )  # fmt: skip
    return replace(made, **more)


def layer(name: str, auc: float, act_diff: Sequence[float] = (0.1, 0.5)) -> LayerReport:
    return LayerReport(name, len(act_diff), auc, 0.3, (1,), tuple(act_diff), ((0.0, 1.0), (0.25, 0.5), (0.5, 0.0)))


GROUPS = (
    e.GroupReport("F", 100, 0.26, 0.74, 0.5, 0.1),
    e.GroupReport("M", 100, 0.65, 0.65, 0.8, 0.5),
    e.GroupReport("X", 9, 1.0),
)
DISPARITY = e.Disparity(
    "yes", 0.95, e.Gap("selection rate", 0.4, 0.281, 0.549, "F", "M", ("X (9 rows)",)),
    e.Gap("selection rate", 0.39, 0.2, 0.5, "F", "M", ("X (9 rows)",)), None, {"error_rate.difference": "no labels"},
)  # fmt: skip


def attribute(name: str = "sex", found: int = 300, people: int = 10_000, **more: Any) -> e.AttributeReport:
    made = e.AttributeReport(
        name=name, sensitive=tuple(name.split("+")), twins=1,
        rates=Rates(table=rate(2, 50, "table"), domain=rate(found, people)),
        interpretation=Interpretation("l2", (layer("l1", 0.2), layer("l2", 0.4))),
        searches=(search("frontier", 80, 8.0), search("neuronfair-plus")),
        severity=e.SeverityReport(1.0, 2.5, 3.0, e.Histogram((0.0, 1.0, 3.0), (60, 40))),
        worst=(finding(name),),
    )  # fmt: skip
    return replace(made, **more)


def fair(name: str = "sex", **more: Any) -> e.AttributeReport:
    """Nobody was found, and few can be there."""
    nobody = (search("frontier", 0, None), search("neuronfair-plus", 0, None))
    rates = Rates(table=rate(0, 10_000, "table"), domain=rate(0, 10_000))
    return attribute(name, **{"rates": rates, "searches": nobody, "severity": None, "worst": ()} | more)


def counterfactual(
    groups: Sequence[str] = ("Male", "Female"), *, claimed: bool = True, **more: Any
) -> c.CounterfactualReport:
    """A counterfactual test of these groups: men lose, women gain; no more than chance where nothing is claimed."""
    rate, baseline, effect = (
        (c.Interval(0.19, 0.181, 0.199), c.Interval(0.0003, 0.0, 0.0007), c.Interval(0.1897, 0.1806, 0.1988))
        if claimed
        else (c.Interval(0.031, 0.019, 0.043), c.Interval(0.028, 0.012, 0.044), c.Interval(0.003, -0.009, 0.015))
    )
    pairs = [(i, own, other) for i, own in enumerate(groups) for other in groups if other != own]
    size = 1.0 if claimed else 0.1
    moves = tuple(
        c.MoveReport(own, other, 20_000 // (i + 1), 0.2 * size, *sides, 0.018, 0.01)
        for i, own, other in pairs
        for sides in [(0.171 * size, 0.013 * size) if i == 0 else (0.006 * size, 0.08 * size)]
    )
    made = c.CounterfactualReport(
        **vars(rate), of=20_000, draws=32,
        permutation_baseline=baseline, effect=effect, claimed=claimed, permutations=20,
        confidence=0.95,
        sentence="Had they been of the other group, 19% of 20,000 people would get a different decision.",
        lost=0.11, gained=0.05, moves=moves,
        disadvantaged="Men as women lose '>50K' in 17.1% of cases." if claimed else "",
        mediators=(
            c.MediatorReport(("relationship",), 0.58), c.MediatorReport(("relationship", "marital_status"), 0.81),
        ),
        mediators_text="81% of the effect goes through relationship and marital status." if claimed else "",
        auc=0.93, predictability_text="The model's other inputs tell sex with an AUC of 0.93.", fixed=("age",),
        legitimate=(c.ResolvingAttribute("hours_per_week", "Twins keep hours per week, since it is resolving."),),
        left_out=("Other",),
    )  # fmt: skip
    return replace(made, **more)


def unread(made: r.Report, *found: c.CounterfactualReport) -> r.Report:
    """The same audit of a model that does not read the sensitive attributes: counterfactuals speak."""
    note = e.Note(e.NOT_USED, "The model does not read it.", "Look at counterfactuals.")
    attributes = tuple(
        replace(
            one,
            rates=rates(0, table=0),
            direction=(),
            health=(note,),
            counterfactual=what,
            search_twins="counterfactual",
            proved=None,
        )
        for one, what in zip(made.attributes, found, strict=True)
    )
    data = replace(made.data, favourable=made.data.classes[-1])
    return replace(made, attributes=attributes, data=data)


def report(*attributes: e.AttributeReport, **more: Any) -> r.Report:
    made = r.Report(
        neuronfair="0.1.0",
        verdict=r.Verdict("dependence found", "The decision flips for 3% of people."),
        data=r.DataReport("people", 50, 2, ("sex",)),
        model=MODEL,
        decision=r.DecisionReport("argmax", 0.0),
        attributes=attributes or (attribute(),),
        reproduction=REPRODUCTION,
    )
    return replace(made, **more)


def with_first(made: r.Report, **changes: Any) -> r.Report:
    """The same report with something else about its first attribute."""
    first, *others = made.attributes
    return replace(made, attributes=(replace(first, **changes), *others))


# An audit of Adult

PEOPLE: dict[str, Sequence[Any]] = {
    "age": range(17, 91),
    "workclass": ("Private", "Self-emp-inc", "Federal-gov", "Local-gov", "Never-worked"),
    "education": ("HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate"),
    "marital_status": ("Married-civ-spouse", "Never-married", "Divorced", "Widowed"),
    "occupation": ("Exec-managerial", "Craft-repair", "Sales", "Tech-support", "Farming-fishing"),
    "relationship": ("Husband", "Wife", "Own-child", "Not-in-family"),
    "race": ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other"),
    "sex": ("Female", "Male"),
    "capital_gain": range(0, 100_000, 99),
    "capital_loss": range(0, 4357, 5),
    "hours_per_week": range(1, 100),
    "native_country": ("United-States", "Mexico", "Philippines", "Germany", "Canada"),
    "final_weight": range(1, 9),
}
LAYERS = {  # neurons, and how strongly they react
    "layer1": (64, 0.2), "layer2": (32, 0.5), "layer3": (16, 0.35), "layer4": (8, 0.3), "layer5": (4, 0.2)
}  # fmt: skip


def adult(
    *sets: tuple[str, ...], classes: tuple[str, ...] = ("<=50K", ">50K"), findings: int = 300, extra: int = 0
) -> r.Report:
    """An audit of Adult by each choice of sensitive attributes, with everything that an audit may hold."""
    sets = sets or (("sex",),)
    attributes = tuple(_choice(i, one, classes, findings, extra) for i, one in enumerate(sets))
    names = tuple(dict.fromkeys(word for one in sets for word in one))
    text = f"Decisions depend on {names[0]} for 6.07% of people (1,213 of 20,000)."
    return report(
        *attributes,
        verdict=r.Verdict("above the threshold", text, ("More.",), "failed", "1 of 2 thresholds failed: rate > 0.01."),
        data=r.DataReport(
            "adult", 45_222, 13 + extra, names, "income", classes,
            population=r.PopulationReport(
                "table", 45_222, "Realistic synthetic records are drawn from a model.", 0.61, -19.2
            ),
        ),
        model=replace(
            MODEL, source="trained on adult", kind="neuronfair", trained_here=True, fingerprint="9f2c61d0a4b7",
            accuracy={"train": 0.8571, "test": 0.8493}, layers={name: size for name, (size, _) in LAYERS.items()},
        ),
        regression_set=replace(REGRESSION_SET, replayed=41, still_flips=3, fixed=38, unfit=2, added=10),
        baseline=r.BaselineReport(
            "last/audit.json",
            (r.FigureChange("sex.rate", 0.0241, 0.0182, -0.008, -0.004, True, "It fell from 2.41% to 1.82%."),),
            "sex.rate fell from 2.41% to 1.82%.",
        ),
        gate=r.Gate(False, (
            r.GateCheck("rate > 0.01", "sex", 0.0182, 0.0163, 0.0201, "upper end", True, "its upper end is above 1%."),
            r.GateCheck("regression_set.still_flips > 5", None, 3, None, None, "value", False, "it is not above 5."),
        )),
        seconds=r.Seconds(43.7, 1.2, 21.9, 0.8, 12.1),
        reproduction=replace(
            REPRODUCTION, command="neuronfair audit adult --sensitive sex --seed 0 --out neuronfair-audit",
            model="9f2c61d0a4b7", domain="5b1e77aa90c2", rows="c0ffee123456",
            alternatives="neuronfair alternatives adult --sensitive sex --estimator boosting --out alternatives",
        ),
    )  # fmt: skip


def nothing_found() -> r.Report:
    """A black box in which nobody was found, with nothing but what is always there."""
    made = adult(findings=0)
    black_box = replace(made.model, white_box=False, layers={}, accuracy=None, kind="XGBoost", note="Black box.")
    control = {"random_direction_gsr": None, "lift_over_random_direction": None}
    return with_first(
        replace(
            made, verdict=r.Verdict("no dependence found", "No decision was found that depends on sex."),
            model=black_box, regression_set=None, baseline=None, gate=None,
        ),
        interpretation=None, severity=None, mean_distance=None, regions=None, coverage=None, rates=rates(0, table=0),
        searches=(search("aequitas", 0, None, 50_000, **control),), subgroups=(), health=(), proved=None,
    )  # fmt: skip


def _choice(i: int, sensitive: tuple[str, ...], classes: Sequence[str], n: int, extra: int) -> e.AttributeReport:
    draw = random.Random(i)
    people = tuple(_person(draw, 37 * number, sensitive, classes, extra) for number in range(n))
    gaps = sorted(person.gap for person in people)
    edges = tuple(0.05 * step for step in range(31))
    counts = [round(draw.uniform(0.8, 1.2) * 9000 * math.exp(-6 * edge)) for edge in edges[:-1]]
    counts[0] += 40_000 - sum(counts)  # different people, whom both searches found together
    bins = e.Histogram(edges, tuple(counts))
    searches = (("frontier", 48_211, 102_400), ("neuronfair-plus", 16_007, 98_304))
    return e.AttributeReport(
        name="+".join(sensitive), sensitive=sensitive, twins=1, rates=rates(364 + 50 * i, table=1213 + i),
        proved=proved(95 * 10**13, 9 * 10**12, 10**15, "+".join(sensitive)),
        groups=tuple(
            e.GroupReport(value, 20_000 - 4321 * j, 0.11 + 0.13 * j) for j, value in enumerate(PEOPLE[sensitive[0]])
        ),
        interpretation=Interpretation("layer2", tuple(_layer(draw, name, *LAYERS[name]) for name in LAYERS)),
        searches=tuple(search(method, found, found / tried / 0.0182, tried) for method, found, tried in searches),
        severity=e.SeverityReport(gaps[n // 2], gaps[int(0.95 * n)], gaps[-1], bins) if gaps else None,
        mean_distance=0.412, regions=9321, coverage=e.CoverageReport(0.62, 0.41),
        worst=tuple(sorted(people, key=lambda person: -person.gap)[:10]), findings=people,
        subgroups=tuple(
            e.SubgroupReport(
                text, (e.Condition("hours_per_week", min=41),), 0.034, 0.31, rate(found, 2000), found / 2000 / 0.0182,
                f"People with {text} are discriminated against by {' and '.join(sensitive)}.",
            )
            for text, found in (("hours per week at least 41", 760), ("capital gain 4000 to 7500", 310))
        ),
        health=(
            e.Note("seeds-already-discriminating", "612 of 1,000 seeds flip before any step.", "Compare with random."),
        ),
    )  # fmt: skip


def _person(draw: random.Random, number: int, names: Sequence[str], classes: Sequence[str], extra: int) -> e.Finding:
    row = {attribute: draw.choice(values) for attribute, values in PEOPLE.items()}
    row |= {f"survey_question_{i}": draw.randrange(5) for i in range(extra)}
    changed = tuple(
        e.Change(name, row[name], draw.choice([value for value in PEOPLE[name] if value != row[name]]))
        for name in names
    )  # fmt: skip
    own, twin = draw.sample(classes, 2)
    score, gap = draw.uniform(0.0, 0.1), draw.expovariate(6)
    swap = " and ".join(f"{c.attribute} {c.twin} instead of {c.own}" for c in changed)
    return finding(
        number=number, row=row, changed=changed, decision=own, twin_decision=twin, score=score, twin_score=score - gap,
        gap=gap, plausibility=draw.random() ** 4,
        replay=f"neuronfair show neuronfair-audit/{'+'.join(names)}/frontier {number}",
        sentence=f"A {row['age']}-year-old with education {row['education']}, marital status "
        f"{row['marital_status']}, occupation {row['occupation']} and 9 more attributes is decided '{own}'; with "
        f"{swap}: '{twin}'.",
    )  # fmt: skip


def _layer(draw: random.Random, name: str, neurons: int, strength: float) -> LayerReport:
    act_diff = tuple(draw.expovariate(1 / strength) for _ in range(neurons))
    reactions = [math.tanh(a) for a in act_diff]
    thresholds = [0.01 * i for i in range(int(max(reactions) / 0.01) + 1)]
    curve = tuple((t, sum(r > t for r in reactions) / neurons) for t in thresholds)
    cut = next((t for t, above in curve if above <= t), max(reactions))
    biased = tuple(i for i, reaction in enumerate(reactions) if reaction > cut)
    return LayerReport(name, neurons, 0.01 * sum(above for _, above in curve), cut, biased, act_diff, curve)
