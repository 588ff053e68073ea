"""`neuronfair repair` as people use it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.repairs import evaluate, retrain
from experiments.repairs.labels import from_training_rows
from experiments.repairs.session import searched_table
from neuronfair import cli
from neuronfair.model import train as training
from neuronfair.model.weights import fully_connected, load_weights
from neuronfair.store.run import Run
from tests.cli.test_app import HEADER, people, write

REPAIR = ("repair", "run", "--data", "table.csv", "--model", "model.safetensors", "--out", "fair.safetensors")
LENIENT = ("--max-loss", 1, "--share", 1, "--repeats", 2)


def call(patch: pytest.MonkeyPatch, *words: object) -> None:
    patch.setattr(sys, "argv", ["neuronfair", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table in which sex counts, a network that was trained on it, and a run."""
    path = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        write("table.csv", HEADER, *people(200))
        call(patch, "domain", "infer", "table.csv", "--sensitive", "sex", "--target", "income")
        train = ("train", "table.csv", "--domain", "table.toml", "--hidden", "8,4", "--seed", 3, "-q")
        call(patch, *train, "--out", "model.safetensors")
        search = (
            "search",
            "table.csv",
            "--domain",
            "table.toml",
            "--model",
            "model.safetensors",
            "--no-controls",
            "-q",
        )
        call(patch, *search, "--starts", 20, "--steps", 20, "--out", "run")
        call(patch, *search, "--starts", 0, "--out", "empty")
        # A table in which a copy of sex counts, a network that was trained on it, and a run by counterfactuals.
        lines = [f"{i % 7},{'FM'[i % 2]},{'xy'[i % 2]},{int(i % 7 + 3 * (i % 2) > 5)}" for i in range(300)]
        write("proxy.csv", "age,sex,club,hired", *lines)
        call(patch, "domain", "infer", "proxy.csv", "--sensitive", "sex", "--target", "hired")
        proxy = ("proxy.csv", "--domain", "proxy.toml", "-q")
        call(patch, "train", *proxy, "--hidden", "8", "--out", "proxy.safetensors")
        alike = ("--model", "proxy.safetensors", "--twins", "counterfactual", "--no-controls", "--out", "alike")
        call(patch, "search", *proxy, *alike, "--starts", 3, "--steps", 2)
    return path


