"""`neuronfair audit-all`: a file of many audits, each in its folder, and one index of all."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from neuronfair.audits.folder import claim_folder, write_audit_json
from neuronfair.audits.report import Gate
from neuronfair.audits.run import Result
from neuronfair.audits.settings import AuditSettings
from neuronfair.cli import audit_batch
from neuronfair.cli.audit_batch import AuditFile
from neuronfair.errors import NeuronFairError, RunError
from neuronfair.scale.pool import Processes, Serial
from neuronfair.store.files import sha256
from neuronfair.store.ledger import discard
from tests import reports
from tests.cli.test_app import write
from tests.cli.test_research import trained_table
from tests.scale.pools import Pickled

SMALL = """
[defaults]
quick = true
seeds = 5
steps = 5
samples = 1000
prove = 0
twins = "flip"
domain = "table.toml"
model = "model.safetensors"
"""
TWO = f"""{SMALL}
[[audit]]
data = ["table.csv", "other.csv"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = trained_table(tmp_path_factory.mktemp("table"))
    shutil.copy(made / "table.csv", made / "other.csv")
    return made


@pytest.fixture(autouse=True)
def copies(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")


@pytest.fixture
def audits(run, tmp_path):
    """Call `neuronfair audit-all` from another folder than that of the file."""

    def call(text: str, *options: object):
        (tmp_path / "project" / "audits.toml").write_text(text, encoding="utf-8")
        result = run("audit-all", "project/audits.toml", "--out", "all", *options)
        path = Path("all/index.json")
        return result, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    return call


def read(text: str) -> AuditFile:
    Path("audits.toml").write_text(text, encoding="utf-8")
    return AuditFile.read("audits.toml")


def states(index) -> dict[str, str]:
    return {line["name"]: line["state"] for line in index["audits"]}


def test_lists_of_tables_models_and_attributes_multiply_out():
    for name in ("a", "b"):
        shutil.copy("model.safetensors", f"{name}.safetensors")
    orders = read(
        'defaults = {quick = true, target = "income", fail_if = "rate > 1%"}\n'
        '[[audit]]\ndata = ["table.csv", "other.csv"]\nmodel = "?.safetensors"\nsensitive = ["sex", "sex,age"]\n'
        '[[audit]]\nname = "own"\ndata = "table.csv"\nsensitive = "sex"\nfail_if = []\nseeds = 7\nquick = false\n'
        '[[audit]]\nname = "both"\ndata = "table.csv"\nsensitive = ["sex", "age"]\n'
    )
    assert orders.problems == []
    assert [audit.name for audit in orders.audits] == [
        *(f"{d}-{m}-{s}" for d in ("table", "other") for m in ("a", "b") for s in ("sex", "sex+age")),
        *("own", "both-sex", "both-age"),
    ]
    first, own = orders.audits[0].job, orders.audits[8].job
    assert (first.table.data, first.model.model, first.table.sensitive) == ("table.csv", "a.safetensors", "sex")
    assert (first.quick, first.settings.seeds, own.settings.seeds) == (True, AuditSettings.quick().seeds, 7)
    assert (own.model.model, own.quick, own.fail_if, first.fail_if) == (None, False, (), ("rate > 1%",))
    words = " ".join(own.command_words(Path("run")))
    assert words == "table.csv --sensitive sex --target income --starts 7 --out run"


def test_models_of_one_name_are_told_apart_by_their_folders():
    for name in ("a", "b"):
        Path(name).mkdir()
        shutil.copy("model.safetensors", f"{name}/model.safetensors")
    orders = read('[[audit]]\ndata = "adult"\nmodel = "*/model.safetensors"\n[[audit]]\nsensitive = "race"\n')
    assert [audit.name for audit in orders.audits] == ["adult-a_model", "adult-b_model", "adult-race"]


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_done(audits, tmp_path):
    write("table.toml", 'name = "t"', "[attributes]")
    text = """
[default]
[defaults]
sensitiv = "sex"
[[audit]]
name = "../out"
data = ["table.csv", "none.csv"]
model = "none.onnx"
target = "wage"
sensitive = "gender"
seeds = 0
seconds = "long"
decision = "maybe"
fail_if = ["gender.rat > 1"]
[[audit]]
data = "german"
sensitive = ["sex", "race"]
fail_if = "sex.rate > 20"
key = "id"
[[audit]]
data = "german"
sensitive = "sex"
regression_set = "past.jsonl"
model = []
[[audit]]
data = "adult"
regression_set = "past.jsonl"
baseline = "before.json"
weights = "w.safetensors"
"""
    result, index = audits(text)
    assert (result.status, result.out, index) == (2, "", None)
    assert result.err.splitlines()[-1].endswith("problems. No audit was started")
    said = [line.removeprefix("neuronfair: project/audits.toml: ") for line in result.err.splitlines()[:-1]]
    for begin in (
        "unknown key 'default'. Known: defaults, audit. Did you mean 'defaults'?",
        "[defaults]: unknown key 'sensitiv'.",
        "[[audit]] 1: name '../out': expected letters",
        "[[audit]] 1: none.csv: neither a file nor a data set.",
        "[[audit]] 1: table.csv: column 'gender' is missing.",
        "[[audit]] 1: none.onnx: there is no such file.",
        "[[audit]] 1: seeds: 0 is less than 1",
        "[[audit]] 1: seconds: Expected float | null, got str",
        "[[audit]] 1: --decision maybe: expected",
        "[[audit]] 1: --fail-if 'gender.rat > 1': there is no metric",
        "[[audit]] 2: german: sensitive attribute 'race' is not a column.",
        "[[audit]] 2: --fail-if 'sex.rate > 20': sex.rate is a share",
        "[[audit]] 2: --key id: belongs to an --attributes-file",
        "[[audit]] 3: model: an empty list",
        "[[audit]] 4: baseline: there is no file before.json",
        "[[audit]] 4: --weights belongs to",
    ):
        assert sum(line.startswith(begin) for line in said) == 1, (begin, said)
    assert len(said) == len(set(said))
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("audit = ", "cannot be read as TOML"),
        ("", "it has no [[audit]]"),
        ("audit = 3", "expected a table [defaults] and tables [[audit]]"),
        ('[[audit]]\nname = "a"\n[[audit]]\nname = "A"', "two audits are called 'A'"),
        ('[[audit]]\nmodel = "*.onnx"', "no file is called *.onnx"),
        ('[[audit]]\nsensitive = ["sex", "race"]\nregression_set = "c"', "regression_set c: several audits add to it"),
        ("[[audit]]\nfail_if = 3", "fail_if: Expected array, got int"),
        ("[[audit]]\ndomain = 3", "domain: Expected"),
        ('[[audit]]\nmodel = "models/**.onnx"', "models/**.onnx"),
        (f"audit = {'[' * 5000}", "cannot be read as TOML"),
        (f"audit = {'9' * 5000}", "cannot be read as TOML"),
        (f"audit.{'a.' * 20}a = 1", "a key has too many parts"),
        (f"[[audit]]\nsensitive = {['sex'] * 101}\ndata = {['adult'] * 100}", "it names 10,100 audits; 10,000 are"),
    ],
)
def test_a_file_that_cannot_be_used(text, says):
    (problem,) = read(text).problems
    assert says in problem


