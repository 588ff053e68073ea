"""A search for alternatives as a whole: planted worlds, bad input, kills, and models that are made again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from neuronfair import infer_domain
from neuronfair.alternative_models import candidates, estimators
from neuronfair.alternative_models.candidates import Candidate, CandidateFitter
from neuronfair.alternative_models.session import AlternativesReport, alternatives, describe_value, list_versions
from neuronfair.audits.inputs import ModelSource, read_input
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from tests.conftest import ROOT
from tests.planted.alternatives import free_proxy, nothing_to_have

ASKED = {"sensitive": "sex", "target": "hired", "favourable": "yes"}
KINDS = ("candidates", "controls")
QUICK = {"budget": 4, "families": ("leave-out", "reweight", "threshold")}


def search(table: object, estimator: object = "logistic", **options: object):
    return alternatives(estimator, table, **{**ASKED, **QUICK, **options})


def same(one: AlternativesReport, other: AlternativesReport) -> bool:
    """Whether two searches found the same, whatever time they took."""

    def timeless(report: AlternativesReport) -> AlternativesReport:
        searched = report.searched
        fits = {name: tuple(replace(f, seconds=0.0) for f in getattr(searched, name)) for name in KINDS}
        searched = replace(searched, baseline=replace(searched.baseline, seconds=0.0), **fits)
        return replace(report, searched=searched, files={}, settings=replace(report.settings, workers=1))

    return timeless(one) == timeless(other)


def test_a_proxy_that_can_be_left_out_for_free_is_found() -> None:
    result = search(free_proxy(0), budget=6, tolerance=0.02, families=())
    report = result.report
    assert (report.conclusion, report.proxies[0]) == ("better", "club")
    assert dict(report.winner.candidate.parameters)["leave_out"] >= 1
    assert report.winner.measure_gain.low > 0
    assert report.winner.quality_gain.low > -0.02
    assert report.baseline_reads == report.winner.reads == ()
    assert "club" not in result.model.feature_names_in_
    again = result.make(report.chosen)
    frame = result.fitter.table.frame.iloc[:50]
    assert (again.predict(frame) == result.model.predict(frame)).all()
    assert AlternativesReport.from_json(report.to_json()) == report


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_so_it_is_in_other_such_worlds(seed: int) -> None:
    assert search(free_proxy(seed), budget=6, tolerance=0.02, seed=seed).report.conclusion == "better"


def test_where_nothing_can_be_had_none_is_found() -> None:
    report = search(nothing_to_have(0)).report
    assert (report.conclusion, report.chosen, report.winner) == ("none found", None, None)
    assert len(report.searched.candidates) == len(report.searched.controls) == 4


@pytest.mark.slow
def test_none_is_found_in_nearly_all_such_worlds() -> None:
    found = [search(nothing_to_have(seed), seed=seed).report.conclusion for seed in range(40)]
    assert found.count("none found") >= 38


# Never the attribute


def pipeline() -> object:
    flags = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["sex", "club", "merit"]))
    return make_pipeline(flags, LogisticRegression())


def test_a_fitted_model_that_reads_the_attribute_is_the_baseline_and_candidates_do_without_it() -> None:
    people = nothing_to_have(1)
    model = pipeline().fit(people[["sex", "club", "merit"]], people.hired)
    result = search(people, model)
    report = result.report
    assert report.baseline_reads == ("sex",)
    assert report.shown[0].reads == ("sex",)
    assert any("The given model reads sex" in note for note in report.notes)
    made = [line for line in report.searched.candidates if line.error is None]
    assert len(made) == 3  # without its only useful attribute, the fourth selects everyone
    for line in made:
        assert "sex" not in result.make(line.candidate.name).feature_names_in_
    open_ = search(people, model, allow_disparate_treatment=True)
    assert "sex" in open_.make("candidate-0").feature_names_in_


def test_an_estimator_that_is_not_fitted_is_never_given_the_attribute() -> None:
    report = search(nothing_to_have(1), pipeline()).report
    assert report.baseline_reads == ()
    assert report.estimator == "LogisticRegression"


# Bad input


class Moody(RandomForestClassifier):
    """Fails with large leaves."""

    def fit(self, table, y, sample_weight=None):
        if self.min_samples_leaf > 9:
            raise ValueError("too large a leaf")
        return super().fit(table, y, sample_weight)


def test_an_estimator_that_fails_on_some_parameters_is_counted_and_the_search_goes_on() -> None:
    people = nothing_to_have(2).assign(club=lambda t: t.club == "golf", merit=lambda t: t.merit == "b")
    report = search(people, Moody(10, min_samples_leaf=8), budget=16, families=("hyperparameters",)).report
    assert 0 < report.failed < 16
    failed = [line for line in report.searched.candidates if line.error is not None]
    assert all("too large a leaf" in line.error for line in failed)
    with pytest.raises(NeuronFairError, match=r"Moody cannot be fitted .*too large a leaf"):
        search(people, Moody(10, min_samples_leaf=50))


def test_hiring_nobody_is_no_alternative() -> None:
    """A test tells who is hired, a tenth of the records; without it, the most accurate model hires nobody."""
    draw = np.random.default_rng(0)
    people = nothing_to_have(2, 4_000)
    passed = draw.random(len(people)) < np.where(people.sex == "m", 0.2, 0.1)
    people["test"] = np.where(passed, "passed", "failed")
    people["hired"] = np.where(draw.random(len(people)) < np.where(passed, 0.55, 0.02), "yes", "no")
    report = search(people, families=("leave-out",), tolerance=0.03).report
    alike = [line.error for line in report.searched.candidates if line.error is not None]
    assert len(alike) >= 1
    assert all("it selects 0 of 800 records" in error for error in alike)
    assert report.conclusion == "none found"
    people["hired"] = np.where(draw.random(len(people)) < 0.1, "yes", "no")
    with pytest.raises(NeuronFairError, match=r"the baseline cannot be used: it selects 0 of 800 records"):
        search(people)


def test_a_candidate_that_fails_on_the_test_part_is_not_proposed(monkeypatch) -> None:
    answers = CandidateFitter.answer

    def surprised(fitter, made, rows):
        if rows is fitter.table.test and "club" not in made.columns:
            raise ModelError("never seen")
        return answers(fitter, made, rows)

    monkeypatch.setattr(CandidateFitter, "answer", surprised)
    report = search(free_proxy(3, 4_000), budget=2, tolerance=0.05).report
    assert "Candidate-1 could not be measured on the test part: never seen." in report.notes
    assert report.shown[0].candidate.kind == "baseline"
    assert "candidate-1" not in {one.candidate.name for one in report.shown}


def test_a_table_that_cannot_be_searched_is_refused() -> None:
    people = nothing_to_have(3)
    with pytest.raises(DataError, match="has 1 value; 2 to 50 classes are expected"):
        search(people[people.hired == "no"], favourable=None)
    text = infer_domain(people, sensitive=["sex"], target="hired")
    with pytest.raises(DataError, match=r"has one class only \(no\)"):
        search(people[people.hired == "no"], favourable=None, domain=text, sensitive=None, target=None)
    with pytest.raises(
        DataError, match=r"fewer than two groups by sex have 10 records .*Too few: f \(33\) and m \(27\)\."
    ):
        search(people[:60])
    with pytest.raises(DataError, match="--favourable"):
        search(people, favourable=None, measure="disparate_impact")


def test_groups_that_are_too_small_are_fitted_but_not_compared() -> None:
    people = nothing_to_have(3)
    people.loc[::40, "sex"] = "x"  # 25 of 1,000, which a rule of the inferred domain excludes
    people.loc[1::25, "sex"] = "y"  # 40 of 1,000
    result = search(people)
    report, table = result.report, result.fitter.table
    assert (report.groups, report.left_out) == (("f", "m"), {"x": 25, "y": 40})
    assert [len(table.fit), len(table.choose), len(table.test)] == [600, 200, 200]
    assert ((table.group >= 0) == people.sex.isin(["f", "m"])).all()
    assert any("y (40) and x (25). Their records are fitted" in note for note in report.notes)
    with pytest.raises(DataError, match="fewer than two groups"):
        search(people[people.sex != "f"])


@pytest.mark.parametrize("empty", [0, 50])
def test_a_sensitive_number_is_put_into_bands(empty: int) -> None:
    people = nothing_to_have(3).assign(age=lambda t: 20.0 + np.arange(len(t)) % 50)
    people["hired"] = np.where(people.age > 45, "yes", people.hired)
    people.loc[: empty - 1, "age"] = np.nan
    words = make_column_transformer((OneHotEncoder(), ["club", "merit"]), remainder="passthrough")
    model = make_pipeline(words, HistGradientBoostingClassifier(max_iter=20))
    model.fit(people[["age", "club", "merit"]], people.hired)
    result = search(people, model, sensitive="age")
    report, table = result.report, result.fitter.table
    assert report.groups == ("below 32", "32 to below 45", "45 to below 57", "57 or more")
    assert (table.group == -1).sum() == empty
    assert any("compared in bands that begin at the quartiles" in note for note in report.notes)
    assert report.baseline_reads == ("age",)
    assert 0 < report.shown[0].measures["flip_rate"] < 1
    few = people.assign(age=20 + np.arange(len(people)) % 3)
    assert search(few, sensitive="age").report.groups == ("20", "21", "22")


def test_a_quality_function_of_the_users() -> None:
    def profit(labels: np.ndarray, decided: np.ndarray) -> float:
        return float(np.mean(2.0 * ((labels == "yes") & (decided == "yes")) - (decided == "yes")))

    report = search(nothing_to_have(4), quality=profit).report
    assert report.quality == "profit"
    assert 0 < report.searched.baseline.quality < 1

    def broken(labels: np.ndarray, decided: np.ndarray) -> float:
        raise ZeroDivisionError("no sales")

    with pytest.raises(NeuronFairError, match=r"the quality function failed .*no sales"):
        search(nothing_to_have(4), quality=broken)
    with pytest.raises(NeuronFairError, match="gave nan"):
        search(nothing_to_have(4), quality=lambda labels, decided: float("nan"))


@pytest.mark.parametrize("quality", ["balanced_accuracy", "roc_auc", "log_loss"])
@pytest.mark.parametrize("measure", ["selection_gap", "error_rates", "flip_rate"])
def test_every_quality_and_measure(quality: str, measure: str) -> None:
    report = search(nothing_to_have(5), budget=1, quality=quality, measure=measure).report
    assert (report.quality, report.measure, report.failed) == (quality, measure, 0)


def test_a_proxy_without_which_no_counterfactual_gets_another_decision() -> None:
    """A tenth is undecided, and nine tenths of their twins have another club: 9 pp, and none without the club."""
    report = search(free_proxy(0, 6_000), budget=2, tolerance=0.05, measure="counterfactual_excess").report
    assert report.conclusion == "better"
    before, after = report.shown[0], report.winner
    assert before.measure.low < 0.09 < before.measure.high
    assert report.proxies[0] == "club"
    assert after.candidate.parameters["leave_out"] == 1
    assert after.measure.value == pytest.approx(0, abs=0.01)
    assert after.measure_gain.low > 0.05


def test_what_twins_are_like_is_learned_from_the_fit_part_only(monkeypatch) -> None:
    learned = []
    for name in ("fit_counterfactuals", "fit_population"):
        function = getattr(candidates, name)
        monkeypatch.setattr(
            candidates, name, lambda d, rows, *a, f=function, **k: learned.append(len(rows)) or f(d, rows, *a, **k)
        )
    for measure in ("counterfactual_excess", "plausible_flip_rate"):
        search(nothing_to_have(0), budget=1, measure=measure, families=("hyperparameters",))
    assert set(learned) == {600}
    assert len(learned) == 1 + candidates.PERMUTATIONS + 1


class MenOfTheChessClub(ClassifierMixin, BaseEstimator):
    """Selects them, whatever it is fitted to."""

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> MenOfTheChessClub:
        self.classes_ = np.unique(y)
        return self

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        return np.where((frame.sex == "m") & (frame.club == "chess"), "yes", "no")


def test_plausible_flips_leave_out_twins_that_are_not_plausible() -> None:
    """No woman is in the chess club, so a member has no plausible twin, and only decisions for members differ."""
    people = nothing_to_have(0, 2_000)
    people["club"] = np.where((people.sex == "m") & (np.arange(len(people)) % 2 == 0), "chess", "golf")
    model = MenOfTheChessClub().fit(people, people.hired)
    report = search(people, model, budget=1, measure="plausible_flip_rate").report
    test = report.shown[0].measures
    assert test["flip_rate"] == pytest.approx((people.club == "chess").mean(), abs=0.04)
    assert test["plausible_flip_rate"] == 0


def test_catboost() -> None:
    catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")
    model = catboost.CatBoostClassifier(iterations=20, depth=3, cat_features=["club", "merit"], verbose=0)
    report = search(nothing_to_have(1), model, families=("hyperparameters", "reweight", "threshold")).report
    assert report.failed == 0, [line.error for line in report.searched.candidates]
    assert report.estimator == "CatBoostClassifier"
    assert "iterations" in report.searched.candidates[-1].candidate.parameters
    assert estimators.clone_with_seed(model, 7, {}).get_params()["random_seed"] == 7


def test_skorch() -> None:
    skorch = pytest.importorskip("skorch", reason="skorch is not installed")
    words = make_column_transformer((OneHotEncoder(sparse_output=False, dtype=np.float32), ["club", "merit"]))
    layers = {"module": torch.nn.Linear, "module__in_features": 4, "module__out_features": 2}
    net = skorch.NeuralNetClassifier(**layers, criterion=torch.nn.CrossEntropyLoss, max_epochs=8, lr=0.5, verbose=0)
    people = nothing_to_have(1).assign(hired=lambda t: (t.hired == "yes").astype(int))
    families = ("hyperparameters", "reweight")
    report = search(people, make_pipeline(words, net), favourable="1", families=families, budget=7).report
    assert report.failed == 0, [line.error for line in report.searched.candidates]
    assert report.searched.baseline.quality > 0.9
    assert any(line.candidate.parameters["neuralnetclassifier__lr"] != 0.5 for line in report.searched.candidates)


# Resumed


@pytest.mark.slow
def test_a_search_resumes_from_its_file(tmp_path) -> None:
    people = nothing_to_have(6)
    whole = search(people, out=tmp_path / "whole").report
    lines = (tmp_path / "whole" / "search.jsonl").read_bytes().splitlines(keepends=True)
    assert [next(iter(json.loads(line))) for line in lines] == ["begun_with", *["fit"] * 9, "tested"]
    for kept in (1, 4, 8):
        part = tmp_path / str(kept)
        part.mkdir()
        (part / "search.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])  # cut off by a kill
        assert same(search(people, out=part).report, whole)
    assert same(search(people, out=tmp_path / "whole").report, whole)
    assert same(search(people, workers=2).report, whole)
    for table in (people[:-1], people.assign(hired=people["hired"].to_numpy()[::-1])):  # other rows, other labels
        with pytest.raises(RunError, match="another table"):
            search(table, out=tmp_path / "whole")
    with pytest.raises(RunError, match="another setting"):
        search(people, out=tmp_path / "whole", tolerance=0.1)
    (part / "search.jsonl").write_bytes(lines[0] + b"{\n" + lines[1])
    with pytest.raises(RunError, match="line 2 is damaged"):
        search(people, out=part)


def test_a_search_resumes_only_with_the_libraries_that_it_was_begun_with(tmp_path, monkeypatch) -> None:
    people = nothing_to_have(6)
    first = search(people, out=tmp_path, budget=1)
    begun_with = json.loads((tmp_path / "search.jsonl").read_bytes().splitlines()[0])["begun_with"]
    libraries = {"neuronfair", "numpy", "optuna", "sklearn", "torch"}
    assert {key for key in begun_with if key.startswith("version")} == {f"version of {name}" for name in libraries}
    monkeypatch.setattr("sklearn.__version__", "0.1")
    now = begun_with["version of sklearn"]
    with pytest.raises(RunError, match=rf"begun with another version of sklearn \({now}, now 0.1\)"):
        search(people, out=tmp_path, budget=1)
    lightgbm = pytest.importorskip("lightgbm")
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), lightgbm.LGBMClassifier(verbosity=-1))
    assert list_versions(pipeline)["version of lightgbm"] == lightgbm.__version__
    # A file of before, which does not say all versions, is read as before.
    monkeypatch.undo()
    path = tmp_path / "search.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"version of torch"', b'"version of a package"'))
    assert same(search(people, out=tmp_path, budget=1).report, first.report)


def test_the_test_part_is_used_once(tmp_path) -> None:
    people, lenient = free_proxy(3, 4_000), {"tolerance": 0.05, "out": tmp_path}
    first = search(people, budget=2, **lenient).report
    assert len(first.shown) > 1
    for more in ({"budget": 8}, {"force": True}, {"force": True, "measure": "selection_gap"}):
        with pytest.raises(RunError, match="the test part was already used"):
            search(people, **{"budget": 2, **lenient, **more})
    assert (tmp_path / "search.jsonl").read_text(encoding="utf-8").count('"fit"') == 5  # and nothing more was fitted
    assert search(people, budget=8, seconds=1e6, **lenient).report.shown == first.shown  # the time was up by then
    again = search(people, budget=1, force=True, seed=1, **lenient).report
    assert (again.settings.seed, first.earlier, again.earlier) == (1, 0, 1)
    assert search(people, budget=1, seed=1, **lenient).report.earlier == 1
    assert search(people, budget=1, force=True, seed=2, **lenient).report.earlier == 2


def test_an_estimator_is_known_again_by_what_it_does_and_not_by_its_address() -> None:
    def pipeline(function, **parameters):
        encoder = OneHotEncoder(handle_unknown="ignore")
        return make_pipeline(FunctionTransformer(function), encoder, LogisticRegression(**parameters))

    text = describe_value(pipeline(lambda frame: frame))
    assert " at 0x" not in text
    assert text == describe_value(pipeline(lambda frame: frame))
    assert text != describe_value(pipeline(np.asarray))
    assert text != describe_value(pipeline(lambda frame: frame, verbose=1))


KILLED = """
import os, sys
from neuronfair.alternative_models import session
from tests.alternative_models.test_session import search
from tests.planted.alternatives import nothing_to_have
add = session.SearchFile.add
def dying(file, fit):
    add(file, fit)
    if len(file.fits) == 5:
        os.kill(os.getpid(), 9)
