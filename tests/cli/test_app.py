"""The command line as people use it: good calls, and bad ones that must end in one line and exit status 2."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neuronfair.audits.report import EncodingCheckReport
from neuronfair.cli.options import warn_of_encoding_problem
from neuronfair.domain.schema.toml import read_domain
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.weights import Card, fingerprint, fully_connected, save_weights
from neuronfair.render.terminal import make_console
from tests.conftest import Result

HEADER = "age,sex,race,job,income"
INFER = ("--sensitive", "sex", "--target", "income")


def people(n: int = 120) -> list[str]:
    """Lines of a table in which age and sex decide the income."""
    draw = random.Random(0)
    lines = []
    for _ in range(n):
        age, sex = draw.randint(18, 70), draw.choice("FM")
        income = "high" if age + 12 * (sex == "M") + draw.gauss(0, 4) > 50 else "low"
        lines.append(f"{age},{sex},{draw.choice('ABC')},{draw.choice(['clerk', 'smith'])},{income}")
    return lines


def write(name: str, *lines: str) -> Path:
    path = Path(name)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(run):
    """A folder with table.csv, its domain table.toml and an untrained model.safetensors for it."""
    write("table.csv", HEADER, *people())
    assert run("domain", "infer", "table.csv", *INFER).status == 0
    make_model(Path("model.safetensors"))
    return Path("table.csv")


def make_model(path: Path, domain_file: str = "table.toml") -> None:
    domain = read_domain(domain_file)
    torch.manual_seed(0)
    module = fully_connected(TableEncoding.of(domain).width, (6, 4))
    card = Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=TableEncoding.of(domain).width,
        hidden=(6, 4),
        outputs=2,
        classes=("high", "low"),
        accuracy={},
        seed=0,
        fingerprint=fingerprint(module),
    )
    save_weights(path, module, card)


USE = ("--domain", "table.toml", "--model", "model.safetensors")


# Good calls


def test_version_and_help(run):
    assert run("--version").out.startswith("neuronfair 0.")
    for words in ((), ("train",), ("interpret",), ("data",), ("data", "get"), ("domain",), ("domain", "infer")):
        result = run(*words, "--help")
        assert result.status == 0
        assert result.err == ""
        assert max(map(len, result.out.splitlines())) <= 80


def test_a_bare_call_shows_the_help(run):
    result = run()
    assert "interpret" in result.out + result.err
    assert "Traceback" not in result.out + result.err


def test_own_table_from_infer_to_interpret(run, table):
    result = run("train", table, "--domain", "table.toml", "--hidden", "8,4", "--out", "own.safetensors")
    assert result.status == 0
    assert result.err == ""
    assert "on test records" in result.out
    assert Path("own.json").exists()
    result = run(
        "interpret",
        table,
        "--domain",
        "table.toml",
        "--model",
        "own.safetensors",
        "--plot",
        "as.png",
        "--json",
        "r.json",
    )
    assert result.status == 0
    assert result.err == ""
    assert "Most biased layer: layer" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert Path("as.png").read_bytes()[:4] == b"\x89PNG"
    found = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert found["worst"] in [layer["name"] for layer in found["layers"]]
    assert {"name", "neurons", "auc", "cut", "biased"} <= set(found["layers"][0])
    assert found["rows"] == 120
    assert found["ablation"]["before"]["accuracy"] > 0.5


def test_json_alone_on_standard_output(run, table):
    result = run("interpret", table, *USE, "--json", "-")
    assert result.err == ""
    assert json.loads(result.out)["sensitive"] == ["sex"]


def test_two_sensitive_attributes_and_an_inferred_domain(run, table):
    result = run("interpret", table, "--target", "income", "--sensitive", "sex, race", "--json", "-", *USE[2:])
    found = json.loads(result.out)
    assert found["sensitive"] == ["sex", "race"]
    assert found["pairs"] == 120 * 5


def test_without_labels_nothing_is_said_about_accuracy(run, table):
    write("plain.csv", *(line.rpartition(",")[0] for line in (HEADER, *people())))
    result = run("interpret", "plain.csv", *USE)
    assert result.status == 0
    assert "accuracy" not in result.out
    assert "With these" in result.out
    assert json.loads(run("interpret", "plain.csv", *USE, "--json", "-").out)["ablation"]["before"]["accuracy"] is None


def test_quiet_says_nothing(run, table):
    assert run("interpret", table, *USE, "--quiet") == Result(0, "", "")


def test_names_with_brackets_are_shown_as_they_are(run, table):
    text = Path("table.toml").read_text(encoding="utf-8").replace('"sex"', '"[bold]sex"')
    write("brackets.toml", text)
    write("brackets.csv", HEADER.replace("sex", "[bold]sex"), *people())
    make_model(Path("brackets.safetensors"), "brackets.toml")
    result = run("interpret", "brackets.csv", "--domain", "brackets.toml", "--model", "brackets.safetensors")
    assert "[bold]sex" in result.out


def test_other_separators_gzip_and_blank_cells(run, table):
    semicolons = "\n".join((HEADER, *people())).replace(",", ";").replace("clerk", "")
    Path("semi.csv.gz").write_bytes(gzip.compress(semicolons.encode()))
    result = run("domain", "infer", "semi.csv.gz", *INFER, "--out", "-")
    assert result.status == 0
    assert 'missing = "missing"' in result.out


def test_rules_that_the_table_suggests(run, refused):
    cells = [f"{age},{'young' if age < 30 else 'old'},{sex},no" for age in range(20, 60) for sex in ("F", "M") * 5]
    Path("band.csv").write_text("\n".join(["age,band,sex,hired", *cells, "50,old,F,yes"]) + "\n")
    asked = ("domain", "infer", "band.csv", "--sensitive", "sex", "--target", "hired")
    result = run(*asked)
    assert "1 rule is suggested: see the end of the domain file; not used unless --take-rules says" in result.out
    assert "# then = { age = { max = 29 } }" in Path("band.toml").read_text()
    assert run(*asked, "--take-rules", "free", "--force").out.startswith("1 rule is suggested")
    assert [rule.then["age"].high for rule in read_domain("band.toml").rules if rule.when["band"] == ("young",)] == [29]
    refused(
        "audit",
        "band.csv",
        "--domain",
        "band.toml",
        "--take-rules",
        "all",
        says=("take rules 'all'", "only for an inferred"),
    )
    refused("audit", "german", "--take-rules", "free", says=("take rules 'free'", "only for an inferred"))


def test_data_list_and_where(run):
    listed = run("data", "list").out
    assert re.search(r"^adult +available +sensitive: sex", listed, re.MULTILINE)
    assert max(map(len, listed.splitlines())) <= 80
    assert run("data", "where", "german").out.strip().endswith("german.data.gz")


def test_the_published_adult_classifier(run, shared_models):
    model = shared_models / "neuronfair" / "census.npz"
    result = run("interpret", "adult", "--encoding", "paper", "--sensitive", "sex", "--model", model, "--json", "-")
    found = json.loads(result.out)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert found["worst"] == "layer2"
    assert layers["layer2"]["auc"] == pytest.approx(0.7513, abs=0.002)
    assert len(layers["layer2"]["biased"]) == 24
    assert len(layers["layer1"]["biased"]) == 21
    assert round(layers["layer1"]["cut"], 2) == 0.33


# Bad tables


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("30,X,A,clerk,low", ("bad.csv: line 3", "'sex'", "unknown value 'X'", "F, M")),
        ("nan,F,A,clerk,low", ("bad.csv: line 3", "'age'", "empty", "missing =")),
        (",F,A,clerk,low", ("bad.csv: line 3", "'age'", "empty")),
        ("inf,F,A,clerk,low", ("bad.csv: line 3", "'age'", "finite")),
        ("200,F,A,clerk,low", ("bad.csv: line 3", "'age'", "outside 18 to 70", "Widen")),
        ("30.5,F,A,clerk,low", ("bad.csv: line 3", "'age'", "grid")),
        ("old,F,A,clerk,low", ("bad.csv: line 3", "'age'", "expected a number")),
        ("30,F,A,clerk,medium", ("bad.csv: line 3", "'income'", "unknown class 'medium'", "high, low")),
        ("30,F,A,clerk", ("bad.csv: line 3", "4 cells", "5 columns")),
    ],
)
def test_a_bad_cell(refused, table, line, says):
    write("bad.csv", HEADER, people()[0], line)
    refused("interpret", "bad.csv", *USE, says=says)


def test_a_missing_column(refused, table):
    write("bad.csv", HEADER.replace("race", "rase"), *people())
    refused("interpret", "bad.csv", *USE, says=("bad.csv", "column 'race' is missing", "Did you mean 'rase'?"))


@pytest.mark.parametrize("command", [("interpret", *USE), ("domain", "infer", *INFER)])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the table is empty"),
        (b"\n\n", "the table is empty"),
        (HEADER.encode(), "no rows after the header"),
        (b"\x00\xff\xfe\x81", "not a text file"),
        (b"\x1f\x8b\x08 cut", "gzip"),
    ],
)
def test_a_file_without_rows(refused, table, command, content, says):
    Path("bad.csv").write_bytes(content)
    refused(*command, "bad.csv", says=("bad.csv", says))


def test_a_table_with_too_few_rows_to_train(refused, table):
    write("one.csv", HEADER, people()[0])
    says = ("one: the table has 1 rows; at least 10 are needed to train, validate and test",)
    refused("train", "one.csv", "--domain", "table.toml", "--out", "m.safetensors", says=says)
    refused("audit", "one.csv", "--domain", "table.toml", "--out", "run", says=says)


def test_a_table_that_is_too_large(refused, table, monkeypatch):
    Path("bomb.csv.gz").write_bytes(gzip.compress(b"a,b\n1," + b"2" * 10_000_000))
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    says = ("bomb.csv.gz: would take about 0.0 GB", "NEURONFAIR_MAX_BYTES")
    refused("interpret", "bomb.csv.gz", *USE, says=says)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "2 GB")
    refused("interpret", "bomb.csv.gz", *USE, says=("NEURONFAIR_MAX_BYTES: expected a whole number", "'2 GB'"))


def test_a_folder_or_nothing_instead_of_a_file(refused, table):
    Path("folder.csv").mkdir()
    refused("interpret", "folder.csv", *USE, says=("folder.csv",))
    refused("domain", "infer", "folder.csv", *INFER, says=("folder.csv",))
    refused("interpret", "nothing.csv", *USE, says=("nothing.csv: neither a file nor a data set", "adult"))
    refused("interpret", "adlt", says=("Did you mean 'adult'?",))
    refused("domain", "infer", "nothing.csv", *INFER, says=("nothing.csv",))


def test_a_broken_parquet_file(refused, table):
    Path("bad.parquet").write_bytes(b"PAR1 and no more")
    refused("interpret", "bad.parquet", *USE, says=("bad.parquet", "Parquet"))


# Bad domains


@pytest.mark.parametrize("sensitive", ["gender", "sexx"])
def test_a_sensitive_attribute_that_is_absent(refused, table, sensitive):
    says = (sensitive, "age, sex, race")
    refused("interpret", table, *USE, "--sensitive", sensitive, says=says)
    refused("interpret", table, "--sensitive", sensitive, "--target", "income", says=("table.csv", *says))


def test_a_sensitive_attribute_with_one_value(refused, table):
    write("women.csv", HEADER, *(line.replace(",M,", ",F,") for line in people()))
    says = ("women.csv", "'sex' is 'F' in every row")
    refused("domain", "infer", "women.csv", *INFER, says=says)
    refused("interpret", "women.csv", *INFER, says=says)
    write(
        "one.toml",
        Path("table.toml").read_text(encoding="utf-8").replace('["F", "M"]', '["F"]').replace("flag", "nominal"),
    )
    refused("interpret", "women.csv", "--domain", "one.toml", says=("one.toml", "'sex' has one value only"))


def test_a_rule_that_forbids_every_row(refused, table):
    rule = '[[rules]]\nname = "nobody"\nforbid = { age = { min = 0 } }'
    write("none.toml", Path("table.toml").read_text(encoding="utf-8"), rule)
    refused("interpret", table, "--domain", "none.toml", says=("none.toml", "forbid every row", "nobody"))


def test_a_domain_that_is_no_domain(refused, table):
    refused("interpret", table, "--domain", "nothing.toml", says=("nothing.toml",))
    refused("interpret", table, "--domain", ".", says=(".: ",))
    refused("interpret", table, "--domain", "table.csv", says=("table.csv", "line 1"))
    refused("interpret", table, "--domain", "model.safetensors", says=("not a text file",))


# Bad models


def test_a_model_of_the_wrong_width(refused, table):
    says = ("model.safetensors", "expects", "52", "--encoding")
    refused("interpret", "german", "--model", "model.safetensors", says=says)


def test_a_model_for_other_data(refused, table):
    write("other.csv", HEADER, *people(60))  # another mean age, so another scaling
    refused("interpret", "other.csv", *INFER, *USE[2:], says=("was trained on table", "other attributes"))


@pytest.mark.parametrize("name", ["bad.safetensors", "bad.npz", "bad.h5"])
@pytest.mark.parametrize(
    "content", [b"", b"\x07" * 9, random.Random(0).randbytes(5000)], ids=["empty", "short", "noise"]
)
def test_a_weights_file_of_noise(refused, table, name, content):
    Path(name).write_bytes(content)
    refused("interpret", table, "--domain", "table.toml", "--model", name, says=(name, "not a readable"))


def test_a_cut_weights_file(refused, table):
    whole = Path("model.safetensors").read_bytes()
    for length in (8, 100, len(whole) - 1):
        Path("cut.safetensors").write_bytes(whole[:length])
        refused("interpret", table, "--domain", "table.toml", "--model", "cut.safetensors", says=("cut.safetensors",))


def test_a_pickle_is_refused_and_not_opened(refused, table):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, ("sprung",))

    Path("p.pkl").write_bytes(pickle.dumps(Trap()))
    Path("p.safetensors").write_bytes(pickle.dumps(Trap()))
    torch.save({"w": torch.ones(2)}, "p.pt")
    for name in ("p.pkl", "p.safetensors", "p.pt"):
        refused(
            "interpret", table, "--domain", "table.toml", "--model", name, says=(name, "opening one runs any program")
        )
    np.savez("p.npz", W0=np.array([Trap()], dtype=object), b0=np.zeros(1))
    refused("interpret", table, "--domain", "table.toml", "--model", "p.npz", says=("p.npz",))
    assert not Path("sprung").exists()


def test_a_model_that_is_not_there(refused, table):
    refused("interpret", table, "--domain", "table.toml", "--model", "nothing.npz", says=("nothing.npz",))
    refused("interpret", table, "--domain", "table.toml", "--model", ".", says=(".: ",))


# No network


def test_no_network(refused, run, monkeypatch, tmp_path):
    def unreachable(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.delenv("NEURONFAIR_DATA", raising=False)
    monkeypatch.setattr("neuronfair.domain.tables.sources.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    refused("data", "get", "bank", says=("bank-full.csv", "Name or service not known", "NEURONFAIR_DATA"))
    refused("data", "where", "bank", says=("neuronfair data get bank",))
    refused("interpret", "bank", says=("neuronfair data get bank",))
    refused("data", "get", "bnk", says=("Did you mean 'bank'?",))
    assert "not downloaded" in run("data", "list").out


# Bad outputs and options


def test_an_output_that_cannot_be_written(refused, table):
    Path("folder.png").mkdir()
    Path("folder.safetensors").mkdir()
    call = ("interpret", table, *USE)
    train = ("train", table, "--domain", "table.toml")
    for name in ("as.gif", "as", "-"):
        refused(*call, "--plot", name, says=(".png",))
    for option, name in (("--plot", "no/as.png"), ("--json", "no/r.json")):
        refused(*call, option, name, says=(name, "there is no folder"))
    refused(*call, "--plot", "folder.png", says=("folder.png", "not a file"))
    refused(*call, "--json", "folder.png", says=("folder.png", "not a file"))
    refused(*train, "--out", "folder.safetensors", says=("folder.safetensors", "not a file"))
    refused(*train, "--out", "-", says=(".safetensors",))
    refused(*train, "--out", "m.pt", says=(".safetensors",))
    refused(*train, "--out", "no/m.safetensors", says=("there is no folder",))
    refused("domain", "infer", table, *INFER, "--out", "no/t.toml", says=("no/t.toml", "there is no folder"))
    refused("domain", "infer", table, *INFER, "--out", "folder.png", "--force", says=("folder.png",))


def test_a_device_is_not_replaced(refused, table):
    os.mkfifo("pipe")
    refused("interpret", table, *USE, "--json", "pipe", says=("pipe", "device"))
    assert Path("pipe").is_fifo()


def test_a_folder_without_permission(refused, table, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)  # root may write everywhere
    refused("interpret", table, *USE, "--json", "r.json", says=("no permission",))


def test_an_existing_domain_is_kept(refused, run, table):
    write("table.toml", "# mine")
    refused("domain", "infer", table, *INFER, says=("table.toml exists", "--force"))
    assert Path("table.toml").read_text(encoding="utf-8") == "# mine\n"
    assert run("domain", "infer", table, *INFER, "--force").status == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("interprt",), "Did you mean 'interpret'?"),
        (("interpret",), "Missing argument 'DATA'"),
        (("interpret", "adult", "--bogus"), "--bogus"),
        (("train", "german"), "--out"),
        (("train", "german", "--out", "g.safetensors", "--seed", "x"), "--seed"),
        (("train", "german", "--out", "g.safetensors", "--hidden", "8,x"), "--hidden 8,x: expected whole numbers"),
        (("train", "german", "--out", "g.safetensors", "--hidden", "0"), "--hidden 0"),
        (("interpret", "german", "--encoding", "papr"), "Did you mean 'paper'?"),
        (("interpret", "german", "--target", "sex"), "--target are for tables of your own"),
        (("interpret", "german", "--device", "nonsense"), "--device nonsense"),
        (("interpret", "german", "--sensitive", "sex,sex"), "twice"),
        (("interpret", "german", "--sensitive", ","), "no sensitive attribute"),
        (("interpret", "table.csv"), "--domain"),
        (("interpret", "table.csv", "--encoding", "paper"), "--encoding paper"),
        (("interpret", "table.csv", "--domain", "table.toml", "--target", "income"), "Leave one of the two out"),
        (("domain", "infer", "table.csv", "--sensitive", "income", "--target", "income", "--out", "-"), "both"),
        (
            ("domain", "infer", "table.csv", "--sensitive", "sex", "--target", "incom", "--out", "-"),
            "Did you mean 'income'?",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_words(refused, table, words, says):
    refused(*words, says=(says,))


# Around the process


def shell(line: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NF": f"{sys.executable} -m neuronfair.cli", **extra}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, check=False)


def test_a_reader_that_goes_away(table):
    result = shell(f"$NF interpret {table} {' '.join(USE)} --json - | head -c 1")
    assert (result.stdout, result.stderr) == ("{", "")


def test_help_ends_quietly_when_nobody_reads_on():
    result = shell("$NF audit --help | head -n 1")
    assert "internal error" not in result.stderr


def test_a_terminal_without_unicode_or_colour(table):
    result = shell(f"$NF interpret {table} {' '.join(USE)}", PYTHONIOENCODING="ascii", NO_COLOR="1", COLUMNS="80")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Most biased layer" in result.stdout
    assert "\x1b" not in result.stdout


# The README


def test_infer_says_what_it_leaves_out_and_how_it_reads_the_rest(run):
    rows = [f"{i},{line},$1{i % 9}.50,DE" for i, line in enumerate(people())]
    Path("table.csv").write_bytes("\n".join([f"id,{HEADER},größe,land", *rows]).encode("cp1252"))
    result = run("domain", "infer", "table.csv", *INFER)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[:-1] == [
        "Left out: id (an identifier: every cell is different), land (constant: DE in every row)",
        "the file is not UTF-8 and was read as Windows-1252: check letters such as ä, é or €",
        "größe: $10.50 is read as 10.5",
    ]
    draft = Path("table.toml").read_text(encoding="utf-8")
    assert "# - the file is not UTF-8" in draft
    assert '"größe" = { kind = "continuous", low = 10.5, high = 18.5' in draft


@pytest.mark.parametrize(("level", "said"), [("wrong", "It is fed [wrongly].\n"), ("ok", "")])
def test_a_model_that_seems_wrongly_fed_is_named(monkeypatch, level, said):
    report = EncodingCheckReport(level, "It is fed [wrongly].", 10)
    monkeypatch.setattr("neuronfair.audits.stages.encoding_check.check_encoding", lambda opened, data: report)
    console = make_console()
    with console.capture() as capture:
        warn_of_encoding_problem(None, None, console)
    assert capture.get() == said


def test_an_internal_error_ends_with_status_3_and_says_where(run, table, monkeypatch):
    """With status 1 it would be taken for a gate that failed."""

    def broken(*_, **__):
        raise KeyError("no such thing")

    monkeypatch.setattr("neuronfair.cli.options.TableOptions.load", broken)
    monkeypatch.delenv("NEURONFAIR_DEBUG", raising=False)
    words = ("audit", "table.csv", "--domain", "table.toml", "--model", "model.safetensors", "--fail-if", "rate > 1%")
    found = run(*words)
    assert found.status == 3
    assert found.err.count("\n") == 1
    assert re.search(r"internal error: KeyError at test_app.py:\d+: 'no such thing'", found.err)
    assert "NEURONFAIR_DEBUG=1 shows" in found.err
    told = run("--debug", *words)
    assert told.status == 3
    assert "Traceback (most recent call last)" in told.err
    monkeypatch.setattr("neuronfair.cli.options.TableOptions.load", lambda *_: sys.exit(1))
    monkeypatch.delenv("NEURONFAIR_DEBUG")
    assert run(*words).status == 3