@pytest.mark.parametrize("other", ["a/../c.jsonl", "./c.jsonl", "link.jsonl", "C.jsonl"])
@pytest.mark.parametrize("there", [True, False])
def test_a_regression_set_that_several_audits_add_to_is_found_however_it_is_spelt(tmp_path, monkeypatch, other, there):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("link.jsonl").symlink_to("c.jsonl")
    if there:
        Path("c.jsonl").touch()
    entries = (f'[[audit]]\nname = "{i}"\nregression_set = "{path}"\n' for i, path in enumerate(("c.jsonl", other)))
    problems = read("".join(entries)).problems
    same_disk = there and other == "C.jsonl" and not Path(other).exists()  # which tells upper from lower case
    assert problems == ([] if same_disk else [
        f"regression_set {path}: several audits add to it. Set regression_set_add = false, or name one for each"
        for path in map(str, map(Path, ("c.jsonl", other)))
    ][: 1 if other == "./c.jsonl" else 2])  # fmt: skip


def test_a_file_that_is_too_large(monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "3000")
    (problem,) = read("[[audit]]\n").problems
    assert problem.startswith("would take about")


def test_each_audit_has_its_page_and_all_have_an_index(audits):
    text = f'{SMALL}[[audit]]\ndata = "table.csv"\nfail_if = "rate > 99%"\n'
    text += '[[audit]]\nname = "strict"\ndata = "table.csv"\nfail_if = "gsr > 0%"\n'
    result, index = audits(text, "--junit", "all.xml", "--json", "figures.json")
    assert (result.status, result.err) == (1, "")
    assert states(index) == {"table-model": "passed", "strict": "failed"}
    assert max(map(len, result.out.splitlines())) <= 80
    assert "2 audits: 1 passed and 1 failed." in result.out
    assert "strict: gsr" in result.out
    page = Path("all/index.html").read_text(encoding="utf-8")
    for line in index["audits"]:
        report = json.loads(Path("all", line["name"], "audit.json").read_text(encoding="utf-8"))
        rates, told = report["attributes"][0]["rates"], report["verdict"]
        assert (line["rate"], line["random"]) == (rates["pairs"], rates["domain"])
        assert (line["verdict"], line["seconds"]) == (
            " ".join((told["headline"], *told["details"])),
            report["seconds"]["total"],
        )
        assert f'href="{line["name"]}/report.html"' in page
        assert Path("all", line["name"], "report.html").exists()
    command = report["reproduction"]["command"].split()
    assert command[:3] == ["neuronfair", "audit", "table.csv"]
    assert command[-2:] == ["--out", "../all/strict"]  # seen from the folder of the file
    suites = ElementTree.parse("all.xml").getroot()
    assert {s.get("name"): s.get("failures") for s in suites} == {"table-model: sex": "0", "strict: sex": "1"}
    untimed = [{**json.loads(Path(p).read_text()), "seconds": 0} for p in ("figures.json", "all/index.json")]
    assert untimed[0] == untimed[1]