session.SearchFile.add = dying
search(nothing_to_have(6), out=sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_search_gives_the_same_front(tmp_path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed")], env=environment, check=False)
    assert done.returncode == -9
    assert same(search(nothing_to_have(6), out=tmp_path / "killed").report, search(nothing_to_have(6)).report)


def test_ctrl_c_keeps_what_was_found(tmp_path) -> None:
    people, calls = nothing_to_have(6), []

    def press(what: str, done: int, total: int | None, note: str = "") -> None:
        calls.append(what)
        if calls.count("Fitting candidates") == 3:
            raise KeyboardInterrupt

    report = search(people, out=tmp_path, progress=press).report
    assert (report.conclusion, report.shown, len(report.searched.candidates)) == ("interrupted", (), 3)
    assert same(search(people, out=tmp_path).report, search(people).report)


def test_a_network(tmp_path) -> None:
    people = nothing_to_have(7)
    result = search(people, "network", budget=8, families=("neurons", "leave-out", "threshold"), out=tmp_path)
    report = result.report
    assert all("it selects" in line.error for line in report.searched.candidates if line.error is not None)
    assert report.baseline_reads == report.shown[0].reads == ()  # it is given whole records and leaves the sex out
    assert any(line.candidate.parameters["silenced_share"] for line in report.searched.candidates)
    assert (tmp_path / "baseline.safetensors").exists()
    assert "sex" not in {a.name for a in result.make("candidate-0").domain_.attributes if a.is_input}


def test_a_network_that_leaves_attributes_out_is_opened_again_with_its_own_domain_file(tmp_path) -> None:
    nothing_to_have(8).to_csv(tmp_path / "people.csv", index=False)
    fitter = search(nothing_to_have(8), "network", budget=1, families=("leave-out",)).fitter
    made = fitter.make(Candidate.of(0, "candidate", 1, {"leave_out": 1, "threshold": 0.4}))
    path, test = tmp_path / "model.safetensors", fitter.table.test
    made.estimator.save(path, 0.9)
    found = read_input(tmp_path / "people.csv", ModelSource(str(path)), domain=path.with_suffix(".toml"))
    opened = ModelSource(str(path)).open(found.data)
    decided = opened.model.scores(found.data.rows[test]).argmax(1).numpy()
    assert decided.tolist() == fitter.answer(made, test).decided.tolist()
    before = made.estimator.predict_proba(fitter.table.frame)
    made.estimator.shifted(0.9, 1)
    assert made.estimator.predict_proba(fitter.table.frame).tolist() == before.tolist()  # the copy has the threshold


def test_numbers_and_empty_cells_of_a_file(tmp_path) -> None:
    people = nothing_to_have(8).assign(pay=lambda t: np.arange(len(t)) % 97 / 4)
    people.loc[::50, "pay"] = np.nan
    people.to_csv(tmp_path / "people.csv", index=False)
    result = search(tmp_path / "people.csv", "boosting", budget=3, families=("monotone", "coarsen", "counterfactuals"))
    assert pd.api.types.is_float_dtype(result.fitter.table.frame["pay"])
    assert result.report.failed == 0
    assert result.fitter.table.frame["pay"].isna().sum() == 20


def test_the_files_and_an_audit(tmp_path) -> None:
    result = search(free_proxy(0, 4_000), out=tmp_path, tolerance=0.05, budget=2)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"search.jsonl", "alternatives.json", "baseline.skops", "domain.toml"} <= names
    assert set(result.report.files.values()) <= names
    report = AlternativesReport.from_json((tmp_path / "alternatives.json").read_bytes())
    assert report == result.report
    audit = result.audit("baseline")
    assert audit.data.rows == report.rows["test"]
    assert len(repr(result).splitlines()) == 1 + len(report.shown)
    assert result.to_frame()["model"].tolist() == [one.candidate.name for one in report.shown]
    assert "</html>" in result.to_html()
    assert [text.get_text() for text in result.plot().get_legend().get_texts()][-1] == "baseline"
