"""`neuronfair audit` as people use it, and the other commands with models of every kind."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import pytest

from neuronfair.audits import run as audits
from neuronfair.audits.report.attribute import ProofSummary
from neuronfair.audits.stages import attributes as stages
from neuronfair.cli import options as cluster
from neuronfair.cli.audit import AuditOutputs
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.tables import files
from neuronfair.errors import NeuronFairError
from neuronfair.model.decision import Decision
from neuronfair.scale.tasks import Tasks
from neuronfair.searches import engine
from neuronfair.store.files import read_sealed
from neuronfair.store.ledger import NEW
from tests.cli.test_app import HEADER, people, write
from tests.cli.test_research import trained_table
from tests.conftest import FLIPS_ONLY, Result
from tests.scale.pools import Pickled
from tests.store.runs import forged

DATA_SET = ("table.csv", "--domain", "table.toml")
MODEL = ("--model", "model.safetensors")
SMALL = ("--quick", "--starts", 8, "--steps", 8, "--samples", 2000, *FLIPS_ONLY, "--out", "run")
AUDIT = ("audit", *DATA_SET, *MODEL, *SMALL)
FUNCTION = """
def score(people):
    return (people["age"] + 12 * (people["sex"] == "M") - 50) / 100 + 0.5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained_table(tmp_path_factory.mktemp("table"))