@pytest.fixture
def told(monkeypatch):
    """Audits that take no time: each is noted, presses Ctrl-C, fails or leaves a made-up report."""
    done = []

    def run_job(job, outputs, console, *, command):
        target = job.table.target
        if outputs.force:
            discard(outputs.out)
        claim_folder(outputs.out, {"audit": 1, "settings": job.settings.seeds})
        with (outputs.out / "times").open("a") as file:
            file.write("x")
        done.append(job.table.data)
        if target == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        if target == "crash":
            raise ZeroDivisionError("by nothing")
        made = reports.report(gate=Gate(job.settings.seed == 0, ()) if job.fail_if else None)
        if target == "interrupted":
            made = replace(made, reproduction=replace(made.reproduction, interrupted=True))
        write_audit_json(outputs.out, made)
        if target == "unreadable":
            (outputs.out / "audit.json").write_text("damaged")
        return Result(made, {}, NeuronFairError("not judged") if target == "wrongly fed" else None)

    monkeypatch.setattr(audit_batch, "run_job", run_job)
    monkeypatch.setattr(AuditFile, "_find_problems", lambda *_: ())
    return done


def test_what_is_finished_is_not_done_again_unless_it_changes(audits, told, tmp_path):
    def again(text: str, *options: object) -> tuple[int, list[str]]:
        told.clear()
        return audits(text, "-q", *options)[0].status, told.copy()

    def times() -> list[str]:
        return [Path("all", name, "times").read_text() for name in ("table-model", "other-model")]

    assert again(TWO) == (0, ["table.csv", "other.csv"])
    assert again(TWO) == (0, [])
    (tmp_path / "project" / "other.csv").write_text("another table")
    assert again(TWO) == (0, ["other.csv"])
    assert times() == ["x", "xx"]
    assert again(f"{TWO}seeds = 7\n") == (0, ["table.csv", "other.csv"])
    assert times() == ["x", "x"]  # begun anew, as the folders refuse other seeds
    Path("all/table-model/audit.json").write_text("damaged")
    assert again(f"{TWO}seeds = 7\n") == (0, ["table.csv"])
    assert again(f"{TWO}seeds = 7\n", "--force") == (0, ["table.csv", "other.csv"])
    assert again(f'{TWO}seed = 1\nfail_if = "gsr > 0%"\n') == (1, ["table.csv", "other.csv"])
    assert again(f'{TWO}seed = 1\nfail_if = "gsr > 0%"\n') == (1, [])  # still failed


def test_an_unfinished_audit_is_never_replaced_and_a_refused_one_stays_finished(audits, told, monkeypatch):
    text = f'{TWO}target = "wrongly fed"\n'
    audits(text)
    _, index = audits(f"{text}seeds = 7\n")
    assert "table-model: this audit was started with another budget" in index["audits"][0]["error"]
    assert Path("all/table-model/times").read_text() == "x"
    audits(TWO)
    done = Path("all/table-model/order.sha256").read_text()

    def run_job(*_, **more):
        raise RunError("all/was begun: another process is writing to this run")  # only the kind of an error counts

    monkeypatch.setattr(audit_batch, "run_job", run_job)
    assert audits(f"{TWO}seed = 1\n")[0].status == 2
    assert Path("all/table-model/order.sha256").read_text() == done
    assert audits(TWO)[0].status == 0


def test_force_throws_away_once_even_if_a_piece_is_done_twice(audits, told, monkeypatch):
    def twice(self, work, shared, items, **more):
        """As if each worker were killed at the end of its audit."""
        return Serial().map(lambda *given: [work(*given) for _ in range(2)][-1], shared, items, **more)

    audits(TWO)
    monkeypatch.setattr(Processes, "map", twice)
    assert audits(TWO, "--force", "--workers", 2)[0].status == 0
    assert len(told) == 6
    assert Path("all/table-model/times").read_text() == "xx"