@pytest.fixture(autouse=True)
def copies(folder, tmp_path, monkeypatch):
    """Every test has its own files, and a short evaluate."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(evaluate, "SAMPLES", 5_000)


def test_a_retraining(run):
    result = run(*REPAIR, *LENIENT, "--json", "figures.json")
    assert (result.status, result.err) == (0, "")
    shown = " ".join(result.out.split())
    for words in ("before and after", "rate, uniform (DM-RS)", "if sex F", "2 repeats"):
        assert words in shown
    assert "Control: the same retraining without findings" in shown
    assert "no card" not in shown
    assert "other weights" not in shown
    figures = json.loads(Path("figures.json").read_text(encoding="utf-8"))
    assert (figures["how"], figures["sensitive"], figures["notes"]) == ("retrain", ["sex"], [])
    assert figures["after"]["rate"] < figures["before"]["rate"]
    kept = Run.open(Path("run"))
    parts = searched_table(kept, Path("table.csv")).split(3)
    found = len(from_training_rows(parts, kept.findings(), kept.seeds))
    assert found < len(kept.findings())  # those that were reached from held-out rows are not learned from
    assert figures["repair"]["pairs"] == found - found // 8  # the others are held for validation
    _, card = load_weights("fair.safetensors")
    assert card is not None
    assert (card.seed, card.hidden, dict(card.accuracy)) == (3, (8, 4), figures["after"]["accuracy"])
    # The test rows are those of the first training: the accuracy before is that of its card.
    _, old = load_weights("model.safetensors")
    assert dict(old.accuracy) == figures["before"]["accuracy"]
    assert run("show", "run", 0, "--model", "fair.safetensors").status == 0


def test_turned_down_neurons(run):
    result = run(*REPAIR, "--how", "neurons", "--max-loss", 0.5)
    assert (result.status, result.err) == (0, "")
    assert "Turned down to" in result.out
    assert "random neurons of the same layer" in " ".join(result.out.split())
    changed = [
        name
        for name, tensor in load_file("fair.safetensors").items()
        if not torch.equal(tensor, load_file("model.safetensors")[name])
    ]
    assert len(changed) == 1  # the weights that lead on from one layer


def test_weights_without_a_card_and_other_weights_are_mentioned(run):
    state = load_file("model.safetensors")
    save_file({name: 1.01 * tensor for name, tensor in state.items()}, "bare.safetensors")
    shown = " ".join(run(*REPAIR, *LENIENT, "--model", "bare.safetensors").out.split())
    assert "These weights have no card" in shown
    assert "were made with other weights" in shown


def test_the_same_command_gives_the_same_weights(run):
    first, second = (run(*REPAIR, *LENIENT, "--out", name).status for name in ("a.safetensors", "b.safetensors"))
    assert first == second == 0
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_a_data_set_of_the_paper_is_found_again(run, monkeypatch):
    monkeypatch.setattr(retrain, "MAX_PAIRS", 50)
    monkeypatch.setattr(retrain, "SAMPLES", 500)
    words = ("search", "german", "--sensitive", "sex", "--starts", 20, "--steps", 5, "--no-controls", "-q")
    assert run("train", "german", "--hidden", "8", "--out", "german.safetensors", "-q").status == 0
    assert run(*words, "--model", "german.safetensors", "--out", "credit").status == 0
    result = run("repair", "credit", "--out", "fair.safetensors", *LENIENT, "--json", "-")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out)["data"] == "german"


def test_a_run_by_counterfactual_twins_is_refused(refused):
    words = ("--data", "proxy.csv", "--out", "fair.safetensors")
    refused("repair", "alike", *words, says=("counterfactual twins", "neuronfair alternatives"))
    refused(*REPAIR, "--model", "model.onnx", says=("model.onnx", "neuronfair alternatives"))


# Bad calls


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--share", 0), ("share", "above 0")),
        (("--share", 2), ("share", "at most 1")),
        (("--repeats", 0), ("--repeats",)),
        (("--how", "magic"), ("--how",)),
        (("--max-loss", -1), ("--max-loss",)),
        (("--out", "fair.pt"), ("fair.pt", ".safetensors")),
        (("--out", "no/fair.safetensors"), ("there is no folder",)),
        (("--out", "model.safetensors"), ("model.safetensors", "not overwritten")),
        (("--json", "no/figures.json"), ("there is no folder",)),
        (("--model", "nothing.safetensors"), ("nothing.safetensors", "no such file")),
        (("--data", "nothing.csv"), ("nothing.csv",)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_wrong_words(refused, words, says):
    refused(*REPAIR, *words, says=says)


def test_a_run_that_cannot_be_used(refused):
    refused("repair", "empty", "--data", "table.csv", "--out", "fair.safetensors", says=("empty", "nothing was found"))
    refused("repair", "nothing", "--out", "fair.safetensors", says=("nothing", "not a run folder"))
    refused("repair", "run", "--out", "fair.safetensors", says=("'table'", "--data"))
    write("fewer.csv", HEADER, *people(150))
    refused(*REPAIR, "--data", "fewer.csv", says=("other rows",))
    write("bare.csv", "age,sex,race,job", *(line.rpartition(",")[0] for line in people(200)))
    refused(*REPAIR, "--data", "bare.csv", says=("no labels",))
    inputs = next(t for n, t in sorted(load_file("model.safetensors").items()) if n.endswith("weight")).shape[1]
    save_file(fully_connected(inputs, (6,), 3).state_dict(), "three.safetensors")
    refused(*REPAIR, "--model", "three.safetensors", says=("3 outputs", "2 classes"))


def test_an_accuracy_that_cannot_be_kept_leaves_everything_as_it_was(refused, monkeypatch):
    write("fair.safetensors", "something of mine")
    monkeypatch.setattr(
        retrain,
        "outcomes",
        lambda modules, *_: [retrain.RepairOutcome(0.1, 0.9 - 0.2 * (i > 0)) for i in range(len(modules))],
    )
    refused(*REPAIR, says=("no repeat keeps the accuracy", "90% to 70%", "--max-loss"))
    assert Path("fair.safetensors").read_text(encoding="utf-8") == "something of mine\n"


def test_ctrl_c_writes_nothing(run, monkeypatch):
    before = sorted(Path().rglob("*"))
    run_epochs = training.run_epochs

    def press(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return run_epochs(*args, **options)

    monkeypatch.setattr(training, "run_epochs", press)
    result = run(*REPAIR)
    assert result.status != 0
    assert "Traceback" not in result.err
    assert sorted(Path().rglob("*")) == before


def test_figures_do_not_replace_the_card(refused):
    refused(*REPAIR, *LENIENT, "--json", "fair.json", says=("fair.json", "card"))


def test_it_says_that_it_takes_the_runs_of_an_audit(run):
    assert "'neuronfair audit'" in " ".join(run("repair", "--help").out.replace("│", " ").split())