@pytest.fixture(autouse=True)
def copies(folder, tmp_path):
    """Every test has its own table, domain and model."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def mine(tmp_path):
    """A function of people in a file of the working folder: a black box."""
    (tmp_path / "mine.py").write_text(FUNCTION, encoding="utf-8")
    yield "mine:score"
    sys.modules.pop("mine", None)


def figures(result: Result, status: int = 0) -> dict:
    assert (result.status, result.err) == (status, "")
    return json.loads(result.out)


def kept(name: str = "run") -> dict:
    return read_sealed(Path(name) / "audit.json")


@pytest.mark.parametrize("described", [("--domain", "table.toml"), ("--target", "income", "--sensitive", "sex")])
def test_the_table_is_read_once(run, monkeypatch, described, briefly):
    read, opened = [], files.read_bytes

    def counted(path, **options):
        read.append(path.name)
        return opened(path, **options)

    monkeypatch.setattr(files, "read_bytes", counted)
    assert run("audit", "table.csv", *described, *SMALL).status == 0
    assert read == ["table.csv"]
    assert Path("run", "domain.toml").exists()


@pytest.mark.usefixtures("briefly")
def test_the_seconds_of_a_proof_are_an_option(run, monkeypatch):
    """A folder that was made without a proof may get one later."""
    given = []

    def nothing(stage, show):
        given.append(stage.seconds)
        return stages.ProofOutcome(ProofSummary.nothing(1, "not today"))

    monkeypatch.setattr(stages.ProofStage, "prove", nothing)
    assert "No proof" not in run(*AUDIT, "--prove", 0).out
    assert "No proof: not today." in run(*AUDIT, "--prove", 1.5).out
    assert given == [1.5]
    assert "nothing can be proved: not today" in run(*AUDIT, "--prove", 1, "--fail-if", "proved_fair < 90%").err


def measured(name: str) -> dict:
    """The report without times, folders and what a proof has decided in its time."""
    report = kept(name)
    for one in report["attributes"]:
        assert one["proved"]["boxes"] > 0
        assert one["counterfactual"]["permutations"] == 5
        one["proved"] = None
        for finding in (*one["findings"], *one["worst"]):
            finding["replay"] = None
        for one_search in one["searches"]:
            one_search.update(seconds=None, findings_per_second=None)
    return {key: report[key] for key in ("data", "model", "decision", "attributes", "encoding_check", "gate")}


@pytest.mark.skipif(sys.platform != "linux", reason="processes fork on Linux only")
def test_stages_side_by_side_give_the_same_figures(run, monkeypatch):
    small = ("--quick", "--starts", 8, "--steps", 8, "--samples", 2000, "--prove", 0.3)
    assert run("audit", *DATA_SET, *MODEL, *small, "--out", "alone").status == 0
    begun = []
    monkeypatch.setattr(audits, "count_usable_cores", lambda: 3)
    monkeypatch.setattr(Tasks, "_fork", lambda tasks, fork=Tasks._fork: (begun.append(len(tasks._works)), fork(tasks)))
    assert run("audit", *DATA_SET, *MODEL, *small, "--out", "several").status == 0
    assert begun == [2, 2, 11, 11]  # the checks of the inputs; the proof, with five shuffled tables and five halves
    assert measured("several") == measured("alone")


@pytest.mark.usefixtures("briefly")
def test_a_model_that_is_trained_now_is_audited_on_a_cluster(run, monkeypatch):
    monkeypatch.setattr(cluster, "cluster", lambda address: nullcontext(Pickled()))
    assert run("audit", *DATA_SET, *SMALL, "-q", "--ray").status == 0
    assert run("audit", *DATA_SET, *SMALL[:-1], "alone", "-q").status == 0
    found, alone = (kept(name)["attributes"][0] for name in ("run", "alone"))
    for name in ("rates", "groups", "severity", "regions", "subgroups", "interpretation"):
        assert found[name] == alone[name]


def test_the_terminal_and_the_folder(run):
    result = run(*AUDIT)
    assert (result.status, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    shown = " ".join(result.out.split())
    assert shown.startswith("Decisions depend on sex for ")
    for words in ("Flip rate", "No threshold was set", "neuronfair show run/sex/", "instead of"):
        assert words in shown
    assert shown.endswith("Report: run/report.html")
    assert len(result.out.splitlines()) <= 25
    told = run(*AUDIT, "--verbose").out
    assert "Appendix: searches" in told
    assert "drawn uniformly" in told
    assert sorted(path.name for path in Path("run").iterdir()) == [
        *("audit.json", "domain.toml", "manifest.json", "report.html", "sex")
    ]
    assert Path("run/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    summary = kept()
    assert summary["reproduction"]["command"].startswith("neuronfair audit table.csv --domain table.toml --model ")
    assert not summary["data"]["domain_inferred"]
    assert set(summary["model"]["accuracy"]) == {"train", "validation", "test"}


def searched(summary: dict) -> list[dict]:
    """The worst pairs that a search found: a record of the data set has no run to show it."""
    return [finding for finding in summary["attributes"][0]["worst"] if finding["method"] != "table"]


def test_the_person_on_the_page_is_the_person_on_the_terminal(run):
    assert run(*AUDIT).status == 0
    domain = read_domain("table.toml")
    shrunk = 0
    for worst in searched(kept()):
        out = run(*worst["replay"].split()[1:]).out
        found, _, reported = out.partition("Shrunk, as it was reported:")
        row = domain.from_table({name: [value] for name, value in worst["row"].items()})[0]
        assert domain.describe(row) in reported
        (change,) = worst["changed"]
        assert f"with only {change['attribute']} {change['own']} → {change['twin']} gets" in reported
        assert f"gets {worst['decision']} " in reported
        assert (found.count("it still holds."), reported.count("it still holds.")) == (1, 1)
        shrunk += domain.describe(row) not in found
    assert shrunk > 0
    numbers = {(worst["method"], worst["number"]) for worst in kept()["attributes"][0]["worst"]}
    other = next(n for n in range(99) if ("frontier", n) not in numbers)
    assert "Shrunk" not in run("show", "run/sex/frontier", other).out


def test_a_flipped_bit_in_what_an_audit_reads_back(run, refused, briefly):
    words = ("audit", *DATA_SET, *SMALL)
    assert run(*words).status == 0
    commands = {
        "sex/worst.json": ("show", "run/sex/frontier", 0),
        "audit.json": ("audit", *DATA_SET, *MODEL, *SMALL[:-1], "other", "--baseline", "run/audit.json"),
        **dict.fromkeys(("manifest.json", "domain.toml", "model.safetensors"), words),
    }
    for name, command in commands.items():
        path = Path("run") / name
        whole = path.read_bytes()
        for place in (len(whole) // 3, len(whole) // 2, len(whole) - 10):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            refused(*command, says=(f"run/{name}: ",))
            if name == "model.safetensors":
                refused("show", "run/sex/frontier", 0, says=("model.safetensors: has changed since",))
        path.write_bytes(whole)


def test_what_is_gone_from_an_audit(run, refused, briefly):
    words = ("audit", *DATA_SET, *SMALL)
    assert run(*words).status == 0
    for name, says in (
        ("domain.toml", "was edited or removed"),
        ("model.safetensors", "is gone"),
        ("manifest.json", "is not the folder of an audit"),
    ):
        Path("run", name).rename("aside")
        refused(*words, says=(says,))
        Path("aside").rename(Path("run", name))
    manifest = Path("run/manifest.json")
    manifest.write_text('{"audit": 1, "neuronfair": "0.1.0"}', encoding="utf-8")
    refused(*words, says=("run: was written in format 1", "Begin again with another --out"))
    manifest.write_text('{"name": "my web app"}', encoding="utf-8")
    refused(*words, says=("manifest.json: damaged",))


def test_json_alone_and_quiet(run):
    summary = figures(run(*AUDIT, "--json", "-"))
    assert summary == kept()
    assert run(*AUDIT, "--quiet") == Result(0, "", "")
    again = kept()
    assert [e["searches"][0]["findings"] for e in again["attributes"]] == [
        e["searches"][0]["findings"] for e in summary["attributes"]
    ]
    assert run(*AUDIT, "-q", "--json", "copy.json", "--html", "page.html").status == 0
    assert json.loads(Path("copy.json").read_text(encoding="utf-8")) == kept()
    assert Path("page.html").exists()
    assert run(*AUDIT, "-q", "--json", "run/audit.json").status == 0


def test_a_table_alone(run, briefly):
    """No model and no domain file: both are made, kept, and used when the audit goes on."""
    words = ("audit", "table.csv", "--target", "income", "--sensitive", "sex", *SMALL)
    result = run(*words)
    assert (result.status, result.err) == (0, "")
    assert "Correct domain.toml and audit again." in " ".join(result.out.split())
    assert "# A first draft" in Path("run/domain.toml").read_text(encoding="utf-8")
    assert read_domain("run/domain.toml").sensitive == ("sex",)
    weights = Path("run/model.safetensors").read_bytes()
    summary = kept()
    assert summary["model"]["trained_here"]
    assert summary["data"]["domain_inferred"]
    assert figures(run(*words, "--json", "-"))["attributes"][0]["worst"] == summary["attributes"][0]["worst"]
    assert Path("run/model.safetensors").read_bytes() == weights
    assert "it still holds" in run("show", "run/sex/frontier", 0).out
    # The domain as it was written describes the same audit.
    again = ("audit", "table.csv", "--domain", "run/domain.toml", *SMALL[:-1], "other", "--json", "-")
    assert figures(run(*again))["attributes"][0]["rates"] == summary["attributes"][0]["rates"]


def test_a_domain_file_without_a_name(run, briefly):
    """It is called like its file; the copy in the folder has another file name, and is the same domain all the same."""
    text = Path("table.toml").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("name = "))
    write("loans.toml", text.replace(line, ""))
    words = ("audit", "table.csv", "--domain", "loans.toml", *SMALL, "--json", "-")
    first = figures(run(*words))
    assert read_domain("run/domain.toml").fingerprint == read_domain("loans.toml").fingerprint
    again = figures(run(*words))  # goes on with its own audit
    assert again["attributes"][0]["worst"] == first["attributes"][0]["worst"]
    copied = ("audit", "table.csv", "--domain", "run/domain.toml", *SMALL[:-1], "other", "--json", "-")
    assert "another domain" not in figures(run(*copied, "--baseline", "run/audit.json"))["baseline"]["text"]


def test_several_attributes(run):
    summary = figures(run(*AUDIT, "--sensitive", "sex,race", "--json", "-"))
    assert [entry["name"] for entry in summary["attributes"]] == ["sex", "race", "sex+race"]
    assert sorted(path.name for path in Path("run").iterdir() if path.is_dir()) == ["race", "sex", "sex+race"]
    assert "it still holds" in run("show", "run/sex+race/frontier", 0).out


def test_the_gate(run, refused):
    summary = figures(run(*AUDIT, "--fail-if", "rate > 50%", "--fail-if", "sex.findings < 1", "--json", "-"))
    assert summary["gate"]["passed"]
    result = run(*AUDIT, "--fail-if", "rate > 0.01", "--junit", "junit.xml", "--markdown", "summary.md")
    assert (result.status, result.err) == (1, "")
    assert "FAILED rate > 0.01" in " ".join(result.out.split())
    assert not kept()["gate"]["passed"]
    assert ElementTree.parse("junit.xml").getroot().iter("failure")
    assert "sex" in Path("summary.md").read_text(encoding="utf-8")
    new = (*AUDIT[:-1], "new")
    refused(*new, "--fail-if", "rat > 1", says=("rat > 1", "Did you mean 'rate'?"))
    refused(*new, "--fail-if", "regression_set.still_flips > 0", says=("--regression-set",))
    refused(*new, "--fail-if", "rate.change > 0", says=("--baseline",))
    refused(*new, "--fail-if", "rate > 5", says=("can never be met. Did you mean 'rate > 5%'?",))
    quiet = run(*new, "-q", "--fail-if", "findings > 0")
    assert (quiet.status, quiet.out) == (1, "")
    assert quiet.err.startswith("neuronfair: --fail-if 'findings > 0': findings by sex: ")


def test_a_figure_that_is_not_known_fails_but_the_page_is_written(run):
    write("bare.csv", *(line.rsplit(",", 1)[0] for line in (HEADER, *people(200))))
    result = run("audit", "bare.csv", *DATA_SET[1:], *MODEL, *SMALL, "--fail-if", "accuracy < 0.5")
    assert result.status == 2
    assert "accuracy" in result.err
    assert kept()["model"]["accuracy"] is None
    assert Path("run/report.html").exists()


def synthetic(report: dict) -> list[dict]:
    """The worst findings without records of the data set, which no regression set holds."""
    return [one for one in report["attributes"][0]["worst"] if one["method"] != "table"]


def test_regression_set_and_baseline(run):
    first = figures(run(*AUDIT, "--regression-set", "past.jsonl", "--json", "first.json", "--json", "-"))
    lines = Path("past.jsonl").read_text(encoding="utf-8").splitlines()
    assert first["regression_set"]["added"] == len(lines) == len(synthetic(first))
    shutil.copy("run/audit.json", "first.json")
    words = (*AUDIT[:-1], "second", "--regression-set", "past.jsonl", "--baseline", "first.json")
    second = figures(
        run(*words, "--fail-if", "regression_set.still_flips > 0", "--fail-if", "rate.change > 0", "--json", "-"), 1
    )
    assert (second["regression_set"]["still_flips"], second["regression_set"]["added"]) == (len(lines), 0)
    assert second["baseline"]["file"] == "first.json"
    fired = {check["expression"]: check["fired"] for check in second["gate"]["checks"]}
    assert fired == {"regression_set.still_flips > 0": True, "rate.change > 0": False}


def test_a_regression_set_can_be_replayed_only(run):
    assert (
        figures(run(*AUDIT, "--regression-set", "past.jsonl", "--no-regression-set-add", "--json", "-"))[
            "regression_set"
        ]["added"]
        == 0
    )
    assert not Path("past.jsonl").exists()
    assert run(*AUDIT, "--regression-set", "past.jsonl").status == 0
    whole = Path("past.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("past.jsonl").write_text(whole[0], encoding="utf-8")
    again = figures(run(*AUDIT, "--regression-set", "past.jsonl", "--no-regression-set-add", "--json", "-"))[
        "regression_set"
    ]
    assert (again["replayed"], again["still_flips"], again["added"]) == (1, 1, 0)
    assert Path("past.jsonl").read_text(encoding="utf-8") == whole[0]


def test_an_audit_that_is_killed_while_it_writes_leaves_the_regression_set_as_it_was(run, monkeypatch):
    words = (*AUDIT, "--regression-set", "past.jsonl", "--fail-if", "regression_set.still_flips > 0", "--json", "-")
    with monkeypatch.context() as patch:
        patch.setattr(AuditOutputs, "write", lambda *_: sys.exit(137))  # stands for a kill
        assert run(*words).status == 137
    assert not Path("past.jsonl").exists()
    resumed = figures(run(*words))  # would fail if it replayed what it has itself added
    assert (resumed["regression_set"]["replayed"], resumed["regression_set"]["added"]) == (0, len(synthetic(resumed)))
    assert len(Path("past.jsonl").read_text(encoding="utf-8").splitlines()) == resumed["regression_set"]["added"] > 0


def test_a_folder_that_was_left_while_its_manifest_was_written(run, refused, tmp_path):
    Path("run").mkdir()
    (left := Path("run") / NEW).write_text('{"audit": 1,')
    Path("run/other.txt").write_text("mine")
    refused(*AUDIT, says=("not the folder of an audit",))
    Path("run/other.txt").unlink()
    assert run(*AUDIT).status == 0
    assert not left.exists()


def test_ctrl_c_leaves_a_page(run, monkeypatch):
    record, calls = engine.PhaseTally.record, []

    def press(tally, *values) -> None:
        calls.append(1)
        if len(calls) % 15 == 0:  # the first may come too late for its phase
            signal.raise_signal(signal.SIGINT)
        record(tally, *values)

    with monkeypatch.context() as patch:
        patch.setattr(engine.PhaseTally, "record", press)
        result = run(*AUDIT, "--fail-if", "rate > 0.01")
    assert (result.status, result.err) == (130, "")
    assert "The audit was interrupted" in " ".join(result.out.split())
    stopped = kept()
    assert stopped["reproduction"]["interrupted"]
    assert stopped["gate"] is None
    assert Path("run/report.html").exists()
    result = run(*AUDIT)
    assert (result.status, result.err) == (0, "")
    assert not kept()["reproduction"]["interrupted"]
    whole = figures(run(*AUDIT[:-1], "whole", "--json", "-"))
    assert [e["rates"] for e in whole["attributes"]] == [e["rates"] for e in kept()["attributes"]]
    assert [e["severity"] for e in whole["attributes"]] == [e["severity"] for e in kept()["attributes"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "nothing.onnx"), ("nothing.onnx", "no such file")),
        (("--sensitive", "sexx"), ("'sexx' is not a column", "Did you mean 'sex'?")),
        (("--decision", "vote"), ("--decision vote", "argmax, threshold=0.5 or tolerance=0.1")),
        (("--decision", "tolerance=-1"), ("--decision tolerance=-1",)),
        (("--device", "abacus"), ("--device abacus",)),
        (("--weights", "model.safetensors"), ("--weights",)),
        (("--out", "table.csv"), ("table.csv",)),
        (("--out", "."), ("not the folder of an audit",)),
        (("--html", "nowhere/page.html"), ("there is no folder",)),
        (("--junit", "."), ("is a folder",)),
        (("--baseline", "table.csv"), ("table.csv", "not an audit.json")),
        (("--regression-set", "model.json"), ("model.json: line 1",)),
        (("--regression-set", "table.csv"), ("--regression-set table.csv", "read by this audit")),
        (("--html", "model.safetensors"), ("--html model.safetensors", "read by this audit")),
        (("--junit", "run/manifest.json"), ("--junit run/manifest.json", "manifest.json of the audit")),
        (("--html", "run/../run/domain.toml"), ("domain.toml of the audit",)),
        (("--markdown", "run/model.safetensors"), ("model.safetensors of the audit",)),
        (("--regression-set", "run/audit.json"), ("audit.json of the audit",)),
        (("--json", "run/report.html"), ("--json run/report.html", "also named by --html")),
        (("--junit", "same", "--markdown", "same"), ("--markdown same", "also named by --junit")),
        (("--starts", "0"), ("--starts",)),
        (("--target", "income"), ("--target",)),
    ],
)
def test_bad_calls_leave_nothing_behind(refused, words, says):
    refused(*AUDIT, *words, says=says)


def test_what_no_reader_takes_is_refused_before_the_table_is_read(refused):
    Path("model.joblib").touch()
    for command in ("audit", "search", "rate", "compare", "interpret"):
        words = (command, "nothing.csv", "--model", "model.joblib", *(() if command != "search" else ("--out", "run")))
        refused(*words, says=("model.joblib: a pickle", "--trust-pickle"))


def test_bad_tables_leave_nothing_behind(refused):
    refused("audit", "tabel.csv", *SMALL, says=("tabel.csv", "neither a file nor a data set"))
    refused("audit", "table.csv", *SMALL, says=("--domain", "--target"))
    refused("audit", "table.csv", "--target", "income", *SMALL, says=("--sensitive",))
    refused("audit", *DATA_SET, "--weights", "model.safetensors", *SMALL, says=("--weights belongs to",))
    write("bare.csv", *(line.rsplit(",", 1)[0] for line in (HEADER, *people(200))))
    refused("audit", "bare.csv", *DATA_SET[1:], *SMALL, says=("no labels",))


def test_another_audit_in_the_same_folder(run, refused, briefly):
    trained = ("audit", "table.csv", "--target", "income", "--sensitive", "sex", *SMALL)
    assert run(*trained).status == 0
    refused(*trained, "--seed", 1, says=("another budget or seed", "Choose another --out"))
    refused(*trained, "--sensitive", "race", says=("other sensitive attributes",))
    refused(*AUDIT, says=("run: this audit was started with",))
    write("fewer.csv", HEADER, *people(150))
    refused("audit", "fewer.csv", *trained[2:], says=("another",))
    first = kept()
    for words in (("--fail-if", "rate >"), ("--model", "nothing.onnx"), ("--model", "run/model.safetensors")):
        refused(*trained, "--force", *words, says=())
    assert kept() == first
    Path("run/notes.txt").touch()
    assert run(*AUDIT, "--force").status == 0  # another model
    assert kept()["model"]["source"] == "model.safetensors"
    assert not Path("run/model.safetensors").exists()
    assert not Path("run/notes.txt").exists()
    again = Path("run/sex/frontier/manifest.json").stat().st_ino
    assert run(*AUDIT).status == 0  # goes on with it
    assert Path("run/sex/frontier/manifest.json").stat().st_ino == again


def test_a_function_is_a_black_box(run, mine):
    scored = ("--model", mine, *SMALL, "--skip-encoding-check")  # it scores the first class
    result = run("audit", *DATA_SET, *scored, "--verbose")
    assert (result.status, result.err) == (0, "")
    assert "Black box, searched without gradients" in " ".join(result.out.split())
    summary = kept()
    (entry,) = summary["attributes"]
    assert summary["decision"] == {"kind": "threshold", "value": 0.5, "scale": "probabilities"}
    assert [search["method"] for search in entry["searches"]] == ["frontier-free", "aequitas"]
    assert entry["interpretation"] is None
    # Men of 38 to 49 get what women do not.
    assert {f["row"]["age"] for f in entry["findings"]} <= set(range(38, 50))
    assert "it still holds" in run("show", "run/sex/aequitas", 0, "--model", mine).out
    replay = next(one["replay"] for one in entry["worst"] if one["replay"])
    assert replay.endswith(" --model mine:score")
    assert "it still holds" in run(*replay.split()[1:]).out


def test_a_run_folder_alone_imports_nothing(run, refused, mine):
    """Who gets a run folder from elsewhere must not run the code that its manifest names."""
    assert run("audit", *DATA_SET, "--model", mine, *SMALL, "--skip-encoding-check").status == 0
    sys.modules.pop("mine")
    refused("show", "run/sex/aequitas", 0, says=("mine:score", "Python code", "use --model mine:score"))
    forged(Path("run/sex/aequitas"), "manifest.json", "mine:score", "mine:score.npz")
    shutil.copytree("run/sex/aequitas", ".", dirs_exist_ok=True)
    refused("show", ".", 0, says=("mine:score.npz", "Python code"))
    assert "mine" not in sys.modules


def test_a_pickle_is_replayed_only_if_it_is_named(run, refused):
    joblib = pytest.importorskip("joblib", reason="joblib is not installed: pip install 'neuronfair[sklearn]'")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'neuronfair[sklearn]'")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    table = pandas.read_csv("table.csv")
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    joblib.dump(model.fit(table.drop(columns="income"), table.income), "model.joblib")
    assert run("audit", *DATA_SET, "--model", "model.joblib", "--trust-pickle", *SMALL).status == 0
    replay = searched(kept())[0]["replay"]
    assert replay.endswith(" --model model.joblib --trust-pickle")
    assert "it still holds" in run(*replay.split()[1:]).out
    place = next(Path("run/sex").glob("*/manifest.json")).parent
    refused("show", place, 0, says=("model.joblib", "a pickle", "use --model", "--trust-pickle"))
    refused("show", place, 0, "--trust-pickle", says=("--trust-pickle: name the file", "--model"))


def test_an_output_that_cannot_be_written_is_named(run, monkeypatch):
    def full(path: Path, text: str) -> None:
        if path.name == "summary.md":
            raise OSError(28, "No space left on device")
        path.write_text(text, encoding="utf-8")

    monkeypatch.setattr("neuronfair.atomic.write_text", full)
    result = run(*AUDIT, "--markdown", "summary.md")
    assert (result.status, result.err) == (
        2,
        "neuronfair: error: summary.md: cannot be written: No space left on device\n",
    )


def test_a_model_that_does_not_decide_fails_the_build(run, tmp_path):
    (tmp_path / "same.py").write_text("def score(people):\n    return 0 * people['age'] + 1.0\n", encoding="utf-8")
    result = run("audit", *DATA_SET, "--model", "same:score", *SMALL, "--fail-if", "rate > 50%")
    sys.modules.pop("same")
    assert result.status == 2
    assert "This model gives every record the same decision, 48% right" in result.err


# Other commands


def test_other_commands_take_black_boxes(run, refused, mine):
    box = (*DATA_SET, "--model", mine)
    found = figures(
        run("search", *box, "--method", "aequitas", "--starts", 20, "--steps", 5, "--out", "s", "--json", "-")
    )
    assert found["findings"] > 0
    shown = " ".join(
        run("search", *box, "--method", "aequitas", "--starts", 20, "--steps", 5, "--out", "s").out.split()
    )
    assert shown.endswith(f"neuronfair show s 0 --model {mine}")
    assert "it still holds" in run("show", "s", 0, "--model", mine).out
    result = run("show", "s", 0, *MODEL)
    assert (result.status, "2 outputs" in result.err) == (2, True)
    rate = figures(run("rate", *box, "--population", "table", "--json", "-"))
    ages = [int(line.split(",")[0]) for line in people(200)]
    assert rate["rates"]["table"]["discriminated"] == sum(38 <= age <= 49 for age in ages)
    wide = figures(run("rate", *box, "--decision", "tolerance=0.2", "--population", "table", "--json", "-"))
    assert wide["rates"]["table"]["discriminated"] == 0
    compared = figures(
        run("compare", *box, "--methods", "aequitas,uniform", "--starts", 5, "--steps", 5, "--json", "-")
    )
    assert [method["method"] for method in compared["methods"]] == ["aequitas", "uniform"]
    refused("interpret", *box, says=("black box", "nothing to interpret"))
    refused("search", *box, "--out", "t", says=("follows gradients",))
    refused("repair", "s", "--data", "table.csv", "--out", "fair.safetensors", says=("mine:score", "alternatives"))


def test_a_search_by_scores(run):
    words = ("search", *DATA_SET, *MODEL, "--decision", "tolerance=0.5", "--starts", 20, "--steps", 5, "--out", "s")
    found = figures(run(*words, "--json", "-"))
    assert found["findings"] > 0
    assert "a score of" in run("show", "s", 0).out


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        (None, None),
        ("argmax", Decision()),
        ("threshold=0.5", Decision("threshold", 0.5)),
        ("threshold=-2", Decision("threshold", -2.0)),
        ("tolerance=0.1", Decision("tolerance", 0.1)),
    ],
)
def test_decisions(text, decision):
    from neuronfair.cli.options import read_decision

    assert read_decision(text) == decision


@pytest.mark.parametrize("text", ["", "argmax=1", "threshold", "threshold=", "threshold=nan", "tolerance=inf", "sign"])
def test_decisions_that_are_none(text):
    from neuronfair.cli.options import read_decision

    with pytest.raises(NeuronFairError, match="--decision"):
        read_decision(text)


def test_plausible_people_and_a_population_of_ones_own(run, refused):
    """Of the people in the file everybody is 40, so those are plausible, and 40 is where the decision flips."""
    lines = Path("table.csv").read_text(encoding="utf-8").splitlines()
    own = [f"40,{line.partition(',')[2]}" for line in lines[1:]]
    Path("own.csv").write_text("\n".join([lines[0], *own]) + "\n", encoding="utf-8")
    words = (*AUDIT, "--population", "own.csv", "--json", "-")
    (entry,) = figures(run(*words))["attributes"]
    whole = figures(run("rate", *DATA_SET, *MODEL, "--population", "plausible", "--samples", 2000, "--json", "-"))
    assert whole["rates"]["plausible"]["rate"] != entry["rates"]["plausible"]["rate"]
    kept = figures(run(*AUDIT, "--force", "--plausible", 0.05, "--json", "-"))
    assert kept["data"]["population"]["least"] == 0.05
    assert all(search["plausible_share"] == 1 for one in kept["attributes"] for search in one["searches"])
    assert all(finding["plausibility"] >= 0.05 for one in kept["attributes"] for finding in one["findings"])
    refused(*AUDIT, "--force", "--population", "none.csv", says=("none.csv",))
    refused(*AUDIT, "--force", "--plausible", 2, says=("plausible must be 0 or more and below 1, got 2",))


def test_counterfactuals_are_an_option_and_a_limit(run, refused):
    refused(*AUDIT, "--twins", "flip", "--fail-if", "counterfactual.rate > 0.1", says=("the counterfactual test",))
    refused(*AUDIT, "--twins", "both", says=("'both' is not one of 'flip', 'counterfactual'",))
    limits = ("--fail-if", "sex.counterfactual.rate > 99%", "--fail-if", "counterfactual.excess > -1")
    result = run(
        *AUDIT, "--sensitive", "sex", "--twins", "counterfactual", "--prove", 0, *limits, "--junit", "tests.xml"
    )
    assert (result.status, result.err) == (1, "")
    assert "Proxy excess" in result.out
    (one,) = kept()["attributes"]
    assert one["search_twins"] == "counterfactual"
    assert one["counterfactual"]["permutations"] == 5
    assert "shuffles only" in one["counterfactual"]["excess"]
    assert [check["fired"] for check in kept()["gate"]["checks"]] == [False, True]
    assert kept()["seconds"]["counterfactuals"] > 0
    found = [finding["replay"] for finding in one["worst"] if finding["replay"]]
    told = " ".join(run(*found[0].split()[1:]).out.split()) if found else "counterfactual twin"
    assert "counterfactual twin" in told


def test_the_favourable_outcome_is_an_option_and_is_not_guessed(run, refused, mine, tmp_path):
    words = ("audit", "table.csv", "--target", "income", "--sensitive", "sex", "--model", mine, *SMALL)
    limit = ("--fail-if", "disparate_impact < 0.01")
    refused(*words, *limit, says=("disparate_impact needs the favourable outcome", "--favourable", "'high' and 'low'"))
    refused(*words, "--favourable", "hi", says=("favourable 'hi' is not a class of the target", "high, low"))
    assert run(*words, "--skip-encoding-check").status == 0
    assert kept()["attributes"][0]["disparity"]["disparate_impact"] is None
    assert run(*words, *limit, "--favourable", "high", "--force", "--skip-encoding-check").status == 0
    assert kept()["attributes"][0]["disparity"]["selected"] == "high"
    assert read_domain(tmp_path / "run" / "domain.toml").favourable == "high"


def test_a_threshold_that_cannot_fail_is_refused_before_any_work(refused):
    refused(*AUDIT, "--fail-if", "rate > 1", says=("can never be met", "Did you mean 'rate > 1%'?"))
