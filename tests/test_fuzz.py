"""Random and damaged files at every edge: an error in words, or a result; never another exception."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as to_bytes

from benchmarks.fuzzing import models, readings, specimens
from benchmarks.fuzzing.mutate import wreck
from benchmarks.fuzzing.specimens import DOMAIN, TABLE
from neuronfair.audits.folder import read_report
from neuronfair.audits.gate.checks import compare_with
from neuronfair.audits.gate.thresholds import check_thresholds, read_expressions
from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import NeuronFairError
from neuronfair.model.formats import READERS
from neuronfair.model.weights import fully_connected
from neuronfair.store.run import Run
from tests.reports import report

fuzzed = settings(
    max_examples=400,
    deadline=None,
    database=None,  # the files that are damaged hold times and versions, so an example means nothing in another run
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

SEEDS = st.integers(0, 2**32 - 1)


def any_content(valid: bytes) -> st.SearchStrategy[bytes]:
    return SEEDS.map(lambda seed: wreck(valid, seed))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def survives(content: bytes, name: str, read: Callable[[Path], object]) -> None:
    """Write a file and have its folder read: a result or a `NeuronFairError`, and no other file."""
    with folder() as place:
        path = place / name
        path.write_bytes(content)
        with contextlib.suppress(NeuronFairError):
            read(place)
        assert [p.name for p in place.rglob("*")] == [name]
        assert path.read_bytes() == content


@fuzzed
@given(any_content(DOMAIN.encode()))
def test_domain_files(content):
    survives(content, "domain.toml", readings.domain)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("low = 17", "low = " + "9" * 5000, "cannot be read as TOML"),
        ("sensitive = ", "sensitive = " + "[" * 5000, "cannot be read as TOML"),
        ("high = 90", "high = 1e300", "too many values"),
        ("high = 90", "high = 99999999999999999999", "too many values"),
        ("low = 0, high = 50", "low = -1e308, high = 1e308", "too many values"),
        ("step = 0.5", 'step = 1e-9, encode = "onehot"', "too many for a one-hot block"),
        ("step = 0.5", "step = 1e-9", "too many values for a rule"),
        ("missing = 7", "missing = nan", "neither one of its values nor a code"),
        ("missing = 7", "missing = 1e30", "neither one of its values nor a code"),
        ("missing = 7", "missing = []", "missing must be a label or a number"),
        ('"z" = 9', '"z" = inf', "extra needs whole numbers"),
        ('"z" = 9', '"z" = "w"', "extra needs whole numbers"),
        ('job = "x"', 'job = "z"', "a rule can name its values only"),
        ('job = "x"', "job = [[]]", "expected labels, numbers, or min and max"),
    ],
)
def test_domains_that_once_gave_a_traceback(was, now, says):
    assert DOMAIN.count(was) == 1
    with pytest.raises(NeuronFairError, match=says):
        parse_domain(DOMAIN.replace(was, now))


def test_a_number_far_beyond_its_bounds_is_refused():
    with pytest.raises(NeuronFairError, match="far outside"):
        parse_domain(DOMAIN).from_table({**{n: ["1"] for n in ("sex", "race", "gain", "job")}, "age": ["1e300"]})


@fuzzed
@given(any_content(TABLE.encode()), st.sampled_from(["table.csv", "table.csv.gz", "table.parquet"]))
def test_tables(content, name):
    survives(content, name, readings.table)


@pytest.mark.parametrize("cell", ["1e200", "5e-324"])
def test_numbers_beyond_measure_are_taken_for_labels(tmp_path, cell):
    path = tmp_path / "table.csv"
    path.write_text(f"x,sex,income\n{cell},F,a\n0.5,M,b\n1,M,b\n")
    domain = infer_domain(path, sensitive=["sex"], target="income")
    assert set(domain.attributes[0].values) == {"0.5", "1", cell}


@fuzzed
@given(any_content(TABLE.encode()))
def test_tables_without_a_domain(content):
    survives(content, "table.csv", readings.draft)


AUDIT = report().to_json().encode()


@fuzzed
@given(any_content(AUDIT))
def test_baselines(content):
    def read(place: Path) -> None:
        path = place / "audit.json"
        replace(report(), baseline=compare_with(report(), read_report(path), path)).to_json()

    survives(content, "audit.json", read)


@pytest.mark.slow
@settings(fuzzed, max_examples=150)
@given(SEEDS)
def test_corpora(seed):
    survives(
        wreck(specimens.regression_set()[0]["regression_set.jsonl"], seed),
        "regression_set.jsonl",
        readings.regression_set,
    )


@fuzzed
@given(any_content(b"sex.rate.table >= 1.5e1%"))
def test_expressions(content):
    text = content.decode(errors="replace")
    with contextlib.suppress(NeuronFairError):
        read_expressions([text], ["sex", "", "a.rate"], ["frontier"])
        check_thresholds(report(), [text])


@pytest.fixture(scope="module")
def finished() -> dict[str, bytes]:
    """The files of a small run."""
    return specimens.run()[0]


@settings(fuzzed, max_examples=150)
@given(SEEDS)
def test_run_folders(finished, seed):
    name = sorted(finished)[seed % len(finished)]
    text = not name.endswith((".npy", ".parquet", ".safetensors"))
    content = wreck(finished[name], seed, text=text)
    with folder() as place:
        for other in finished:
            (place / other).write_bytes(content if other == name else finished[other])
        with contextlib.suppress(NeuronFairError):
            readings.run(place)
        assert {path.name for path in place.iterdir()} == set(finished)


@pytest.mark.parametrize(
    ("name", "was", "now", "says"),
    [
        ("manifest.json", b'"outputs": 2', b'"outputs": 100000000', "damaged"),
        ("manifest.json", b"{", b"[" * 100_000, "damaged"),
        ("journal.jsonl", b'"part": "', b'"part": "../', "line 2 is damaged"),
        ("seeds.npy", b"(", b"((", "damaged"),
    ],
)
def test_runs_that_once_gave_a_traceback_or_none_at_all(finished, tmp_path, name, was, now, says):
    assert was in finished[name]
    for other, content in finished.items():
        (tmp_path / other).write_bytes(content.replace(was, now, 1) if other == name else content)
    with pytest.raises(NeuronFairError, match=says):
        Run.open(tmp_path)


@pytest.fixture(scope="module")
def whole() -> dict[str, bytes]:
    """Small models of the kinds that can be read in this process without danger, as far as their packages are here."""
    here = [kind for kind in ("onnx", "skops") if importlib.util.find_spec(kind)]
    return {f".{kind}": getattr(models, kind)()[0][f"model.{kind}"] for kind in ("npz", "safetensors", *here)}


@fuzzed
@given(SEEDS)
def test_models(whole, seed):
    suffixes = sorted({*whole, *READERS, ".pt", ".bin", ".txt", ""})
    suffix = suffixes[seed % len(suffixes)]
    dice = random.Random(seed)
    content = wreck(whole[suffix], seed, text=False) if suffix in whole else dice.randbytes(dice.randint(0, 200))
    survives(content, f"model{suffix}", readings.model)


@settings(fuzzed, max_examples=40)
@given(
    which=st.sampled_from(["table.csv", "domain.toml", "model.safetensors", "past", "old"]),
    content=st.binary(max_size=60),
)
def test_the_command_line_says_what_is_wrong_and_leaves_nothing_behind(run, which, content):
    names = ("table.csv", "domain.toml", "model.safetensors")
    # The model is one for another domain: whatever else is right, it is refused.
    other = to_bytes(fully_connected(5, (4,), 2).state_dict())
    files = dict(zip(names, (TABLE.encode(), DOMAIN.encode(), other), strict=True))
    with folder() as place:
        for name, valid in files.items():
            (place / name).write_bytes(content if name == which else valid)
        (place / which).write_bytes(content)
        before = {path: path.read_bytes() for path in place.iterdir()}
        table, domain, model = (place / name for name in names)
        result = run("audit", table, "--domain", domain, "--model", model, "--out", place / "out", "--quick",
                     *(["--regression-set", place / "past"] if which == "past" else []),
                     *(["--baseline", place / "old"] if which == "old" else []))  # fmt: skip
        assert result.status == 2, result
        assert result.err.startswith("neuronfair: error: ")
        assert result.err.count("\n") == 1
        assert "Traceback" not in result.err
        assert {path: path.read_bytes() for path in place.iterdir()} == before


@settings(fuzzed, max_examples=40)
@given(name=st.sampled_from(["manifest.json", "journal.jsonl", "domain.toml"]), seed=SEEDS)
@example(name="manifest.json", seed=365)  # an entry of the plan was gone
def test_a_damaged_run_is_not_replayed(run, finished, name, seed):
    content = wreck(finished[name], seed)
    with folder() as place:
        for other in finished:
            (place / other).write_bytes(content if other == name else finished[other])
        result = run("show", place, 0, "--model", place / "none.safetensors")
        assert result.status == 2, result
        assert result.err.startswith("neuronfair: error: ")
        assert result.err.count("\n") == 1
        assert {path.name for path in place.iterdir()} == set(finished)
