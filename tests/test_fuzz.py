"""Random and damaged files at every edge: an error in words, or a result; never another exception."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neuronfair.domain.data import Data, read_table
from neuronfair.domain.infer import infer_domain
from neuronfair.domain.toml import parse_domain, read_domain
from neuronfair.errors import NeuronFairError
from neuronfair.generation.campaign import Plan, find
from neuronfair.network.bridges import _READERS, open_model
from neuronfair.network.weights import Card, fingerprint, save
from neuronfair.network.zoo import fully_connected
from neuronfair.store.manifest import make_manifest
from neuronfair.store.run import Run
from neuronfair.verdict.baseline import compare_with, read_baseline
from neuronfair.verdict.corpus import extend, read_corpus, replay_corpus
from neuronfair.verdict.entries import Change
from neuronfair.verdict.gate import check, read_expressions
from tests import reports
from tests.planted import networks

fuzzed = settings(
    max_examples=400,
    deadline=None,
    database=None,  # the files that are damaged hold times and versions, so an example means nothing in another run
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

DOMAIN = """name = "people"
sensitive = ["sex"]
outside = "keep"
encode = "raw"
target = { column = "income", classes = ["low", "high"] }
[attributes]
age = { kind = "ordinal", low = 17, high = 90, center = 40, scale = 10 }
sex = { kind = "flag", values = ["F", "M"] }
race = { kind = "nominal", values = ["A", "B", "C"], encode = "onehot" }
gain = { kind = "continuous", low = 0, high = 50, step = 0.5, missing = 3 }
job = { kind = "nominal", values = ["x", "y"], missing = 7, extra = { "z" = 9 } }
[[rules]]
name = "r"
if = { race = ["A", "B"], gain = 5 }
then = { job = "x" }
[[rules]]
forbid = { gain = { min = 0.5 }, age = { max = 20 } }
"""
TABLE = """age,sex,race,gain,job,income
39,F,A,0.5,x,low
17,M,B,,,high
90,F,C,50,z,low
"""
# What readers stumble over: values at the ends of types, and the marks of the formats.
NUMBERS = b"-1 0 1 2 0.5 100000000 9223372036854775807 1e30 9223372036854775808 -1e308 1e18 1e-300 inf".split()
TOKENS = [
    *NUMBERS,
    *b"1e999 nan null true".split(),
    *(b'[] {} "" \' \\ \x00 \xff , ; \t \n \r\n = : # | . [[ ]] { } " \xef\xbb\xbf PK\x03\x04 \x80\x04 \x1f\x8b').split(
        b" "
    ),
    "é".encode(),
    "\u202e".encode(),
    b"../../x",
    b"/dev/zero",
    b"9" * 5000,
]


def damaged(valid: bytes, dice: random.Random) -> bytes:
    """A valid file after a few accidents: bytes changed, cut out, doubled, put in; or the end missing."""
    content = valid
    for _ in range(dice.randint(1, 4)):
        at, span = dice.randint(0, len(content)), dice.randint(0, 40)
        part = content[at : at + span]
        put = dice.choice([dice.choice(TOKENS), dice.randbytes(dice.randint(0, 8)), b"", part + part])
        content = content[:at] + put + content[at + span :]
    return content[: dice.randint(0, len(content))] if dice.random() < 0.12 else content


def swapped(valid: bytes, dice: random.Random) -> bytes:
    """A valid text with some of its numbers or words replaced by a token or by another one of them."""
    content = valid
    for _ in range(dice.randint(1, 3)):
        words = list(re.finditer(rb"[\w.+-]+", content))
        if not words:
            break
        one, other = dice.choice(words), dice.choice(words)
        # A number for a number is often still a file that can be read, and so gets further.
        put = dice.choice(NUMBERS if one.group()[:1].isdigit() else [*TOKENS, other.group()])
        content = content[: one.start()] + put + content[one.end() :]
    return content


def wreck(valid: bytes, seed: int, *, text: bool = True) -> bytes:
    """Random bytes, or a valid file after an accident; the same for the same seed."""
    dice = random.Random(seed)
    kind = dice.randrange(6)
    if kind == 0:
        return dice.randbytes(dice.randint(0, 200))
    return swapped(valid, dice) if text and kind > 1 else damaged(valid, dice)


SEEDS = st.integers(0, 2**32 - 1)


def any_content(valid: bytes) -> st.SearchStrategy[bytes]:
    return SEEDS.map(lambda seed: wreck(valid, seed))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def survives(content: bytes, name: str, read: Callable[[Path], object]) -> None:
    """Write a file and read it: a result or a `NeuronFairError`, and no other file."""
    with folder() as place:
        path = place / name
        path.write_bytes(content)
        with contextlib.suppress(NeuronFairError):
            read(path)
        assert [p.name for p in place.rglob("*")] == [name]
        assert path.read_bytes() == content


def use(domain):
    """What is done with a domain before anything is written."""
    rows = domain.sample(3, torch.Generator().manual_seed(0))
    assert bool(domain.valid(rows).all())
    domain.key(rows)
    domain.to_table(rows)


@fuzzed
@given(any_content(DOMAIN.encode()))
def test_domain_files(content):
    survives(content, "domain.toml", lambda path: use(read_domain(path)))


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
        ("missing = 7", "missing = []", "missing a label or a number"),
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
    domain = parse_domain(DOMAIN)
    survives(content, name, lambda path: read_table(path, domain))


@pytest.mark.parametrize("cell", ["1e200", "5e-324"])
def test_numbers_beyond_measure_are_taken_for_labels(tmp_path, cell):
    path = tmp_path / "table.csv"
    path.write_text(f"x,sex,income\n{cell},F,a\n0.5,M,b\n1,M,b\n")
    domain = parse_domain(infer_domain(path, sensitive=["sex"], target="income"))
    assert set(domain.attributes[0].values) == {"0.5", "1", cell}


@fuzzed
@given(any_content(TABLE.encode()))
def test_tables_without_a_domain(content):
    def read(path: Path) -> None:
        text = infer_domain(path, sensitive=["sex"], target="income")
        domain = parse_domain(text)
        use(domain)
        read_table(path, domain)

    survives(content, "table.csv", read)


AUDIT = reports.report().to_json().encode()


@fuzzed
@given(any_content(AUDIT))
def test_baselines(content):
    def read(path: Path) -> None:
        earlier = read_baseline(path)
        replace(reports.report(), baseline=compare_with(reports.report(), earlier, path)).to_json()

    survives(content, "audit.json", read)


@pytest.fixture(scope="module")
def past(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    row = {"a0": 5, "a1": 5, "a2": 5, "a3": 4, "s": 0}
    worst = tuple(reports.finding(row=row | {"a0": code}, changed=(Change("s", 0, 1),)) for code in (5, 6))
    extend(read_corpus(path, networks.domain()), reports.report(reports.attribute("s", worst=worst)))
    return path.read_bytes()


@fuzzed
@given(SEEDS)
def test_corpora(past, seed):
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)

    def read(path: Path) -> None:
        figures = replay_corpus(read_corpus(path, domain), network, domain)
        assert figures.still_flips + figures.fixed == figures.replayed

    survives(wreck(past, seed), "corpus.jsonl", read)


@fuzzed
@given(any_content(b"sex.rate.table >= 1.5e1 %"))
def test_expressions(content):
    text = content.decode(errors="replace")
    with contextlib.suppress(NeuronFairError):
        read_expressions([text], ["sex", "", "a.rate"], ["frontier"])
        check(reports.report(), [text])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[str, bytes]:
    """The files of a small run."""
    place = tmp_path_factory.mktemp("run") / "run"
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    rows = networks.uniform_rows(domain, 20)
    plan = Plan(method="uniform", seeds=5, steps=5)
    data = Data("planted", domain, rows, torch.zeros(20).long())
    run = Run.create_or_open(
        place, make_manifest(plan, data, model="m", weights="w", outputs=2), domain, network.outputs
    )
    run.finish(find(network, domain, rows, plan, seeds=rows[:5], recorder=run).summary())
    return {path.name: path.read_bytes() for path in place.iterdir()}


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
            run = Run.open(place)
            run.findings()
            run.summary  # noqa: B018
            run.seeds  # noqa: B018
            run.control("random")
            for phase in ("pilot", "global", "local"):
                run.resume(phase)
        assert {path.name for path in place.iterdir()} == set(finished)


@pytest.mark.parametrize(
    ("name", "was", "now", "says"),
    [
        ("manifest.json", b'"outputs": 2', b'"outputs": 100000000', "100000000 outputs"),
        ("manifest.json", b'"outputs": 2', b'"outputs": -1', "-1 outputs"),
        ("manifest.json", b"{", b"[" * 100_000, "cannot be read"),
        ("journal.jsonl", b'"part": "', b'"part": "../', "line 1 is damaged"),
        ("journal.jsonl", b'"crc32": {"', b'"crc32": {"_', "line 1 is damaged"),
        ("journal.jsonl", b'"count": {"', b'"count": {"_', "is damaged"),
        ("seeds.npy", b"(", b"((", "damaged or gone"),
    ],
)
def test_runs_that_once_gave_a_traceback_or_none_at_all(finished, tmp_path, name, was, now, says):
    assert was in finished[name]
    for other, content in finished.items():
        (tmp_path / other).write_bytes(content.replace(was, now, 1) if other == name else content)
    with pytest.raises(NeuronFairError, match=says):
        _ = (run := Run.open(tmp_path)).findings(), run.seeds


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, bytes]:
    """Small models of the kinds that can be read in this process without danger, as far as their packages are here."""
    place = tmp_path_factory.mktemp("models")
    domain = networks.domain()
    module = fully_connected(5, (4,), 2)
    card = Card("planted", "default", domain.input_fingerprint, 5, (4,), 2, ("0", "1"), {}, 0, fingerprint(module))
    save(place / "m.safetensors", module, card)
    (place / "m.json").unlink()
    np.savez(place / "m.npz", W0=np.ones((5, 4)), b0=np.ones(4), W1=np.ones((4, 2)), b1=np.ones(2))
    if importlib.util.find_spec("onnx"):
        from onnx import TensorProto, helper, numpy_helper, save_model

        tensors = {"W": np.ones((4, 5), "f"), "b": np.ones(4, "f"), "V": np.ones((2, 4), "f")}
        nodes = [
            helper.make_node("Gemm", ["x", "W", "b"], ["a"], transB=1),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("Gemm", ["r", "V"], ["y"], transB=1),
        ]
        ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k])] for n, k in (("x", 5), ("y", 2))]
        weights = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
        graph = helper.make_graph(nodes, "g", *ends, weights)
        save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), place / "m.onnx")
    if importlib.util.find_spec("skops"):
        import skops.io
        from sklearn.neural_network import MLPClassifier

        x = domain.encode(networks.uniform_rows(domain, 40)).numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has not learned everything
            skops.io.dump(MLPClassifier((2,), max_iter=2).fit(x, x[:, 0] > 4), place / "m.skops")
    return {p.suffix: p.read_bytes() for p in place.iterdir()}


@fuzzed
@given(SEEDS)
def test_models(models, seed):
    domain = networks.domain()
    rows = networks.uniform_rows(domain, 20)
    suffixes = sorted({*models, *_READERS, ".pt", ".bin", ".txt", ""})
    suffix = suffixes[seed % len(suffixes)]
    dice = random.Random(seed)
    content = wreck(models[suffix], seed, text=False) if suffix in models else dice.randbytes(dice.randint(0, 200))
    survives(content, f"model{suffix}", lambda path: open_model(path, domain, rows))


@settings(fuzzed, max_examples=40)
@given(
    which=st.sampled_from(["table.csv", "domain.toml", "model.safetensors", "past", "old"]),
    content=st.binary(max_size=60),
)
def test_the_command_line_says_what_is_wrong_and_leaves_nothing_behind(run, models, which, content):
    names = ("table.csv", "domain.toml", "model.safetensors")
    files = dict(zip(names, (TABLE.encode(), DOMAIN.encode(), models[".safetensors"]), strict=True))
    with folder() as place:
        # The model is one for another domain: whatever else is right, it is refused.
        for name, valid in files.items():
            (place / name).write_bytes(content if name == which else valid)
        (place / which).write_bytes(content)
        before = {path: path.read_bytes() for path in place.iterdir()}
        table, domain, model = (place / name for name in names)
        result = run("audit", table, "--domain", domain, "--model", model, "--out", place / "out", "--quick",
                     *(["--corpus", place / "past"] if which == "past" else []),
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
        result = run("replay", place, 0, "--model", place / "none.safetensors")
        assert result.status == 2, result
        assert result.err.startswith("neuronfair: error: ")
        assert result.err.count("\n") == 1
        assert {path.name for path in place.iterdir()} == set(finished)
