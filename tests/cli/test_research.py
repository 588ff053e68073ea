"""`neuronfair search` and `neuronfair show` as people use them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuronfair import cli
from neuronfair.domain.population import model as population
from neuronfair.model import open as bridges
from neuronfair.model.weights import fully_connected
from neuronfair.searches import engine
from neuronfair.store import shard_runner
from neuronfair.store.run import Run
from tests.cli.test_app import HEADER, people, write
from tests.conftest import Result

KEYS = {
    *(
        "method",
        "findings",
        "findings_global",
        "findings_local",
        "tried",
        "confused",
        "gsr",
        "random",
        "lift",
        "random_direction",
    ),
    *("violations", "plausibility", "rejected_on_recheck", "seconds", "seconds_per_1000", "rows_evaluated"),
}
SMALL = ("--starts", 20, "--steps", 20, "--out", "run")
UNTIMED = ("seconds", "seconds_per_1000")


def trained_table(path: Path) -> Path:
    """Fill a folder with a table in which sex counts, its domain and a network that was trained on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        write("table.csv", HEADER, *people(200))
        for words in (
            ("domain", "infer", "table.csv", "--sensitive", "sex", "--target", "income"),
            ("train", "table.csv", "--domain", "table.toml", "--hidden", "8,4", "--out", "model.safetensors", "-q"),
        ):
            patch.setattr(sys, "argv", ["neuronfair", *words])
            with pytest.raises(SystemExit) as stop:
                cli.main()
            assert not stop.value.code
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained_table(tmp_path_factory.mktemp("table"))


