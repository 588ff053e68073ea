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
    assert table.markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |\n\nA note.\n"
    assert table.csv() == "a,b\nx,1\n"


def test_every_experiment_has_jobs_and_a_page_without_results(lab, page, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_LAB", str(tmp_path))
    sections = {}
    for name in page.EXPERIMENTS:
        module = experiment(name)
        assert len(module.jobs(lab.QUICK)) <= len(module.jobs(lab.FULL))
        sections[name] = page.section(name, module.report(lab.QUICK, lambda job: None), [], " --quick", "")
    text = page.page(sections)
    assert all(f"neuronfair reproduce {name} --quick`" in text for name in page.EXPERIMENTS)
    assert page.sections_of(text) == sections
    others = {
        "__init__",
        "__main__",
        "lab",
        "cases",
        "page",
        "reproduce",
        "metrics",
        "tree_models",
        "ablation_frontier",
        "draw_planted",
        "planted",
    }
    files = {path.stem for path in FOLDER.glob("[!_]*.py")} - others
    assert {name for name in files if "image" not in name and "convert" not in name} == set(page.EXPERIMENTS)


def test_one_section_is_replaced_and_the_others_stay(lab, page):
    claims = {name: lab.Claim(f"{name} says so", True, "Seen.") for name in ("peers", "table3_accuracy")}
    old = {
        name: page.section(
            name, lab.Report(name.upper(), "Before.", claims=[claim]), [], " --repeats 10", " on a machine"
        )
        for name, claim in claims.items()
    }
    new = page.section("figure3_as_curve", lab.Report("A figure", "Drawn."), [Path("img/a.png")], "", " on another")
    again = page.section("peers", lab.Report("Peers", "After."), [], " --quick", "")
    text = page.page(page.sections_of(page.page(old)) | {"figure3_as_curve": new, "peers": again})
    # In the order of EXPERIMENTS; the claim of what is replaced goes with it.
    assert text.split("\n\n")[2:] == [
        "## Which claims of the paper held",
        "* table3_accuracy says so: **holds**. Seen. (`table3_accuracy`)",
        "## TABLE3_ACCURACY",
        "Before.",
        "Made by `neuronfair reproduce table3_accuracy --repeats 10` (`experiments/table3_accuracy.py`) on a machine.",
        "## A figure",
        "Drawn.",
        "![A figure](img/a.png)",
        "Made by `neuronfair reproduce figure3_as_curve` (`experiments/figure3_as_curve.py`) on another.",
        "## Peers",
        page.QUICK,
        "After.",
        "Made by `neuronfair reproduce peers --quick` (`experiments/peers.py`).\n",
    ]


def test_a_page_that_somebody_else_wrote_is_not_replaced(page):
    with pytest.raises(NeuronFairError, match="'My notes' does not say which experiment made it"):
        page.sections_of("# Results\n\n## My notes\n\nImportant.\n")


def test_the_page_of_results_can_be_replaced_by_sections(page):
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.page(page.sections_of(text)) == text


def test_a_section_says_where_and_when_its_results_were_made(lab, counted, tmp_path):
    jobs = [lab.Job("elsewhere.counted:double", {"x": x, "log": str(counted)}) for x in (1, 2, 3)]
    lab.run_jobs(jobs[:2], tmp_path / "cache", Serial())
    assert re.fullmatch(
        r" on \w+, Python 3\.[\d.]+\w*, torch [\d.]+, version [\w.]+, \d{4}-\d\d-\d\d",
        lab.made(jobs, tmp_path / "cache"),
    )
    path = tmp_path / "cache" / f"{jobs[1].key}.json"
    moved = json.loads(path.read_text()) | {"_machine": "elsewhere", "_date": "9999-12-31"}
    path.write_text(json.dumps(moved))
    assert lab.made(jobs, tmp_path / "cache").endswith(" to 9999-12-31")
    assert " and elsewhere, " in lab.made(jobs, tmp_path / "cache")
    assert lab.made(jobs[2:], tmp_path / "cache") == ""


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
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "| layer 2 | 0.7519 | 0.750 | 24 of 32 |" in page
    assert "(img/figure3_as_curve-as-curves.png)" in page
    assert (tmp_path / "docs" / "img" / "figure3_as_curve-as-curves.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "figure3_as_curve-layers.csv").read_text().startswith(",AUC,cut,biased\nlayer 1,")
    assert (tmp_path / "out" / "figure3_as_curve-as-curves.svg").exists()


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
    """As printed it finds the fewest of the four in every case; the redesign finds the most."""
    monkeypatch.setenv("NEURONFAIR_MODELS", str(shared_models))
    table4 = experiment("table4_totals")
    counts = {
        "neuronfair-printed": 10,
        "neuronfair-plus": 10**6,
        "frontier": 10**7,
        "eidig5": 300,
        "adf": 200,
        "aequitas": 100,
    }

    def result(job):
        method = job.arguments.get("method")
        figures = dict.fromkeys(("gsr", "diversity", "regions", "seconds_per_1000", "rate"), 0.5)
        wanted = job.arguments.get("case") == "meps-sex" or job.arguments.get("model") == "published"
        return figures | {"findings": counts.get(method, 0)} if wanted else None

    told = table4.report(lab.QUICK, result)
    numbers, rivals = told.claims
    assert (numbers.held, rivals.held) == (False, False)
    assert numbers.text == "NeuronFair as printed finds the printed numbers of people"
    assert "finds the most of the four in 0 of 8 cases and the fewest in 8." in rivals.evidence
    assert "(`neuronfair-plus`) finds more than the three in 8 of 8 cases" in rivals.evidence
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
    assert len({(phases.first, phases.local) for phases in made.values()}) == len(made) - 1  # one changes the pace


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
    assert f"Behind: {behind}, of 12 (paper) and 11 (default) models. Lift 0.67 to 2.00" in claim.evidence
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


def test_experiments_that_are_not_here(refused, monkeypatch, tmp_path):
    monkeypatch.setattr("neuronfair.cli.reproduce.CHECKOUT", tmp_path)
    refused("reproduce", says=("the experiments are not in the installed package", "a checkout"))


def test_a_cluster_and_processes_are_not_both_asked_for(refused):
    refused("reproduce", "--ray", "--workers", 2, says=("--workers", "--ray", "one of the two"))


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