@pytest.mark.usefixtures("told")
def test_force_throws_nothing_away_if_an_audit_reads_it(audits):
    audits(TWO)
    text = f'{TWO}[[audit]]\nname = "last"\nbaseline = "../all/other-model/audit.json"\n'
    result, index = audits(text, "--force")
    assert result.status == 2
    assert "which --force deletes. Copy it" in result.err
    assert len(index["audits"]) == 2
    assert Path("all/table-model/audit.json").exists()


@pytest.mark.usefixtures("told")
def test_a_table_of_many_audits_is_read_once_and_code_where_it_is_imported_from(monkeypatch, tmp_path):
    text = '[[audit]]\ndata = "table.csv"\nmodel = "code_of_test:make"\nsensitive = ["sex", "age"]\n'
    text += 'preprocess = "steps:prepare"\n'
    seen = []

    def newly_read(path: Path, code: str) -> list[str]:
        path.write_text(code, encoding="utf-8")
        seen.clear()
        digests.append([audit.digest for audit in read(text).audits])
        return seen.copy()

    digests: list[list[str]] = []
    monkeypatch.setattr(audit_batch, "sha256", lambda path: seen.append(path.name) or sha256(path))
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "lib").mkdir()
    assert newly_read(Path("steps.py"), "a = 1") == ["table.csv", "steps.py"]
    assert newly_read(tmp_path / "lib" / "code_of_test.py", "a = 1") == ["code_of_test.py"]
    assert newly_read(tmp_path / "lib" / "code_of_test.py", "a = 10") == ["code_of_test.py"]
    assert newly_read(Path("steps.py"), "a = 10") == ["steps.py"]
    assert newly_read(Path("code_of_test.py"), "a = 1") == ["code_of_test.py"]  # comes before one that is installed
    assert len({one for both in digests[:4] for one in both}) == 8


@pytest.mark.parametrize(
    ("target", "why", "status"),
    [("crash", "internal error: ZeroDivisionError at test_audit_batch.py", 3), ("wrongly fed", "not judged", 2)],
)
def test_one_that_fails_does_not_end_the_others(audits, told, target, why, status):
    text = f'{TWO}target = "{target}"\n[[audit]]\nname = "last"\n'
    result, index = audits(text, "--junit", "all.xml")
    assert result.status == status
    assert states(index) == {"table-model": "error", "other-model": "error", "last": "no limits"}
    first, _, last = index["audits"]
    assert first["error"].startswith(why)
    assert (first["page"], first["rate"]) == (
        (None, None) if status == 3 else ("table-model/report.html", last["rate"])
    )
    assert f"table-model: {why}" in " ".join(result.out.split())
    assert ElementTree.parse("all.xml").getroot().get("errors") == "2"
    assert f"neuronfair: other-model: {why}" in audits(text, "-q")[0].err
    assert told == ["table.csv", "other.csv", "adult", "table.csv", "other.csv"]


@pytest.mark.usefixtures("told")
def test_a_report_that_cannot_be_read_is_the_error_of_its_line(audits):
    result, index = audits(f'{TWO}target = "unreadable"\n[[audit]]\nname = "last"\n', "--junit", "all.xml", "-q")
    assert result.status == 2
    assert states(index) == {"table-model": "error", "other-model": "error", "last": "no limits"}
    assert "audit.json: not an audit.json that can be read" in index["audits"][0]["error"]
    assert ElementTree.parse("all.xml").getroot().get("errors") == "2"


@pytest.mark.parametrize("how", ["interrupted", "Ctrl-C"])
def test_ctrl_c_keeps_what_is_done_writes_the_index_and_goes_on(audits, told, how):
    text = f'{SMALL}[[audit]]\nname = "a"\n[[audit]]\nname = "b"\ntarget = "TARGET"\n[[audit]]\nname = "c"\n'
    result, index = audits(text.replace("TARGET", how))
    assert result.status == 130
    assert states(index) == {"a": "no limits", "b": "not finished", "c": "not finished"}
    assert len(told) == 2
    result, index = audits(text.replace("TARGET", "income"))
    assert (result.status, len(told)) == (0, 4)
    assert set(states(index).values()) == {"no limits"}


@pytest.mark.usefixtures("told")
def test_audits_go_to_a_pool(audits, monkeypatch):
    monkeypatch.setattr(Processes, "map", lambda self, *given, **more: Pickled().map(*given, **more))
    result, index = audits(TWO, "--workers", 2, "--json", "-")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out)["audits"] == index["audits"]
    assert set(states(index).values()) == {"no limits"}


def test_refusals(refused, tmp_path):
    refused("audit-all", "none.toml", says=("none.toml: there is no such file",))
    Path("project/audits.toml").write_text("[[audit]]\n")
    there = ("audit-all", "project/audits.toml", "--out")
    refused(*there, "project", says=("project exists and is not a folder of audits",))
    refused(*there, "new", "--workers", 2, "--ray", "auto", says=("Set only one of them",))