@pytest.fixture(autouse=True)
def copies(folder, tmp_path):
    """Every test has its own table, domain and model."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())


SEARCH = ("search", "table.csv", "--domain", "table.toml", "--model", "model.safetensors")


def figures(result: Result) -> dict:
    assert (result.status, result.err) == (0, "")
    return json.loads(result.out)


def untimed(summary: dict) -> dict:
    return {name: value for name, value in summary.items() if name not in UNTIMED}


# Searches


def test_the_figures_of_a_search(run):
    found = figures(run(*SEARCH, *SMALL, "--json", "-"))
    assert set(found) >= KEYS
    assert set(found["random"]) == set(found["random_direction"]) == {"tried", "findings", "gsr"}
    assert found["method"] == "frontier"
    assert found["findings"] == found["findings_global"] + found["findings_local"] > 20
    assert found["gsr"] == found["findings"] / found["tried"]
    assert found["lift"] == found["gsr"] / found["random"]["gsr"]
    assert found["seconds_per_1000"] == 1000 * found["seconds"] / found["findings"]
    assert found["violations"] == 0
    assert found["rows_evaluated"] >= found["tried"]
    assert len(Run.open(Path("run")).findings()) == found["findings"]
    assert Run.open(Path("run")).summary == found


def test_a_search_in_words_and_as_a_file(run):
    result = run(*SEARCH, *SMALL, "--json", "figures.json")
    assert (result.status, result.err) == (0, "")
    for words in (
        "Discriminatory inputs by sex",
        "drawn uniformly",
        "random directions",
        "success rate",
        "neuronfair show run 0",
    ):
        assert words in " ".join(result.out.split())
    assert max(map(len, result.out.splitlines())) <= 80
    assert set(json.loads(Path("figures.json").read_text(encoding="utf-8"))) >= KEYS


def test_a_search_by_counterfactuals_is_kept_shown_and_exported(run):
    quick = (*SEARCH, "--starts", 20, "--steps", 5, "--method", "aequitas", "--no-controls", "--out", "run")
    first = run(*quick, "--twins", "counterfactual")
    assert (first.status, first.err) == (0, "")
    said = " ".join(first.out.split())
    assert "Records whose counterfactual twin by sex gets a different decision" in said
    assert "the counterfactual twin with sex " in said
    assert "only sex" not in said
    found = Run.open(Path("run"))
    count = len(found.findings())
    assert found.summary["twins"] == "counterfactual"
    assert count > 0
    shown = " ".join(run("show", "run", 0).out.split())
    assert re.search(
        r"the counterfactual twin with sex \w instead of \w \((also .+|nothing else differs)\) gets", shown
    )
    assert re.search(
        r"Of 32 counterfactual twins drawn for this person, [\d.]+% \(\d+\) get a different decision\.", shown
    )
    assert "it still holds" in shown
    assert (
        figures(run(*quick, "--twins", "counterfactual", "--json", "-"))["findings"] == count
    )  # and nothing is redone
    assert "begun with twins = counterfactual, not flip" in run(*quick).err
    assert run("show", "run", "--out", "found.csv").status == 0
    heading, line = Path("found.csv").read_text(encoding="utf-8").splitlines()[:2]
    twins = [name for name in heading.replace('"', "").split(",") if name.startswith("twin_")]
    assert {f"twin_{name}" for name in found.domain.names} <= set(twins)
    assert len(line.split(",")) == len(heading.split(","))


def test_counterfactuals_need_people_of_both_groups(refused):
    write("table.csv", HEADER, *people(40))
    says = ("counterfactuals need two groups of at least 30 records",)
    refused(*SEARCH, *SMALL, "--twins", "counterfactual", says=says)


@pytest.mark.parametrize("method", ["frontier", "neuronfair-plus", "neuronfair", "neuronfair-printed", "uniform"])
def test_every_method(run, method):
    found = figures(run(*SEARCH, *SMALL, "--method", method, "--json", "-"))
    assert found["method"] == method
    assert found["findings"] > 0
    assert found["violations"] == 0


def test_without_controls(run):
    found = figures(run(*SEARCH, *SMALL, "--no-controls", "--json", "-"))
    assert (found["random"], found["random_direction"], found["lift"]) == (None, None, None)
    assert "drawn uniformly" not in run(*SEARCH, *SMALL, "--no-controls").out


def test_quiet_says_nothing(run):
    assert run(*SEARCH, *SMALL, "--quiet") == Result(0, "", "")


def test_without_a_model_one_is_trained_and_kept_in_the_run(run):
    own = ("search", "table.csv", "--target", "income", "--sensitive", "sex", *SMALL)
    first = figures(run(*own, "--json", "-"))
    weights = Path("run/model.safetensors").read_bytes()
    assert untimed(figures(run(*own, "--json", "-"))) == untimed(first)
    assert Path("run/model.safetensors").read_bytes() == weights
    assert "it still holds" in run("show", "run", 0).out


@pytest.mark.parametrize("method", ["frontier", "neuronfair-plus"])
def test_a_finished_run_gives_the_same_figures_at_once(run, monkeypatch, method):
    call = (*SEARCH, *SMALL, "--method", method, "--json", "-")
    first = figures(run(*call))
    parts = {path.name: path.read_bytes() for path in Path("run").glob("*l-*")}
    if method != "frontier":  # whose pilot is made anew
        monkeypatch.setattr(engine.PhaseTally, "record", None)
    again = figures(run(*call))
    assert untimed(again) == untimed(first)
    assert {path.name: path.read_bytes() for path in Path("run").glob("*l-*")} == parts


@pytest.mark.parametrize("option", ["--seconds", "--starts", "--steps"])
@pytest.mark.parametrize("method", ["frontier", "neuronfair-plus"])
def test_a_budget_of_zero(run, option, method):
    words = (*SEARCH, "--method", method, "--starts", 5, "--steps", 5, option, 0, "--out", "run")
    found = figures(run(*words, "--json", "-"))
    if option != "--steps":
        assert found["findings_local"] == 0
    if option == "--starts":
        assert (found["findings"], found["tried"], found["gsr"], found["seconds_per_1000"]) == (0, 0, 0, None)
    result = run(*words)
    assert (result.status, result.err) == (0, "")


def test_more_seeds_than_rows(run):
    found = figures(run(*SEARCH, "--starts", 300, "--steps", 2, "--out", "run", "--json", "-"))
    assert found["findings"] > 20
    assert len(Run.open(Path("run")).seeds) == 300


def test_two_sensitive_attributes(run):
    found = figures(run(*SEARCH, *SMALL, "--sensitive", "sex,race", "--json", "-"))
    assert found["sensitive"] == ["sex", "race"]
    assert "sex" in run("show", "run", 0).out


def test_the_published_adult_classifier(run, shared_models):
    model = shared_models / "neuronfair" / "census.npz"
    words = ("search", "adult", "--encoding", "paper", "--sensitive", "sex", "--model", model, "--no-controls")
    found = figures(run(*words, "--starts", 50, "--steps", 30, "--out", "run", "--json", "-"))
    assert found["gsr"] > 0.2
    assert "it still holds" in run("show", "run", found["findings"] - 1).out


# Bad calls


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--method", "frontir"), ("no method 'frontir'", "Did you mean 'frontier'?")),
        (("--starts", -1), ("--starts",)),
        (("--steps", "many"), ("--steps",)),
        (("--seconds", -1), ("--seconds",)),
        (("--seconds", "nan"), ("seconds",)),
        (("--sensitive", "gender"), ("gender", "age, sex, race")),
        (("--json", "no/figures.json"), ("there is no folder",)),
        (("--model", "nothing.npz"), ("nothing.npz",)),
        (("--out", "table.csv"), ("table.csv exists and is not a run folder",)),
        (("--out", "."), ("exists and is not a run folder",)),
        (("--out", "table.csv/run"), ("table.csv/run",)),
        (("--device", "nonsense"), ("--device nonsense",)),
        (("--plausible", 1.5), ("plausible must be 0 or more and below 1, got 1.5",)),
        (("--plausible", "nan"), ("plausible must be 0 or more and below 1, got nan",)),
        (("--population", "nobody.csv"), ("nobody.csv",)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_wrong_words(refused, words, says):
    refused(*SEARCH, *SMALL, *words, says=says)


def test_no_run_folder_given(refused):
    refused(*SEARCH, says=("--out",))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", ["first", "last"])
def test_weights_that_are_no_numbers(refused, bad, layer):
    state = load_file("model.safetensors")
    name = [name for name in sorted(state) if name.endswith("weight")][0 if layer == "first" else -1]
    state[name][0, 0] = bad
    save_file(state, "bad.safetensors")
    refused(*SEARCH, *SMALL, "--model", "bad.safetensors", says=("NaN",))


def other_outputs(*counts: int) -> None:
    """Save networks with random weights and so many outputs each, 1.safetensors for one."""
    torch.manual_seed(0)
    width = load_file("model.safetensors")
    inputs = next(t for n, t in sorted(width.items()) if n.endswith("weight")).shape[1]
    for outputs in counts:
        save_file(fully_connected(inputs, (6,), outputs).state_dict(), f"{outputs}.safetensors")


def test_a_model_with_other_outputs(run):
    other_outputs(1, 3)
    result = run(*SEARCH, *SMALL, "--model", "1.safetensors", "--decision", "argmax")
    assert result.status == 2
    assert "one output" in result.err
    told = " ".join(run(*SEARCH, *SMALL, "--model", "1.safetensors").out.split())  # a score: its sign decides
    assert re.search(r": gets (low|high) \(probability of \1 [\d.]+%\); with only sex", told)
    assert Run.open(Path("run")).manifest["plan"]["decision"] == {"kind": "threshold", "value": 0.0}
    shown = run("show", "run", 0).out
    assert "it still holds" in shown
    assert re.search(r"gets (low|high) \(probability of \1 [\d.]+%\);", " ".join(shown.split()))
    assert " a score of " not in shown
    result = run(*SEARCH[:-1], "3.safetensors", "--starts", 20, "--steps", 20, "--out", "run3")
    assert (result.status, result.err) == (0, "")


def test_a_run_of_something_else(run, refused):
    assert run(*SEARCH, *SMALL).status == 0
    refused(*SEARCH, *SMALL, "--starts", 21, says=("run: this run was begun with seeds = 20, not 21",))
    refused(*SEARCH, *SMALL, "--sensitive", "race", says=("begun with sensitive = ['sex'], not ['race']",))
    refused(*SEARCH, *SMALL, "--method", "uniform", says=("begun with method = frontier, not uniform",))
    state = load_file("model.safetensors")
    save_file({name: 2 * tensor for name, tensor in state.items()}, "other.safetensors")
    refused(*SEARCH, *SMALL, "--model", "other.safetensors", says=("other weights", "Choose another --out"))
    write("fewer.csv", HEADER, *people(150))
    refused("search", "fewer.csv", *SEARCH[2:], *SMALL, says=("another table",))
    refused("search", "fewer.csv", *SEARCH[2:], *SMALL, "--force", "--method", "magic", says=("magic",))
    assert run("search", "fewer.csv", *SEARCH[2:], *SMALL, "--force", "-q").status == 0
    assert run(*SEARCH, *SMALL, "--force", "-q").status == 0
    text = Path("table.toml").read_text(encoding="utf-8")
    rule = '[[rules]]\nname = "no old smiths"\nforbid = { age = { min = 70 }, job = ["smith"] }'
    write("ruled.toml", text, rule)
    refused(*SEARCH, *SMALL, "--domain", "ruled.toml", says=("another domain",))


# Plausible people


def test_a_search_among_plausible_people(run, refused):
    words = (*SEARCH, *SMALL, "--plausible", 0.2)
    found = figures(run(*words, "--json", "-"))
    assert found["findings"] > 0 == found["violations"]
    assert found["plausibility"]["share"] == 1.0
    assert found["plausibility"]["median"] >= 0.2
    assert (Run.open(Path("run")).findings().plausibility >= 0.2).all()
    told = " ".join(run("show", "run", 0).out.split())
    assert re.search(r"Likelihood: \d+.. likelihood percentile\.", told)
    told = " ".join(run(*words).out.split())  # from the run folder
    assert "Minimum likelihood percentile of the records: 20%." in told
    refused(*words, "--plausible", 0.1, says=("begun with plausible = 0.2, not 0.1",))


def test_plausibility_text_the_findings_are_is_always_said(run):
    found = figures(run(*SEARCH, *SMALL, "--json", "-"))
    there = Run.open(Path("run"))
    plausibility = there.population.plausibility(there.findings().rows).float()
    assert torch.equal(there.findings().plausibility, plausibility)
    assert found["plausibility"]["share"] == pytest.approx(float((plausibility >= 0.01).double().mean()))
    assert found["plausibility"]["median"] == float(plausibility.median())


def test_a_run_goes_on_with_its_own_population(run, monkeypatch):
    found = figures(run(*SEARCH, *SMALL, "--plausible", 0.1, "--json", "-"))
    monkeypatch.setattr(population, "fit_population", None)
    assert untimed(figures(run(*SEARCH, *SMALL, "--plausible", 0.1, "--json", "-"))) == untimed(found)


def test_a_population_of_ones_own(run, refused):
    lines = Path("table.csv").read_text(encoding="utf-8").splitlines()
    write("others.csv", HEADER, *(line for line in lines[1:] if "smith" in line))
    words = (*SEARCH, *SMALL, "--population")
    found = figures(run(*words, "others.csv", "--plausible", 0.3, "--json", "-"))
    assert found["findings"] > 0
    there = Run.open(Path("run"))
    assert set(there.domain.to_table(there.findings().rows)["job"]) == {"smith"}
    refused(*words, "table.csv", "--plausible", 0.3, says=("begun with another population",))
    refused(*SEARCH, *SMALL, "--plausible", 0.3, says=("begun with another population",))
    write("empty.csv", HEADER)
    write("odd.csv", lines[0], lines[1].replace(lines[1].split(",")[3], "wizard"))
    write("short.csv", *(",".join(line.split(",")[1:]) for line in lines))
    refused(*words, "empty.csv", says=("empty.csv",))
    refused(*words, "odd.csv", says=("odd.csv", "wizard"))
    refused(*words, "short.csv", says=("short.csv: column", "is missing"))


# Ctrl-C


def test_ctrl_c_keeps_what_was_found(run):
    long = (*SEARCH, "--method", "neuronfair-plus", "--starts", 20, "--steps", 10**6, "--no-controls", "--out", "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "neuronfair.cli", *map(str, long)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    journal = Path("run/journal.jsonl")
    deadline = time.monotonic() + 60
    while not (journal.exists() and '"local"' in journal.read_text(encoding="utf-8")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "Interrupted: what was found is kept. The same command resumes from here." in out
    stopped = Run.open(Path("run"))
    assert stopped.lines[-1]["stop"] == "interrupted"
    assert stopped.summary is None
    resumed = stopped.resume("local")
    assert resumed is not None
    assert resumed.t == stopped.lines[-1]["t"] >= 50
    found = stopped.findings()
    assert len(found) > 0
    assert "it still holds" in run("show", "run", len(found) - 1).out


def test_ctrl_c_in_this_process_and_going_on(run, monkeypatch):
    words = (*SEARCH, *SMALL, "--method", "neuronfair-plus", "--json", "-")
    whole = untimed(figures(run(*SEARCH, *SMALL[:-1], "whole", "--method", "neuronfair-plus", "--json", "-")))
    record, calls = engine.PhaseTally.record, []

    def press(tally, *values) -> None:
        calls.append(1)
        if len(calls) % 15 == 0:
            signal.raise_signal(signal.SIGINT)
        record(tally, *values)

    with monkeypatch.context() as patch:
        patch.setattr(engine.PhaseTally, "record", press)
        stopped = figures(run(*words))
    assert "interrupted" in stopped["stop"].values()
    assert stopped["random"] is None
    assert untimed(figures(run(*words))) == whole
    states = [sorted(p.name[:5] for p in Path(name).glob("*.safetensors")) for name in ("run", "whole")]
    assert states[0] == states[1]  # the last of each phase, no other


# Replay


def test_a_finding_in_words(run):
    assert run(*SEARCH, *SMALL, "--quiet").status == 0
    result = run("show", "run", 17)
    assert (result.status, result.err) == (0, "")
    for words in (
        "Finding 17 of run",
        "age ",
        "with only sex F → M" if "sex F" in result.out else "with only sex M → F",
    ):
        assert words in result.out
    assert "high" in result.out
    assert "low" in result.out
    assert "Evaluated again with the same weights: it still holds." in result.out


def test_a_finding_on_other_weights(run):
    assert run(*SEARCH, *SMALL, "--quiet").status == 0
    state = load_file("model.safetensors")
    save_file({name: 2 * tensor if "2" in name else tensor for name, tensor in state.items()}, "other.safetensors")
    blind = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    save_file(blind, "blind.safetensors")
    result = run("show", "run", 3, "--model", "blind.safetensors")
    assert result.status == 0
    assert "Evaluated again with other weights: it no longer holds: the decisions are the same." in result.out
    assert "Evaluated again with other weights" in run("show", "run", 3, "--model", "other.safetensors").out
    again = run("show", "run", 3, "--model", "model.safetensors").out
    assert "Evaluated again with the same weights: it still holds." in again


def test_a_model_that_was_changed_is_opened_only_if_it_is_named(run, refused, monkeypatch):
    assert run(*SEARCH, *SMALL, "--quiet").status == 0
    state = load_file("model.safetensors")
    save_file({name: 2 * tensor if "2" in name else tensor for name, tensor in state.items()}, "model.safetensors")
    assert "Evaluated again with other weights" in run("show", "run", 3, "--model", "model.safetensors").out
    for place in ("neuronfair.model.open.wrap_model", "neuronfair.model.weights.load_weights"):
        monkeypatch.setattr(place, None)  # nothing of the file is parsed
    refused("show", "run", 3, says=("model.safetensors: has changed since run was made", "use --model "))
    words = ("repair", "run", "--data", "table.csv", "--out", "fair.safetensors")
    refused(*words, says=("model.safetensors: has changed since run was made", "use --model "))


def test_a_file_that_gives_another_model(run, refused, monkeypatch):
    """The file is the same, but what it reads is not: weights that an ONNX file keeps beside it, for instance."""
    assert run(*SEARCH, *SMALL, "--quiet").status == 0
    opened = bridges.wrap_model

    def other(*values, **options):
        return dataclasses.replace(opened(*values, **options), fingerprint="another")

    monkeypatch.setattr(bridges, "wrap_model", other)
    refused("show", "run", 3, says=("model.safetensors: is not the model that run was made with", "--model"))
    assert "Evaluated again with other weights" in run("show", "run", 3, "--model", "model.safetensors").out


def test_the_classifier_of_a_run_is_used_again_only_if_it_is_the_same(run, refused):
    words = ("search", "table.csv", "--domain", "table.toml", *SMALL)
    assert run(*words, "--quiet").status == 0
    own = Path("run/model.safetensors")
    whole = own.read_bytes()
    assert "it still holds" in run("show", "run", 0).out
    assert "Trained" not in run(*words).out
    own.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    refused(*words, says=("run/model.safetensors: has changed since run was made",))
    # A kill before the search began leaves a classifier that no line names: it is trained again.
    shutil.copytree("run", "begun")
    for path in Path("begun").iterdir():
        if path.name not in ("manifest.json", "domain.toml", "model.safetensors", "model.json"):
            path.unlink()
    assert "Trained" in run(*words[:-1], "begun").out
    assert Path("begun/model.safetensors").read_bytes() == whole


def test_a_kill_right_after_the_manifest(run):
    words = ("search", "table.csv", "--domain", "table.toml", *SMALL, "--json", "-")
    first = untimed(figures(run(*words)))
    for path in Path("run").iterdir():
        if path.name != "manifest.json":
            path.unlink()
    assert untimed(figures(run(*words))) == first


def test_a_replay_that_cannot_be(run, refused):
    count = figures(run(*SEARCH, *SMALL, "--json", "-"))["findings"]
    assert run("show", "run", count - 1).status == 0
    refused("show", "run", count, says=(f"has {count:,} findings", f"no number {count}"))
    refused("show", "run", -1, says=("N",))
    refused("show", "run", "first", says=("N",))
    refused("show", "nothing", 0, says=("nothing", "not a run folder"))
    refused("show", ".", 0, says=("not a run folder",))
    refused("show", "table.csv", 0, says=("table.csv",))
    refused("show", "run", 0, "--model", "nothing.npz", says=("nothing.npz",))
    inputs = next(t for n, t in sorted(load_file("model.safetensors").items()) if n.endswith("weight")).shape[1]
    save_file(fully_connected(inputs, (6,), 3).state_dict(), "three.safetensors")
    refused("show", "run", 0, "--model", "three.safetensors", says=("3 outputs", "2"))
    state = load_file("model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in state.items()}, "nan.safetensors")
    refused("show", "run", 0, "--model", "nan.safetensors", says=("NaN",))
    Path("model.safetensors").unlink()
    refused("show", "run", 0, says=("model.safetensors", "no such file"))


def test_a_damaged_part_is_named(run, refused):
    assert run(*SEARCH, *SMALL, "--quiet").status == 0
    part = Path("run/local-00000.parquet")
    part.write_bytes(part.read_bytes()[:100])
    refused("show", "run", 0, says=("local-00000.parquet", "damaged"))
    refused(*SEARCH, *SMALL, says=("local-00000.parquet", "damaged"))


def test_the_old_spelling_of_starts_works(run):
    found = figures(run(*SEARCH, "--seeds", 3, "--steps", 5, "--no-controls", "--out", "run", "--json", "-"))
    assert len(Run.open(Path("run")).seeds) == 3 <= found["tried"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ray", "127.0.0.1:1"), ("--ray 127.0.0.1:1: no cluster answers there",)),
        (("--ray=somewhere",), ("--ray somewhere: expected auto, HOST:PORT",)),
        (("--ray", "--seconds", 5), ("--seconds does not work with --ray",)),
    ],
)
def test_a_cluster_that_cannot_be_had(refused, words, says):
    pytest.importorskip("ray", reason="needs the extra [ray]")
    refused("search", "table.csv", "--domain", "table.toml", "--model", "model.safetensors", *SMALL, *words, says=says)


def test_without_ray_it_is_said_how_to_install_it(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused("search", "--ray", "table.csv", *SMALL, says=("needs the package 'ray'", "pip install 'neuronfair[ray]'"))


def test_a_long_search_is_cut_and_told_in_figures(run, monkeypatch):
    search = ("search", "table.csv", "--domain", "table.toml", "--model", "model.safetensors", *SMALL[:-1])
    one = json.loads(run(*search, "one", "--json", "-").out)
    monkeypatch.setattr(shard_runner, "MAX_ROWS_IN_MEMORY", 100)
    monkeypatch.setattr(shard_runner, "MAX_ROWS_PER_SHARD", 150)
    monkeypatch.setattr(shard_runner, "MIN_CHAINS_PER_SHARD", {})
    cut = json.loads(run(*search, "cut", "--json", "-").out)
    for figures in (one, cut):
        for name in UNTIMED:
            del figures[name]
    assert cut.pop("plausibility") == pytest.approx(one.pop("plausibility"), abs=1e-5)
    assert cut == one
    shown = run(*search, "cut").out
    assert f"{one['findings_local']:,} in the local one" in shown
    assert sorted(path.name for path in Path("cut").iterdir()) == sorted(path.name for path in Path("one").iterdir())
