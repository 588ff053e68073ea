"""`neuronfair reproduce`: jobs are done once, survive kills, and become tables."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

import neuronfair
from neuronfair.errors import NeuronFairError
from neuronfair.measure.stats import mean_interval
from neuronfair.scale.pool import Processes, Serial
from neuronfair.searches.methods import METHODS
from tests.conftest import ROOT

FOLDER = ROOT / "experiments"


def experiment(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}")


@pytest.fixture
def lab():
    """The machinery of the experiments, as `reproduce` imports it."""
    return experiment("lab")


@pytest.fixture
def page():
    return experiment("page")


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A module of jobs that leave a trace of every call."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "counted.py").write_text(
        "from pathlib import Path\n"
        "def double(x, log):\n"
        "    with Path(log).open('a') as file: file.write(f'{x}\\n')\n"
        "    if x < 0: raise ValueError('negative')\n"
        "    return {'twice': 2 * x}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "log"


def test_a_job_is_done_once_and_remembered(lab, counted, tmp_path):
    jobs = [lab.Job("elsewhere.counted:double", {"x": x, "log": str(counted)}) for x in (1, 2, 2, 3)]
    seen = []
    lab.run_jobs(jobs[:2], tmp_path / "cache", Serial())
    lab.run_jobs(jobs, tmp_path / "cache", Processes(2), progress=lambda *figures: seen.append(figures))
    assert sorted(counted.read_text().split()) == ["1", "2", "3"]
    results = lab.remembered(tmp_path / "cache")
    assert [results(job)["twice"] for job in jobs] == [2, 4, 4, 6]
    assert seen[-1] == (3, 3, "")
    assert results(lab.Job("elsewhere.counted:double", {"x": 9, "log": ""})) is None
    assert json.loads((tmp_path / "cache" / f"{jobs[0].key}.json").read_text())["_job"]["arguments"]["x"] == 1


def test_results_of_other_code_are_counted(lab, counted, tmp_path, monkeypatch):
    jobs = [lab.Job("elsewhere.counted:double", {"x": x, "log": str(counted)}) for x in (1, 2, 3, 3)]
    assert lab.outdated(jobs, tmp_path) == 0  # what is not there is not old
    lab.run_jobs(jobs[:2], tmp_path, Serial())
    assert lab.outdated(jobs, tmp_path) == 0
    monkeypatch.setattr(lab, "code_digest", lambda: "another")
    lab.run_jobs(jobs, tmp_path, Serial())
    assert lab.outdated(jobs, tmp_path) == 2


def test_a_job_that_fails_keeps_what_was_done_before(lab, counted, tmp_path):
    good, bad = (lab.Job("elsewhere.counted:double", {"x": x, "log": str(counted)}, first=x > 0) for x in (5, -1))
    with pytest.raises(RuntimeError, match="negative"):
        lab.run_jobs([bad, good], tmp_path / "cache", Processes(1))
    assert lab.remembered(tmp_path / "cache")(good)["twice"] == 10


def test_a_job_says_what_went_wrong_and_where(lab, counted, tmp_path):
    bad = lab.Job("elsewhere.counted:double", {"x": -1, "log": str(counted)})
    with pytest.raises(RuntimeError, match=r"(?s)elsewhere\.counted:double .*in double.*ValueError: negative"):
        lab.run_jobs([bad], tmp_path / "cache", Serial())


def test_a_job_that_was_killed_when_its_result_was_kept_is_not_done_again(lab, counted, tmp_path):
    """By a worker who then was lost: a pool begins its piece again."""
    job, place = lab.Job("elsewhere.counted:double", {"x": 4, "log": str(counted)}), lab.Place(tmp_path, "code", {})
    first, again = (lab._work(place, job, lambda *_: None) for _ in range(2))
    assert first == again
    assert first["twice"] == 8
    assert first["_cpu_seconds"] >= 0
    assert counted.read_text().split() == ["4"]


@dataclass(frozen=True)
class Elsewhere(Serial):
    """A pool on a machine that has another folder in the place of ours, as of a cluster without a shared one."""

    folder: Path = Path()

    def map(self, work, shared, items, **options):
        return super().map(work, replace(shared, cache=self.folder), items, **options)


def test_results_that_were_made_elsewhere_are_kept_here(lab, counted, tmp_path):
    jobs = [lab.Job("elsewhere.counted:double", {"x": x, "log": str(counted)}, first=x == 2) for x in (1, 2)]
    lab.run_jobs(jobs, tmp_path / "cache", Elsewhere(folder=tmp_path / "there"))
    assert [lab.remembered(tmp_path / "cache")(job)["twice"] for job in jobs] == [2, 4]
    assert counted.read_text().split() == ["2", "1"]  # what others build on comes first


def test_processor_time_is_told_by_experiment_the_longest_first(lab, tmp_path):
    jobs = [lab.Job("elsewhere.counted:double", {"x": x}) for x in range(4)]
    for job, seconds in zip(jobs[:3], (60, 120, 240), strict=True):
        (tmp_path / f"{job.key}.json").write_text(json.dumps({"_cpu_seconds": seconds}))
    told = lab.minutes({"short": jobs[:2], "long": jobs[1:]}, tmp_path)  # the second is done for both, and counts once
    assert list(told.items()) == [("long", 4.0), ("short", 3.0)]


def test_figures_and_tables(lab):
    mean, half = mean_interval([1.0, 2.0, 6.0])
    assert lab.figure([1.0, None, 2.0, 6.0], ".2f") == f"{mean:.2f} ± {half:.2f}"
    assert lab.figure([1234.0]) == "1,234"
    assert lab.figure([None]) == "–"
    table = lab.Table(["a", "b"], [["x", "1"]], "A note.")
    assert table.markdown() == "a | b\n---|---:\nx | 1\n\nA note.\n"
    assert table.csv() == "a,b\nx,1\n"


def test_every_experiment_has_jobs_and_a_page_without_results(lab, page, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_LAB", str(tmp_path))
    for name in page.EXPERIMENTS:
        module = experiment(name)
        assert len(module.jobs(lab.QUICK)) <= len(module.jobs(lab.FULL))
        kept = page.record(module.report(lab.QUICK, lambda job: None), [], f"reproduce {name} --quick", lab.Made())
        page.write_record(tmp_path / "results", name, kept)
    records = page.read_records(tmp_path / "results")
    assert list(records) == list(page.EXPERIMENTS)
    assert all(f"`reproduce {name} --quick`" in page.page(records) for name in page.EXPERIMENTS)
    others = {
        "lab",
        "commands",
        "cases",
        "page",
        "reproduce",
        "metrics",
        "tree_models",
        "ablation_frontier",
        "draw_planted",
        "draw_region",
        "planted",
        "table10_image",
        "convert_resnet50",
        "image_bodies",
        "image_retraining",
        "image_sets",
    }
    assert {path.stem for path in FOLDER.glob("[!_]*.py")} - others == set(page.EXPERIMENTS)


def test_a_record_is_read_back_as_it_was_written(lab, page, tmp_path):
    tables = {"a": lab.Table(["", "b, c"], [["x", '"1"']], "Note."), "b": lab.Table(["y"], [], on_page=False)}
    claims = [lab.Claim("So", None, "seen", "neuronfair", False, "0.1")]
    kept = page.Record("Title", "Text", claims, tables, ["a.png"], "command", lab.Made(["m"], ["0.2"], ["day"]), "Old.")
    page.write_record(tmp_path, "peers", kept)
    assert page.read_records(tmp_path) == {"peers": kept}
    page.write_record(tmp_path, "peers", replace(kept, tables={}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peers.json"]  # no table stays behind


def test_a_section_shows_its_tables_and_links_to_the_others(lab, page):
    tables = {"a": lab.Table(["t", "n"], [["x", "1"]]), "b": lab.Table(["y"], [], on_page=False)}
    made = lab.Made(["a machine"], ["0.2.0"], ["2026-11-16"])
    kept = page.Record("Peers", "After.", [], tables, ["a.png"], "reproduce peers --quick", made, "Old.")
    assert page.page({"peers": kept}).split("\n\n## Peers\n\n")[1].split("\n\n") == [
        "*Version 0.2.0 · 2026-11-16 · `reproduce peers --quick` · a machine*",
        page.QUICK,
        "Old.",
        "After.",
        "t | n\n---|---:\nx | 1",
        "![Peers](img/a.png)",
        "Numbers: [b](results/peers-b.csv).\n",
    ]


def test_the_first_table_has_a_column_for_each_rung(lab, page):
    claims = [
        lab.Claim("Finds more", False, "0 of 8", "neuronfair-printed"),
        lab.Claim("Finds more", None, "6 of 8", "neuronfair", version="0.1.0"),
        lab.Claim("Finds more", True, "8 of 8", "neuronfair-plus"),
        lab.Claim("Is alike", True, "same"),
        lab.Claim("Lowers", True, "by half", "neuronfair"),
        lab.Claim("Ours", True, "yes", of_paper=False),
    ]
    made = lab.Made(versions=["0.2.0.dev0"])
    lines = page.page({"peers": page.Record("P", "", claims, {}, [], "", made)}).splitlines()
    assert [line for line in lines if " | " in line][1:] == [
        "Finds more | **did not hold**: 0 of 8 (0.2) | **held in part**: 6 of 8 (0.1) | yes: 8 of 8 (0.2)",
        "Is alike | **held**: same (0.2) | – | –",
        "Lowers | not measured | **held**: by half (0.2) | not measured",
    ]
    assert "**As printed, 1 of 2 measured claims held, 0 held in part and 1 did not hold.**" in lines[4]
    assert lines[4].endswith("(`neuronfair`), 1 of 2 measured claims held, 1 held in part and 0 did not hold.")
    assert "* Ours: **held**: yes (0.2)." in lines


def test_a_page_that_somebody_else_wrote_is_not_replaced(page, tmp_path):
    page.check_made_here(tmp_path)
    (tmp_path / "results.md").write_text("# My notes\n")
    with pytest.raises(NeuronFairError, match=r"results\.md: this page was not made from records\. Move it away"):
        page.check_made_here(tmp_path)


def test_the_page_of_results_is_made_from_its_records(page):
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page.page(
        page.read_records(ROOT / "docs" / "results")
    ), "run: neuronfair reproduce images --docs docs"


def test_the_record_of_images_is_that_of_the_measurements(lab, page, monkeypatch, tmp_path):
    monkeypatch.setenv("NEURONFAIR_LAB", str(tmp_path))
    report, kept = experiment("images").report(lab.FULL, None), page.read_records(ROOT / "docs" / "results")["images"]
    assert kept == page.record(report, [], kept.command, report.made)


def test_a_section_says_where_and_when_its_results_were_made(lab, counted, tmp_path):
    jobs = [lab.Job("elsewhere.counted:double", {"x": x, "log": str(counted)}) for x in (1, 2, 3)]
    lab.run_jobs(jobs[:2], tmp_path / "cache", Serial())
    made = lab.made(jobs, tmp_path / "cache")
    assert re.fullmatch(r"\w+, Python 3\.[\d.]+\w*, torch [\d.]+", *made.machines)
    assert made.versions == (neuronfair.__version__,)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", *made.days)
    path = tmp_path / "cache" / f"{jobs[1].key}.json"
    moved = json.loads(path.read_text()) | {"_machine": "elsewhere", "_date": "9999-12-31"}
    path.write_text(json.dumps(moved))
    assert lab.made(jobs, tmp_path / "cache").days == (*made.days, "9999-12-31")
    assert lab.made(jobs, tmp_path / "cache").machines == (*made.machines, "elsewhere")
    assert lab.made(jobs[2:], tmp_path / "cache") == lab.Made()


def test_the_digest_of_the_code_does_not_depend_on_where_it_lies(lab, tmp_path, monkeypatch):
    """So a cache that another machine made of the same source is taken for what it is."""
    here = lab.code_digest()
    package = Path(neuronfair.__file__).parent
    shutil.copytree(package, tmp_path / "package")
    shutil.copytree(FOLDER, tmp_path / "lab")
    monkeypatch.setattr(lab.neuronfair, "__file__", str(tmp_path / "package" / "__init__.py"))
    monkeypatch.setattr(lab, "FOLDER", tmp_path / "lab")
    assert lab.code_digest.__wrapped__() == here
    (tmp_path / "lab" / "page.py").write_text("changed")
    assert lab.code_digest.__wrapped__() != here


def test_the_figures_of_the_paper_are_complete():
    paper = tomllib.loads((FOLDER / "paper.toml").read_text(encoding="utf-8"))
    assert {len(line) for line in paper["dm_rs"].values()} == {6}
    assert set(paper["total"]["neuronfair"]) == set(paper["dm_rs"]) == set(paper["seconds_per_1000"])


def test_one_figure_from_the_command_line(run, shared_models, monkeypatch, tmp_path):
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    result = run("reproduce", "figure3_as_curve", "--quick", "--out", "out", "--docs", "docs", "--workers", 1)
    assert result.status == 0, result.err
    assert "24 (paper 24)" in " ".join(result.out.split())
    assert "Layer 2 of the Adult classifier is the most biased" in result.out
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "layer 2 | 0.7519 | 0.750 | 24 of 32" in page
    assert "(img/figure3_as_curve-as-curves.png)" in page
    assert (tmp_path / "docs" / "img" / "figure3_as_curve-as-curves.png").stat().st_size > 10_000
    assert (
        (tmp_path / "out" / "results" / "figure3_as_curve-layers.csv")
        .read_text()
        .startswith("layer,AUC,cut,biased\nlayer 1,")
    )
    assert (tmp_path / "out" / "img" / "figure3_as_curve-as-curves.svg").exists()


def test_retraining_takes_the_findings_of_the_search_for_table_4(lab, shared_models, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    monkeypatch.setenv("NEURONFAIR_LAB", str(tmp_path))
    cases, table4, table7 = map(experiment, ("cases", "table4_totals", "table7_improvement"))
    (search, *_), retraining = (
        table4.runs(lab.QUICK, "german-sex", "adf"),
        table7.run(lab.QUICK, "german-sex", "published", "adf"),
    )
    count = cases.search(**search.arguments)["findings"]
    monkeypatch.setattr(cases, "outcome", None)  # nobody may search again
    config = {name: value for name, value in retraining.arguments.items() if name != "repeats"}
    assert len(cases.found(**config)) == count > 0


def test_claims_about_neuronfair_as_printed_are_not_measured_with_the_redesign(lab, shared_models, monkeypatch):
    """Each rung has claims of its own."""
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    table4 = experiment("table4_totals")
    counts = {
        "neuronfair-printed": 10,
        "neuronfair": 200_000,  # at least the printed number in 5 of 8 cases
        "neuronfair-plus": 10**6,
        "frontier": 10**7,
        "eidig5": 300_000,
        "adf": 200,
        "aequitas": 100,
    }

    def result(job):
        method = job.arguments.get("method")
        figures = dict.fromkeys(("gsr", "diversity", "regions", "seconds_per_1000", "rate"), 0.5)
        wanted = job.arguments.get("case") == "meps-sex" or job.arguments.get("model") == "published"
        return figures | {"findings": counts.get(method, 0)} if wanted else None

    told = table4.report(lab.QUICK, result)
    assert [(claim.rung, claim.held) for claim in told.claims] == [
        ("neuronfair-printed", False),
        ("neuronfair-printed", False),
        ("neuronfair", None),
        ("neuronfair", False),
        ("neuronfair-plus", True),
        ("neuronfair-plus", True),
    ]
    assert told.claims[1].evidence == "the most of the four in 0 of 8 cases, the fewest in 8"
    assert told.claims[-1].evidence == "the most of the four in 8 of 8 cases, the fewest in 0"
    assert not any(set(line[1:]) == {"–"} for line in told.tables["own"].lines)


def test_a_part_of_neuronfair_is_changed_for_one_search(lab, shared_models, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    monkeypatch.setenv("NEURONFAIR_LAB", str(tmp_path))
    ablation = experiment("ablation_neuronfair")
    case = "german-sex, default, scikit-learn"
    shipped = METHODS["neuronfair-plus"]
    found = {part: ablation.search(case, part, 10, 4, 0, True) for part in (ablation.SHIPPED, ablation.BEFORE)}
    assert METHODS["neuronfair-plus"] is shipped
    assert found[ablation.SHIPPED] != found[ablation.BEFORE]
    assert all(0 < one["findings_global"] <= 10 for one in found.values())
    made = {part: ablation.changed(None, part) for part in ablation.PARTS}
    assert made[ablation.SHIPPED] == shipped.make(None)
    assert (
        len({(phases.global_phase, phases.local_phase) for phases in made.values()}) == len(made) - 1
    )  # one changes the pace


def test_parts_that_differ_in_gradients_only_share_the_walk_without_them(lab, shared_models, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    monkeypatch.setenv("NEURONFAIR_LAB", str(tmp_path))
    ablation = experiment("ablation_neuronfair")
    names, walks = {part: ablation.unguided(part) for part in ablation.PARTS}, dict[str, list[object]]()
    monkeypatch.setattr(ablation, "unguided", lambda part: part.replace("/", "-"))  # every part walks for itself
    for part in ("r: all neurons", "layer: the first hidden one"):
        found = ablation.search("german-sex, default, scikit-learn", part, 20, 10, 0, True)
        walks.setdefault(names[part], []).append(found["random_direction"])
    assert [len(same) for same in walks.values()] == [2]
    assert all(one == another for one, another in walks.values())
    assert len(set(names.values())) == len(names) - 6


def test_the_ablation_of_neuronfair_counts_who_is_behind(lab, shared_models, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    ablation = experiment("ablation_neuronfair")
    behind = "bank-age, paper, own"

    def result(job):
        arguments = job.arguments
        if "part" not in arguments:
            return {}
        gsr = 0.2 if arguments["case"] == behind else 0.6 if arguments["part"] == ablation.SHIPPED else 0.3
        blind = {"tried": 100, "findings": 30, "gsr": 0.3}
        figures = {"findings": 60, "findings_global": 30, "tried": 100, "gsr": gsr, "random": None, "rows": 60}
        return figures | {"random_direction": blind, "lift_over_random_direction": gsr / 0.3}

    told = ablation.report(lab.QUICK, result)
    (claim,) = told.claims
    assert claim.held  # one of twelve
    assert f"better on {behind}, of 12 (paper) and 11 (default) models; lift 0.67 to 2.00" in claim.evidence
    lines = {line[0]: list(line[1:]) for line in told.tables["parts"].lines}
    lift = (2.0**11 * 2 / 3) ** (1 / 12)
    assert lines[ablation.SHIPPED] == [f"{lift:.2f}", "1 of 12", "1.00", "1.00", "2.00", "0 of 11", "1.00", "1.00"]
    assert lines[ablation.BEFORE][4:] == ["1.00", "0 of 11", "0.50", "1.00"]
    for draw in told.pictures.values():
        draw(tmp_path / "lift.png")
    assert (tmp_path / "lift.png").stat().st_size > 10_000


def test_modules_of_others_are_left_alone(run, shared_models, monkeypatch, tmp_path):
    """A `lab`, `page` or `cases` may be somebody's own: neither we nor our processes import it, nor leave one."""
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    for name in ("lab", "page", "cases"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('this is mine')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path, before = list(sys.path), set(sys.modules)
    assert run("reproduce", "figure3_as_curve", "--quick", "--out", "out", "--workers", 1).status == 0
    assert sys.path == path
    ours = {
        name for name in set(sys.modules) - before if str(FOLDER) in str(getattr(sys.modules[name], "__file__", ""))
    }
    assert "experiments.lab" in sys.modules  # perhaps since an earlier test
    assert {name for name in ours if name.partition(".")[0] != "experiments"} == set()


def test_a_cluster_and_processes_are_not_both_asked_for(refused):
    refused("reproduce", "--ray", "--workers", 2, says=("--workers", "--ray", "only one of them"))


def test_an_experiment_that_does_not_exist(refused):
    refused("reproduce", "tabel4_totals", says=("no experiment 'tabel4_totals'", "table4_totals"))


@pytest.fixture(autouse=True)
def modules():
    """What an experiment leaves in this process is taken away again."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(FOLDER) in str(sys.modules[name].__file__):
            del sys.modules[name]
